"""Discrete Gaussian noise, for sums within (epsilon, delta)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacita import _check
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic, checked_delta, checked_epsilon

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise on one number. See `gaussian`."""

    name: ClassVar[str] = "gaussian"
    epsilon: float
    delta: float

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Gaussian:
        """Return it within a budget."""
        return gaussian(epsilon=epsilon, delta=delta)

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer itself for sums."""
        return (cls(epsilon, delta),) if statistic.summed and delta > 0.0 else ()

    def refusal(self, statistic: Statistic) -> str:
        """Refuse more than one number."""
        if statistic.numbers == 1:
            return ""
        return f"gaussian noise is for one number, this has {statistic.numbers}: use geometric or best"

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return about the narrowest noise whose exact curve keeps (epsilon, delta)."""
        from tacita.posterior.noise import GaussianNoise, smallest_sd
        from tacita.posterior.plans import Certificate, ReleasePlan

        noise = GaussianNoise(smallest_sd(self.epsilon, self.delta, statistic.step))
        certificate = Certificate(noise.curve(statistic.step), "exact curve of the discrete Gaussian")
        return ReleasePlan(self, certificate, noise, step=statistic.step)


def gaussian(*, epsilon: float, delta: float) -> Gaussian:
    """Discrete Gaussian noise on one whole number, such as a sum on a grid. Needs delta > 0."""
    return Gaussian(checked_epsilon(epsilon), checked_delta(_check.probability("delta", delta)))
