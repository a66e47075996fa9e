"""How well scores tell members from others: the statistics of any membership attack, and the words for the label."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm, rankdata

from tacita import _check
from tacita._numbers import percent_range_text, percent_text, range_text, round_up_text, success_text
from tacita.assumptions import assume
from tacita.audit.tally import CERTAIN
from tacita.estimators import share_at_least, share_at_most, share_interval
from tacita.guarantee import Guarantee, attack_success
from tacita.label import AttackState, Chart, Finding, Series
from tacita.profile import Profile

Floats = NDArray[np.float64]
Interval = tuple[float, float]

FEWEST = 10  # members, and others: with fewer, intervals are too wide to be of use
_RATES = (0.001, 0.01)
_POINTS = 200
_QUANTILE = float(norm.ppf(0.975))


@dataclass(frozen=True, kw_only=True)
class Caught:
    """How many members are found when false alarms are rare.

    Attributes:
        asked: The share of others that may be taken for members.
        resolved: False if there are too few others to see so small a share: then no false alarm at all is allowed.
        false_alarms: How many others were taken for members.
        limit: The true share of false alarms is below this with 95% confidence (an order statistic of the others).
        share: Share of the members that were found.
        interval: Its 95% interval (Clopper-Pearson); the threshold is set by the others alone.
    """

    asked: float
    resolved: bool
    false_alarms: int
    limit: float
    share: float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What a membership attack achieved.

    Attributes:
        auc: Chance that a member scores higher than one who is not; 0.5 is chance.
        auc_interval: Its 95% interval, approximate: the wider of DeLong's and Hanley and McNeil's at either end.
        success: Share of right guesses, members and others being equally many. Each half of the records is guessed by
            the threshold that is best for the other half, so no guess has seen its answer.
        success_interval: Its 95% interval (Clopper-Pearson); see `compare_scores`.
        caught: Members found at 0.1% and at 1% false alarms.
        roc: (false alarms, members found) as shares, at most 200 points.
        records: How many members were attacked; as many others were.
        references: How many reference models there were.
        epsilon: The worst case that was claimed, None for no claim.
        delta: Its delta.
        allowed: The largest success that the claim's whole privacy curve allows, on average over runs; None for no
            claim.
    """

    auc: float
    auc_interval: Interval
    success: float
    success_interval: Interval
    caught: tuple[Caught, ...]
    roc: tuple[tuple[float, float], ...]
    records: int
    references: int = 0
    epsilon: float | None = None
    delta: float = 0.0
    allowed: float | None = None

    @property
    def distinguishable(self) -> bool:
        """Whether members can be told from others better than by chance: the AUC's interval excludes 0.5."""
        return not self.auc_interval[0] <= 0.5 <= self.auc_interval[1]

    @property
    def exceeds_claim(self) -> bool:
        """Whether one run refutes the claim, at one false alarm in a million.

        Under the pair (ε, δ) each guess is right with at most `attack_success(ε, δ)` whatever the guesses before it
        were, up to events of probability δ. The average success that the curve allows, `allowed`, is smaller, and
        bounds no single run: a mechanism may keep to it and yet show everything in a few runs.
        """
        return self.epsilon is not None and self._surely > attack_success(self.epsilon, self.delta)

    @property
    def exceeds_average(self) -> bool:
        """Whether the success is above what the claim allows on average over runs, which refutes nothing yet."""
        return self.allowed is not None and self._surely > self.allowed and not self.exceeds_claim

    @property
    def _surely(self) -> float:
        guesses = 2 * self.records
        return share_at_least(round(self.success * guesses), guesses, confidence=CERTAIN)

    @property
    def state(self) -> AttackState:
        """`warning` if the claim is exceeded, or if there is none and members stand out.

        `open` if there is none, or only the average that it allows is exceeded.
        """
        if self.exceeds_claim or (self.epsilon is None and self.distinguishable):
            return "warning"
        return "open" if self.epsilon is None or self.exceeds_average else "not-refuted"

    @property
    def lower_bound(self) -> Guarantee:
        """The smallest epsilon that allows the success seen, from its lower confidence limit; a reading of one run."""
        low = self.success_interval[0]
        epsilon = math.log((low - self.delta) / (1.0 - low)) if low > self.delta else 0.0
        return Guarantee(
            kind="empirical_lower",
            epsilon=max(0.0, epsilon),
            delta=self.delta,
            method=f"membership inference, {self.references} reference models",
            scope="reading",
            assumptions=(assume("drawn-alike"), assume("independent-guesses")),
        )

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        low, high = self.success_interval
        parts = [
            f"The best guess is right {percent_text(self.success)} of the time "
            f"(95% interval {percent_range_text(low, high)})",
            "blind guessing is right 50%",
        ]
        if self.allowed is not None:
            parts.append(f"the claim allows at most {success_text(self.allowed)}")
        if self.exceeds_claim:
            verdict = "This is more than the claim allows."
        elif self.exceeds_average:
            verdict = (
                "This is more than the claim allows on average over trainings, which a single training may exceed by "
                "chance: repeat the audit with another one."
            )
        elif self.auc_interval[1] < 0.5:
            verdict = "Members score below others, which training does not explain: the two differ in something else."
        elif self.distinguishable:
            verdict = "Members can be told from others better than by chance."
        else:
            verdict = "This attack could not tell members from others."
        return f"{'; '.join(parts)}. {verdict}"

    def finding(self) -> Finding:
        """Return the result for the owner's label."""
        rows = [
            ("Guesses that are right", percent_text(self.success), percent_range_text(*self.success_interval)),
            ("Chance that a member scores above someone else (AUC)", f"{self.auc:.3f}", range_text(*self.auc_interval)),
            *dict.fromkeys(
                (_caught_text(c), percent_text(c.share), percent_range_text(*c.interval)) for c in self.caught
            ),
            ("Epsilon needed to explain it, at least", round_up_text(self.lower_bound.epsilon, up=False), ""),
        ]
        return Finding(
            key="membership",
            heading="Can an outsider tell who was trained on?",
            state=self.state,
            sentence=self.sentence,
            columns=("Measured", "Result", "95% interval"),
            rows=tuple(rows),
            chart=self._chart(),
            notes=self._notes(),
            tests_claim=self.epsilon is not None,
            measured=tuple(point for point in self.roc if point[0] * self.records >= FEWEST),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            **asdict(self),
            "state": self.state,
            "distinguishable": self.distinguishable,
            "exceeds_claim": self.exceeds_claim,
            "exceeds_average": self.exceeds_average,
            "lower_bound": self.lower_bound.to_dict(),
            "sentence": self.sentence,
        }

    def _chart(self) -> Chart | None:
        points = tuple((x, y) for x, y in self.roc if x > 0.0 and y > 0.0)
        if len(points) < 2:
            return None
        least = min(min(point) for point in points)
        middle = max((point for point in points if point[0] <= 0.1), default=points[0])
        return Chart(
            heading="Members found, over false alarms",
            caption="The further the attack lies above chance, the more it learns. Its left edge matters most.",
            description=f"At {percent_text(middle[0])} false alarms the attack finds {percent_text(middle[1])} of the "
            f"members, and chance {percent_text(middle[0])}.",
            x_title="false alarms (share of others)",
            y_title="members found (share)",
            series=(
                Series(hue="anyone", name="Attack", points=points),
                Series(hue="plain", name="Chance", points=((least, least), (1.0, 1.0))),
            ),
            log=True,
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"{self.records:,} members and as many others were attacked, with {self.references} reference models.",
            "It assumes that members and others were drawn alike: any other difference would be mistaken for a leak.",
            "Each half of the records is guessed by a threshold learned from the other half: no guess saw its answer.",
            "It describes this one run and this attack. It does not prove that no better attack exists, nor a bound on "
            "epsilon for the training: all guesses are about one model, and so are not independent.",
        ]
        poor = [caught for caught in self.caught if not caught.resolved]
        if poor:
            rates = " and ".join(f"{100 * caught.asked:g}%" for caught in poor)
            notes.append(
                f"With {self.records:,} others, false alarms as rare as {rates} cannot be seen. Members found without "
                "any false alarm are given instead: the true share of false alarms is then below "
                f"{math.ceil(1e4 * poor[0].limit) / 1e2:.2f}%, with 95% confidence."
            )
        return tuple(notes)


def _caught_text(caught: Caught) -> str:
    alarms = f"{100 * caught.asked:g}% false alarms" if caught.resolved else "no false alarm seen"
    return f"Members found, {alarms}"


def compare_scores(
    score_members: Any,
    score_others: Any,
    *,
    references: int = 0,
    epsilon: float | None = None,
    delta: float = 0.0,
    profile: Profile | None = None,
    rng: np.random.Generator | None = None,
) -> Membership:
    """Return how well scores tell members from others, for any attack whose higher scores mean a member.

    Args:
        score_members: One finite score for each member.
        score_others: As many, of records that were not trained on.
        references: How many reference models the scores are based on.
        epsilon: The worst case claimed; None for no claim.
        delta: Its delta.
        profile: Its whole privacy curve, which allows less than the pair (epsilon, delta) alone; None takes the pair.
        rng: Decides which records are in which half; None is seeded by the operating system.

    Returns:
        Rates with their intervals, beside what the claim allows.

    Guarantee:
        For independent records and a threshold fixed beforehand, the interval of the success holds in at least 95%
        of cases (the right guesses vary at most as a binomial does, Hoeffding 1956). Here each half takes its threshold
        from the other, which that proof does not cover; for uninformative scores, simulation found the lower limit
        above 50% in 1.4 to 2.5% of cases. The intervals of `caught` are exact for independent records.
        Equal scores count half in the AUC, and are never told apart by a guess.

    Examples:
        >>> found = compare_scores(range(5, 25), range(20), rng=np.random.default_rng(0))
        >>> round(found.auc, 3), found.records, found.state
        (0.719, 20, 'warning')
    """
    _check.in_range("delta", delta, 0.0, 1.0)
    claim = math.inf if epsilon is None else _check.in_range("epsilon", epsilon, 0.0, math.inf)
    high, low = _scores("score_members", score_members), _scores("score_others", score_others)
    if len(high) != len(low):
        raise ValueError(f"Members and others must be equally many, got {len(high)} and {len(low)}; draw alike.")
    auc, auc_interval = _area(high, low)
    right = _right_guesses(high, low, rng or np.random.default_rng())
    curve = profile or Profile.of_pair(claim, delta)
    return Membership(
        auc=auc,
        auc_interval=auc_interval,
        success=right / (2 * len(high)),
        success_interval=share_interval(right, 2 * len(high)),
        caught=tuple(_caught(high, low, rate) for rate in _RATES),
        roc=_roc(high, low),
        records=len(high),
        references=references,
        epsilon=claim if math.isfinite(claim) else None,
        delta=float(delta),
        allowed=curve.attack_success() if math.isfinite(claim) else None,
    )


def _area(members: Floats, others: Floats) -> tuple[float, Interval]:
    """Return the area under the ROC curve, ties counted half, and its interval.

    Hanley and McNeil's variance, taken at the limit itself (Newcombe 2006), is the rank-sum test at 0.5 and does not
    shrink to nothing at 0 or 1; DeLong's makes no assumption on the shape. Each end is the wider of both.
    """
    size = len(members)
    ranks = rankdata(np.concatenate([members, others]))
    beaten = (ranks[:size] - rankdata(members)) / size
    beating = 1.0 - (ranks[size:] - rankdata(others)) / size
    area = float(beaten.mean())
    width = _QUANTILE * math.sqrt((beaten.var(ddof=1) + beating.var(ddof=1)) / size)
    low = max(0.0, min(_area_limit(area, size), area - width))
    high = min(1.0, max(1.0 - _area_limit(1.0 - area, size), area + width))
    return area, (low, high)


def _area_limit(area: float, size: int) -> float:
    def excess(limit: float) -> float:
        spread = limit * (1.0 - limit) / size**2
        spread *= 1.0 + (size - 1.0) * ((1.0 - limit) / (2.0 - limit) + limit / (1.0 + limit))
        return (area - limit) ** 2 - _QUANTILE**2 * spread

    return float(brentq(excess, 0.0, min(area, 1.0 - 1e-9))) if area > 0.0 else 0.0


def _right_guesses(members: Floats, others: Floats, rng: np.random.Generator) -> int:
    """Count right guesses, each half of the records guessed by the threshold that is best for the other half."""
    members, others = rng.permutation(members), rng.permutation(others)
    first, second = slice(None, len(members) // 2), slice(len(members) // 2, None)
    right = 0
    for learn, guess in ((first, second), (second, first)):
        threshold = _best_threshold(members[learn], others[learn])
        right += int((members[guess] >= threshold).sum() + (others[guess] < threshold).sum())
    return right


def _best_threshold(members: Floats, others: Floats) -> float:
    values = np.unique(np.concatenate([members, others]))
    missed = np.searchsorted(np.sort(members), values)
    spared = np.searchsorted(np.sort(others), values)
    return float(values[np.argmax(spared - missed)])


def _caught(members: Floats, others: Floats, rate: float) -> Caught:
    size = len(others)
    allowed = math.floor(rate * size + 1e-9)
    threshold = np.sort(others)[size - 1 - allowed]
    found, alarms = int((members > threshold).sum()), int((others > threshold).sum())
    return Caught(
        asked=rate,
        resolved=allowed > 0,
        false_alarms=alarms,
        limit=share_at_most(allowed, size, confidence=0.95),
        share=found / len(members),
        interval=share_interval(found, len(members)),
    )


def _roc(members: Floats, others: Floats) -> tuple[tuple[float, float], ...]:
    """Return corners of the ROC curve from (0, 0) to (1, 1), thinned evenly in the logarithm of false alarms."""
    values = np.unique(np.concatenate([members, others]))[::-1]
    alarms = len(others) - np.searchsorted(np.sort(others), values)
    found = len(members) - np.searchsorted(np.sort(members), values)
    grid = np.unique(np.geomspace(1, len(others), _POINTS - 2).round())
    at = np.searchsorted(alarms, np.concatenate([[0.0], grid]), side="right") - 1
    kept = np.unique(at[at >= 0])
    points = zip((alarms[kept] / len(others)).tolist(), (found[kept] / len(members)).tolist(), strict=True)
    return ((0.0, 0.0), *points)


def _scores(name: str, values: Any) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) < FEWEST:
        raise ValueError(f"{name} must hold at least {FEWEST} scores, got shape {scores.shape}.")
    if not np.isfinite(scores).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity.")
    return scores
