"""Arithmetic of updates: norms, clipping, noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tacita.accounting import NORM_LEVELS, level_of
from tacita.training.gradients import Parameters, clip_factors

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


def norm_of(update: Parameters) -> float:
    """Return the norm of an update, in float64."""
    return float(torch.stack([value.double().square().sum() for value in update.values()]).sum().sqrt())


def clipped(update: Parameters, bound: float) -> Parameters:
    """Return an update scaled down to a bound; exactly zero if its norm is not finite or huge."""
    norm = norm_of(update)
    factor = float(clip_factors(torch.tensor(norm, dtype=torch.float64), torch.tensor(bound, dtype=torch.float64)))
    if factor == 0.0:
        return {name: torch.zeros_like(value) for name, value in update.items()}
    if factor == 1.0:
        return update
    return {name: (value.double() * factor).to(value.dtype) for name, value in update.items()}


def norm_counts(norms: Floats) -> Counts:
    """Return how many norms, as fractions of the clip norm, fall on each norm level."""
    return np.bincount(level_of(norms), minlength=len(NORM_LEVELS))
