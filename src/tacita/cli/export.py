"""`tacita export`: a run's weights alone, for plain torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacita.cli.app import JSON, app, print_json


@app.command(epilog="Example: tacita export runs/demo-digits-1 model.safetensors")
def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    file: Annotated[
        Path | None, typer.Argument(help="A new file; model.safetensors in the run directory unless given.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Write the released weights of a run alone: its model's parameters and buffers, and nothing of its records.

    They are those of the newest checkpoint. A run whose last step failed is refused, and so are weights that its ledger
    does not cover.
    """
    from tacita.cli.kinds import require_weights
    from tacita.runs import Run

    if file is not None and file.exists():
        raise ValueError(f"{str(file)!r} exists already; choose another file: nothing is overwritten.")
    require_weights(run)
    written = Run(run).write_weights(file)
    shown = [run / "model.safetensors", written] if file is None else [written]
    if as_json:
        print_json({"schema": 1, "run": str(run), "written": [str(path) for path in shown]})
        return
    for path in shown:
        typer.echo(f"Written: {path}")
