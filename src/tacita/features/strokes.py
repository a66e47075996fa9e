"""Images of random strokes: what handwriting and drawings have in common, made without looking at any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_POINTS = 14  # along one curve
_PEN = 0.075  # standard deviation of the pen's footprint, in image heights
_NARROW = 0.75  # how wide what is drawn is, over how high


def strokes(count: int, *, height: int, width: int, rng: np.random.Generator) -> Floats:
    """Return images of one to three connected quadratic curves, drawn with a soft pen at random places.

    Args:
        count: How many images.
        height: In pixels.
        width: In pixels.
        rng: Where the curves come from.

    Returns:
        Shape (count, height, width), values in [0, 1].
    """
    _check.count("count", count)
    rows, columns = (_check.count(name, size, low=4) for name, size in (("height", height), ("width", width)))
    grid = np.stack(
        np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij"), -1
    )
    corners = rng.uniform(0.12, 0.88, size=(count, 7, 2))  # start, and a control and an end point for each curve
    corners[..., 1] = 0.5 + _NARROW * (corners[..., 1] - 0.5)
    curves = rng.integers(1, 4, size=count)
    t = np.linspace(0.0, 1.0, _POINTS)[:, None]
    images = np.zeros((count, rows, columns))
    for number in range(3):
        start, control, end = (corners[:, 2 * number + i, None] for i in range(3))
        path = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
        for image in np.flatnonzero(curves > number):
            distance = ((grid[:, :, None] - path[image]) ** 2).sum(-1).min(-1)
            ink = np.minimum(1.0, 1.2 * np.exp(-distance / (2.0 * _PEN**2)))
            np.maximum(images[image], ink, out=images[image])
    return images
