"""Variational inference by sampling instead of noise (thesis 5.5.3), with scales held fixed, and three accounts of it.

The guide is N(θ, s²I). Training adds no noise: at each step a point z = θ + s·η is drawn, and θ moves along the mean of
the sampled records' clipped gradients at z. Only r points of the last guide leave. η and the coins are public, drawn
before the data, so the points' own randomness is the only secret.

- The papers' figure charges every step as if θ before it were the same with and without the record: a sampled Gaussian
  of ratio (step size × contribution)/s, for the steps and once more for every released point. No bound.
- Exact for these records: every record is left out once, from the same η and coins, and δ is averaged over records.
- The worst case of any record: a clipped gradient of a logistic regression is that of a convex function whose curvature
  is at most the unclipped one's, |x|²/4 (Song et al. 2021). With features within public bounds a step of at most two
  over the curvature moves no two θ apart (Hardt et al. 2016; Wu et al. 2017 for privacy), so a record moves the last θ
  by at most its participations times the step size times the clip norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tacita.accounting import calibrate_gaussian, epsilon_from_costs
from tacita.mechanisms import gaussian_delta, sampled_gaussian_cost
from tacita.papers import CODED_ORDERS, coded_costs, coded_epsilons

ORDERS = (*CODED_ORDERS, 64, 128, 256)  # of the papers' figures: their rows ask for about 100 and 300
PANEL = 100  # records a step that the papers' figure is estimated from
CHUNK = 256  # replays at once


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Settings, and the public randomness of a training.

    Attributes:
        steps: How many.
        sample_rate: q.
        clip_norm: C, of a record's gradient at the drawn point.
        prior: Standard deviation of every coefficient.
        square: A public bound on the squared length of a record's features, with the offset's 1.
        size: How many records.
        dimension: Of θ.
        seed: Of η and the coins.
        draws: r.
        scale: s, the guide's standard deviation; see `within`.
    """

    steps: int
    sample_rate: float
    clip_norm: float
    prior: float
    square: float
    size: int
    dimension: int
    seed: int
    draws: int = 10
    scale: float = 1.0

    @cached_property
    def public(self) -> list[tuple[Tensor, Tensor]]:
        """η and the batch of each step."""
        rng, found = np.random.default_rng(self.seed), []
        for _ in range(self.steps):
            noise = torch.from_numpy(rng.standard_normal(self.dimension)).float()
            found.append((noise, torch.from_numpy(np.flatnonzero(rng.random(self.size) < self.sample_rate))))
        return found

    @cached_property
    def step_size(self) -> float:
        """The longest step that moves no two θ apart, whatever the records, less a tenth."""
        largest = max(len(batch) for _, batch in self.public)
        curvature = self.square / 4.0 * largest / (self.sample_rate * self.size) + 1.0 / (self.prior**2 * self.size)
        return 0.9 * 2.0 / curvature

    @property
    def unit(self) -> float:
        """By how much a contribution of one clip norm moves θ."""
        return self.step_size * self.clip_norm / (self.sample_rate * self.size)

    def contributions(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the clipped factors of the features: shape (guides, records)."""
        most = self.clip_norm / x.norm(dim=1)
        return torch.sigmoid(theta @ x.T).sub_(y).clamp_(-most, most)

    def train(self, x: Tensor, y: Tensor, left_out: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the last θ, one for each record that is left out, or the one of all records.

        Args:
            x: Features, the offset's 1 among them.
            y: Zeros and ones.
            left_out: Indices of records.

        Returns:
            The θ, shape (guides, dimension), and of the training on all records the point of every step.
        """
        theta = torch.zeros(1 if left_out is None else len(left_out), self.dimension)
        points: list[Tensor] = []
        where = torch.full((self.size,), -1)
        for noise, batch in self.public:
            point = theta + self.scale * noise
            factors = self.contributions(point, x[batch], y[batch])
            if left_out is None:
                points.append(point[0])
            else:
                where[batch] = torch.arange(len(batch))
                among = where[left_out]
                factors[among >= 0, among[among >= 0]] = 0.0
                where[batch] = -1
            total = factors @ x[batch] / self.sample_rate + point / self.prior**2
            theta = theta - self.step_size / self.size * total
        return theta, points

    def moved(self, x: Tensor, y: Tensor) -> np.ndarray:
        """Return how far the last θ is from the one without each record, every record left out once."""
        full, _ = self.train(x, y)
        parts = [(self.train(x, y, rows)[0] - full).norm(dim=1) for rows in torch.arange(self.size).split(CHUNK)]
        return torch.cat(parts).double().numpy()

    def papers(self, x: Tensor, y: Tensor, deltas: tuple[float, ...]) -> dict[str, float]:
        """Return the papers' figures, which are no bounds: their Bayesian one at each delta, and moments at C."""
        _, points = self.train(x, y)
        rng, norms = np.random.default_rng([self.seed, 1]), []
        for point in points:
            some = torch.from_numpy(rng.choice(self.size, min(PANEL, self.size), replace=False))
            factors = self.contributions(point[None], x[some], y[some])[0].abs().double()
            norms.append((factors * x[some].double().norm(dim=1) / self.clip_norm).clamp(max=1.0).numpy())
        norms += norms[-1:] * self.draws
        return papers_figures(
            np.stack(norms), sample_rate=self.sample_rate, noise_multiplier=self.scale / self.unit, deltas=deltas
        )

    def within(self, epsilon: float, delta: float) -> Sampled:
        """Return the same with the scale at which the released points stay within a worst case, for any records."""
        batches = [batch for _, batch in self.public]
        most = int(torch.bincount(torch.cat(batches), minlength=self.size).max())
        noise = calibrate_gaussian(epsilon=epsilon, delta=delta).noise_multiplier
        return replace(self, scale=float(np.sqrt(self.draws)) * most * self.unit * noise)


def papers_figures(
    norms: np.ndarray, *, sample_rate: float, noise_multiplier: float, deltas: tuple[float, ...]
) -> dict[str, float]:
    """Return the figures of the authors' accountant: `bdp` at each delta, and `dp`, moments at the clip norm.

    Args:
        norms: Contributions of each step's sample over the clip norm, shape (steps, records).
        sample_rate: q.
        noise_multiplier: σ.
        deltas: δ; the first is that of `dp`.
    """
    q, sigma, steps = sample_rate, noise_multiplier, len(norms)
    each = [coded_costs(row, sample_rate=q, stddev=sigma, power=steps, orders=ORDERS) for row in norms]
    found = {f"bdp {delta:g}": float(coded_epsilons(each, delta=delta, orders=ORDERS)[-1]) for delta in deltas}
    costs = [steps * float(sampled_gaussian_cost(k, sample_rate=q, ratio=1.0 / sigma)) for k in ORDERS]
    moments = float(epsilon_from_costs(np.array(costs), ORDERS, delta=deltas[0], notion="strong"))
    return {**found, "dp": moments}


def mean_epsilon(moved: np.ndarray, *, scale: float, draws: int, delta: float) -> float:
    """Return the least ε at which δ(ε), averaged over these records, is at most delta: exact for Gaussians.

    Args:
        moved: How far each record moves θ.
        scale: s.
        draws: r.
        delta: δ.
    """
    distance = np.sqrt(draws) * moved / scale
    low, high = 0.0, 1.0
    while gaussian_delta(high, distance=distance).mean() > delta:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if gaussian_delta(middle, distance=distance).mean() > delta else (low, middle)
    return high
