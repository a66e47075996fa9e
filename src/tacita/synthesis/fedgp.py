"""FedGP: one generator made by many clients, whose critics never leave them (Triastcyn & Faltings 2020; thesis, ch. 4).

In a round every client that takes part gets the common generator, trains it against its own critic on its own records,
and sends back by how much the generator moved. Critic and optimiser stay, and go on in the client's next round.

With `epsilon` or `noise_multiplier` these updates are clipped, summed and noised by `tacita.federated` at level client,
so a client with all it holds is protected. With neither they are averaged as they are, and nothing is promised: critics
that stay at home protect nobody, since updates are computed from the records. Flower's side is in `fedgp_flower`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._guard import Interrupts
from tacita.accounting import calibrate
from tacita.assumptions import assume
from tacita.data import Dataset, load
from tacita.facts import RunFacts
from tacita.federated.client import Memory, Part
from tacita.federated.engines import ENGINES
from tacita.federated.local import Federation, client_name
from tacita.federated.plan import FederationPlan, federation_plan
from tacita.federated.recipes import SPLITS, deal
from tacita.federated.splits import cut
from tacita.federated.storage import keep_memory, kept_memory
from tacita.federated.storage import label_of_run as label_of_federation
from tacita.federated.updates import norm_of
from tacita.label import Label, Readings, build, no_guarantee, status_rows
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, RunError
from tacita.synthesis.gan import Game, Wgan, WganTraining, adam
from tacita.synthesis.networks import Critic, Generator, make_critic, make_generator
from tacita.training.gradients import Parameters
from tacita.training.records import Records

Progress = Callable[[int, Generator], None]

_NAMES = {"even": "all alike", "class": "two classes each", "dirichlet": "in uneven mixes"}
_KIND = "fedgp: federated, its critics stay with their clients"
KIND = "federated-generator"
PLAIN = "plain-federated-generator"  # without noise


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
        epsilon: Worst-case target for a client; the noise is found for it.
        noise_multiplier: Noise on the sum of updates over the clip norm, instead of `epsilon`. With neither, nothing
            is clipped, nothing is noised and nothing is promised.
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


# What a client does.


@dataclass(frozen=True)
class GanTraining:
    """A client's round: its own critic, and the common generator, trained in turns on its own records.

    What it remembers is its critic and the critic's optimiser. It trains both networks on the classes that it holds.

    Attributes:
        recipe: How.
        shape: Of one record.
        classes: How many classes there are in all.
        blocks: For tables: how many features each column has.
    """

    recipe: FedGP
    shape: tuple[int, ...]
    classes: int
    blocks: tuple[int, ...] = ()

    def __call__(
        self, parameters: Parameters, records: Records | Part, memory: Memory, random: np.random.Generator
    ) -> tuple[Parameters, Memory]:
        """Return by how much this client moves the generator, and its critic."""
        inputs, labels = records.take(np.arange(len(records)))
        own, places = torch.unique(labels, return_inverse=True)
        generator, critic = self.generator(random), self.critic(len(own), random)
        generator.load_state_dict(parameters)
        training = self._game(OwnClasses(generator, own), critic, inputs, places, random)
        if memory and torch.equal(memory["classes"], own):  # a client whose classes have changed begins anew
            _take_up(memory, critic, training.optimizer)
        for _ in training:
            pass
        moved = {name: value - parameters[name] for name, value in generator.state_dict().items()}
        kept = {"classes": own, **_critics_state(critic, training.optimizer)}
        if not math.isfinite(norm_of(moved) + norm_of(kept)):  # it fell apart, and is forgotten
            return {name: torch.zeros_like(value) for name, value in parameters.items()}, memory
        return moved, kept

    def _game(
        self, generator: Generator, critic: Critic, inputs: Tensor, labels: Tensor, random: np.random.Generator
    ) -> WganTraining:
        recipe, size = self.recipe, len(labels)
        turns = recipe.local_epochs * math.ceil(size / recipe.batch_size / recipe.critic_steps)
        pool = max(4, 2 * recipe.batch_size // generator.classes)
        optimizer = adam(generator.parameters(), recipe.learning_rate)
        game = Game(critic, generator, optimizer, pool=pool, batch=recipe.batch_size, average=0.0)
        plan = Wgan(
            steps=turns * recipe.critic_steps,
            batch_size=recipe.batch_size,
            size=size,
            critic_steps=recipe.critic_steps,
            learning_rate=recipe.learning_rate,
        )
        return WganTraining(plan, game, inputs, labels, rng=random)

    def generator(self, random: np.random.Generator) -> Generator:
        """Return a new generator, in which a label weighs as much as all latent numbers together."""
        with _weights_from(random):
            made = make_generator(self.shape, self.classes, blocks=self.blocks, width=2 * self.recipe.width)
        first = next(layer for layer in made.modules() if isinstance(layer, nn.Linear))
        with torch.no_grad():
            first.weight[:, -self.classes :] *= math.sqrt(first.in_features - self.classes)
        return made

    def critic(self, classes: int, random: np.random.Generator) -> Critic:
        """Return a new critic of so many classes."""
        with _weights_from(random):
            return make_critic(self.shape, classes, width=self.recipe.width)


class OwnClasses(Generator):
    """A generator seen by a client: the classes that the client holds, numbered from 0."""

    def __init__(self, generator: Generator, own: Tensor) -> None:
        super().__init__()
        self.all, self.own = generator, own
        self.latent, self.classes = generator.latent, len(own)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return one record for every row of `z`."""
        made: Tensor = self.all(z, self.own[labels])
        return made


def _critics_state(critic: Critic, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return a critic and its optimiser as tensors by name."""
    found = {f"critic.{name}": value.detach().clone() for name, value in critic.state_dict().items()}
    for name, parameter in critic.named_parameters():
        found |= {f"{key}.{name}": value.clone() for key, value in optimizer.state[parameter].items()}
    return found


def _take_up(memory: Memory, critic: Critic, optimizer: torch.optim.Optimizer) -> None:
    """Go on with a critic that was kept."""
    critic.load_state_dict({name: memory[f"critic.{name}"] for name in critic.state_dict()})
    for name, parameter in critic.named_parameters():
        optimizer.state[parameter] = {k: memory[f"{k}.{name}"].clone() for k in ("step", "exp_avg", "exp_avg_sq")}


@contextmanager
def _weights_from(random: np.random.Generator) -> Iterator[None]:
    """Draw first weights from this generator, and leave torch's own as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**62)))
        yield


# A recipe made ready.


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
    """Make a recipe ready: load, deal out, declare. `train` is what the clients hold, all together."""
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


# Runs.


def federate_generator(
    recipe: FedGP, run_dir: str | Path, *, engine: str = "local", progress: Progress | None = None
) -> tuple[Generator, Label]:
    """Train a federated generator in a new run directory and return it with its label.

    Args:
        recipe: What to do.
        run_dir: Where to write checkpoints, the label and, with noise, the ledger. `clients/` in it is what clients
            keep to themselves; in Flower they keep it in their own state.
        engine: `local` (this process) or `flower` (Flower's simulation, one node for each client).
        progress: Told the round and the generator so far. What it measures is for the owner.

    Guarantee:
        With noise, a worst case for a client with all it holds: `client_rate`, the noise and the rounds taken, as for
        any federation at level client. The server is trusted, which sees updates. Without noise, none.
    """
    page_template()  # a missing extra is told now, not after the work
    this, where = ready(recipe), Path(run_dir)
    if _check.one_of("engine", engine, tuple(ENGINES)) == "flower":
        return _in_flower(this, where, progress)
    if this.plan is None:
        keep_recipe(recipe, Run.create(where).folder, engine)
        return _plain_rounds(this, where, this.generator(), 0, this.facts, progress)
    generator, facts = this.generator(), this.facts
    federation = Federation(
        generator,
        None,
        this.holdings,
        this.plan,
        local=this.training,
        optimizer=_optimizer(recipe, generator),
        panel=0,  # those who take part tell what is typical: a followed client would train more than others
        run_dir=where,
        seed=recipe.seed,
        name=facts.title,
        purpose=facts.purpose,
    )
    keep_recipe(recipe, where, engine)
    return _private_rounds(federation, generator, progress)


def resume_generator(run_dir: str | Path, *, progress: Progress | None = None) -> tuple[Generator, Label]:
    """Go on with a run that was interrupted: the same plan, the same guarantee, fresh coins and noise.

    Critics go on from what their clients kept. In Flower's simulation clients end with it, and begin new critics.
    """
    where = Path(run_dir)
    recipe, engine = recipe_of(where)
    this = ready(recipe)
    if engine == "flower":
        return _in_flower(this, where, progress)
    generator = this.generator()
    if this.plan is None:
        return _plain_rounds(this, where, generator, *restore_plain(where, generator), progress)
    optimizer = _optimizer(recipe, generator)
    federation = Federation.resume(where, generator, None, this.holdings, local=this.training, optimizer=optimizer)
    return _private_rounds(federation, generator, progress)


def _optimizer(recipe: FedGP, generator: Generator) -> torch.optim.Optimizer:
    return torch.optim.SGD(generator.parameters(), lr=recipe.server_step)


def _in_flower(this: Ready, folder: Path, progress: Progress | None) -> tuple[Generator, Label]:
    from tacita.synthesis.fedgp_flower import simulated

    return simulated(this, folder, progress)


def _private_rounds(federation: Federation, generator: Generator, progress: Progress | None) -> tuple[Generator, Label]:
    for now in federation:
        if progress is not None:
            progress(now.number, generator)
    label = private_label(federation.label())
    if federation.run_dir is not None:
        Run(federation.run_dir).write_label(label)
    return generator, label


def keep_recipe(recipe: FedGP, folder: Path, engine: str) -> None:
    """Keep the recipe in the run's document; the run is a federation's, or one of its own without noise."""
    run = Run(folder)
    family = run.document()["family"] if run.exists else PLAIN
    run.write(kind=KIND if recipe.private else PLAIN, family=family, engine=engine, recipe=asdict(recipe))


def recipe_of(run_dir: str | Path) -> tuple[FedGP, str]:
    """Return the recipe of a run and the engine that it was started with."""
    run = Run.open(run_dir)
    if run.kind not in (KIND, PLAIN):
        raise RunError(f"{str(run_dir)!r} is not the run of a federated generator.")
    with run.reading():
        return FedGP(**run.recipe), _check.one_of("engine", run.document()["engine"], tuple(ENGINES))


# Without noise: nothing is promised.


def _plain_rounds(
    this: Ready, folder: Path, generator: Generator, taken: int, facts: RunFacts, progress: Progress | None
) -> tuple[Generator, Label]:
    owner = Owner(folder).hold()
    memories = {name: kept_memory(folder, name) for name in this.holdings}
    with closing(owner), Interrupts() as interrupts:
        for number in range(taken + 1, this.recipe.rounds + 1):
            drawn = _plain_round(this, generator, number, memories)
            for name in drawn:
                keep_memory(folder, name, number, memories[name])
            keep_plain(folder, generator, number, facts)
            if progress is not None:
                progress(number, generator)
            if interrupts.seen:
                keep_plain(folder, generator, number, facts.with_status("interrupted"))
                raise KeyboardInterrupt
        return generator, plain_end(this, folder, generator, facts)


def _plain_round(this: Ready, generator: Generator, number: int, memories: dict[str, Memory]) -> list[str]:
    """Take one round of federated averaging, updates weighted by how many records a client has; say who took part."""
    names = list(this.holdings)
    count = max(1, int(this.recipe.client_rate * len(names)))
    drawn = [names[i] for i in sorted(coins(this.recipe.seed, number).choice(len(names), count, replace=False))]
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in before.items()}
    for client in drawn:
        records, random = this.holdings[client], coins(this.recipe.seed, number, client)
        update, memories[client] = this.training(before, records, memories[client], random)
        for name, value in update.items():
            total[name] += len(records) * value
    share = this.recipe.server_step / sum(len(this.holdings[client]) for client in drawn)
    generator.load_state_dict({name: value + share * total[name] for name, value in before.items()})
    return drawn


def coins(seed: int | None, number: int, client: str = "") -> np.random.Generator:
    """Return randomness for a round, or for a client in it, where nothing needs to be secret."""
    return np.random.default_rng(None if seed is None else [seed, number, int(client or -1) + 1])


def keep_plain(folder: Path, generator: Generator, number: int, facts: RunFacts) -> None:
    """Write a checkpoint of a run without noise, and its document."""
    run = Run(folder)
    run.save(number, generator.state_dict(), {})
    run.write(rounds=number, ledgers=[], facts=facts.to_dict())


def restore_plain(folder: Path, generator: Generator) -> tuple[int, RunFacts]:
    """Put the newest checkpoint into the generator and return its round and the run's facts."""
    run = Run.open(folder, PLAIN)
    state, saved = run.load()
    try:
        generator.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError) as error:
        raise RunError(f"The run in {str(folder)!r} is damaged: {error}") from error
    return int(saved["step"]), run.facts.with_status("running")


def plain_end(this: Ready, folder: Path, generator: Generator, facts: RunFacts) -> Label:
    """Close a run without noise and return its label."""
    done = facts.with_status("done")
    keep_plain(folder, generator, this.recipe.rounds, done)
    label = plain_label(this.recipe, done, this.recipe.rounds)
    Run(folder).write_label(label)
    return label


# Labels.


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a federated generator's run directory; the data are not needed."""
    run = Run.open(folder)
    if run.kind == KIND:
        return private_label(label_of_federation(folder, delta=delta))
    recipe = recipe_of(folder)[0]
    if delta is not None:
        recipe = replace(recipe, delta=_check.probability("delta", delta))
    with run.reading():
        return plain_label(recipe, run.facts, int(run.document()["rounds"]))


def private_label(label: Label) -> Label:
    """Return the label of a federation at level client with what is particular about a generator."""
    rows = (("Generator", "fedgp: federated, its critics stay with their clients"),)
    made = replace(label, mechanism=(*rows, *label.mechanism))
    return made.resting_on(assume("critics-stay"), assume("after-release"))


def plain_label(recipe: FedGP, facts: RunFacts, taken: int) -> Label:
    """Return the label of a generator whose updates were neither clipped nor noised: an infinite worst case."""
    return build(
        facts,
        no_guarantee(delta=recipe.delta, unit="client"),
        rests_on=(assume("federated-generator-unlimited"),),
        mechanism=(
            ("Generator", _KIND),
            ("Clients", f"{recipe.clients:,}"),
            ("Share that takes part in a round", f"{recipe.client_rate:g}"),
            ("Rounds taken / planned", f"{taken} / {recipe.rounds}"),
        ),
        declared=(
            "No guarantee: updates were averaged without clipping and without noise. That critics stay with their "
            "clients protects nobody: the generator's updates are computed from the records. There may be a measure "
            "of the released set, for its owner; a measure bounds nothing.",
        ),
        steps_word="round",
        readings=Readings(
            panels="Nobody was followed: there is no noise to account for.",
            metrics=facts.metrics,
            facts=(("Clients", f"{facts.trained:,}"), *status_rows(facts)),
        ),
    )
