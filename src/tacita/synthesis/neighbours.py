"""Feature vectors and their nearest neighbours, exactly: by direct differences, ties to the lower place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

Features = Callable[[Tensor], Tensor]

_BATCH = 1024
_NUMBERS = 1 << 22  # in one block of rough distances: 32 MB
_PAIRS = 1 << 16  # numbers in one block of differences, which then stays in the cache
_LARGEST = 1e100  # its square is still a number


def check_records(name: str, inputs: Tensor, *, least: int = 2) -> None:
    """Raise unless `inputs` is a tensor of at least so many records, one per row.

    Args:
        name: What to call the inputs in a message.
        inputs: The records.
        least: How many there must be.
    """
    if not isinstance(inputs, Tensor):
        raise TypeError(f"{name} must be a tensor of records, got {type(inputs).__name__}.")
    if inputs.ndim < 2 or len(inputs) < least:  # the message does not disclose how many there are
        raise ValueError(f"{name} must hold at least {least} records, one per row of a tensor of 2 or more dimensions.")


def feature_vectors(
    name: str, inputs: Tensor, features: Features | None = None, *, like: Floats | None = None
) -> Floats:
    """Return one vector per record, as float64 of shape (n, d).

    Args:
        name: What to call the inputs in a message.
        inputs: At least two records.
        features: A feature map; None takes the numbers of each record as they are.
        like: Vectors that these must be as long as.

    Returns:
        (n, d) float64.

    Raises:
        TypeError: If `inputs` is not a tensor.
        ValueError: If there are fewer than two records, or the vectors are not finite or not of shape (n, d).
    """
    check_records(name, inputs)
    if features is None:
        vectors = inputs.detach().flatten(1)
    else:
        with torch.no_grad():
            vectors = torch.cat([features(part) for part in torch.split(inputs, _BATCH)])
    if vectors.ndim != 2 or len(vectors) != len(inputs) or not vectors.shape[1]:
        raise ValueError(f"features must give one vector per record of {name}.")
    if like is not None and vectors.shape[1] != like.shape[1]:
        raise ValueError(f"{name} must have as many features as the rest, {like.shape[1]}, got {vectors.shape[1]}.")
    found = np.asarray(vectors.double().cpu().numpy(), dtype=np.float64)
    if not (np.abs(found) <= _LARGEST).all():  # NaN fails
        raise ValueError(f"The features of {name} must be finite.")
    return found


def nearest(points: Floats, pool: Floats, count: int, *, same: bool = False) -> tuple[Floats, Counts]:
    """Return the distances to the `count` nearest of `pool`, and their places, both of shape (n, count).

    Sorted by distance, then by place. A matrix product finds candidates, with room for its round-off; their distances
    are then taken by direct differences, so copies are at distance 0 and exact ties are ties.

    Args:
        points: (n, d).
        pool: (m, d), with `count` at most m, or m - 1 if `same`.
        count: How many.
        same: `points` is `pool`: a point is not its own neighbour, but a copy of it is.

    Returns:
        Distances and places, both (n, count).
    """
    step = max(1, _NUMBERS // len(pool))
    starts = range(0, len(points), step)
    blocks = [_nearest_of_block(points[i : i + step], pool, count, i if same else None) for i in starts]
    return np.concatenate([gaps for gaps, _ in blocks]), np.concatenate([places for _, places in blocks])


def _nearest_of_block(points: Floats, pool: Floats, count: int, own: int | None) -> tuple[Floats, Counts]:
    size_points, size_pool = (np.einsum("ij,ij->i", part, part) for part in (points, pool))
    rough = size_points[:, None] + size_pool - 2.0 * (points @ pool.T)
    rows = np.arange(len(points))
    if own is not None:
        rough[rows, own + rows] = np.inf
    # Each rough value is off by at most 2 (d + 3) u (|p|² + |q|²), u = 2⁻⁵³; this is four times that, and d + 8.
    slack = 4.0 * (points.shape[1] + 8) * np.finfo(np.float64).eps * (size_points + size_pool.max())
    limit = np.partition(rough, count - 1, axis=1)[:, count - 1] + 2.0 * slack
    row, place = np.nonzero(rough <= limit[:, None])
    gaps = _squared_gaps(points, pool, row, place)
    order = np.lexsort((place, gaps, row))
    chosen = order[np.searchsorted(row, rows)[:, None] + np.arange(count)]
    return np.sqrt(gaps[chosen]), place[chosen]


def _squared_gaps(points: Floats, pool: Floats, row: Counts, place: Counts) -> Floats:
    step = max(1, _PAIRS // points.shape[1])
    parts = [slice(i, i + step) for i in range(0, len(row), step)]
    return np.concatenate([((points[row[part]] - pool[place[part]]) ** 2).sum(axis=1) for part in parts])
