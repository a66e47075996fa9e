"""Evidence on canaries, added up step by step, and what it proves: lower bounds on epsilon, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from tacita import _codec
from tacita._numbers import delta_text, percent_text, round_up_text, success_text
from tacita._progress import Progress
from tacita.accounting import NORM_LEVELS, RecordCurves, level_of, record_curves
from tacita.assumptions import assume
from tacita.audit.direct import FAULT_TEXTS, Test
from tacita.estimators import share_at_least
from tacita.guarantee import Guarantee
from tacita.label import AttackState, Bound, Points

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

CONFIDENCES = (0.95, 0.9995)
VERDICTS: dict[AttackState, str] = {"not-refuted": "not refuted", "open": "no verdict", "warning": "claim broken"}
CERTAIN = 1.0 - 1e-6  # the confidence at which a claim is called broken
_NOISE = (0.02, 1e4)  # noise multipliers searched for a lower bound
_TOLERANCE = 1.005  # the curves that lower bounds are read from are this close to dp-accounting's
_SMALL_DELTA = 1e-7
_FEWEST_PROBES = 8
_FEWEST_ALARMS, _POINTS = 20, 30  # of a drawn curve: where it begins, and how many points it has
_LARGEST = 600.0  # exponents that do not overflow
_RARE = 0.005  # the rate of false alarms at which the assumption-free bound is read


def paced(steps: int, progress: Progress | None, stop: Callable[[], bool] | None) -> Iterator[int]:
    """Yield 0, 1, … below `steps`, at least one; report progress after each, and end early if `stop` says so."""
    for step in range(steps):
        if step and stop is not None and stop():
            return
        yield step
        if progress is not None:
            progress(step + 1, steps, "step")


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What canaries found, beside the claim.

    Attributes:
        who: What kind of record the canaries were.
        canaries: How many guesses were made, one for each canary.
        right: How many of them were right.
        allowed: The largest chance of a right guess that the claim allows.
        epsilon: The claim, an upper bound.
        delta: The delta of the claim and of the lower bounds.
        steps: Steps replayed.
        lower: {confidence: lower bound on epsilon}, read through the mechanism's own family of privacy curves, and cut
            off at the claim unless the claim is broken.
        free: {confidence: lower bound on epsilon} whatever the mechanism's shape is; far from tight.
        guessed: True if a lower bound is above the claim, or more guesses are right than the declared mechanism, or the
            records' own accounts, allow.
        doubtful: True if the 99.95% bound reached the claim without breaking it: once in 2000 audits if all is well.
        part: The part of the gradient in which guesses broke it, if it was not all of it.
        tests: Direct tests of the noise, the contributions and the sampling, if they were made.
        noise: The noise that was measured over the declared one.
        roc: (false alarms, canaries found) as shares, where enough false alarms were seen.
    """

    who: str
    canaries: int
    right: int
    allowed: float
    epsilon: float
    delta: float
    steps: int
    lower: dict[float, float]
    free: dict[float, float]
    guessed: bool
    doubtful: bool = False
    part: int | None = None
    tests: tuple[Test, ...] = ()
    noise: float | None = None
    roc: Points = ()

    def __str__(self) -> str:
        lines = [
            f"{self.who}: {self.verdict}.",
            f"  claimed: epsilon at most {round_up_text(self.epsilon)} at delta {delta_text(self.delta)}, "
            f"{self.steps} steps",
            *(
                f"  proved:  epsilon at least {round_up_text(lower, up=False)} ({confidence:.2%} confidence); "
                f"{round_up_text(self.free[confidence], up=False)} whatever the mechanism's shape is"
                for confidence, lower in self.lower.items()
            ),
            f"  guesses: {percent_text(self.right / self.canaries)} of {self.canaries:,} right; "
            f"the claim allows {success_text(self.allowed)}",
        ]
        if self.tests:
            failed = "; ".join(FAULT_TEXTS[test.kind] for test in self.faults) or "nothing found"
            lines.append(f"  tests:   {len(self.tests)} of noise, contributions and sampling: {failed}")
        return "\n".join(lines)

    @property
    def broken(self) -> bool:
        """Whether guesses or a direct test broke the claim: for a correct mechanism, once in a million audits."""
        return self.guessed or bool(self.faults)

    @property
    def faults(self) -> tuple[Test, ...]:
        """The direct tests that failed: the mechanism is not as declared."""
        return tuple(test for test in self.tests if test.failed)

    @property
    def state(self) -> AttackState:
        """`warning` if the claim is broken, `open` if the audit should be repeated."""
        return "warning" if self.broken else "open" if self.doubtful else "not-refuted"

    @property
    def verdict(self) -> str:
        """The state in words: `claim broken`, `no verdict` or `not refuted`."""
        return VERDICTS[self.state]

    @property
    def bound(self) -> Bound:
        """The lower bound beside the claim, for the label's picture."""
        return Bound(who=self.who, lower=self.lower[CONFIDENCES[-1]], upper=self.epsilon, state=self.state)

    def guarantee(self, confidence: float = CONFIDENCES[-1]) -> Guarantee:
        """Return the lower bound as a typed statement. It was computed from private data or an unpublished run."""
        return Guarantee(
            kind="empirical_lower",
            epsilon=self.lower[confidence],
            delta=self.delta,
            method="canaries",
            scope="reading",
            assumptions=(
                assume("audit-confidence", confidence=f"{confidence:.2%}"),
                assume("sampled-gaussian-steps"),
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        limits = {name: {f"{c:g}": value for c, value in getattr(self, name).items()} for name in ("lower", "free")}
        said = {"broken": self.broken, "state": self.state, "verdict": self.verdict}
        return {**_codec.fields_to_plain(self), **limits, **said}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CanaryAudit:
        """Rebuild what `to_dict` wrote."""
        fields = {name: value for name, value in data.items() if name not in ("broken", "state", "verdict")}
        limits = {name: {float(c): value for c, value in data[name].items()} for name in ("lower", "free")}
        return _codec.from_plain(cls, {**fields, **limits})


class Tally:
    """Evidence on canaries, added up step by step; then the bounds.

    Args:
        present: Which canaries took part.
        sample_rate: What is claimed.
        noise_multiplier: What is claimed.
        kinds: Which kind each canary is of, 0, 1, …: those of a kind are bounded alike. By default there is one kind.
        parts: Which part of the gradient each canary is in, 0, 1, …: each part is also tested by itself.
    """

    def __init__(
        self, present: Any, *, sample_rate: float, noise_multiplier: float, kinds: Any = None, parts: Any = None
    ) -> None:
        self.present = np.asarray(present, dtype=bool)
        self.sample_rate, self.noise_multiplier = sample_rate, noise_multiplier
        alike = np.zeros(len(self.present), dtype=np.int64)
        self.kinds = alike if kinds is None else np.asarray(kinds)
        self.parts = alike if parts is None else np.asarray(parts)
        self.scores: Floats = np.zeros(len(self.present))
        self.steps = 0
        self.counts: Counts = np.zeros((int(self.kinds.max(initial=0)) + 1, len(NORM_LEVELS)), dtype=np.int64)
        self._early = np.zeros(len(self.present), dtype=bool)
        for part in range(int(self.parts.max(initial=0)) + 1):
            own = np.flatnonzero(self.parts == part)
            self._early[own[: max(len(own) // 10, min(_FEWEST_PROBES, len(own) // 2))]] = True
        self._probes = np.flatnonzero(self._early & ~self.present)
        self._squares: Floats = np.zeros(int(self.parts.max(initial=0)) + 1)

    def add(self, seen: Any, levels: Any = 1.0) -> None:
        """Add one step's evidence: what was seen of each canary, and what each kind was bounded by."""
        z, c = np.asarray(seen, dtype=np.float64), np.asarray(levels, dtype=np.float64)
        if z.shape != self.present.shape:
            raise ValueError(f"step_fn must return one number for each of {len(self.present)} canaries, got {z.shape}.")
        if not np.isfinite(z).all():
            raise ValueError("step_fn returned numbers that are not finite.")
        if c.shape not in ((), (len(self.counts),)) or not (c.min() >= 0.0 and c.max() <= 1.0):
            raise ValueError("levels must be numbers in [0, 1]: one, or one for each kind of canary.")
        each = np.broadcast_to(c, len(self.counts))
        own = each[self.kinds] if len(each) > 1 else c
        noise = self._noise(z)
        self.scores += step_evidence(z, own, sample_rate=self.sample_rate, noise_multiplier=noise)
        self.counts[np.arange(len(each)), level_of(each)] += 1
        self.steps += 1

    def _noise(self, seen: Floats) -> Any:
        """Return the noise multiplier to score with: the claimed one, or less where there is clearly less noise.

        It is measured on the first tenth of each part, on canaries that are absent. Those are scored with the claim,
        so that what a canary is scored with never depends on itself or on later ones: given the canaries before, a
        guess is right with no more than the claimed probability, and the binomial limit stands.
        """
        probes, parts = self.parts[self._probes], len(self._squares)
        squares = np.bincount(probes, weights=seen[self._probes] ** 2, minlength=parts).astype(np.float64)
        looks = np.bincount(probes, minlength=parts)
        self._squares += squares
        so_far = self._short(self._squares, (self.steps + 1) * looks)
        factors = np.minimum(so_far, self._short(squares, looks))  # this step by itself: noise may stop halfway
        if (factors == 1.0).all():
            return self.noise_multiplier
        return self.noise_multiplier * np.where(self._early, 1.0, factors[self.parts])

    def _short(self, squares: Floats, looks: Counts) -> Floats:
        """Return by part the share of the claimed noise that is present: 1, or less where that is significant."""
        found = np.sqrt(squares / np.maximum(1, looks)) / self.noise_multiplier
        less = (found < 1.0 - 4.0 / np.sqrt(2.0 * np.maximum(1, looks))) & (looks >= _FEWEST_PROBES)
        return np.where(less, np.maximum(found, 0.05), 1.0)

    def audit(
        self,
        *,
        who: str,
        epsilon: float,
        delta: float,
        counts: Any = None,
        limit: float | None = None,
        certain: float = CERTAIN,
    ) -> CanaryAudit:
        """Return the bounds, beside the claim `epsilon`.

        Args:
            who: What kind of record the canaries were.
            epsilon: The claim.
            delta: Its delta.
            counts: Steps at each level by kind, if an accountant kept its own.
            limit: What must be exceeded to break the claim, if that is more than the claim.
            certain: The confidence at which guesses break it.

        Returns:
            The audit, without direct tests.
        """
        shares = np.bincount(self.kinds, minlength=len(self.counts)) / len(self.kinds)
        family = Family(self.counts if counts is None else counts, shares, self.sample_rate)
        distance = family.distance(self.noise_multiplier)
        lower = {confidence: self._epsilon(family, self._share(confidence)[0], delta) for confidence in CONFIDENCES}
        share, part = self._share(certain)
        most = max(epsilon, limit or 0.0)
        if delta < _SMALL_DELTA:  # our curves are looser than dp-accounting's there
            most = max(most, family.epsilon(self.noise_multiplier, delta))
        broken = 2.0 * share - 1.0 > distance or self._epsilon(family, share, delta) > _TOLERANCE * most
        return CanaryAudit(
            who=who,
            canaries=len(self.present),
            right=int(self._right.sum()),
            allowed=(1.0 + distance) / 2.0,
            epsilon=epsilon,
            delta=delta,
            steps=self.steps,
            lower=lower if broken else {confidence: min(found, epsilon) for confidence, found in lower.items()},
            free={confidence: self._free(distance, delta, confidence) for confidence in CONFIDENCES},
            guessed=broken,
            doubtful=not broken and lower[CONFIDENCES[-1]] > most,
            part=part if broken else None,
            roc=roc(self.scores[self.present], self.scores[~self.present]),
        )

    def _epsilon(self, family: Family, share: float, delta: float) -> float:
        """Return the epsilon of the claimed steps at the noise that explains such a share of right guesses."""
        return family.epsilon(family.noise(2.0 * share - 1.0, self.noise_multiplier), delta)

    @property
    def _right(self) -> Any:
        return (self.scores > 0.0) == self.present

    def _share(self, confidence: float) -> tuple[float, int | None]:
        """Return a lower confidence limit on the share of right guesses, of all canaries or of one part.

        All of them together get nine tenths of the error, and the parts divide the rest: one limit may be wrong.
        """
        error, right = 1.0 - confidence, self._right
        sizes = np.bincount(self.parts)
        if np.count_nonzero(sizes) == 1:
            return share_at_least(int(right.sum()), len(right), confidence=confidence), None
        found = np.bincount(self.parts, weights=right)
        limits: list[tuple[float, int | None]] = [
            (share_at_least(int(right.sum()), len(right), confidence=1.0 - 0.9 * error), None)
        ]
        limits += [
            (share_at_least(int(f), int(n), confidence=1.0 - 0.1 * error / len(sizes)), part)
            for part, (f, n) in enumerate(zip(found, sizes, strict=True))
            if n
        ]
        return max(limits, key=lambda limit: limit[0])

    def _free(self, distance: float, delta: float, confidence: float) -> float:
        """Return log((true positives - δ) / false positives), both at their confidence limits.

        The threshold is where a Gaussian mechanism of the claimed distance has 0.5% false alarms: fixed before the
        scores are seen, so one test is made and not many.
        """
        spread = 2.0 * norm.ppf((1.0 + distance) / 2.0)
        guess = self.scores > spread * norm.isf(_RARE) - spread**2 / 2.0
        inside, outside = guess[self.present], guess[~self.present]
        half = (1.0 + confidence) / 2.0
        found = share_at_least(int(inside.sum()), len(inside), confidence=half) - delta
        alarms = 1.0 - share_at_least(int((~outside).sum()), len(outside), confidence=half)
        return max(0.0, math.log(found / alarms)) if found > 0.0 else 0.0


def roc(inside: Any, outside: Any) -> Points:
    """Return (false alarms, share found) of thresholds on two lists of scores, of which high ones mean inside.

    Thresholds go from the few false alarms whose share is known to about a quarter of itself, up to all.
    """
    high, low = np.sort(inside), np.sort(outside)
    if not len(high) or len(low) < _FEWEST_ALARMS:
        return ()
    alarms = np.unique(np.geomspace(_FEWEST_ALARMS, len(low), _POINTS).round().astype(int))
    thresholds = low[len(low) - alarms]
    rates = 1.0 - np.searchsorted(low, thresholds) / len(low)
    found = 1.0 - np.searchsorted(high, thresholds) / len(high)
    return tuple(zip(rates.tolist(), found.tolist(), strict=True))


def step_evidence(seen: Any, levels: Any, *, sample_rate: float, noise_multiplier: Any) -> Any:
    """Return log P(seen | took part) / P(seen | did not): a mixture of N(level, σ²) and N(0, σ²) against N(0, σ²)."""
    exponent = (2.0 * seen - levels) * levels / (2.0 * np.square(noise_multiplier))
    if sample_rate == 1.0:
        return exponent
    mixture = (1.0 - sample_rate) + sample_rate * np.exp(np.minimum(exponent, _LARGEST))
    return np.log(mixture) + np.maximum(exponent - _LARGEST, 0.0)


class Family:
    """The privacy curves of records with given counts of levels, by noise multiplier: one curve each, averaged."""

    def __init__(self, counts: Any, shares: Any, sample_rate: float) -> None:
        self.counts, self.shares, self.sample_rate = np.asarray(counts), np.asarray(shares), sample_rate
        self._distances: dict[float, float] = {}

    def distance(self, noise_multiplier: float) -> float:
        """Return δ(0), the total variation distance: an upper bound."""
        if noise_multiplier not in self._distances:
            deltas = self._curves(noise_multiplier).delta(np.zeros(1))
            self._distances[noise_multiplier] = float((np.minimum(1.0, deltas) @ self.shares)[0])
        return self._distances[noise_multiplier]

    def noise(self, distance: float, near: float) -> float:
        """Return the noise multiplier of a distance, at most 0.1% too large; infinity if no noise gives it."""
        low = high = near
        while self.distance(low) < distance and low > _NOISE[0]:
            low /= 2.0
        while self.distance(high) > distance and high < _NOISE[1]:
            high *= 2.0
        if self.distance(high) > distance or distance <= 0.0:
            return math.inf
        if self.distance(low) < distance:
            return low

        def excess(log_noise: float) -> float:
            return math.log(self.distance(math.exp(log_noise)) / distance)

        return math.exp(brentq(excess, math.log(low), math.log(high), xtol=4e-4) + 4e-4)

    def _curves(self, noise_multiplier: float) -> RecordCurves:
        return record_curves(self.counts, sample_rate=self.sample_rate, noise_multiplier=noise_multiplier)

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """Return the smallest ε at which the average δ is at most `delta`."""
        if math.isinf(noise_multiplier):
            return 0.0
        curves = self._curves(noise_multiplier)
        high = float(curves.epsilon(delta).max())
        if len(self.counts) == 1 or high == 0.0:
            return high

        def excess(x: float) -> float:
            return float((curves.delta(np.array([x])) @ self.shares)[0]) - delta

        if excess(0.0) <= 0.0:
            return 0.0
        return high if excess(high) >= 0.0 else float(brentq(excess, 0.0, high, xtol=1e-6))
