"""How far a fit ends from the optimum of its objective, and so by how much to widen its intervals.

The noise of the private steps is known, and so is everything that the optimiser does with it. So the fit is repeated on
simulated gradients: those of a Gaussian posterior with the fitted location and scales, with noise of the same
size, from the same start, by the same steps. How far such fits end from their known optimum estimates how far the
real one ends from its optimum. Nothing but the private result is used, so this costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tacita.inference.guides import Guide, Variational

REPEATS = 64
SEED = 6_021_023  # of the simulated gradients: they protect nobody, and the same fit must always get the same warning
UNSETTLED = (
    "The fit had not converged when it ended: fits like it, on simulated gradients, stop short of the optimum. Take "
    "more steps or a larger learning_rate"
)
MIN_SIGNAL_TO_NOISE = (
    4.0  # times its standard error: in trials intervals held from there on, and below they were often far off
)
LOST = (
    "The noise hides how wide this posterior is: its standard deviations come partly, or wholly, from the noise. In "
    "trials, 95% intervals of such fits contained the truth between 10% and 87% of the time, so do not rely on them. "
    "Use a larger epsilon, or fewer unknowns"
)
SAMPLED = (
    "The fit's own randomness is large compared with this posterior, so its scales are themselves uncertain: take more "
    "steps or a larger sample_rate"
)
ROUGH = (
    "The noise is large compared with this posterior, so its scales are themselves uncertain: 95% intervals of such "
    "fits contained the truth 87% of the time, which is about 1.3 times too narrow. Check them with "
    "tacita.inference.coverage"
)


@dataclass(frozen=True)
class Errors:
    """What repeated fits of a known Gaussian came to.

    Attributes:
        square: The mean of the location's error times itself, a matrix.
        bias: The mean error of the location.
        stretch: The true variance over the fitted one, on average, for each unknown; at least 1.
        curvature_z_score: How many times its standard error the curvature is, for the unknown with the weakest signal;
            infinite for a fit without noise.
    """

    square: Tensor
    bias: Tensor
    stretch: Tensor
    curvature_z_score: float

    def widened(self, guide: Guide) -> Tensor:
        """Return the covariance of a fitted guide with the error of the fit; never below the guide's covariance."""
        root = self.stretch.sqrt()
        return root[:, None] * guide.covariance() * root + self.square

    def unsettled(self, guide: Guide) -> bool:
        """Whether fits like this one stop short of where they should by half of the standard deviation they state."""
        return bool((self.bias.abs() > 0.5 * self.widened(guide).diagonal().sqrt()).any())

    @property
    def rough(self) -> bool:
        """Whether the noise leaves the scales themselves so uncertain that widened intervals are still too narrow."""
        return bool((self.stretch > 1.5).any())

    def warning(self, guide: Guide) -> str:
        """Return what a reader of the intervals must know; an empty text if there is nothing."""
        warnings = [UNSETTLED] if self.unsettled(guide) else []
        if self.curvature_z_score < MIN_SIGNAL_TO_NOISE:
            warnings.append(LOST)
        elif self.rough and not warnings:
            warnings.append(SAMPLED if math.isinf(self.curvature_z_score) else ROUGH)
        return ". ".join(warnings)


def estimate_errors(optimizer: Variational, noise: float) -> Errors:
    """Return the errors of fits like the one that an optimiser has finished.

    The simulated gradients are those of the fitted Gaussian, so what the guide does not see, such as dependence between
    unknowns that it takes to be independent, is not in the errors either. Their noise is the privacy's, plus that of
    sampling records, whose covariance is the curvature over the sample rate where the model fits.

    Args:
        optimizer: After its last step.
        noise: The standard deviation of the privacy's noise on the gradient of the whole data's log likelihood.

    Returns:
        What repeated fits of a known Gaussian came to.
    """
    guide, rate, rng = optimizer.fitted(), optimizer.sample_rate, np.random.default_rng(SEED)
    location = guide.location.detach().double()
    if guide.rank:
        curvature = torch.linalg.inv(guide.covariance())
        spread = torch.linalg.cholesky(curvature / rate + noise**2 * torch.eye(len(location))).T
    else:  # numbers instead of matrices, which many unknowns would make slow
        curvature = 1.0 / guide.variances()
        spread = (curvature / rate + noise**2).sqrt()
    again = _again(optimizer, location, curvature, rng)
    for _ in range(optimizer.taken):
        again.point.grad = rate * _times(torch.from_numpy(rng.standard_normal((REPEATS, len(location)))), spread)
        again.step()
    fitted = again.fitted()
    error = fitted.location.detach() - location
    stretch = (guide.variances() / fitted.variances()).mean(0)
    z_score = float(optimizer.curvature_z_score(noise).min()) if noise else math.inf
    return Errors(error.T @ error / REPEATS, error.mean(0), stretch.clamp_min(1.0), z_score)


def _times(rows: Tensor, factor: Tensor) -> Tensor:
    """Return rows times a matrix, or times the diagonal of one."""
    return rows @ factor if factor.dim() > 1 else rows * factor


def _again(optimizer: Variational, location: Tensor, curvature: Tensor, rng: np.random.Generator) -> Variational:
    """Return the optimiser at its start, many times over, for a density that is a known Gaussian."""
    start, first = optimizer.began
    rank, floor = optimizer.guide.rank, optimizer.guide.floor
    guide = Guide(start.double().repeat(REPEATS, 1), scale=first, rank=rank, floor=floor)
    return Variational(
        nn.Parameter(guide.location.detach().clone()),
        guide,
        lambda z: -0.5 * (_times(z - location, curvature) * (z - location)).sum(),
        sample_rate=optimizer.sample_rate,
        steps=optimizer.steps,
        learning_rate=optimizer.learning_rate,
        seed=rng.integers(2**63),
    )
