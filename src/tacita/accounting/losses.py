r"""The privacy loss of one Poisson-sampled Gaussian step, on a grid, rounded to the safe side.

With P the output's law with the record and Q without it, in units of the noise,

    Q = N(0, 1),   P = (1 - q) N(0, 1) + q N(r, 1),   loss(w) = log(1 - q + q exp(r w - r²/2)).

The grid's dominating pair is the "connect the dots" one (Doroshenko et al. 2022, arXiv:2207.04380): the P-
and Q-mass whose loss falls between two grid points is split over those two points so that both masses are
kept; its hockey-stick curve is never below the true one, and equal to it at grid points. dp-accounting
builds the same pair from second differences of δ(ε); working with the cells' masses loses fewer digits
(1e-16 / interval instead of 1e-16 / interval²) and needs no loop. The tests hold the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

if TYPE_CHECKING:
    from tacita._check import Floats

_SPAN = 9.75  # noise beyond this many standard deviations, 1e-22 of it, counts as an infinite loss
LOST_PER_STEP = 2.0 * float(ndtr(-_SPAN))


@dataclass(frozen=True)
class StepLoss:
    """One step's loss on the grid `interval * (first, first + 1, ...)`, for one direction."""

    first: int
    probabilities: Floats


def loss_at(noise: Floats | float, *, sample_rate: float, ratio: float) -> Floats:
    """Return the loss of observing `noise` (in units of its standard deviation) when the record is there.

    Args:
        noise: What is observed, in standard deviations of the noise.
        sample_rate: q.
        ratio: r, the record's norm over the noise's standard deviation.

    Returns:
        The losses, of the shape of `noise`.
    """
    exponent = ratio * np.asarray(noise) - ratio**2 / 2.0
    log_out = math.log1p(-sample_rate) if sample_rate < 1.0 else -math.inf
    small = np.log1p(sample_rate * np.expm1(np.clip(exponent, -1.0, 1.0)))
    return np.where(np.abs(exponent) < 1.0, small, np.logaddexp(log_out, math.log(sample_rate) + exponent))


def loss_spread(sample_rate: float, ratios: Floats) -> Floats:
    """Return the standard deviation of one step's loss, roughly: it places grids, and no bound rests on it."""
    noise = np.linspace(-8.0, 8.0, 401)
    weight = np.exp(-(noise**2) / 2.0)
    weight /= weight.sum()
    spreads = []
    for r in ratios:
        out = loss_at(noise, sample_rate=sample_rate, ratio=float(r))
        inside = loss_at(noise + r, sample_rate=sample_rate, ratio=float(r))
        mean = (1 - sample_rate) * weight @ out + sample_rate * weight @ inside
        square = (1 - sample_rate) * weight @ (out - mean) ** 2 + sample_rate * weight @ (inside - mean) ** 2
        spreads.append(math.sqrt(square))
    return np.array(spreads)


def largest_loss(sample_rate: float, ratio: float) -> float:
    """Return the largest finite loss that is kept."""
    return float(loss_at(ratio + _SPAN, sample_rate=sample_rate, ratio=ratio))


def step_losses(sample_rate: float, ratio: float, interval: float) -> tuple[StepLoss, StepLoss]:
    """Return one step's loss for the record removed (P against Q) and added (Q against P).

    The grid covers noise up to 9.75 standard deviations; smaller losses are moved up to its lower end.

    Up to `LOST_PER_STEP` of probability is missing from each; the caller counts it as infinite loss.

    Args:
        sample_rate: q.
        ratio: r, the record's norm over the noise's standard deviation.
        interval: The spacing of the grid.

    Returns:
        The two losses.
    """
    lowest = float(loss_at(-_SPAN, sample_rate=sample_rate, ratio=ratio))
    first = math.floor(lowest / interval)
    last = max(first + 1, math.ceil(largest_loss(sample_rate, ratio) / interval))
    grid = np.asarray(np.arange(first, last + 1) * interval, dtype=np.float64)
    noise = (_log_odds(grid, sample_rate) + ratio**2 / 2.0) / ratio
    without, inside = _cell_masses(noise), _cell_masses(noise - ratio)
    with_record = (1.0 - sample_rate) * without + sample_rate * inside
    removed = _split(with_record, without, grid, interval)
    removed[0] += (1.0 - sample_rate) * ndtr(noise[0]) + sample_rate * ndtr(noise[0] - ratio)  # moved up to the grid
    added = _split(without[::-1], with_record[::-1], -grid[::-1], interval)
    added[0] += ndtr(-noise[-1])
    return StepLoss(first, removed), StepLoss(-last, added)


def _log_odds(loss: Floats, sample_rate: float) -> Floats:
    """Return log((e^loss - (1 - q)) / q), the inverse of `loss_at` but for shift and scale."""
    with np.errstate(divide="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / sample_rate, -1.0))
    large = loss + np.log1p(-(1.0 - sample_rate) * np.exp(-np.maximum(loss, 1.0))) - math.log(sample_rate)
    return np.where(loss < 1.0, small, large)


def _cell_masses(edges: Floats) -> Floats:
    """Return N(0, 1)'s mass between neighbouring edges, from whichever tail is more accurate."""
    return np.asarray(np.where(edges[:-1] > 0.0, -np.diff(ndtr(-edges)), np.diff(ndtr(edges))))


def _split(own: Floats, other: Floats, grid: Floats, interval: float) -> Floats:
    """Put each cell's mass on its two ends so that its own mass and the other law's mass are kept."""
    with np.errstate(over="ignore"):  # where e^loss overflows, `other` has underflowed and all mass moves up
        upper = (own - other * np.exp(np.minimum(grid[:-1], 700.0))) / -math.expm1(-interval)
    upper = np.clip(upper, 0.0, own)
    points = np.zeros(len(grid))
    points[:-1] = own - upper
    points[1:] += upper
    return points
