"""What a client of a federation does: an update from its records, and its side of the cost exchange.

The same functions run in one process (`tacita.federated.local`) and behind Flower's messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS, BayesianAccountant
from tacita.federated.masking import Masker, masker
from tacita.federated.plan import FederationPlan
from tacita.federated.updates import clipped
from tacita.training.gradients import Parameters, clipped_sum, record_norms
from tacita.training.plan import Plan
from tacita.training.randomness import fresh_draws, generator
from tacita.training.reading import places
from tacita.training.records import Records, check_model, record_loss, split_batch, trainable, try_one
from tacita.training.step import noisy_mean, poisson_sample

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.federated.masking import Words

EPSILON_STEPS = 256  # buckets of a masked maximum, in equal ratios up to the worst case
_RATIO = 1.03
Memory = Mapping[str, Tensor]  # what a client keeps from round to round, and sends to nobody


@dataclass(frozen=True)
class Local:
    """What a client does between two rounds at levels without privacy inside the client.

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
    """A model and its loss, which turn parameters and records into updates. Shared by all clients of a process.

    Args:
        model: Any module of per-record layers; its parameters are overwritten.
        loss_fn: As in PyTorch, the mean over a batch; None with a `Training`, which has its own.
        local: What a client does at levels without privacy inside it: settings of plain SGD, or a `Training`.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Callable[[Any, Any], Tensor] | None, local: Local | Training | None = None
    ) -> None:
        check_model(model)
        self.model, self.local = model, local if isinstance(local, Local) else Local()
        self.training = None if isinstance(local, Local) else local
        if loss_fn is None and self.training is None:
            raise TypeError("loss_fn is needed, unless clients have their own training.")
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
        """Lay images out with channels last, which pools twice as fast, if the model accepts it: `view` may not."""
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
        """Return a tensor of images in the chosen layout; others as they are."""
        return value.to(memory_format=self._layout or torch.contiguous_format) if value.dim() == 4 else value

    def train(self, parameters: Parameters, batches: Iterator[Any], rate: float) -> Parameters:
        """Return by how much plain SGD moves the parameters.

        Args:
            parameters: Where it starts.
            batches: What it steps over.
            rate: The learning rate.
        """
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
    """One client: its records, its coins, its noise and, where records are protected, their account.

    Args:
        name: Its name in the federation.
        task: Model and loss.
        dataset: Its records, as `PrivateTraining` takes them, or none: then it sends only noise, or an update of zeros
            at level client.
        plan: What the federation declared.
        panel: How many of its records are followed, for typical figures; 0 follows none.
        seed: For its coins and its noise. None, the default, is seeded by the operating system.
    """

    @_check.renamed("rng")
    def __init__(
        self, name: str, task: Task, dataset: Any, plan: FederationPlan, *, panel: int = 0, seed: int | None = None
    ) -> None:
        self.name, self.task, self.plan = name, task, plan
        self.records = dataset if isinstance(dataset, Records | Part) else Records(dataset, empty=True)
        self._seed = seed
        self.account = Account(plan, self._followed(panel)) if plan.of_records is not None and panel else None
        self.histogram: Counts = np.zeros(len(NORM_LEVELS), dtype=np.int64)
        self.answered = 0
        self.masker: Masker | None = None
        self.memory: Memory = {}
        if task.training is not None and plan.privacy_level.protects_records:
            raise PrivacyError(f"A training of your own is for level 'client'; level {plan.level!r} has private steps.")

    def update(self, parameters: Parameters, number: int) -> Parameters:
        """Return this client's update of round `number`, with noise at the levels that protect records.

        Guarantee:
            At levels parallel, sequential and joint what is returned is one or more Poisson-sampled Gaussian steps for
            each of the client's records, at the plan's record rate and noise (sequential: its share of the noise).
        """
        self.require_next(number)
        self.answered = number
        random = generator(self._entropy(number))
        with fresh_draws(random):  # a client's draws must not depend on the clients before it
            return self.plan.privacy_level.update(self, parameters, random)

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

    # What levels make updates of.

    def batches(self, rng: np.random.Generator) -> Iterator[Any]:
        """Yield the batches of plain SGD over the client's records."""
        size = len(self.records)
        batch = self.task.local.batch_size or size
        for _ in range(self.task.local.epochs):
            order = np.arange(size) if batch >= size else rng.permutation(size)
            taken = self.records.take(order)
            if taken is None:  # no record can be read
                return
            leaves, shape = tree_flatten(tree_map(self.task.laid_out, taken))  # copied once
            for views in zip(*(leaf.split(batch) for leaf in leaves), strict=True):
                yield tree_unflatten(views, shape)

    @property
    def declared(self) -> Plan:
        """The mechanism as a record of this client sees it; raises where records are not protected."""
        return self.plan.records_mechanism

    def clipped_mean(self, parameters: Parameters, rng: np.random.Generator) -> Parameters:
        """Return one clipped sum of sampled gradients over the declared batch, within the clip norm of an update."""
        declared = self.declared
        sample = poisson_sample(len(self.records), declared.sample_rate, rng=rng)
        bounds = torch.full((len(sample),), declared.clip_norm, dtype=torch.float64)
        sums = clipped_sum(self.task.loss, parameters, self.records.marked(sample), bounds, rng=rng).sums
        mean = {name: -total / declared.batch_size for name, total in sums.items()}
        return clipped(mean, self.plan.clip_norm)  # a projection: it brings two sums nearer, never further apart

    def with_share(self, update: Parameters, rng: np.random.Generator) -> Parameters:
        """Return an update with this client's share of the noise."""
        return noisy_mean(update, clip_norm=self.plan.share_noise, noise_multiplier=1.0, divisor=1.0, rng=rng)

    def measure(self, parameters: Parameters) -> Floats | None:
        """Charge one step to the followed records; return their norms over the clip norm, None if there are none."""
        if self.account is None or not len(self.account.followed):
            return None
        batch = self.records.marked(self.account.followed)
        norms = record_norms(self.task.loss, parameters, batch).numpy() / self.declared.clip_norm
        limited: Floats = np.minimum(norms, 1.0)
        self.account.accountant.step(limited)
        return limited

    def _followed(self, panel: int) -> Counts:
        everyone = np.arange(len(self.records))
        if panel >= len(everyone):
            return everyone
        chosen = np.random.default_rng(self._entropy(0)).choice(everyone, panel, replace=False)
        return np.sort(chosen)

    def _entropy(self, number: int) -> np.random.SeedSequence | None:
        if self._seed is None:
            return None
        mark = hashlib.sha256(f"tacita client {self._seed} {self.name}".encode()).digest()
        return np.random.SeedSequence(int.from_bytes(mark, "big"), spawn_key=(number,))

    # The client's side of the cost exchange.

    def key(self, exchange: str) -> bytes:
        """Begin an exchange and return the public key for it."""
        self.masker = masker(self.name, exchange)
        return self.masker.public

    def costs(self, keys: Mapping[str, bytes], *, what: str, steps: int) -> Words:
        """Return this client's masked numbers.

        Args:
            keys: Everybody's public keys.
            what: `records` for the largest typical epsilon of its records; `norms` for counts of its last norms.
            steps: How many steps of this client count; it counts those that it does not remember at the clip bound.
        """
        if self.masker is None:
            raise PrivacyError("No exchange was begun: ask for this client's key first.")
        if what == "records":
            if self.account is None:
                raise PrivacyError("This client follows no records, so it has no typical cost to report.")
            return self.masker.maximum_message(self.account.epsilons(steps), epsilon_levels(self.plan), keys)
        return self.masker.sum_message(self.histogram.astype(np.float64), keys)


class Account:
    """The followed records of a client, and what the client's steps cost them.

    Args:
        plan: What the federation declared; its level protects records.
        followed: The positions of the followed records.
    """

    def __init__(self, plan: FederationPlan, followed: Counts) -> None:
        self.plan, self.followed, declared = plan, followed, plan.records_mechanism
        self.accountant = BayesianAccountant(
            sample_rate=declared.sample_rate, noise_multiplier=declared.noise_multiplier, steps=declared.steps
        )

    def epsilons(self, steps: int) -> list[float]:
        """Return the typical epsilon of a record of this client: distribution-free, and by the papers' estimator.

        Of the `steps` that the server counted, those that are not known here are charged at the clip bound. The failure
        probability of the estimators is divided among all clients, since the largest figure is reported.
        """
        if not len(self.followed):  # no record costs anything
            return [0.0, 0.0]
        if steps > self.accountant.taken:
            self.accountant.step(np.ones(len(self.followed)), steps=steps - self.accountant.taken)
        delta, gamma = self.plan.delta, self.plan.delta / 20 / self.plan.clients
        band = self.accountant.guarantee(delta=delta * 19 / 20 + gamma, gamma=gamma).epsilon
        if len(self.followed) < 2:
            return [band, band]
        return [band, self.accountant.guarantee(delta=delta, estimator="student", notion="weak").epsilon]

    def state(self) -> dict[str, Any]:
        """Return plain data."""
        return {"followed": self.followed.tolist(), "accountant": self.accountant.state_dict()}

    @classmethod
    def restore(cls, plan: FederationPlan, state: Mapping[str, Any]) -> Account:
        """Rebuild what `state` returned."""
        made = cls(plan, np.asarray(state["followed"], dtype=np.int64))
        made.accountant = BayesianAccountant.from_state(state["accountant"])
        return made


def epsilon_levels(plan: FederationPlan) -> Floats:
    """Return the buckets of the masked maximum: in equal ratios, the last one the worst case of all rounds."""
    worst = plan.record_worst(plan.records_mechanism.steps, plan.delta).epsilon
    levels: Floats = worst * _RATIO ** np.arange(1.0 - EPSILON_STEPS, 1.0)
    return levels


@dataclass(frozen=True, eq=False)
class Part:
    """Some records of a larger dataset, by their positions, without a copy: what one of many clients holds."""

    records: Records
    positions: Counts

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def form_taken(self) -> bool:
        """Whether what a record looks like was taken from the larger dataset, as `Records.form_taken`."""
        return self.records.form_taken

    def take(self, indices: Any) -> Any:
        """Return the records at `indices` that are not broken, batched; None if there are none."""
        return self.records.take(self.positions[np.asarray(indices, dtype=np.int64)])

    def marked(self, indices: Any) -> Any:
        """Return the records at `indices`, batched, and marked where one may be broken; None for no indices."""
        return self.records.marked(self.positions[np.asarray(indices, dtype=np.int64)])


def _no_loss(_: Any, __: Any) -> Tensor:
    raise PrivacyError("There is no loss: clients have a training of their own.")
