r"""Rényi divergences of diagonal Gaussians, for many pairs and orders at once, and the most they can be in a box.

Per dimension, with λ = α - 1 and x = s_1²/s_2² - 1 (Gil, Alajaji & Linder, Information Sciences 249, 2013),

    D_α(1‖2) = [h(x) + h(-λx)/λ] / 2 + α (m_1 - m_2)² / (2 s_2² (1 - λx)),   h(u) = u - log(1 + u) ≥ 0,

finite only where λx < 1, that is s_1²/s_2² < α/(α - 1), in every dimension; elsewhere, and on that border, infinite.
It is the textbook form, rearranged into terms that are never negative, so nothing cancels when the scales are alike.
`mechanisms.diagonal_gaussian_renyi` is the same for one pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betainc, logsumexp
from scipy.stats import binom

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_ROUND_OFF = 2e-15  # of λx: near the border of existence the larger x is taken
_MARGIN = 1e-6  # by which a box is widened, for parameters that were held to it in single precision
_NEAR = 0.1  # below this |s_1/s_2 - 1| or |λx|, h comes from its series
_LARGEST = 1e30  # of a box: draws are kept in single precision
_TERMS = 1.0 / np.arange(3, 25, 2)  # of the series of h; the first left out is below 1e-25


class DivergedError(ValueError):
    """Parameters that are no numbers any more."""


@dataclass(frozen=True, eq=False)
class Gaussians:
    """One Gaussian with diagonal covariance for each row.

    Attributes:
        means: Shape (m, d).
        scales: Shape (m, d), standard deviations.

    Raises:
        ValueError: If the shapes differ, or a scale is not positive.
        DivergedError: If a number is not finite.
    """

    means: Floats
    scales: Floats

    def __post_init__(self) -> None:
        for name in ("means", "scales"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.means.shape != self.scales.shape or self.means.ndim != 2 or self.means.size == 0:
            raise ValueError(
                f"means and scales must have one shape (m, d), got {self.means.shape} and {self.scales.shape}."
            )
        if not (np.isfinite(self.means) & np.isfinite(self.scales)).all():
            raise DivergedError("means and scales must be finite, got NaN or infinity: a training diverged.")
        if not (self.scales > 0.0).all():
            raise ValueError("scales must be positive.")


@dataclass(frozen=True, eq=False, kw_only=True)
class Box:
    """What every variational parameter is held to, declared before the data were seen.

    Attributes:
        bound: Means lie in [-bound, bound]; one number, or one for each coordinate.
        low: Scales are at least this; likewise.
        high: Scales are at most this; likewise.
        dimension: Number of coordinates.
    """

    bound: float | Floats
    low: float | Floats
    high: float | Floats
    dimension: int

    def __post_init__(self) -> None:
        d = _check.count("dimension", self.dimension)
        for name in ("bound", "low", "high"):
            values = np.array(getattr(self, name), dtype=np.float64)  # a copy: what was declared stays
            if values.shape not in ((), (d,)) or not (np.abs(values) < _LARGEST).all():
                raise ValueError(
                    f"{name} must be a number below {_LARGEST:g}, or {d} of them, got shape {values.shape}."
                )
            object.__setattr__(self, name, np.broadcast_to(values, (d,)))
        if not (np.min(self.bound) >= 0.0 and np.min(self.low) > 0.0 and np.all(self.low <= np.asarray(self.high))):
            raise ValueError("A box needs bound >= 0 and 0 < low <= high in every coordinate.")

    def extremes(self) -> tuple[Gaussians, Gaussians]:
        """Return the two Gaussians of the box that are farthest apart: wide at the top, narrow at the bottom."""
        means = np.atleast_2d(self.bound) * (1.0 + _MARGIN)
        wide, narrow = np.atleast_2d(self.high) * (1.0 + _MARGIN), np.atleast_2d(self.low) / (1.0 + _MARGIN)
        return Gaussians(means, wide), Gaussians(-means, narrow)

    def holds(self, points: Gaussians) -> bool:
        """Say whether all of them lie in the box, up to a millionth of each side that the bounds below allow for."""
        top, bottom = self.extremes()
        if points.means.shape[1] != self.dimension:
            raise ValueError(f"The box has {self.dimension} coordinates, the Gaussians {points.means.shape[1]}.")
        means, scales = points.means, points.scales
        inside = (np.abs(means) <= top.means) & (bottom.scales <= scales) & (scales <= top.scales)
        return bool(inside.all())

    def project(self, means: Floats, scales: Floats) -> Gaussians:
        """Return the Gaussians with every mean and scale moved into the box, no further than needed.

        What is not finite becomes a mean of zero and the lowest scale: a training that diverged lies in the box too,
        since whether it diverges may hang on one record.
        """
        middle, narrow = np.where(np.isfinite(means), means, 0.0), np.where(np.isfinite(scales), scales, self.low)
        return Gaussians(np.clip(middle, -self.bound, self.bound), np.clip(narrow, self.low, self.high))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `Box(**data)` takes it back."""
        sides = {name: np.asarray(getattr(self, name)).tolist() for name in ("bound", "low", "high")}
        return {**sides, "dimension": self.dimension}

    def __str__(self) -> str:
        bound, low, high = float(np.max(self.bound)), float(np.min(self.low)), float(np.max(self.high))
        each = all(np.ptp(side) == 0.0 for side in (self.bound, self.low, self.high))
        scales = f"standard deviations of {low:g}" if low == high else f"standard deviations from {low:g} to {high:g}"
        return f"means within {bound:g} of zero, {scales}" + ("" if each else ", and for some unknowns less")


def renyi_divergences(orders: Sequence[float] | Floats, first: Gaussians, second: Gaussians) -> Floats:
    """Return D_α(first‖second) for every order and every pair.

    Args:
        orders: E real numbers α > 1.
        first: m Gaussians.
        second: m Gaussians, paired with them row by row.

    Returns:
        Shape (E, m), infinite where the divergence does not exist. Relative error below 1e-12, except within that
        distance of the border of existence, where it is too large and never too small.

    Examples:
        >>> one, two = Gaussians([[1.0]], [[1.2]]), Gaussians([[0.0]], [[1.0]])
        >>> renyi_divergences([2.0, 4.0], one, two).round(6).tolist()
        [[1.893302], [inf]]
        >>> renyi_divergences([2.0, 4.0], two, one).round(6).tolist()
        [[0.580922], [0.798528]]
    """
    alphas = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not (alphas.ndim == 1 and np.all((alphas > 1.0) & (alphas < 1e12))):
        raise ValueError("orders must be numbers above 1 (and below 1e12).")
    if first.means.shape != second.means.shape:
        raise ValueError(f"The pairs must match row by row, got {first.means.shape} and {second.means.shape}.")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is infinite
        offset = (first.scales - second.scales) / second.scales
        excess = offset * (offset + 2.0)  # x, without the cancellation of s_1²/s_2² - 1
        logs = 2.0 * np.log(first.scales / second.scales)
        spread = np.where(np.abs(offset) < _NEAR, _series(excess), excess - logs)
        distance = ((first.means - second.means) / second.scales) ** 2
        return np.stack([_of_order(float(alpha), excess, spread, distance) for alpha in alphas])


def worst_divergences(orders: Sequence[float] | Floats, box: Box) -> Floats:
    """Return the largest D_α of any two Gaussians in a box, in either direction; shape (E,).

    In each coordinate D_α(1‖2) rises with |m_1 - m_2|, and for given means it is largest at s_1 = high, s_2 = low:
    that makes 1 - λx and s_2²(1 - λx) least; and of two laws with one mean the wide one diverges more from the narrow
    one than the other way round. So the largest value is reached at `Box.extremes`, and nothing is lost. It is
    infinite where (high/low)² ≥ α/(α - 1) in some coordinate.

    Examples:
        >>> box = Box(bound=0.5, low=1.0, high=1.2, dimension=1)
        >>> worst_divergences([2.0, 4.0], box).round(3).tolist()
        [1.893, inf]
    """
    return np.asarray(renyi_divergences(orders, *box.extremes())[:, 0])


def subsampled_costs(
    orders: Sequence[int],
    with_record: Gaussians,
    without: Gaussians,
    *,
    sample_rate: float,
    samples: int = 1,
) -> Floats:
    r"""Return the cost λ D_{λ+1} of drawing `samples` points from one Gaussian of a Poisson-sampled batch.

    With q the chance that the record is in the batch, p' the product law of r points with it and p without it, the
    points have the law (1-q) p + q p' or p: a mixture of products, so r multiplies inside the sums. Theorem 4 of
    Triastcyn & Faltings 2020, corrected as in `mechanisms.subsampled_cost`:

        with vs without:  log E_{k~Bin(λ+1,q)} exp(r (k-1) D_k(p'‖p)), exact
        without vs with:  at most the least of  log E_{k~Bin(λ,q)} exp(r k D_{k+1}(p‖p')),  -λ log(1 - q),  and
                          log(1 + [(1-q)^{-λ} - 1 - λq] [exp(r D_2(p'‖p)) - 1])

    and the larger of the two. The three bound the mean over p of f(u) = ((1-q) + q u)^{-λ} at u = p'/p. The first is
    Jensen's, 1/((1-q) + q/y) ≤ (1-q) + q y. The second is f(0). The third is ours, and keeps the q² that the first
    loses: f'' falls, so (f(u) - 1 + λq(u-1)) / (u-1)² is largest at u = 0, and u has mean 1.

    Args:
        orders: E whole numbers λ ≥ 1.
        with_record: m Gaussians of batches with the record.
        without: The m Gaussians of the same batches without it.
        sample_rate: q in (0, 1].
        samples: r, how many points are drawn from the one Gaussian.

    Returns:
        Shape (E, m), infinite where the cost is.
    """
    lams = [_check.count("an order", order, high=100_000) for order in orders]
    q, r = _check.rate("sample_rate", sample_rate), _check.count("samples", samples)
    k = np.arange(1.0, max(lams) + 1.0)
    adding, removing = (
        r * k[:, None] * renyi_divergences(k + 1.0, *pair)  # k D_{k+1}
        for pair in ((with_record, without), (without, with_record))
    )
    costs = []
    for lam in lams:
        forward = _log_mean(binom.logpmf(k[:lam] + 1, lam + 1, q), adding[:lam])
        reverse = _log_mean(binom.logpmf(k[:lam], lam, q), removing[:lam])
        if q < 1.0:
            most = -lam * np.log1p(-q)
            tail = np.array([most + np.log(betainc(2.0, lam, q))])  # log[(1-q)^{-λ} - 1 - λq]
            reverse = np.minimum(np.minimum(reverse, most), _log_mean(tail, adding[:1]))
        costs.append(np.maximum(forward, reverse))
    return np.stack(costs)


def _of_order(alpha: float, excess: Floats, spread: Floats, distance: Floats) -> Floats:
    lam = alpha - 1.0
    scaled = lam * excess * (1.0 + _ROUND_OFF)
    finite = scaled < 1.0
    scaled = np.where(finite, scaled, 0.0)
    other = np.where(np.abs(scaled) < _NEAR, _series(-scaled), -scaled - np.log1p(-scaled))
    terms = 0.5 * (spread + other / lam) + 0.5 * alpha * distance / (1.0 - scaled)
    return np.where(finite.all(axis=-1), terms.sum(axis=-1), np.inf)


def _series(x: Floats) -> Floats:
    """Return x - log(1 + x) for small x: with r = x/(2+x), log(1 + x) = 2 artanh(r) and x - 2r = x r."""
    r = x / (2.0 + x)
    square = r * r
    return np.asarray(r * (x - 2.0 * square * np.polynomial.polynomial.polyval(square, _TERMS)))


def _log_mean(log_weights: Floats, exponents: Floats) -> Floats:
    """Return log(1 + Σ_k w_k expm1(e_k)) for each column, without overflow or cancellation; infinite with any e_k."""
    usable = np.where(np.isinf(exponents), 0.0, exponents)
    with np.errstate(divide="ignore"):
        large = usable + np.log1p(-np.exp(-np.maximum(usable, 1.0)))
        log_expm1 = np.where(usable > 30.0, large, np.log(np.expm1(np.minimum(usable, 30.0))))
        total = np.logaddexp(0.0, logsumexp(log_weights[:, None] + log_expm1, axis=0))
    return np.where(np.isinf(exponents).any(axis=0), np.inf, total)
