r"""What one Poisson-sampled step costs: log moments of the privacy loss.

A step releases a sum over a Poisson sample (each record enters with probability q) plus noise. For a
record whose clipped contribution has norm s, and noise of standard deviation σC, write r = s / (σC). The
cost of order λ is a_λ = λ D_{λ+1}, for the worse of the two directions (record added, record removed).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainc, gammaln, logsumexp

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_BLOCK = 1 << 21  # elements of one temporary; bounds memory, not accuracy


def sampled_gaussian_cost(order: int, *, sample_rate: float, ratio: float | Floats) -> Floats:
    r"""Return the cost a_λ of one Poisson-sampled Gaussian step, exactly.

    a_λ(r) = log E_{k ~ Bin(λ+1, q)} exp((k² - k) r² / 2), the left side of Theorem 3 of Triastcyn &
    Faltings 2020. It covers both directions: removing never costs less than adding (Mironov, Talwar &
    Zhang 2019, Theorem 5). The theorem's right side, an upper bound on the other direction that is never
    below the left one, is `tacita.papers.sampled_gaussian_reverse`.

    The k = 0 and k = 1 terms are constant, so the sum is log1p(Σ_{k≥2} pmf(k) expm1(·)), which keeps its
    relative accuracy when r is tiny.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        ratio: r ≥ 0, a number or an array.

    Returns:
        An array of costs, of the shape of `ratio`. Relative error below 1e-9, checked against mpmath.

    Examples:
        >>> round(float(sampled_gaussian_cost(1, sample_rate=1.0, ratio=1.0)), 12)
        1.0
    """
    lam, q, u = squared_ratios(order, sample_rate, ratio)
    k = np.arange(2, lam + 2, dtype=np.float64)
    return gaussian_mixture_cost(log_binomial(lam + 1, k, q), (k * k - k) / 2.0, u)


def subsampled_cost(
    order: int,
    *,
    sample_rate: float,
    forward: Callable[[int], float],
    reverse: Callable[[int], float],
) -> float:
    r"""Return the cost of one Poisson-sampled step of any mechanism with known Rényi divergences.

    With B' the batch that holds the record and B the batch without it (Theorem 4 of Triastcyn & Faltings
    2020, corrected: E_{w~B}[(p_{B'}/p_B)^k] is e^{(k-1) D_k(B'‖B)}, not e^{k D_{k+1}(B'‖B)}):

        with the record vs without:  log E_{k~Bin(λ+1,q)} exp((k-1) D_k(B'‖B))
        without vs with:  the smaller of  log E_{k~Bin(λ,q)} exp(k D_{k+1}(B‖B'))  and  -λ log(1 - q)

    and the cost is the larger of the two. The last term holds because p_B / ((1-q) p_B + q p_{B'}) never
    exceeds 1/(1-q); it keeps the direction finite where the divergence is not.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        forward: k -> D_k(B'‖B), called for k = 2, ..., λ+1.
        reverse: k -> D_k(B‖B'), called for k = 2, ..., λ+1.

    Returns:
        The cost, infinite if it is infinite.
    """
    lam = _check.count("order", order, high=100_000)
    q = _check.rate("sample_rate", sample_rate)
    both = ([_divergence(divergence, k) for k in range(2, lam + 2)] for divergence in (forward, reverse))
    with_record, without = _both_directions(lam, q, *(np.array(values)[:, None] for values in both))
    return float(max(with_record[0], without[0]))


def subsampled_costs(orders: Sequence[int], *, sample_rate: float, forward: Floats, reverse: Floats) -> Floats:
    r"""Return the costs of one Poisson-sampled step for many pairs and orders at once, with one more bound.

    The direction of `subsampled_cost` that is bounded (without vs with) is the mean over B of
    f(u) = ((1-q) + q u)^{-λ} at u = p_{B'}/p_B. The two bounds there are Jensen's, 1/((1-q) + q/y) ≤ (1-q) + q y, and
    f(0). A third is ours, and keeps the q² that the first loses: f'' falls, so (f(u) - 1 + λq(u-1)) / (u-1)² is
    largest at u = 0, and u has mean 1, so

        without vs with  ≤  log(1 + [(1-q)^{-λ} - 1 - λq] [exp(D_2(B'‖B)) - 1]).

    Args:
        orders: E whole numbers λ ≥ 1.
        sample_rate: q in (0, 1].
        forward: D_k(B'‖B) for k = 2, ..., max(orders) + 1, shape (max(orders), m).
        reverse: D_k(B‖B') likewise.

    Returns:
        Shape (E, m), infinite where the cost is.
    """
    q, costs = _check.rate("sample_rate", sample_rate), []
    for order in orders:
        lam = _check.count("an order", order, high=100_000)
        with_record, without = _both_directions(lam, q, forward[:lam], reverse[:lam])
        if q < 1.0:
            tail = np.array([-lam * math.log1p(-q) + np.log(betainc(2.0, lam, q))])  # log[(1-q)^{-λ} - 1 - λq]
            without = np.minimum(without, log_mean_exp(tail, forward[:1].T))
        costs.append(np.maximum(with_record, without))
    return np.stack(costs)


def _both_directions(lam: int, q: float, forward: Floats, reverse: Floats) -> tuple[Floats, Floats]:
    k = np.arange(1.0, lam + 1.0)
    adding, removing = (k * divergences.T for divergences in (forward, reverse))  # k D_{k+1}
    with_record = log_mean_exp(log_binomial(lam + 1, k + 1.0, q), adding)
    without = log_mean_exp(log_binomial(lam, k, q), removing)
    return with_record, np.minimum(without, -lam * math.log1p(-q) if q < 1.0 else np.inf)


def _divergence(divergence: Callable[[int], float], order: int) -> float:
    value = _check.number(f"the divergence of order {order}", divergence(order))
    if not value >= 0.0:
        raise ValueError(f"the divergence of order {order} must be non-negative, got {value:g}.")
    return value


def squared_ratios(order: int, sample_rate: float, ratio: float | Floats) -> tuple[int, float, Floats]:
    """Return λ, q and r², checked.

    Args:
        order: A whole number from 1.
        sample_rate: A number in (0, 1].
        ratio: r ≥ 0, a number or an array.

    Returns:
        The three.
    """
    lam = _check.count("order", order, high=100_000)
    q = _check.rate("sample_rate", sample_rate)
    r = np.asarray(ratio, dtype=np.float64)
    if not (np.isfinite(r) & (r >= 0.0)).all():
        raise ValueError("ratio must be finite and non-negative.")
    return lam, q, r * r


def log_binomial(n: int, k: Floats, q: float) -> Floats:
    """Return the log pmf of Bin(n, q) at k.

    Args:
        n: The number of trials.
        k: Numbers of successes.
        q: The chance of a success, in (0, 1].

    Returns:
        The shape of k.
    """
    if q == 1.0:
        return np.where(k == n, 0.0, -np.inf)
    choose = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return np.asarray(choose + k * math.log(q) + (n - k) * math.log1p(-q))


def log_mean_exp(log_weights: Floats, exponents: Floats) -> Floats:
    """Return log(1 + Σ_k w_k expm1(e_k)), shape (m,), without overflow or cancellation.

    Args:
        log_weights: Shape (K,); the weights that are left out have exponent 0.
        exponents: Shape (m, K), not negative. A row with an infinite one gives infinity.
    """
    infinite = np.isinf(exponents)
    usable = np.where(infinite, 0.0, exponents) if infinite.any() else exponents
    with np.errstate(divide="ignore"):
        large = usable + np.log1p(-np.exp(-np.maximum(usable, 1.0)))
        log_expm1 = np.where(usable > 30.0, large, np.log(np.expm1(np.minimum(usable, 30.0))))
    total = np.logaddexp(0.0, logsumexp(log_weights + log_expm1, axis=1))
    return np.where(infinite.any(axis=1), np.inf, total)


def gaussian_mixture_cost(log_weights: Floats, slopes: Floats, u: Floats) -> Floats:
    """Return log(1 + Σ_k w_k expm1(slope_k u)) for every u, in blocks that bound the memory.

    Args:
        log_weights: log w_k, shape (K,).
        slopes: Shape (K,), not negative.
        u: An array of any shape, not negative.

    Returns:
        The shape of u.
    """
    flat = np.atleast_1d(u).ravel()
    out = np.empty_like(flat)
    block = max(1, _BLOCK // len(slopes))
    for start in range(0, len(flat), block):
        out[start : start + block] = log_mean_exp(log_weights, flat[start : start + block, None] * slopes)
    return out.reshape(np.shape(u))
