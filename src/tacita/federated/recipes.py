"""A federation without writing a loop: real data split over clients, for any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from tacita import _check
from tacita.accounting import Target, goal_of
from tacita.data import Dataset, load
from tacita.federated import splits
from tacita.federated.client import Local
from tacita.federated.engines import ENGINES, Engine
from tacita.federated.engines.engine import Job
from tacita.federated.levels import LEVELS
from tacita.federated.local import holdings
from tacita.federated.plan import FederationPlan
from tacita.federated.storage import KIND
from tacita.runs import Run, RunError

R = TypeVar("R")

SPLITS = {"even": "all alike", "class": "two classes each", "dirichlet": "in uneven mixes"}
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
        target: What an attacker of that unit may achieve instead, such as "attack_success=0.55" or "tpr=0.02,0.01"; see
            `tacita.accounting.Target`.
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
    target: str | None = None
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
        if not isinstance(self.data, str):
            raise ValueError(
                "data must be the name of a built-in set. Tables with a column of person ids are not read here: people "
                "with several records inside of clients are not told apart. A client's own figure covers all it holds."
            )
        _check.one_of("split", self.split, tuple(SPLITS))
        _check.one_of("level", self.level, tuple(LEVELS))
        _check.count("clients", self.clients, low=2, high=100_000)
        _check.count("rounds", self.rounds, high=1_000_000)
        _ = self.goal

    @property
    def goal(self) -> tuple[float, float] | Target | None:
        """What the noise is calibrated to; None if it is given."""
        return goal_of(self.epsilon, self.delta, self.target)


@lru_cache(maxsize=2)
def ready(recipe: Recipe) -> Job:
    """Prepare a recipe: load, split, declare."""
    dataset = load(_check.one_of("data", recipe.data, IMAGES))
    size = len(dataset.targets)
    each = size // recipe.clients
    if each < 2:
        raise ValueError(f"{recipe.clients} clients are too many for {size} records.")
    clients_step = LEVELS[recipe.level].clients_step
    parts = deal(dataset.targets, recipe.split, recipe.clients, each)
    return Job(
        recipe=recipe,
        dataset=dataset,
        holdings=holdings((torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)), parts),
        plan=_plan(recipe, each),
        model=lambda: _classifier(dataset),
        local=Local(learning_rate=recipe.learning_rate if clients_step else 1.0),
        loss_fn=nn.functional.cross_entropy,
        name=f"{recipe.data.capitalize()} over {recipe.clients} clients, {SPLITS[recipe.split]}",
        purpose="A linear classifier trained by a federation; the data stayed with the clients.",
        seed=recipe.seed,
        server_rate=1.0 if clients_step else recipe.learning_rate,  # clients have moved the model already
        momentum=0.0 if clients_step else recipe.momentum,
        dropout=recipe.dropout,
        score=lambda model: {"accuracy": f"{accuracy(model, dataset):.2%} on the test set"},
    )


def recipe_of(run_dir: str | Path, recipe: type[R], kind: str = KIND) -> tuple[R, Engine]:
    """Return the recipe of a run and the engine that it was started with.

    Args:
        run_dir: The run directory.
        recipe: The recipe's class.
        kind: The kind of its runs.

    Raises:
        RunError: If it is a run of another kind, or damaged.
    """
    run = Run.open(run_dir, KIND)
    if run.kind != kind:
        raise RunError(f"{str(run_dir)!r} is not the run of a {kind.replace('-', ' ')}.")
    with run.reading():
        return recipe(**run.recipe), ENGINES[_check.one_of("engine", run.document()["engine"], tuple(ENGINES))]


def _classifier(dataset: Dataset) -> nn.Module:
    """Return a linear classifier with zero weights: small, and easy to train under noise."""
    outputs = nn.Linear(int(np.prod(dataset.inputs.shape[1:])), len(dataset.classes or ()))
    nn.init.zeros_(outputs.weight)
    nn.init.zeros_(outputs.bias)
    return nn.Sequential(nn.Flatten(), outputs)


def accuracy(model: nn.Module, dataset: Dataset) -> float:
    """Return the accuracy on the test set. For the owner."""
    with torch.no_grad():
        guesses = model(torch.from_numpy(dataset.test_inputs)).argmax(1)
    return float((guesses == torch.from_numpy(dataset.test_targets)).float().mean())


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
    return rules[_check.one_of("split", split, tuple(SPLITS))]()


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
    goal = recipe.goal
    noise = {"target": goal} if goal else {level.declared_noise: getattr(recipe, level.declared_noise)}
    return FederationPlan.declare(
        level=recipe.level,
        clients=recipe.clients,
        client_rate=client_rate,
        rounds=recipe.rounds,
        clip_norm=10.0 * recipe.clip_norm if level.clients_step else recipe.clip_norm,
        delta=recipe.delta,
        **inside,
        **noise,
    )
