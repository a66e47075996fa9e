"""Canaries drawn from held-out data: does a typical record leak more than the typical case claims?

The run is trained once more, privately, on its own records. At every step the gradients of held-out records are taken
at its parameters, by plain differentiation and not by the code that trains, and canaries of those very norms go through
the shipped training loop, each along a direction of its own. Gaussian noise is the same in every direction, so such a
canary leaks what its record would leak to an attacker who knows everybody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from tacita.accounting import LEVELS, level_of
from tacita.audit.canaries import CanaryAudit, Tally
from tacita.audit.replay import CanaryModel, most_canaries, still
from tacita.training.loop import PrivateTraining
from tacita.training.records import record_loss

if TYPE_CHECKING:
    from tacita._check import Floats

Records = tuple[Tensor, ...]
_DISTINCT = 128
_NUMBERS = 5_000_000  # in the gradients taken at once


def typical_canaries(
    make: Callable[[Records], PrivateTraining],
    held: Records,
    *,
    epsilon: float | None,
    delta: float,
    count: int | None = None,
    rng: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> CanaryAudit:
    """Audit the typical case with the gradients of held-out records for canaries.

    Args:
        make: Starts a private training like the run's, in memory, that follows all the records it is given as its
            `holdout`. It is trained here.
        held: Held-out records (inputs …, target), like those trained on; 128 of them are used.
        epsilon: The claimed typical epsilon after all steps; None takes the one of the training made here.
        delta: At which delta.
        count: How many canaries.
        rng: A seed for coins and noise.
        progress: Called with (steps taken, steps).
        stop: Asked before every step; True ends the audit early, with the claim of the training made here.

    Guarantee:
        If every record leaks at most what its own account says, the claim is called broken with probability at most
        1e-6. It speaks of the average over the records used.
    """
    coins = np.random.default_rng(rng)
    chosen = torch.from_numpy(coins.permutation(len(held[-1]))[:_DISTINCT])
    records = tuple(t[chosen] for t in held)
    shadow = make(records)
    plan = shadow.plan
    total = most_canaries(plan.steps, plan.sample_rate) if count is None else count
    kinds, present = np.arange(total) % len(chosen), coins.random(total) < 0.5
    loud = _Loud(shadow, records, kinds, present, None if rng is None else rng + 1)
    tally = Tally(present, sample_rate=plan.sample_rate, noise_multiplier=plan.noise_multiplier, kinds=kinds)
    for step in range(plan.steps):
        if step and stop is not None and stop():
            break
        tally.add(*loud.step(measure=step % (plan.individual_every or 1) == 0))
        shadow.advance()
        if progress is not None:
            progress(step + 1, plan.steps)
    accountant = shadow.accountants["held-out"]
    own = accountant.guarantee(delta=delta).epsilon  # another path than the run's: its claim may be larger
    claim = own if epsilon is None or tally.steps < plan.steps else epsilon
    who = "A record like those trained on"
    return tally.audit(who=who, epsilon=claim, delta=delta, counts=accountant.counts, limit=own)


class _Loud:
    """Canaries as loud as held-out records are at the shadow's parameters, through the shipped loop."""

    def __init__(self, shadow: PrivateTraining, records: Records, kinds: Any, present: Any, rng: int | None) -> None:
        self.shadow, self.records, self.plan = shadow, records, shadow.plan
        self.gradients = vmap(
            grad(record_loss(shadow.model, shadow.loss_fn)), in_dims=(None, 0), randomness="different"
        )
        self.size = sum(p.numel() for p in shadow.parameters.values())
        self.norms = torch.zeros(len(records[-1]))
        self.bounds: Floats = np.ones(len(records[-1]))
        self.room, self.count = CanaryModel(len(present)), len(present)
        where = np.flatnonzero(present)
        data = (torch.from_numpy(where), torch.from_numpy(kinds[where]))
        self.run = still(
            self.plan, self.room, lambda value, kind: value * self.norms[kind], data, steps=self.plan.steps, rng=rng
        )

    def step(self, *, measure: bool) -> tuple[Any, Floats]:
        """Take one step and return what is seen of each canary, and the norms that clipping leaves."""
        self.norms = self._norms()
        self.run.advance()
        lengths = np.minimum(self.norms.double().numpy() / self.plan.clip_norm, 1.0)
        if self.plan.individual_every is not None and measure:
            self.bounds = LEVELS[level_of(lengths)]
        seen = self.room.gradient()[: self.count] * (self.plan.batch_size / self.plan.clip_norm)
        return seen, np.minimum(lengths, self.bounds)

    def _norms(self) -> Tensor:
        parameters = {name: p.detach() for name, p in self.shadow.parameters.items()}
        parts = math.ceil(self.size * len(self.norms) / _NUMBERS)
        found = []
        for part in torch.tensor_split(torch.arange(len(self.norms)), parts):
            some = self.gradients(parameters, tuple(t[part] for t in self.records))
            found.append(sum(g.flatten(1).double().square().sum(1) for g in some.values()))
        return torch.nan_to_num(torch.cat(found).sqrt(), nan=0.0, posinf=0.0).float()  # such a record contributes zero
