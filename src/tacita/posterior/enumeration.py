"""The posteriors that datasets of one size can lead to, their distances, and the exponential mechanism over them.

`states` lists every vector of counts with sum n; the posterior of counts k under the prior a is Dirichlet(a + k).
Distances only decide where a mechanism puts its probability: no privacy statement depends on their accuracy, and no
lemma is relied on, as the privacy curve of a table is found by enumeration (`tacita.mechanisms.finite`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainc, betaln, digamma, expit, gammaln, xlogy

from tacita._check import PrivacyError
from tacita._search import boundary
from tacita.mechanisms.finite import FiniteCurve
from tacita.posterior.mechanisms._exponential import MOST_STATES, TWO_CELL_SCORES, Exponential
from tacita.posterior.noise.protocol import normalised

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.posterior.models import Dirichlet


def number_of_states(cells: int, n: int) -> int:
    """Return how many vectors of `cells` counts add up to n."""
    return math.comb(n + cells - 1, cells - 1)


@lru_cache(maxsize=8)
def states(cells: int, n: int) -> Counts:
    """Return every vector of counts that adds up to n; with two cells the first one rises from 0 to n."""
    total = number_of_states(cells, n)
    if total > MOST_STATES:
        raise PrivacyError(
            f"{n} records in {cells} categories have {total} possible posteriors, more than the {MOST_STATES} whose "
            "table can be certified by enumeration; use geometric noise, which needs no table."
        )
    if cells == 2:
        return np.stack([np.arange(n + 1), n - np.arange(n + 1)], axis=1)
    cuts = np.array(list(combinations_with_replacement(range(n + 1), cells - 1)), dtype=np.int64)
    return np.diff(cuts, axis=1, prepend=0, append=n)


@lru_cache(maxsize=8)
def neighbours(cells: int, n: int) -> Counts:
    """Return every pair of states that replacing one record can lead to, each once."""
    listed = states(cells, n)
    index = {tuple(row): i for i, row in enumerate(listed.tolist())}
    pairs = []
    for source, target in combinations(range(cells), 2):  # the way back is the same pair
        before = np.flatnonzero(listed[:, source] > 0)
        moved = listed[before]
        moved[:, source] -= 1
        moved[:, target] += 1
        pairs += [(i, index[tuple(row)]) for i, row in zip(before, moved.tolist(), strict=True)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def predictive(prior: Dirichlet, n: int) -> Floats:
    """Return the probability of each state before any data: Dirichlet-multinomial."""
    alphas = np.array(prior.alphas)
    counts = states(prior.cells, n)
    logs = (gammaln(alphas + counts) - gammaln(alphas) - gammaln(counts + 1)).sum(axis=1)
    logs += gammaln(n + 1) + gammaln(alphas.sum()) - gammaln(alphas.sum() + n)
    chances = np.exp(logs)
    return np.asarray(chances / chances.sum())


def distances(prior: Dirichlet, n: int, score: str) -> Floats:
    """Return the distance of each state's posterior from each other's.

    Args:
        prior: The prior.
        n: The public number of records.
        score: Which distance.

    Raises:
        PrivacyError: If the distance is not available for so many categories.
    """
    if score in TWO_CELL_SCORES and prior.cells != 2:
        raise PrivacyError(
            f"score={score!r} is there for two categories only: with {prior.cells} it has no closed form. Use "
            "'hellinger', 'squared_hellinger' or 'kl'."
        )
    made = _SCORES[score](prior, n)
    np.fill_diagonal(made, 0.0)
    return made


def _log_normaliser(parameters: Floats) -> Floats:
    return np.asarray(gammaln(parameters).sum(axis=-1) - gammaln(parameters.sum(axis=-1)))


def _squared_hellinger(prior: Dirichlet, n: int) -> Floats:
    counts = states(prior.cells, n)
    alphas = np.array(prior.alphas)
    own = _log_normaliser(alphas + counts)
    halves = [gammaln(a + np.arange(2 * n + 1) / 2) for a in prior.alphas]  # a sum of two counts is a whole number
    middle = np.full((len(counts), len(counts)), -gammaln(alphas.sum() + n))
    for cell, table in enumerate(halves):
        middle += table[counts[:, cell][:, None] + counts[:, cell][None, :]]
    middle -= 0.5 * (own[:, None] + own[None, :])
    return np.asarray(-np.expm1(np.minimum(middle, 0.0)))


def _kl(prior: Dirichlet, n: int) -> Floats:
    """Return KL(row's posterior, column's posterior)."""
    parameters: Floats = np.array(prior.alphas) + states(prior.cells, n).astype(np.float64)
    own = _log_normaliser(parameters)
    slopes = digamma(parameters) - digamma(parameters.sum(axis=1, keepdims=True))
    linear = (parameters * slopes).sum(axis=1)[:, None] - slopes @ parameters.T
    return np.asarray(np.maximum(linear - own[:, None] + own[None, :], 0.0))


def _total_variation(prior: Dirichlet, n: int) -> Floats:
    """The ratio of two densities is monotone in the share, so they cross once."""
    first, second = (np.array(prior.alphas) + states(2, n)).T
    own = betaln(first, second)
    steps = np.arange(n + 1)[:, None] - np.arange(n + 1)[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        crossing = expit(np.where(steps == 0, 0.0, (own[:, None] - own[None, :]) / steps))
    mine = betainc(first[:, None], second[:, None], crossing)
    return np.asarray(np.abs(mine - betainc(first[None, :], second[None, :], crossing)))


def _on_grid(prior: Dirichlet, n: int, rule: Callable[[Floats, Floats, Floats], Floats]) -> Floats:
    """Integrate over a grid in the log-odds, stretched so that long tails are reached in few points."""
    first, second = (np.array(prior.alphas) + states(2, n)).T
    reach = math.asinh(40.0 / min(1.0, *prior.alphas) + math.log(n + 1.0))
    points = np.arange(-reach, reach, min(0.02, 0.25 / math.sqrt(n + 1.0)))
    odds = np.sinh(points)
    weights = np.cosh(points) * (points[1] - points[0])
    logs = first[:, None] * -np.logaddexp(0.0, -odds) + second[:, None] * -np.logaddexp(0.0, odds)
    masses = np.exp(logs - betaln(first, second)[:, None]) * weights
    masses /= masses.sum(axis=1, keepdims=True)
    made = np.zeros((n + 1, n + 1))
    for row in range(n + 1):
        inside = masses[row] > 1e-20  # one stretch of the grid; outside of it only the other posterior counts
        here = slice(int(inside.argmax()), len(points) - int(inside[::-1].argmax()))
        others = masses[row + 1 :, here]
        made[row, row + 1 :] = rule(masses[row, here], others, 1.0 - others.sum(axis=1))
    return np.sqrt(np.maximum(made + made.T, 0.0))


def _jensen_shannon(one: Floats, others: Floats, outside: Floats) -> Floats:
    """The divergence; its square root is a metric."""
    middle = 0.5 * (one + others)
    inner = xlogy(one, one / middle) + xlogy(others, others / middle)
    return np.asarray(0.5 * (inner.sum(axis=1) + math.log(2.0) * outside))


def _lecam(one: Floats, others: Floats, outside: Floats) -> Floats:
    """Half the triangular discrimination; its square root is a metric."""
    return np.asarray(0.5 * (((one - others) ** 2 / (one + others)).sum(axis=1) + outside))


_SCORES: dict[str, Callable[[Dirichlet, int], Floats]] = {
    "hellinger": lambda prior, n: np.sqrt(_squared_hellinger(prior, n)),
    "squared_hellinger": _squared_hellinger,
    "kl": _kl,
    "total_variation": _total_variation,
    "jensen_shannon": lambda prior, n: _on_grid(prior, n, _jensen_shannon),
    "lecam": lambda prior, n: _on_grid(prior, n, _lecam),
}


@lru_cache(maxsize=4)
def exponential_table(mechanism: Exponential, prior: Dirichlet, n: int) -> FiniteCurve:
    """Return the table of an exponential mechanism over the states of n records, with its privacy curve.

    Args:
        mechanism: Its budget and options.
        prior: The prior of the posteriors.
        n: The public number of records.

    Returns:
        The curve, whose `rows` are the table: the probabilities of each state, given each.

    Raises:
        PrivacyError: If the curve does not keep what was asked for, or there are too many states to enumerate.
    """
    gaps = distances(prior, n, mechanism.score)
    scale, pairs = sensitivities(gaps, prior.cells, n, mechanism), neighbours(prior.cells, n)

    def curve(strength: float) -> FiniteCurve:
        return FiniteCurve(exponential_rows(gaps, scale, strength), pairs)

    def kept(found: FiniteCurve) -> bool:
        if mechanism.delta == 0.0:
            return found.epsilon(0.0) <= mechanism.epsilon
        return found.delta(mechanism.epsilon) <= mechanism.delta

    strength = mechanism.epsilon / 2.0
    if mechanism.calibration == "exact":
        strength = _strongest(lambda tried: kept(curve(tried)), strength)
    found = curve(strength)
    if not kept(found):
        raise PrivacyError(
            f"{mechanism} does not keep its (epsilon, delta) for the prior {prior} and n = {n}: enumeration finds "
            f"delta = {found.delta(mechanism.epsilon):.3g} at that epsilon. Use calibration='exact'."
        )
    return found


def exponential_rows(gaps: Floats, sensitivity: Floats, strength: float) -> Floats:
    """Return the exponential mechanism: row x has probabilities proportional to exp(-strength d(x, r) / S(x)).

    Args:
        gaps: The distances d between states.
        sensitivity: S, one for each state.
        strength: How strongly near states are preferred.
    """
    logs = -strength * gaps / np.maximum(sensitivity, 1e-12)[:, None]
    return normalised(np.exp(logs - logs.max(axis=1, keepdims=True)))


def sensitivities(gaps: Floats, cells: int, n: int, mechanism: Exponential) -> Floats:
    """Return S(x) for every state: the global one everywhere, or the smooth one.

    Smooth: S(x) = max over x' of LS(x') exp(-gamma d(x, x')), with d the number of replaced records.

    Args:
        gaps: The distances between states.
        cells: The number of categories.
        n: The public number of records.
        mechanism: Which sensitivity, and its budget.
    """
    local = local_sensitivity(gaps, cells, n)
    if mechanism.sensitivity == "global":
        return np.full_like(local, local.max())
    pairs = neighbours(cells, n)
    decay = math.exp(-smoothness(mechanism.epsilon, mechanism.delta, n))
    smooth = local.copy()
    for _ in range(n):
        before = smooth.copy()
        np.maximum.at(smooth, pairs[:, 0], decay * before[pairs[:, 1]])
        np.maximum.at(smooth, pairs[:, 1], decay * before[pairs[:, 0]])
        if (smooth == before).all():
            break
    return smooth


def local_sensitivity(gaps: Floats, cells: int, n: int) -> Floats:
    """Return the largest change of any candidate's score when one record of the state's dataset is replaced.

    Args:
        gaps: The distances between states.
        cells: The number of categories.
        n: The public number of records.
    """
    pairs = neighbours(cells, n)
    change = np.array([np.abs(gaps[i] - gaps[j]).max() for i, j in pairs])
    local = np.zeros(len(gaps))
    np.maximum.at(local, pairs[:, 0], change)
    np.maximum.at(local, pairs[:, 1], change)
    return local


def smoothness(epsilon: float, delta: float, n: int) -> float:
    """Return the gamma of the smooth sensitivity.

    Args:
        epsilon: The privacy loss.
        delta: The failure probability.
        n: The public number of records.
    """
    return math.log1p(-epsilon / (2.0 * math.log(delta / (2.0 * (n + 1)))))


def _strongest(kept: Callable[[float], bool], start: float) -> float:
    """Return about the largest strength that keeps the budget, within one part in a thousand."""
    low, high = start, 2.0 * start
    while not kept(low):
        low, high = low / 2.0, low
    while kept(high) and high < 1e4 * start:
        low, high = high, 2.0 * high
    return boundary(kept, fails=high, at=low, rtol=0.001, geometric=True)
