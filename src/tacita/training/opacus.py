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
        own = torch.cat([p.detach().double().flatten(1).square().sum(1) for p in parts]).cpu()
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

    Raises:
        PrivacyError: If the clip norm adapts to the records, or, at a step, if there is less noise than at the start.
    """
    if hasattr(optimizer, "unclipped_num_std"):
        raise PrivacyError(
            "AdaClipDPOptimizer also releases how many records were clipped, which their norms do not tell. Use a "
            "fixed clip norm."
        )
    accountant = BayesianAccountant(
        sample_rate=sample_rate,
        noise_multiplier=float(optimizer.noise_multiplier),
        composition="hoelder",
        steps=steps,
    )
    before, noise = optimizer.pre_step, float(optimizer.noise_multiplier)
    pieces: list[Any] = []  # of a batch that is taken in several

    def charged(*args: Any, **kwargs: Any) -> Any:
        if not optimizer.noise_multiplier >= noise:
            raise PrivacyError(
                f"This step has less noise than at the start: {optimizer.noise_multiplier:g} in the place of "
                f"{noise:g}, which the accountant counts on. Use no noise scheduler that lowers it."
            )
        pieces.append(batch_norms(optimizer))
        complete = before(*args, **kwargs)
        if complete:
            norms = np.concatenate(pieces)
            pieces.clear()
            accountant.step(norms if len(norms) else np.ones(1))  # an empty batch is charged the worst case
        return complete

    optimizer.pre_step = charged
    return accountant
