"""Two-sided geometric noise: exact, pure, and nearly always the best choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacita.posterior.mechanisms.protocol import Mechanism, Statistic, checked_epsilon

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan


@dataclass(frozen=True)
class Geometric(Mechanism):
    """Geometric noise on every number. See `geometric`."""

    name: ClassVar[str] = "geometric"
    epsilon: float
    delta: float = 0.0

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Geometric:
        """Return it within a budget, of which the delta is not needed."""
        return geometric(epsilon=epsilon)

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer itself for everything."""
        return (cls(epsilon),)

    def is_proportional(self, statistic: Statistic) -> bool:
        """Return True: the loss is linear in the change."""
        return True

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return noise that hides the step of one number, or of the two cells that a record changes."""
        from tacita.posterior.noise import GeometricNoise
        from tacita.posterior.plans import Certificate, ReleasePlan, scale_for

        noise = GeometricNoise(scale_for(statistic.step * statistic.changed, self.epsilon))
        where = " on two cells" if statistic.changed == 2 else ""
        how = f"exact curve of geometric noise{where}"
        certificate = Certificate(noise.curve(statistic.step, statistic.changed), how)
        return ReleasePlan(self, certificate, noise, step=statistic.step)


def geometric(*, epsilon: float) -> Geometric:
    """Two-sided geometric (discrete Laplace) noise on whole numbers: counts, cells, sums on a grid.

    Examples:
        >>> print(geometric(epsilon=0.5))
        geometric(epsilon=0.5)
    """
    return Geometric(checked_epsilon(epsilon))
