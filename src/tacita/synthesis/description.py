"""What a released set is like, class by class and column by column, in figures a person can compare.

Everything here reads released records alone. Of a private generator's samples it is post-processing and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from tacita.data import Category, Dataset
from tacita.data.schema import Field
from tacita.synthesis.students import labelled

BINS = 20  # of a real column's histogram
DIRECTIONS = 8  # of edges, from 0 to 180 degrees
NEAR = 0.05  # a copy is nearer to another sample than this part of the median distance between samples
MOST = 200  # samples of a class whose distances are looked at
_ROUND_OFF = 1e-5


@dataclass(frozen=True, kw_only=True)
class Look:
    """What images are like on average.

    Attributes:
        mean: The mean image.
        brightness: The mean pixel.
        bright: The share of pixels above a half.
        background: The median pixel of the outermost rows and columns.
        centre: Where what differs from the background lies on average: down and across, from 0 to 1.
        box: Top, left, bottom and right end, from 0 to 1, of where the mean image differs from the background.
        sharpness: The mean difference between neighbouring pixels.
        directions: How much of the edges runs in each of 8 directions: 0 is upright, then clockwise up to 180 degrees.
        symmetry: Correlation of an image with its mirror image, and with itself turned by 180 degrees.
        diversity: The mean distance between two images, as a root mean square over pixels.
        copies: The share of images that another one nearly equals.
    """

    mean: Tensor = field(repr=False)
    brightness: float
    bright: float
    background: float
    centre: tuple[float, float]
    box: tuple[float, float, float, float]
    sharpness: float
    directions: tuple[float, ...]
    symmetry: tuple[float, float]
    diversity: float
    copies: float


@dataclass(frozen=True, kw_only=True)
class ClassPart:
    """One class: its name, how many samples it has, their share, and for images what they are like."""

    name: str
    count: int
    share: float
    look: Look | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnPart:
    """One column of a table.

    Attributes:
        name: Its name.
        values: What a category can be; empty for a number.
        shares: The share of each value, or of each of 20 equal steps from -1 to 1.
        absent: The share of records without a value: none of a category's features is set.
        impossible: The share of records with a value that no record can have.
    """

    name: str
    values: tuple[str, ...]
    shares: tuple[float, ...]
    absent: float
    impossible: float

    @property
    def unused(self) -> tuple[str, ...]:
        """The values that no record has."""
        return tuple(value for value, share in zip(self.values, self.shares, strict=False) if share == 0.0)

    @property
    def constant(self) -> bool:
        """Whether every record has the same value."""
        return max(*self.shares, self.absent) >= 1.0


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """A released set in figures.

    Attributes:
        size: How many records.
        classes: One part for each class that was declared, whether or not it has samples.
        overall: What the images are like altogether; None for tables.
        columns: The columns of a table; empty for images.
        impossible: The share of records with a value that no record can have.
    """

    size: int
    classes: tuple[ClassPart, ...]
    overall: Look | None = None
    columns: tuple[ColumnPart, ...] = ()
    impossible: float


def describe(release: Dataset) -> Statistics:
    """Return what a released set is like, overall and for each class or column.

    Raises:
        ValueError: If it holds no record, no classes, or neither images nor the rows of a table.
    """
    inputs, labels = labelled(release)
    if inputs.dim() not in (2, 4) or not len(inputs) or not release.classes:
        raise ValueError(
            "A released set must hold images (n, channels, height, width) or rows (n, features) of some classes, got "
            f"{tuple(inputs.shape)} of {len(release.classes or ())} classes."
        )
    images, size, spread = inputs.dim() == 4, len(inputs), _typical_distance(inputs)
    parts = []
    for place, name in enumerate(release.classes):
        members = inputs[labels == place]
        seen = look(members, spread=spread) if images and len(members) else None
        parts.append(ClassPart(name=name, count=len(members), share=len(members) / size, look=seen))
    if images:
        columns: tuple[ColumnPart, ...] = ()
        impossible = ~((inputs >= -_ROUND_OFF) & (inputs <= 1.0 + _ROUND_OFF)).flatten(1).all(1)
    else:
        columns, impossible = _columns(inputs, release.schema.columns if release.schema else ())
    return Statistics(
        size=size,
        classes=tuple(parts),
        overall=look(inputs, spread=spread) if images else None,
        columns=columns,
        impossible=float(impossible.double().mean()),
    )


def _columns(inputs: Tensor, fields: Sequence[Field]) -> tuple[tuple[ColumnPart, ...], Tensor]:
    """Return a table's columns, and which records hold a value that no record can have."""
    known = [(f.name, f.domain.labels if isinstance(f.domain, Category) else ()) for f in fields]
    known = known or [(f"feature {place + 1}", ()) for place in range(inputs.shape[1])]
    blocks = torch.split(inputs.double(), [len(values) or 1 for _, values in known], 1)
    parts, impossible = [], torch.zeros(len(inputs), dtype=torch.bool)
    for (name, values), block in zip(known, blocks, strict=True):
        absent = torch.zeros_like(impossible)
        if values:  # a category has one feature at 1, or none
            whole = ((block - block.round()).abs() <= _ROUND_OFF) & (block >= -_ROUND_OFF)
            wrong = ~(whole.all(1) & (block.sum(1) <= 1.0 + _ROUND_OFF))
            absent = (block == 0.0).all(1)
            counts = np.bincount(block[~absent & ~wrong].argmax(1), minlength=len(values))
        else:
            wrong = ~(block[:, 0].abs() <= 1.0 + _ROUND_OFF)
            counts, _ = np.histogram(block[~wrong].clamp(-1.0, 1.0), BINS, (-1.0, 1.0))
        impossible |= wrong
        parts.append(
            ColumnPart(
                name=name,
                values=values,
                shares=tuple((counts / len(inputs)).tolist()),
                absent=float(absent.double().mean()),
                impossible=float(wrong.double().mean()),
            )
        )
    return tuple(parts), impossible


def look(images: Tensor, *, spread: float) -> Look:
    """Return what images are like on average; `spread` is the median distance between two of the whole set."""
    x = images.nan_to_num().clamp(0.0, 1.0)
    mean, background = x.mean(0), float(border(x).median())
    some = thinned(x).flatten(1)
    distances = torch.cdist(some, some)
    diversity = float(distances.sum()) / max(1, len(some) * (len(some) - 1)) / some.shape[1] ** 0.5
    copies = distances.fill_diagonal_(torch.inf).amin(1) <= NEAR * spread
    return Look(
        mean=mean,
        brightness=float(x.mean()),
        bright=float((x > 0.5).float().mean()),
        background=background,
        centre=_centre((x - background).abs().mean((0, 1))),
        box=_box((mean - background).abs().mean(0)),
        sharpness=float((x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()) / 2.0),
        directions=_directions(x),
        symmetry=(_correlation(x, x.flip(3)), _correlation(x, x.flip(2, 3))),
        diversity=diversity,
        copies=float(copies.float().mean()),
    )


def border(images: Tensor) -> Tensor:
    """Return the pixels of each image's outermost rows and columns, (n, pixels)."""
    x = images
    return torch.cat([x[:, :, 0], x[:, :, -1], x[:, :, :, 0], x[:, :, :, -1]], 2).flatten(1)


def thinned(rows: Tensor, most: int = MOST) -> Tensor:
    """Return at most `most` of the rows, evenly spread over all."""
    return rows if len(rows) <= most else rows[torch.linspace(0, len(rows) - 1, most).round().long()]


def _typical_distance(inputs: Tensor) -> float:
    """Return the median distance between two samples of the whole set."""
    some = thinned(inputs.nan_to_num(), 2 * MOST).flatten(1)
    return float(torch.pdist(some).median()) if len(some) > 1 else 0.0


def _centre(weights: Tensor) -> tuple[float, float]:
    if float(weights.sum()) <= 0.0:
        return 0.5, 0.5
    down, across = ndimage.center_of_mass(weights.double().numpy())
    return (float(down) + 0.5) / weights.shape[0], (float(across) + 0.5) / weights.shape[1]


def _box(weights: Tensor) -> tuple[float, float, float, float]:
    found = ndimage.find_objects((weights > 0.1 * float(weights.max())).int().numpy())
    if not found:
        return 0.0, 0.0, 0.0, 0.0
    (down, across), (high, wide) = found[0], weights.shape
    return down.start / high, across.start / wide, down.stop / high, across.stop / wide


def _directions(x: Tensor) -> tuple[float, ...]:
    """Return how the edges' strength is spread over directions, by central differences."""
    grey = functional.pad(x.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across, down = grey[:, :, 1:-1, 2:] - grey[:, :, 1:-1, :-2], grey[:, :, 2:, 1:-1] - grey[:, :, :-2, 1:-1]
    angle = torch.remainder(torch.atan2(down, across), torch.pi) / torch.pi  # of the slope: an upright edge has 0
    strength = (across.square() + down.square()).sqrt()
    place = torch.remainder((angle * DIRECTIONS).round().long(), DIRECTIONS)
    sums = torch.bincount(place.flatten(), weights=strength.flatten().double(), minlength=DIRECTIONS)
    return tuple((sums / sums.sum().clamp_min(1e-12)).tolist())


def _correlation(x: Tensor, other: Tensor) -> float:
    a, b = (t.flatten(1) - t.flatten(1).mean(1, keepdim=True) for t in (x, other))
    return float(functional.cosine_similarity(a, b, eps=1e-12).mean())
