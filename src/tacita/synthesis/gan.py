"""Wasserstein GANs with a gradient penalty: one whose critic is trained record by record, and the papers' own.

`Game` holds critic and generator and gives a record's loss: what the critic says of a made record, less what it says
of the real one, plus the penalty between them (Gulrajani et al. 2017), all inside the record's own loss. So the critic
is trained by `tacita.training.PrivateTraining` like any model, and the generator, which sees the critic only, is
post-processing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad

from tacita import _check
from tacita._check import PrivacyError
from tacita.runs import Run, RunError
from tacita.synthesis.networks import Critic, Generator, draw_latent
from tacita.training.step import noisy_mean, poisson_sample

PENALTY = 10.0
_TAGS = 2**31


def tags_of(inputs: Tensor) -> Tensor:
    """Return a number for each record, a function of the record alone: it picks the made record it is paired with."""
    rows = inputs.detach().cpu().contiguous().flatten(1).numpy()
    return torch.tensor([zlib.crc32(row.tobytes()) % _TAGS for row in rows], dtype=torch.int64)


class Game(nn.Module):
    """A critic and a generator; calling it gives each record's loss for the critic.

    Args:
        critic: What is trained with privacy.
        generator: What is fitted to the critic; moved by `improve` only.
        optimizer: The generator's optimiser.
        pool: How many made records of each class there are at a time. `refresh` makes new ones.
        batch: How many made records an improvement of the generator looks at.
        average: How slowly `averaged`, a running mean of the generator's weights, follows; 0 for no averaging.
        penalty: Weight of the gradient penalty; 0 for none, as where the critic's weights are clipped instead.
    """

    def __init__(
        self,
        critic: Critic,
        generator: Generator,
        optimizer: torch.optim.Optimizer,
        *,
        pool: int = 64,
        batch: int = 128,
        average: float = 0.995,
        penalty: float = PENALTY,
    ) -> None:
        super().__init__()
        self.critic, self.generator = critic, generator
        self.averaged = [p.detach().clone() for p in generator.parameters()]
        self._optimizer, self._batch, self._average, self._pool = optimizer, batch, average, pool
        self._penalty = penalty
        self.refresh(draws=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def refresh(self, *, draws: torch.Generator) -> None:
        """Make new records to compare with, and new places between made and real ones."""
        classes = max(1, self.generator.classes)
        labels = torch.arange(classes).repeat_interleave(self._pool)
        made = self.generator(draw_latent(self.generator, len(labels), draws=draws), labels)
        self._made = made.unflatten(0, (classes, self._pool))
        self._places = torch.rand(self._pool, generator=draws)
        self._shift = int(torch.randint(_TAGS, (), generator=draws))

    def forward(self, inputs: Tensor, labels: Tensor, tags: Tensor) -> Tensor:
        """Return the critic's loss on each record."""
        row = (tags + self._shift) % self._pool
        made = self._made[labels if self.generator.classes else torch.zeros_like(labels), row]
        if not self._penalty:
            return self._gap(made, inputs, labels)
        place = self._places[row].reshape(-1, *(1,) * (inputs.dim() - 1))
        between = place * inputs + (1.0 - place) * made
        slope = grad(lambda x: self.critic(x, labels).sum())(between)
        steepness = slope.flatten(1).square().sum(1).add(1e-12).sqrt()
        loss: Tensor = self._gap(made, inputs, labels) + self._penalty * (steepness - 1.0).square()
        return loss

    def _gap(self, made: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        gap: Tensor = self.critic(made, labels) - self.critic(inputs, labels)
        return gap

    def improve(self, *, draws: torch.Generator) -> float:
        """Move the generator once towards what the critic takes for real, and return its loss."""
        labels = torch.randint(max(1, self.generator.classes), (self._batch,), generator=draws)
        made = self.generator(draw_latent(self.generator, self._batch, draws=draws), labels)
        loss = -self.critic(made, labels).mean()
        parameters = list(self.generator.parameters())
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = slope
        self._optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(self.averaged, parameters, strict=True):
                kept.lerp_(parameter, 1.0 - self._average)
        return float(loss.detach())

    @torch.no_grad()
    def settle(self) -> None:
        """Put the averaged weights into the generator; the end of training."""
        for parameter, kept in zip(self.generator.parameters(), self.averaged, strict=True):
            parameter.copy_(kept)

    def companion(self) -> Companion:
        """Return what a checkpoint must keep besides the parameters."""
        return Companion(self)


@dataclass(frozen=True)
class Companion:
    """The generator's optimiser and averaged weights, as something that a checkpoint can keep."""

    game: Game

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain data."""
        return {"optimizer": self.game._optimizer.state_dict(), "averaged": list(self.game.averaged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.game._optimizer.load_state_dict(state["optimizer"])
        for kept, saved in zip(self.game.averaged, state["averaged"], strict=True):
            kept.copy_(saved)


def game_records(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return records as a game takes them."""
    return inputs, labels, tags_of(inputs)


@dataclass(frozen=True, kw_only=True)
class Wgan:
    """A training without a useful guarantee: plain, with a noisy critic layer, or clipped as a whole.

    Attributes:
        steps: Steps of the critic.
        batch_size: How many records a step looks at on average.
        size: The public size of the data.
        critic_steps: Steps of the critic for each of the generator.
        learning_rate: Of Adam, both networks, with the betas (0, 0.9) of the papers.
        clip_norm: For the papers' mode: the whole batch's gradient is clipped to this norm. None for no clipping.
        noise_multiplier: For the papers' mode: noise standard deviation over the clip norm.
    """

    steps: int
    batch_size: int = 64
    size: int
    critic_steps: int = 5
    learning_rate: float = 2e-4
    clip_norm: float | None = None
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        _check.count("steps", self.steps)
        _check.count("critic_steps", self.critic_steps)
        if self.clip_norm is None and self.noise_multiplier:
            raise PrivacyError("noise_multiplier without clip_norm bounds nothing; give both, or neither.")

    @property
    def sample_rate(self) -> float:
        """The chance with which each record enters a step."""
        return min(1.0, self.batch_size / self.size)


class WganTraining:
    """Train a game without privacy, or clip as the thesis words it; resumable.

    Args:
        plan: What to do.
        game: Critic and generator.
        inputs: The records.
        labels: Their classes.
        rng: Where sampling and noise come from.
        run_dir: Where checkpoints go; None keeps none.
    """

    def __init__(
        self,
        plan: Wgan,
        game: Game,
        inputs: Tensor,
        labels: Tensor,
        *,
        rng: np.random.Generator,
        run_dir: Path | None = None,
    ) -> None:
        self.plan, self.game, self._rng, self._folder = plan, game, rng, run_dir
        self._inputs, self._labels, self._tags = inputs, labels, tags_of(inputs)
        self.optimizer = adam(game.critic.parameters(), plan.learning_rate)
        self.draws = torch.Generator().manual_seed(int(rng.integers(2**62)))
        game.critic.draws = self.draws
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        """Take the remaining steps of the critic one by one, moving the generator in between."""
        try:
            while self.taken < self.plan.steps:
                self._step()
                self.taken += 1
                if self.taken % max(50, self.plan.steps // 20) == 0:
                    self.save()
                yield self.taken
        finally:
            self.save()

    def _step(self) -> None:
        self.game.refresh(draws=self.draws)
        sample = torch.from_numpy(poisson_sample(len(self._labels), self.plan.sample_rate, rng=self._rng))
        parameters = list(self.game.critic.parameters())
        gradients = [torch.zeros_like(p) for p in parameters]
        if len(sample):
            losses = self.game(self._inputs[sample], self._labels[sample], self._tags[sample])
            gradients = list(torch.autograd.grad(losses.mean(), parameters))
        for parameter, gradient in zip(parameters, self._hidden(gradients), strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        if (self.taken + 1) % self.plan.critic_steps == 0:
            self.game.improve(draws=self.draws)

    def _hidden(self, gradients: list[Tensor]) -> list[Tensor]:
        """Clip the whole update and add noise, where the plan says so."""
        plan = self.plan
        if plan.clip_norm is None:
            return gradients
        norm = torch.sqrt(sum((g.double().square().sum() for g in gradients), start=torch.zeros(())))
        if not torch.isfinite(norm):  # zero is within 2C of anything
            gradients = [torch.zeros_like(g) for g in gradients]
        factor = 1.0 if not norm > plan.clip_norm else float(plan.clip_norm / norm)
        sums = {str(i): g * factor for i, g in enumerate(gradients)}
        noisy = noisy_mean(
            sums, clip_norm=plan.clip_norm, noise_multiplier=plan.noise_multiplier, divisor=1.0, rng=self._rng
        )
        return list(noisy.values())

    def save(self) -> None:
        """Keep a checkpoint."""
        if self._folder is None or self.taken == 0:
            return
        state = {
            "game": self.game.state_dict(),
            "critic": self.optimizer.state_dict(),
            "companion": self.game.companion().state_dict(),
        }
        Run(self._folder).save(self.taken, state, {"plan": asdict(self.plan)})

    def restore(self) -> None:
        """Go on from the newest checkpoint."""
        if self._folder is None:
            raise RunError("This training has no run directory to resume from.")
        state, saved = Run(self._folder).load()
        if saved.get("plan") != asdict(self.plan):
            raise PrivacyError("The plan is not the one that the checkpoint was made by: a run keeps what it declared.")
        try:
            self.game.load_state_dict(state["game"])
            self.optimizer.load_state_dict(state["critic"])
            self.game.companion().load_state_dict(state["companion"])
            self.taken = int(saved["step"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"The checkpoint does not fit this generator: {error}") from error


def adam(parameters: Any, learning_rate: float) -> torch.optim.Adam:
    """Return the optimiser that Wasserstein GANs are trained with."""
    return torch.optim.Adam(parameters, lr=learning_rate, betas=(0.0, 0.9))


@torch.no_grad()
def sample(
    generator: Generator,
    count: int,
    *,
    rng: np.random.Generator,
    shares: Any = None,
    annotate: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw labelled records from a generator.

    Args:
        generator: What to draw from.
        count: How many.
        rng: Where they come from.
        shares: The chance of each class; even by default. Public, or released with privacy.
        annotate: Labels for a generator that knows no classes.

    Returns:
        Inputs and labels.
    """
    draws = torch.Generator().manual_seed(int(rng.integers(2**62)))
    classes = max(1, generator.classes)
    labels = torch.from_numpy(rng.choice(classes, size=_check.count("count", count), p=shares))
    parts = torch.split(labels, 1024)
    inputs = torch.cat([generator(draw_latent(generator, len(some), draws=draws), some) for some in parts])
    if annotate is not None:
        labels = torch.cat([annotate(part) for part in torch.split(inputs, 1024)])
    return inputs, labels
