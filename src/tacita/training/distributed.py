"""Several processes, one mechanism: coins and noise are drawn once, and the ledger is charged once."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch import nn

from tacita._check import PrivacyError
from tacita.training.gradients import Parameters


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel or DataParallel: the private step adds up over processes itself.

    Args:
        model: As the user has it.

    Raises:
        PrivacyError: If the model's parameters are split over processes.
    """
    while isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    loaded = [
        sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor")
    ]  # importing them takes seconds
    kinds = [getattr(m, k, None) for m in loaded for k in ("FSDPModule", "FullyShardedDataParallel", "DTensor")]
    sharded = tuple(kind for kind in kinds if kind is not None)
    if any(isinstance(part, sharded) for part in (*model.modules(), *model.parameters())):
        raise PrivacyError(
            "The model is sharded (FSDP or DTensor): a record's gradient norm is that over all parameters, and here "
            "each process must hold all of them. Pass the model before fully_shard; torchrun still splits the batch."
        )
    return model


class Processes:
    """The processes of `torch.distributed`, or this one alone."""

    def __init__(self) -> None:
        self.joined = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if self.joined else 1
        self.rank = dist.get_rank() if self.joined else 0
        self.leads = self.rank == 0

    def agree(self, problem: str | None, value: Any = None) -> Any:
        """Share what the first process decided; its problem is raised in all of them."""
        if self.size > 1:
            box = [(problem, value)]
            dist.broadcast_object_list(box, src=0)
            problem, value = box[0]
        if problem is not None:
            raise PrivacyError(problem)
        return value

    def total(self, sums: Parameters) -> Parameters:
        """Add up the clipped sums; every process gets the same result, bit for bit."""
        if self.size > 1:
            for name in sums:
                dist.reduce(sums[name], dst=0)
        return sums

    def spread(self, tensors: Parameters) -> Parameters:
        """Give everyone the first process's tensors."""
        if self.size > 1:
            for name in tensors:
                dist.broadcast(tensors[name], src=0)
        return tensors
