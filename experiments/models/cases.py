"""What a row of the table is made of: a small model, a few records, and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

RECORDS = 4


@dataclass(frozen=True)
class Case:
    """A model with records.

    Attributes:
        model: In training mode, without dropout, unless that is what is tried.
        records: A dict if the model computes the loss itself, its main input first; or a tuple (inputs …, target).
        loss_fn: As for `PrivateTraining`; None if the model computes the loss itself.
    """

    model: nn.Module
    records: Any
    loss_fn: Callable[[Any, Any], Tensor] | None = None

    def loss(self, model: nn.Module, records: Any) -> Tensor:
        """Return the mean loss of a batch, as ordinary training would compute it; the main input goes in by place."""
        if isinstance(records, dict):
            (_, first), *others = records.items()
            value: Tensor = model(first, **dict(others)).loss
            return value
        if self.loss_fn is None:
            raise TypeError("A tuple of records needs a loss.")
        *inputs, target = records
        return self.loss_fn(model(*inputs), target)

    def record(self, number: int) -> Any:
        """Return one record as a batch of one."""
        return tree_map(lambda t: t[number : number + 1], self.records)

    def moved(self, model: nn.Module | None = None) -> dict[str, nn.Parameter]:
        """Return the parameters to differentiate by, of a copy of the model if one is given."""
        return {name: p for name, p in (model or self.model).named_parameters() if p.requires_grad}


Build = Callable[[], Case]


def settled(model: nn.Module) -> nn.Module:
    """Return a model in training mode, with parameters that training has moved a little.

    Fresh models have many zeros, which would hide errors: biases, or the matrices of an adapter that starts as nothing.
    """
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model.train()
