"""The recipe of a federated generator, and the recipe with its data: who holds what, and what was declared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita.accounting import calibrate
from tacita.data import Dataset, load
from tacita.facts import RunFacts
from tacita.federated.client import Part
from tacita.federated.local import client_name
from tacita.federated.plan import FederationPlan, federation_plan
from tacita.federated.recipes import SPLITS, deal
from tacita.federated.splits import cut
from tacita.synthesis.fedgp_client import GanTraining
from tacita.synthesis.networks import Generator
from tacita.training.records import Records

_NAMES = {"even": "all alike", "class": "two classes each", "dirichlet": "in uneven mixes"}


@dataclass(frozen=True, kw_only=True)
class FedGP:
    """A federated generator. Nothing in it is learned from the data.

    Attributes:
        data: The name of a built-in dataset with classes.
        split: `even` (every client alike), `class` (two classes a client), or `dirichlet` (in between).
        clients: How many.
        size: Records of a client; None deals all of them out.
        least: The fewest records of a client. Sizes are then drawn evenly between it and `size`, and what is over is
            left out. None gives everybody `size`.
        rounds: How many.
        local_epochs: Passes over its records that a client makes in a round.
        batch_size: Records that a step of the critic looks at, on average.
        critic_steps: Steps of the critic for each of the generator.
        learning_rate: Of Adam, of both networks.
        server_rate: By how much of the mean update the server moves the generator. None takes 1 where clients are
            alike, else 2, since then only some of them have anything to say about a class.
        width: How wide the critics are; the generator is twice as wide.
        client_rate: The chance with which a client takes part in a round; without noise, the share that does.
        epsilon: Worst-case target for a client; the noise is calibrated to it.
        noise_multiplier: Noise on the sum of updates over the clip norm, instead of `epsilon`. With neither,
            updates are not clipped, no noise is added, and there is no guarantee.
        clip_norm: The largest norm of a client's update, where there is noise.
        delta: Total failure probability.
        seed: For runs that can be repeated; not secure.
    """

    data: str = "digits"
    split: str = "even"
    clients: int = 20
    size: int | None = None
    least: int | None = None
    rounds: int = 20
    local_epochs: int = 1
    batch_size: int = 16
    critic_steps: int = 2
    learning_rate: float = 2e-3
    server_rate: float | None = None
    width: int = 16
    client_rate: float = 1.0
    epsilon: float | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0
    delta: float = 1e-5
    seed: int | None = None

    def __post_init__(self) -> None:
        _check.one_of("split", self.split, SPLITS)
        _check.count("clients", self.clients, low=2, high=100_000)
        _check.count("rounds", self.rounds, high=1_000_000)
        for name in ("local_epochs", "batch_size", "critic_steps", "size", "least", "width"):
            if getattr(self, name) is not None:
                _check.count(name, getattr(self, name))
        _check.in_range("learning_rate", self.learning_rate, 1e-9, 1e3)
        _check.in_range("server_rate", self.server_step, 1e-9, 1e3)
        _check.rate("client_rate", self.client_rate, hint="the chance with which a client takes part in a round")
        _check.probability("delta", self.delta)
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError("Give epsilon or noise_multiplier, not both: one follows from the other.")

    @property
    def private(self) -> bool:
        """Whether updates are clipped and noised, and charged to a ledger."""
        return self.epsilon is not None or self.noise_multiplier is not None

    @property
    def server_step(self) -> float:
        """`server_rate`, or what it is by default."""
        if self.server_rate is not None:
            return self.server_rate
        return 1.0 if self.split == "even" else 2.0


@dataclass(frozen=True, eq=False)
class Ready:
    """A recipe with its data: who holds what, what clients do, and what was declared."""

    recipe: FedGP
    dataset: Dataset
    holdings: dict[str, Part]
    train: tuple[Tensor, Tensor]
    training: GanTraining
    plan: FederationPlan | None

    def generator(self) -> Generator:
        """Return the untrained generator."""
        return self.training.generator(np.random.default_rng(self.recipe.seed))

    @property
    def facts(self) -> RunFacts:
        """What a run says of itself before its first round."""
        recipe = self.recipe
        return RunFacts(
            title=f"Generator of {recipe.data} over {recipe.clients} clients, {_NAMES[recipe.split]}",
            purpose="Synthetic records from a federated generator, whose critics stayed with their clients.",
            seeded=recipe.seed is not None,
            trained=recipe.clients,
        )


@lru_cache(maxsize=2)
def ready(recipe: FedGP) -> Ready:
    """Load the data of a recipe, deal them out and declare the plan. `train` is what the clients hold, all together."""
    dataset = load(recipe.data)
    if dataset.classes is None:
        raise ValueError("Generators make records of classes: choose a dataset with classes, not a range.")
    size = recipe.size or len(dataset.targets) // recipe.clients
    if not 2 <= size <= len(dataset.targets):
        raise ValueError(f"{recipe.clients} clients of {size} records do not fit {len(dataset.targets)} records.")
    inputs, labels = torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)
    parts = deal(dataset.targets, recipe.split, recipe.clients, size, seed=recipe.seed or 0)
    if recipe.least is not None:
        parts = cut(parts, recipe.least, rng=np.random.default_rng([recipe.seed or 0, 1]))
    held, pool = np.unique(np.concatenate(parts)), Records((inputs, labels))
    columns = () if dataset.schema is None else dataset.schema.columns
    blocks = tuple(len(column.features) for column in columns)
    return Ready(
        recipe=recipe,
        dataset=dataset,
        holdings={client_name(i): Part(pool, positions) for i, positions in enumerate(parts)},
        train=(inputs[held], labels[held]),
        training=GanTraining(recipe, tuple(inputs.shape[1:]), len(dataset.classes), blocks),
        plan=_plan(recipe) if recipe.private else None,
    )


def _plan(recipe: FedGP) -> FederationPlan:
    noise = recipe.noise_multiplier
    if recipe.epsilon is not None:
        found = calibrate(
            epsilon=recipe.epsilon, delta=recipe.delta, sample_rate=recipe.client_rate, steps=recipe.rounds
        )
        noise = found.noise_multiplier
    return federation_plan(
        level="client",
        clients=recipe.clients,
        client_rate=recipe.client_rate,
        rounds=recipe.rounds,
        clip_norm=recipe.clip_norm,
        noise_multiplier=noise,
        delta=recipe.delta,
    )
