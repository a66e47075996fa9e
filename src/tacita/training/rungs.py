"""The rungs that a plan declares, and what they promise."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tacita.accounting.rungs import Ladder, ladder
from tacita.training.plan import Plan, filter_epsilon


@lru_cache(maxsize=64)
def ladder_of(plan: Plan, delta: float) -> Ladder:
    """Return the rungs of a plan at one delta for all of them; no rungs if none were declared.

    The budgets were declared with the plan. Nothing of what the run did enters, so the ladder may be published.

    Guarantee:
        In the weak notion, for every record and over every path, whenever the run ended: ending it is as if every
        level were zero from then on. Where a record budget holds every record, no rung promises less than it does.
    """
    if not plan.rungs:
        return Ladder(())
    mechanism = {"sample_rate": plan.sample_rate, "noise_multiplier": plan.noise_multiplier}
    made = ladder(steps=plan.steps, delta=delta, fractions=plan.rungs, **mechanism)
    if plan.record_budget is None:
        return made
    each = made.rungs[0].delta
    most = filter_epsilon(plan.record_budget, plan.sample_rate, plan.noise_multiplier, each)
    return Ladder(tuple(replace(rung, epsilon=min(rung.epsilon, most)) for rung in made.rungs))
