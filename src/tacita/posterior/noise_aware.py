"""The posterior given the released numbers, with the noise taken into account. No data enter this module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from tacita._search import boundary
from tacita.posterior.enumeration import predictive, states
from tacita.posterior.mixtures import BetaMixture, Mixture, NormalMixture, Shares, enumerated_shares
from tacita.posterior.models import Beta, Dirichlet, Normal

if TYPE_CHECKING:
    from numpy.random import Generator

    from tacita._check import Counts, Floats
    from tacita.posterior.noise import Noise
    from tacita.posterior.plans import ReleasePlan

_MOST_TOTALS = 4001
_ALL_COUNTS = 200_000
_MOST_BINS = 128


def cells_posterior(
    plan: ReleasePlan, prior: Dirichlet, output: Sequence[int], n: int | None, most: int | None
) -> Mixture | Shares:
    """Return the noise-aware posterior of the shares: every true count, weighted by its chance and the noise's.

    Args:
        plan: How the output was made.
        prior: The prior.
        output: What was released: the first count alone if there are two cells and n is public, else every cell.
        n: The public number of records, or None if the part's size is private.
        most: The largest number of records there can be; None for all but surely as many, by the output.
    """
    if most is None:
        most = sum(max(count, 0) for count in output) + len(output) * plan.source.reach
    if plan.table is not None:
        listed = states(prior.cells, most)
        released = int(np.flatnonzero((listed == np.array(output)).all(axis=1))[0])
        weights = predictive(prior, most) * plan.table[:, released]
        return _of_interest(prior, enumerated_shares(prior, listed, weights))
    source = plan.source
    if n is not None and prior.cells == 2:
        return _of_interest(prior, _two_shares(prior, source, output[0], n))
    return _of_interest(prior, _tied_shares(prior, source, np.array(output), (0, most) if n is None else (n, n)))


@dataclass(frozen=True)
class Grid:
    """Where records may lie: `base + step * units`, with whole units from `low` to `high`."""

    low: int
    high: int
    step: float
    base: float = 0.0

    def value(self, units: float) -> float:
        """Return the number that these units stand for."""
        return self.base + units * self.step

    def total(self, records: Floats) -> int:
        """Return the sum of the records in whole units, each clamped and rounded. NaN counts as low."""
        low, high = self.value(self.low), self.value(self.high)
        clamped = np.clip(np.where(np.isnan(records), low, records), low, high)
        units = np.rint((clamped - self.base) / self.step).astype(np.int64)
        return int(np.clip(units, self.low, self.high).sum())


def total_posterior(plan: ReleasePlan, model: Normal, total: int, n: int, grid: Grid) -> NormalMixture:
    """Return the noise-aware posterior of the mean from a noisy total, which is in the grid's units.

    Rounding to the grid is modelled as an independent error of each record, uniform within a step. That records were
    clamped is not modelled: in particular, that their sum lies within the bounds says nothing about the mean.

    Args:
        plan: How the total was drawn.
        model: The prior, and the standard deviation of one record.
        total: What was released.
        n: The public number of records.
        grid: What one unit of the total stands for.
    """
    record_variance = model.record_sd**2 + grid.step**2 / 12.0
    spread = n**2 * model.sd**2 + n * record_variance

    def logs(totals: Counts) -> Floats:
        away = n * grid.base + totals.astype(np.float64) * grid.step - n * model.mean
        return plan.source.log_chance(total - totals) - 0.5 * away**2 / spread

    expected = round(n * (model.mean - grid.base) / grid.step)
    beside = math.ceil(10.0 * math.sqrt(spread) / grid.step) + plan.source.reach
    totals = _likely(logs, min(total, expected) - beside, max(total, expected) + beside, total)
    weights = logs(totals)
    values = n * grid.base + totals.astype(np.float64) * grid.step
    precision = 1.0 / model.sd**2 + n / record_variance
    means = (model.mean / model.sd**2 + values / record_variance) / precision
    return NormalMixture.of(np.exp(weights - weights.max()), means, np.full(len(means), precision**-0.5))


def _likely(logs: Callable[[Counts], Floats], low: int, high: int, near: int) -> Counts:
    """Return evenly spaced whole numbers where a log-concave function is not far below its maximum."""
    while True:
        tried = np.unique(np.append(np.linspace(low, high, _MOST_TOTALS).round(), np.clip(near, low, high)))
        tried = tried.astype(np.int64)
        values = logs(tried)
        inside = np.flatnonzero(values > values.max() - 40.0)
        first, last = int(tried[max(0, inside[0] - 1)]), int(tried[min(len(tried) - 1, inside[-1] + 1)])
        if last - first > 0.5 * (high - low) or last - first <= 2:
            return np.unique(np.linspace(first, last, _MOST_TOTALS).round()).astype(np.int64)
        low, high = first, last


def _of_interest(prior: Dirichlet, shares: Shares) -> Mixture | Shares:
    return shares.marginals[0] if isinstance(prior, Beta) else shares


def _two_shares(prior: Dirichlet, source: Noise, output: int, n: int) -> Shares:
    """With two cells and a public n, one count determines the other."""
    counts, spacing = _possible_counts(n, output, source.reach)
    (true, false) = prior.alphas
    logs = gammaln(true + counts) - gammaln(counts + 1.0) + gammaln(false + n - counts) - gammaln(n - counts + 1.0)
    logs += source.log_chance(output - counts)
    return enumerated_shares(prior, np.stack([counts, n - counts], axis=1), spacing * np.exp(logs - logs.max()))


def _possible_counts(n: int, near: int, reach: int) -> tuple[Counts, Floats]:
    """Return counts from 0 to n and how many each stands for: all of them, or all near one place and some elsewhere."""
    if n <= _ALL_COUNTS:
        return np.arange(n + 1), np.ones(n + 1)
    inner = np.arange(max(0, near - min(reach, _ALL_COUNTS)), min(n, near + min(reach, _ALL_COUNTS)) + 1)
    counts = np.union1d(inner, np.linspace(0, n, _ALL_COUNTS).astype(np.int64))
    return counts, np.gradient(counts.astype(np.float64))


def _tied_shares(prior: Dirichlet, source: Noise, output: Counts, sizes: tuple[int, int]) -> Shares:
    """Return the posterior of shares from noisy counts of many cells, which add up to a size within `sizes`.

    One size ties the cells exactly; a range, every size in it held equally likely beforehand, is for parts whose own
    size is private. Sums of counts are convolutions; a cell's marginal is its own factor beside the others' sum.
    """
    alphas, most = np.array(prior.alphas), sizes[1]
    starts, factors, slope = _cell_factors(prior, source, output, sizes)
    heads = _running(factors, most)
    tails = _running(factors[::-1], most)[::-1]

    def log_size(size: Floats | Counts) -> Floats:
        """What a size adds to the log weight of counts, beside their own factors; nothing is possible outside."""
        logs = gammaln(size + 1.0) - gammaln(alphas.sum() + size) + slope * size
        return np.where((size >= sizes[0]) & (size <= most), logs, -np.inf)

    marginals = []
    for cell, alpha in enumerate(alphas):
        others = _convolved(heads[cell], tails[cell + 1], most)
        mine = starts[cell] + np.arange(factors.shape[1])
        rest = starts.sum() - starts[cell] + np.arange(len(others))
        if sizes[0] == most:
            places = most - mine - rest[0]
            fits = (places >= 0) & (places < len(rest))
            first, second = mine[fits], most - mine[fits]
            weights = factors[cell][fits] * others[places[fits]]
        else:
            (few, mass), (beside, others_mass) = _merged(mine, factors[cell]), _merged(rest, others)
            logs = log_size(few[:, None] + beside[None, :])
            weights = (mass[:, None] * others_mass * np.exp(logs - logs.max())).reshape(-1)
            first, second = np.repeat(few, len(beside)), np.tile(beside, len(few))
        marginals.append(BetaMixture.of(weights, alpha + first, alphas.sum() - alpha + second))
    logs = log_size(starts.sum() + np.arange(len(heads[-1])))
    sums = heads[-1] * np.exp(logs - logs.max())
    return Shares(tuple(marginals), alphas, _Backwards(starts, factors, heads, sums))


def _cell_factors(
    prior: Dirichlet, source: Noise, output: Counts, sizes: tuple[int, int]
) -> tuple[Counts, Floats, float]:
    """Return the smallest count of each cell, the weights of its counts from there on, and the slope in these.

    The Dirichlet-multinomial chance of counts k is a product over cells times a function of their sum, and so is the
    chance of independent noise; only the sum ties the cells. An exponential slope common to all cells is a function of
    the sum too, so it is chosen such that the weights are large where the sum is right.
    """
    most, weights = sizes[1], np.array(prior.alphas)
    size = most if sizes[0] == most else int(np.clip(np.maximum(output, 0).sum(), 1, most))
    pulled = np.abs(output - size * weights / weights.sum()).max() if weights.sum() > 0.01 * size else 0.0
    reach = source.reach + abs(size - int(output.sum())) + math.ceil(pulled)  # a strong prior pulls counts far
    width = min(2 * reach, most)
    starts = np.clip(output - reach, 0, most - width)
    counts = starts[:, None] + np.arange(width + 1)
    logs = gammaln(weights[:, None] + counts) - gammaln(counts + 1.0) + source.log_chance(output[:, None] - counts)

    def tilted(slope: float) -> Floats:
        sloped = logs - slope * counts
        return np.asarray(np.exp(sloped - sloped.max(axis=1, keepdims=True)))

    def small_enough(slope: float) -> bool:
        tried = tilted(slope)
        return float(((tried * counts).sum(axis=1) / tried.sum(axis=1)).sum()) <= size

    slope = boundary(small_enough, fails=-50.0, at=50.0, xtol=1e-13)
    return starts, tilted(slope), slope


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


def _merged(counts: Counts, weights: Floats) -> tuple[Floats, Floats]:
    """Merge neighbouring counts into their weighted means until few enough are left, leaving out unlikely ends."""
    likely = np.flatnonzero(weights > 1e-10 * weights.max())
    here = slice(likely[0], likely[-1] + 1)
    counts, weights = counts[here], weights[here]
    bins = np.arange(0, len(counts), math.ceil(len(counts) / _MOST_BINS))
    mass = np.add.reduceat(weights, bins)
    return np.add.reduceat(weights * counts, bins) / np.maximum(mass, np.finfo(float).tiny), mass
