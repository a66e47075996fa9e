"""Two-sided geometric noise, also called discrete Laplace noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita.mechanisms.finite import FiniteCurve, product_pair
from tacita.posterior import samplers
from tacita.posterior.noise.protocol import Noise, normalised

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_LARGEST_STEP = 1_000_000


@dataclass(frozen=True)
class GeometricNoise(Noise):
    """P(z) is proportional to exp(-|z| / scale)."""

    scale: float

    @property
    def sd(self) -> float:
        """The standard deviation."""
        return math.sqrt(2.0 * math.exp(-1.0 / self.scale)) / -math.expm1(-1.0 / self.scale)

    def prepare(self) -> None:
        """Build the sampler."""
        samplers.sampler("laplace", self.scale)

    def draw(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the values with noise."""
        return samplers.sampler("laplace", self.scale)(values)

    def log_chance(self, gaps: Counts) -> Floats:
        """Return the log probability of noise of these sizes."""
        return -np.abs(gaps).astype(np.float64) / self.scale + math.log(math.tanh(0.5 / self.scale))

    def tail(self, sizes: Counts) -> Floats:
        """Return the probability of noise of at least these sizes."""
        return np.asarray(np.exp(-sizes / self.scale) / (1.0 + math.exp(-1.0 / self.scale)))

    def curve(self, step: int, cells: int = 1) -> FiniteCurve:
        """Return the exact privacy curve.

        Outputs below both true numbers, or above both, have the same likelihood ratio, so they are merged. Clipping to
        0..n merges no others, so it changes nothing. Steps above a million are bounded by the coin of the same pure
        epsilon.

        Where several numbers share the steps, whatever each takes, the curve is at most that of one number that takes
        them all. Proof: let p_a(t) be the largest power of a test of level t against a shift of one number by a. Its
        tests are thresholds, and p_a moves a threshold by a; so p_{a+b} = p_b(p_a), at thresholds and, as p is linear
        between them, everywhere. Shift one number by a: a test of level t finds it with power at most p_a(t). Then
        shift another one by b: at most p_b(p_a(t)), which is p_{a+b}(t).
        """
        rate = 1.0 / self.scale
        if step > _LARGEST_STEP:
            rate, step = rate * step, 1
        ends, tail = 1.0 / (1.0 + math.exp(-rate)), math.exp(-rate * step) / (1.0 + math.exp(-rate))
        between = math.tanh(0.5 * rate) * np.exp(-rate * np.arange(1, step))
        row = np.concatenate([[ends], between, [tail]])
        pair = normalised(np.stack([row, row[::-1]]))
        return FiniteCurve(pair if cells == 1 else product_pair(pair, pair), np.array([[0, 1]]))
