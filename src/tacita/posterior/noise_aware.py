"""The posterior given the released numbers, with the noise taken into account. No data enter this module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from tacita.posterior.mixtures import Mixture, NormalMixture, Shares, enumerated_shares
from tacita.posterior.models import Beta, Dirichlet, Normal
from tacita.posterior.scores import predictive, states
from tacita.posterior.tied_counts import cell_factors, tied_shares

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.posterior.noise import Noise
    from tacita.posterior.plans import ReleasePlan

_MOST_TOTALS = 4001
_ALL_COUNTS = 200_000


def cells_posterior(
    plan: ReleasePlan, prior: Dirichlet, output: Sequence[int], n: int | None, most: int
) -> Mixture | Shares:
    """Return the noise-aware posterior of the shares: every true count, weighted by its chance and the noise's.

    Args:
        plan: How the output was made.
        prior: The prior.
        output: What was released: the first count alone if there are two cells and n is public, else every cell.
        n: The public number of records, or None if the part's size is private.
        most: The largest number of records there can be.
    """
    if plan.table is not None:
        listed = states(prior.cells, most)
        released = int(np.flatnonzero((listed == np.array(output)).all(axis=1))[0])
        weights = predictive(prior, most) * plan.table[:, released]
        return _of_interest(prior, enumerated_shares(prior, listed, weights))
    source = plan.source
    if n is not None and prior.cells == 2:
        return _of_interest(prior, _two_shares(prior, source, output[0], n))
    size = n if n is not None else int(np.clip(np.maximum(output, 0).sum(), 1, most))
    cells = cell_factors(prior, tuple(output), source.log_chance, (most, size), _reach(source, prior, output, size))
    return _of_interest(prior, tied_shares(prior, cells, (0, most) if n is None else (n, n)))


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


def _reach(source: Noise, prior: Dirichlet, output: Sequence[int], size: int) -> int:
    """Return how far from the output true numbers are possible: the noise, and how far a strong prior pulls them."""
    expected = size * np.array(prior.alphas) / sum(prior.alphas)
    pulled = np.abs(np.array(output) - expected).max() if sum(prior.alphas) > 0.01 * size else 0.0
    return source.reach + abs(size - sum(output)) + math.ceil(pulled)
