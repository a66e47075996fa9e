"""Posteriors that take the noise into account: mixtures over what the true numbers may have been.

All of it is post-processing of released numbers: no data enter this module.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaln, gammaln, ndtr, xlog1py, xlogy

from tacita import _check

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import ArrayLike

    from tacita._check import Counts, Floats
    from tacita.posterior.models import Dirichlet, Normal

_MOST_BINS = 128
_NEGLIGIBLE = 1e-11


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(ABC):
    """A distribution of one number, as a weighted mixture. `first` and `second` are the components' parameters."""

    weights: Floats
    first: Floats
    second: Floats

    @property
    def mean(self) -> float:
        """The expected value."""
        return float(self.weights @ self._moments()[0])

    @property
    def sd(self) -> float:
        """The standard deviation."""
        means, variances = self._moments()
        return float(math.sqrt(self.weights @ (variances + (means - self.weights @ means) ** 2)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: mean {self.mean:.4g}, sd {self.sd:.4g}>"

    def pdf(self, x: ArrayLike) -> Floats:
        """Return the density at x."""
        return self._weighted(self._pdf, x)

    def cdf(self, x: ArrayLike) -> Floats:
        """Return the probability of at most x."""
        return self._weighted(self._cdf, x)

    def quantile(self, share: float) -> float:
        """Return the point that has this share of the probability below it."""
        return _quantile(self, _check.probability("share", share))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the central interval that holds this share of the probability."""
        outside = 1.0 - _check.probability("level", level)
        return self.quantile(0.5 * outside), self.quantile(1.0 - 0.5 * outside)

    def sample(self, size: int, *, rng: Generator | int | None = None) -> Floats:
        """Return draws. They are computed from what was released, so the generator may be seeded."""
        generator = np.random.default_rng(rng)
        chosen = generator.choice(len(self.weights), size=_check.count("size", size), p=self.weights)
        return self._draw(generator, self.first[chosen], self.second[chosen])

    def _weighted(self, of: Callable[[float], Floats], x: ArrayLike) -> Floats:
        points = np.asarray(x, dtype=np.float64)
        values = [float(self.weights @ of(point)) for point in points.reshape(-1).tolist()]
        return np.array(values).reshape(points.shape)

    @abstractmethod
    def _moments(self) -> tuple[Floats, Floats]: ...

    @abstractmethod
    def _pdf(self, x: float) -> Floats: ...

    @abstractmethod
    def _cdf(self, x: float) -> Floats: ...

    @abstractmethod
    def _range(self) -> tuple[float, float]: ...

    @abstractmethod
    def _draw(self, rng: Generator, first: Floats, second: Floats) -> Floats: ...


@lru_cache(maxsize=4096)
def _quantile(mixture: Mixture, share: float) -> float:
    low, high = mixture._range()
    if float(mixture.cdf(low)) >= share:
        return low
    found = brentq(lambda x: float(mixture.cdf(x)) - share, low, high, xtol=1e-13 * max(1.0, high - low))
    return float(found)


class BetaMixture(Mixture):
    """A mixture of Beta(first, second): the posterior of a share.

    Examples:
        >>> flat = BetaMixture(np.array([1.0]), np.array([1.0]), np.array([1.0]))
        >>> flat.mean, round(flat.interval(0.9)[1], 6)
        (0.5, 0.95)
    """

    def _moments(self) -> tuple[Floats, Floats]:
        total = self.first + self.second
        return self.first / total, self.first * self.second / (total**2 * (total + 1.0))

    def _pdf(self, x: float) -> Floats:
        if not 0.0 <= x <= 1.0:
            return np.zeros_like(self.first)
        logs = xlogy(self.first - 1.0, x) + xlog1py(self.second - 1.0, -x) - betaln(self.first, self.second)
        return np.asarray(np.exp(logs))

    def _cdf(self, x: float) -> Floats:
        return np.asarray(betainc(self.first, self.second, np.clip(x, 0.0, 1.0)))

    def _range(self) -> tuple[float, float]:
        return 0.0, 1.0

    def _draw(self, rng: Generator, first: Floats, second: Floats) -> Floats:
        return rng.beta(first, second)


class NormalMixture(Mixture):
    """A mixture of normal distributions with means `first` and standard deviations `second`."""

    def _moments(self) -> tuple[Floats, Floats]:
        return self.first, self.second**2

    def _pdf(self, x: float) -> Floats:
        return np.exp(-0.5 * ((x - self.first) / self.second) ** 2) / (self.second * math.sqrt(2.0 * math.pi))

    def _cdf(self, x: float) -> Floats:
        return np.asarray(ndtr((x - self.first) / self.second))

    def _range(self) -> tuple[float, float]:
        reach = 40.0 * self.second
        return float((self.first - reach).min()), float((self.first + reach).max())

    def _draw(self, rng: Generator, first: Floats, second: Floats) -> Floats:
        return rng.normal(first, second)


@dataclass(frozen=True, eq=False, repr=False)
class Shares:
    """The posterior of the shares of several categories.

    Attributes:
        marginals: The posterior of each category's share by itself.
    """

    marginals: tuple[BetaMixture, ...]
    _alphas: Floats
    _draw_counts: Callable[[int, Generator], Counts]

    @property
    def mean(self) -> Floats:
        """The expected share of each category."""
        return np.array([marginal.mean for marginal in self.marginals])

    @property
    def sd(self) -> Floats:
        """The standard deviation of each category's share."""
        return np.array([marginal.sd for marginal in self.marginals])

    def interval(self, level: float = 0.95) -> Floats:
        """Return each category's central interval, one row each. Each holds separately, not all jointly."""
        return np.array([marginal.interval(level) for marginal in self.marginals])

    def __repr__(self) -> str:
        return f"<Shares: mean {', '.join(f'{m:.4g}' for m in self.mean)}>"

    def pdf(self, x: ArrayLike, category: int) -> Floats:
        """Return the density of one category's share at x."""
        return self.marginals[category].pdf(x)

    def sample(self, size: int, *, rng: Generator | int | None = None) -> Floats:
        """Return joint draws, one row each; every row adds up to 1."""
        generator = np.random.default_rng(rng)
        counts = self._draw_counts(_check.count("size", size), generator)
        gammas = generator.standard_gamma(self._alphas + counts)
        gammas = np.maximum(gammas, np.finfo(float).tiny)
        return np.asarray(gammas / gammas.sum(axis=1, keepdims=True))


def enumerated_shares(prior: Dirichlet, counts: Counts, weights: Floats) -> Shares:
    """Return the posterior of all shares, given the weight of each vector of true counts.

    Args:
        prior: The prior.
        counts: The possible vectors of counts, one row each.
        weights: How likely each of them is, up to a factor.
    """
    chances = weights / weights.sum()
    alphas: Floats = np.array(prior.alphas)
    totals = counts.sum(axis=1)
    marginals = tuple(
        _pruned(chances, a + counts[:, i], alphas.sum() - a + totals - counts[:, i]) for i, a in enumerate(alphas)
    )
    return Shares(marginals, alphas, lambda size, rng: counts[rng.choice(len(chances), size=size, p=chances)])


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

    low, high = -50.0, 50.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        weights = tilted(middle)
        mean = float(((weights * counts).sum(axis=1) / weights.sum(axis=1)).sum())
        low, high = (middle, high) if mean > size else (low, middle)
    return Cells(starts, tilted(high), high)


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


def normal_posterior(model: Normal, n: int, totals: Floats, weights: Floats) -> NormalMixture:
    """Return the posterior of the mean, given the weight of each possible total of n records.

    Args:
        model: The prior, and the standard deviation of one record.
        n: The number of records.
        totals: The possible totals.
        weights: How likely each of them is, up to a factor.
    """
    precision = 1.0 / model.sd**2 + n / model.record_sd**2
    means = (model.mean / model.sd**2 + totals / model.record_sd**2) / precision
    kept = weights > _NEGLIGIBLE * weights.max()
    chances = weights[kept] / weights[kept].sum()
    return NormalMixture(chances, means[kept], np.full(int(kept.sum()), precision**-0.5))


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
        return _pruned(weights, alphas[cell] + inside, alphas.sum() - alphas[cell] + sizes[0] - inside)
    (few, mass), (beside, others_mass) = _merged(mine, own[1]), _merged(rest, others[1])
    size = few[:, None] + beside[None, :]
    logs = np.where(size <= sizes[1], _log_size(alphas, size, slope), -np.inf)
    weights = (mass[:, None] * others_mass * np.exp(logs - logs.max())).reshape(-1)
    first, second = np.repeat(few, len(beside)), np.tile(beside, len(few))
    return _pruned(weights, alphas[cell] + first, alphas.sum() - alphas[cell] + second)


def _merged(counts: Counts, weights: Floats) -> tuple[Floats, Floats]:
    """Merge neighbouring counts into their weighted means until few enough are left, leaving out unlikely ends."""
    likely = np.flatnonzero(weights > 1e-10 * weights.max())
    here = slice(likely[0], likely[-1] + 1)
    counts, weights = counts[here], weights[here]
    bins = np.arange(0, len(counts), math.ceil(len(counts) / _MOST_BINS))
    mass = np.add.reduceat(weights, bins)
    return np.add.reduceat(weights * counts, bins) / np.maximum(mass, np.finfo(float).tiny), mass


def _pruned(weights: Floats, first: Floats, second: Floats) -> BetaMixture:
    kept = weights > _NEGLIGIBLE * weights.max()
    return BetaMixture(weights[kept] / weights[kept].sum(), first[kept], second[kept])
