"""Variational posteriors, and the optimisers that fit them to a private gradient.

A reparametrised guide turns public noise into a point: z = location + scale x noise. Its parameters' gradients all
follow from the gradient of the likelihood at that one point, so only that gradient is taken from the data, clipped and
noised; the rest is computed from it at no further cost (aligned gradients, Jälkö et al. 2023). For the private step,
the model's parameter is the point, and the optimiser moves the guide and draws the next point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LogPrior = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GuideKind:
    """A kind of guide: one entry of `GUIDES`.

    Attributes:
        rank: The number of directions of dependence, from the number of unknowns.
        note: What a reader of its intervals should know.
        diagonal: Whether its unknowns are independent.
    """

    rank: Callable[[int], int]
    note: str
    diagonal: bool = False


GUIDES: dict[str, GuideKind] = {
    "diagonal": GuideKind(
        lambda size: 0,
        "The guide treats unknowns as independent: where they are not, its intervals are too narrow. Check them with "
        "tacita.inference.coverage.",
        diagonal=True,
    ),
    "low-rank": GuideKind(
        lambda size: max(1, round(math.sqrt(size))),
        "The guide is Gaussian: check its intervals with tacita.inference.coverage.",
    ),
}


class Guide(nn.Module):
    """A Gaussian over the unconstrained unknowns: independent, or with a few directions of dependence.

    Directions are in units of the scales, so that noise moves both alike, by a share of what they are. Several guides
    can be held at once, along the first dimension of their locations.

    Args:
        location: Where it starts; unknowns along the last dimension.
        scale: The standard deviation that every unknown starts with.
        rank: The number of directions; 0 for independent unknowns.
        floor: The smallest standard deviation of an unknown, apart from the directions.
    """

    def __init__(self, location: Tensor, *, scale: float = 0.1, rank: int = 0, floor: float = 1e-6) -> None:
        super().__init__()
        self.rank, self.floor = rank, floor
        self.location = nn.Parameter(location.clone())
        self.log_scale = nn.Parameter(torch.full_like(location, math.log(scale)))
        self.hold()
        if rank:
            size = location.shape[-1]
            place, which = torch.arange(1, size + 1).to(location), torch.arange(1, rank + 1).to(location)
            waves = torch.sin(torch.outer(place, which) * math.pi / (size + 1))  # at right angles
            self.factor = nn.Parameter(0.1 * waves.repeat(*location.shape[:-1], 1, 1))

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """The shape of the standard normal numbers that one draw takes."""
        return (*self.location.shape[:-1], self.location.shape[-1] + self.rank)

    @property
    def scale(self) -> Tensor:
        """The standard deviations apart from the directions."""
        return self.log_scale.exp().clamp_min(self.floor)

    @torch.no_grad()
    def hold(self) -> None:
        """Raise scales that fell below the floor to slightly above it, where their gradients are not zero."""
        self.log_scale.clamp_(min=math.log(self.floor) + 1e-5)

    def draw(self, noise: Tensor) -> Tensor:
        """Return the points for standard normal noise along the last dimension."""
        size = self.location.shape[-1]
        moved = noise[..., :size]
        if self.rank:
            moved = moved + (self.factor @ noise[..., size:, None]).squeeze(-1)
        return self.location + self.scale * moved

    def entropy(self) -> Tensor:
        """Return the entropy, up to a constant."""
        logs = self.scale.log().sum()
        if not self.rank:
            return logs
        return logs + 0.5 * torch.logdet(torch.eye(self.rank).to(logs) + self.factor.mT @ self.factor).sum()

    def variances(self) -> Tensor:
        """Return the variance of each unknown, in double precision."""
        own = self.scale.detach().double().square()
        return own * (1.0 + self.factor.detach().double().square().sum(-1)) if self.rank else own

    def covariance(self) -> Tensor:
        """Return the covariance matrix, in double precision."""
        root = torch.diag_embed(self.scale.detach().double())
        if self.rank:
            root = torch.cat([root, root @ self.factor.detach().double()], dim=-1)
        return root @ root.mT


class PointOptimizer(torch.optim.Optimizer):
    """What both optimisers share: the point, the prior, and the private gradient in the scale of the whole data."""

    def __init__(self, point: nn.Parameter, log_prior: LogPrior, *, sample_rate: float, steps: int, seed: Any) -> None:
        super().__init__([point], {})
        self.point, self.log_prior, self.sample_rate = point, log_prior, sample_rate
        self.random = np.random.default_rng(seed)
        self.steps, self.taken = steps, 0
        self.public = math.nan  # what the evidence bound holds besides the records' terms, at the last point

    def start(self, steps: int, *, noise: float) -> None:
        """Prepare for private steps.

        Args:
            steps: How many there will be.
            noise: The standard deviation of the noise on the sum of the sampled records' gradients.
        """
        self.steps = steps

    def _gradient(self) -> Tensor:
        """Return the gradient of minus the log joint density: the data's part noisy, the prior's exact."""
        if self.point.grad is None:
            raise ValueError("There is no gradient to step along.")
        at = self.point.detach().clone().requires_grad_()
        with torch.enable_grad():
            density = self.log_prior(at) + 0.0 * at.sum()  # a flat prior does not depend on the point
            (prior,) = torch.autograd.grad(density, at)
        self.public = float(density.detach())
        return self.point.grad / self.sample_rate - prior

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(self.random.standard_normal(shape)).to(self.point)


class Variational(PointOptimizer):
    """Fit a guide by Adam along the private gradient, and average it over the second half of the steps.

    Args:
        point: The parameter of the likelihood, at which the next gradient is taken.
        guide: What is fitted.
        log_prior: Of the unconstrained unknowns; looks at no record.
        sample_rate: What the noisy sum is divided by.
        steps: How many there will be.
        learning_rate: Adam's, falling to a tenth along a half cosine.
        seed: Of the points that are drawn.
    """

    def __init__(
        self,
        point: nn.Parameter,
        guide: Guide,
        log_prior: LogPrior,
        *,
        sample_rate: float,
        steps: int,
        learning_rate: float,
        seed: Any,
    ) -> None:
        self.guide, self.learning_rate = guide, learning_rate
        self.began = guide.location.detach().clone(), float(guide.log_scale.detach().exp().max())
        self.adam = torch.optim.Adam(guide.parameters(), lr=learning_rate, betas=(0.9, 0.99))
        self.average = {name: torch.zeros_like(p) for name, p in guide.named_parameters()}
        self.moments = torch.zeros(4, *guide.location.shape, dtype=torch.float64)  # sums for `curvature_z_score`
        super().__init__(point, log_prior, sample_rate=sample_rate, steps=steps, seed=seed)
        self._move()

    @property
    def averaged(self) -> int:
        """How many steps the average is over."""
        return max(0, self.taken - self.steps // 2)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, self.taken / self.steps)))
        return self.learning_rate * (0.1 + 0.9 * share)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the guide along the gradient at the current point, and draw the next point."""
        gradient = self._gradient()
        z, g = (self.point - self.began[0]).double(), gradient.double()
        self.moments += torch.stack([z, z * z, g, z * g])
        self.adam.zero_grad()
        with torch.enable_grad():
            entropy = self.guide.entropy()
            ((self.guide.draw(self._noise) * gradient).sum() - entropy).backward()  # type: ignore[no-untyped-call]
        self.public += float(entropy)
        self.adam.param_groups[0]["lr"] = self.rate
        self.adam.step()
        self.guide.hold()
        self.taken += 1
        if self.averaged:
            for name, p in self.guide.named_parameters():
                self.average[name] += (p - self.average[name]) / self.averaged
        self._move()

    def curvature_z_score(self, noise: float) -> Tensor:
        """Return how many times its standard error the curvature is that the gradients show, for each unknown.

        It is the slope of a line through the gradients at all points, whose noise has a known size. A guide's scales
        depend on it: where it is small, they are determined by the noise. Points follow the noise, so even without
        curvature it is positive: about 1.5, and seldom above 4 (Dickey & Fuller 1979).

        Args:
            noise: The standard deviation of the noise on each gradient.
        """
        z, square, g, product = self.moments
        steps = max(1, self.taken)
        slope: Tensor = (product - z * g / steps) / (noise * (square - z * z / steps).clamp_min(1e-300).sqrt())
        return slope

    def fitted(self) -> Guide:
        """Return the averaged guide; the newest one if there were too few steps for an average."""
        guide = Guide(self.guide.location.detach(), rank=self.guide.rank, floor=self.guide.floor)
        guide.load_state_dict(self.average if self.averaged else self.guide.state_dict())
        return guide.requires_grad_(False)

    @torch.no_grad()
    def _move(self) -> None:
        self._noise = self._normal(self.guide.noise_shape)
        self.point.copy_(self.guide.draw(self._noise))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: the guide, its optimiser, its average and the noise of the next point."""
        return {
            "guide": self.guide.state_dict(),
            "adam": self.adam.state_dict(),
            "average": dict(self.average),
            "seen": self.moments,
            "noise": self._noise,
            "taken": self.taken,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.guide.load_state_dict(state_dict["guide"])
        self.adam.load_state_dict(state_dict["adam"])
        self.average = {name: value.clone() for name, value in state_dict["average"].items()}
        self.moments = state_dict["seen"].clone()
        self._noise, self.taken = state_dict["noise"].clone(), int(state_dict["taken"])
        self.point.copy_(self.guide.draw(self._noise))


class Langevin(PointOptimizer):
    """Stochastic gradient Langevin dynamics whose noise is that of the private step (Wang et al. 2015).

    The step size is the one at which the noise that privacy needs is the noise that Langevin dynamics wants:
    eta = (2 x sample rate / (noise multiplier x clip norm))². A smaller step would need noise on top, a larger one
    would sample a posterior that is too wide.
    """

    def __init__(self, point: nn.Parameter, log_prior: LogPrior, *, sample_rate: float, steps: int, keep: int) -> None:
        self.keep, self.step_size = keep, 0.0
        self.kept = torch.zeros(0, point.numel())
        super().__init__(point, log_prior, sample_rate=sample_rate, steps=steps, seed=0)

    def start(self, steps: int, *, noise: float) -> None:
        """Set the step size at which noise of this standard deviation is that of Langevin dynamics."""
        super().start(steps, noise=noise)
        self.step_size = (2.0 * self.sample_rate / noise) ** 2

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the point along the noisy gradient; keep points of the second half, evenly spaced."""
        self.point.sub_(0.5 * self.step_size * self._gradient())
        self.taken += 1
        half = self.steps // 2
        every = max(1, (self.steps - half) // self.keep)
        if self.taken > half and (self.steps - self.taken) % every == 0:
            self.kept = torch.cat([self.kept.to(self.point), self.point.detach()[None]])[-self.keep :]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"kept": self.kept, "taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.kept, self.taken = state_dict["kept"].clone(), int(state_dict["taken"])
