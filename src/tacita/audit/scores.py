"""How well scores tell members from others: the statistics of any membership attack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm, rankdata

from tacita import _check
from tacita.audit.membership_result import Caught, Interval, Membership
from tacita.estimators import share_at_most, share_interval

Floats = NDArray[np.float64]

FEWEST = 10  # members, and others: with fewer, intervals are too wide to be of use
_RATES = (0.001, 0.01)
_POINTS = 200
_QUANTILE = float(norm.ppf(0.975))


def compare_scores(
    score_members: Any,
    score_others: Any,
    *,
    references: int = 0,
    epsilon: float | None = None,
    delta: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Membership:
    """Return how well scores tell members from others, for any attack whose higher scores mean a member.

    Args:
        score_members: One finite score for each member.
        score_others: As many, of records that were not trained on.
        references: How many reference models the scores are based on.
        epsilon: The worst case claimed; None for no claim.
        delta: Its delta.
        rng: Decides which records are in which half; None is seeded by the operating system.

    Returns:
        Rates with their intervals, beside what the claim allows.

    Guarantee:
        For independent records and a threshold fixed beforehand, the interval of the success holds in at least 95%
        of cases (the right guesses vary at most as a binomial does, Hoeffding 1956). Here each half takes its threshold
        from the other, which that proof does not cover; for uninformative scores, simulation found the lower limit
        above 50% in 1.4 to 2.5% of cases. The intervals of `caught` are exact for independent records.
        Equal scores count half in the AUC, and are never told apart by a guess.

    Examples:
        >>> found = compare_scores(range(5, 25), range(20), rng=np.random.default_rng(0))
        >>> round(found.auc, 3), found.records, found.state
        (0.719, 20, 'warning')
    """
    claim = checked_claim(epsilon, delta)
    high, low = _scores("score_members", score_members), _scores("score_others", score_others)
    if len(high) != len(low):
        raise ValueError(f"Members and others must be equally many, got {len(high)} and {len(low)}; draw alike.")
    auc, auc_interval = _area(high, low)
    right = _right_guesses(high, low, np.random.default_rng(rng))
    return Membership(
        auc=auc,
        auc_interval=auc_interval,
        success=right / (2 * len(high)),
        success_interval=share_interval(right, 2 * len(high)),
        caught=tuple(_caught(high, low, rate) for rate in _RATES),
        roc=_roc(high, low),
        records=len(high),
        references=references,
        epsilon=claim,
        delta=float(delta),
    )


def _area(members: Floats, others: Floats) -> tuple[float, Interval]:
    """Return the area under the ROC curve, ties counted half, and its interval.

    Hanley and McNeil's variance, taken at the limit itself (Newcombe 2006), is the rank-sum test at 0.5 and does not
    shrink to nothing at 0 or 1; DeLong's makes no assumption on the shape. Each end is the wider of both.
    """
    size = len(members)
    ranks = rankdata(np.concatenate([members, others]))
    beaten = (ranks[:size] - rankdata(members)) / size
    beating = 1.0 - (ranks[size:] - rankdata(others)) / size
    area = float(beaten.mean())
    width = _QUANTILE * math.sqrt((beaten.var(ddof=1) + beating.var(ddof=1)) / size)
    low = max(0.0, min(_area_limit(area, size), area - width))
    high = min(1.0, max(1.0 - _area_limit(1.0 - area, size), area + width))
    return area, (low, high)


def _area_limit(area: float, size: int) -> float:
    def excess(limit: float) -> float:
        spread = limit * (1.0 - limit) / size**2
        spread *= 1.0 + (size - 1.0) * ((1.0 - limit) / (2.0 - limit) + limit / (1.0 + limit))
        return (area - limit) ** 2 - _QUANTILE**2 * spread

    return float(brentq(excess, 0.0, min(area, 1.0 - 1e-9))) if area > 0.0 else 0.0


def _right_guesses(members: Floats, others: Floats, rng: np.random.Generator) -> int:
    """Count right guesses, each half of the records guessed by the threshold that is best for the other half."""
    members, others = rng.permutation(members), rng.permutation(others)
    first, second = slice(None, len(members) // 2), slice(len(members) // 2, None)
    right = 0
    for learn, guess in ((first, second), (second, first)):
        threshold = _best_threshold(members[learn], others[learn])
        right += int((members[guess] >= threshold).sum() + (others[guess] < threshold).sum())
    return right


def _best_threshold(members: Floats, others: Floats) -> float:
    values = np.unique(np.concatenate([members, others]))
    missed = np.searchsorted(np.sort(members), values)
    spared = np.searchsorted(np.sort(others), values)
    return float(values[np.argmax(spared - missed)])


def _caught(members: Floats, others: Floats, rate: float) -> Caught:
    size = len(others)
    allowed = math.floor(rate * size + 1e-9)
    threshold = np.sort(others)[size - 1 - allowed]
    found, alarms = int((members > threshold).sum()), int((others > threshold).sum())
    return Caught(
        asked=rate,
        resolved=allowed > 0,
        false_alarms=alarms,
        limit=share_at_most(allowed, size, confidence=0.95),
        share=found / len(members),
        interval=share_interval(found, len(members)),
    )


def _roc(members: Floats, others: Floats) -> tuple[tuple[float, float], ...]:
    """Return corners of the ROC curve from (0, 0) to (1, 1), thinned evenly in the logarithm of false alarms."""
    values = np.unique(np.concatenate([members, others]))[::-1]
    alarms = len(others) - np.searchsorted(np.sort(others), values)
    found = len(members) - np.searchsorted(np.sort(members), values)
    grid = np.unique(np.geomspace(1, len(others), _POINTS - 2).round())
    at = np.searchsorted(alarms, np.concatenate([[0.0], grid]), side="right") - 1
    kept = np.unique(at[at >= 0])
    points = zip((alarms[kept] / len(others)).tolist(), (found[kept] / len(members)).tolist(), strict=True)
    return ((0.0, 0.0), *points)


def _scores(name: str, values: Any) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) < FEWEST:
        raise ValueError(f"{name} must hold at least {FEWEST} scores, got shape {scores.shape}.")
    if not np.isfinite(scores).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity.")
    return scores


def checked_claim(epsilon: float | None, delta: float) -> float | None:
    """Return a claimed epsilon, None if nothing is claimed."""
    _check.in_range("delta", delta, 0.0, 1.0)
    if epsilon is None:
        return None
    claim = _check.in_range("epsilon", epsilon, 0.0, math.inf)
    return claim if math.isfinite(claim) else None
