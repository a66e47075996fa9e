"""Rounded Laplace noise on counts, as in the literature; kept for comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tacita import _check
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan

SENSITIVITIES = {"naive": 2, "histogram": 1}


@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Laplace noise on counts, rounded and clipped, as in the literature; kept for comparison.

    Args:
        epsilon: The stated privacy loss.
        sensitivity: `naive` takes both counts of a record's move (2); `histogram` uses that with two categories one
            count determines the other (1).
    """

    name: ClassVar[str] = "laplace"
    epsilon: float
    delta: float = field(default=0.0, init=False)
    sensitivity: str = "naive"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.one_of("sensitivity", self.sensitivity, tuple(SENSITIVITIES))

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer both sensitivities, where they hold."""
        return tuple(cls(epsilon=epsilon, sensitivity=sensitivity) for sensitivity in SENSITIVITIES)

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
        from tacita.posterior.noise.laplace import LaplaceNoise
        from tacita.posterior.plans import noise_plan, scale_for

        noise = LaplaceNoise(scale_for(SENSITIVITIES[self.sensitivity], self.epsilon))
        return noise_plan(self, statistic, noise, "exact curve of rounded Laplace noise")
