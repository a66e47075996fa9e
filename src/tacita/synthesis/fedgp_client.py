"""What a client of FedGP does in a round: train its own critic and the common generator on its own records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from tacita.federated.client import Memory, Part
from tacita.federated.updates import norm_of
from tacita.synthesis.gan import Game, Wgan, WganTraining, adam
from tacita.synthesis.networks import Critic, Generator, make_critic, make_generator
from tacita.training.gradients import Parameters
from tacita.training.records import Records

if TYPE_CHECKING:
    from tacita.synthesis.fedgp import FedGP


@dataclass(frozen=True)
class GanTraining:
    """A client's round: its own critic, and the common generator, trained in turns on its own records.

    What it remembers is its critic and the critic's optimiser. It trains both networks on the classes that it holds.

    Attributes:
        recipe: How.
        shape: Of one record.
        classes: How many classes there are in all.
        blocks: For tables: how many features each column has.
        counts_as_one: The number of records with which a client's update counts once, and with twice as many twice.
            None counts every client once, as a guarantee for clients needs it.
    """

    recipe: FedGP
    shape: tuple[int, ...]
    classes: int
    blocks: tuple[int, ...] = ()
    counts_as_one: float | None = None

    def __call__(
        self, parameters: Parameters, records: Records | Part, memory: Memory, random: np.random.Generator
    ) -> tuple[Parameters, Memory]:
        """Return by how much this client moves the generator, and its critic."""
        inputs, labels = records.take(np.arange(len(records)))
        own, places = torch.unique(labels, return_inverse=True)
        generator, critic = self.generator(random), self.critic(len(own), random)
        generator.load_state_dict(parameters)
        training = self._game(OwnClasses(generator, own), critic, inputs, places, random)
        if memory and torch.equal(memory["classes"], own):  # with other classes the client starts a new critic
            _restore(memory, critic, training.optimizer)
        for _ in training:
            pass
        weight = 1.0 if self.counts_as_one is None else len(records) / self.counts_as_one
        moved = {name: weight * (value - parameters[name]) for name, value in generator.state_dict().items()}
        kept = {"classes": own, **_critics_state(critic, training.optimizer)}
        if not math.isfinite(norm_of(moved) + norm_of(kept)):  # diverged: discard the update
            return {name: torch.zeros_like(value) for name, value in parameters.items()}, memory
        return moved, kept

    def _game(
        self, generator: Generator, critic: Critic, inputs: Tensor, labels: Tensor, random: np.random.Generator
    ) -> WganTraining:
        recipe, size = self.recipe, len(labels)
        turns = recipe.local_steps or recipe.local_epochs * math.ceil(size / recipe.batch_size / recipe.critic_steps)
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


def _restore(memory: Memory, critic: Critic, optimizer: torch.optim.Optimizer) -> None:
    """Load a critic, and its optimiser, from what the client kept."""
    critic.load_state_dict({name: memory[f"critic.{name}"] for name in critic.state_dict()})
    for name, parameter in critic.named_parameters():
        optimizer.state[parameter] = {k: memory[f"{k}.{name}"].clone() for k in ("step", "exp_avg", "exp_avg_sq")}


@contextmanager
def _weights_from(random: np.random.Generator) -> Iterator[None]:
    """Draw first weights from this generator; torch's global one is left untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**62)))
        yield
