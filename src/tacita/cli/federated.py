"""`tacita federate`: train over many clients with privacy, and get the label."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import DIR, JSON, SEED, app, busy, new_run, refuse_ignored, tell_finished
from tacita.cli.training import Progress, show_label

if TYPE_CHECKING:
    from tacita.federated.server import Server
    from tacita.label import Label


_SETTINGS = ("engine", "level", "split", "dataset", "clients", "rounds", "client_rate", "epsilon", "dropout", "seed")


@app.command(epilog="Example: tacita federate --demo --split class --engine flower")
def federate(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Split real data over clients and train on them.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.")] = None,
    engine: Annotated[str, typer.Option(help="local (this process) or flower (Flower's simulation).")] = "local",
    level: Annotated[str, typer.Option(help="Whom to protect: client, parallel, sequential or joint.")] = "joint",
    split: Annotated[str, typer.Option(help="even (clients alike), class (two classes each) or dirichlet.")] = "even",
    dataset: Annotated[str, typer.Option(help="digits (built in), mnist or fashion-mnist.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 20,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 30,
    client_rate: Annotated[float, typer.Option(help="The chance of a client to take part in a round.")] = 0.5,
    epsilon: Annotated[float | None, typer.Option(help="Worst-case epsilon of the level's larger unit.")] = None,
    dropout: Annotated[float, typer.Option(help="The chance that a client does not answer (local).")] = 0.0,
    seed: SEED = None,
    folder: DIR = Path("runs"),
    as_json: JSON = False,
) -> None:
    """Train a classifier over many clients privately, and write its privacy label.

    Levels: client protects each client with all it holds; parallel protects each record, from the server too;
    sequential protects each record with noise shared by all clients; joint protects clients and records with the same
    noise.

    For a federation of your own see `tacita.federated` and its Flower strategy in the guide.
    """
    from tacita import _check
    from tacita.federated.recipes import ENGINES, Recipe

    if demo == (resume is not None):
        raise ValueError("Pass either --demo to start a run, or --resume RUN to go on with one.")
    _check.one_of("--engine", engine, ENGINES)
    if resume is not None:
        refuse_ignored(context, _SETTINGS, "--resume goes on with the run's own settings")
        _go_on(resume, as_json)
        return
    recipe = Recipe(
        data=dataset,
        split=split,
        clients=clients,
        rounds=rounds,
        level="parallel" if level == "instance" else level,
        client_rate=client_rate,
        epsilon=epsilon,
        dropout=dropout,
        seed=seed,
    )
    run = new_run(folder, f"federate-{dataset}-{recipe.level}")
    if engine == "flower":
        _flower(recipe, run, as_json)
    else:
        _local(recipe, run, as_json)


def _local(recipe: Any, run: Path, as_json: bool) -> None:
    from tacita.federated.recipes import start

    with busy("Preparing", quiet=as_json):
        federation = start(recipe, run)
    _finish(federation, recipe, run, as_json)


def _go_on(run: Path, as_json: bool) -> None:
    from tacita.federated.recipes import recipe_of, restart

    tell_finished(run, "federation")
    recipe, engine = recipe_of(run)
    if engine == "flower":
        _flower(recipe, run, as_json)
        return
    with busy("Reading the run", quiet=as_json):
        federation = restart(recipe, run)
    _finish(federation, recipe, run, as_json)


def _finish(federation: Any, recipe: Any, run: Path, as_json: bool) -> None:
    from tacita.federated.recipes import finish

    plan = federation.plan
    try:
        with Progress(plan.rounds, quiet=as_json, word="round") as bar:
            made = finish(federation, recipe, lambda now, score: bar.show(now.number, _words(federation.server, score)))
    except KeyboardInterrupt:
        where = f"round {federation.server.taken} of {plan.rounds} is kept. Go on with: tacita federate --resume {run}"
        print(f"tacita: interrupted; {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    show_label(made, run, as_json)


def _flower(recipe: Any, run: Path, as_json: bool) -> None:
    from tacita.federated.recipes import ready, run_flower

    plan = ready(recipe).plan
    if recipe.dropout:
        raise ValueError("--dropout is for --engine local; in Flower a client drops out by not answering.")
    with Progress(plan.rounds, quiet=as_json, word="round") as bar:
        made: Label = run_flower(recipe, run, lambda server, score: bar.show(server.taken, _words(server, score)))
    show_label(made, run, as_json)


def _words(server: Server, score: float) -> Callable[[int], str]:
    """Return what to say of a round, computed only where it is shown."""
    from tacita.federated.labels import figures
    from tacita.guarantee import round_up_text

    def text(_: int) -> str:
        parts = [f"accuracy {score:.1%}"]
        parts += [f"epsilon of the plan: any {who} {round_up_text(e)}" for who, e in figures(server).items()]
        return ", ".join(parts)

    return text
