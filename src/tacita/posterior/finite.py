"""Mechanisms over the posteriors of datasets of one size, as tables of probabilities, and their calibration.

Nothing is claimed from a lemma: what a table's privacy is, its curve says, by enumeration (`mechanisms.finite`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita._check import PrivacyError
from tacita.mechanisms.finite import FiniteCurve, product_pair
from tacita.posterior.scores import distances, neighbours, states

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.posterior.mechanisms import Request
    from tacita.posterior.models import Dirichlet

_LARGEST_REACH = 500_000
_BEYOND = 1e-36  # more than a Gaussian has beyond 13 standard deviations
_LARGEST_STEP = 1_000_000


def exponential_table(request: Request, prior: Dirichlet, n: int) -> tuple[Floats, FiniteCurve]:
    """Return the table of an exponential mechanism over the states of n records, and its privacy curve.

    Raises:
        PrivacyError: If the curve does not keep what was asked for, or there are too many states to enumerate.
    """
    rows = _exponential(request, prior, n)
    curve = FiniteCurve(rows, neighbours(prior.cells, n))
    if not _kept(curve, request):
        raise PrivacyError(
            f"{request} does not keep its (epsilon, delta) for the prior {prior} and n = {n}: enumeration finds "
            f"delta = {curve.delta(request.epsilon):.3g} at that epsilon. Use calibration='exact'."
        )
    return rows, curve


def geometric_curve(rate: float, step: int = 1, *, cells: int = 1) -> FiniteCurve:
    """Return the exact curve of geometric noise, P(z) proportional to exp(-rate |z|), that hides a step in each cell.

    Outputs below both true numbers, or above both, say the same, so they are merged. Clipping to 0..n merges no others,
    so it changes nothing. Steps of more than a million units are bounded by the coin of the same pure epsilon.
    """
    if step > _LARGEST_STEP:
        rate, step = rate * step, 1
    ends, tail = 1.0 / (1.0 + math.exp(-rate)), math.exp(-rate * step) / (1.0 + math.exp(-rate))
    between = math.tanh(0.5 * rate) * np.exp(-rate * np.arange(1, step))
    row = np.concatenate([[ends], between, [tail]])
    pair = _normalised(np.stack([row, row[::-1]]))
    return FiniteCurve(pair if cells == 1 else product_pair(pair, pair), np.array([[0, 1]]))


def laplace_curve(scale: float, *, cells: int = 1) -> FiniteCurve:
    """Return the exact curve of rounded Laplace noise that hides a step of 1 in each of one or two cells."""
    near, far = 0.5 * math.exp(-0.5 / scale), 0.5 * math.exp(-1.5 / scale)
    inner, centre = near - far, 1.0 - 2.0 * near
    pair = np.array([[near, centre, inner, far], [far, inner, centre, near]])
    return FiniteCurve(pair if cells == 1 else product_pair(pair, pair), np.array([[0, 1]]))


def gaussian_curve(sd: float, step: int) -> FiniteCurve:
    """Return the exact curve of discrete Gaussian noise that hides a step of this many units in one number."""
    reach = math.ceil(13.0 * sd) + 1
    if reach > _LARGEST_REACH:
        raise PrivacyError(
            f"Gaussian noise of {sd:.3g} units is too wide to be certified exactly; use a coarser step (a hundredth of "
            "the clamped range is enough), or geometric noise."
        )
    places = np.arange(-reach, reach + step + 1)
    pair = _normalised(np.exp(-0.5 * (np.stack([places, places - step]) / sd) ** 2))
    beyond = np.array([[_BEYOND, 0.0], [0.0, _BEYOND]])
    return FiniteCurve(np.concatenate([pair, beyond], axis=1), np.array([[0, 1]]))


@lru_cache(maxsize=64)
def gaussian_sd(epsilon: float, delta: float, step: int) -> float:
    """Return about the smallest standard deviation, in units, that hides a step within (epsilon, delta)."""
    low = high = 0.5 * step / epsilon
    while gaussian_curve(high, step).delta(epsilon) > delta:
        low, high = high, 2.0 * high
    while high > 1.0005 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_curve(middle, step).delta(epsilon) <= delta else (middle, high)
    return high


def geometric_rows(n: int, epsilon: float) -> Floats:
    """Return two-sided geometric noise on a count, clipped to 0..n.

    Clipping loses nothing: a count beyond an end says no more about the true one than the end does.
    """
    decay = math.exp(-epsilon)
    gaps = np.abs(np.subtract.outer(np.arange(n + 1), np.arange(n + 1)))
    rows = np.exp(-epsilon * gaps) * ((1.0 - decay) / (1.0 + decay))
    ends = np.exp(-epsilon * np.arange(n + 1)) / (1.0 + decay)
    rows[:, 0], rows[:, n] = ends, ends[::-1]
    return _normalised(rows)


def laplace_rows(n: int, scale: float) -> Floats:
    """Return Laplace noise on a count, rounded to whole numbers and clipped to 0..n."""
    gaps = np.abs(np.subtract.outer(np.arange(n + 1), np.arange(n + 1)))
    rows = rounded_laplace(gaps, scale)
    ends = 0.5 * np.exp(-(np.arange(n + 1) - 0.5) / scale)
    ends[0] = 1.0 - 0.5 * math.exp(-0.5 / scale)
    rows[:, 0], rows[:, n] = ends, ends[::-1]
    return _normalised(rows)


def rounded_laplace(gaps: Counts, scale: float) -> Floats:
    """Return the probability that Laplace noise, rounded, is a whole number of this size."""
    apart = 0.5 * np.exp(-(np.asarray(gaps) - 0.5) / scale) * -math.expm1(-1.0 / scale)
    return np.where(np.asarray(gaps) == 0, -math.expm1(-0.5 / scale), apart)


def exponential_rows(gaps: Floats, sensitivity: Floats, strength: float) -> Floats:
    """Return the exponential mechanism: row x has probabilities proportional to exp(-strength d(x, r) / S(x))."""
    logs = -strength * gaps / np.maximum(sensitivity, 1e-12)[:, None]
    return _normalised(np.exp(logs - logs.max(axis=1, keepdims=True)))


def sensitivities(gaps: Floats, cells: int, n: int, request: Request) -> Floats:
    """Return S(x) for every state: the global one everywhere, or the smooth one.

    Smooth: S(x) = max over x' of LS(x') exp(-gamma d(x, x')), with d the number of replaced records.
    """
    local = local_sensitivity(gaps, cells, n)
    if request.sensitivity == "global":
        return np.full_like(local, local.max())
    pairs = neighbours(cells, n)
    decay = math.exp(-smoothness(request.epsilon, request.delta, n))
    smooth = local.copy()
    for _ in range(n):
        before = smooth.copy()
        np.maximum.at(smooth, pairs[:, 0], decay * before[pairs[:, 1]])
        np.maximum.at(smooth, pairs[:, 1], decay * before[pairs[:, 0]])
        if (smooth == before).all():
            break
    return smooth


def local_sensitivity(gaps: Floats, cells: int, n: int) -> Floats:
    """Return the largest change of any candidate's score when one record of the state's dataset is replaced."""
    pairs = neighbours(cells, n)
    change = np.array([np.abs(gaps[i] - gaps[j]).max() for i, j in pairs])
    local = np.zeros(len(gaps))
    np.maximum.at(local, pairs[:, 0], change)
    np.maximum.at(local, pairs[:, 1], change)
    return local


def smoothness(epsilon: float, delta: float, n: int) -> float:
    """Return the gamma of the smooth sensitivity."""
    return math.log1p(-epsilon / (2.0 * math.log(delta / (2.0 * (n + 1)))))


def _exponential(request: Request, prior: Dirichlet, n: int) -> Floats:
    states(prior.cells, n)  # refuses what is too large before any work
    gaps = distances(prior, n, request.score)
    scale = sensitivities(gaps, prior.cells, n, request)
    if request.calibration == "nominal":
        return exponential_rows(gaps, scale, request.epsilon / 2.0)
    pairs = neighbours(prior.cells, n)

    def table(strength: float) -> Floats:
        return exponential_rows(gaps, scale, strength)

    return table(_strongest(lambda s: _kept(FiniteCurve(table(s), pairs), request), request.epsilon / 2.0))


def _strongest(kept: Callable[[float], bool], start: float) -> float:
    """Return about the largest strength that is kept, within one part in a thousand."""
    low, high = start, 2.0 * start
    while not kept(low):
        low, high = low / 2.0, low
    while kept(high) and high < 1e4 * start:
        low, high = high, 2.0 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def _kept(curve: FiniteCurve, request: Request) -> bool:
    if request.delta == 0.0:
        return curve.epsilon(0.0) <= request.epsilon
    return curve.delta(request.epsilon) <= request.delta


def _normalised(rows: Floats) -> Floats:
    rows = rows / rows.sum(axis=1, keepdims=True)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
