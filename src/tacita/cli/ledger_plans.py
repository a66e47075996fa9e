"""`tacita ledger fits|reserve|cancel`: ask what would fit into a budget, and hold it for a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import JSON, busy, print_json
from tacita.cli.ledger import FILE, ledger_app, opened

if TYPE_CHECKING:
    from tacita.ledger import Fit, Ledger
    from tacita.training import Plan

_CONFIG = Annotated[Path | None, typer.Option(help="A recipe of `tacita train`.")]
_NAME = Annotated[str, typer.Argument(help="The run's name in the ledger.")]
DOES_NOT_FIT = 1  # exit code


@ledger_app.command(epilog="Example: tacita ledger fits budget.sqlite --config run.toml")
def fits(
    file: FILE,
    config: _CONFIG = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Or a run's noise over the clip norm,")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="its sample rate")] = None,
    steps: Annotated[int | None, typer.Option(help="and its number of steps.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Or a single release's epsilon,")] = None,
    delta: Annotated[float, typer.Option(help="with its delta.")] = 0.0,
    as_json: JSON = False,
) -> None:
    """Say whether a run or a release would be granted now, without charging it. Exit code 1 if it would not.

    The run is asked about as a whole: all planned steps, for the ledger's unit and relation.
    """
    run = (noise_multiplier, sample_rate, steps)
    if [config is not None, any(x is not None for x in run), epsilon is not None].count(True) != 1:
        raise ValueError("Pass --config; or --noise-multiplier, --sample-rate and --steps; or --epsilon.")
    if delta and epsilon is None:
        raise ValueError("--delta belongs to --epsilon: a run's plan says what may fail in it.")
    with opened(file) as ledger, busy("Accounting", quiet=as_json):
        if epsilon is not None:
            found = ledger.would_fit(pure=epsilon, delta=delta, neighbours=ledger.neighbours, unit=ledger.unit)
        elif config is not None:
            from tacita.training.charges import would_fit

            found = would_fit(_plan(config), ledger)
        else:
            found = _run_fits(ledger, *run)
        place = ledger.place
    if as_json:
        print_json({"schema": 1, "file": place, **found.to_dict()})
    else:
        for line in _lines(found):
            typer.echo(line)
    if not found.fits:
        raise typer.Exit(DOES_NOT_FIT)


@ledger_app.command(epilog="Example: tacita ledger reserve budget.sqlite june --config run.toml")
def reserve(
    file: FILE,
    name: _NAME,
    config: Annotated[Path, typer.Option(help="The recipe of `tacita train` that will name the reservation.")],
    as_json: JSON = False,
) -> None:
    """Hold the budget of a whole training before it starts. Its recipe then says: reservation = "NAME".

    It counts as spent from now on. `tacita ledger cancel` gives it back, unless a step was charged.
    """
    from tacita.training.charges import reserve as hold

    with opened(file) as ledger, busy("Accounting", quiet=as_json):
        hold(_plan(config), ledger, name)
        held, place, head = ledger.reservations()[name], ledger.place, ledger.head
    if as_json:
        print_json({"schema": 1, "file": place, "reserved": name, "epsilon": held.epsilon, "head": head})
        return
    from tacita._numbers import round_up_text

    typer.echo(f"Reserved for run {name}: {held.steps} steps, epsilon {round_up_text(held.epsilon)} by themselves.")
    typer.echo(f'Start it by a recipe with: reservation = "{name}". Give it back with: tacita ledger cancel')


@ledger_app.command(epilog="Example: tacita ledger cancel budget.sqlite june")
def cancel(file: FILE, name: _NAME, as_json: JSON = False) -> None:
    """Give back what is reserved for a run. Refused once a step was charged: it may have been released."""
    with opened(file) as ledger:
        head, place = ledger.cancel(name), ledger.place
    if as_json:
        print_json({"schema": 1, "file": place, "cancelled": name, "head": head})
    else:
        typer.echo(f"Cancelled: nothing is reserved for run {name} any more.")


def _plan(config: Path) -> Plan:
    from tacita.training.jobs import plan_of
    from tacita.training.recipes import Recipe

    return plan_of(Recipe.read(config))


def _run_fits(ledger: Ledger, noise_multiplier: float | None, sample_rate: float | None, steps: int | None) -> Fit:
    from tacita.accounting import most_spent
    from tacita.accounting.profiles import worst_profile
    from tacita.ledger import DECLARED

    if noise_multiplier is None or sample_rate is None or steps is None:
        raise ValueError("A run needs all of --noise-multiplier, --sample-rate and --steps.")
    if ledger.neighbours != "add_remove":
        raise ValueError("Runs with sampling are charged to ledgers for add_remove, and this one is for replace_one.")
    run: dict[str, Any] = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
    curve = worst_profile(**run)  # which checks the numbers
    return ledger.would_fit(costs=most_spent(None, orders=DECLARED, **run), curve=curve, unit=ledger.unit)


def _lines(found: Fit) -> list[str]:
    from tacita._numbers import delta_text, round_up_text

    at = f"at delta {delta_text(found.delta)}"
    if found.budget is None:
        return [f"It fits, as there is no budget: the total would be epsilon {round_up_text(found.after)} {at}."]
    totals = f"the total is epsilon {round_up_text(found.before)} now {at}"
    if not found.fits:
        return [f"It does not fit: {totals}.", found.reason]
    left = round_up_text(found.left or 0.0, up=False)
    again = "It would fit once." if found.times == 1 else f"So many of the same would fit: {found.times}."
    return [
        f"It fits: {totals}, and would be {round_up_text(found.after)} of {found.budget:g}, which leaves {left}.",
        f"{again} Nothing was charged; to hold it, use: tacita ledger reserve",
    ]
