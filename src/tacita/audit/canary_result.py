"""What canaries found: the bounds beside the claim, a verdict, and the words for the owner's label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tacita.assumptions import assume
from tacita.audit.direct import FAULT_TEXTS, Test
from tacita.guarantee import Guarantee, percent_text, round_up_text
from tacita.label import AttackState, Bound, Finding

CONFIDENCES = (0.95, 0.9995)
VERDICTS: dict[AttackState, str] = {"not-refuted": "not refuted", "open": "no verdict", "warning": "claim broken"}
_SHOWN = 2  # faults in a sentence: one fault often fails several tests


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
            *(
                f"  proved:  epsilon at least {_down(lower)} ({confidence:.2%} confidence); "
                f"{_down(self.free[confidence])} whatever the mechanism's shape is"
                for confidence, lower in self.lower.items()
            ),
            f"  guesses: {self.right / self.canaries:.2%} of {self.canaries} right; "
            f"the claim allows {self.allowed:.2%}",
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
        return {
            **asdict(self),
            **{name: {f"{c:g}": value for c, value in getattr(self, name).items()} for name in ("lower", "free")},
            "epsilon": "infinity" if math.isinf(self.epsilon) else self.epsilon,
            "tests": [{**asdict(test), "failed": test.failed} for test in self.tests],
            "broken": self.broken,
            "state": self.state,
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CanaryAudit:
        """Rebuild what `to_dict` wrote."""
        read = {name: value for name, value in data.items() if name not in ("broken", "state", "verdict")}
        for name in ("lower", "free"):
            read[name] = {float(confidence): float(value) for confidence, value in data[name].items()}
        read["tests"] = tuple(Test(kind=test["kind"], p=float(test["p"])) for test in data["tests"])
        return cls(**{**read, "epsilon": float(data["epsilon"])})  # also of the text "infinity"


def canary_finding(audits: Sequence[CanaryAudit], *, steps: int, left_out: int = 0) -> Finding:
    """Return canary audits as one finding for the owner's label.

    Args:
        audits: What was found, the worst case first.
        steps: How many steps the run took.
        left_out: How many of the model's tensors were too large for the replay.

    Returns:
        The finding. Its state is the most serious of all audits.
    """
    return Finding(
        key="canaries",
        heading="Does the mechanism leak more than it claims?",
        state=_most_serious(audits).state,
        sentence=_sentence(audits),
        columns=("Canary", "Proved, 95%", "Proved, 99.95%", "Claimed", "Verdict"),
        rows=tuple(
            (audit.who, *(_down(audit.lower[c]) for c in CONFIDENCES), round_up_text(audit.epsilon), audit.verdict)
            for audit in audits
        ),
        bounds=tuple(audit.bound for audit in audits),
        notes=tuple(_notes(audits, steps, left_out)),
        tests_claim=True,
    )


def _most_serious(audits: Sequence[CanaryAudit]) -> CanaryAudit:
    return max(audits, key=lambda audit: list(VERDICTS).index(audit.state))  # the first of equally serious ones


def _sentence(audits: Sequence[CanaryAudit]) -> str:
    worst = _most_serious(audits)
    uncovered = [audit for audit in audits[1:] if audits[0].lower[CONFIDENCES[-1]] > audit.epsilon]
    sentence = f"{worst.verdict.capitalize()}. {_measured(worst)}"
    if worst.guessed:
        return f"{sentence} The mechanism leaks more than the label says: do not use this label."
    if worst.state == "warning":
        return f"{sentence} The mechanism is not the one that the label speaks of: do not use this label."
    if worst.state == "open":
        again = "repeat the audit, since chance alone does this once in 2000 times."
        return f"{sentence} The bound reached the claim: {again}"
    if uncovered:
        return (
            f"{sentence} A record made to be found leaks more than the epsilon of "
            f"{round_up_text(uncovered[0].epsilon)} that the typical case promises: only the worst case covers it."
        )
    return sentence


def _measured(audit: CanaryAudit) -> str:
    share, allowed = percent_text(audit.right / audit.canaries), percent_text(audit.allowed)
    chance = "more than chance explains" if audit.guessed else "give or take chance"
    text = f"An attacker who sees every step guesses right {share} of the time; the claim allows {allowed}, {chance}."
    if audit.faults:
        return f"{text} Measured directly: {'; '.join(FAULT_TEXTS[test.kind] for test in audit.faults[:_SHOWN])}."
    return f"{text} {len(audit.tests)} direct tests of its noise and sampling found nothing." if audit.tests else text


def _notes(audits: Sequence[CanaryAudit], steps: int, left_out: int) -> Iterator[str]:
    yield (
        "The shipped training loop was run again, with the run's own sampling, clipping and noise, on records made up "
        "for it. The attacker sees every noisy gradient, which is more than anyone sees of a published model."
    )
    yield (
        "“Proved” is a lower confidence limit, read as the epsilon of steps like the claimed ones with as much less "
        "noise as it takes, at the claimed sample rate. A mechanism that keeps its claim is called broken once in a "
        "million audits."
    )
    if len(audits) > 1:
        yield (
            "A record like those trained on: a canary with the gradient norms that a held-out record had in a second "
            "training. The proof is about the average over such records."
        )
    for audit in audits:
        if audit.tests:
            looked = "; ".join(FAULT_TEXTS[test.kind] for test in audit.tests)
            yield f"The measured noise is {audit.noise:.4f} times the declared one. Direct tests look whether {looked}."
        if audit.steps < steps:
            yield f"{audit.who}: the time was up after {audit.steps} of {steps} steps; its claim is for those."
    if left_out:
        yield f"The model is large: {left_out} of its largest tensors were left out of the replay."


def _down(epsilon: float) -> str:
    return round_up_text(epsilon, up=False)
