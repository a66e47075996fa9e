"""MD-GAN (Hardy et al. 2019) in its essence: one generator at the server, critics that move between the clients.

In a round every client trains the critic that it has on its own records and on made ones, and tells the server how its
critic would have other made records change. The server's generator follows the mean. Every now and then each client
hands its critic, with the critic's optimiser, to another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from experiments.federated_generators.parts import Average
from tacita.synthesis import FedGP
from tacita.synthesis.fedgp import ready
from tacita.synthesis.fedgp_client import GanTraining, OwnClasses
from tacita.synthesis.gan import Game, Wgan, WganTraining, adam, draw_latent
from tacita.synthesis.networks import Critic, Generator


@dataclass(frozen=True)
class MdGan:
    """Settings.

    Attributes:
        rounds: How many; the generator takes one step in each.
        batch_size: Records of a client's step.
        critic_steps: Steps of every critic in a round.
        learning_rate: Of all networks.
        swap_every: Rounds between two exchanges of critics.
        average: How slowly the mean of the generator's weights follows.
    """

    rounds: int
    batch_size: int = 10
    critic_steps: int = 1
    learning_rate: float = 2e-3
    swap_every: int = 100
    average: float = 0.99


class OwnCritic(nn.Module):
    """A critic of all classes, seen by a client: the classes that the client holds, numbered from 0."""

    def __init__(self, critic: Critic, own: Tensor) -> None:
        super().__init__()
        self.critic, self.own = critic, own

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return one number for every record."""
        scores: Tensor = self.critic(inputs, self.own[labels])
        return scores


class Site:
    """A client: its records, and the critic that is with it at present."""

    def __init__(self, plan: MdGan, records: tuple[Tensor, Tensor], generator: Generator, critic: Critic, seed: int):
        inputs, labels = records
        self.own, places = torch.unique(labels, return_inverse=True)
        self.view, self.size, self._batch = OwnClasses(generator, self.own), len(labels), plan.batch_size
        self.critic = OwnCritic(critic, self.own)
        pool = max(4, 2 * plan.batch_size // len(self.own))
        game = Game(self.critic, self.view, adam(generator.parameters(), 0.0), pool=pool)  # type: ignore[arg-type]
        steps = plan.rounds * plan.critic_steps
        wgan = Wgan(
            steps=steps,
            batch_size=plan.batch_size,
            size=self.size,
            critic_steps=steps + 1,  # the generator is moved by the server alone
            learning_rate=plan.learning_rate,
        )
        self.training = WganTraining(wgan, game, inputs, places, rng=np.random.default_rng(seed))
        self.steps = iter(self.training)

    def loss(self) -> Tensor:
        """Return what the critic has against a batch of made records."""
        draws = self.training.draws
        labels = torch.randint(len(self.own), (self._batch,), generator=draws)
        made = self.view(draw_latent(self.view, self._batch, draws=draws), labels)
        verdict: Tensor = -self.critic(made, labels).mean()
        return verdict


def train(recipe: FedGP, plan: MdGan) -> Generator:
    """Train MD-GAN over the clients of a recipe, and return the mean of its generator's last weights."""
    job, random = ready(recipe), np.random.default_rng(recipe.seed)
    local: GanTraining = job.local
    generator = local.generator(random)
    sites = [
        Site(plan, held.records.take(held.positions), generator, local.critic(10, random), int(random.integers(2**31)))
        for held in job.holdings.values()
    ]
    shares = [site.size / sum(other.size for other in sites) for site in sites]
    optimizer, average = adam(generator.parameters(), plan.learning_rate), Average(generator, plan.average)
    for now in range(1, plan.rounds + 1):
        for site in sites:
            for _ in range(plan.critic_steps):
                next(site.steps)
        optimizer.zero_grad()
        for share, site in zip(shares, sites, strict=True):
            (share * site.loss()).backward()
        optimizer.step()
        average.follow(generator)
        if now % plan.swap_every == 0:
            _swap(sites, random)
    average.settle(generator)
    return generator


def _swap(sites: list[Site], random: np.random.Generator) -> None:
    """Hand the critics round, each to another client."""
    order = random.permutation(len(sites))
    moving = [(site.critic.critic, site.training.optimizer) for site in sites]
    for giver, taker in zip(order, np.roll(order, 1), strict=True):
        sites[taker].critic.critic, sites[taker].training.optimizer = moving[giver]
