"""What followed records may have spent in steps in which they were not measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from tacita import _check
from tacita._check import PrivacyError
from tacita.assumptions import Assumption, assume

if TYPE_CHECKING:
    from tacita._check import Counts

_SHARE = 0.12  # what measuring adds to a run's gradients
_ENOUGH = 150  # measurements of a run
_RATIO = 1.1  # between numbers of steps that are told apart
_RESOLVED = 1e-200  # chances below are lost to underflow: at them nothing is told apart


@dataclass(frozen=True)
class Sampled:
    """How followed records were measured: at each step each of them on a coin of its own.

    Attributes:
        steps: All steps of the run so far.
        rate: The chance with which a record was measured in a step.
        failure: The chance, for each record and over its coins, that it spent more than `fill` says.
    """

    steps: int
    rate: float
    failure: float

    def __post_init__(self) -> None:
        _check.count("steps", self.steps, low=0)
        _check.in_range("rate", self.rate, 1e-9, 1.0)
        _check.probability("failure", self.failure)

    def fill(self, seen: Counts) -> Counts:
        """Return counts of all steps from those of the steps in which each record was measured.

        Sort a record's steps by their level, the highest first. Of the first n, Binomial(n, rate) are measured,
        whatever the run does: the coins steer nothing. So for a few n, chosen beforehand, as many are measured as all
        but a share of `failure` of coins would have it; and where fewer were seen at or above a level, fewer than n
        steps were there.

        Args:
            seen: (records, levels): steps in which a record was measured, and steps that are charged for certain.

        Returns:
            Counts of the same shape, whose rows add up to all steps.

        Raises:
            PrivacyError: If a record was measured in more steps than were taken.
        """
        above = seen[:, ::-1].cumsum(axis=1, dtype=np.int64)[:, ::-1]  # steps at or above each level
        if (above[:, 0] > self.steps).any():
            raise PrivacyError("Records were measured in more steps than were taken.")
        unseen = self.steps - above[:, :1]
        total: Counts = np.minimum(self.most(above), above + unseen)
        total[:, 0] = self.steps
        return total - np.pad(total[:, 1:], ((0, 0), (0, 1)))

    def most(self, seen: Counts) -> Counts:
        """Return how many steps there were at or above a level at which so many were seen, at most."""
        if self.rate == 1.0:
            return seen.copy()
        first = max(1.0, np.log(self.failure) / np.log1p(-self.rate))  # of fewer steps none may be measured
        count = max(0, int(np.log(max(self.steps, 1) / first) / np.log(_RATIO) + 1.0))
        count = count if self.failure >= _RESOLVED else 0
        grid = np.unique(np.minimum(np.ceil(first * _RATIO ** np.arange(count)), self.steps).astype(np.int64))
        each = self.failure / max(len(grid), 1) * (1.0 - 1e-9)  # round-off of the quantile
        unlikely = binom.ppf(each, grid, self.rate) - 1.0  # so few are measured of the first n with that chance at most
        place = np.searchsorted(np.maximum.accumulate(unlikely), seen)
        return np.append(grid - 1, self.steps)[place]

    @property
    def assumption(self) -> Assumption:
        """How the figures come about."""
        return assume("measured-at-random", share=f"{100.0 * self.rate:.3g}%", failure=f"{self.failure:.1e}")


def measuring_rate(steps: int, batch_size: float, followed: int) -> float:
    """Return the chance with which followed records are measured at a step, where none was chosen.

    Measuring costs a gradient for each followed record. The rate adds about an eighth to the gradients of a run, but
    keeps figures useful: at least 150 measurements of each record, or every step of a shorter run.

    Args:
        steps: Planned.
        batch_size: Planned.
        followed: How many records, of all panels together.
    """
    return min(1.0, max(_SHARE * batch_size / max(followed, 1), _ENOUGH / steps))
