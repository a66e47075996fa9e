"""Rounded Laplace noise on counts, as in the literature; kept for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacita import _check
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic, checked_epsilon

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan

SENSITIVITIES = ("naive", "histogram")


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Rounded Laplace noise on counts. See `laplace`."""

    name: ClassVar[str] = "laplace"
    epsilon: float
    delta: float = 0.0
    sensitivity: str = "naive"

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Laplace:
        """Return it within a budget, of which the delta is not needed."""
        return laplace(epsilon=epsilon)

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer both sensitivities, where they hold."""
        return (cls(epsilon), cls(epsilon, sensitivity="histogram"))

    def refusal(self, statistic: Statistic) -> str:
        """Refuse what is not a posterior of a public number of records, and one count for more than two categories."""
        if statistic.cells == 1 or statistic.prior is None:
            return "laplace noise is for the counts behind a posterior: use geometric or best"
        if statistic.n is None:
            return "laplace needs a public number of records, and that of a part is private: use geometric or best"
        if statistic.cells > 2 and self.sensitivity == "histogram":
            return f"sensitivity='histogram' is for two categories, this has {statistic.cells}: use sensitivity='naive'"
        return ""

    def is_proportional(self, statistic: Statistic) -> bool:
        """Return True: the loss is linear in the change."""
        return True

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return noise scaled to a sensitivity of 2 (naive) or 1 (histogram)."""
        from tacita.posterior.noise import LaplaceNoise
        from tacita.posterior.plans import Certificate, ReleasePlan, scale_for

        noise = LaplaceNoise(scale_for(2 if self.sensitivity == "naive" else 1, self.epsilon))
        curve = noise.curve(1, statistic.changed)
        return ReleasePlan(self, Certificate(curve, "exact curve of rounded Laplace noise"), noise)


def laplace(*, epsilon: float, sensitivity: str = "naive") -> Laplace:
    """Laplace noise on counts, rounded and clipped, as in the literature; kept for comparison.

    Args:
        epsilon: The stated privacy loss.
        sensitivity: `naive` takes both counts of a record's move (2); `histogram` uses that with two categories one
            count determines the other (1).
    """
    return Laplace(checked_epsilon(epsilon), sensitivity=_check.one_of("sensitivity", sensitivity, SENSITIVITIES))
