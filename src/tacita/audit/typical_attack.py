"""Canaries drawn from held-out data: does a typical record leak more than the typical case claims?

The run is trained once more, privately, on its own records. At every step the gradients of held-out records are
computed at its parameters, by plain differentiation and not by the code that trains, and canaries of the same norms go
through the shipped training loop, each along a direction of its own. Gaussian noise is isotropic, so such a
canary leaks what its record would leak to an attacker who knows everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacita import _check
from tacita._progress import Progress
from tacita.accounting import NORM_LEVELS, level_of
from tacita.audit.attack import Data, Session, SkippedError
from tacita.audit.canary_attack import with_finding
from tacita.audit.models import record_gradients
from tacita.audit.replay import CanaryModel, frozen_training, most_canaries
from tacita.audit.tally import CanaryAudit, Tally, paced
from tacita.label import Finding
from tacita.training.loop import PrivateTraining

if TYPE_CHECKING:
    from tacita._check import Floats

_DISTINCT = 128  # held-out records that canaries are made of


@_check.renamed("rng")
def typical_canaries(
    make: Callable[[Data], PrivateTraining],
    holdout: Data,
    *,
    epsilon: float | None,
    delta: float,
    count: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> CanaryAudit:
    """Audit the typical case with canaries whose gradient norms are those of held-out records.

    Args:
        make: Starts a private training like the run's, in memory, that follows all the records it is given as its
            `holdout`. It is trained here.
        holdout: Held-out records (inputs …, target), like those trained on; 128 of them are used.
        epsilon: The claimed typical epsilon after all steps; None takes that of the training made here.
        delta: At which delta.
        count: How many canaries.
        seed: Seeds coins and noise.
        progress: Called after every step.
        stop: Asked before every step; True ends the audit early, with the claim of the training made here.

    Returns:
        The lower bounds on epsilon beside the claim, and a verdict.

    Guarantee:
        If every record leaks at most what its own account says, the claim is called broken with probability at most
        1e-6. It speaks of the average over the records used.
    """
    coins = np.random.default_rng(seed)
    chosen = torch.from_numpy(coins.permutation(len(holdout[-1]))[:_DISTINCT])
    records = tuple(t[chosen] for t in holdout)
    shadow = make(records)
    plan = shadow.plan
    total = most_canaries(plan.steps, plan.sample_rate) if count is None else count
    kinds, present = np.arange(total) % len(chosen), coins.random(total) < 0.5
    steps = _lookalike_steps(shadow, records, kinds, present, None if seed is None else seed + 1)
    tally = Tally(present, sample_rate=plan.sample_rate, noise_multiplier=plan.noise_multiplier, kinds=kinds)
    for _ in paced(plan.steps, progress, stop):
        tally.add(*next(steps))
    accountant = shadow.accountants["held-out"]
    own = accountant.guarantee(delta=delta).epsilon  # another path than the run's: its claim may be larger
    return tally.audit(
        who="A record like those trained on",
        epsilon=own if epsilon is None or tally.steps < plan.steps else epsilon,
        delta=delta,
        counts=accountant.counts,
        limit=own,
    )


def attack_typical_case(session: Session) -> tuple[dict[str, Any], Finding]:
    """Train the run once more with canaries like held-out records beside it: do they leak more than is claimed?"""
    target, plan, label = session.target, session.target.plan, session.target.label
    if label.readings is None or not label.readings.typical:
        raise SkippedError("nobody was followed, so there is no typical case to attack")
    train, holdout = target.records()

    def make(records: Data) -> PrivateTraining:
        return target.retrain(
            train,
            holdout=records,
            panel=len(records[-1]),
            panel_rate=None if plan.individual_every else 1.0,
            individual_every=plan.individual_every,
            record_budget=plan.record_budget,
            seed=session.seed(3),
        )

    found = typical_canaries(
        make,
        holdout,
        epsilon=label.readings.typical[0].epsilon,
        delta=label.worst.delta,
        seed=session.seed(4),
        progress=session.progress,
        stop=session.out_of_time,
    )
    return with_finding(session, "typical", found)


def _lookalike_steps(
    shadow: PrivateTraining, records: Data, kinds: Any, present: Any, seed: int | None
) -> Iterator[tuple[Any, Floats]]:
    """Take the steps of the shadow training, and of canaries with the gradient norms that records have in it.

    Yields what is seen of each canary, and the norms that clipping leaves of each record.
    """
    plan, norms, bounds = shadow.plan, torch.zeros(len(records[-1])), np.ones(len(records[-1]))
    room, where = CanaryModel(len(present)), np.flatnonzero(present)
    data = (torch.from_numpy(where), torch.from_numpy(kinds[where]))
    beside = frozen_training(
        plan, room, lambda value, kind: value * norms[kind], data, steps=plan.steps, seed=seed
    )  # the shipped loop
    for step in range(plan.steps):
        gradients = record_gradients(shadow.mechanism.loss, shadow.mechanism.parameters, records)
        measured = torch.cat([rows.norm(dim=1) for rows in gradients])
        norms.copy_(torch.nan_to_num(measured, nan=0.0, posinf=0.0))  # such a record contributes zero
        lengths = plan.contributions(norms.double().numpy())
        if plan.individual_every is not None and step % plan.individual_every == 0:
            bounds = NORM_LEVELS[level_of(lengths)]
        beside.advance()
        shadow.advance()
        yield room.gradient()[: len(present)] * (plan.batch_size / plan.clip_norm), np.minimum(lengths, bounds)
