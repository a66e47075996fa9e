"""Two-sided geometric noise: exact, pure, and nearly always the best choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan


@dataclass(frozen=True, kw_only=True)
class Geometric(Mechanism):
    """Two-sided geometric (discrete Laplace) noise on whole numbers: counts, cells, sums on a grid.

    Args:
        epsilon: The privacy loss it may have.

    Examples:
        >>> print(Geometric(epsilon=0.5))
        geometric(epsilon=0.5)
    """

    name: ClassVar[str] = "geometric"
    for_people: ClassVar[bool] = True
    epsilon: float
    delta: float = field(default=0.0, init=False)

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer itself for everything."""
        return (cls(epsilon=epsilon),)

    def is_proportional(self, statistic: Statistic) -> bool:
        """Return True: the loss is linear in the change."""
        return True

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return noise that hides the step of one number, or of the two cells that a record changes."""
        from tacita.posterior.noise.geometric import GeometricNoise
        from tacita.posterior.plans import noise_plan, scale_for

        noise = GeometricNoise(scale_for(statistic.step * statistic.changed, self.epsilon))
        where = " on two cells" if statistic.changed == 2 else ""
        return noise_plan(self, statistic, noise, f"exact curve of geometric noise{where}")
