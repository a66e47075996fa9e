"""`tacita demo` and `tacita train`: train privately and get the label."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacita.cli.app import JSON, RUN_DIR, SEED, app, busy, drawing, new_run, tell_finished
from tacita.cli.label import show_label

if TYPE_CHECKING:
    from tacita.training.jobs import Job
    from tacita.training.recipes import Recipe


@app.command(epilog="Example: tacita demo --data digits --epsilon 2")
def demo(
    data: Annotated[str, typer.Option(help="digits (built in), mnist, fashion-mnist, adult or abalone.")] = "digits",
    epsilon: Annotated[float | None, typer.Option(help="The worst-case epsilon to stay within.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps.")] = None,
    seed: SEED = None,
    run_dir: RUN_DIR = None,
    as_json: JSON = False,
) -> None:
    """Train a classifier privately on real data, and write its privacy label."""
    from dataclasses import replace

    from tacita import _check
    from tacita.training.recipes import DEMOS

    recipe = DEMOS[_check.one_of("--data", data, tuple(DEMOS))]
    changes = {"epsilon": epsilon, "steps": steps, "seed": seed}
    recipe = replace(recipe, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
    _train(recipe, new_run(run_dir, f"demo-{data}"), as_json)


@app.command(epilog="Example: tacita train --config run.toml")
def train(
    config: Annotated[Path | None, typer.Option(help="A TOML recipe: data, model, privacy. See the guide.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.")] = None,
    run_dir: RUN_DIR = None,
    as_json: JSON = False,
) -> None:
    """Train your model on your data, without writing a loop."""
    from tacita.training.jobs import restart
    from tacita.training.recipes import Recipe

    if (config is None) == (resume is None):
        raise ValueError("Pass either --config FILE to start a run, or --resume RUN to go on with one.")
    if config is not None:
        recipe = Recipe.read(config)
        stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in config.stem) or "run"
        _train(recipe, new_run(run_dir, stem), as_json)
    elif resume is not None:
        if run_dir is not None:
            raise ValueError("--resume goes on in the run's own folder: leave out --run-dir.")
        tell_finished(resume, "training")
        with busy("Reading the run", quiet=as_json):
            job = restart(resume)
        _finish(job, resume, as_json)


def _train(recipe: Recipe, folder: Path, as_json: bool) -> None:
    from tacita.training.jobs import start

    with busy("Preparing", quiet=as_json):
        job = start(recipe, folder)
    _finish(job, folder, as_json)


def _finish(job: Job, folder: Path, as_json: bool) -> None:
    from tacita._numbers import percent_text, round_up_text

    def detail() -> str:
        name, value = job.score()
        parts = [f"{name} {percent_text(value)}" if name == "accuracy" else f"{name} {value:.3g}"]
        if job.last is not None:
            most = job.last.spent.epsilon  # the label's figure; no reading on it is above this
            parts.append(f"epsilon of the whole plan {round_up_text(most)}")
            if job.private.readings:
                parts.append(f"typical so far {round_up_text(min(most, job.private.readings[-1][1]))}")
        return ", ".join(parts)

    try:
        with drawing(as_json, detail) as progress:
            made = job.run(progress)
    except KeyboardInterrupt:
        taken, planned = job.private.taken, job.private.plan.steps
        where = f"step {taken} of {planned} is kept. Go on with: tacita train --resume {folder}"
        print(f"tacita: interrupted; {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    show_label(made, folder, as_json)
