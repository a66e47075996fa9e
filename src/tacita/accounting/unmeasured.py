"""What followed records may have spent in steps in which they were not measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from tacita import _check
from tacita.assumptions import Assumption, assume

if TYPE_CHECKING:
    from tacita._check import Counts

_SHARE = 0.2  # of a run's gradients, that measuring adds
_ENOUGH = 150  # measurements of a run


@dataclass(frozen=True)
class Unmeasured:
    """Steps in which followed records were not measured, because a coin said so.

    Attributes:
        steps: How many.
        rate: The chance with which a step was measured, on a coin of its own.
        failure: The chance, over the coins, with which a record may have spent more than `fill` says.
    """

    steps: int
    rate: float
    failure: float

    def __post_init__(self) -> None:
        _check.count("steps", self.steps, low=0)
        _check.in_range("rate", self.rate, 1e-9, 1.0)
        _check.probability("failure", self.failure)

    def fill(self, counts: Counts) -> Counts:
        """Return counts of all steps from those of the measured ones.

        Of N steps that a record spends at or above a level, Binomial(N, rate) are measured, whatever the run does: the
        coins steer nothing. So N is at most the largest number of which so few would be seen with probability
        `failure`, shared among all levels of all records; and at most those seen and all that were not measured.

        Args:
            counts: (records, levels): measured steps, and steps that are charged for certain.

        Returns:
            Counts of the same shape, whose rows add up to all steps.
        """
        above = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # steps at or above each level
        each = self.failure / above.size
        seen, place = np.unique(above, return_inverse=True)
        most = np.minimum(largest_total(seen, self.rate, each, most=int(seen[-1]) + self.steps), seen + self.steps)
        total: Counts = most[place].reshape(above.shape)
        total[:, 0] = above[:, 0] + self.steps
        return total - np.pad(total[:, 1:], ((0, 0), (0, 1)))

    @property
    def assumption(self) -> Assumption:
        """How the figures come about."""
        return assume("measured-at-random", share=f"{100.0 * self.rate:.3g}%", failure=f"{self.failure:.1e}")


def largest_total(seen: Counts, rate: float, failure: float, *, most: int) -> Counts:
    """Return the largest N, up to `most`, for which Binomial(N, rate) is at most `seen` with at least a probability.

    Args:
        seen: Numbers of successes.
        rate: The chance of each.
        failure: The probability.
        most: At least every number seen.
    """
    low, high = seen.copy(), np.full_like(seen, most)
    while (low < high).any():
        middle = (low + high + 1) // 2
        likely = binom.cdf(seen, middle, rate) >= failure * (1.0 - 1e-9)  # round-off of the cdf
        low, high = np.where(likely, middle, low), np.where(likely, high, middle - 1)
    return np.asarray(low)


def measuring_rate(steps: int, batch_size: float, followed: int) -> float:
    """Return the chance with which followed records are measured at a step, where none was chosen.

    Measuring costs a gradient for each followed record. The rate adds about a fifth to the cost of a run, but not less
    than what keeps figures useful: 150 measurements, or every step of a shorter run.

    Args:
        steps: Planned.
        batch_size: Planned.
        followed: How many records, of all panels together.
    """
    return min(1.0, max(_SHARE * batch_size / max(followed, 1), _ENOUGH / steps))
