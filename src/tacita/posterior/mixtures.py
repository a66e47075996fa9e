"""Posteriors that take the noise into account: mixtures over what the true numbers may have been.

All of it is post-processing of released numbers: no data enter this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import betainc, ndtr

from tacita import _check

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import ArrayLike

    from tacita._check import Counts, Floats
    from tacita.posterior.models import Dirichlet

_NEGLIGIBLE = 1e-11


@dataclass(frozen=True, eq=False, repr=False)
class Mixture:
    """A distribution of one number, as a weighted mixture. `first` and `second` are the components' parameters."""

    law: ClassVar[Any]  # of each component, from scipy.stats
    law_cdf: ClassVar[Callable[..., Floats]]  # the same without its checks, which take longer than the function
    weights: Floats
    first: Floats
    second: Floats

    @classmethod
    def of(cls, weights: Floats, first: Floats, second: Floats) -> Self:
        """Return a mixture without negligible components.

        Args:
            weights: How likely each component is, up to a factor.
            first: Their first parameters.
            second: Their second parameters.
        """
        kept = weights > _NEGLIGIBLE * weights.max()
        return cls(weights[kept] / weights[kept].sum(), first[kept], second[kept])

    @cached_property
    def mean(self) -> float:
        """The expected value."""
        return float(self.weights @ self.law.mean(self.first, self.second))

    @cached_property
    def sd(self) -> float:
        """The standard deviation."""
        means, variances = self.law.stats(self.first, self.second, moments="mv")
        return float(math.sqrt(self.weights @ (variances + (means - self.weights @ means) ** 2)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: mean {self.mean:.4g}, sd {self.sd:.4g}>"

    def pdf(self, x: ArrayLike) -> Floats:
        """Return the density at x."""
        return self._weighted(self.law.pdf, x)

    def cdf(self, x: ArrayLike) -> Floats:
        """Return the probability of at most x."""
        return self._weighted(self.law_cdf, x)

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
        return np.asarray(self.law.rvs(self.first[chosen], self.second[chosen], random_state=generator))

    def _weighted(self, of: Callable[..., Floats], x: ArrayLike) -> Floats:
        points = np.asarray(x, dtype=np.float64)
        values = [float(self.weights @ of(point, self.first, self.second)) for point in points.reshape(-1).tolist()]
        return np.array(values).reshape(points.shape)


@lru_cache(maxsize=4096)
def _quantile(mixture: Mixture, share: float) -> float:
    """Return where the distribution function reaches a share, between the ends that Cantelli's inequality gives."""
    mean, sd, odds = mixture.mean, mixture.sd, share / (1.0 - share)
    low, high = mean - sd / math.sqrt(odds), mean + sd * math.sqrt(odds)
    if float(mixture.cdf(low)) >= share:
        return low
    if float(mixture.cdf(high)) <= share:
        return high
    return float(brentq(lambda x: float(mixture.cdf(x)) - share, low, high, xtol=1e-13 * max(1.0, high - low)))


class BetaMixture(Mixture):
    """A mixture of Beta(first, second): the posterior of a share.

    Examples:
        >>> flat = BetaMixture(np.array([1.0]), np.array([1.0]), np.array([1.0]))
        >>> flat.mean, round(flat.interval(0.9)[1], 6)
        (0.5, 0.95)
    """

    law = stats.beta
    law_cdf = staticmethod(lambda x, first, second: betainc(first, second, min(max(x, 0.0), 1.0)))


class NormalMixture(Mixture):
    """A mixture of normal distributions with means `first` and standard deviations `second`."""

    law = stats.norm
    law_cdf = staticmethod(lambda x, mean, sd: ndtr((x - mean) / sd))


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
        BetaMixture.of(chances, a + counts[:, i], alphas.sum() - a + totals - counts[:, i])
        for i, a in enumerate(alphas)
    )
    return Shares(marginals, alphas, lambda size, rng: counts[rng.choice(len(chances), size=size, p=chances)])
