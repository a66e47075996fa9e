r"""Rényi divergences of Gaussians with diagonal covariance, for many pairs and orders at once.

Per dimension, with λ = α - 1 and x = s_1²/s_2² - 1 (Gil, Alajaji & Linder, Information Sciences 249, 2013),

    D_α(1‖2) = [h(x) + h(-λx)/λ] / 2 + α (m_1 - m_2)² / (2 s_2² (1 - λx)),   h(u) = u - log(1 + u) ≥ 0,

finite only where λx < 1, that is s_1²/s_2² < α/(α - 1), in every dimension; elsewhere, and on that border, infinite.
It is the textbook form, rearranged into terms that are never negative, so nothing cancels when the scales are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.mechanisms.gaussian import renyi_order
from tacita.mechanisms.subsampled import subsampled_costs

if TYPE_CHECKING:
    from tacita._check import Floats

_ROUND_OFF = 2e-15  # of λx: near the border of existence the larger x is taken
_NEAR = 0.1  # below this |s_1/s_2 - 1| or |λx|, h comes from its series
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


def diagonal_gaussian_renyi(
    order: float,
    *,
    mean1: Sequence[float] | Floats,
    stddev1: Sequence[float] | Floats,
    mean2: Sequence[float] | Floats,
    stddev2: Sequence[float] | Floats,
) -> float:
    """Return D_α between two Gaussians with diagonal covariances: `renyi_divergences` of one pair.

    Finite only where s_1² / s_2² < α / (α - 1) in every dimension. The two directions differ.

    Args:
        order: α > 1.
        mean1: Of the first Gaussian, shape (d,).
        stddev1: Its standard deviations.
        mean2: Of the second Gaussian.
        stddev2: Its standard deviations.

    Returns:
        The divergence, infinite where it does not exist.

    Raises:
        ValueError: If the shapes differ, a mean is not finite, or a standard deviation is not positive.
    """
    pair = Gaussians([mean1], [stddev1]), Gaussians([mean2], [stddev2])  # type: ignore[arg-type]
    return float(renyi_divergences([renyi_order(order)], *pair)[0, 0])


def subsampled_gaussian_costs(
    orders: Sequence[int], with_record: Gaussians, without: Gaussians, *, sample_rate: float, samples: int = 1
) -> Floats:
    r"""Return the cost λ D_{λ+1} of drawing `samples` points from one Gaussian of a Poisson-sampled batch.

    With q the chance that the record is in the batch, p' the product law of r points with it and p without it, the
    points have the law (1-q) p + q p' or p: a mixture of products, so r multiplies inside the sums of
    `subsampled_costs`.

    Args:
        orders: E whole numbers λ ≥ 1.
        with_record: m Gaussians of batches with the record.
        without: The m Gaussians of the same batches without it.
        sample_rate: q in (0, 1].
        samples: r, how many points are drawn from the one Gaussian.

    Returns:
        Shape (E, m), infinite where the cost is.
    """
    r, alphas = _check.count("samples", samples), np.arange(2.0, max(orders) + 2.0)
    pairs = (with_record, without), (without, with_record)
    forward, reverse = (r * renyi_divergences(alphas, *pair) for pair in pairs)
    return subsampled_costs(orders, sample_rate=sample_rate, forward=forward, reverse=reverse)


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
