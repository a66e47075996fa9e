"""`tacita ledger create|show|budget`: a privacy budget that several runs and people share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import JSON, app, print_json
from tacita.facts import MEMORY

if TYPE_CHECKING:
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
def show(file: FILE, as_json: JSON = False) -> None:
    """Say what was spent, by which runs, and what is left. Checks every link of the chain first."""
    with opened(file) as ledger:
        _print(ledger, as_json)


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
        lines.append(f"budget: epsilon {ledger.budget[0]:g} at delta {delta_text(ledger.budget[1])}")
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
