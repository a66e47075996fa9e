"""A federation without writing a loop: real data split over clients, for any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacita import _check
from tacita.accounting import calibrate
from tacita.data import Dataset, load
from tacita.federated import splits
from tacita.federated.client import Local, Part
from tacita.federated.levels import LEVELS
from tacita.federated.plan import FederationPlan
from tacita.runs import Run
from tacita.training.records import Records
from tacita.training.settings import Books

SPLITS = ("even", "class", "dirichlet")
IMAGES = ("digits", "mnist", "fashion-mnist")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `tacita federate` does. Nothing in it is learned from the data.

    Attributes:
        data: The name of a built-in dataset.
        split: `even` (every client alike), `class` (two classes a client), or `dirichlet` (in between).
        clients: How many.
        rounds: How many.
        level: client, parallel, sequential or joint.
        client_rate: The chance with which a client takes part in a round.
        epsilon: Worst-case target of the level's larger unit, instead of the noise below.
        noise_multiplier: For clients, at levels client and joint.
        record_noise_multiplier: For records, at levels parallel and sequential.
        record_rate: The chance with which a record enters its client's step.
        clip_norm: The largest norm of an update.
        record_clip_norm: The largest norm of a record's gradient.
        local_steps: Steps inside a client, at level parallel.
        learning_rate: The server's; at level parallel the clients'.
        momentum: The server's.
        delta: Total failure probability.
        dropout: The chance that a client does not answer (local engine).
        seed: For runs that can be repeated; not secure.
    """

    data: str = "digits"
    split: str = "even"
    clients: int = 20
    rounds: int = 30
    level: str = "joint"
    client_rate: float = 0.5
    epsilon: float | None = None
    noise_multiplier: float = 1.2
    record_noise_multiplier: float = 1.0
    record_rate: float = 0.5
    clip_norm: float = 1.0
    record_clip_norm: float = 2.0
    local_steps: int = 1
    learning_rate: float = 0.5
    momentum: float = 0.5
    delta: float = 1e-4
    dropout: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check.one_of("split", self.split, SPLITS)
        _check.one_of("level", self.level, tuple(LEVELS))
        _check.count("clients", self.clients, low=2, high=100_000)
        _check.count("rounds", self.rounds, high=1_000_000)


@dataclass(frozen=True)
class Ready:
    """A prepared recipe: the data, who holds what, and what was declared."""

    dataset: Dataset
    pool: Records
    parts: list[Any]
    plan: FederationPlan
    local: Local

    def held_by(self, client: int) -> Part:
        """Return what a numbered client holds."""
        return Part(self.pool, self.parts[client])

    def model(self) -> nn.Module:
        """Return a linear classifier with zero weights: small, and easy to train under noise."""
        inputs = int(np.prod(self.dataset.inputs.shape[1:]))
        outputs = nn.Linear(inputs, len(self.dataset.classes or ()))
        nn.init.zeros_(outputs.weight)
        nn.init.zeros_(outputs.bias)
        return nn.Sequential(nn.Flatten(), outputs)

    def accuracy(self, model: nn.Module) -> float:
        """Return the accuracy on the test set. For the owner."""
        with torch.no_grad():
            guesses = model(torch.from_numpy(self.dataset.test_inputs)).argmax(1)
        return float((guesses == torch.from_numpy(self.dataset.test_targets)).float().mean())


@lru_cache(maxsize=2)
def ready(recipe: Recipe) -> Ready:
    """Prepare a recipe: load, split, declare."""
    dataset = load(_check.one_of("data", recipe.data, IMAGES))
    labels, size = dataset.targets, len(dataset.targets)
    each = size // recipe.clients
    if each < 2:
        raise ValueError(f"{recipe.clients} clients are too many for {size} records.")
    parts = deal(labels, recipe.split, recipe.clients, each)
    pool = Records((torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)))
    rate = recipe.learning_rate if LEVELS[recipe.level].clients_step else 1.0
    return Ready(dataset, pool, parts, _plan(recipe, each), Local(learning_rate=rate))


def deal(labels: Any, split: str, clients: int, each: int, *, seed: int = 0) -> list[Any]:
    """Return the positions of every client's records; who holds what is public here.

    Args:
        labels: The class of every record.
        split: `even`, `class` or `dirichlet`.
        clients: How many clients.
        each: Records of a client.
        seed: Of the split.
    """
    coins = np.random.default_rng(seed)
    rules: dict[str, Callable[[], list[Any]]] = {
        "even": lambda: splits.even(len(labels), clients, each, rng=coins),
        "class": lambda: splits.shards(labels, clients, shard=each // 2, each=2, rng=coins),
        "dirichlet": lambda: splits.uneven(labels, clients, alpha=0.5, each=each, rng=coins),
    }
    return rules[_check.one_of("split", split, SPLITS)]()


def _plan(recipe: Recipe, each: int) -> FederationPlan:
    level = LEVELS[recipe.level]
    client_rate = 1.0 if level.everybody_answers else recipe.client_rate
    local_steps = recipe.local_steps if level.clients_step else 1
    inside: dict[str, Any] = {}
    if level.protects_records:
        batch = max(1.0, round(recipe.record_rate * each))
        size = batch / _check.rate("record_rate", recipe.record_rate)
        inside = {"record_clip_norm": recipe.record_clip_norm, "local_batch": batch, "local_size": size}
        inside["local_steps"] = local_steps
    noise = getattr(recipe, level.declared_noise)
    if recipe.epsilon is not None:
        rate = client_rate if level.protects_clients else recipe.record_rate
        spare = recipe.delta * (1.0 - 1e-6)  # what level joint sets aside
        steps = recipe.rounds * local_steps
        noise = calibrate(epsilon=recipe.epsilon, delta=spare, sample_rate=rate, steps=steps).noise_multiplier
    return FederationPlan.declare(
        level=recipe.level,
        clients=recipe.clients,
        client_rate=client_rate,
        rounds=recipe.rounds,
        clip_norm=10.0 * recipe.clip_norm if level.clients_step else recipe.clip_norm,
        delta=recipe.delta,
        **inside,
        **{level.declared_noise: noise},
    )


def keep_recipe(recipe: Recipe, run_dir: str | Path, engine: str) -> None:
    """Write a recipe to its run directory.

    Args:
        recipe: The recipe.
        run_dir: The run directory.
        engine: The name of the engine that it was started with.
    """
    Run(Path(run_dir)).write(recipe=asdict(recipe), engine=engine)


def server_rates(recipe: Recipe) -> tuple[float, float]:
    """Return the server's momentum and learning rate; none where clients have moved the model already."""
    return (0.0, 1.0) if LEVELS[recipe.level].clients_step else (recipe.momentum, recipe.learning_rate)


def books_for(recipe: Recipe, run_dir: str | Path) -> Books:
    """Return where a recipe's run is kept, and what it is called."""
    how = {"even": "all alike", "class": "two classes each", "dirichlet": "in uneven mixes"}[recipe.split]
    return Books(
        run_dir=run_dir,
        seed=recipe.seed,
        name=f"{recipe.data.capitalize()} over {recipe.clients} clients, {how}",
        purpose="A linear classifier trained by a federation; the data stayed with the clients.",
    )


def holdout_metrics(this: Ready, model: nn.Module) -> dict[str, str]:
    """Return what is measured on the test set, for the owner's label."""
    return {"accuracy": f"{this.accuracy(model):.2%} on the test set"}
