"""Images of fallen leaves: discs of all sizes over each other, which share with photographs how edges lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_SMALLEST, _LARGEST = 0.05, 0.6  # radii, over the shorter side
_LEAVES = 120


def dead_leaves(count: int, *, height: int, width: int, rng: np.random.Generator) -> Floats:
    """Return colour images of discs that hide each other (Matheron 1968; Lee, Mumford & Huang 2001).

    Radii r have a density of r^-3 between public limits, which makes the images look alike at every scale, as
    photographs do: edges, corners and smooth areas of all sizes. Colours are uniform, and alike within one image: a
    leaf's differs from the image's own by half of the range at most. Networks trained on such images learn filters
    that serve for photographs (Baradad et al. 2021).

    Args:
        count: How many images.
        height: In pixels.
        width: In pixels.
        rng: Where the discs come from.

    Returns:
        Shape (count, 3, height, width), values in [0, 1].
    """
    total = _check.count("count", count)
    rows, columns = (_check.count(name, size, low=4) for name, size in (("height", height), ("width", width)))
    low, high = (limit * min(rows, columns) for limit in (_SMALLEST, _LARGEST))
    radius = (low**-2 - rng.random((total, _LEAVES)) * (low**-2 - high**-2)) ** -0.5
    centre = rng.random((total, _LEAVES, 2)) * (rows, columns)
    base, contrast = rng.random((total, 1, 3)), rng.random((total, 1, 1))
    colour = np.clip(base + contrast * (rng.random((total, _LEAVES, 3)) - 0.5), 0.0, 1.0)
    y, x = np.arange(rows)[:, None] + 0.5, np.arange(columns)[None, :] + 0.5
    images = np.repeat(base, rows * columns, axis=1).reshape(total, rows, columns, 3)
    for i in range(total):
        for (top, left), reach, paint in zip(centre[i], radius[i], colour[i], strict=True):  # later leaves lie on top
            images[i][(y - top) ** 2 + (x - left) ** 2 < reach**2] = paint
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
