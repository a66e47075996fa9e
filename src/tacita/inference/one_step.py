"""The papers' accounting of variational inference, followed along a fit. Unsound, and for comparison only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from tacita.guarantee import Guarantee
from tacita.inference.fit import Settings
from tacita.inference.guides import Variational
from tacita.inference.terms import Separated
from tacita.mechanisms.diagonal import DivergedError, Gaussians, subsampled_gaussian_costs
from tacita.papers import ONE_STEP_ORDERS, one_step_figure

if TYPE_CHECKING:
    from tacita._check import Floats


class OneStep:
    """Follow a fit as the papers account for it: at each step, the guide after it with and without each record."""

    def __init__(self, separated: Separated, tensors: tuple[Tensor, ...], chosen: Settings, different: Any) -> None:
        self.chosen, self.indices = chosen, different
        self.records = tuple(t[different] for t in tensors)
        self.gradients = vmap(grad(separated.log_likelihood), in_dims=(None, 0), randomness="different")
        self.costs: list[Floats] = []
        self.infinite: Floats = np.full((len(ONE_STEP_ORDERS), len(different)), np.inf)

    def __call__(self, optimizer: Variational, sample: Any) -> None:
        """Note what the coming step costs each record, by itself."""
        try:
            pair = [self.after(optimizer, g) for g in self.alternatives(optimizer, sample)]
            self.costs.append(subsampled_gaussian_costs(ONE_STEP_ORDERS, *pair, sample_rate=self.chosen.sample_rate))
        except DivergedError:
            self.costs.append(self.infinite)

    def figure(self, rows: Any, delta: float) -> Guarantee:
        """Return the papers' figure for pairs of these rows of the records."""
        untaken = [self.infinite] * (self.chosen.steps - len(self.costs))  # by a fit that diverged before
        costs = [step[:, rows] for step in (*self.costs, *untaken)]
        return one_step_figure(costs, delta=delta, sample_rate=self.chosen.sample_rate)

    def alternatives(self, optimizer: Variational, sample: Any) -> tuple[Tensor, Tensor]:
        """Return the sum of the sampled records' clipped gradients with each record among them, and without it."""
        point, total = optimizer.point.detach(), optimizer.point.grad
        if total is None:
            raise ValueError("There is no gradient to step along.")
        with torch.random.fork_rng(devices=[]):  # the fit's own draws stay what they are
            own = -self.gradients(point, self.records).double()
        norms = own.norm(dim=1, keepdim=True)
        factors = (self.chosen.clip_norm / norms.clamp_min(1e-300)).clamp_max(1.0)
        own = torch.where(norms.isfinite(), own * factors, 0.0)
        inside = torch.from_numpy(np.isin(self.indices, sample))[:, None]
        without = total.double() - torch.where(inside, own, 0.0)
        return without + own, without

    @staticmethod
    @torch.no_grad()
    def after(optimizer: Variational, sums: Tensor) -> Gaussians:
        """Return the guide that one step of Adam would give, for each sum of gradients."""
        guide, noise = optimizer.guide, optimizer._noise.double()
        total = optimizer.point.grad
        if total is None:
            raise ValueError("There is no gradient to step along.")
        joint = optimizer._gradient().double() + (sums - total.double()) / optimizer.sample_rate
        free = (guide.log_scale.exp() > guide.floor).double()
        moved = {}
        for name, gradient in (
            ("location", joint),
            ("log_scale", free * (joint * guide.scale.double() * noise - 1.0)),
        ):
            parameter = getattr(guide, name)
            state, group = optimizer.adam.state.get(parameter, {}), optimizer.adam.param_groups[0]
            taken, (first, second) = float(state.get("step", 0)) + 1.0, group["betas"]
            mean = first * state.get("exp_avg", torch.zeros(())).double() + (1 - first) * gradient
            square = second * state.get("exp_avg_sq", torch.zeros(())).double() + (1 - second) * gradient**2
            size = (square / (1 - second**taken)).sqrt() + group["eps"]
            moved[name] = parameter.double() - optimizer.rate * mean / (1 - first**taken) / size
        return Gaussians(moved["location"].numpy(), moved["log_scale"].exp().clamp_min(guide.floor).numpy())
