"""Variational inference with clipped gradients of the guide itself (DPVI, Jälkö et al. 2016), from public parts.

A record's loss is -log p(x_i|z) + (log q(z) - log p(z))/N at z = m + s·η, with one public standard normal η a step, and
its gradient with respect to m and log s together is clipped, summed and noised: twice as many numbers as the unknowns.
`tacita.inference` clips the gradient at z instead and computes the guide's from the noisy sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from experiments.variational_inference.samples import papers_figures
from tacita.accounting import epsilon_from_costs
from tacita.mechanisms import sampled_gaussian_cost
from tacita.training import PrivateTraining, record_norms

PANEL = 200  # records a step that the papers' figure is estimated from
MOMENTS = tuple(range(1, 65))  # the orders of the moments accountant


class GuideLoss(nn.Module):
    """A record's share of minus the evidence bound of a logistic regression with a mean-field Gaussian guide.

    Args:
        unknowns: Number of features, and one for the offset.
        prior: Standard deviation of every coefficient.
        size: The declared number of records, N.
        scale: The guide's first standard deviation.
    """

    noise: Tensor

    def __init__(self, unknowns: int, *, prior: float, size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.location = nn.Parameter(torch.zeros(unknowns))
        self.log_scale = nn.Parameter(torch.full((unknowns,), math.log(scale)))
        self.prior, self.size = prior, size
        self.register_buffer("noise", torch.zeros(unknowns))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch of one record."""
        point = self.location + self.log_scale.exp() * self.noise
        evidence = nn.functional.binary_cross_entropy_with_logits(x @ point[:-1] + point[-1], y)
        return evidence + (0.5 * (point / self.prior).square().sum() - self.log_scale.sum()) / self.size


@dataclass(frozen=True)
class Fitted:
    """A fit.

    Attributes:
        location: Means of the guide, averaged over the second half of the steps.
        scale: Standard deviations, likewise.
        worst: The worst case of all steps, by exact composition.
        moments: The same by the moments accountant, as published.
        papers: The authors' Bayesian figure of the run's own contributions, by delta: no bound.
    """

    location: Tensor
    scale: Tensor
    worst: float
    moments: float
    papers: Mapping[str, float] = field(default_factory=dict)


def fit(
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float,
    delta: float,
    prior: float,
    steps: int,
    sample_rate: float,
    clip_norm: float,
    learning_rate: float,
    seed: int,
    deltas: tuple[float, ...] = (),
) -> Fitted:
    """Fit a logistic regression.

    Args:
        x: Features.
        y: Zeros and ones.
        epsilon: The worst case to stay within.
        delta: Its delta.
        prior: Standard deviation of every coefficient.
        steps: How many.
        sample_rate: A record's chance to enter a step.
        clip_norm: Of a record's gradient with respect to means and log scales.
        learning_rate: Adam's, falling to a tenth along a half cosine.
        seed: Of everything.
        deltas: Where the papers' figures are taken; empty follows no contributions.

    Returns:
        The averaged guide and its accounts.
    """
    size, rng, panel = len(x), np.random.default_rng(seed), np.random.default_rng([seed, 1])
    model = GuideLoss(x.shape[1] + 1, prior=prior, size=size)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.55 + 0.45 * math.cos(math.pi * t / steps))
    private = PrivateTraining(
        model,
        None,
        (x, y),
        optimizer=optimizer,
        scheduler=falling,
        steps=steps,
        batch_size=sample_rate * size,
        nominal_size=size,
        clip_norm=clip_norm,
        target=(epsilon, delta),
        delta=delta,
        panel=0,
        seed=seed,
    )
    total, norms = torch.zeros(2, x.shape[1] + 1), []
    for number in range(steps):
        model.noise.copy_(torch.from_numpy(rng.standard_normal(x.shape[1] + 1)))
        if deltas:
            some = torch.from_numpy(panel.choice(size, min(PANEL, size), replace=False))
            norms.append(contributions(model, (x[some], y[some])) / clip_norm)
        private.advance()
        if number >= steps // 2:
            total += torch.stack([model.location.detach(), model.log_scale.detach()])
    mean, plan = total / (steps - steps // 2), private.plan
    rate, sigma = plan.sample_rate, plan.noise_multiplier
    costs = [steps * float(sampled_gaussian_cost(k, sample_rate=rate, ratio=1.0 / sigma)) for k in MOMENTS]
    moments = float(epsilon_from_costs(np.array(costs), MOMENTS, delta=delta, notion="strong"))
    papers = {}
    if deltas:
        clipped = np.minimum(np.stack(norms), 1.0)
        papers = papers_figures(clipped, sample_rate=rate, noise_multiplier=sigma, deltas=deltas)
    return Fitted(mean[0], mean[1].exp(), private.label().worst.epsilon, moments, papers)


def contributions(model: GuideLoss, records: tuple[Tensor, Tensor]) -> np.ndarray:
    """Return the norms of records' gradients before clipping."""

    def loss(parameters: dict[str, Tensor], record: tuple[Tensor, ...]) -> Tensor:
        return torch.func.functional_call(model, parameters, tuple(t[None] for t in record))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return record_norms(loss, parameters, records).numpy()
