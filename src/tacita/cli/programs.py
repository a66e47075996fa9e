"""`tacita check` and `tacita run`: type-check a private program without any data, and run it on them."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita import _codec
from tacita.cli.app import JSON, RUN_DIR, app, busy, new_run, print_json

if TYPE_CHECKING:
    from tacita.guarantee import Guarantee
    from tacita.ledger import Ledger
    from tacita.programs.composition import Cost
    from tacita.programs.handles import PlannedRelease
    from tacita.programs.program import Program

_LOOK = "the data's owner sees how many with --inspect."
PROGRAM = Annotated[Path, typer.Argument(help="A Python file that makes one Program.", show_default=False)]


@app.command(epilog="Example: tacita check survey.py")
def check(program: PROGRAM, as_json: JSON = False) -> None:
    """Check a private program before any data are read: what it releases, and what that costs.

    The file is executed, and what it prints goes to standard error. Exit code 1 means that the program is ill-typed or
    exceeds its budget.
    """
    loaded = load_program(program, as_json=as_json)
    if as_json:
        print_json(summary(loaded))
        return
    for line in _lines(loaded, program):
        typer.echo(line)


@app.command(epilog="Example: tacita run survey.py --data people.csv")
def run(
    program: PROGRAM,
    data: Annotated[Path, typer.Option(help="A CSV file with a header, or .csv.gz.", show_default=False)],
    header: Annotated[
        str | None, typer.Option(help="The names of the columns, with commas, if the file has no header line.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(help="The ledger to charge, a file or a URL; DATA.ledger.sqlite unless given, made if missing."),
    ] = None,
    run_dir: RUN_DIR = None,
    inspect: Annotated[
        bool, typer.Option("--inspect", help="For the data's owner: say how well the file fits, and release nothing.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Run a private program: check it, read the data, charge the ledger, release, and show the results.

    The results are kept in a folder, because what was charged is charged: results.json, results.txt, the privacy label
    and, if there are posteriors, posteriors.svg. Cells that do not fit the schema count as their column's fallback. An
    ill-typed program ends with exit code 1 before the data are looked at; so does, afterwards, one of whose
    calculations failed.
    """
    from tacita.ledger import is_there
    from tacita.programs.labels import label_of_run, write_run
    from tacita.programs.results import Failed
    from tacita.runs import Run

    loaded = load_program(program, as_json=as_json)
    if not data.is_file():
        raise ValueError(f"{str(data)!r} {'is a folder' if data.is_dir() else 'does not exist'}; pass a CSV file.")
    names = [name.strip() for name in header.split(",")] if header is not None else None
    if inspect:
        _inspect(loaded, data, names, as_json)
        return
    book = f"{data}.ledger.sqlite" if ledger is None else ledger
    folder, fresh = new_run(run_dir, program.stem), not is_there(book)
    folder.mkdir(parents=True, exist_ok=True)  # before the charge: there is a place for what it pays for
    try:
        with _ledger(book, data, loaded) as opened, busy("releasing", quiet=as_json):
            results = loaded.run(data, header=names, ledger=opened, name=program.stem)
            spent, charged = _spent(opened), opened.name
    except BaseException:
        _tidy(folder, book if fresh else None)  # nothing was released
        raise
    document = {"program": program.name, "data": data.name, "ledger": charged, **results.to_dict()}
    document["spent"] = spent.to_dict()
    text = _kept(folder, results, spent, document)
    with _ledger(book, data, loaded) as opened:
        write_run(Run(folder), loaded, title=program.stem, ledger=opened)
    if find_spec("jinja2") is not None:
        Run(folder).write_label(label_of_run(folder))
    if as_json:
        print_json(document)
    else:
        typer.echo(f"{text}\nKept in {folder}. Cells that do not fit the schema counted as fallbacks; {_LOOK}")
    raise typer.Exit(1 if any(isinstance(value, Failed) for value in results.values()) else 0)


def load_program(path: Path, *, as_json: bool) -> Program:
    """Return the checked program of a file, or show its error and exit with code 1."""
    from tacita.programs.errors import ProgramError
    from tacita.programs.loading import load

    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{str(path)!r} {what}; pass the Python file of a program.")
    try:
        return load(path)
    except ProgramError as error:
        if as_json:
            print_json({"schema": 1, "ok": False, "error": error.to_dict()})
        else:
            print(error, file=sys.stderr)
        raise typer.Exit(1) from error


def summary(program: Program) -> dict[str, Any]:
    """Return what a checked program releases and costs, as plain data."""
    return {
        "schema": 1,
        "ok": True,
        "n": program.n,
        "neighbours": "replace_one" if program.people is None else "add_remove",
        **_people(program),
        "budget": {"epsilon": program.epsilon, "delta": program.delta},
        "total": _cost(program.check()),
        "releases": [_release(release) for release in program.releases],
        "derived": [{"name": d.name, "from": [i.name for i in d.inputs]} for d in program.derived],
    }


def _people(program: Program) -> dict[str, Any]:
    people = program.people
    return {} if people is None else {"unit": "person", "person": people.column, "rows_per_person": people.rows}


def _release(release: PlannedRelease) -> dict[str, Any]:
    query = release.query
    return {
        "name": release.name,
        "line": release.span.line,
        "query": query.label,
        "model": str(query.model) if query.model else None,
        "numbers": query.statistic.numbers,
        "unit": float(query.unit),
        "sensitivity": {"metric": "l1", **_codec.to_plain(query.sensitivity)},
        "mechanism": str(release.mechanism),
        "cost": {"stay": _cost(release.charge.stay), "cross": _cost(release.charge.cross)},
    }


def _cost(cost: Cost) -> dict[str, float]:
    return {"epsilon": float(cost.epsilon), "delta": float(cost.delta)}


def _lines(program: Program, path: Path) -> list[str]:
    from tacita.programs.composition import exact, text
    from tacita.report.text import aligned

    rows = []
    for release in program.releases:
        query = release.query
        unit = f" x {float(query.unit):g}" if query.unit != 1 else ""
        moved = f"{query.sensitivity if program.people is None else f'L1 {query.sensitivity.larger}'}{unit}"
        rows.append((release.name, query.title, moved, str(release.mechanism), str(release.charge.largest)))
    rows += [(d.name, f"from {', '.join(i.name for i in d.inputs)}", "", "", "nothing") for d in program.derived]
    spent = program.check()
    totals = [f"epsilon {text(spent.epsilon)} of {text(exact(program.epsilon))}"]
    if program.delta:
        totals.append(f"delta {text(spent.delta)} of {text(exact(program.delta))}")
    who = "record" if program.people is None else "person"
    head = f"{path}: {program.n} records, of which one may be replaced by another"
    if program.people is not None:
        head = f"{path}: people, of whom one may come or go with up to {program.people.rows} rows"
    table = aligned(("release", "query", f"one {who} moves it by", "mechanism", "costs"), rows)
    return [head, "", *table, "", f"total: {', '.join(totals)}", "The program is well-typed. No data were read."]


def _spent(ledger: Ledger) -> Guarantee:
    """Return what the ledger holds, at the budget's delta or else at the first round one that says something."""
    deltas = [ledger.budget[1]] if ledger.budget else [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.9]
    totals = [total for total in map(ledger.spent, deltas) if total is not None]
    return next((total for total in totals if math.isfinite(total.epsilon)), totals[-1])


def _kept(folder: Path, results: Any, spent: Guarantee, document: dict[str, Any]) -> str:
    """Write the results to their folder, the data first; return them as text."""
    from tacita import runs
    from tacita._numbers import delta_text, round_up_text
    from tacita.programs.results import write_figure

    runs.write_json(folder, "results.json", document)
    total = f"epsilon {round_up_text(spent.epsilon)} at delta {delta_text(spent.delta)}"
    text = f"{results}\n\nThis and everything charged before to {document['ledger']}: {total}."
    runs.write_text(folder, "results.txt", text + "\n")
    if find_spec("matplotlib") is not None:
        write_figure(folder / "posteriors.svg", results)
    return text


def _tidy(folder: Path, made: str | None) -> None:
    """Remove the folder that is still empty, and a ledger that was just made and holds nothing."""
    from tacita.ledger import Ledger

    folder.rmdir()
    if folder.parent == Path("runs") and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    if made is not None and Path(made).exists():
        with Ledger.open(made) as ledger:
            unused = not ledger.releases()
        if unused:
            for end in ("", "-wal", "-shm"):
                Path(f"{made}{end}").unlink(missing_ok=True)


def _ledger(book: str, data: Path, program: Program) -> Ledger:
    from tacita._check import PrivacyError
    from tacita.ledger import Ledger, is_there

    if is_there(book):
        return Ledger.open(book)
    try:
        if program.people is None:
            return Ledger.create(book, neighbours="replace_one", data=data.name)
        return Ledger.create(book, neighbours="add_remove", unit="person", data=data.name)
    except (OSError, PrivacyError) as error:
        raise ValueError(f"{str(error).rstrip('.')}; choose another place with --ledger.") from None


def _inspect(program: Program, data: Path, header: list[str] | None, as_json: bool) -> None:
    from tacita.data.domains import Bool, Category
    from tacita.programs.tables import read

    unreadable = dict(read(program, data, header=header).unreadable)
    if as_json:
        print_json({"schema": 1, "n": program.n, "unreadable": unreadable, "publishable": False})
        return
    said = "its rows that count" if program.n is None else f"{program.n} records, as the program says"
    typer.echo(f"{data}: {said}. For the data's owner, not for publication:")
    for name, number in unreadable.items():
        domain, fallback = program.schema[name], "its lower bound once it is clamped"
        if isinstance(domain, Bool | Category):
            fallback = repr(domain.labels[domain.fallback])
        bad = f"cells that are not {domain}: {number}, each counts as {fallback}"
        typer.echo(f"  {name}: {bad if number else 'every cell fits'}")
