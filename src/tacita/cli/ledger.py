"""`tacita ledger create|show|budget`: a privacy budget that several runs and people share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import JSON, app, print_json
from tacita.facts import MEMORY

if TYPE_CHECKING:
    from tacita.assumptions import Assumption
    from tacita.guarantee import Guarantee
    from tacita.ledger import Ledger

FILE = Annotated[str, typer.Argument(help="The ledger's file, or postgresql://USER@HOST/DATABASE.", metavar="FILE")]

ledger_app = typer.Typer(no_args_is_help=True, help="Keep a privacy budget that several runs and people share.")
app.add_typer(ledger_app, name="ledger")


@ledger_app.command(epilog="Example: tacita ledger create budget.sqlite --epsilon 3 --delta 1e-5")
def create(
    file: FILE,
    epsilon: Annotated[float | None, typer.Option(help="Worst-case budget, together with --delta.")] = None,
    delta: Annotated[float | None, typer.Option(help="Worst-case budget, together with --epsilon.")] = None,
    data: Annotated[str, typer.Option(help="Which data it is about, for people.")] = "",
    unit: Annotated[str, typer.Option(help="What is protected; fixed for ever.")] = "record",
    neighbours: Annotated[str, typer.Option(help="add_remove or replace_one; fixed for ever.")] = "add_remove",
    gaussian_share: Annotated[
        float,
        typer.Option(help="The part of delta for charges counted as Gaussian distances; the rest is for moments."),
    ] = 0.5,
    as_json: JSON = False,
) -> None:
    """Make a ledger. Its unit and its neighbouring relation can not be changed later."""
    from tacita.ledger import Ledger, on_server

    if file == MEMORY:
        raise ValueError("A ledger in memory ends with this command: choose a file.")
    if not on_server(file) and Path(file).exists():
        raise ValueError(f"{file!r} exists already: choose another file, or see it with: tacita ledger show {file}")
    about: dict[str, Any] = {"unit": unit, "neighbours": neighbours, "data": data, "gaussian_share": gaussian_share}
    with Ledger.create(file, epsilon=epsilon, delta=delta, **about) as made:
        _print(made, as_json)


@ledger_app.command(epilog="Example: tacita ledger show budget.sqlite")
def show(
    file: FILE,
    html: Annotated[Path | None, typer.Option(help="Write a page: who spent what, over time, what is left.")] = None,
    as_json: JSON = False,
) -> None:
    """Say what was spent, by which runs, and what is left. Checks every link of the chain first."""
    with opened(file) as ledger:
        if html is not None:
            from tacita.cli.ledger_page import ledger_html

            html.write_text(ledger_html(ledger), encoding="utf-8")
        _print(ledger, as_json)
    if html is not None and not as_json:
        typer.echo(f"Page:   {html}")


@ledger_app.command(epilog="Example: tacita ledger budget budget.sqlite --epsilon 2 --delta 1e-5")
def budget(
    file: FILE,
    epsilon: Annotated[float, typer.Option(help="The new worst-case budget.")],
    delta: Annotated[float, typer.Option(help="The new worst-case budget.")],
    allow_raise: Annotated[
        bool, typer.Option("--raise", help="Allow more than before: those who relied on the old budget should know.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Set the budget. Lowering it is always possible, raising it only with --raise."""
    from tacita.ledger import BudgetRaised

    with opened(file) as ledger:
        try:
            ledger.set_budget(epsilon, delta, allow_increase=allow_raise)
        except BudgetRaised:
            raise ValueError("This is more than the budget in force; if its owner agrees, pass --raise.") from None
        _print(ledger, as_json)


@ledger_app.command(epilog="Example: tacita ledger share budget.sqlite ann --epsilon 1")
def share(
    file: FILE,
    analyst: Annotated[str, typer.Argument(help="The role that logs in to a server, or the name in TACITA_ANALYST.")],
    epsilon: Annotated[float | None, typer.Option(help="The most that this analyst's own charges may come to.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the share away; the budget alone is left.")] = False,
    as_json: JSON = False,
) -> None:
    """Limit what one analyst may spend of the budget. From the first share on, every charge needs a name."""
    if (epsilon is None) != remove:
        raise ValueError("Pass either --epsilon or --remove.")
    with opened(file) as ledger:
        ledger.set_share(analyst, epsilon)
        _print(ledger, as_json)


@ledger_app.command(epilog="Example: tacita ledger window budget.sqlite --first 2026-12-01 --last 2026-12-31 …")
def window(
    file: FILE,
    first: Annotated[str, typer.Option(help="The first day, YYYY-MM-DD, in UTC.")],
    last: Annotated[str, typer.Option(help="The last day.")],
    epsilon: Annotated[float, typer.Option(help="The worst-case budget of these days.")],
    delta: Annotated[float, typer.Option(help="The worst-case budget of these days.")],
    data_are_new: Annotated[
        bool,
        typer.Option("--data-are-new", help="Declare that nobody in these data is in data charged at other times."),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Set a budget for newly collected data, in force on these days alone. What was spent before does not count.

    Nothing is charged on other days, and never again without a window. Labels say what you declare.
    """
    with opened(file) as ledger:
        ledger.open_window(first, last, epsilon=epsilon, delta=delta, data_are_new=data_are_new)
        _print(ledger, as_json)


def opened(file: str) -> Ledger:
    """Open a ledger, or say what there is instead."""
    from tacita.ledger import Ledger, on_server

    if not on_server(file) and not Path(file).is_file():
        if Path(file).is_dir():
            raise ValueError(f"{file!r} is a folder; pass the ledger's file.")
        raise ValueError(f"There is no ledger at {file!r}; make one with: tacita ledger create {file}")
    return Ledger.open(file)


def _print(ledger: Ledger, as_json: bool) -> None:
    from dataclasses import asdict

    from tacita._codec import to_plain

    spent = ledger.spent() if ledger.budget else ledger.spent(1e-5)
    document: dict[str, Any] = {
        "schema": 1,
        "file": ledger.place,
        "data": ledger.data,
        "unit": ledger.unit,
        "neighbours": ledger.neighbours,
        "budget": None if ledger.budget is None else dict(zip(("epsilon", "delta"), ledger.budget, strict=True)),
        "gaussian_share": ledger.gaussian_share,
        "window": ledger.window and asdict(ledger.window),
        "past": [
            {"window": days and asdict(days), "epsilon": to_plain(epsilon), "delta": delta}
            for days, epsilon, delta in ledger.past()
        ],
        "analysts": {name: to_plain(asdict(one)) for name, one in ledger.analysts().items()},
        "spent": None if spent is None else spent.to_dict(),
        "planned_epsilon": None if spent is None else to_plain(ledger.planned_epsilon(spent.delta)),
        "reservations": {name: asdict(held) for name, held in ledger.reservations().items()},
        "runs": ledger.runs(),
        "releases": ledger.releases(),
        "head": ledger.head,
    }
    if as_json:
        print_json(document)
        return
    for line in _lines(ledger, document, spent):
        typer.echo(line)


def _lines(ledger: Ledger, document: dict[str, Any], spent: Guarantee | None) -> list[str]:
    from tacita._numbers import delta_text, round_up_text

    relation = {"add_remove": "added or removed", "replace_one": "replaced by another"}[ledger.neighbours]
    about = f" ({ledger.data})" if ledger.data else ""
    lines = [f"{ledger.place}{about}: protects one {ledger.unit}, {relation}"]
    if spent is None:
        lines.append("spent:  nothing yet")
    else:
        lines.append(
            f"spent:  epsilon {round_up_text(spent.epsilon)} at delta {delta_text(spent.delta)}, all runs together"
        )
        planned = round_up_text(ledger.planned_epsilon(spent.delta))
        lines.append(f"        ({planned} if all of it had been planned beforehand: the rest is the price of choosing)")
    if ledger.budget is None:
        lines.append("budget: none; set one with: tacita ledger budget")
    else:
        days = f", from {ledger.window.first} to {ledger.window.last}" if ledger.window else ""
        lines.append(f"budget: epsilon {ledger.budget[0]:g} at delta {delta_text(ledger.budget[1])}{days}")
    lines += [f"        declared: {one.text}" for one in assumed(ledger)]
    for earlier, epsilon, delta in ledger.past():
        when = f"from {earlier.first} to {earlier.last}" if earlier else "before any window"
        lines.append(f"past:   epsilon {round_up_text(epsilon)} at delta {delta_text(delta)} {when}, on other data")
    for name, one in ledger.analysts().items():
        of = "" if one.share is None else f" of a share of {one.share:g}"
        if name or len(document["analysts"]) > 1:
            own = round_up_text(one.epsilon) if one.epsilon else "0"
            lines.append(f"{name or 'nobody who said so'}: epsilon {own}{of}, by these charges alone")
    for name, run in document["runs"].items():
        mechanism = run["mechanism"]
        lines.append(
            f"run {name}: {run['charged']} of {mechanism.get('steps', '?')} steps charged, noise multiplier "
            f"{mechanism.get('noise_multiplier', '?')}, sample rate {mechanism.get('sample_rate', '?')}"
        )
    for name, held in document["reservations"].items():
        state = f"{held['charged']} charged" if held["charged"] else "none charged"
        alone = f"epsilon {round_up_text(held['epsilon'])} by itself"
        lines.append(f"reserved for run {name}: {held['steps']} steps, {state}, {alone}; counted as spent")
    for release in document["releases"]:
        lines.append(f"release {release['name']}: {release['description']}")
    lines.append(f"head:   {document['head']} (keep it elsewhere: it tells whether the ledger was rolled back)")
    return lines


def assumed(ledger: Ledger) -> list[Assumption]:
    """Return what the window of a ledger's budget assumes of the data; nothing without one."""
    from tacita.assumptions import assume

    return [assume("fresh-data", first=first, last=last, unit=unit) for first, last, unit in ledger.fresh]
