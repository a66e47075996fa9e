"""What a client of a federation does: an update from its own records, and its side of the cost exchange.

The same functions run in one process (`tacita.federated.local`) and behind Flower's messages.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS, BayesianAccountant, level_of
from tacita.federated.masking import Masker, masker
from tacita.federated.plan import FederationPlan
from tacita.training.gradients import Parameters, clipped_sum, fresh_draws, record_norms
from tacita.training.reading import places
from tacita.training.records import Records, check_model, record_loss, split_batch, trainable, try_one
from tacita.training.step import poisson_sample, private_gradient

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.federated.masking import Words

Memory = Mapping[str, Tensor]  # what a client keeps from round to round, and sends to nobody
EPSILON_STEPS = 256  # buckets of a masked maximum, in equal ratios up to the worst case
_RATIO = 1.03


@dataclass(frozen=True)
class Local:
    """What a client does between two rounds where nothing inside it is protected.

    Attributes:
        epochs: Passes over its records.
        batch_size: Records in a step; None takes all of them, which with one epoch is FedSGD.
        learning_rate: Of plain SGD; 1 sends the gradient itself, for the server's optimiser to scale.
    """

    epochs: int = 1
    batch_size: int | None = None
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        _check.count("epochs", self.epochs)
        if self.batch_size is not None:
            _check.count("batch_size", self.batch_size)
        _check.in_range("learning_rate", self.learning_rate, 0.0, 1e6)


class Training(Protocol):
    """A client's training in the place of `Local`, at level client. It may remember things from round to round.

    That costs no more: whatever a client does inside, its update is clipped. What it remembers depends on which rounds
    it was drawn in, but given the model of every round before, each form that its update can have is within the clip
    norm, and a mixture of such rounds is no easier to tell from a round without the client than the worst of them.
    A client that is followed trains, and remembers, in every round, so it is unlike those that are not: with a training
    that remembers, follow everybody or nobody.
    """

    def __call__(
        self, parameters: Parameters, records: Records | Part, memory: Memory, random: np.random.Generator
    ) -> tuple[Parameters, Memory]:
        """Return by how much the parameters move, and what to remember; `memory` is empty before the first time."""


class Task:
    """A model and its loss: how parameters and records make updates. Shared by all clients of a process.

    Args:
        model: Any module of per-record layers; it is a workspace, its parameters are overwritten.
        loss_fn: As in PyTorch, the mean over a batch; None with a `Training`, which has its own.
        local: What a client does where nothing inside it is protected: settings of plain SGD, or a `Training`.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Callable[[Any, Any], Tensor] | None, local: Local | Training | None = None
    ) -> None:
        check_model(model)
        self.model, self.local = model, local if isinstance(local, Local) else Local()
        self.training = None if isinstance(local, Local) else local
        if loss_fn is None and self.training is None:
            raise TypeError("loss_fn is needed, unless clients have a training of their own.")
        self._layout: torch.memory_format | None = None
        self.loss_fn = loss_fn or _no_loss
        self.loss = record_loss(model, self.loss_fn)
        self._own = trainable(model, torch.optim.SGD(model.parameters(), lr=1.0))

    @property
    def parameters(self) -> Parameters:
        """A copy of the model's trainable parameters."""
        return {name: p.detach().clone() for name, p in self._own.items()}

    def set(self, parameters: Parameters) -> None:
        """Write parameters into the model."""
        with torch.no_grad():
            for name, own in self._own.items():
                own.copy_(parameters[name])

    def try_one(self, records: Records | Part) -> None:
        """Run one record through, so that what cannot work fails before anything is charged."""
        if self.training is None and len(records):
            try_one(self.model, self.loss, self.parameters, records)

    def settle(self, records: Records | Part) -> None:
        """Lay images out with their channels last, twice as fast to pool, if the model runs so: a `view` may not."""
        for layout in (torch.channels_last, torch.contiguous_format) if self._layout is None else ():
            self._layout = layout
            for own in self._own.values():
                own.data = self.laid_out(own.data)
            few = records.take(places(len(records)))
            if few is None:  # none of them can be read
                return
            args, kwargs, _ = split_batch(tree_map(self.laid_out, few))
            try:
                with torch.no_grad():
                    self.model(*args, **kwargs)
                return
            except RuntimeError:
                if layout is torch.contiguous_format:
                    raise

    def laid_out(self, value: Tensor) -> Tensor:
        """Return a tensor of images in the layout that was settled; others as they are."""
        return value.to(memory_format=self._layout or torch.contiguous_format) if value.dim() == 4 else value

    def train(self, parameters: Parameters, batches: Iterator[Any], rate: float) -> Parameters:
        """Return by how much plain SGD over the batches moves the parameters."""
        self.set(parameters)
        own: list[Tensor] = list(self._own.values())
        for batch in batches:
            args, kwargs, target = split_batch(batch)
            loss = self.loss_fn(self.model(*args, **kwargs), target)
            gradients = torch.autograd.grad(loss.mean() if loss.dim() else loss, own)
            with torch.no_grad():
                torch._foreach_add_(own, gradients, alpha=-rate)
        return {name: p.detach() - parameters[name] for name, p in self._own.items()}


class Client:
    """One client: its records, its coins and its noise, and, where records are protected, their account.

    Args:
        name: Its name in the federation.
        task: Model and loss.
        dataset: Its records, as `PrivateTraining` takes them, or none: then it sends noise alone, or an update of zeros
            at level client. Whether it holds any stops nothing.
        plan: What the federation declared.
        panel: How many of its records are followed, for typical figures; 0 follows none.
        rng: A seed for its coins and its noise. None, the default, is seeded by the operating system.
    """

    def __init__(
        self, name: str, task: Task, dataset: Any, plan: FederationPlan, *, panel: int = 0, rng: int | None = None
    ) -> None:
        self.name, self.task, self.plan = name, task, plan
        self.records = dataset if isinstance(dataset, Records | Part) else Records(dataset, empty=True)
        self._seed = rng
        self.account = Account(plan, self._followed(panel)) if plan.of_records is not None and panel else None
        self.histogram: Counts = np.zeros(len(NORM_LEVELS), dtype=np.int64)
        self.answered = 0
        self.masker: Masker | None = None
        self.memory: Memory = {}
        if task.training is not None and plan.level != "client":
            raise PrivacyError(f"A training of your own is for level 'client'; level {plan.level!r} has private steps.")

    def update(self, parameters: Parameters, number: int) -> Parameters:
        """Return this client's update of round `number`, noisy where the plan says so.

        Guarantee:
            At levels parallel, sequential and joint what is returned is one or more Poisson-sampled Gaussian steps for
            each of the client's records, at the plan's record rate and noise (sequential: its share of the noise).
        """
        self.require_next(number)
        self.answered = number
        random = np.random.Generator(np.random.PCG64DXSM(self._entropy(number)))
        with fresh_draws(random):  # what one client draws must not depend on who came before
            return self._update(parameters, random)

    def _update(self, parameters: Parameters, random: np.random.Generator) -> Parameters:
        if self.plan.level == "client" and not len(self.records):
            return {name: torch.zeros_like(value) for name, value in parameters.items()}
        if self.task.training is not None:
            update, self.memory = self.task.training(parameters, self.records, self.memory, random)
            return update
        if self.plan.level == "client":
            self.task.settle(self.records)
            return self.task.train(parameters, self._batches(random), self.task.local.learning_rate)
        if self.plan.level == "parallel":
            return self._private_steps(parameters, random)
        return self._private_sum(parameters, random)

    def require_next(self, number: int) -> None:
        """Raise unless round `number` is one of the plan's and comes after those that were answered."""
        if not self.answered < number <= self.plan.rounds:
            raise PrivacyError(
                f"Client {self.name!r} answered round {self.answered} and was asked for round {number} of "
                f"{self.plan.rounds}: a round is answered once."
            )

    @property
    def seed_mark(self) -> str | None:
        """A hash that says whether two runs of this client draw the same noise; None without a chosen seed."""
        if self._seed is None:
            return None
        return hashlib.sha256(f"tacita client mark {self._seed} {self.name}".encode()).hexdigest()

    def restore(self, account: Mapping[str, Any]) -> None:
        """Take up the account of this client's records that a checkpoint kept."""
        self.account = Account.restore(self.plan, account)

    # Where nothing inside the client is protected.

    def _batches(self, random: np.random.Generator) -> Iterator[Any]:
        size = len(self.records)
        batch = self.task.local.batch_size or size
        for _ in range(self.task.local.epochs):
            order = np.arange(size) if batch >= size else random.permutation(size)
            taken = self.records.take(order)
            if taken is None:  # no record can be read
                return
            leaves, shape = tree_flatten(tree_map(self.task.laid_out, taken))  # copied once
            for views in zip(*(leaf.split(batch) for leaf in leaves), strict=True):
                yield tree_unflatten(views, shape)

    # Where records are protected.

    def _private_steps(self, parameters: Parameters, random: np.random.Generator) -> Parameters:
        """DP-SGD inside the client: each step samples, clips and adds the client's own noise."""
        plan, now = self.plan, dict(parameters)
        declared = _declared(plan)
        for _ in range(plan.local_steps):
            self._measure(now)
            sample = poisson_sample(len(self.records), declared.sample_rate, rng=random)
            gradient, _ = private_gradient(
                self.task.loss,
                now,
                self.records.marked(sample),
                clip_norm=declared.clip_norm,
                noise_multiplier=declared.noise_multiplier,
                divisor=declared.batch_size,
                rng=random,
            )
            now = {name: p - self.task.local.learning_rate * gradient[name] for name, p in now.items()}
        return {name: now[name] - p for name, p in parameters.items()}

    def _private_sum(self, parameters: Parameters, random: np.random.Generator) -> Parameters:
        """One clipped sum of gradients, within the client ball, with this client's share of the noise."""
        declared = _declared(self.plan)
        self._measure(parameters)
        sample = poisson_sample(len(self.records), declared.sample_rate, rng=random)
        bounds = torch.full((len(sample),), declared.clip_norm, dtype=torch.float64)
        sums = clipped_sum(self.task.loss, parameters, self.records.marked(sample), bounds, rng=random).sums
        mean = {name: -total / declared.batch_size for name, total in sums.items()}
        mean = clipped(mean, self.plan.clip_norm)  # a projection: it brings two sums nearer, never further apart
        if self.plan.level == "joint":
            self.histogram = _one_at(level_of(np.array([min(1.0, norm_of(mean) / self.plan.clip_norm)])))
        return with_noise(mean, self.plan.share_noise, random)

    def _measure(self, parameters: Parameters) -> None:
        if self.account is None or not len(self.account.followed):
            return
        declared = _declared(self.plan)
        batch = self.records.marked(self.account.followed)
        norms = record_norms(self.task.loss, parameters, batch).numpy() / declared.clip_norm
        self.account.step(np.minimum(norms, 1.0))
        if self.plan.level == "sequential":
            self.histogram = np.bincount(level_of(np.minimum(norms, 1.0)), minlength=len(NORM_LEVELS))

    def _followed(self, panel: int) -> Counts:
        everyone = np.arange(len(self.records))
        if panel >= len(everyone):
            return everyone
        chosen = np.random.default_rng(self._entropy(0)).choice(everyone, panel, replace=False)
        return np.sort(chosen)

    def _entropy(self, number: int) -> np.random.SeedSequence:
        if self._seed is None:
            return np.random.SeedSequence(secrets.randbits(256))
        mark = hashlib.sha256(f"tacita client {self._seed} {self.name}".encode()).digest()
        return np.random.SeedSequence(int.from_bytes(mark, "big"), spawn_key=(number,))

    # Its side of the cost exchange.

    def key(self, exchange: str) -> bytes:
        """Begin an exchange and return the public key for it."""
        self.masker = masker(self.name, exchange)
        return self.masker.public

    def costs(self, keys: Mapping[str, bytes], *, what: str, steps: int) -> Words:
        """Return this client's masked numbers.

        Args:
            keys: Everybody's public keys.
            what: `records` for the largest typical epsilon of its records; `norms` for counts of its last norms.
            steps: How many steps of this client count; those that it does not remember it counts at the clip bound.
        """
        if self.masker is None:
            raise PrivacyError("No exchange was begun: ask for this client's key first.")
        if what == "records":
            if self.account is None:
                raise PrivacyError("This client follows no records, so it has no typical cost to tell.")
            return self.masker.maximum_message(self.account.epsilons(steps), epsilon_levels(self.plan), keys)
        return self.masker.sum_message(self.histogram.astype(np.float64), keys)


class Account:
    """A client's own records: who is followed, and what the client's steps cost them."""

    def __init__(self, plan: FederationPlan, followed: Counts) -> None:
        self.plan, self.followed = plan, followed
        self.accountant = _accountant(plan)

    def step(self, norms: Floats) -> None:
        """Charge one step to the followed records."""
        self.accountant.step(norms)

    def epsilons(self, steps: int) -> list[float]:
        """Return the typical epsilon of a record of this client: distribution-free, and by the papers' estimator.

        The estimators' own failures are shared out over all clients, since the largest figure of all is told.
        """
        if not len(self.followed):  # no record costs anything
            return [0.0, 0.0]
        self.settle(steps)
        delta, gamma = self.plan.delta, self.plan.delta / 20 / self.plan.clients
        band = self.accountant.guarantee(delta=delta * 19 / 20 + gamma, gamma=gamma).epsilon
        if len(self.followed) < 2:
            return [band, band]
        return [band, self.accountant.guarantee(delta=delta, estimator="student", notion="weak").epsilon]

    def settle(self, steps: int) -> None:
        """Charge steps that were counted by the server and not here, at the clip bound."""
        missing = steps - self.accountant.taken
        if missing > 0:
            self.accountant.step(np.ones(len(self.followed)), steps=missing)

    def state(self) -> dict[str, Any]:
        """Return plain data."""
        return {"followed": self.followed.tolist(), "accountant": self.accountant.state_dict()}

    @classmethod
    def restore(cls, plan: FederationPlan, state: Mapping[str, Any]) -> Account:
        """Rebuild what `state` returned."""
        made = cls(plan, np.asarray(state["followed"], dtype=np.int64))
        made.accountant = BayesianAccountant.from_state(state["accountant"])
        return made


class Part:
    """Some records of a larger dataset, by their positions, without a copy: what one of many clients holds."""

    def __init__(self, records: Records, positions: Counts) -> None:
        self._records, self._positions = records, np.asarray(positions)

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def form_taken(self) -> bool:
        """Whether what a record looks like was taken from the larger dataset, as `Records.form_taken`."""
        return self._records.form_taken

    def take(self, indices: Any) -> Any:
        """Return the records at `indices` that are not broken, batched; None if there are none."""
        return self._records.take(self._positions[np.asarray(indices, dtype=np.int64)])

    def marked(self, indices: Any) -> Any:
        """Return the records at `indices`, batched, and marked where one may be broken; None for no indices."""
        return self._records.marked(self._positions[np.asarray(indices, dtype=np.int64)])


def epsilon_levels(plan: FederationPlan) -> Floats:
    """Return the buckets of the masked maximum: in equal ratios, the last one the worst case of all rounds."""
    worst = plan.record_worst(_declared(plan).steps, plan.delta).epsilon
    levels: Floats = worst * _RATIO ** np.arange(1.0 - EPSILON_STEPS, 1.0)
    return levels


def norm_of(update: Parameters) -> float:
    """Return the norm of an update, in float64."""
    return float(torch.stack([value.double().square().sum() for value in update.values()]).sum().sqrt())


def clipped(update: Parameters, bound: float) -> Parameters:
    """Return an update scaled down to a bound; exactly zero if its norm is not finite."""
    norm = norm_of(update)
    factor = min(1.0, bound * (1.0 - 1e-6) / norm) if 0.0 < norm < np.inf else float(norm == 0.0)
    if factor == 0.0:
        return {name: torch.zeros_like(value) for name, value in update.items()}
    if factor == 1.0:
        return update
    return {name: (value.double() * factor).to(value.dtype) for name, value in update.items()}


def with_noise(update: Parameters, scale: float, random: np.random.Generator) -> Parameters:
    """Return an update with Gaussian noise of this standard deviation on every number."""
    return {
        name: (value.double() + torch.from_numpy(np.asarray(scale * random.standard_normal(tuple(value.shape))))).to(
            value.dtype
        )
        for name, value in update.items()
    }


def _no_loss(_: Any, __: Any) -> Tensor:
    raise PrivacyError("There is no loss: clients have a training of their own.")


def _accountant(plan: FederationPlan) -> BayesianAccountant:
    declared = _declared(plan)
    return BayesianAccountant(
        sample_rate=declared.sample_rate, noise_multiplier=declared.noise_multiplier, steps=declared.steps
    )


def _declared(plan: FederationPlan) -> Any:
    if plan.of_records is None:
        raise PrivacyError(f"Level {plan.level!r} does not protect single records.")
    return plan.of_records


def _one_at(levels: Counts) -> Counts:
    return np.bincount(levels, minlength=len(NORM_LEVELS))
