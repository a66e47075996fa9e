"""A module seen as its loss on a whole record: how the training steps of other libraries become per-record losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tacita.training.records import check_model

Whole = Callable[[Any, Any], Tensor]  # (the module, a batch of one record) -> its loss


def as_loss(module: nn.Module, loss: Whole) -> nn.Module:
    """Return a module of the same parameters and buffers, and of the same names, that returns its loss on a batch.

    It and the module share them: what is put in the place of a parameter of one is in that of the other. So it is
    trained as any module that computes its own loss (`loss_fn=None`), and the module is trained with it.

    Args:
        module: The user's module.
        loss: What to compute with it, such as its training step.
    """
    check_model(module)
    seen = copy.copy(module)  # its own attributes, but the module's dicts of parameters, buffers and layers
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        setattr(seen, hooks, type(getattr(module, hooks))())  # they are the module's, which runs them
    seen.forward = _Redirected(module, loss)
    return seen


class _Redirected:
    """Takes a batch to the loss; a copy of the module takes its own copy of this."""

    def __init__(self, module: nn.Module, loss: Whole) -> None:
        self._module, self._loss = module, loss

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss; a batch of several parts comes as several arguments."""
        return self._loss(self._module, kwargs or (args if len(args) > 1 else args[0]))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Redirected:
        return _Redirected(copy.deepcopy(self._module, memo), self._loss)
