"""Variational fits without noise, and fits of simulated gradients, which show how far a private fit ends off.

The noise of the private steps is known, and so is everything that the optimiser does with it. So a fit is repeated on
simulated gradients: those of a Gaussian posterior with the fitted location and scales, with noise of the same
size, from the same start, by the same steps. How far such fits end from their known optimum estimates how far the
real one ends from its optimum, and so by how much to widen its intervals. Nothing but the private result is used, so
this costs nothing.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita._progress import Progress, quiet
from tacita.inference.guides import GUIDES, Guide, Variational
from tacita.inference.request import Settings
from tacita.inference.separation import start_of
from tacita.inference.terms import Separated, Tensors
from tacita.posterior.pyro_model import isolated_pyro_session
from tacita.training.step import poisson_sample, private_gradient

REPEATS = 64
SEED = 6_021_023  # of the simulated gradients: they protect nobody, and the same fit must always get the same warning
UNSETTLED = (
    "The fit had not converged when it ended: fits like it, on simulated gradients, stop short of the optimum. Take "
    "more steps or a larger learning_rate"
)
MIN_SIGNAL_TO_NOISE = 4.0  # times its standard error: intervals held from there on, and below were often far off
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


@contextlib.contextmanager
def seeded_draws(seed: int | None) -> Iterator[None]:
    """Seed torch's generator, which draws records' own unknowns, with a secret seed unless one was chosen.

    What a model leaves in Pyro's parameter store, and the generator's state, are restored afterwards.
    """
    with isolated_pyro_session():
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        yield


def variational(point: nn.Parameter, separated: Separated, settings: Settings, seed: Any) -> Variational:
    """Return the optimiser of a guide.

    Args:
        point: The parameter of the likelihood, where the guide starts.
        separated: The model.
        settings: The fit's.
        seed: Of the points that are drawn.

    Returns:
        The optimiser before its first step.
    """
    start = point.detach().clone()
    rank = GUIDES[settings.guide].rank(start.numel())
    return Variational(
        point,
        Guide(start, scale=settings.initial_scale, rank=rank, floor=settings.floor),
        separated.log_prior,
        sample_rate=settings.sample_rate,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        seed=seed,
    )


def descend(
    separated: Separated,
    tensors: Tensors,
    settings: Settings,
    rng: np.random.Generator,
    *,
    leave_out: int | None = None,
    progress: Progress = quiet,
    watch: Callable[[Variational, Any], None] | None = None,
) -> tuple[Variational, list[float]]:
    """Fit a guide without noise, each record's gradient clipped; optionally without one record.

    The coins, the points and the draws of records' own unknowns are those of all records, and another record stands in
    the left-out record's place, whose gradient there is not counted; so two calls with equal generators differ by the
    left-out record alone.

    Args:
        separated: The model.
        tensors: The records.
        settings: The fit's.
        rng: Of the coins and the points.
        leave_out: The index of a record to leave out.
        progress: Called after each step.
        watch: Called before each step, with the gradient in place and the sampled records.

    Returns:
        The optimiser after its last step, and the evidence bound at every step.
    """
    if leave_out is not None:
        tensors = tuple(t.clone() for t in tensors)
        for t in tensors:
            t[leave_out] = t[leave_out - 1]
    size, elbo, point = len(tensors[0]), list[float](), nn.Parameter(start_of(separated))
    optimizer = variational(point, separated, settings, rng.integers(2**63))

    def loss(parameters: dict[str, Tensor], record: Tensors) -> Tensor:
        return -separated.log_likelihood(parameters["point"], record)

    for number in range(1, settings.steps + 1):
        sample = poisson_sample(size, settings.sample_rate, rng=rng)
        counted = torch.from_numpy(sample != leave_out)
        gradient, clipped = private_gradient(
            loss,
            {"point": point.detach()},
            tuple(t[sample] for t in tensors) if len(sample) else None,
            clip_norm=settings.clip_norm,
            noise_multiplier=0.0,
            divisor=1.0,
            rng=rng,
            bounds=settings.clip_norm * counted.double(),
        )
        point.grad = gradient["point"]
        if watch is not None:
            watch(optimizer, sample)
        optimizer.step()
        elbo.append(-float(clipped.losses[counted].nanmean()) * size + optimizer.public if counted.any() else math.nan)
        progress(number, settings.steps, "step")
    return optimizer, elbo


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

    def warning(self, guide: Guide) -> str:
        """Return what a reader of the intervals must know; an empty text if there is nothing."""
        # Fits like this one stop short of where they should by half of the standard deviation they state.
        unsettled = bool((self.bias.abs() > 0.5 * self.widened(guide).diagonal().sqrt()).any())
        warnings = [UNSETTLED] if unsettled else []
        if self.curvature_z_score < MIN_SIGNAL_TO_NOISE:
            warnings.append(LOST)
        elif bool((self.stretch > 1.5).any()) and not warnings:  # widened intervals are still too narrow
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
    start, first = optimizer.began
    many = Guide(start.double().repeat(REPEATS, 1), scale=first, rank=guide.rank, floor=guide.floor)
    again = Variational(
        nn.Parameter(many.location.detach().clone()),
        many,
        lambda z: -0.5 * (_times(z - location, curvature) * (z - location)).sum(),
        sample_rate=rate,
        steps=optimizer.steps,
        learning_rate=optimizer.learning_rate,
        seed=rng.integers(2**63),
    )
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
