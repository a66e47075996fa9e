"""The exponential mechanism over the posteriors of datasets of one size, as a table of probabilities.

No lemma is relied on: the privacy curve of a table is found by enumeration (`tacita.mechanisms.finite`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita._check import PrivacyError
from tacita._search import boundary
from tacita.mechanisms.finite import FiniteCurve
from tacita.posterior.noise.protocol import normalised
from tacita.posterior.scores import distances, neighbours, states

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.posterior.mechanisms._exponential import Exponential
    from tacita.posterior.models import Dirichlet


@lru_cache(maxsize=4)
def exponential_table(mechanism: Exponential, prior: Dirichlet, n: int) -> tuple[Floats, FiniteCurve]:
    """Return the table of an exponential mechanism over the states of n records, and its privacy curve.

    Args:
        mechanism: Its budget and options.
        prior: The prior of the posteriors.
        n: The public number of records.

    Returns:
        A row of probabilities for each state, and the curve.

    Raises:
        PrivacyError: If the curve does not keep what was asked for, or there are too many states to enumerate.
    """
    rows = _exponential(mechanism, prior, n)
    curve = FiniteCurve(rows, neighbours(prior.cells, n))
    if not _kept(curve, mechanism):
        raise PrivacyError(
            f"{mechanism} does not keep its (epsilon, delta) for the prior {prior} and n = {n}: enumeration finds "
            f"delta = {curve.delta(mechanism.epsilon):.3g} at that epsilon. Use calibration='exact'."
        )
    return rows, curve


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


def _exponential(mechanism: Exponential, prior: Dirichlet, n: int) -> Floats:
    states(prior.cells, n)  # refuses what is too large before any work
    gaps = distances(prior, n, mechanism.score)
    scale = sensitivities(gaps, prior.cells, n, mechanism)
    if mechanism.calibration == "nominal":
        return exponential_rows(gaps, scale, mechanism.epsilon / 2.0)
    pairs = neighbours(prior.cells, n)

    def table(strength: float) -> Floats:
        return exponential_rows(gaps, scale, strength)

    return table(_strongest(lambda s: _kept(FiniteCurve(table(s), pairs), mechanism), mechanism.epsilon / 2.0))


def _strongest(kept: Callable[[float], bool], start: float) -> float:
    """Return about the largest strength that keeps the budget, within one part in a thousand."""
    low, high = start, 2.0 * start
    while not kept(low):
        low, high = low / 2.0, low
    while kept(high) and high < 1e4 * start:
        low, high = high, 2.0 * high
    return boundary(kept, fails=high, at=low, rtol=0.001, geometric=True)


def _kept(curve: FiniteCurve, mechanism: Exponential) -> bool:
    if mechanism.delta == 0.0:
        return curve.epsilon(0.0) <= mechanism.epsilon
    return curve.delta(mechanism.epsilon) <= mechanism.delta
