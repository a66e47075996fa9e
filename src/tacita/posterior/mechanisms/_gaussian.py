"""Discrete Gaussian noise, for sums within (epsilon, delta)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacita import _check
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Discrete Gaussian noise on one whole number, such as a sum on a grid.

    Args:
        epsilon: The privacy loss it may have.
        delta: Its failure probability, above 0.
    """

    name: ClassVar[str] = "gaussian"
    for_people: ClassVar[bool] = True
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check.probability("delta", self.delta)
        super().__post_init__()

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer itself for sums."""
        return (cls(epsilon=epsilon, delta=delta),) if statistic.summed and delta > 0.0 else ()

    def refusal(self, statistic: Statistic) -> str:
        """Refuse more than one number."""
        if statistic.numbers == 1:
            return ""
        return f"gaussian noise is for one number, this has {statistic.numbers}: use geometric or best"

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return about the narrowest noise whose exact curve keeps (epsilon, delta)."""
        from tacita.posterior.noise.gaussian import GaussianNoise, smallest_sd
        from tacita.posterior.plans import noise_plan

        noise = GaussianNoise(smallest_sd(self.epsilon, self.delta, statistic.step))
        return noise_plan(self, statistic, noise, "exact curve of the discrete Gaussian")
