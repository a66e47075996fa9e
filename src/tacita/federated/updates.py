"""Arithmetic of updates: norms, clipping, noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tacita.accounting import NORM_LEVELS, level_of
from tacita.mechanisms.rounded import Grid
from tacita.training.gradients import Parameters, clip_factors
from tacita.training.whole import shrunk

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


def in_steps(update: Parameters, bound: float, grid: Grid) -> Parameters:
    """Return an update rounded towards zero to whole steps of a grid, int64, whose norm is within a bound.

    Args:
        update: Clipped to the bound in floating point.
        bound: Checked in whole numbers.
        grid: Its step is the unit.
    """
    whole = [torch.div(value.double(), grid.step).trunc_().reshape(1, -1) for value in update.values()]
    shrunk(whole, torch.tensor([bound], dtype=torch.float64), grid)
    return {name: z.view(value.shape).long() for (name, value), z in zip(update.items(), whole, strict=True)}


def norm_counts(norms: Floats) -> Counts:
    """Return how many norms, as fractions of the clip norm, fall on each norm level."""
    return np.bincount(level_of(norms), minlength=len(NORM_LEVELS))
