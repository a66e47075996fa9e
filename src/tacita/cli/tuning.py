"""`tacita tune`: train a random number of times, keep the best model, and get a label that covers the tuning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import JSON, app, busy, print_json
from tacita.cli.label import show_label

if TYPE_CHECKING:
    from tacita.training.tuning_recipes import TuningJob


@app.command(epilog="Example: tacita tune --config tune.toml --processes 2")
def tune(
    config: Annotated[
        Path, typer.Option(help="A TOML recipe of a training with a [tune] table: what varies, and how it is scored.")
    ],
    processes: Annotated[int, typer.Option(min=1, max=1024, help="How many runs are trained at once.")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Say what every setting and the tuning would cost, and train nothing.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="The folder of the tuning; runs/NAME-tuned unless given. It goes on there.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Train with settings drawn at random, a random number of times, and keep the best model, accounted as a whole.

    Interrupted, the same command goes on. How many runs there are is secret, and neither shown nor drawn again: only
    the best one leaves, in the folder's `best`.
    """
    from tacita.training.tuning_recipes import TuningRecipe, prepared, run

    recipe = TuningRecipe.read(config)
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in config.stem) or "run"
    folder = Path("runs", f"{stem}-tuned") if run_dir is None else run_dir
    with busy("Preparing", quiet=as_json):
        job = prepared(recipe, None if check else folder)
    if check:
        _show_cost(job, as_json)
        return
    if (folder / "best").exists():
        print(f"tacita: {str(folder)!r} is finished: another --run-dir begins anew, and is charged.", file=sys.stderr)
    try:
        with busy("Tuning", quiet=as_json):
            found = run(job, folder, processes=processes)
    except KeyboardInterrupt:
        print("tacita: interrupted; what was done is kept. The same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    if found is None:
        print("tacita: the law drew no run at all: nothing is released, and the charge stays.", file=sys.stderr)
        raise typer.Exit(1)
    show_label(found.label, found.run_dir, as_json)


def _show_cost(job: TuningJob, as_json: bool) -> None:
    from tacita._numbers import delta_text, round_up_text
    from tacita.training.tuning_recipes import expected_cost

    plans, worst = expected_cost(job)
    law = job.about.trials.words
    if as_json:
        settings: list[dict[str, Any]] = [
            {
                "settings": choice,
                "sample_rate": plan.sample_rate,
                "noise_multiplier": plan.noise_multiplier,
                "steps": plan.steps,
            }
            for choice, plan in zip(job.choices, plans, strict=True)
        ]
        print_json({"settings": settings, "law": law, "worst": worst.to_dict()})
        return
    for choice, plan in zip(job.choices, plans, strict=True):
        said = ", ".join(f"{name} = {value}" for name, value in choice.items())
        how = f"noise multiplier {plan.noise_multiplier:g}, sample rate {plan.sample_rate:.6g}, {plan.steps} steps"
        typer.echo(f"{said}: {how}")
    typer.echo(f"Number of runs: {law}; each draws one of {len(plans)} settings at random")
    typer.echo(f"The tuning as a whole: epsilon {round_up_text(worst.epsilon)} at delta {delta_text(worst.delta)}")
