"""Several processes, one mechanism: coins and noise are drawn once, and the ledger is charged once."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tacita._check import PrivacyError
from tacita.training.gradients import Parameters


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
