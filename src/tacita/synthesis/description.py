"""What a released set is like, class by class and column by column, in figures a person can compare.

Everything here reads released records alone. Of a private generator's samples it is post-processing and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tacita.synthesis.students import Labelled

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

    @property
    def missing(self) -> tuple[str, ...]:
        """The classes without a sample."""
        return tuple(part.name for part in self.classes if part.count == 0)


def describe(samples: Labelled, classes: Sequence[str], *, features: Sequence[str] = ()) -> Statistics:
    """Return what a released set is like.

    Args:
        samples: Inputs, images (n, channels, height, width) in [0, 1] or records (n, features), and labels (n,).
        classes: The names of the classes, in the order of the labels.
        features: For tables: the features' names, as `tacita.data` gives them ("colour=red" for a category).

    Returns:
        The figures, overall and for each class or column.

    Raises:
        ValueError: If there is no sample or the shapes do not fit.
    """
    inputs, labels = checked(samples, classes, features)
    spread = typical_distance(inputs)
    return Statistics(
        size=len(inputs),
        classes=tuple(
            _class_part(str(name), inputs[labels == c], len(inputs), spread) for c, name in enumerate(classes)
        ),
        overall=look(inputs, spread=spread) if inputs.dim() == 4 else None,
        columns=tuple(_column_part(*column, inputs) for column in columns_of(features, inputs)),
        impossible=float(_impossible(inputs, features).double().mean()),
    )


def checked(samples: Labelled, classes: Sequence[str], features: Sequence[str] = ()) -> Labelled:
    """Return the samples as they are, or raise a ValueError that says what does not fit.

    Args:
        samples: Inputs and labels.
        classes: The names of the classes.
        features: For tables: the features' names.

    Returns:
        Inputs without gradients, and labels.
    """
    inputs, labels = samples
    if inputs.dim() not in (2, 4) or len(inputs) == 0:
        raise ValueError(
            f"samples must be images (n, channels, height, width) or records (n, features), got {tuple(inputs.shape)}."
        )
    if labels.shape != (len(inputs),) or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be {len(inputs)} whole numbers (int64), got {tuple(labels.shape)} of {labels.dtype}."
        )
    if not classes or not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise ValueError(f"labels must be positions in the {len(classes)} classes.")
    if inputs.dim() == 2 and features and len(features) != inputs.shape[1]:
        raise ValueError(f"features must name {inputs.shape[1]} features, got {len(features)}.")
    return inputs.detach(), labels


def columns_of(features: Sequence[str], inputs: Tensor) -> list[tuple[str, tuple[str, ...], slice]]:
    """Return a table's columns as (name, values of a category, place among the features); none for images.

    Neighbouring features that share what stands before their first "=" are one category.

    Examples:
        >>> columns_of(["age", "job=none", "job=clerk"], torch.zeros(1, 3))
        [('age', (), slice(0, 1, None)), ('job', ('none', 'clerk'), slice(1, 3, None))]
    """
    if inputs.dim() == 4:
        return []
    names = list(features) or [f"feature {i + 1}" for i in range(inputs.shape[1])]
    found: list[tuple[str, tuple[str, ...], slice]] = []
    for place, name in enumerate(names):
        column, sign, value = name.partition("=")
        if sign and found and found[-1][1] and found[-1][0] == column:
            known, values, where = found.pop()
            found.append((known, (*values, value), slice(where.start, place + 1)))
        else:
            found.append((column, (value,) if sign else (), slice(place, place + 1)))
    return found


def look(images: Tensor, *, spread: float) -> Look:
    """Return what images are like on average; `spread` is the set's `typical_distance`."""
    x = images.nan_to_num().clamp(0.0, 1.0)
    mean, background = x.mean(0), _background(x)
    some = thinned(x).flatten(1)
    distances = torch.cdist(some, some)
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
        diversity=float(distances.sum()) / max(1, len(some) * (len(some) - 1)) / some.shape[1] ** 0.5,
        copies=_copies(distances, spread),
    )


def thinned(rows: Tensor, most: int = MOST) -> Tensor:
    """Return at most `most` of the rows, evenly spread over all."""
    return rows if len(rows) <= most else rows[torch.linspace(0, len(rows) - 1, most).round().long()]


def typical_distance(inputs: Tensor) -> float:
    """Return the median distance between two samples of the whole set."""
    some = thinned(inputs.nan_to_num(), 2 * MOST).flatten(1)
    return float(torch.pdist(some).median()) if len(some) > 1 else 0.0


def _copies(distances: Tensor, spread: float) -> float:
    if len(distances) < 2:
        return 0.0
    others = distances + torch.diag(torch.full((len(distances),), torch.inf))
    return float((others.amin(1) <= NEAR * spread).float().mean())


def _class_part(name: str, members: Tensor, size: int, spread: float) -> ClassPart:
    seen = look(members, spread=spread) if len(members) and members.dim() == 4 else None
    return ClassPart(name=name, count=len(members), share=len(members) / size, look=seen)


def _background(x: Tensor) -> float:
    edges = [x[:, :, 0], x[:, :, -1], x[:, :, :, 0], x[:, :, :, -1]]
    return float(torch.cat([edge.flatten() for edge in edges]).median())


def _centre(weights: Tensor) -> tuple[float, float]:
    total = float(weights.sum())
    if total <= 0.0:
        return 0.5, 0.5
    high, wide = weights.shape
    down = (torch.arange(high) + 0.5) / high
    across = (torch.arange(wide) + 0.5) / wide
    return float((weights.sum(1) * down).sum()) / total, float((weights.sum(0) * across).sum()) / total


def _box(weights: Tensor) -> tuple[float, float, float, float]:
    used = weights > 0.1 * float(weights.max())
    if not bool(used.any()):
        return 0.0, 0.0, 0.0, 0.0
    high, wide = weights.shape
    down, across = used.any(1).nonzero()[:, 0], used.any(0).nonzero()[:, 0]
    return int(down[0]) / high, int(across[0]) / wide, (int(down[-1]) + 1) / high, (int(across[-1]) + 1) / wide


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
    return float(((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-12)).mean())


def _column_part(name: str, values: tuple[str, ...], place: slice, inputs: Tensor) -> ColumnPart:
    part = inputs[:, place].double()
    wrong = _impossible_column(part, category=bool(values))
    if values:
        absent = (part == 0.0).all(1)
        codes = part[~absent & ~wrong].argmax(1)
        counts = torch.bincount(codes, minlength=len(values)).double()
    else:
        absent = torch.zeros_like(wrong)
        numbers = part[~wrong, 0].clamp(-1.0, 1.0).numpy()
        counts = torch.from_numpy(np.histogram(numbers, BINS, (-1.0, 1.0))[0]).double()
    shares = (counts / len(part)).tolist()
    return ColumnPart(
        name=name,
        values=values,
        shares=tuple(shares),
        absent=float(absent.double().mean()),
        impossible=float(wrong.double().mean()),
    )


def _impossible_column(part: Tensor, *, category: bool) -> Tensor:
    """Return which records have a value that no record can have: a category has one feature at 1, or none."""
    if not category:
        return ~(part.abs() <= 1.0 + _ROUND_OFF).all(1)
    near = ((part - part.round()).abs() <= _ROUND_OFF) & (part >= -_ROUND_OFF)
    return ~(near.all(1) & (part.sum(1) <= 1.0 + _ROUND_OFF))


def _impossible(inputs: Tensor, features: Sequence[str]) -> Tensor:
    if inputs.dim() == 4:
        low, high = -_ROUND_OFF, 1.0 + _ROUND_OFF
        return ~((inputs >= low) & (inputs <= high)).flatten(1).all(1)
    wrong = [
        _impossible_column(inputs[:, place], category=bool(values)) for _, values, place in columns_of(features, inputs)
    ]
    return torch.stack(wrong).any(0)
