"""Permutation tests of two samples, inside and outside, of numbers or of gradients.

If the two could be exchanged, every statistic is as likely for the true split as for a random one. So p-values from
random exchanges are exact for any distribution, and for distances too, although pairs that share a record are not
independent.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]
Pair = tuple[float, float]
Success = tuple[float, float, float]

LEVEL = 0.05  # the chance of a false alarm, all tests together
EXCHANGES = 999  # random exchanges that p-values are computed from
_TINY = 1e-12
_BARS = 30


@dataclass(frozen=True, kw_only=True)
class Check:
    """One way in which the two sides may differ.

    Attributes:
        of: average, spread or distribution.
        test: The statistic that is compared.
        effect: How large the difference is: Hedges' g (inside minus outside), the ratio of standard deviations
            (inside over outside), or the largest gap between distributions, from 0 to 1.
        p_value: The chance of a statistic this large if inside and outside were exchangeable.
        corrected: The p-value corrected for all tests made (Holm).
    """

    of: str
    test: str
    effect: float
    p_value: float
    corrected: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity, inside against outside.

    Attributes:
        quantity: gradient norm, own epsilon, or distance between gradients.
        records: How many records (inside, outside).
        averages: Of the quantity, (inside, outside).
        spreads: Its standard deviations.
        checks: What was tested.
        success: Of two records, one inside and one outside, how often the one with the smaller number is the one
            inside, and its interval, 95% for all quantities together. None for distances, which belong to two records.
        unnoticed: For distances: a difference of the averages up to this, in standard deviations, goes unnoticed.
        bars: For a histogram: edges, share of the inside and share of the outside in each bar.
    """

    quantity: str
    records: tuple[int, int]
    averages: Pair
    spreads: Pair
    checks: tuple[Check, ...]
    success: Success | None = None
    unnoticed: float | None = None
    bars: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]

    @property
    def differs(self) -> bool:
        """Whether any check found a difference, at the level of all checks together."""
        return any(check.corrected < LEVEL for check in self.checks)


def compare_numbers(quantity: str, sides: list[Floats], level: float, rng: np.random.Generator) -> Comparison:
    """Compare one number for each record.

    Args:
        quantity: What the numbers are.
        sides: The numbers of the records inside and outside.
        level: The chance with which the interval of `success` may miss.
        rng: Draws the exchanges.

    Returns:
        Averages, spreads, p-values that are not corrected yet, and how well the number tells the sides apart.
    """
    inside, outside = sides
    pooled = np.concatenate(sides)
    order = np.argsort(pooled, kind="stable")
    values = pooled[order]
    labels = _exchanges(len(inside), len(pooled), rng)[:, order]
    a, b = _split(values, labels)
    gap = _largest_gap(values, labels)
    spreads = float(inside.std(ddof=1)), float(outside.std(ddof=1))
    return Comparison(
        quantity=quantity,
        records=(len(inside), len(outside)),
        averages=(float(inside.mean()), float(outside.mean())),
        spreads=spreads,
        checks=(
            _checked("average", "Welch's t", _hedges(inside, outside), _welch(a, b)),
            _checked("spread", "Levene's W", max(spreads[0], _TINY) / max(spreads[1], _TINY), _levene(a, b)),
            _checked("distribution", "Kolmogorov-Smirnov distance", float(gap[0]), gap),
        ),
        success=_success(inside, outside, level),
        bars=_bars(inside, outside),
    )


def compare_distances(gradients: list[Floats], level: float, rng: np.random.Generator) -> tuple[Comparison, Pair]:
    """Compare the distances between records of one side with those of the other.

    Args:
        gradients: A row for each record inside, and for each outside.
        level: The significance level at which differences that go unnoticed are reported.
        rng: Draws the exchanges.

    Returns:
        The comparison, and the p-values of the papers' t-test and Levene's test on all pairs.
    """
    n, m = len(gradients[0]), len(gradients[1])
    distances = _distances(np.concatenate(gradients))
    means, variances, energy = _within(distances, _exchanges(n, n + m, rng))
    inside, outside = (side[np.triu_indices(len(side), 1)] for side in (distances[:n, :n], distances[n:, n:]))
    spreads = float(inside.std(ddof=1)), float(outside.std(ddof=1))
    pooled = max(math.sqrt((spreads[0] ** 2 + spreads[1] ** 2) / 2), _TINY)
    gaps = np.abs(means[0] - means[1])
    ratios = np.abs(np.log((variances[0] + _TINY) / (variances[1] + _TINY)))
    made = Comparison(
        quantity="distance between gradients",
        records=(n, m),
        averages=(float(inside.mean()), float(outside.mean())),
        spreads=spreads,
        checks=(
            _checked("average", "difference of the averages", float((means[0] - means[1])[0] / pooled), gaps),
            _checked("spread", "ratio of the variances", max(spreads[0], _TINY) / max(spreads[1], _TINY), ratios),
            _checked("distribution", "energy distance", float(energy[0]), energy),
        ),
        unnoticed=float(np.quantile(gaps[1:], 1.0 - level, method="higher") / pooled),
        bars=_bars(inside, outside),
    )
    return made, (
        _p_or_one(stats.ttest_ind, inside, outside, equal_var=False),
        _p_or_one(stats.levene, inside, outside),
    )


def _exchanges(inside: int, records: int, rng: np.random.Generator) -> Labels:
    """Return who is inside, one row for each split: first the true one, then random ones."""
    truth = np.arange(records) < inside
    return np.concatenate([truth[None], rng.permuted(np.tile(truth, (EXCHANGES, 1)), axis=1)])


def _checked(of: str, test: str, effect: float, statistics: Floats) -> Check:
    """Return the share of exchanges, the true one included, whose statistic is as large as the true one."""
    as_large = statistics >= statistics[0] - 1e-9 * abs(statistics[0])
    return Check(of=of, test=test, effect=effect, p_value=float(as_large.mean()))


def corrected(made: list[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons with p-values corrected for multiple testing (Holm)."""
    p = np.array([check.p_value for c in made for check in c.checks])
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order]).clip(max=1.0)
    values = iter(adjusted.tolist())
    return tuple(replace(c, checks=tuple(replace(k, corrected=next(values)) for k in c.checks)) for c in made)


# Statistics, each for many ways to split the records: one row for each.


def _split(values: Floats, labels: Labels) -> tuple[Floats, Floats]:
    rows = np.broadcast_to(values, labels.shape)
    return rows[labels].reshape(len(labels), -1), rows[~labels].reshape(len(labels), -1)


def _welch(a: Floats, b: Floats) -> Floats:
    """Return the size of Welch's t."""
    error = a.var(axis=1, ddof=1) / a.shape[1] + b.var(axis=1, ddof=1) / b.shape[1]
    return np.asarray(np.abs(a.mean(axis=1) - b.mean(axis=1)) / np.sqrt(error + _TINY**2))


def _levene(a: Floats, b: Floats) -> Floats:
    """Return Levene's W about the medians: the squared two-sample t of the distances to the median."""
    a, b = (np.abs(side - np.median(side, axis=1, keepdims=True)) for side in (a, b))
    n, m = a.shape[1], b.shape[1]
    variance = ((n - 1) * a.var(axis=1, ddof=1) + (m - 1) * b.var(axis=1, ddof=1)) / (n + m - 2)
    return np.asarray((a.mean(axis=1) - b.mean(axis=1)) ** 2 / (variance * (1 / n + 1 / m) + _TINY**2))


def _largest_gap(values: Floats, labels: Labels) -> Floats:
    """Return the Kolmogorov-Smirnov distance of sorted values, which may be equal."""
    last = np.append(values[1:] > values[:-1], True)
    inside = np.cumsum(labels, axis=1)[:, last]
    everyone = np.arange(1, len(values) + 1)[last]
    n, m = int(labels[0].sum()), int((~labels[0]).sum())
    return np.asarray(np.abs(inside / n - (everyone - inside) / m).max(axis=1))


def _within(distances: Floats, labels: Labels) -> tuple[list[Floats], list[Floats], Floats]:
    """Return means and variances of the distances within each side, and the energy distance from 0 to 1."""
    means, variances, sums = [], [], []
    for side in (labels.astype(np.float64), (~labels).astype(np.float64)):
        size = side[0].sum()
        pairs = size * (size - 1.0)
        sums.append(np.einsum("kn,kn->k", side @ distances, side))
        squares = np.einsum("kn,kn->k", side @ distances**2, side)
        means.append(sums[-1] / pairs)
        variances.append(np.maximum(squares / pairs - means[-1] ** 2, 0.0))
    n, m = labels[0].sum(), (~labels[0]).sum()
    between = (distances.sum() - sums[0] - sums[1]) / (2.0 * n * m)
    energy = (2.0 * between - sums[0] / n**2 - sums[1] / m**2) / np.maximum(2.0 * between, _TINY)
    return means, variances, energy.clip(min=0.0)


def _distances(rows: Floats) -> Floats:
    squares = np.einsum("nd,nd->n", rows, rows)
    between = squares[:, None] + squares - 2.0 * rows @ rows.T
    np.fill_diagonal(between, 0.0)
    return np.asarray(np.sqrt(between.clip(min=0.0)))


def _hedges(inside: Floats, outside: Floats) -> float:
    """Return Hedges' g: the difference of the averages in standard deviations, corrected for small samples."""
    n, m = len(inside), len(outside)
    pooled = math.sqrt(((n - 1) * inside.var(ddof=1) + (m - 1) * outside.var(ddof=1)) / (n + m - 2))
    return float((1.0 - 3.0 / (4.0 * (n + m) - 9.0)) * (inside.mean() - outside.mean()) / max(pooled, _TINY))


def _success(inside: Floats, outside: Floats, level: float = LEVEL) -> Success:
    """Return how often the smaller of two numbers is the inside one (equal ones count half), and its interval.

    By Hoeffding (1963, section 5) the share behaves no worse than an average of min(n, m) independent trials, so the
    values a with min(n, m) KL(share, a) <= log(2 / level) miss the truth at most that often, for any distributions.
    """
    n, m = len(inside), len(outside)
    ranks = stats.rankdata(np.concatenate([inside, outside]))
    share = 1.0 - float(ranks[:n].sum() - n * (n + 1) / 2) / (n * m)
    share = min(max(share, 0.0), 1.0)
    limit = math.log(2.0 / level) / min(n, m)

    def excess(a: float) -> float:
        return float(special.rel_entr(share, a) + special.rel_entr(1.0 - share, 1.0 - a)) - limit

    edge = 1e-15
    low = 0.0 if excess(edge) <= 0.0 else optimize.brentq(excess, edge, max(share, edge))
    high = 1.0 if excess(1.0 - edge) <= 0.0 else optimize.brentq(excess, min(share, 1.0 - edge), 1.0 - edge)
    return share, float(low), float(high)


def _p_or_one(test: Any, *sides: Floats, **options: Any) -> float:
    """Return a test's p-value, 1 where nothing varies."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        p = float(test(*sides, **options).pvalue)
    return p if math.isfinite(p) else 1.0


def _bars(inside: Floats, outside: Floats) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    high = max(float(inside.max()), float(outside.max()), _TINY)
    edges = np.linspace(0.0, high, _BARS + 1)
    shares = [np.histogram(side, edges)[0] / len(side) for side in (inside, outside)]
    return tuple(edges.tolist()), tuple(shares[0].tolist()), tuple(shares[1].tolist())
