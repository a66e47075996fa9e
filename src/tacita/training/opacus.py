"""For users of Opacus: read the per-record gradients it has anyway into our accountant.

Opacus keeps training; this follows the records that each batch holds. A batch is a fresh sample, so nobody is
followed through the run, and the accountant composes by Hölder's inequality (Triastcyn & Faltings 2020,
Theorem 1): valid, but loose. `PrivateTraining` follows the same records throughout, which is far tighter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tacita._check import PrivacyError
from tacita.accounting import BayesianAccountant


def batch_norms(optimizer: Any) -> Any:
    """Return the clipped norms of the batch that an Opacus optimiser is about to step on, over the clip norm.

    Call it after `loss.backward()` and before `optimizer.step()`. Records that are not finite count as zero here,
    although Opacus lets them spoil the model.
    """
    limit = float(optimizer.max_grad_norm)
    squares: torch.Tensor | None = None
    for parameter in optimizer.params:
        sample = getattr(parameter, "grad_sample", None)
        if sample is None:
            raise PrivacyError(
                "There is no grad_sample: call this after loss.backward() and before optimizer.step(), with hooks."
            )
        parts = sample if isinstance(sample, list) else [sample]
        own = torch.cat([p.detach().double().flatten(1).square().sum(1) for p in parts])
        squares = own if squares is None else squares + own
    if squares is None:
        raise PrivacyError("The optimizer has no parameters.")
    norms = torch.nan_to_num(squares.sqrt() / limit, nan=0.0, posinf=0.0)
    return np.minimum(norms.numpy(), 1.0)


def follow(optimizer: Any, *, sample_rate: float, steps: int) -> BayesianAccountant:
    """Return an accountant that is charged at every step of an Opacus optimiser from now on.

    Args:
        optimizer: A `DPOptimizer`.
        sample_rate: The rate of Opacus's Poisson sampling.
        steps: The planned number of steps; going past it raises.
    """
    accountant = BayesianAccountant(
        sample_rate=sample_rate,
        noise_multiplier=float(optimizer.noise_multiplier),
        composition="hoelder",
        steps=steps,
    )
    before = optimizer.pre_step

    def charged(*args: Any, **kwargs: Any) -> Any:
        norms = batch_norms(optimizer)
        accountant.step(norms if len(norms) else np.ones(1))  # an empty batch is charged the worst case
        return before(*args, **kwargs)

    optimizer.pre_step = charged
    return accountant
