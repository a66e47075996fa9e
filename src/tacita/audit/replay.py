"""A run's mechanism, replayed with canaries: the shipped training loop on records made to be found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan

_NOWHERE = -1  # a record without a gradient, so that no dataset is empty
_LENGTH = 10.0  # of a canary's gradient before clipping, over the clip norm
_MOST_EACH = 8  # records of a canary that is a person; more would only take longer
_ALL_BUT_ONE = 1e6  # the same where clipping is automatic, which makes it n / (n + r) long
_ENOUGH = 1_000  # numbers in the tensors of a rank: fewer canaries would not show a bug that only biases have
_MATRIX = 2
_MOST_PARAMETERS = 50_000  # of the model that are replayed
_DENSE = 4e6  # numbers in the gradients of a step's canaries, before canaries are drawn
_MOST, _MANY, _FEWEST = 200_000, 50_000, 2_000  # canaries: for few steps, for some, for very many
_LITTLE, _WORK = 4e6, 4e7  # canaries times steps: with more than many canaries, and with fewer
_DRAWS = 1e6  # canaries times steps times the sample rate: what takes the time


class Replay:
    """A step function for `tacita.audit.canaries`: `PrivateTraining` itself, with canaries for data.

    A canary's gradient is ten times the clip norm along one coordinate: of the model's own parameters, or of a linear
    layer that is replayed beside them, since a small model has coordinates for few canaries only. No learning takes
    place: canaries look alike whatever the parameters are. Small tensors are replayed several times. In a run for
    persons a canary is a person with one record more than a contribution takes, or with eight, all of them alike.

    Args:
        plan: What the run declared; the replay declares the same.
        shapes: The shapes of the model's trainable parameters. Of a large model the smaller tensors are replayed.
        steps: How many steps to replay.
        count: How many canaries. By default as many as take some seconds. `parts` gives the rank of the tensor each
            is in: vectors, matrices and higher ranks are also tested by themselves.
        seed: Seeds coins and noise, as in `PrivateTraining`.
    """

    @_check.renamed("rng")
    def __init__(
        self,
        plan: Plan,
        shapes: Sequence[Sequence[int]],
        *,
        steps: int | None = None,
        count: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.plan, self.steps, self._seed = plan, plan.steps if steps is None else steps, seed
        self.each = 1 if plan.records_per_person is None else min(plan.records_per_person + 1, _MOST_EACH)
        self.count = most_canaries(self.steps, plan.sample_rate, each=self.each) if count is None else count
        own = _Parameters(_repeated(_small_enough(shapes), self.steps))
        drawn = plan.sample_rate if plan.individual_every is None else 1.0  # or all of them are measured
        inside = min(self.count, own.size, int(_DENSE / (drawn * self.each * max(1, own.size))))
        models: list[tuple[_Coordinates, Any]] = [
            (own, np.linspace(0, own.size - 1, inside).astype(np.int64)),
            (CanaryModel(self.count - inside), np.arange(self.count - inside)),
        ]
        self.parts = np.concatenate([model.ranks[places] for model, places in models])
        self._models = [(model, places) for model, places in models if len(places)]
        self._runs: list[PrivateTraining] = []

    def __call__(self, present: Any) -> Any:
        """Take one step on the canaries that are present; return what is seen of each, their bound, who was drawn."""
        here = np.split(present, np.cumsum([len(places) for _, places in self._models])[:-1])
        if not self._runs:
            self._runs = [self._start(part, some) for part, some in enumerate(here)]
        for run in self._runs:
            run.advance()
        seen = [model.gradient()[places] for model, places in self._models]
        drawn = []
        for some, run in zip(here, self._runs, strict=True):  # units are the canaries present, and one that is none
            there, taken = np.flatnonzero(some), run.mechanism.drawn
            drawn.append(np.isin(np.arange(len(some)), there[taken[taken < len(there)]]))
        bounds = [1.0 if self.plan.individual_every is None else float(run.bounds.max()) for run in self._runs]
        return np.concatenate(seen) * (self.plan.batch_size / self.plan.clip_norm), max(bounds), np.concatenate(drawn)

    def _start(self, part: int, present: Any) -> PrivateTraining:
        model, places = self._models[part]
        length = self.plan.clip_norm * (_LENGTH if self.plan.softening is None else _ALL_BUT_ONE)
        where = torch.from_numpy(np.append(places[present], _NOWHERE))
        return frozen_training(
            self.plan,
            model,
            lambda value, _: length * value,
            (where, torch.zeros(len(where))),
            each=self.each,
            steps=self.steps,
            seed=None if self._seed is None else self._seed + part,
        )


def frozen_training(
    plan: Plan,
    model: nn.Module,
    loss_fn: Any,
    records: tuple[Tensor, ...],
    *,
    steps: int,
    seed: int | None,
    each: int = 1,
) -> PrivateTraining:
    """Return a training with a plan's mechanism, in memory, whose learning rate is 0.

    Args:
        plan: What the run declared.
        model: Holds a coordinate for each canary.
        loss_fn: Takes an output and a target.
        records: The canaries; if the plan is for persons, one record of each.
        steps: How many steps it may take.
        seed: Seeds coins and noise.
        each: How many such records each person has.

    Returns:
        A training that leaves its noisy gradients on the parameters.
    """
    persons = None if plan.records_per_person is None else np.arange(len(records[0])).repeat(each)
    return PrivateTraining(
        model,
        loss_fn,
        tuple(t.repeat_interleave(each, dim=0) for t in records),
        person=persons,
        records_per_person=plan.records_per_person,
        of_person=plan.of_person,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        sample_rate=plan.sample_rate,
        steps=steps,
        clip_norm=plan.clipping,
        noise_multiplier=plan.noise_multiplier,
        noise=plan.noise,
        batch_size=plan.batch_size,
        individual_every=plan.individual_every,
        record_budget=plan.record_budget,
        panel=0,
        delta=plan.delta,
        seed=seed,
    )


class _Coordinates(nn.Module):
    """A module with one coordinate for every canary: its parameters, concatenated. `ranks` are their dimensions."""

    ranks: Any

    def gradient(self) -> Any:
        """Return the gradient that the last step left, concatenated."""
        return torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None]).double().numpy()


class _Parameters(_Coordinates):
    """The model's own parameter tensors."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(tuple(shape))) for shape in shapes)
        self.size = sum(p.numel() for p in self.tensors)
        self.ranks = np.repeat([len(shape) for shape in shapes], [math.prod(shape) for shape in shapes]).astype(int)

    def forward(self, where: Tensor) -> Tensor:
        flat = torch.cat([p.flatten() for p in self.tensors])
        return (torch.arange(self.size) == where[..., None]).float() @ flat


class CanaryModel(_Coordinates):
    """A square linear layer for canaries: canary i has one input and one output, so one weight, to itself.

    `model(where)` returns the weights of the canaries at `where`; a loss of ten times the clip norm times their sum
    gives each a gradient along its own coordinate, for the mechanism to clip. `gradient()[:count]` is then what an
    attacker sees. Any library that knows linear layers can be audited with it.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.side = math.isqrt(max(1, count) - 1) + 1
        self.layer = nn.Linear(self.side, self.side, bias=False)
        self.ranks = np.full(self.side**2, _MATRIX)

    def forward(self, where: Tensor) -> Tensor:
        """Return the weight at each canary's coordinate."""
        row = torch.div(where, self.side, rounding_mode="floor")
        column = where - row * self.side
        output = self.layer((torch.arange(self.side) == column[..., None]).float())
        chosen: Tensor = output * (torch.arange(self.side) == row[..., None])
        return chosen.sum(-1)


def most_canaries(steps: int, sample_rate: float, *, each: int = 1) -> int:
    """Return how many canaries take some seconds.

    Args:
        steps: How many steps.
        sample_rate: The chance of each canary.
        each: How many records a canary has.
    """
    seen = max(_LITTLE / steps, min(_MANY, _WORK / steps))
    return int(min(_MOST, max(_FEWEST, min(seen, _DRAWS / (steps * sample_rate * each)))))


def left_out(shapes: Sequence[Sequence[int]]) -> int:
    """Return how many of a model's tensors are too large to be replayed."""
    return len(shapes) - len(_small_enough(shapes))


def _repeated(shapes: Sequence[Sequence[int]], steps: int) -> list[Sequence[int]]:
    """Return the shapes, those of each rank repeated until they hold a thousand numbers, fewer if there are many steps.

    Every tensor takes time at every step, and more steps show more of its noise.
    """
    enough = min(_ENOUGH, max(_ENOUGH / 10, 20.0 * _ENOUGH / steps))
    totals: dict[int, int] = {}
    for shape in shapes:
        totals[len(shape)] = totals.get(len(shape), 0) + math.prod(shape)
    return [shape for shape in shapes for _ in range(math.ceil(enough / max(1, totals[len(shape)])))]


def _small_enough(shapes: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return the smaller tensors, in their order, that hold at most 50,000 numbers together."""
    kept, total = set(), 0
    for i in sorted(range(len(shapes)), key=lambda i: math.prod(shapes[i])):
        total += math.prod(shapes[i])
        if total <= _MOST_PARAMETERS:
            kept.add(i)
    return [shapes[i] for i in sorted(kept)]
