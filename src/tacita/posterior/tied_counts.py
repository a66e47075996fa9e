"""The posterior of shares from noisy counts of many cells, which only their sum ties together.

All of it is post-processing of released numbers: no data enter this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from tacita._search import boundary
from tacita.posterior.mixtures import BetaMixture, Shares

if TYPE_CHECKING:
    from numpy.random import Generator

    from tacita._check import Counts, Floats
    from tacita.posterior.models import Dirichlet

_MOST_BINS = 128


@dataclass(frozen=True)
class Cells:
    """What each cell's count may have been, before the cells are tied together by their sum.

    Attributes:
        starts: The smallest count of each cell.
        factors: A row of weights for each cell, from there on, the largest 1.
        slope: The weights are those of count k times exp(-slope k), so that they are large where the sum is right.
    """

    starts: Counts
    factors: Floats
    slope: float


def cell_factors(
    prior: Dirichlet,
    noisy: tuple[int, ...],
    log_chance: Callable[[Counts], Floats],
    sizes: tuple[int, int],
    reach: int,
) -> Cells:
    """Return the weights of each cell's counts by themselves.

    The Dirichlet-multinomial chance of counts k is a product over cells times a function of their sum, and so is the
    chance of independent noise; only the sum ties the cells. An exponential slope common to all cells is a function of
    the sum too, so it may be chosen freely.

    Args:
        prior: The prior.
        noisy: What was released, one number for each cell.
        log_chance: The log chance of noise of each size.
        sizes: The largest possible count, and what the counts should add up to on average.
        reach: How far from what was released the counts may be.
    """
    most, size = sizes
    width = min(2 * reach, most)
    starts = np.clip(np.array(noisy) - reach, 0, most - width)
    counts = starts[:, None] + np.arange(width + 1)
    alphas = np.array(prior.alphas)[:, None]
    logs = gammaln(alphas + counts) - gammaln(counts + 1.0) + log_chance(np.array(noisy)[:, None] - counts)

    def tilted(slope: float) -> Floats:
        sloped = logs - slope * counts
        return np.asarray(np.exp(sloped - sloped.max(axis=1, keepdims=True)))

    def small_enough(slope: float) -> bool:
        weights = tilted(slope)
        return float(((weights * counts).sum(axis=1) / weights.sum(axis=1)).sum()) <= size

    slope = boundary(small_enough, fails=-50.0, at=50.0, xtol=1e-13)
    return Cells(starts, tilted(slope), slope)


def tied_shares(prior: Dirichlet, cells: Cells, sizes: tuple[int, int]) -> Shares:
    """Return the posterior of the shares when the cells' counts add up to a size within `sizes`.

    One size ties the cells exactly; a range, every size in it held equally likely beforehand, is for parts whose own
    size is private. Sums of counts are convolutions; a cell's marginal is its own factor beside the others' sum.

    Args:
        prior: The prior.
        cells: The weights of each cell's counts.
        sizes: The smallest and the largest possible size.
    """
    alphas, most = np.array(prior.alphas), sizes[1]
    heads = _running(cells.factors, most)
    tails = _running(cells.factors[::-1], most)[::-1]
    marginals = []
    for cell, (start, factor) in enumerate(zip(cells.starts, cells.factors, strict=True)):
        others = _convolved(heads[cell], tails[cell + 1], most)
        own, rest = (int(start), factor), (int(cells.starts.sum() - start), others)
        marginals.append(_cell_marginal(alphas, cell, own, rest, sizes, cells.slope))
    sums = _size_weights(alphas, int(cells.starts.sum()), heads[-1], sizes, cells.slope)
    return Shares(tuple(marginals), alphas, _Backwards(cells.starts, cells.factors, heads, sums))


@dataclass(frozen=True)
class _Backwards:
    """Draws vectors of counts: the size first, then the last cell, then the one before."""

    starts: Counts
    factors: Floats
    heads: list[Floats]
    sizes: Floats  # weight of each sum of the cells' counts above their starts

    def __call__(self, size: int, rng: Generator) -> Counts:
        sums = rng.choice(len(self.sizes), size=size, p=self.sizes / self.sizes.sum())
        drawn = np.empty((size, len(self.factors)), dtype=np.int64)
        for row, left in enumerate(sums):
            for cell in range(len(self.factors) - 1, -1, -1):
                factor, head = self.factors[cell], self.heads[cell]
                above = np.arange(max(0, left - len(head) + 1), min(len(factor) - 1, left) + 1)
                weights = factor[above] * head[left - above]
                drawn[row, cell] = above[np.searchsorted(np.cumsum(weights), rng.random() * weights.sum())]
                left -= drawn[row, cell]
        return drawn + self.starts


def _running(factors: Floats, most: int) -> list[Floats]:
    """Return the weights of the sums of the first 0, 1, 2, … cells' counts."""
    sums = [np.ones(1)]
    for factor in factors:
        sums.append(_convolved(sums[-1], factor, most))
    return sums


def _convolved(one: Floats, other: Floats, most: int) -> Floats:
    """Return the weights of a sum, up to the largest that is possible; the largest weight is 1."""
    if len(one) * len(other) <= 250_000:
        sums = np.convolve(one, other)
    else:  # round-off of 1e-16 of the largest weight does not matter here
        size = len(one) + len(other) - 1
        sums = np.maximum(np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size), 0.0)
    sums = sums[: most + 1]
    return np.asarray(sums / sums.max())


def _log_size(alphas: Floats, size: Floats | Counts, slope: float) -> Floats:
    """Return what a size adds to the log weight of counts, beside their own factors."""
    return np.asarray(gammaln(size + 1.0) - gammaln(alphas.sum() + size) + slope * size)


def _size_weights(alphas: Floats, start: int, sums: Floats, sizes: tuple[int, int], slope: float) -> Floats:
    size = start + np.arange(len(sums))
    allowed = (size >= sizes[0]) & (size <= sizes[1])
    logs = np.where(allowed, _log_size(alphas, size, slope), -np.inf)
    return np.asarray(sums * np.exp(logs - logs.max()))


def _cell_marginal(
    alphas: Floats,
    cell: int,
    own: tuple[int, Floats],
    others: tuple[int, Floats],
    sizes: tuple[int, int],
    slope: float,
) -> BetaMixture:
    mine, rest = own[0] + np.arange(len(own[1])), others[0] + np.arange(len(others[1]))
    if sizes[0] == sizes[1]:
        places = sizes[0] - mine - others[0]
        fits = (places >= 0) & (places < len(rest))
        weights = own[1][fits] * others[1][places[fits]]
        inside = mine[fits]
        return BetaMixture.of(weights, alphas[cell] + inside, alphas.sum() - alphas[cell] + sizes[0] - inside)
    (few, mass), (beside, others_mass) = _merged(mine, own[1]), _merged(rest, others[1])
    size = few[:, None] + beside[None, :]
    logs = np.where(size <= sizes[1], _log_size(alphas, size, slope), -np.inf)
    weights = (mass[:, None] * others_mass * np.exp(logs - logs.max())).reshape(-1)
    first, second = np.repeat(few, len(beside)), np.tile(beside, len(few))
    return BetaMixture.of(weights, alphas[cell] + first, alphas.sum() - alphas[cell] + second)


def _merged(counts: Counts, weights: Floats) -> tuple[Floats, Floats]:
    """Merge neighbouring counts into their weighted means until few enough are left, leaving out unlikely ends."""
    likely = np.flatnonzero(weights > 1e-10 * weights.max())
    here = slice(likely[0], likely[-1] + 1)
    counts, weights = counts[here], weights[here]
    bins = np.arange(0, len(counts), math.ceil(len(counts) / _MOST_BINS))
    mass = np.add.reduceat(weights, bins)
    return np.add.reduceat(weights * counts, bins) / np.maximum(mass, np.finfo(float).tiny), mass
