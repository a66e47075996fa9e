"""Discrete Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita._check import PrivacyError
from tacita._search import boundary
from tacita.accounting.levels import ORDERS
from tacita.mechanisms.finite import FiniteCurve
from tacita.posterior import samplers
from tacita.posterior.noise.protocol import Noise, normalised

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_LARGEST_REACH = 500_000
_BEYOND = 1e-36  # more than a Gaussian has beyond 13 standard deviations


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """P(z) is proportional to exp(-z² / (2 scale²))."""

    scale: float

    @property
    def reach(self) -> int:
        """A size that noise exceeds with negligible probability."""
        return math.ceil(14.0 * self.scale) + 1

    @property
    def sd(self) -> float:
        """The standard deviation."""
        chances = _chances(self.scale, self.reach)
        return float(math.sqrt(2.0 * chances @ np.arange(len(chances)) ** 2.0))

    def prepare(self) -> None:
        """Build the sampler."""
        samplers.sampler("gaussian", self.scale)

    def draw(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the values with noise."""
        return samplers.sampler("gaussian", self.scale)(values)

    def log_chance(self, gaps: Counts) -> Floats:
        """Return the log probability of noise of these sizes, up to the normalisation of narrow noise."""
        size = np.abs(gaps).astype(np.float64)
        return -0.5 * (size / self.scale) ** 2 - math.log(self.scale * math.sqrt(2.0 * math.pi))

    def tail(self, sizes: Counts) -> Floats:
        """Return the probability of noise of at least these sizes."""
        tails = np.cumsum(_chances(self.scale, self.reach)[::-1])[::-1]
        return np.asarray(np.append(tails, 0.0)[np.minimum(sizes, len(tails))])

    def curve(self, step: int, cells: int = 1) -> FiniteCurve:
        """Return the exact privacy curve of one number."""
        reach = math.ceil(13.0 * self.scale) + 1
        if cells != 1:
            raise PrivacyError(f"Gaussian noise is certified for one number, got {cells} cells; use geometric noise.")
        if reach > _LARGEST_REACH:
            raise PrivacyError(
                f"Gaussian noise of {self.scale:.3g} units is too wide to be certified exactly; use a coarser step (a "
                "hundredth of the clamped range is enough), or geometric noise."
            )
        places = np.arange(-reach, reach + step + 1)
        pair = normalised(np.exp(-0.5 * (np.stack([places, places - step]) / self.scale) ** 2))
        beyond = np.array([[_BEYOND, 0.0], [0.0, _BEYOND]])
        return FiniteCurve(np.concatenate([pair, beyond], axis=1), np.array([[0, 1]]))

    def renyi_costs(self, step: int) -> dict[int, float]:
        """Return the cost at each order: those of the continuous Gaussian, rounded up."""
        rate = 0.5 * (step / self.scale) ** 2 * (1.0 + 1e-12)
        return {order: rate * order * (order + 1) for order in ORDERS}


@lru_cache(maxsize=64)
def smallest_sd(epsilon: float, delta: float, step: int) -> float:
    """Return about the smallest standard deviation, in units, that hides a step within (epsilon, delta).

    Args:
        epsilon: The privacy loss.
        delta: The failure probability.
        step: By how much one record changes the number.

    Raises:
        PrivacyError: If the noise is too wide to be certified.
    """

    def hides(sd: float) -> bool:
        return GaussianNoise(sd).curve(step).delta(epsilon) <= delta

    low = high = 0.5 * step / epsilon
    while not hides(high):
        low, high = high, 2.0 * high
    return boundary(hides, fails=low, at=high, rtol=0.0005, geometric=True)


@lru_cache(maxsize=8)
def _chances(scale: float, reach: int) -> Floats:
    """Return the probability of each size from 0 on, of one sign."""
    weights = np.exp(-0.5 * (np.arange(reach + 1, dtype=np.float64) / scale) ** 2)
    return np.asarray(weights / (2.0 * weights.sum() - weights[0]))
