"""The released set as files: NPZ for images, CSV for tables, a schema that reads them back, and a picture.

released/samples.npz    images: `inputs` in whole numbers 0 to 255, `targets` as positions in the classes
released/samples.csv    tables: the columns of the schema
released/schema.toml    what they hold, for `tacita train` and `tacita synthesise` to read them by
released/samples.png    a look at a few of each class
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import runs
from tacita.data import Dataset, decode, write_csv
from tacita.synthesis.gan import sample
from tacita.synthesis.generators.kind import Maker
from tacita.synthesis.pages import grid_png
from tacita.synthesis.students import Labelled, labelled
from tacita.training.recipes import dataset_of

_SHOWN = 12  # pictures of each class


def release(maker: Maker, folder: Path) -> Labelled:
    """Draw the set to be released and write it; return it as it was written, rounding included."""
    task = maker.task
    rng = np.random.default_rng(None if task.recipe.seed is None else task.recipe.seed + 2)
    drawn = sample(maker.generator, task.samples, rng=rng, shares=maker.shares, annotate=maker.annotate)
    write_release(folder, drawn, task.dataset)
    runs.Run(folder).write(released=task.samples)
    return labelled(released_dataset(folder))


def write_release(folder: Path, samples: Labelled, dataset: Dataset) -> None:
    """Write records like those of a dataset, with the schema that reads them back, and a picture of images.

    Args:
        folder: The run directory.
        samples: Inputs and labels.
        dataset: The data that they stand for; its classes and columns are used, no record is.
    """
    where = folder / "released"
    where.mkdir(exist_ok=True)
    if samples[0].dim() == 2:
        _write_table(where, dataset, *samples)
    else:
        _write_images(where, dataset, *samples)


def released_dataset(folder: Path) -> Dataset:
    """Read a released set with its classes and columns; the folder of a run, or the one that holds the set."""
    where = folder / "released" if (folder / "released").is_dir() else folder
    if not (where / "schema.toml").is_file():
        raise runs.RunError(f"{str(folder)!r} holds no released set: there is no released/schema.toml.")
    table = tomllib.loads((where / "schema.toml").read_text())
    try:
        return dataset_of({**table["data"], "file": str(where / str(table["data"]["file"]))})
    except (KeyError, TypeError) as error:
        raise runs.RunError(f"The schema of the released set in {str(folder)!r} is damaged: {error}") from error


def _write_images(where: Path, dataset: Dataset, inputs: Tensor, labels: Tensor) -> None:
    pixels = inputs.clamp(0.0, 1.0).mul(255.0).round().to(torch.uint8)
    _write_arrays(where, dataset, pixels, labels, high=255)
    (where / "samples.png").write_bytes(grid_png(pixels / 255.0, columns=_SHOWN, labels=labels))


def _write_arrays(where: Path, dataset: Dataset, inputs: Tensor, labels: Tensor, *, high: int) -> None:
    np.savez_compressed(where / "samples.npz", inputs=inputs.numpy(), targets=labels.numpy())
    schema: dict[str, Any] = {
        "file": "samples.npz",
        "nominal_size": len(labels),
        "inputs": {"low": 0, "high": high, "shape": list(inputs.shape[1:])},
        "targets": {"classes": list(dataset.classes or ())},
    }
    runs.write_text(where, "schema.toml", _toml({"data": schema}))


def _write_table(where: Path, dataset: Dataset, inputs: Tensor, labels: Tensor) -> None:
    schema = dataset.schema
    if schema is None or not schema.columns:  # arrays without columns are encoded in [0, 1], as images are
        _write_arrays(where, dataset, inputs.clamp(0.0, 1.0), labels, high=1)
        return
    write_csv(where / "samples.csv", decode(inputs.numpy(), labels.numpy(), schema))
    read_back = replace(schema, nominal_size=len(labels), missing="zero", person=None)
    runs.write_text(where, "schema.toml", _toml({"data": {"file": "samples.csv", **read_back.to_dict()}}))


def _toml(table: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return a table of plain values and tables as TOML; JSON's texts, lists and numbers are TOML's."""
    plain = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    head = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path and plain else []
    parts = ["\n".join(head + plain)] if plain else []
    parts += [_toml(v, (*path, k)) for k, v in table.items() if isinstance(v, dict)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
