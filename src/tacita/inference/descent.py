"""A variational fit without noise, and what every variational fit shares."""

from __future__ import annotations

import contextlib
import math
import secrets
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita.inference.guides import GUIDES, Guide, Variational
from tacita.inference.results import Posterior, gaussian_draws
from tacita.inference.separation import start_of
from tacita.inference.settings import Progress, Settings
from tacita.inference.terms import Separated, Tensors
from tacita.posterior.pyro_model import isolated_pyro_session
from tacita.training.step import poisson_sample, private_gradient


@contextlib.contextmanager
def seeded_draws(seed: int | None) -> Iterator[None]:
    """Seed torch's generator, which draws records' own unknowns, with a secret seed unless one was chosen.

    What a model leaves in Pyro's parameter store, and the generator's state, are restored afterwards.
    """
    with isolated_pyro_session():
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        yield


def variational(point: nn.Parameter, separated: Separated, settings: Settings, start: Tensor, seed: Any) -> Variational:
    """Return the optimiser of a guide.

    Args:
        point: The parameter of the likelihood.
        separated: The model.
        settings: The fit's.
        start: Where the guide starts.
        seed: Of the points that are drawn.

    Returns:
        The optimiser before its first step.
    """
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
    progress: Progress = lambda step, steps: None,
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
        progress: Called with (step, steps) after each step.
        watch: Called before each step, with the gradient in place and the sampled records.

    Returns:
        The optimiser after its last step, and the evidence bound at every step.
    """
    if leave_out is not None:
        tensors = tuple(t.clone() for t in tensors)
        for t in tensors:
            t[leave_out] = t[leave_out - 1]
    size, start = len(tensors[0]), start_of(separated)
    point = nn.Parameter(start.clone())
    optimizer = variational(point, separated, settings, start, rng.integers(2**63))
    elbo = []

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
        progress(number, settings.steps)
    return optimizer, elbo


def gaussian_posterior(
    separated: Separated, guide: Guide, covariance: Tensor, samples: int, rng: np.random.Generator
) -> Posterior:
    """Return a Gaussian posterior with its first draws.

    Args:
        separated: The model.
        guide: The fitted guide, whose location is the mean.
        covariance: With the error of the fit.
        samples: How many draws are released with it.
        rng: Of the draws.

    Returns:
        The posterior.
    """
    location = guide.location.detach()
    return Posterior(separated, gaussian_draws(location, covariance, samples, rng), location, covariance)


def write_draws(folder: Path, posterior: Posterior) -> None:
    """Write the released draws: posterior.npz, one array for each site."""
    with zipfile.ZipFile(folder / "posterior.npz", "w") as archive:  # np.savez reserves the name "file"
        for name, values in posterior.sample().items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values.numpy(), allow_pickle=False)
