"""The box that variational parameters are held to, and the most that Gaussians in it can diverge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita.mechanisms.diagonal import DivergedError as DivergedError
from tacita.mechanisms.diagonal import Gaussians as Gaussians
from tacita.mechanisms.diagonal import renyi_divergences as renyi_divergences

if TYPE_CHECKING:
    from tacita._check import Floats

_MARGIN = 1e-6  # by which a box is widened, for parameters that were held to it in single precision
_LARGEST = 1e30  # of a box: draws are kept in single precision


@dataclass(frozen=True, eq=False, kw_only=True)
class Box:
    """What every variational parameter is held to, declared before the data were seen.

    Attributes:
        bound: Means lie in [-bound, bound]; one number, or one for each coordinate.
        low: Scales are at least this; likewise.
        high: Scales are at most this; likewise.
        dimension: Number of coordinates.
    """

    bound: float | Floats
    low: float | Floats
    high: float | Floats
    dimension: int

    def __post_init__(self) -> None:
        d = _check.count("dimension", self.dimension)
        for name in ("bound", "low", "high"):
            values = np.array(getattr(self, name), dtype=np.float64)  # a copy: what was declared stays
            if values.shape not in ((), (d,)) or not (np.abs(values) < _LARGEST).all():
                raise ValueError(
                    f"{name} must be a number below {_LARGEST:g}, or {d} of them, got shape {values.shape}."
                )
            object.__setattr__(self, name, np.broadcast_to(values, (d,)))
        if not (np.min(self.bound) >= 0.0 and np.min(self.low) > 0.0 and np.all(self.low <= np.asarray(self.high))):
            raise ValueError("A box needs bound >= 0 and 0 < low <= high in every coordinate.")

    def extremes(self) -> tuple[Gaussians, Gaussians]:
        """Return the two Gaussians of the box that are farthest apart: wide at the top, narrow at the bottom."""
        means = np.atleast_2d(self.bound) * (1.0 + _MARGIN)
        wide, narrow = np.atleast_2d(self.high) * (1.0 + _MARGIN), np.atleast_2d(self.low) / (1.0 + _MARGIN)
        return Gaussians(means, wide), Gaussians(-means, narrow)

    def holds(self, points: Gaussians) -> bool:
        """Say whether all of them lie in the box, up to a millionth of each side that the bounds below allow for."""
        top, bottom = self.extremes()
        if points.means.shape[1] != self.dimension:
            raise ValueError(f"The box has {self.dimension} coordinates, the Gaussians {points.means.shape[1]}.")
        means, scales = points.means, points.scales
        inside = (np.abs(means) <= top.means) & (bottom.scales <= scales) & (scales <= top.scales)
        return bool(inside.all())

    def project(self, means: Floats, scales: Floats) -> Gaussians:
        """Return the Gaussians with every mean and scale moved into the box, no further than needed.

        What is not finite becomes a mean of zero and the lowest scale: a training that diverged lies in the box too,
        since whether it diverges may hang on one record.
        """
        middle, narrow = np.where(np.isfinite(means), means, 0.0), np.where(np.isfinite(scales), scales, self.low)
        return Gaussians(np.clip(middle, -self.bound, self.bound), np.clip(narrow, self.low, self.high))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `Box(**data)` takes it back."""
        sides = {name: np.asarray(getattr(self, name)).tolist() for name in ("bound", "low", "high")}
        return {**sides, "dimension": self.dimension}

    def __str__(self) -> str:
        bound, low, high = float(np.max(self.bound)), float(np.min(self.low)), float(np.max(self.high))
        each = all(np.ptp(side) == 0.0 for side in (self.bound, self.low, self.high))
        scales = f"standard deviations of {low:g}" if low == high else f"standard deviations from {low:g} to {high:g}"
        return f"means within {bound:g} of zero, {scales}" + ("" if each else ", and for some unknowns less")


def worst_divergences(orders: Sequence[float] | Floats, box: Box) -> Floats:
    """Return the largest D_α of any two Gaussians in a box, in either direction; shape (E,).

    In each coordinate D_α(1‖2) rises with |m_1 - m_2|, and for given means it is largest at s_1 = high, s_2 = low:
    that makes 1 - λx and s_2²(1 - λx) least; and of two laws with one mean the wide one diverges more from the narrow
    one than the other way round. So the largest value is reached at `Box.extremes`, and nothing is lost. It is
    infinite where (high/low)² ≥ α/(α - 1) in some coordinate.

    Examples:
        >>> box = Box(bound=0.5, low=1.0, high=1.2, dimension=1)
        >>> worst_divergences([2.0, 4.0], box).round(3).tolist()
        [1.893, inf]
    """
    return np.asarray(renyi_divergences(orders, *box.extremes())[:, 0])
