"""Variational inference with clipped and noised gradients."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

from tacita.inference.descent import gaussian_posterior, variational
from tacita.inference.guides import GUIDES, Variational
from tacita.inference.methods._private_steps import PrivateSteps
from tacita.inference.results import Posterior
from tacita.inference.settings import Settings
from tacita.inference.terms import Separated
from tacita.inference.widening import estimate_errors
from tacita.training.plan import Plan


class Noisy(PrivateSteps):
    """Fit a guide by private steps; its intervals include the noise of the fit."""

    name = "noisy"
    text = "variational inference, each record's gradient clipped and noised"
    note = "Intervals include the noise of the private fit."

    def optimizer(
        self, point: nn.Parameter, separated: Separated, settings: Settings, start: Tensor, seed: int | None
    ) -> Variational:
        """Return the optimiser of a guide."""
        return variational(point, separated, settings, start, seed)

    def posterior(
        self, optimizer: Variational, plan: Plan, separated: Separated, settings: Settings, rng: np.random.Generator
    ) -> tuple[Posterior, tuple[str, ...], str]:
        """Return the fitted Gaussian, widened by the error of the fit."""
        fitted = optimizer.fitted()
        errors = estimate_errors(optimizer, plan.noise_multiplier * plan.clip_norm / plan.sample_rate)
        covariance = errors.widened(fitted)
        widest = float((covariance.diagonal() / fitted.covariance().diagonal()).sqrt().max())
        posterior = gaussian_posterior(separated, fitted, covariance, settings.samples, rng)
        wider = f"It widens them by at most {math.ceil(100 * widest - 100)}%."
        return posterior, (f"{self.note} {wider}", GUIDES[settings.guide].note), errors.warning(fitted)
