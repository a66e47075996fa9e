"""The mechanism that brings the released posterior nearest to the true one, chosen from public facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tacita.posterior.mechanisms._geometric import Geometric
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan


@dataclass(frozen=True, kw_only=True)
class Best(Mechanism):
    """Whatever brings the released posterior nearest to the true one, on average under the prior, at this cost.

    Args:
        epsilon: The privacy loss it may have.
        delta: Its failure probability. Some choices leave it unused.
    """

    name: ClassVar[str] = "best"
    for_people: ClassVar[bool] = True
    epsilon: float
    delta: float = 0.0

    def options(self, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Return what may be chosen: geometric noise alone, unless it is a sum or a posterior with a public n."""
        from tacita.posterior.mechanisms import MECHANISMS

        if not statistic.summed and (statistic.prior is None or statistic.n is None):
            return (Geometric(epsilon=self.epsilon),)
        offered = (kind.candidates(self.epsilon, self.delta, statistic) for kind in MECHANISMS.values())
        fitting = (option for options in offered for option in options if not option.refusal(statistic))
        return tuple(option for option in fitting if option.for_people or statistic.rows is None)

    def is_proportional(self, statistic: Statistic) -> bool:
        """Return whether every option's cost is proportional to the change."""
        return all(option.is_proportional(statistic) for option in self.options(statistic))

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return the plan of the best option, with what it was compared to."""
        from tacita.posterior.choice import compare

        compared = compare(self.options(statistic), statistic)
        chosen = compared[0].mechanism if compared else Geometric(epsilon=self.epsilon)
        return replace(chosen.calibrated(statistic), compared=compared)
