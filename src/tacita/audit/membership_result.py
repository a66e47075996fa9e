"""What a membership attack achieved, and the words for the owner's label."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tacita.assumptions import assume
from tacita.audit.tally import CERTAIN
from tacita.estimators import share_at_least
from tacita.guarantee import Guarantee, attack_success, round_up_text
from tacita.label import AttackState, Chart, Finding, Series
from tacita.report.numbers import success_text

Interval = tuple[float, float]


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

    @property
    def allowed(self) -> float | None:
        """The largest success that the claim allows."""
        return None if self.epsilon is None else attack_success(self.epsilon, self.delta)

    @property
    def distinguishable(self) -> bool:
        """Whether members can be told from others better than by chance: the AUC's interval excludes 0.5."""
        return not self.auc_interval[0] <= 0.5 <= self.auc_interval[1]

    @property
    def exceeds_claim(self) -> bool:
        """Whether the success is above what the claim allows, at one false alarm in a million."""
        guesses = 2 * self.records
        low = share_at_least(round(self.success * guesses), guesses, confidence=CERTAIN)
        return self.allowed is not None and low > self.allowed

    @property
    def state(self) -> AttackState:
        """`warning` if the claim is exceeded, or if there is none and members stand out; `open` if there is none."""
        if self.exceeds_claim or (self.epsilon is None and self.distinguishable):
            return "warning"
        return "open" if self.epsilon is None else "not-refuted"

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
            f"The best guess is right {self.success:.1%} of the time (95% interval {_range_text(low, high)})",
            "blind guessing is right 50%",
        ]
        if self.allowed is not None:
            parts.append(f"the claim allows at most {success_text(self.allowed)}")
        if self.exceeds_claim:
            verdict = "This is more than the claim allows."
        elif self.auc_interval[1] < 0.5:
            verdict = "Members score below others, which training does not explain: the two differ in something else."
        elif self.distinguishable:
            verdict = "Members can be told from others better than by chance."
        else:
            verdict = "This attack could not tell members from others."
        return f"{'; '.join(parts)}. {verdict}"

    def finding(self) -> Finding:
        """Return the result for the owner's label."""
        low, high = self.auc_interval
        ranked = (f"{self.auc:.3f}", f"{math.floor(low * 1e3) / 1e3:.3f} to {math.ceil(high * 1e3) / 1e3:.3f}")
        rows = [
            ("Guesses that are right", f"{self.success:.1%}", _range_text(*self.success_interval)),
            ("Chance that a member scores above someone else (AUC)", *ranked),
            *dict.fromkeys((_caught_text(c), f"{c.share:.1%}", _range_text(*c.interval)) for c in self.caught),
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
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            **asdict(self),
            "state": self.state,
            "allowed": self.allowed,
            "distinguishable": self.distinguishable,
            "exceeds_claim": self.exceeds_claim,
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
            caption="The further the attack lies above chance, the more it learns. The left edge is where it hurts.",
            description=f"At {middle[0]:.1%} false alarms the attack finds {middle[1]:.1%} of the members, "
            f"and chance {middle[0]:.1%}.",
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


def _range_text(low: float, high: float) -> str:
    return f"{math.floor(low * 1e3 + 1e-9) / 10:.1f}% to {math.ceil(high * 1e3 - 1e-9) / 10:.1f}%"


def _caught_text(caught: Caught) -> str:
    alarms = f"{100 * caught.asked:g}% false alarms" if caught.resolved else "no false alarm seen"
    return f"Members found, {alarms}"
