"""`tacita audit`: attack a run, and put what was found on its owner's label."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tacita.cli.app import JSON, app, drawing, print_json


@app.command(epilog="Example: tacita audit runs/demo-digits-1 --minutes 2")
def audit(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="An attack, such as canaries; may be repeated. See docs/how-to/audit.md for all."),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="About how long it may take; the rest is left out.")] = None,
    references: Annotated[
        int, typer.Option(min=1, help="Models that membership inference trains to compare with.")
    ] = 4,
    seed: Annotated[int | None, typer.Option(min=0, max=2**62, help="For an audit that can be repeated.")] = None,
    as_json: JSON = False,
) -> None:
    """Attack a run: does it leak more than its label claims?

    Nothing is charged and the run is not changed. Results go to audit.json and to the owner's label. The exit code is 1
    if a claim was broken.
    """
    from tacita import _check
    from tacita.audit import ATTACKS
    from tacita.cli.kinds import attack_of, label_of
    from tacita.runs import Run

    chosen = [_check.one_of("--only", name, tuple(ATTACKS)) for name in only or ATTACKS]
    if minutes is not None:
        _check.in_range("--minutes", minutes, 0.0, 1e5)
    attack = attack_of(run)
    try:
        with drawing(as_json) as progress:
            made = attack(run, attacks=chosen, minutes=minutes, references=references, seed=seed, progress=progress)
    except KeyboardInterrupt:
        print(f"tacita: interrupted; attacks that had ended are kept in {run / 'audit.json'}", file=sys.stderr)
        raise typer.Exit(130) from None
    Run(run).write_owner_label(label_of(run))  # of its kind, which may say more than that of the training in it
    if as_json:
        print_json({"run": str(run), **made.to_dict()})
    else:
        typer.echo(f"{made}\n\nFor the owner: {run / 'label-owner.html'} and {run / 'audit.json'}")
    raise typer.Exit(1 if made.broken else 0)
