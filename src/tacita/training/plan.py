"""What is declared before the first step: public constants, none of them a function of the data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import MomentsBudget, TokenBudget, calibrate, worst_case, worst_curve
from tacita.accounting.filters import Budget
from tacita.accounting.state import budget_from, budget_state
from tacita.accounting.worst import check_mechanism
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.training.step import check_clip_norm, positive

Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The mechanism of a run and what was promised about it.

    Attributes:
        clip_norm: C, the largest norm of a record's contribution.
        noise_multiplier: Noise standard deviation over C.
        sample_rate: The chance with which each record enters a step.
        steps: How many steps there may be at most.
        batch_size: What the noisy sum is divided by; a declared constant.
        delta: At which delta running figures are given.
        individual_every: Every record is measured, and gets its own bound, once in so many steps.
        record_budget: What a record may spend before it is held back.
        certificate: The budget of a conformal certificate.
        tolerated: How many followed records may pass it.
        unit: What is added or removed, and clipped: a record, or a client with all it holds.
    """

    clip_norm: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    batch_size: float
    delta: float = 1e-5
    individual_every: int | None = None
    record_budget: Budget | None = None
    certificate: Budget | None = None
    tolerated: int = 0
    unit: str = "record"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. A plan for records does not name its unit, as before there were others."""
        plain = {name: value for name, value in asdict(self).items() if (name, value) != ("unit", "record")}
        return {**plain, **{k: budget_state(getattr(self, k)) for k in ("record_budget", "certificate")}}

    def frozen(self) -> dict[str, float | int | str]:
        """Return what a ledger freezes before the first step: everything, as numbers and texts."""
        return {name: v if isinstance(v, int | float) else json.dumps(v) for name, v in self.to_dict().items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild what `to_dict` wrote."""
        try:
            return cls(**{**data, **{k: budget_from(data[k]) for k in ("record_budget", "certificate")}})
        except (KeyError, TypeError, AttributeError) as error:
            raise PrivacyError(f"The run's plan is damaged: {error}") from error

    def worst(self, steps: int, delta: float, method: str = "pld") -> Guarantee:
        """Return the worst case after `steps` steps: that of the filter, where a filter is the tighter one."""
        found = worst_case(
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            steps=steps,
            delta=delta,
            method=method,  # type: ignore[arg-type]
        )
        plain = replace(found, unit=self.unit)
        if self.record_budget is None or method != "pld":
            return plain
        epsilon = filter_epsilon(self.record_budget, self.sample_rate, self.noise_multiplier, delta)
        if epsilon >= plain.epsilon:
            return plain
        kind = "token filter" if isinstance(self.record_budget, TokenBudget) else "moments filter"
        return Guarantee(
            **{
                **{f: getattr(plain, f) for f in ("kind", "delta", "neighbours", "unit", "sampling", "mechanism")},
                "epsilon": epsilon,
                "method": kind,
                "assumptions": (*plain.assumptions, "every record is held to its declared budget (enforced)"),
                "publishable": True,
            }
        )

    def running(self, steps: int, delta: float) -> float:
        """Return the worst-case epsilon so far by our own curves: for progress, a hundred times quicker."""
        curve = worst_curve(steps, sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)
        epsilon = float(curve.epsilon(delta)[0])
        if self.record_budget is None:
            return epsilon
        return min(epsilon, filter_epsilon(self.record_budget, self.sample_rate, self.noise_multiplier, delta))


def make_plan(
    *,
    size: int,
    sample_rate: float,
    steps: int,
    clip_norm: float,
    noise_multiplier: float | None,
    target: Pair | None,
    budget: Pair | None,
    batch_size: float | None,
    delta: float,
    individual_every: int | None,
    record_budget: Budget | None,
    certificate: Budget | None,
    tolerated: int,
) -> Plan:
    """Check and complete what the user declared: calibrate the noise, cut the steps to the budget."""
    rate, planned = _check.rate("sample_rate", sample_rate), _check.count("steps", steps)
    clip = check_clip_norm(clip_norm)
    _check.probability("delta", delta)
    _check_budgets(individual_every, record_budget, certificate, tolerated)
    if (noise_multiplier is None) == (target is None):
        raise ValueError("Give either noise_multiplier or target=(epsilon, delta), and not both.")
    if target is not None:
        noise = _calibrated(_pair("target", target), rate, planned, record_budget)
    else:
        _, noise, _ = check_mechanism(rate, noise_multiplier, planned)
    if budget is not None:
        planned = _within(_pair("budget", budget), rate, noise, planned)
    return Plan(
        clip_norm=clip,
        noise_multiplier=noise,
        sample_rate=rate,
        steps=planned,
        batch_size=_divisor(batch_size, rate, size),
        delta=delta,
        individual_every=individual_every,
        record_budget=record_budget,
        certificate=certificate,
        tolerated=tolerated,
    )


def filter_epsilon(budget: Budget, rate: float, noise: float, delta: float) -> float:
    """Return the worst-case epsilon of a record that is held to a budget."""
    epsilon = budget.epsilon(delta, sample_rate=rate, noise_multiplier=noise, notion="weak")
    return max(epsilon, SMALLEST_EPSILON)


def _check_budgets(every: int | None, record: Budget | None, certificate: Budget | None, tolerated: int) -> None:
    if every is not None:
        _check.count("individual_every", every)
    for name, budget in (("record_budget", record), ("certificate", certificate)):
        if budget is not None and not isinstance(budget, MomentsBudget | TokenBudget):
            raise TypeError(f"{name} must come from token_profile, token_budget or moments_budget.")
    if record is not None and every is None:
        raise ValueError("record_budget needs individual_every=k: a budget is kept by bounds that are measured.")
    _check.count("tolerated", tolerated, low=0)


def _pair(name: str, value: object) -> Pair:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (epsilon, delta), got {value!r}.")
    return _check.in_range(f"{name}'s epsilon", value[0], 1e-6, 1e6), _check.probability(f"{name}'s delta", value[1])


def _calibrated(target: Pair, rate: float, steps: int, record: Budget | None) -> float:
    plain = calibrate(epsilon=target[0], delta=target[1], sample_rate=rate, steps=steps).noise_multiplier
    if not isinstance(record, TokenBudget):
        return plain
    low, high = 0.05, plain  # a filter never costs more than it was without
    for _ in range(40):
        middle = math.sqrt(low * high)
        fits = filter_epsilon(record, rate, middle, target[1]) <= target[0]
        low, high = (low, middle) if fits else (middle, high)
        if high / low < 1.0 + 1e-4:
            break
    return high


def _within(budget: Pair, rate: float, noise: float, steps: int) -> int:
    """Return how many of the steps stay within a worst-case budget: known before the first one."""

    def fits(count: int) -> bool:
        spent = worst_case(sample_rate=rate, noise_multiplier=noise, steps=count, delta=budget[1])
        return spent.epsilon <= budget[0]

    def surely_fits(count: int) -> bool:
        curve = worst_curve(count, sample_rate=rate, noise_multiplier=noise)
        return float(curve.epsilon(budget[1])[0]) <= budget[0]

    low, high = 0, steps + 1  # our own curves are quick and a hair above; the last few steps are settled by PLD
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if surely_fits(middle) else (low, middle)
    while low < steps and fits(low + 1):
        low += 1
    if low == 0:
        raise PrivacyError(
            f"The budget of epsilon {budget[0]:g} at delta {budget[1]:g} does not pay for a single step; raise "
            "noise_multiplier or lower sample_rate."
        )
    return low


def _divisor(batch_size: float | None, rate: float, size: int) -> float:
    """Return the declared batch size, or the whole number that sample_rate was made from.

    A rate of 256/60000 gives 256 for 60000 records and for any dataset that differs by a few. Where the product
    is not near a whole number the divisor would depend on the data, so it has to be declared. Two neighbouring
    datasets never get two divisors: their products differ by less than a half, and both must be within a
    quarter of the same number.
    """
    if batch_size is not None:
        return positive("batch_size", batch_size)
    product = rate * size
    nearest = round(product)
    if rate >= 0.5 or nearest < 1 or abs(product - nearest) > 0.25:
        raise PrivacyError(
            "batch_size cannot be told from sample_rate without looking at the data: declare the planned batch size, "
            "for example batch_size=256. The noisy sum is divided by it."
        )
    return float(nearest)
