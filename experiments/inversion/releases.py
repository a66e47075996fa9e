"""What is released in place of the pictures: generators of every kind, fitted to a subject's attacked pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.inversion.subjects import Labelled, Subject
from tacita.accounting import calibrate_gaussian
from tacita.federated.local import holdings
from tacita.federated.recipes import deal
from tacita.synthesis import FedGP, fit_generator, release_embedding, sample
from tacita.synthesis.embedding import FEATURES, new_generator
from tacita.synthesis.features import Moments
from tacita.synthesis.fedgp_client import GanTraining
from tacita.synthesis.gan import Game, Wgan, WganTraining, adam
from tacita.synthesis.networks import Critic, Generator, NetworkGenerator, make_critic, make_generator

LATENT, FEATURE_LENGTH = 64, 64
WGAN: dict[str, dict[str, Any]] = {  # the library's defaults for its data; for faces chosen, see `run`
    "digits": {"steps": 4000, "learning_rate": 2e-3, "critic_steps": 3},
    "mnist": {"steps": 6000, "learning_rate": 1e-3, "critic_steps": 2},
    "faces": {"steps": 3000, "learning_rate": 2e-3, "critic_steps": 3},
}
NOISY_STEPS = 8000  # of the DP critic on faces: after 4000 its students are right for a third of the pictures
FEDGP: dict[str, dict[str, Any]] = {
    "digits": {"rounds": 60, "local_epochs": 2},
    "faces": {"rounds": 150, "local_epochs": 5},
}


def drawn(generator: Generator, count: int, seed: int) -> Labelled:
    """Draw a released set, classes even."""
    return sample(generator, count, rng=np.random.default_rng([seed, 4]))


def wgan(subject: Subject, seed: int, *, layer_noise: float = 0.0, steps: int | None = None) -> Generator:
    """Train a Wasserstein GAN with a gradient penalty; layer noise makes the critic the thesis's DP critic."""
    classes, chosen = len(subject.classes), dict(WGAN[subject.name])
    if layer_noise and subject.name == "faces":
        chosen["steps"] = NOISY_STEPS
    chosen["steps"] = steps or chosen["steps"]
    with weights_from(seed):
        generator, critic = networks(subject, layer_noise=layer_noise)
    optimizer = adam(generator.parameters(), chosen["learning_rate"])
    game = Game(critic, generator, optimizer, pool=max(4, 64 // classes))
    plan = Wgan(**chosen, batch_size=64, size=len(subject.attacked[1]))
    for _ in WganTraining(plan, game, *subject.attacked, rng=np.random.default_rng(seed)):
        pass
    game.settle()
    return generator


def networks(subject: Subject, *, layer_noise: float = 0.0) -> tuple[Generator, Critic]:
    """Return generator and critic: the library's for digits; fully connected for the faces, which are aligned."""
    classes = len(subject.classes)
    if subject.name == "faces":
        return connected(subject.shape, classes), _connected_critic(subject.shape, classes, layer_noise)
    small = subject.name == "digits"
    made = make_generator(subject.shape, classes, width=64 if small else 32)
    return made, make_critic(subject.shape, classes, width=32 if small else 16, layer_noise=layer_noise)


def connected(shape: tuple[int, ...], classes: int) -> Generator:
    """Return a fully connected generator."""
    pixels = int(np.prod(shape))
    net = nn.Sequential(
        nn.Linear(LATENT + classes, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, pixels),
        nn.Sigmoid(),
        nn.Unflatten(1, shape),
    )
    return NetworkGenerator(net, LATENT, classes)


def _connected_critic(shape: tuple[int, ...], classes: int, layer_noise: float = 0.0) -> Critic:
    body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 256), nn.LeakyReLU(0.2))
    return Critic(body, 256, classes, FEATURE_LENGTH, layer_noise)


def embedding(subject: Subject, seed: int, *, epsilon: float, steps: int | None = None) -> Generator:
    """Fit the mean-embedding generator, whose release has this worst case for a record."""
    noise = calibrate_gaussian(epsilon=epsilon, delta=subject.delta).noise_multiplier
    small = min(subject.shape[1:]) < 16
    features = Moments(subject.shape, **FEATURES["small images" if small else "images"])
    made = new_generator(features, len(subject.classes), ())
    rng = np.random.default_rng(seed)
    kept = release_embedding(*subject.attacked, len(subject.classes), features, noise_multiplier=noise, rng=rng)
    planned = (200 if small else 0) if steps is None else steps
    fit_generator(made, kept, features, steps=planned, batch_size=500, learning_rate=1e-3, rng=rng)
    return made


@dataclass(frozen=True)
class Connected(GanTraining):
    """A client of FedGP whose networks are the fully connected ones."""

    def generator(self, random: np.random.Generator) -> Generator:
        """Return a new generator."""
        with weights_from(int(random.integers(2**62))):
            return connected(self.shape, self.classes)

    def critic(self, classes: int, random: np.random.Generator) -> Critic:
        """Return a new critic of so many classes."""
        with weights_from(int(random.integers(2**62))):
            return _connected_critic(self.shape, classes)


def fedgp(subject: Subject, seed: int, *, rounds: int | None = None, clients: int = 20) -> Generator:
    """Train a generator by FedGP without noise: clients alike, all of them in every round, their critics their own."""
    chosen = FEDGP[subject.name]
    inputs, labels = subject.attacked
    recipe = FedGP(data="digits", clients=clients, local_epochs=chosen["local_epochs"])
    kind = Connected if subject.name == "faces" else GanTraining
    training = kind(recipe, subject.shape, len(subject.classes))
    positions = deal(labels.numpy(), "even", clients, len(labels) // clients, seed=seed)
    parts = list(holdings((inputs, labels), positions).values())
    rng = np.random.default_rng(seed)
    generator = training.generator(rng)
    kept: list[Any] = [{} for _ in parts]
    for _ in range(rounds or chosen["rounds"]):
        start = {name: value.clone() for name, value in generator.state_dict().items()}
        moved = {name: torch.zeros_like(value) for name, value in start.items()}
        for client, part in enumerate(parts):
            update, kept[client] = training(start, part, kept[client], rng)
            moved = {name: moved[name] + value / clients for name, value in update.items()}
        generator.load_state_dict({name: start[name] + moved[name] for name in start})
    return generator


@contextmanager
def weights_from(seed: int) -> Iterator[None]:
    """Draw first weights by a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
