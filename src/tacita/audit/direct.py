"""Direct tests of a private step: are its noise, the canaries' contributions and the sampling as declared?

Where no canary was drawn a step shows its noise and nothing else; where one was drawn, its contribution as well. If the
step is as declared, every statistic here has a known law: chi-square, binomial or normal, or a tail that is bounded by
its moments (Chernoff, Hoeffding). Several statistics of one kind are combined by the union bound, and so are the kinds.
Too much noise and too low a sampling rate are no faults of privacy: neither raises an alarm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, chi2, norm

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

Kind = Literal[
    "noise", "steps", "parts", "coordinates", "shape", "correlated", "repeated", "shared",
    "contribution", "largest", "rate", "coins",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
ERROR = 5e-7  # the chance that any of the tests raises an alarm on a step that is as declared
SHARE = ERROR / len(KINDS)
FAULT_TEXTS: dict[Kind, str] = {
    "noise": "there is less noise than declared",
    "steps": "a step has less noise than declared",
    "parts": "a part of the gradient has less noise than declared",
    "coordinates": "some coordinates have less noise than declared",
    "shape": "the noise has too many small values or too few large ones",
    "correlated": "the noise of one step depends on that of another",
    "repeated": "two steps have the same noise, or its opposite",
    "shared": "coordinates share their noise",
    "contribution": "records contribute more than the clip norm and the sample rate allow",
    "largest": "some contributions are far above the clip norm",
    "rate": "records are drawn more often than the sample rate says",
    "coins": "records are not drawn independently of each other",
}
_ROUNDING = 1.0 + 1e-5  # clipping in float32 may leave a contribution this much too long
_RATES = (1e-2, 1e-4, 1e-6)  # chances of values that are counted
_LAGS = 5
_WORD = 256  # signs by which steps are compared
_SPECTRA = 64  # steps whose coordinates are compared
_BLOCKS = (1, 8, 64, 512, 4096)
_TILTS = 120  # points of a search for the best Chernoff bound


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test for one kind of fault, and its p-value: the chance of such data if the step is as declared."""

    __test__ = False  # not one of pytest's

    kind: Kind
    p: float

    @property
    def failed(self) -> bool:
        """Whether chance alone does not explain the data, at the level of one kind of test."""
        return self.p <= SHARE


class Direct:
    """All direct tests; steps are added one by one.

    Args:
        present: Which canaries are in the data.
        sample_rate: What is declared.
        noise_multiplier: What is declared.
        parts: Which part of the gradient each canary is in, 0, 1, …
    """

    def __init__(self, present: Any, *, sample_rate: float, noise_multiplier: float, parts: Any = None) -> None:
        self.present = np.asarray(present, dtype=bool)
        where = np.zeros(len(self.present), dtype=np.int64) if parts is None else np.asarray(parts)
        self.scale = _Scale(where, noise_multiplier)
        self._signs = _Signs(~self.present, noise_multiplier)
        self._given = _Contributions(self.present, where, sample_rate)
        self._draws = _Draws(int(self.present.sum()), sample_rate)

    def add(self, seen: Floats, level: float = 1.0, drawn: Any = None) -> None:
        """Add one step: what was seen of each canary, what all were bounded by, and if known who was drawn."""
        quiet = ~self.present if drawn is None else ~(self.present & drawn)
        scale = self.scale.add(seen, quiet)
        self._signs.add(seen)
        self._given.add(seen, level, scale, None if drawn is None else self.present & drawn)
        if drawn is not None:
            self._draws.add(drawn[self.present])

    def tests(self) -> tuple[Test, ...]:
        """Return the result of every kind of test that there are data for."""
        made = self.scale.tests(), self._signs.tests(), self._given.tests(self.scale.used), self._draws.tests()
        chances = {kind: [p for found in made for p in found.get(kind, ())] for kind in KINDS}
        return tuple(Test(kind=kind, p=min(1.0, len(ps) * float(min(ps)))) for kind, ps in chances.items() if ps)


class _Scale:
    """The size of the noise where no canary contributes: overall, and by step, part, block and value."""

    def __init__(self, parts: Any, noise_multiplier: float) -> None:
        self.parts, self.sigma = parts, noise_multiplier
        self.squares: Floats = np.zeros(len(parts))
        self.looks: Counts = np.zeros(len(parts), dtype=np.int64)
        self.steps: list[tuple[float, int]] = []
        rates = np.array(_RATES)
        self._edges = norm.ppf(0.5 + rates / 2.0), norm.isf(rates / 2.0)
        self._found = np.zeros((2, len(rates)), dtype=np.int64)  # values nearer to 0, and farther from it, than those
        self.used = noise_multiplier

    def add(self, seen: Floats, quiet: Any) -> float:
        """Add one step; return the scale to judge contributions by: the declared one, or one that is clearly larger."""
        each = np.where(quiet, np.square(seen / self.sigma), 0.0)
        self.squares += each
        self.looks += quiet
        self.steps.append((float(each.sum()), int(np.count_nonzero(quiet))))
        size = np.abs(seen[quiet]) / self.sigma
        near, far = self._edges
        self._found += [[np.count_nonzero(size <= edge) for edge in near], [np.count_nonzero(size > e) for e in far]]
        ratio, spread = self.ratio, 4.0 / math.sqrt(2.0 * max(1, int(self.looks.sum())))
        self.used = self.sigma * (ratio + spread if ratio > 1.0 + spread else 1.0)
        return self.used

    @property
    def ratio(self) -> float:
        """The measured noise over the declared one."""
        return math.sqrt(float(self.squares.sum()) / max(1, int(self.looks.sum())))

    def tests(self) -> dict[Kind, Iterable[float]]:
        total = int(self.looks.sum())
        if not total:
            return {}
        squares, looks = np.array([s for s, _ in self.steps]), np.array([n for _, n in self.steps])
        near, far = self._found
        rates = np.array(_RATES)
        return {
            "noise": [chi2.cdf(self.squares.sum(), total)],
            "steps": _low(squares, looks),
            "parts": _low(np.bincount(self.parts, self.squares), np.bincount(self.parts, self.looks)),
            "coordinates": list(self._blocks()),
            "shape": np.append(binom.sf(near - 1, total, rates), binom.cdf(far, total, rates)),
        }

    def _blocks(self) -> Iterable[float]:
        """Yield the p-values of blocks of neighbours, and of the number of coordinates with little noise."""
        for size in _BLOCKS:
            starts = np.arange(0, len(self.squares), size)
            found = _low(np.add.reduceat(self.squares, starts), np.add.reduceat(self.looks, starts))
            yield from found
            if size == 1 and len(found):
                yield from (binom.sf(np.count_nonzero(found <= rate) - 1, len(found), rate) for rate in _RATES)


def _low(squares: Any, looks: Any) -> Any:
    """Return the p-values of sums of squares; small if there is too little noise."""
    some = looks > 0
    return chi2.cdf(squares[some], looks[some])


class _Signs:
    """Whether noise depends on other noise, tested by its signs where no canary is: fair coins at any scale.

    Products of signs along the edges of a forest are independent fair coins, and pairs a fixed distance apart are one.
    """

    def __init__(self, absent: Any, noise_multiplier: float) -> None:
        self.absent, self.count, self.sigma = absent, int(np.count_nonzero(absent)), noise_multiplier
        self._before: deque[Any] = deque(maxlen=_LAGS)
        self._agreed: Counts = np.zeros(_LAGS, dtype=np.int64)
        self._sums: Floats = np.zeros((2, self.count))  # of even and of odd steps
        self._words: list[bytes] = []
        self._length = next_fast_len(2 * len(absent), real=True)
        self._spectrum: Any = 0.0
        self.steps = 0

    def add(self, seen: Floats) -> None:
        noise = seen[self.absent]
        signs = noise > 0.0
        for lag, before in enumerate(reversed(self._before)):
            self._agreed[lag] += np.count_nonzero(signs == before)
        self._before.append(signs)
        self._sums[self.steps % 2] += noise
        self._words.append(np.packbits(signs[:_WORD] == signs[:1]).tobytes())  # the same for the opposite signs
        if self.steps < _SPECTRA:
            self._spectrum = self._spectrum + self._power(np.where(seen > 0.0, 1.0, -1.0) * self.absent)
        self.steps += 1

    def _power(self, values: Any) -> Any:
        return np.square(np.abs(rfft(values, self._length)))

    def tests(self) -> dict[Kind, Iterable[float]]:
        if self.count < 2:
            return {}
        return {"correlated": self._correlated(), "repeated": self._repeated(), "shared": self._shared()}

    def _correlated(self) -> list[float]:
        """Return the p-values of the signs' agreement at short lags, and of the sums over the steps."""
        pairs = [self.count * max(0, self.steps - lag) for lag in range(1, _LAGS + 1)]
        found = [_fair(int(k), n) for k, n in zip(self._agreed, pairs, strict=True) if n]
        if self.steps > 1:
            even, odd = self._sums
            found.append(_fair(int(np.count_nonzero((even > 0.0) == (odd > 0.0))), self.count))
            total = float(np.square((even + odd) / self.sigma).sum()) / self.steps
            found.append(float(chi2.cdf(total, self.count)))  # what cancels out over the steps
        return found

    def _repeated(self) -> list[float]:
        """Return a bound on the chance that two steps have equal or opposite signs, 1 if no two have."""
        bits = min(_WORD, self.count)
        pairs = self.steps * (self.steps - 1) // 2
        alike = len(set(self._words)) < self.steps
        return [min(1.0, pairs * 2.0 ** (1 - bits)) if alike else 1.0] if pairs else []

    def _shared(self) -> list[float]:
        """Return a bound on the chance of the signs' agreement within a step, at any distance (Hoeffding)."""
        steps, size = min(self.steps, _SPECTRA), len(self.absent)
        products = np.rint(irfft(self._spectrum, self._length))[1:size]
        pairs = steps * np.rint(irfft(self._power(self.absent.astype(float)), self._length))[1:size]
        some = pairs > 0
        return [2.0 * float(np.exp(-np.square(products[some]) / (2.0 * pairs[some])).min()) * int(some.sum())]


def _fair(heads: int, tosses: int) -> float:
    """Return the two-sided p-value of a number of heads, for a fair coin."""
    return min(1.0, 2.0 * float(min(binom.cdf(heads, tosses, 0.5), binom.sf(heads - 1, tosses, 0.5))))


class _Contributions:
    """Whether canaries contribute more than the bound: on average, and at most."""

    def __init__(self, present: Any, parts: Any, sample_rate: float) -> None:
        self.present, self.parts, self.rate = present, parts, sample_rate
        self._known: Floats = np.zeros((2, int(parts.max(initial=0)) + 1))  # what is too much, over the noise; how many
        self._looks, self._large = 0, np.zeros(len(_RATES), dtype=np.int64)
        self._sums: Floats = np.zeros(int(np.count_nonzero(present)))
        self._levels: dict[float, int] = {}
        self._variance = 0.0

    def add(self, seen: Floats, level: float, scale: float, drawn: Any) -> None:
        values, most = seen[self.present], level * _ROUNDING
        self._sums += values
        self._levels[most] = self._levels.get(most, 0) + 1
        self._variance += scale**2
        if drawn is None:
            edges = [_edge(rate, most / scale, self.rate) for rate in _RATES]
            found = values / scale
        else:
            edges = [float(norm.isf(rate)) for rate in _RATES]
            found = (seen[drawn] - most) / scale
            self._known[0] += np.bincount(self.parts[drawn], found, minlength=self._known.shape[1])
            self._known[1] += np.bincount(self.parts[drawn], minlength=self._known.shape[1])
        self._looks += len(found)
        self._large += [np.count_nonzero(found > edge) for edge in edges]

    def tests(self, scale: float) -> dict[Kind, Iterable[float]]:
        if not len(self._sums):
            return {}
        much, looks = self._known[:, self._known[1] > 0]
        known = norm.sf(np.append(much.sum() / math.sqrt(looks.sum()), much / np.sqrt(looks))) if len(looks) else []
        return {
            "contribution": np.append(known, self._total()),
            "largest": np.atleast_1d(binom.sf(self._large - 1, self._looks, np.array(_RATES))),
            "coins": self._spread(scale),
        }

    def _total(self) -> float:
        """Return a bound on the chance of so large a sum over all canaries that are present (Chernoff)."""
        count, total = len(self._sums), float(self._sums.sum())
        excess = total - count * self.rate * sum(level * n for level, n in self._levels.items())
        if excess <= 0.0:
            return 1.0
        widest = math.sqrt(count * (self._variance + self.rate * sum(n * c**2 for c, n in self._levels.items())))
        tilts = np.minimum(np.geomspace(0.1, 100.0, _TILTS) / widest, 50.0)
        logs = 0.5 * count * self._variance * np.square(tilts) - tilts * total
        for level, steps in self._levels.items():
            logs += count * steps * np.log1p(self.rate * np.expm1(tilts * level))
        return float(np.exp(min(0.0, logs.min())))

    def _spread(self, scale: float) -> list[float]:
        """Return a bound on the chance that canaries' sums over the steps vary this much (Chernoff).

        They vary no more around their own mean than around the declared one.
        """
        if len(self._levels) != 1:
            return []
        ((level, steps),) = self._levels.items()
        variance = steps * scale**2
        found = float(np.square(self._sums - self._sums.mean()).sum())
        draws = np.arange(steps + 1)
        away, logs = np.square(level * (draws - steps * self.rate)), binom.logpmf(draws, steps, self.rate)
        tilts = np.geomspace(1e-5, 0.999, _TILTS) / (2.0 * variance)
        room = 1.0 - 2.0 * variance * tilts
        count = len(self._sums)
        each = [logsumexp(logs + tilt * away / r) for tilt, r in zip(tilts, room, strict=True)]
        bounds = count * (np.array(each) - 0.5 * np.log(room)) - tilts * found
        return [float(np.exp(min(0.0, bounds.min())))]


@lru_cache(maxsize=256)
def _edge(rate: float, level: float, sample_rate: float) -> float:
    """Return the upper `rate` quantile of a mixture of N(level, 1) and N(0, 1)."""

    def above(x: float) -> float:
        return float(sample_rate * norm.sf(x - level) + (1.0 - sample_rate) * norm.sf(x)) - rate

    low = float(norm.isf(rate))
    return float(brentq(above, low - 1.0, low + level + 1.0, xtol=1e-12))


class _Draws:
    """Whether canaries are drawn by independent coins, one for every canary and step."""

    def __init__(self, count: int, sample_rate: float) -> None:
        self.count, self.rate = count, sample_rate
        self._times: Counts = np.zeros(count, dtype=np.int64)
        self._sizes: list[int] = []
        self._before: deque[Any] = deque(maxlen=_LAGS)
        self._both: Counts = np.zeros((_LAGS, 2, 2), dtype=np.int64)  # by distance and turn: drawn twice, pairs

    def add(self, drawn: Any) -> None:
        step = len(self._sizes)
        for lag, before in enumerate(reversed(self._before), start=1):
            turn = (step - lag) // lag % 2  # pairs of one turn do not overlap, so they are independent
            self._both[lag - 1, turn] += (np.count_nonzero(drawn & before), self.count)
        self._before.append(drawn)
        self._times += drawn
        self._sizes.append(int(np.count_nonzero(drawn)))

    def tests(self) -> dict[Kind, Iterable[float]]:
        steps, sizes = len(self._sizes), np.array(self._sizes)
        if not steps or not self.count:
            return {}
        total = binom.sf(sizes.sum() - 1, steps * self.count, self.rate)
        return {"rate": [total, *binom.sf(sizes - 1, self.count, self.rate)], "coins": list(self._coins(steps, sizes))}

    def _coins(self, steps: int, sizes: Any) -> Iterable[float]:
        """Yield p-values of canaries drawn often, of those drawn at two steps, and of batch sizes that are too even."""
        yield self.count * float(binom.sf(self._times.max() - 1, steps, self.rate))
        for rate in _RATES:
            often = int(binom.isf(rate, steps, self.rate)) + 1
            chance = float(binom.sf(often - 1, steps, self.rate))
            yield float(binom.sf(np.count_nonzero(self._times >= often) - 1, self.count, chance))
        twice, pairs = self._both.reshape(-1, 2).T
        yield from np.atleast_1d(binom.sf(twice - 1, pairs, self.rate**2))[pairs > 0]
        low, high = (float(binom.ppf(at, self.count, self.rate)) for at in (0.45, 0.55))
        middle = float(binom.cdf(high, self.count, self.rate) - binom.cdf(low - 1, self.count, self.rate))
        yield float(binom.sf(np.count_nonzero((sizes >= low) & (sizes <= high)) - 1, steps, middle))
