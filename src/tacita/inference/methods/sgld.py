"""Langevin dynamics whose noise is the noise of the private steps."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from tacita.inference.guides import Langevin
from tacita.inference.methods._private_steps import PrivateSteps
from tacita.inference.results import Posterior
from tacita.inference.settings import Settings
from tacita.inference.terms import Separated
from tacita.training.plan import Plan


class Sgld(PrivateSteps):
    """Keep points of one chain of private steps as draws."""

    name = "sgld"
    text = "Langevin dynamics, whose own noise provides the privacy"
    note = "Draws from one chain that has not reached its stationary distribution: intervals are not calibrated."
    fits_guide = False
    objective = "log joint density"

    def optimizer(
        self, point: nn.Parameter, separated: Separated, settings: Settings, start: Tensor, seed: int | None
    ) -> Langevin:
        """Return the chain."""
        rate, steps, keep = settings.sample_rate, settings.steps, settings.samples
        return Langevin(point, separated.log_prior, sample_rate=rate, steps=steps, keep=keep)

    def posterior(
        self, optimizer: Langevin, plan: Plan, separated: Separated, settings: Settings, rng: np.random.Generator
    ) -> tuple[Posterior, tuple[str, ...], str]:
        """Return the points that were kept; the last one if there are none."""
        kept = optimizer.kept if len(optimizer.kept) else optimizer.point.detach()[None].clone()
        return Posterior(separated, kept), (self.note,), ""
