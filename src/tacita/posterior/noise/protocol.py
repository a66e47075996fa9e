"""What noise is: independent whole numbers of known distribution, drawn by exact arithmetic."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.mechanisms.finite import FiniteCurve


class Noise(Protocol):
    """Noise on whole numbers. An implementation is a frozen dataclass in one file.

    Attributes:
        scale: How wide it is.
    """

    scale: float

    @property
    def reach(self) -> int:
        """A size that noise exceeds with negligible probability: below 1e-19 for exponential tails."""
        return math.ceil(45.0 * self.scale) + 1

    @property
    def sd(self) -> float:
        """The standard deviation."""

    def prepare(self) -> None:
        """Build the sampler, so that whatever is missing or impossible is known before anything is charged."""

    def draw(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the values with noise."""

    def log_chance(self, gaps: Counts) -> Floats:
        """Return the log probability of noise of these sizes."""

    def tail(self, sizes: Counts) -> Floats:
        """Return the probability of noise of at least these sizes, which are not negative."""

    def curve(self, step: int, cells: int = 1) -> FiniteCurve:
        """Return the exact privacy curve of noise that hides a step in each of one or two cells."""

    def renyi_costs(self, step: int) -> dict[int, float] | None:
        """Return the cost at each order that a ledger adds up, if that is tighter than the pure epsilon."""
        return None

    def half_width(self, level: float) -> int:
        """Return the smallest whole number that noise stays within with at least this probability."""
        outside = 1.0 - _check.probability("level", level)
        sizes = range(self.reach + 1)
        return bisect_left(sizes, True, key=lambda size: 2.0 * float(self.tail(np.array(size + 1))) <= outside)

    def clipped_rows(self, n: int) -> Floats:
        """Return the probabilities of the noisy counts 0..n, clipped to that range: one row for each true count.

        Clipping loses nothing: a count beyond an end says no more about the true one than the end does.
        """
        counts = np.arange(n + 1)
        rows = np.exp(self.log_chance(np.abs(np.subtract.outer(counts, counts))))
        ends = self.tail(counts)
        rows[:, 0], rows[:, n] = ends, ends[::-1]
        return normalised(rows)


def normalised(rows: Floats) -> Floats:
    """Return rows that add up to 1; the second division removes what rounding the first one left."""
    rows = rows / rows.sum(axis=1, keepdims=True)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
