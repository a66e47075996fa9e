"""A leak test of the accountant itself: could its reading of the records betray who was in the training set?

The Bayesian accountant reads gradient norms, and the papers read distances between gradients. Both are measured here
for records inside and outside the training set. If a model treats the two alike, they could be exchanged, so every
p-value comes from exchanging them at random (a permutation test). That is exact for any distribution, and for
distances too, although pairs that share a record are not independent.

References:
    Triastcyn, Data-Aware Privacy-Preserving Machine Learning, 2020, section 5.5.2 and figure 5.7.
    Hoeffding, Probability inequalities for sums of bounded random variables, 1963, section 5 (two-sample statistics).
    Székely and Rizzo, Energy statistics, 2013.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from tacita import _check
from tacita.label import AttackState, Chart, Finding, Hue, Series
from tacita.training.gradients import Loss, Parameters, length, record_norms
from tacita.training.records import Records
from tacita.training.step import check_clip_norm

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]
Pair = tuple[float, float]

LEVEL = 0.05  # the chance of a false alarm, all tests together
_EXCHANGES = 999
_FEWEST = 10  # records a side
_MOST_NORMS, _MOST_GRADIENTS = 2000, 500  # records a side
_MOST_WEIGHTS = 2**14  # gradients that are longer are sketched to so many numbers
_SMALL_SUCCESS = 2 / 3  # a guess that is right no more often than this is called a small leak
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
    success: tuple[float, float, float] | None = None
    unnoticed: float | None = None
    bars: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]

    @property
    def differs(self) -> bool:
        """Whether any check found a difference, at the level of all checks together."""
        return any(check.corrected < LEVEL for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Leak:
    """What was found. For the data's owner.

    Attributes:
        comparisons: One for each quantity.
        papers: p-values of the t-test and of Levene's test on all pairs, as in the papers: they treat pairs as
            independent, which they are not. None without gradients.
    """

    comparisons: tuple[Comparison, ...]
    papers: Pair | None = None

    @property
    def differs(self) -> bool:
        """Whether inside and outside differ in anything; a false alarm has a chance of at most 5%."""
        return any(c.differs for c in self.comparisons)

    @property
    def missed(self) -> float:
        """How often guessing which of two took part may be right, at most, by the 95% intervals."""
        return max(max(c.success[2], 1.0 - c.success[1]) for c in self.comparisons if c.success is not None)

    @property
    def state(self) -> AttackState:
        """`warning` for a difference; `open` if none was found, but more than two guesses of three could be right."""
        if self.differs:
            return "warning"
        return "not-refuted" if self.missed <= _SMALL_SUCCESS else "open"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"state": self.state, "differs": self.differs, "missed": self.missed, **asdict(self)}

    def finding(self) -> Finding:
        """Return the result for the owner's label."""
        return Finding(
            key="leak",
            heading="Does the reading itself betray who took part?",
            state=self.state,
            sentence=_sentence(self),
            columns=("What", "Inside", "Outside", "Difference", "p-value"),
            rows=tuple(row for c in self.comparisons for row in _rows(c)),
            chart=_chart(self.comparisons),
            notes=_notes(self),
        )


def leak(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    epsilon_inside: ArrayLike | None = None,
    epsilon_outside: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Leak:
    """Compare records inside the training set with records outside.

    Args:
        inside: Clipped gradients over the clip norm, one row for each record, or only their norms.
        outside: The same for records that were not trained on.
        epsilon_inside: Each followed training record's own epsilon, from `BayesianAccountant.epsilons`.
        epsilon_outside: The same for the held-out records.
        rng: Chooses whom to compare where there are many, and the exchanges. None is seeded by the system.

    Guarantee:
        If inside and outside are exchangeable, `differs` is true with probability at most 5%, whatever the
        distributions. The intervals of `success` cover, all together, with at least 95% if the records of a side are
        independent. Finding no difference proves nothing: `missed` says how large one may still be.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> found = leak(0.5 * rng.random(400), rng.random(400), rng=rng)
        >>> found.differs, found.state
        (True, 'warning')
    """
    rng = rng or np.random.default_rng()
    sides = _matrix("inside", inside), _matrix("outside", outside)
    if sides[0].ndim != sides[1].ndim or sides[0].shape[1:] != sides[1].shape[1:]:
        raise ValueError(
            f"inside and outside must be both norms or gradients of one length, got shapes {sides[0].shape} and "
            f"{sides[1].shape}."
        )
    norms = [side if side.ndim == 1 else np.linalg.norm(side, axis=1) for side in sides]
    norms = [_check.norms(name, np.where(n < 1.0 + 1e-6, n.clip(max=1.0), n)) for name, n in _named(norms)]
    gradients = [_some(side, _MOST_GRADIENTS, rng) for side in sides] if sides[0].ndim == 2 else None
    return _compare(norms, gradients, _epsilons(epsilon_inside, epsilon_outside), rng)


def leak_test(
    loss: Loss,
    parameters: Mapping[str, Tensor],
    inside: Any,
    outside: Any,
    *,
    clip_norm: float,
    epsilon_inside: ArrayLike | None = None,
    epsilon_outside: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Leak:
    """Measure gradients of records at the given parameters and compare inside with outside, as `leak` does.

    At most 2000 records a side give norms and 500 distances. Gradients of more than 16,384 weights are sketched:
    every weight goes to one of 16,384 sums with a random sign, the same for all records, which keeps distances to
    about 1% and the p-values exact.

    Args:
        loss: Of the parameters and one record, such as `tacita.training.records.record_loss` makes.
        parameters: Where to differentiate, usually the trained model's.
        inside: Records that were trained on; any dataset that `PrivateTraining` takes.
        outside: Records like them that were not.
        clip_norm: The training's.
        epsilon_inside: As in `leak`.
        epsilon_outside: As in `leak`.
        rng: As in `leak`.
    """
    rng = rng or np.random.default_rng()
    c, epsilons = check_clip_norm(clip_norm), _epsilons(epsilon_inside, epsilon_outside)
    fixed = {name: p.detach() for name, p in parameters.items()}
    device = next(iter(fixed.values())).device
    sketch = _sketch(sum(p.numel() for p in fixed.values()), rng)
    norms, gradients = [], []
    for name, dataset in _named((inside, outside)):
        records = Records(dataset, device)
        _require(name, len(records))
        chosen = _some(np.arange(len(records)), _MOST_NORMS, rng)
        batch = records.take(chosen)
        norms.append(np.minimum(record_norms(loss, fixed, batch).numpy() / c, 1.0))
        few = tree_map(lambda t: t[:_MOST_GRADIENTS], batch)
        gradients.append(np.concatenate([sketch(g) for g in _clipped_gradients(loss, fixed, few, c)]))
    return _compare(norms, gradients, epsilons, rng)


# Measuring.


def _clipped_gradients(loss: Loss, parameters: Parameters, records: Any, clip_norm: float) -> Iterator[Floats]:
    """Yield clipped gradients over the clip norm, a few records at a time; zero for one that is not finite."""
    differentiate = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    weights = sum(p.numel() for p in parameters.values())
    chunk = max(1, min(256, 2**24 // weights))
    for start in range(0, length(records), chunk):
        part = tree_map(lambda t, start=start: t[start : start + chunk], records)
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():  # as in training: no fused per-record form
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = differentiate(parameters, part)
        flat = torch.cat([g.double().flatten(1) for g in found.values()], 1)
        norm = flat.norm(dim=1)
        factor = torch.where(norm.isfinite(), 1.0 / norm.clamp_min(clip_norm), 0.0)
        yield (flat.nan_to_num(0.0, 0.0, 0.0) * factor[:, None]).cpu().numpy()


def _sketch(weights: int, rng: np.random.Generator) -> Any:
    if weights <= _MOST_WEIGHTS:
        return lambda gradients: gradients
    place = torch.from_numpy(rng.integers(_MOST_WEIGHTS, size=weights))
    sign = torch.from_numpy(rng.choice([-1.0, 1.0], size=weights))

    def sketch(gradients: Floats) -> Floats:
        sums = torch.zeros(len(gradients), _MOST_WEIGHTS, dtype=torch.float64)
        return np.asarray(sums.index_add_(1, place, torch.from_numpy(gradients) * sign))

    return sketch


# Comparing.


def _compare(
    norms: list[Floats], gradients: list[Floats] | None, epsilons: list[Floats] | None, rng: np.random.Generator
) -> Leak:
    numbers = {"gradient norm": norms} if epsilons is None else {"gradient norm": norms, "own epsilon": epsilons}
    made = [
        _compare_numbers(quantity, [_some(side, _MOST_NORMS, rng) for side in sides], LEVEL / len(numbers), rng)
        for quantity, sides in numbers.items()
    ]
    papers = None
    if gradients is not None:
        tests = 3 * len(made) + 3
        distances, papers = _compare_distances(gradients, LEVEL / tests, rng)
        made.append(distances)
    return Leak(comparisons=_correct(made), papers=papers)


def _compare_numbers(quantity: str, sides: list[Floats], level: float, rng: np.random.Generator) -> Comparison:
    """Compare one number for each record; the interval of `success` misses with a chance of at most `level`."""
    inside, outside = sides
    pooled = np.concatenate(sides)
    order = np.argsort(pooled, kind="stable")
    values = pooled[order]
    labels = _exchanges(len(inside), len(pooled), rng)[:, order]
    a, b = _split(values, labels)
    gap = _largest_gap(values, labels)
    spreads = _deviation(inside), _deviation(outside)
    return Comparison(
        quantity=quantity,
        records=(len(inside), len(outside)),
        averages=(float(inside.mean()), float(outside.mean())),
        spreads=spreads,
        checks=(
            _checked("average", "Welch's t", _hedges(inside, outside), _welch(a, b)),
            _checked("spread", "Levene's W", _ratio(*spreads), _levene(a, b)),
            _checked("distribution", "Kolmogorov-Smirnov distance", float(gap[0]), gap),
        ),
        success=_success(inside, outside, level),
        bars=_bars(inside, outside),
    )


def _compare_distances(gradients: list[Floats], level: float, rng: np.random.Generator) -> tuple[Comparison, Pair]:
    """Compare the distances between records of one side with those of the other."""
    n, m = len(gradients[0]), len(gradients[1])
    distances = _distances(np.concatenate(gradients))
    means, variances, energy = _within(distances, _exchanges(n, n + m, rng))
    inside, outside = (side[np.triu_indices(len(side), 1)] for side in (distances[:n, :n], distances[n:, n:]))
    spreads = _deviation(inside), _deviation(outside)
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
            _checked("spread", "ratio of the variances", _ratio(*spreads), ratios),
            _checked("distribution", "energy distance", float(energy[0]), energy),
        ),
        unnoticed=float(np.quantile(gaps[1:], 1.0 - level, method="higher") / pooled),
        bars=_bars(inside, outside),
    )
    return made, (_or_one(stats.ttest_ind, inside, outside, equal_var=False), _or_one(stats.levene, inside, outside))


def _exchanges(inside: int, records: int, rng: np.random.Generator) -> Labels:
    """Return who is inside: first as it was, then as it might have been, one row each."""
    truth = np.arange(records) < inside
    return np.concatenate([truth[None], rng.permuted(np.tile(truth, (_EXCHANGES, 1)), axis=1)])


def _checked(of: str, test: str, effect: float, statistics: Floats) -> Check:
    """Return the share of exchanges, the true one included, whose statistic is as large as the true one."""
    as_large = statistics >= statistics[0] - 1e-9 * abs(statistics[0])
    return Check(of=of, test=test, effect=effect, p_value=float(as_large.mean()))


def _correct(made: list[Comparison]) -> tuple[Comparison, ...]:
    """Correct p-values for being many (Holm): the smallest of k counts k times, the next k - 1 times, and so on."""
    p = np.array([check.p_value for c in made for check in c.checks])
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order]).clip(max=1.0)
    values = iter(corrected.tolist())
    return tuple(replace(c, checks=tuple(replace(k, corrected=next(values)) for k in c.checks)) for c in made)


# Statistics, each for many ways to split the records, one row each.


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


def _success(inside: Floats, outside: Floats, level: float = LEVEL) -> tuple[float, float, float]:
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


def _ratio(inside: float, outside: float) -> float:
    return max(inside, _TINY) / max(outside, _TINY)


def _deviation(values: Floats) -> float:
    return float(values.std(ddof=1))


def _or_one(test: Any, *sides: Floats, **options: Any) -> float:
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


# Arguments.


def _named(sides: Any) -> Iterator[tuple[str, Any]]:
    return zip(("inside", "outside"), sides, strict=True)


def _matrix(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise TypeError(f"{name} must be an array of norms, or of gradients with a row for each record.")
    _require(name, len(array))
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; a record whose gradient is not finite contributes zero.")
    return array.astype(np.float64)


def _require(name: str, records: int) -> None:
    if records < _FEWEST:
        raise ValueError(f"{name} must hold at least {_FEWEST} records, got {records}; fewer show no difference.")


def _epsilons(inside: ArrayLike | None, outside: ArrayLike | None) -> list[Floats] | None:
    if inside is None and outside is None:
        return None
    if inside is None or outside is None:
        raise ValueError("Give epsilon_inside and epsilon_outside together: one alone has nothing to compare with.")
    sides = [_matrix("epsilon_inside", inside), _matrix("epsilon_outside", outside)]
    if any(side.ndim != 1 or side.min() < 0.0 for side in sides):
        raise ValueError("epsilon_inside and epsilon_outside must hold one number of at least 0 for each record.")
    return sides


def _some(rows: Any, most: int, rng: np.random.Generator) -> Any:
    """Return at most so many rows, in random order."""
    return rows[rng.permutation(len(rows))[:most]]


# In words.


def _sentence(found: Leak) -> str:
    inside, outside = found.comparisons[0].records
    if not found.differs:
        return (
            f"No difference found between {inside:,} records inside the training set and {outside:,} outside. That "
            f"does not prove that there is none: guessing from their readings which of two records took part could "
            f"still be right in up to {_of_hundred(found.missed, up=True)} of 100 cases (with 95% confidence), where a "
            f"coin's toss is right in 50."
        )
    different = [c for c in found.comparisons if c.differs]
    kinds = "; ".join(f"{c.quantity} ({', '.join(k.of for k in c.checks if k.corrected < LEVEL)})" for c in different)
    text = f"Records inside the training set differ from records outside, by {kinds}. "
    told = [c for c in different if c.success is not None]
    if told:
        text += _guess(max(told, key=lambda c: abs(c.success[0] - 0.5) if c.success else 0.0)) + " "
    return text + "Figures read from single records must stay with the owner."


def _guess(c: Comparison) -> str:
    which, (share, low, high) = _pointed(c)
    return (
        f"Of two records, one inside and one outside, the one with the {which} {c.quantity} is the one inside in "
        f"{_of_hundred(share)} of 100 cases (95% interval: {_of_hundred(low)} to {_of_hundred(high, up=True)}; a "
        f"coin's toss is right in 50)."
    )


def _pointed(c: Comparison) -> tuple[str, tuple[float, float, float]]:
    share, low, high = c.success or (0.5, 0.0, 1.0)
    return ("smaller", (share, low, high)) if share >= 0.5 else ("larger", (1.0 - share, 1.0 - high, 1.0 - low))


def _of_hundred(share: float, *, up: bool = False) -> str:
    return f"{math.ceil(100.0 * share - 1e-9) if up else math.floor(100.0 * share + 1e-9)}"


def _rows(c: Comparison) -> Iterator[tuple[str, ...]]:
    average, spread, distribution = c.checks
    name = c.quantity[0].upper() + c.quantity[1:]
    yield (f"{name}: average", *map(_short, c.averages), f"{average.effect:+.2f} sd", _p(average))
    yield (f"{name}: spread", *map(_short, c.spreads), f"ratio {spread.effect:.3g}", _p(spread))
    yield (f"{name}: distribution", "", "", f"gap {distribution.effect:.2g}", _p(distribution))
    if c.success is not None:
        which, (share, low, high) = _pointed(c)
        yield (f"The {which} of two is the one inside", "", "", f"{share:.0%} ({low:.0%} to {high:.0%})", "")


def _short(value: float) -> str:
    return f"{value:.3g}"


def _p(check: Check) -> str:
    return f"{check.corrected:.2g}" if check.corrected >= 0.01 else "< 0.01"


def _notes(found: Leak) -> tuple[str, ...]:
    notes = [
        "Inside: records the model was trained on. Outside: records like them that it never saw. Gradient norms and "
        "distances are in units of the clip norm, after clipping: what the accountant reads.",
        "This is more than an outsider sees. The limit for anyone does not depend on the data and betrays nobody; "
        "only figures read from the data, which are on the owner's page alone, are in question.",
        f"p-values come from exchanging records between the two sides at random, {_EXCHANGES} times, and are corrected "
        f"for being many (Holm): the chance of any false alarm is at most {LEVEL:.0%}.",
        "Of two records, one from each side, the share in which the number tells the inside one has an interval: 95% "
        "for all shares together, for any distribution, if the records of a side are independent draws (Hoeffding's "
        "bound). A gap is 0 for equal distributions and 1 for separate ones.",
    ]
    distances = found.comparisons[-1]
    if found.papers is not None and distances.unnoticed is not None:
        notes.append(
            "The test takes a difference between average distances for real from about "
            f"{distances.unnoticed:.2g} standard deviations (sd) up; smaller ones go unnoticed."
        )
        notes.append(
            f"As in the papers, on all pairs: t-test p = {found.papers[0]:.2g}, Levene's p = {found.papers[1]:.2g}. "
            "These treat pairs as independent, which they are not, so they decide nothing here."
        )
    return tuple(notes)


def _chart(comparisons: tuple[Comparison, ...]) -> Chart:
    """Draw the norms, or the distances where most norms are at the clip norm and the picture would be one bar."""
    norms, last = comparisons[0], comparisons[-1]
    clipped = min(norms.bars[1][-1], norms.bars[2][-1]) > 0.5
    shown = last if clipped and last.unnoticed is not None else norms
    edges, inside, outside = shown.bars
    each = "records" if shown.unnoticed is None else "pairs of records"
    return Chart(
        heading=f"Inside and outside the training set: {shown.quantity}",
        caption="The more the two lines differ, the more a reading tells about who took part.",
        description=(
            f"Two histograms of the {shown.quantity}. Inside: average {_short(shown.averages[0])}, standard deviation "
            f"{_short(shown.spreads[0])}. Outside: average {_short(shown.averages[1])}, standard deviation "
            f"{_short(shown.spreads[1])}."
        ),
        x_title=f"{shown.quantity}, over the clip norm",
        y_title=f"% of the {each}",
        series=(_steps("anyone", "Inside", edges, inside), _steps("typical", "Outside", edges, outside)),
    )


def _steps(hue: Hue, name: str, edges: tuple[float, ...], shares: tuple[float, ...]) -> Series:
    """Return a histogram as a line with corners."""
    heights = [0.0, *(100.0 * share for share in shares), 0.0]
    corners = [(x, y) for i, x in enumerate(edges) for y in heights[i : i + 2]]
    return Series(hue=hue, name=name, points=tuple(corners))
