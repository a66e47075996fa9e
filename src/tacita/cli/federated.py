"""`tacita federate`: train over many clients with privacy, and get the label."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacita.cli.app import JSON, RUN_DIR, SEED, TARGET, app, busy, drawing, new_run, refuse_ignored, tell_finished
from tacita.cli.label import show_label

if TYPE_CHECKING:
    from tacita.federated.engines.engine import Running

_SETTINGS = (
    *("engine", "level", "split", "data", "clients"),
    *("rounds", "client_rate", "epsilon", "target", "dropout", "seed", "run_dir"),
)


@app.command(epilog="Example: tacita federate --demo --split class --engine flower")
def federate(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Split real data over clients and train on them.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.")] = None,
    engine: Annotated[str, typer.Option(help="local (this process) or flower (Flower's simulation).")] = "local",
    level: Annotated[str, typer.Option(help="Whom to protect: client, parallel, sequential or joint.")] = "joint",
    split: Annotated[str, typer.Option(help="even (clients alike), class (two classes each) or dirichlet.")] = "even",
    data: Annotated[str, typer.Option(help="digits (built in), mnist or fashion-mnist.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 20,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 30,
    client_rate: Annotated[float, typer.Option(help="The chance of a client to take part in a round.")] = 0.5,
    epsilon: Annotated[float | None, typer.Option(help="Worst-case epsilon of the level's larger unit.")] = None,
    target: TARGET = None,
    dropout: Annotated[float, typer.Option(help="The chance that a client does not answer (local).")] = 0.0,
    seed: SEED = None,
    run_dir: RUN_DIR = None,
    as_json: JSON = False,
) -> None:
    """Train a classifier over many clients privately, and write its privacy label.

    Levels: client protects each client with all it holds; parallel protects each record, from the server too;
    sequential protects each record with noise shared by all clients; joint protects clients and records with the same
    noise.

    For your own federation see `tacita.federated` and its Flower strategy in the guide.
    """
    from tacita import _check
    from tacita.federated.engines import ENGINES
    from tacita.federated.recipes import Recipe, ready, recipe_of

    if demo == (resume is not None):
        raise ValueError("Pass either --demo to start a run, or --resume RUN to go on with one.")
    chosen = ENGINES[_check.one_of("--engine", engine, tuple(ENGINES))]
    if resume is not None:
        refuse_ignored(context, _SETTINGS, "--resume goes on with the run's own settings")
        tell_finished(resume, "federation")
        asked, started_with = recipe_of(resume, Recipe)
        with busy("Reading the run", quiet=as_json):
            running = started_with.prepare(partial(ready, asked), resume, resume=True)
        _finish(running, resume, as_json)
        return
    recipe = Recipe(
        data=data,
        split=split,
        clients=clients,
        rounds=rounds,
        level=level,
        client_rate=client_rate,
        epsilon=epsilon,
        target=target,
        dropout=dropout,
        seed=seed,
    )
    if recipe.dropout and not chosen.simulates_dropout:
        raise ValueError("--dropout is for --engine local; in Flower a client drops out by not answering.")
    run = new_run(run_dir, f"federate-{data}-{recipe.level}")
    with busy("Preparing", quiet=as_json):
        running = chosen.prepare(partial(ready, recipe), run, resume=False)
    _finish(running, run, as_json)


def _finish(running: Running, run: Path, as_json: bool) -> None:
    from tacita._numbers import round_up_text
    from tacita.federated.labels import figures
    from tacita.federated.storage import rounds_kept

    def detail() -> str:
        parts = [f"{name} {value}" for name, value in running.job.score(running.model).items()]
        spent = figures(running.server).items()
        return ", ".join(
            [*parts, *(f"epsilon of the whole plan, any one {who}: {round_up_text(e)}" for who, e in spent)]
        )

    rounds = running.job.plan.rounds
    try:
        with drawing(as_json, detail) as progress:
            made = running.run(progress)
    except KeyboardInterrupt:
        kept = f"round {rounds_kept(run)} of {rounds} is kept"
        print(f"tacita: interrupted; {kept}. Go on with: tacita federate --resume {run}", file=sys.stderr)
        raise typer.Exit(130) from None
    show_label(made, run, as_json)
