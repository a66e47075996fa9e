"""Several processes, one mechanism: coins and noise are drawn once, and the ledger is charged once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn

from tacita._check import PrivacyError
from tacita.training.gradients import Parameters

T = TypeVar("T")


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
    """The processes of `torch.distributed`, or this one alone.

    A process that is gone ends the others' waiting: at once where its connections break, as after kill -9, else after
    the `timeout` given to `torch.distributed.init_process_group` (gloo: 30 minutes unless set).
    """

    def __init__(self) -> None:
        self.joined = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if self.joined else 1
        self.rank = dist.get_rank() if self.joined else 0
        self.leads = self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise in every process what the block raises in one of them: nobody waits for one that has given up."""
        problem = None
        try:
            yield
        except Exception as error:
            if self.size == 1:
                raise
            problem = error
        kind = type(problem).__name__
        shared = None if problem is None else (isinstance(problem, PrivacyError), kind, str(problem))
        everybody = self.gathered(shared)
        if problem is not None:
            raise problem
        for rank, (broken, kind, text) in ((r, found) for r, found in enumerate(everybody) if found is not None):
            raise PrivacyError(text) if broken else RuntimeError(f"Process {rank} of this run failed. {kind}: {text}")

    def agree(self, value: T) -> T:
        """Return the first process's value."""
        box = [value]
        if self.size > 1:
            with _answered():
                dist.broadcast_object_list(box, src=0)
        return box[0]

    def share(self, items: Any) -> Any:
        """Return this process's share of an array: every so many of its items."""
        return items[self.rank :: self.size]

    def gathered(self, value: T) -> list[T]:
        """Return every process's value, in all of them."""
        box = [value] * self.size
        if self.size > 1:
            with _answered():
                dist.all_gather_object(box, value)
        return box

    def total(self, sums: Parameters) -> Parameters:
        """Add up the clipped sums in the first process."""
        if self.size > 1:
            with _answered():
                for name in sums:
                    dist.reduce(sums[name], dst=0)
        return sums

    def spread(self, tensors: Parameters) -> Parameters:
        """Give everyone the first process's tensors, bit for bit."""
        if self.size > 1:
            with _answered():
                for name in tensors:
                    dist.broadcast(tensors[name], src=0)
        return tensors


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            "Another process of this run is gone, or did not answer within the timeout of init_process_group. Steps "
            "that were charged stay charged. Resume the run from its run directory, with any number of processes."
        ) from error
