"""The noise of a federation: given, or found for a target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tacita._check import PrivacyError
from tacita.accounting import Target, least_noise_for, noise_within
from tacita.accounting.profiles import worst_profile
from tacita.federated import participation
from tacita.profile import Profile
from tacita.training.plan import Pair, checked_pair

if TYPE_CHECKING:
    from tacita.federated.levels import Level
    from tacita.federated.plan import FederationPlan


def declared_noise(level: Level, clients: float | None, records: float | None, found: float | None) -> dict[str, Any]:
    """Return the noise multiplier that the level declares; another is refused.

    Args:
        level: The privacy level.
        clients: The noise multiplier of clients, if given.
        records: That of records, if given.
        found: A first one, if it is to be found for a target.

    Raises:
        ValueError: If none is given, or two that contradict each other.
    """
    values = {"noise_multiplier": clients, "record_noise_multiplier": records}
    declared = values.pop(level.declared_noise)
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"Level {level.name!r} takes no {name}.")
    if declared is not None and found is not None:
        raise ValueError(f"Give either {level.declared_noise} or target, and not both.")
    if declared is None and found is None:
        raise ValueError(f"Level {level.name!r} needs {level.declared_noise}, or a target.")
    return {level.declared_noise: found if declared is None else declared}


def calibrated(plan: FederationPlan, target: Pair | Target) -> FederationPlan:
    """Return the plan with the least noise that keeps its larger unit to a target in all rounds.

    Raises:
        PrivacyError: If no noise reaches it.

    Guarantee:
        The figures of the plan's worst case for that unit, over all rounds, are at most the target.
    """
    declared, failure = plan.headline, plan.failure if plan.of_clients is not None else 0.0

    def curve(noise: float) -> Profile:
        whole = worst_profile(sample_rate=declared.sample_rate, noise_multiplier=noise, steps=declared.steps)
        return whole.raised(failure, up_to=participation.LARGEST_EPSILON) if failure else whole

    if isinstance(target, Target):
        noise = least_noise_for(target, curve)
    else:
        epsilon, delta = checked_pair("target", target)
        share = plan.stops[-1][1] if plan.stops else 1.0
        spare = delta * share * (1.0 - 1e-6)  # what is charged for too many drawn fits into the rest
        if failure > delta * share * 1e-6:
            raise PrivacyError(f"target's delta must be above {failure / share * 1e6:.2g} at level {plan.level!r}.")
        noise = noise_within((epsilon, spare), sample_rate=declared.sample_rate, steps=declared.steps)
    found: dict[str, Any] = {plan.privacy_level.declared_noise: noise}
    return replace(plan, **found)
