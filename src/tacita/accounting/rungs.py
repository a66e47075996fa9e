r"""Rungs: several declared budgets, and for each record the smallest one that it stayed within.

One figure for everybody is ruled by the most exposed. Declare budgets B_1, …, B_K before the first step, the last one
the plan's, with (ε_k, δ_k) each and Σ δ_k = δ. The rung R(x, o) of a record x on a path o of noisy outputs is the
smallest k whose budget x never passed. Then, for every event S and in both directions,

    P(S) ≤ Σ_k e^{ε_k} Q(S, R = k) + δ.

Nobody is retired and nothing about the run changes: the rung is a function of the record and the path, and records
that were not trained on have one as well. The proof is in docs/explanation/theory/filters.md#rungs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.accounting.filters import TokenBudget, token_budget, token_profile
from tacita.accounting.worst import worst_case
from tacita.estimators import share_at_least

if TYPE_CHECKING:
    from tacita._check import Counts

FRACTIONS = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Rung:
    """One declared budget.

    Attributes:
        fraction: Of the squared norms that the plan allows.
        budget: What a record on this rung spent at most.
        epsilon: ε_k.
        delta: δ_k.
    """

    fraction: float
    budget: TokenBudget
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Ladder:
    """Rungs from the smallest budget to the plan's; `ladder` declares them."""

    rungs: tuple[Rung, ...]

    def rung_of(self, counts: Counts) -> Counts:
        """Return each record's rung, as a position in `rungs`.

        Args:
            counts: Each record's steps at each norm level, shape (records, levels).
        """
        within = [rung.budget.within(counts) for rung in self.rungs[:-1]]
        return np.asarray(np.argmax([*within, np.ones(len(counts), dtype=bool)], axis=0))

    def counts_of(self, counts: Counts) -> tuple[int, ...]:
        """Return how many records ended on each rung; exact, and so as sensitive as the records."""
        return tuple(np.bincount(self.rung_of(counts), minlength=len(self.rungs)).tolist())

    def shares(self, counts: Counts, *, gamma: float = 1e-6) -> tuple[float, ...]:
        """Return, for each rung, at least which share of the population stands on it or below.

        Args:
            counts: The steps of records drawn from the population and not trained on.
            gamma: The probability with which any of the shares may be too large.

        Returns:
            Shares that do not fall; the last is 1.

        Guarantee:
            For the path that was taken: except with probability `gamma` over who was followed, all shares hold
            (one-sided Clopper–Pearson limits, gamma over the number of rungs each).
        """
        each = _check.probability("gamma", gamma) / len(self.rungs)
        own = self.rung_of(counts)
        found = [
            share_at_least(int(np.count_nonzero(own <= k)), len(own), confidence=1.0 - each)
            for k in range(len(self.rungs) - 1)
        ]
        return (*found, 1.0)


def check_fractions(name: str, fractions: Sequence[float]) -> tuple[float, ...]:
    """Return the fractions at which rungs are declared, checked."""
    found = tuple(_check.in_range(f"a fraction in {name}", part, 0.0, 1.0) for part in fractions)
    *lower, last = found or (0.0,)
    if last != 1.0 or not all(0.0 < part <= 0.5 for part in lower) or sorted(set(lower)) != lower:
        raise ValueError(f"{name} must be fractions that increase, are at most 0.5, and end with 1; got {found}.")
    return found


def ladder(
    *,
    steps: int,
    sample_rate: float,
    noise_multiplier: float,
    delta: float,
    fractions: tuple[float, ...] = FRACTIONS,
) -> Ladder:
    """Return rungs at fractions of what the plan allows, with equal shares of delta.

    A rung at fraction f allows squared norms that add up to f times the plan's: a third of them in steps at the clip
    norm, a third at half of it, and a third in all other steps. Training starts with large gradients and ends with
    small ones; a budget of all steps at one norm, or of some at the clip norm, would be passed by records that leak
    less.

    Args:
        steps: The planned number of steps.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.
        delta: δ in (0, 1), for all rungs together. The figure for anyone keeps all of delta and does not pay for rungs.
        fractions: Increasing, up to a half, then 1 for the plan itself; declared before the first step.

    Returns:
        The rungs.

    Guarantee:
        In the weak notion, for every record and over every path, however norms were chosen along the way.

    Examples:
        >>> made = ladder(steps=2000, sample_rate=0.01, noise_multiplier=1.0, delta=1e-5)
        >>> [f"{rung.epsilon:.2f}" for rung in made.rungs]
        ['0.93', '1.22', '1.86', '2.81']
    """
    declared = check_fractions("fractions", fractions)
    each = _check.probability("delta", delta) / len(declared)
    rungs = []
    for part in declared[:-1]:
        full, half = part / 3.0, 4.0 * part / 3.0
        rest = 1.0 - full - half
        budget = token_profile({1.0: full, 0.5: half} | {math.sqrt(full / rest): rest}, steps=steps)
        epsilon = budget.epsilon(each, sample_rate=sample_rate, noise_multiplier=noise_multiplier)
        rungs.append(Rung(part, budget, epsilon, each))
    plan = token_budget({1.0: steps})
    whole = worst_case(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps, delta=each)
    rungs.append(Rung(1.0, plan, whole.epsilon, each))
    return Ladder(tuple(rungs))
