"""Laplace noise, rounded to whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita._check import PrivacyError
from tacita.mechanisms.finite import FiniteCurve, product_pair
from tacita.posterior import samplers
from tacita.posterior.noise.protocol import Noise

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


@dataclass(frozen=True)
class LaplaceNoise(Noise):
    """The Laplace distribution of this scale, rounded."""

    scale: float

    @property
    def sd(self) -> float:
        """The standard deviation."""
        decay = math.exp(-1.0 / self.scale)
        return math.sqrt(math.exp(0.5 / self.scale) * decay * (1.0 + decay)) / -math.expm1(-1.0 / self.scale)

    def prepare(self) -> None:
        """Build the samplers."""
        samplers.sampler("laplace", self.scale)
        samplers.sampler("laplace", 2.0 * self.scale)

    def draw(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the values with noise.

        Rounded Laplace noise is not 0 with probability exp(-1 / (2 scale)); then its size is geometric and its sign
        even. Both come from exact discrete Laplace draws, by rejection.
        """
        coins = _drawn(2.0 * self.scale, len(values), lambda coin: coin >= 0)
        sizes = _drawn(self.scale, len(values), lambda size: size != 0)
        return tuple(int(v) + (z if coin else 0) for v, z, coin in zip(values, sizes, coins, strict=True))

    def log_chance(self, gaps: Counts) -> Floats:
        """Return the log probability of noise of these sizes."""
        size = np.abs(gaps).astype(np.float64)
        away = -(size - 0.5) / self.scale + math.log(-0.5 * math.expm1(-1.0 / self.scale))
        return np.where(size == 0, math.log(-math.expm1(-0.5 / self.scale)), away)

    def tail(self, sizes: Counts) -> Floats:
        """Return the probability of noise of at least these sizes."""
        at_zero = 1.0 - 0.5 * math.exp(-0.5 / self.scale)
        return np.where(sizes == 0, at_zero, 0.5 * np.exp(-(sizes - 0.5) / self.scale))

    def curve(self, step: int, cells: int = 1) -> FiniteCurve:
        """Return the exact privacy curve; it is there for a step of 1 only, which is what counts need."""
        if step != 1:
            raise PrivacyError(f"Rounded Laplace noise is certified for counts, with a step of 1, got {step}.")
        near, far = 0.5 * math.exp(-0.5 / self.scale), 0.5 * math.exp(-1.5 / self.scale)
        inner, centre = near - far, 1.0 - 2.0 * near
        pair = np.array([[near, centre, inner, far], [far, inner, centre, near]])
        return FiniteCurve(pair if cells == 1 else product_pair(pair, pair), np.array([[0, 1]]))


def _drawn(scale: float, number: int, accepted: Callable[[int], bool]) -> list[int]:
    """Return discrete Laplace noise, drawn again until it is accepted."""
    found: list[int] = []
    while len(found) < number:
        found += filter(accepted, samplers.sampler("laplace", scale)([0] * (number - len(found))))
    return found
