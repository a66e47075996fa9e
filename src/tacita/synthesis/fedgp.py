"""FedGP: one generator made by many clients, whose critics never leave them (Triastcyn & Faltings 2020; thesis, ch. 4).

In a round every client that takes part gets the common generator, trains it against its own critic on its own records,
and sends back by how much the generator moved. Critic and optimiser stay, and go on in the client's next round.

With `epsilon`, `target` or `noise_multiplier` these updates are clipped, summed and noised by `tacita.federated` at
level client, so a client with all it holds is protected. With none of them, the same federation has a plan without
noise, and gives no guarantee: critics that stay at home protect nobody, since updates are computed from the records.
What a client does is in `fedgp_client`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita._progress import Progress, quiet
from tacita.accounting import Target, goal_of
from tacita.assumptions import assume
from tacita.data import load
from tacita.federated.engines import ENGINES, Engine
from tacita.federated.engines.engine import Job, Running
from tacita.federated.local import holdings
from tacita.federated.plan import FederationPlan
from tacita.federated.recipes import SPLITS, deal
from tacita.federated.recipes import recipe_of as recipe_of_kind
from tacita.federated.splits import cut
from tacita.federated.storage import label_of_run as label_of_federation
from tacita.label import Label
from tacita.report.page import page_template
from tacita.runs import Run
from tacita.synthesis.fedgp_client import GanTraining
from tacita.synthesis.networks import Generator

KIND = "federated-generator"


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
        local_steps: Steps of the generator that a client takes in a round instead, however many records it has.
        batch_size: Records that a step of the critic looks at, on average.
        critic_steps: Steps of the critic for each of the generator.
        learning_rate: Of Adam, of both networks.
        server_rate: By how much of the mean update the server moves the generator. None takes 1 where clients are
            alike, else 2, since then only some of them have anything to say about a class.
        width: How wide the critics are; the generator is twice as wide.
        client_rate: The chance with which a client takes part in a round.
        epsilon: Worst-case target for a client; the noise is calibrated to it.
        target: What an attacker may achieve instead, such as "attack_success=0.55" or "tpr=0.02,0.01"; see
            `tacita.accounting.Target`.
        noise_multiplier: Noise on the sum of updates over the clip norm, instead of `epsilon`. With none of them,
            updates are not clipped, no noise is added, clients count by their records, and there is no guarantee.
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
    local_steps: int | None = None
    batch_size: int = 16
    critic_steps: int = 2
    learning_rate: float = 2e-3
    server_rate: float | None = None
    width: int = 16
    client_rate: float = 1.0
    epsilon: float | None = None
    target: str | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0
    delta: float = 1e-5
    seed: int | None = None

    def __post_init__(self) -> None:
        _check.one_of("split", self.split, tuple(SPLITS))
        _check.count("clients", self.clients, low=2, high=100_000)
        _check.count("rounds", self.rounds, high=1_000_000)
        for name in ("local_epochs", "local_steps", "batch_size", "critic_steps", "size", "least", "width"):
            if getattr(self, name) is not None:
                _check.count(name, getattr(self, name))
        _check.in_range("learning_rate", self.learning_rate, 1e-9, 1e3)
        _check.in_range("server_rate", self.server_step, 1e-9, 1e3)
        _check.rate("client_rate", self.client_rate, hint="the chance with which a client takes part in a round")
        _check.probability("delta", self.delta)
        if self.goal and self.noise_multiplier is not None:
            raise ValueError("Give epsilon or target or noise_multiplier, not both: one follows from the other.")

    @property
    def goal(self) -> tuple[float, float] | Target | None:
        """What the noise is calibrated to; None if it is given, or there is none."""
        return goal_of(self.epsilon, self.delta, self.target)

    @property
    def private(self) -> bool:
        """Whether updates are clipped and noised, and charged to a ledger."""
        return self.goal is not None or self.noise_multiplier is not None

    @property
    def server_step(self) -> float:
        """`server_rate`, or what it is by default."""
        if self.server_rate is not None:
            return self.server_rate
        return 1.0 if self.split == "even" else 2.0


@lru_cache(maxsize=2)
def ready(recipe: FedGP) -> Job:
    """Load the data of a recipe, deal them out and declare the plan."""
    dataset = load(recipe.data)
    if dataset.classes is None:
        raise ValueError("Generators make records of classes: choose a dataset with classes, not a range.")
    size = recipe.size or len(dataset.targets) // recipe.clients
    if not 2 <= size <= len(dataset.targets):
        raise ValueError(f"{recipe.clients} clients of {size} records do not fit {len(dataset.targets)} records.")
    parts = deal(dataset.targets, recipe.split, recipe.clients, size, seed=recipe.seed or 0)
    if recipe.least is not None:
        parts = cut(parts, recipe.least, rng=np.random.default_rng([recipe.seed or 0, 1]))
    columns = () if dataset.schema is None else dataset.schema.columns
    training = GanTraining(
        recipe,
        dataset.inputs.shape[1:],
        len(dataset.classes),
        blocks=tuple(len(column.features) for column in columns),
        counts_as_one=None if recipe.private else float(np.mean([len(part) for part in parts])),
    )
    return Job(
        recipe=recipe,
        dataset=dataset,
        holdings=holdings((torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)), parts),
        plan=_plan(recipe),
        model=lambda: training.generator(np.random.default_rng(recipe.seed)),
        local=training,
        loss_fn=None,
        name=f"Generator of {recipe.data} over {recipe.clients} clients, {SPLITS[recipe.split]}",
        purpose="Synthetic records from a federated generator, whose critics stayed with their clients.",
        seed=recipe.seed,
        server_rate=recipe.server_step,
        panel=0,  # participants show what is typical: a followed client would train more than others
        kind=KIND,
    )


def _plan(recipe: FedGP) -> FederationPlan:
    shape: dict[str, Any] = {name: getattr(recipe, name) for name in ("clients", "client_rate", "rounds", "delta")}
    if not recipe.private:
        return FederationPlan.without_guarantee(**shape)
    noise: dict[str, Any] = {"target": recipe.goal} if recipe.goal else {"noise_multiplier": recipe.noise_multiplier}
    return FederationPlan.declare(level="client", clip_norm=recipe.clip_norm, **noise, **shape)


def held_records(job: Job) -> tuple[Tensor, Tensor]:
    """Return what the clients hold, all together, each record once."""
    parts = list(job.holdings.values())
    inputs, labels = parts[0].records.take(np.unique(np.concatenate([part.positions for part in parts])))
    return inputs, labels


def federate_generator(
    recipe: FedGP, run_dir: str | Path, *, engine: str = "local", progress: Progress = quiet
) -> tuple[Generator, Label]:
    """Train a federated generator in a new run directory and return it with its label.

    Args:
        recipe: What to do.
        run_dir: Where to write checkpoints, the label and, with noise, the ledger. `clients/` in it is what clients
            keep to themselves; in Flower they keep it in their own state.
        engine: `local` (this process) or `flower` (Flower's simulation, one node for each client).
        progress: Called after every round.

    Returns:
        The generator, and the owner's label.

    Guarantee:
        With noise, a worst case for a client with all it holds: `client_rate`, the noise and the rounds taken, as for
        any federation at level client. The server is trusted, which sees updates. Without noise, none.
    """
    page_template()  # fail early if an extra is missing
    chosen = ENGINES[_check.one_of("engine", engine, tuple(ENGINES))]
    return _finished(chosen.prepare(partial(ready, recipe), Path(run_dir), resume=False), Path(run_dir), progress)


def resume_generator(run_dir: str | Path, *, progress: Progress = quiet) -> tuple[Generator, Label]:
    """Resume an interrupted run: the same plan, the same guarantee, fresh coins and noise.

    Critics go on from what their clients kept. In Flower's simulation clients end with it, and begin new critics.
    """
    recipe, engine = recipe_of(run_dir)
    return _finished(engine.prepare(partial(ready, recipe), Path(run_dir), resume=True), Path(run_dir), progress)


def _finished(running: Running, folder: Path, progress: Progress) -> tuple[Generator, Label]:
    label = of_generator(running.run(progress))
    Run(folder).write_label(label)
    return running.model, label  # type: ignore[return-value]  # the job's model is a generator


def recipe_of(run_dir: str | Path) -> tuple[FedGP, Engine]:
    """Return the recipe of a run and the engine that it was started with."""
    return recipe_of_kind(run_dir, FedGP, KIND)


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a federated generator's run directory; the data are not needed."""
    return of_generator(label_of_federation(folder, delta=delta))


def of_generator(label: Label) -> Label:
    """Return the label of a federation with what is particular about a generator."""
    what = ("Generator", "fedgp: federated, its critics stay with their clients")
    made = replace(label, mechanism=(what, *label.mechanism))
    if math.isfinite(label.worst.epsilon):
        return made.resting_on(assume("critics-stay"), assume("after-release"))
    why = (
        "Keeping the critics with their clients protects nobody: the generator's updates are computed from the "
        "records. The owner may have measured the released set; a measurement bounds nothing."
    )
    return replace(made, declared=(*made.declared, why))
