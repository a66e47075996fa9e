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
from scipy.special import betainc, betaln, ndtr, xlog1py, xlogy

from tacita import _check

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import ArrayLike

    from tacita._check import Counts, Floats
    from tacita.posterior.models import Dirichlet, Normal

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

    def sample(self, size: int, *, rng: Generator | None = None) -> Floats:
        """Return draws. They are computed from released numbers alone, so a seeded `rng` is harmless."""
        generator = _generator(rng)
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

    def sample(self, size: int, *, rng: Generator | None = None) -> Floats:
        """Return joint draws, one row each; every row adds up to 1."""
        generator = _generator(rng)
        counts = self._draw_counts(_check.count("size", size), generator)
        gammas = generator.standard_gamma(self._alphas + counts)
        gammas = np.maximum(gammas, np.finfo(float).tiny)
        return np.asarray(gammas / gammas.sum(axis=1, keepdims=True))


def _generator(rng: object) -> Generator:
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a generator, got {rng!r}; pass rng=numpy.random.default_rng(seed).")
    return np.random.default_rng(rng)


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
        pruned(chances, a + counts[:, i], alphas.sum() - a + totals - counts[:, i]) for i, a in enumerate(alphas)
    )
    return Shares(marginals, alphas, lambda size, rng: counts[rng.choice(len(chances), size=size, p=chances)])


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


def pruned(weights: Floats, first: Floats, second: Floats) -> BetaMixture:
    """Return a mixture without negligible components.

    Args:
        weights: How likely each component is, up to a factor.
        first: Their first parameters.
        second: Their second parameters.
    """
    kept = weights > _NEGLIGIBLE * weights.max()
    return BetaMixture(weights[kept] / weights[kept].sum(), first[kept], second[kept])
