"""Canaries: records made to be found. An attacker who sees every noisy gradient guesses which took part.

Each canary is put into the data by a fair coin. Its gradient points where no other record's does, so a mechanism
that works as claimed gives independent evidence on each: the sum over steps of the log-likelihood ratio of "took
part" to "did not". Guessing by its sign is the best guess there is, and it is right with probability (1 + d) / 2,
where d = δ(0) is the total variation distance that the claimed privacy curve allows. So the number of right guesses
is binomial, and too many of them break the claim: no approximation, no retraining, one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita.accounting import worst_case
from tacita.accounting.worst import check_mechanism
from tacita.audit.attack import Session
from tacita.audit.canary_result import CanaryAudit, canary_finding
from tacita.audit.direct import ERROR, Direct
from tacita.audit.replay import Replay, left_out
from tacita.audit.tally import CERTAIN, Tally, paced
from tacita.audit.target import Target
from tacita.label import Finding
from tacita.training.step import one_thread

if TYPE_CHECKING:
    from tacita._check import Floats

StepFunction = Callable[[Any], Any]
"""Takes one step of a mechanism on a dataset that holds exactly the canaries marked in the boolean array it is given
(the same one at every step), and returns what an attacker sees of each canary: the noisy *sum*, not divided by a batch
size, along the canary's direction, over the clip norm. No two canaries may share a direction, and each must be at least
as long as the clip norm. It may also return a pair (seen, level), where level is what the step bounds every canary by,
over the clip norm, if that is less than 1; or (seen, level, drawn), where drawn marks the canaries that the step drew,
as booleans, which sharpens the direct tests."""


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
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> CanaryAudit:
    """Audit any private step function: does it leak more than it claims?

    Args:
        step_fn: Takes one step on the canaries that are present, and returns what is seen of each: see `StepFunction`.
        sample_rate: What is claimed: the chance with which each record enters a step.
        noise_multiplier: What is claimed: noise standard deviation over the clip norm.
        steps: How many steps.
        delta: At which delta.
        epsilon: The claim. By default `tacita.worst_case` of the three numbers above.
        count: How many canaries, at most as many as the gradient has coordinates.
        parts: For each canary, which part of the gradient it is in, 0, 1, …: a bug in one layer is found there.
        seed: Decides which canaries take part; by default drawn from the operating system.
        who: What kind of record the canaries are, for people.
        progress: Called with (steps taken, steps).
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


class CanaryAttack:
    """Canaries in a replay of the run's mechanism: does it leak more than the worst case claims?"""

    activity = "canaries in a replay"

    def check(self, target: Target) -> None:
        """Any run will do: only the mechanism is replayed."""

    def run(self, session: Session) -> CanaryAudit:
        """Replay the run's steps on canaries."""
        target, plan, delta = session.target, session.target.plan, session.target.label.worst.delta
        replay = Replay(plan, target.shapes, steps=target.steps, seed=session.seed(1))
        with one_thread():
            return canaries(
                replay,
                sample_rate=plan.sample_rate,
                noise_multiplier=plan.noise_multiplier,
                steps=target.steps,
                delta=delta,
                epsilon=plan.worst(target.steps, delta).epsilon,  # of the steps that are replayed
                count=replay.count,
                parts=replay.parts,
                seed=session.seed(2),
                progress=session.progress,
                stop=session.out_of_time,
            )

    def finding(self, result: CanaryAudit, session: Session) -> Finding:
        """Return one finding for this attack and the one on the typical case."""
        return finding_of(session)


def finding_of(session: Session) -> Finding:
    """Return one finding for the canary attacks made so far, the worst case first."""
    made = [name for name in ("canaries", "typical") if name in session.results]
    return canary_finding(
        [CanaryAudit.from_dict(session.results[name]) for name in made],
        steps=session.target.steps,
        left_out=left_out(session.target.shapes) if "canaries" in made else 0,
    )
