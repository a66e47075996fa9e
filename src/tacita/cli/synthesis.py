"""`tacita synthesise`: publish synthetic records instead of the data, with a label and a quality page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import (
    JSON,
    RUN_DIR,
    SEED,
    TARGET,
    app,
    busy,
    drawing,
    new_run,
    print_json,
    refuse_ignored,
    tell_finished,
)
from tacita.cli.label import show_label

if TYPE_CHECKING:
    from tacita.synthesis.jobs import Job

_CENTRAL = ("config", "generator", "delta", "steps", "annotator", "dp_critic", "ledger", "quality")
_FEDERATED = ("split", "least", "rounds", "engine")
_EXAMPLE = "Example: tacita synthesise --data digits --epsilon 2"

synthesise_app = typer.Typer(invoke_without_command=True, subcommand_metavar="[inspect RUN]")
app.add_typer(synthesise_app, name="synthesise", epilog=_EXAMPLE)


@synthesise_app.callback(epilog=_EXAMPLE)
def synthesise(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="digits (built in), mnist, fashion-mnist or adult.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML recipe with a schema for data of your own.")] = None,
    generator: Annotated[
        str | None, typer.Option(help="mean-embedding (default), private-wgan, wgan-gp or papers-wgan.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The worst case to stay within; 2 by default.")] = None,
    target: TARGET = None,
    delta: Annotated[float | None, typer.Option(help="Total failure probability; 1e-5 by default.")] = None,
    samples: Annotated[int | None, typer.Option(help="How many records to release.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the fit, or of the critic.")] = None,
    annotator: Annotated[
        bool, typer.Option("--annotator", help="private-wgan: no labels in the GAN, a private classifier labels.")
    ] = False,
    dp_critic: Annotated[
        bool, typer.Option("--dp-critic", help="wgan-gp: the thesis's noisy critic layer (no guarantee).")
    ] = False,
    clients: Annotated[int | None, typer.Option(help="FedGP: train over so many clients, who keep critics.")] = None,
    split: Annotated[str, typer.Option(help="FedGP: even, class (two classes each) or dirichlet (mixes).")] = "even",
    least: Annotated[int | None, typer.Option(help="FedGP: uneven sizes, the smallest of so many records.")] = None,
    rounds: Annotated[int, typer.Option(help="FedGP: number of rounds.")] = 20,
    engine: Annotated[str, typer.Option(help="FedGP: local (this process) or flower (its simulation).")] = "local",
    ledger: Annotated[str | None, typer.Option(help="A shared ledger to charge: its file, or its URL.")] = None,
    quality: Annotated[bool, typer.Option(help="Measure how useful the set is and what it leaks.")] = True,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.")] = None,
    seed: SEED = None,
    run_dir: RUN_DIR = None,
    as_json: JSON = False,
) -> None:
    """Fit a private generator, release synthetic records, and report what they leak and how useful they are.

    mean-embedding and private-wgan stay within a worst case; wgan-gp gives no guarantee, and papers-wgan hardly any.
    `tacita synthesise inspect RUN` shows a release without the data.
    """
    from tacita.runs import Run

    if context.invoked_subcommand is not None:
        return
    if sum(given is not None for given in (data, config, resume)) != 1:
        raise ValueError("Pass one of --data NAME, --config FILE, or --resume RUN to go on with a run.")
    federated = clients is not None or (resume is not None and Run.open(resume).kind == "federated-generator")
    _refuse_ignored(context, resume, federated=federated)
    if federated:
        asked = {"clients": clients, "split": split, "least": least, "rounds": rounds, "epsilon": epsilon, "seed": seed}
        asked |= {"target": target}
        _federate(data, resume, asked, engine, samples, run_dir, as_json)
        return
    asked = {
        "generator": generator,
        "epsilon": epsilon,
        "target": target,
        "delta": delta,
        "samples": samples,
        "steps": steps,
        "annotator": annotator or None,
        "dp_critic": dp_critic or None,
        "ledger": ledger,
        "seed": seed,
    }
    _finish(_prepared(data, config, resume, asked, run_dir, as_json), quality, as_json)


def _refuse_ignored(context: typer.Context, resume: Path | None, *, federated: bool) -> None:
    if resume is not None:
        own = (
            "clients",
            *_FEDERATED,
            *_CENTRAL[:-1],
            "epsilon",
            "target",
            "seed",
            "run_dir",
            "quality" if federated else "samples",
        )
        refuse_ignored(context, own, "--resume goes on with the run's own settings")
        tell_finished(resume, "synthesis", "federated-generator")
    elif federated:
        refuse_ignored(context, _CENTRAL, "--clients trains a federated generator, which has other settings")
    else:
        refuse_ignored(context, _FEDERATED, "These are for a federated generator, with --clients")


def _prepared(
    data: str | None,
    config: Path | None,
    resume: Path | None,
    asked: dict[str, Any],
    run_dir: Path | None,
    as_json: bool,
) -> Job:
    from tacita.ledger import is_there
    from tacita.synthesis.generators import GENERATORS
    from tacita.synthesis.jobs import restart, start
    from tacita.synthesis.recipes import Recipe
    from tacita.training.recipes import read_recipe

    if resume is not None:
        with busy("Reading the run", quiet=as_json):
            return restart(resume)
    table: dict[str, Any] = {"data": {"name": data}} if config is None else read_recipe(config, Recipe)
    table |= {name: value for name, value in asked.items() if value is not None}
    kind = GENERATORS.get(table.get("generator", Recipe.generator))
    if kind is not None and kind.private and not {"noise_multiplier", "target"} & set(table):
        table.setdefault("epsilon", 2.0)
    recipe = Recipe.from_dict(table)
    if recipe.ledger is not None and not is_there(recipe.ledger):
        print(f"tacita: {recipe.ledger} is a new ledger, without a budget (see tacita ledger create)", file=sys.stderr)
    with busy("Preparing", quiet=as_json):
        return start(recipe, new_run(run_dir, f"synthesise-{data or recipe.name or 'data'}"))


@synthesise_app.command(epilog="Example: tacita synthesise inspect runs/synthesise-digits-1")
def inspect(
    run: Annotated[Path, typer.Argument(help="A run directory, or a folder with a released set.")],
    reference: Annotated[Path | None, typer.Option(help="An earlier release that is trusted.")] = None,
    page: Annotated[Path | None, typer.Option(help="Where to write the page; inspect.html in RUN by default.")] = None,
    as_json: JSON = False,
) -> None:
    """Look for mistakes in data you may not see: samples, statistics and alarms, from a released set alone.

    A rotated, inverted or cropped part of the images, a missing class, a column stuck at one value.
    """
    from dataclasses import asdict

    from tacita.synthesis.inspection import write_inspection

    where = page or run / "inspect.html"
    with busy("Looking", quiet=as_json):
        found = write_inspection(run, where, title=f"Inspection of {run.name}", reference=reference)
    if as_json:
        print_json({"schema": 1, "page": str(where), "alarms": [asdict(alarm) for alarm in found]})
        return
    for alarm in found:
        typer.echo(f"Alarm: {alarm.text}")
    if not found:
        typer.echo("No alarm. That is no proof that nothing is wrong: look at the page.")
    typer.echo(f"\nThe page: {where}")


def _federate(
    data: str | None,
    resume: Path | None,
    asked: dict[str, Any],
    engine: str,
    samples: int | None,
    run_dir: Path | None,
    as_json: bool,
) -> None:
    from tacita.synthesis.fedgp import FedGP, federate_generator, recipe_of, resume_generator
    from tacita.synthesis.jobs import release_federated

    if resume is None:
        recipe = FedGP(data=data or "digits", **asked)
        where = new_run(run_dir, f"synthesise-{recipe.data}-fedgp")
    else:
        recipe, where = recipe_of(resume)[0], resume
    try:
        with drawing(as_json) as progress:
            if resume is None:
                generator, made = federate_generator(recipe, where, engine=engine, progress=progress)
            else:
                generator, made = resume_generator(where, progress=progress)
    except KeyboardInterrupt:
        print(f"tacita: interrupted; go on with: tacita synthesise --resume {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    with busy("Releasing", quiet=as_json):
        measure = release_federated(generator, recipe, where, samples or 10_000)
    show_label(made, where, as_json)
    if not as_json:
        typer.echo(f"The records:     {where / 'released'}\nA look at them:  {where / 'inspect.html'}")
        typer.echo(f"For the owner:   {measure}")


def _finish(job: Job, quality: bool, as_json: bool) -> None:
    try:
        with drawing(as_json) as progress:
            made = job.run(progress, quality=quality)
    except KeyboardInterrupt:
        print(f"tacita: interrupted; go on with: tacita synthesise --resume {job.folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    show_label(made, job.folder, as_json)
    if not as_json:
        unprotected = "" if job.maker.task.recipe.private else " (not protected: publishing them is not safe)"
        typer.echo(f"The records:     {job.folder / 'released'}{unprotected}")
        typer.echo(f"A look at them:  {job.folder / 'inspect.html'}")
        if quality and (job.folder / "quality.html").is_file():
            typer.echo(f"Their quality:   {job.folder / 'quality.html'} (for the owner)")
