"""Images of one filled shape on black: what photographs of single objects have in common, made without any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_KNOTS = 6  # heights at which the outline is drawn; straight lines between them
_LIMB = 0.35  # chance of a pair of limbs
_GAP = 0.35  # chance of a gap up the middle
_SOFT = 0.03  # over which an edge fades, in image widths


def silhouettes(count: int, *, height: int, width: int, rng: np.random.Generator) -> Floats:
    """Return images of one upright shape each, in shades of grey, in the middle of a black frame.

    The outline's two sides are broken lines, alike in half of the images (so that these are symmetric). Some shapes
    have a pair of slanted limbs, some a gap that reaches up from below; all have a shade that changes slowly, and
    stripes of random direction, width and contrast.

    Args:
        count: How many images.
        height: In pixels.
        width: In pixels.
        rng: Where the shapes come from.

    Returns:
        Shape (count, height, width), values in [0, 1].
    """
    total = _check.count("count", count)
    rows, columns = (_check.count(name, size, low=4) for name, size in (("height", height), ("width", width)))
    y = ((np.arange(rows) + 0.5) / rows)[:, None]
    x = ((np.arange(columns) + 0.5) / columns)[None, :] - 0.5
    return np.stack([_outline(y, x, rng) * _shade(y, x, rng) for _ in range(total)])


def _outline(y: Floats, x: Floats, rng: np.random.Generator) -> Floats:
    """Return how much of each pixel the shape covers; y from 0 at the top, x from -1/2 to 1/2."""
    top, bottom = rng.uniform(0.0, 0.35), rng.uniform(0.65, 1.0)
    knots = np.linspace(top, bottom, _KNOTS)
    left = rng.uniform(0.08, 0.48) * rng.uniform(0.5, 1.0, _KNOTS)
    right = left if rng.random() < 0.5 else rng.uniform(0.08, 0.48) * rng.uniform(0.5, 1.0, _KNOTS)
    inside = np.minimum(np.interp(y, knots, right) - x, x + np.interp(y, knots, left))
    inside = np.minimum(inside, np.minimum(y - top, bottom - y))
    if rng.random() < _GAP:
        rise, opening = rng.uniform(0.1, 0.8), rng.uniform(0.0, 0.12)
        inside = np.minimum(inside, np.maximum(abs(x) - opening * y, top + rise * (bottom - top) - y))
    if rng.random() < _LIMB:
        shoulder, slant, thick = top + rng.uniform(0.0, 0.15), rng.uniform(0.3, 3.0), rng.uniform(0.04, 0.1)
        reach = rng.uniform(0.25, 0.5)
        across = (y - shoulder - thick - slant * np.maximum(abs(x) - 0.1, 0.0)) / np.hypot(1.0, slant)
        inside = np.maximum(inside, np.minimum(thick - abs(across), np.minimum(reach - abs(x), bottom - y)))
    return np.clip(inside / _SOFT + 0.5, 0.0, 1.0)


def _shade(y: Floats, x: Floats, rng: np.random.Generator) -> Floats:
    """Return the shape's grey values: a base, a slow change and stripes."""
    angle, phase = rng.uniform(0.0, np.pi), rng.uniform(0.0, 2.0 * np.pi)
    waves, contrast = 10 ** rng.uniform(0.3, 1.1), 0.3 * rng.random() ** 2
    slope = rng.normal(0.0, 0.2, 2)
    stripes = np.sin(2.0 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    shade: Floats = rng.uniform(0.2, 0.95) + slope[0] * x + slope[1] * (y - 0.5) + contrast * stripes
    return np.clip(shade, 0.0, 1.0)
