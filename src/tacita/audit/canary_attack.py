"""Canaries: records made to be found. An attacker who sees every noisy gradient guesses which took part.

Each canary is put into the data by a fair coin. Its gradient points where no other record's does, so a mechanism
that works as claimed gives independent evidence on each: the sum over steps of the log-likelihood ratio of "took
part" to "did not". Guessing by its sign is the best guess there is, and it is right with probability (1 + d) / 2,
where d = δ(0) is the total variation distance that the claimed privacy curve allows. So the number of right guesses
is binomial, and too many of them break the claim: no approximation, no retraining, one run.

A `StepFunction` takes one step of a mechanism on a dataset that holds exactly the canaries marked in the boolean array
it is given (the same one at every step), and returns what an attacker sees of each canary: the noisy *sum*, not divided
by a batch size, along the canary's direction, over the clip norm. No two canaries may share a direction, and each must
be at least as long as the clip norm. It may also return a pair (seen, level), where level is what the step bounds every
canary by, over the clip norm, if that is less than 1; or (seen, level, drawn), where drawn marks the canaries that the
step drew, as booleans, which sharpens the direct tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._numbers import percent_text, round_up_text, success_text
from tacita._progress import Progress
from tacita.accounting import worst_case
from tacita.accounting.worst import check_mechanism
from tacita.audit.attack import Session
from tacita.audit.direct import ERROR, FAULT_TEXTS, Direct
from tacita.audit.replay import Replay, left_out
from tacita.audit.tally import CERTAIN, CONFIDENCES, VERDICTS, CanaryAudit, Tally, paced
from tacita.label import Finding
from tacita.training.step import one_thread

if TYPE_CHECKING:
    from tacita._check import Floats

_SHOWN = 2  # faults in a sentence: one fault often fails several tests

StepFunction = Callable[[Any], Any]


@_check.renamed("rng")
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
    seed: int | None = None,
    who: str = "A record made to be found",
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> CanaryAudit:
    """Audit any private step function: does it leak more than it claims?

    Args:
        step_fn: Takes one step on the canaries that are present, and returns what is seen of each. The form is
            described in `tacita.audit.canary_attack`.
        sample_rate: What is claimed: the chance with which each record enters a step.
        noise_multiplier: What is claimed: noise standard deviation over the clip norm.
        steps: How many steps.
        delta: At which delta.
        epsilon: The claim. By default `tacita.worst_case` of the three numbers above.
        count: How many canaries, at most as many as the gradient has coordinates.
        parts: For each canary, which part of the gradient it is in, 0, 1, …: a bug in one layer is found there.
        seed: Decides which canaries take part; by default drawn from the operating system.
        who: What kind of record the canaries are, for people.
        progress: Called after every step.
        stop: Asked before every step; True ends the audit early, with the claim for the steps taken.

    Returns:
        The lower bounds on epsilon beside the claim, and a verdict.

    Guarantee:
        If the mechanism is what it claims to be, and canaries do not influence each other, each lower bound is above
        the truth with probability at most 1 - confidence, and the claim is called broken with probability at most 1e-6:
        half of it for the guesses and half for direct tests (`tacita.audit.direct`) of noise, clipping and sampling.

    Examples:
        >>> noise = np.random.default_rng(1)
        >>> def half_the_noise(present):
        ...     return present + 0.5 * 4.0 * noise.standard_normal(len(present))
        >>> found = canaries(half_the_noise, sample_rate=1.0, noise_multiplier=4.0, steps=1, delta=1e-5, seed=2)
        >>> found.verdict, found.epsilon < found.lower[0.9995] < 2.2 * found.epsilon
        ('claim broken', True)
    """
    q, sigma, planned = check_mechanism(sample_rate, noise_multiplier, steps)
    delta = _check.probability("delta", delta)
    present = np.random.default_rng(seed).random(_check.count("count", count, high=10**8)) < 0.5
    tally = Tally(present, sample_rate=q, noise_multiplier=sigma, parts=parts)
    direct = Direct(present, sample_rate=q, noise_multiplier=sigma, parts=parts)
    for _ in paced(planned, progress, stop):
        seen, level, drawn = _parsed(step_fn(present.copy()))
        tally.add(seen, level)
        direct.add(seen, level, drawn)
    if epsilon is None or tally.steps < planned:
        epsilon = worst_case(sample_rate=q, noise_multiplier=sigma, steps=tally.steps, delta=delta).epsilon
    found = tally.audit(who=who, epsilon=epsilon, delta=delta, certain=CERTAIN + ERROR)
    return replace(found, tests=direct.tests(), noise=direct.scale.ratio)


def _parsed(returned: Any) -> tuple[Floats, float, Any]:
    """Return what a step function returned: what was seen, the level, and who was drawn if that is known."""
    seen, level, drawn = (*returned, None)[:3] if isinstance(returned, tuple) else (returned, 1.0, None)
    values = np.asarray(seen, dtype=np.float64)
    if drawn is not None:
        drawn = np.asarray(drawn)
        if drawn.dtype != bool or drawn.shape != values.shape:
            raise ValueError("step_fn must tell who was drawn by one boolean for each canary.")
    return values, level, drawn


def attack_with_canaries(session: Session) -> tuple[dict[str, Any], Finding]:
    """Run the mechanism again on records made to be found: does it leak more than the worst case claims?"""
    target, plan, delta = session.target, session.target.plan, session.target.label.worst.delta
    replay = Replay(plan, target.shapes, steps=target.steps, seed=session.seed(1))
    with one_thread():
        found = canaries(
            replay,
            sample_rate=plan.sample_rate,
            noise_multiplier=plan.noise_multiplier,
            steps=target.steps,
            delta=delta,
            epsilon=plan.worst(target.steps, delta).epsilon,  # of the steps that are replayed
            count=replay.count,
            parts=replay.parts,
            seed=session.seed(2),
            who=f"A {plan.unit} made to be found",
            progress=session.progress,
            stop=session.out_of_time,
        )
    return with_finding(session, "canaries", found)


def with_finding(session: Session, name: str, found: CanaryAudit) -> tuple[dict[str, Any], Finding]:
    """Return one canary attack's plain result, and one finding for all that were made, the worst case first."""
    results = {**session.results, name: found.to_dict()}
    made = [CanaryAudit.from_dict(results[key]) for key in ("canaries", "typical") if key in results]
    large = left_out(session.target.shapes) if "canaries" in results else 0
    return results[name], canary_finding(made, steps=session.target.steps, left_out=large)


def canary_finding(audits: Sequence[CanaryAudit], *, steps: int, left_out: int = 0) -> Finding:
    """Return canary audits as one finding for the owner's label.

    Args:
        audits: What was found, the worst case first.
        steps: How many steps the run took.
        left_out: How many of the model's tensors were too large for the replay.

    Returns:
        The finding. Its state is the most serious of all audits.
    """
    serious = max(audits, key=lambda audit: list(VERDICTS).index(audit.state))  # the first of equally serious ones
    verdict = "" if serious.state == "not-refuted" else f"{serious.verdict.capitalize()}. "
    sentence = f"{verdict}{_measured(serious)}"
    uncovered = [audit for audit in audits[1:] if audits[0].lower[CONFIDENCES[-1]] > audit.epsilon]
    if serious.guessed:
        sentence += " The mechanism leaks more than the label says: do not use this label."
    elif serious.state == "warning":
        sentence += " The mechanism is not the one that the label speaks of: do not use this label."
    elif serious.state == "open":
        sentence += " The bound reached the claim: repeat the audit, since chance alone does this once in 2000 times."
    elif uncovered:
        sentence += (
            f" A record made to be found leaks more than the epsilon of {round_up_text(uncovered[0].epsilon)} that the "
            "typical case promises: only the worst case covers it."
        )
    return Finding(
        key="canaries",
        heading="Does the mechanism leak more than it claims?",
        state=serious.state,
        sentence=sentence,
        columns=("Canary", "Proved, 95%", "Proved, 99.95%", "Claimed", "Verdict"),
        rows=tuple(
            (a.who, *(round_up_text(a.lower[c], up=False) for c in CONFIDENCES), round_up_text(a.epsilon), a.verdict)
            for a in audits
        ),
        bounds=tuple(audit.bound for audit in audits),
        notes=tuple(_notes(audits, steps, left_out)),
        tests_claim=True,
        measured=audits[0].roc,
    )


def _measured(audit: CanaryAudit) -> str:
    share, allowed = percent_text(audit.right / audit.canaries), success_text(audit.allowed)
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
            tested = "; ".join(FAULT_TEXTS[test.kind] for test in audit.tests)
            yield f"The measured noise is {audit.noise:.4f} times the declared one. Direct tests ask if {tested}."
        if audit.steps < steps:
            yield f"{audit.who}: time ran out after {audit.steps} of {steps} steps; its claim is for those."
    if left_out:
        yield f"The model is large: {left_out} of its largest tensors were left out of this second run."
