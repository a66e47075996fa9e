"""`tacita check`: type-check a private program, without any data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import JSON, app, print_json

if TYPE_CHECKING:
    from tacita.posterior.composition import Cost
    from tacita.posterior.handles import PlannedRelease
    from tacita.posterior.program import Program

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


def load_program(path: Path, *, as_json: bool) -> Program:
    """Return the checked program of a file, or show its error and exit with code 1."""
    from tacita.posterior.errors import ProgramError
    from tacita.posterior.loading import load

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
        "neighbours": "replace_one",
        "budget": {"epsilon": program.epsilon, "delta": program.delta},
        "total": _cost(program.check()),
        "releases": [_release(release) for release in program.releases],
        "derived": [{"name": d.name, "from": [i.name for i in d.inputs]} for d in program.derived],
    }


def _release(release: PlannedRelease) -> dict[str, Any]:
    from tacita.posterior.composition import sensitivity

    query, moved = release.query, sensitivity(release.query)
    return {
        "name": release.name,
        "line": release.span.line,
        "query": query.label,
        "model": str(query.model) if query.model else None,
        "numbers": query.numbers,
        "unit": float(query.unit),
        "sensitivity": {"metric": "l1", "stay": moved.stay, "cross": moved.cross},
        "mechanism": str(release.request),
        "cost": {"stay": _cost(release.charge.stay), "cross": _cost(release.charge.cross)},
    }


def _cost(cost: Cost) -> dict[str, float]:
    return {"epsilon": float(cost.epsilon), "delta": float(cost.delta)}


def _lines(program: Program, path: Path) -> list[str]:
    from tacita.posterior.composition import exact, sensitivity, text

    rows = [("release", "query", "one record moves it by", "mechanism", "costs")]
    for release in program.releases:
        query = release.query
        model = f", {query.model}" if query.model else ""
        unit = f" x {float(query.unit):g}" if query.unit != 1 else ""
        moved = f"{sensitivity(query)}{unit}"
        rows.append((release.name, query.label + model, moved, str(release.request), str(release.charge.largest)))
    rows += [(d.name, f"from {', '.join(i.name for i in d.inputs)}", "", "", "nothing") for d in program.derived]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    spent = program.check()
    totals = [f"epsilon {text(spent.epsilon)} of {text(exact(program.epsilon))}"]
    if program.delta:
        totals.append(f"delta {text(spent.delta)} of {text(exact(program.delta))}")
    head = f"{path}: {program.n} records, of which one may be replaced by another"
    return [head, "", *table, "", f"total: {', '.join(totals)}", "The program is well-typed. No data were read."]
