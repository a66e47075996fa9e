"""What several attacks do with a model: train it, evaluate it, differentiate it record by record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from tacita.training.gradients import Loss, length

_BATCH = 1024
_NUMBERS = 5_000_000  # in the gradients computed at once


def minimise(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], steps: int) -> Iterator[int]:
    """Take steps on a loss without privacy, and yield how many were taken.

    Args:
        optimizer: Holds the parameters.
        loss: Draws a batch and returns its loss.
        steps: How many steps to take.
    """
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
        yield step


@contextmanager
def evaluation_mode(model: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Put a module in evaluation mode, and every part of it back in its own mode afterwards."""
    parts = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part in parts:
            part.training = True


def outputs(model: nn.Module, inputs: Tensor, *, batch_size: int = _BATCH) -> Tensor:
    """Return a model's outputs in evaluation mode, computed in batches and without gradients."""
    with evaluation_mode(model), torch.no_grad():
        return torch.cat([model(part) for part in torch.split(inputs, batch_size)])


def record_gradients(loss: Loss, parameters: Mapping[str, Tensor], records: Any) -> Iterator[Tensor]:
    """Yield the gradients of some records at a time, a row of float64 for each, by plain differentiation.

    Args:
        loss: Of the parameters and one record.
        parameters: Where to differentiate.
        records: Tensors, or trees of them, with a row for each record.
    """
    differentiate = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    fixed = {name: p.detach() for name, p in parameters.items()}
    chunk = max(1, _NUMBERS // sum(p.numel() for p in fixed.values()))
    for rows in torch.split(torch.arange(length(records)), chunk):
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():  # as in training: no fused per-record form
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = differentiate(fixed, tree_map(lambda t, rows=rows: t[rows], records))
        yield torch.cat([g.double().flatten(1) for g in found.values()], 1)
