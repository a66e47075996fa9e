"""Canaries: records made to be found. An attacker who sees every noisy gradient guesses which took part.

Each canary is put into the data by a fair coin. Its gradient points where no other record's does, so a mechanism
that works as claimed gives independent evidence on each: the sum over steps of the log-likelihood ratio of "took
part" to "did not". Guessing by its sign is the best guess there is, and it is right with probability (1 + d) / 2,
where d = δ(0) is the total variation distance that the claimed privacy curve allows. So the number of right guesses
is binomial, and too many of them break the claim: no approximation, no retraining, one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, norm

from tacita import _check
from tacita.accounting import LEVELS, RecordCurves, level_of, record_curves, worst_case
from tacita.accounting.worst import check_mechanism
from tacita.assumptions import assume
from tacita.audit.direct import ERROR, SAID, Direct, Test
from tacita.guarantee import Guarantee, percent_text, round_up_text
from tacita.label import AttackState, Bound, Finding

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

StepFunction = Callable[[Any], Any]
CONFIDENCES = (0.95, 0.9995)
CERTAIN = 1.0 - 1e-6  # before a claim is called broken
VERDICTS: dict[AttackState, str] = {"not-refuted": "not refuted", "open": "no verdict", "warning": "claim broken"}
_NOISE = (0.02, 1e4)  # noise multipliers searched for a lower bound
_TOLERANCE = 1.005  # the curves that lower bounds are read from are this close to dp-accounting's
_SMALL_DELTA = 1e-7
_TRIED = 8
_SHOWN = 2  # faults in a sentence: one often shows in several tests
_LARGEST = 600.0  # exponents that do not overflow
_RARE = 0.005  # false alarms that the assumption-free bound is read at


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What canaries found, beside the claim.

    Attributes:
        who: What kind of record the canaries were.
        canaries: How many guesses were made.
        right: How many of them were right.
        allowed: The largest chance of a right guess that the claim allows.
        epsilon: The claim, an upper bound.
        delta: Its delta, and that of the lower bounds.
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

    def __str__(self) -> str:
        lines = [
            f"{self.who}: {self.verdict}.",
            f"  claimed: epsilon at most {round_up_text(self.epsilon)} at delta {self.delta:g}, {self.steps} steps",
        ]
        for confidence in self.lower:
            text = f"  proved:  epsilon at least {_down(self.lower[confidence])} ({confidence:.2%} confidence)"
            lines.append(f"{text}; {_down(self.free[confidence])} whatever the mechanism's shape is")
        share = self.right / self.canaries
        lines.append(f"  guesses: {share:.2%} of {self.canaries} right; the claim allows {self.allowed:.2%}")
        if self.tests:
            failed = "; ".join(SAID[test.kind] for test in self.faults) or "nothing found"
            lines.append(f"  tests:   {len(self.tests)} of noise, contributions and sampling: {failed}")
        return "\n".join(lines)

    @property
    def broken(self) -> bool:
        """Whether guesses or a direct test broke the claim: of a correct mechanism, once in a million audits."""
        return self.guessed or bool(self.faults)

    @property
    def faults(self) -> tuple[Test, ...]:
        """The direct tests that failed: the mechanism is not as declared."""
        return tuple(test for test in self.tests if test.failed)

    @property
    def verdict(self) -> str:
        """`claim broken`, `no verdict` if the audit should be repeated, or `not refuted`."""
        return VERDICTS[self.state]

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
        document = asdict(self)
        for name in ("lower", "free"):
            document[name] = {f"{confidence:g}": value for confidence, value in document[name].items()}
        tests = [{**asdict(test), "failed": test.failed} for test in self.tests]
        told = {"tests": tests, "broken": self.broken, "state": self.state, "verdict": self.verdict}
        return {**document, "epsilon": _plain(self.epsilon), **told}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CanaryAudit:
        """Rebuild what `to_dict` wrote."""
        fields = {name: value for name, value in data.items() if name not in ("broken", "state", "verdict")}
        for name in ("lower", "free"):
            fields[name] = {float(confidence): float(value) for confidence, value in data[name].items()}
        fields["tests"] = tuple(Test(kind=test["kind"], p=float(test["p"])) for test in data["tests"])
        return cls(**{**fields, "epsilon": float(str(data["epsilon"]).replace("infinity", "inf"))})

    @property
    def bound(self) -> Bound:
        """The two bounds for the label's picture."""
        return Bound(who=self.who, lower=self.lower[CONFIDENCES[-1]], upper=self.epsilon, state=self.state)

    @property
    def state(self) -> AttackState:
        """`warning` if the claim is broken, `open` if the audit should be repeated."""
        return "warning" if self.broken else "open" if self.doubtful else "not-refuted"


def canaries(
    step_fn: StepFunction,
    *,
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    epsilon: float | None = None,
    count: int = 20_000,
    parts: Any = None,
    rng: int | None = None,
    who: str = "A record made to be found",
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> CanaryAudit:
    """Audit any private step function: does it leak more than it claims?

    Args:
        step_fn: Takes one step of the mechanism on a dataset that holds exactly the canaries marked in the boolean
            array it is given (the same one at every step), and returns what an attacker sees of each canary: the noisy
            *sum*, not divided by a batch size, along the canary's direction, over the clip norm. No two canaries may
            share a direction, and each must be as long as the clip norm at least. It may also return a pair
            (seen, level): what the step bounds every canary by, over the clip norm, where that is less than 1; or
            (seen, level, drawn): also which canaries the step drew, as booleans, which sharpens the direct tests.
        sample_rate: What is claimed: the chance with which each record enters a step.
        noise_multiplier: What is claimed: noise standard deviation over the clip norm.
        steps: How many steps.
        delta: At which delta.
        epsilon: The claim. By default `tacita.worst_case` of the three numbers above.
        count: How many canaries, at most as many as the gradient has coordinates.
        parts: For each canary, which part of the gradient it is in, 0, 1, …: a bug in one layer is found there.
        rng: A seed for the canaries' coins; by default from the operating system.
        who: What kind of record the canaries are, for people.
        progress: Called with (steps taken, steps).
        stop: Asked before every step; True ends the audit early, with the claim for the steps taken.

    Guarantee:
        If the mechanism is what it claims to be, and canaries do not influence each other, each lower bound is above
        the truth with probability at most 1 - confidence, and the claim is called broken with probability at most 1e-6:
        half of it for the guesses and half for direct tests (`tacita.audit.direct`) of noise, clipping and sampling.

    Examples:
        A Gaussian mechanism with half the noise it claims:

        >>> import numpy as np
        >>> noise = np.random.default_rng(1)
        >>> def step(present):
        ...     return present + 0.5 * 4.0 * noise.standard_normal(len(present))
        >>> found = canaries(step, sample_rate=1.0, noise_multiplier=4.0, steps=1, delta=1e-5, rng=2)
        >>> found.verdict
        'claim broken'
        >>> found.epsilon < found.lower[0.9995] < 2.2 * found.epsilon
        True
    """
    q, sigma, planned = check_mechanism(sample_rate, noise_multiplier, steps)
    dlt = _check.probability("delta", delta)
    size = _check.count("count", count, high=10**8)
    coins = np.random.default_rng(rng)
    present = coins.random(size) < 0.5
    tally = Tally(present, sample_rate=q, noise_multiplier=sigma, parts=parts)
    direct = Direct(present, sample_rate=q, noise_multiplier=sigma, parts=parts)
    for step in range(planned):
        if step and stop is not None and stop():
            break
        seen, level, drawn = _told(step_fn(present.copy()))
        tally.add(seen, level)
        direct.add(seen, level, drawn)
        if progress is not None:
            progress(step + 1, planned)
    if epsilon is None or tally.steps < planned:
        epsilon = worst_case(sample_rate=q, noise_multiplier=sigma, steps=tally.steps, delta=dlt).epsilon
    found = tally.audit(who=who, epsilon=epsilon, delta=dlt, certain=CERTAIN + ERROR)
    return replace(found, tests=direct.tests(), noise=direct.scale.ratio)


def _told(returned: Any) -> tuple[Floats, float, Any]:
    """Return what a step function told: what was seen, the level, and who was drawn if that is known."""
    seen, level, drawn = (*returned, None)[:3] if isinstance(returned, tuple) else (returned, 1.0, None)
    values = np.asarray(seen, dtype=np.float64)
    if drawn is not None:
        drawn = np.asarray(drawn)
        if drawn.dtype != bool or drawn.shape != values.shape:
            raise ValueError("step_fn must tell who was drawn by one boolean for each canary.")
    return values, level, drawn


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
        self.counts: Counts = np.zeros((int(self.kinds.max(initial=0)) + 1, len(LEVELS)), dtype=np.int64)
        self._early = np.zeros(len(self.present), dtype=bool)
        for part in range(int(self.parts.max(initial=0)) + 1):
            own = np.flatnonzero(self.parts == part)
            self._early[own[: max(len(own) // 10, min(_TRIED, len(own) // 2))]] = True
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
        """Return the noise multiplier to score with: the claimed one, or less where that is plainly not there.

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
        """Return by part which share of the claimed noise is there: 1, or less where that is plain."""
        found = np.sqrt(squares / np.maximum(1, looks)) / self.noise_multiplier
        less = (found < 1.0 - 4.0 / np.sqrt(2.0 * np.maximum(1, looks))) & (looks >= _TRIED)
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
        )

    def _epsilon(self, family: Family, share: float, delta: float) -> float:
        """Return the epsilon of claimed steps with as much less noise as such a share of right guesses takes."""
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
            return _at_least(int(right.sum()), len(right), confidence), None
        found = np.bincount(self.parts, weights=right)
        limits: list[tuple[float, int | None]] = [(_at_least(int(right.sum()), len(right), 1.0 - 0.9 * error), None)]
        limits += [
            (_at_least(int(f), int(n), 1.0 - 0.1 * error / len(sizes)), part)
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
        found = _at_least(int(inside.sum()), len(inside), half) - delta
        alarms = 1.0 - _at_least(int((~outside).sum()), len(outside), half)
        return max(0.0, math.log(found / alarms)) if found > 0.0 else 0.0


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
        """Return a noise multiplier, 0.1% too large at most, of which the distance is as given; infinite for none."""
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


def finding(audits: Iterable[CanaryAudit], *, notes: tuple[str, ...] = ()) -> Finding:
    """Return canary audits, the worst case first, as one finding for the owner's label."""
    found = tuple(audits)
    state = max((audit.state for audit in found), key=("not-refuted", "open", "warning").index)
    first = next(audit for audit in found if audit.state == state)
    sentence = f"{first.verdict.capitalize()}. {_sentence(first)}"
    uncovered = [audit for audit in found[1:] if found[0].lower[CONFIDENCES[-1]] > audit.epsilon]
    if first.guessed:
        sentence += " The mechanism leaks more than the label says: do not use this label."
    elif state == "warning":
        sentence += " The mechanism is not the one that the label speaks of: do not use this label."
    elif state == "open":
        sentence += " The bound reached the claim: repeat the audit, since chance alone does this once in 2000 times."
    elif uncovered:
        sentence += (
            f" A record made to be found leaks more than the epsilon of {round_up_text(uncovered[0].epsilon)} that the "
            "typical case promises: only the worst case covers it."
        )
    rows = tuple(
        (
            audit.who,
            _down(audit.lower[0.95]),
            _down(audit.lower[0.9995]),
            round_up_text(audit.epsilon),
            audit.verdict,
        )
        for audit in found
    )
    return Finding(
        key="canaries",
        heading="Does the mechanism leak more than it claims?",
        state=state,
        sentence=sentence,
        columns=("Canary", "Proved, 95%", "Proved, 99.95%", "Claimed", "Verdict"),
        rows=rows,
        bounds=tuple(audit.bound for audit in found),
        notes=notes,
    )


def _sentence(audit: CanaryAudit) -> str:
    share, allowed = percent_text(audit.right / audit.canaries), percent_text(audit.allowed)
    chance = "more than chance explains" if audit.guessed else "give or take chance"
    said = f"An attacker who sees every step guesses right {share} of the time; the claim allows {allowed}, {chance}."
    if audit.faults:
        return f"{said} Measured directly: {'; '.join(SAID[test.kind] for test in audit.faults[:_SHOWN])}."
    return f"{said} {len(audit.tests)} direct tests of its noise and sampling found nothing." if audit.tests else said


def _down(epsilon: float) -> str:
    return round_up_text(epsilon, up=False)


def _at_least(successes: int, count: int, confidence: float) -> float:
    """Return the lower confidence limit on a share (Clopper and Pearson)."""
    return float(beta.ppf(1.0 - confidence, successes, count - successes + 1)) if successes else 0.0


def _plain(epsilon: float) -> float | str:
    return "infinity" if math.isinf(epsilon) else epsilon
