"""What adapters to the loops of other libraries share: their training steps as per-record losses, and their epochs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tacita.training.records import check_model

Whole = Callable[[Any, Any], Tensor]  # (the module, a batch of one record) -> its loss


def as_loss(module: nn.Module, loss: Whole, *, listed: bool = False) -> nn.Module:
    """Return a module of the same parameters and buffers, and of the same names, that returns its loss on a batch.

    It and the module share them: what is put in the place of a parameter of one is in that of the other. So it is
    trained as any module that computes its own loss (`loss_fn=None`), and the module is trained with it.

    Args:
        module: The user's module.
        loss: What to compute with it, such as its training step.
        listed: Whether a batch is a tuple, of one part or more.
    """
    check_model(module)
    seen = copy.copy(module)  # its own attributes, but the module's dicts of parameters, buffers and layers
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        setattr(seen, hooks, type(getattr(module, hooks))())  # they are the module's, which runs them
    seen.forward = _Redirected(module, loss, listed)
    return seen


def steps_in_epoch(sample_rate: float) -> int:
    """Return how many steps take as many records as there are nominally: what other libraries call an epoch."""
    return max(1, math.ceil(1.0 / sample_rate - 1e-9))


class _Redirected:
    """Takes a batch to the loss; a copy of the module takes its own copy of this."""

    def __init__(self, module: nn.Module, loss: Whole, listed: bool) -> None:
        self._module, self._loss, self._listed = module, loss, listed

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss; the parts of a batch come as arguments."""
        return self._loss(self._module, kwargs or (args if self._listed else args[0]))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Redirected:
        return _Redirected(copy.deepcopy(self._module, memo), self._loss, self._listed)
