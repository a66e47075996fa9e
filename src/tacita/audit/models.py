"""Small steps that several attacks take with a model: train it, evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_BATCH = 1024


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
