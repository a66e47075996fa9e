"""Canaries drawn from held-out data: does a typical record leak more than the typical case claims?

The run is trained once more, privately, on its own records. Beside it, at every step and at the same parameters, the
shipped training loop takes a step on held-out records, each of which has a copy of the model to itself: it is there
or not, by a coin, its gradient is its own, and no other record hides it. That is the attacker who knows everybody
else. What is seen of a record is the noisy gradient of its copy, along its own gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacita.accounting import LEVELS, level_of
from tacita.audit.canaries import CanaryAudit, Tally
from tacita.audit.replay import still
from tacita.training.loop import PrivateTraining
from tacita.training.records import record_loss

if TYPE_CHECKING:
    from tacita._check import Floats

Records = tuple[Tensor, ...]
_WORK = 1e9  # noisy numbers drawn in all
_SHARED = 1_000_000  # parameters of the copies that take a step together
_MOST, _FEWEST = 1000, 20
_DISTINCT = 256


def typical_canaries(
    make: Callable[[Records], PrivateTraining],
    loss_fn: Callable[[Any, Any], Tensor],
    held: Records,
    *,
    epsilon: float | None,
    delta: float,
    count: int | None = None,
    rng: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> CanaryAudit:
    """Audit the typical case with held-out records for canaries.

    Args:
        make: Starts a private training like the run's, in memory, that follows all the records it is given as its
            `holdout`. It is trained here.
        loss_fn: Its loss.
        held: Held-out records (inputs …, target), like those trained on.
        epsilon: The claimed typical epsilon after all steps; None takes the one of the training made here.
        delta: At which delta.
        count: How many canaries; records are used again if there are fewer.
        rng: A seed for coins and noise.
        progress: Called with (steps taken, steps).
        stop: Asked before every step; True ends the audit early, with the claim of the training made here.

    Guarantee:
        If every record leaks at most what its own account says, the lower bound exceeds the claim with probability at
        most 1 - confidence. It speaks of the average over these records.
    """
    coins = np.random.default_rng(rng)
    distinct = coins.permutation(len(held[-1]))[:_DISTINCT]
    records = tuple(t[torch.from_numpy(distinct)] for t in held)
    shadow = make(records)
    plan = shadow.plan
    sight = _Sight(shadow, loss_fn, records)
    total = int(min(_MOST, max(_FEWEST, _WORK / (sight.size * plan.steps)))) if count is None else count
    who, present = np.arange(total) % len(distinct), coins.random(total) < 0.5
    room = max(1, min(int(4.0 / plan.sample_rate), _SHARED // sight.size))
    parts = np.split(np.arange(total), np.arange(room, total, room))
    groups = [
        _Copies(shadow, loss_fn, records, who[part], present[part], None if rng is None else rng + i)
        for i, part in enumerate(parts)
    ]
    tally = Tally(present, sample_rate=plan.sample_rate, noise_multiplier=plan.noise_multiplier)
    for step in range(plan.steps):
        if step and stop is not None and stop():
            break
        sight.look(measure=step % (plan.individual_every or 1) == 0)
        seen = np.concatenate([group.step(sight) for group in groups])
        tally.add((seen, sight.levels[who]))
        shadow.advance()
        if progress is not None:
            progress(step + 1, plan.steps)
    accountant = shadow.accountants["held-out"]
    if epsilon is None or tally.steps < plan.steps:
        epsilon = accountant.guarantee(delta=delta).epsilon
    return tally.audit(
        who="A record like those trained on", epsilon=epsilon, delta=delta, counts=accountant.counts[who]
    )


class _Sight:
    """What an attacker knows of the held-out records at the current parameters: their gradients and bounds."""

    def __init__(self, shadow: PrivateTraining, loss_fn: Any, records: Records) -> None:
        self.shadow, self.records = shadow, records
        self.size = sum(p.numel() for p in shadow.parameters.values())
        self._gradients = vmap(grad(record_loss(shadow.model, loss_fn)), in_dims=(None, 0), randomness="different")
        self._bounds: Floats = np.ones(len(records[-1]))

    def look(self, *, measure: bool) -> None:
        """Note parameters, unit gradients, and the norms that clipping leaves, over the clip norm."""
        self.parameters = {name: p.detach().clone() for name, p in self.shadow.parameters.items()}
        found = self._gradients(self.parameters, self.records)
        flat = torch.cat([found[name].flatten(1) for name in self.parameters], dim=1).double()
        norms = flat.norm(dim=1)
        self.directions = flat / norms.clamp_min(1e-300)[:, None]
        lengths = np.minimum(norms.numpy() / self.shadow.plan.clip_norm, 1.0)
        if self.shadow.plan.individual_every is not None and measure:
            self._bounds = LEVELS[level_of(lengths)]
        self.levels = np.minimum(lengths, self._bounds)


class _Copies:
    """Some canaries, each with a copy of the model to itself, through the shipped loop."""

    def __init__(
        self, shadow: PrivateTraining, loss_fn: Any, records: Records, who: Any, present: Any, rng: int | None
    ) -> None:
        self.who, self.plan = who, shadow.plan
        self.stack = _Stack(shadow.model, shadow.parameters, len(who))
        places = np.append(np.flatnonzero(present), len(who))  # the last has no copy: so that no dataset is empty
        owners = torch.from_numpy(np.append(who[present], who[0]))
        data = (torch.from_numpy(places), *(t[owners] for t in records))
        self.run = still(shadow.plan, self.stack, loss_fn, data, steps=shadow.plan.steps, rng=rng)

    def step(self, sight: _Sight) -> Floats:
        """Take one step at the parameters in sight, and return what is seen of every canary."""
        self.stack.load(sight.parameters)
        self.run.advance()
        noisy = torch.cat([p.grad.flatten(1) for p in self.stack.copies if p.grad is not None], dim=1)
        seen = (noisy.double() * sight.directions[torch.from_numpy(self.who)]).sum(1)
        return np.asarray(seen * (self.plan.batch_size / self.plan.clip_norm))


class _Stack(nn.Module):
    """Several copies of a model's trainable parameters; a record says which copy it runs through."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], count: int) -> None:
        super().__init__()
        self._model = [model]  # in a list: its own parameters are not this module's
        self._names = list(parameters)
        self.copies = nn.ParameterList(
            nn.Parameter(p.detach().expand(count, *p.shape).clone()) for p in parameters.values()
        )

    def load(self, parameters: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for copies, name in zip(self.copies, self._names, strict=True):
                copies.copy_(parameters[name])

    def forward(self, place: Tensor, *inputs: Tensor) -> Any:
        own = {}
        for name, copies in zip(self._names, self.copies, strict=True):
            chosen = (torch.arange(len(copies)) == place).to(copies.dtype)
            own[name] = torch.tensordot(chosen, copies, dims=1)
        return functional_call(self._model[0], own, inputs)
