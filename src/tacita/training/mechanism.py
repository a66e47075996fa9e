"""What a private step works on: a model, its per-record loss, the records and an optimiser."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita.training.chunks import Way
from tacita.training.distributed import Processes, unwrapped
from tacita.training.gradients import Clipped, clipped_sum, fault_on_zeros, record_norms
from tacita.training.persons import Persons, parted
from tacita.training.plan import Plan
from tacita.training.records import Records, check_model, record_loss, trainable, try_one
from tacita.training.settings import Whose
from tacita.training.step import noisy_mean, poisson_sample
from tacita.training.whole import Blocks, steady_blocks, whole_mean, whole_sum

_SLICE = 4096  # records measured at once


class Mechanism:
    """Clip, sum, add noise, move the parameters. It does not account: see `PrivateTraining`.

    Args:
        model: Any module of per-record layers.
        loss_fn: As in PyTorch; None if the model returns the loss itself.
        dataset: The records.
        optimizer: Of the model's parameters.
        holdout: Records that are not trained on.
        whose: Whose each record is.
        scheduler: A learning-rate scheduler.
        companions: Further things to checkpoint, by name.
        chunk: Records differentiated at once.

    Attributes:
        drawn: Which records, or persons, the last step drew; sensitive.
        plain: The records trained on, and those held out if there are any.
        parts: The same, by person if ids were given.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        dataset: Any,
        *,
        optimizer: Any,
        holdout: Any = None,
        whose: Whose | None = None,
        scheduler: Any = None,
        companions: Mapping[str, Any] | None = None,
        chunk: int | None = None,
    ) -> None:
        model = unwrapped(model)
        self.model, self.loss_fn, self.optimizer, self.scheduler = model, loss_fn, optimizer, scheduler
        self.companions = dict(companions or {})
        self.processes, self.drawn = Processes(), np.empty(0, dtype=np.int64)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        reals = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        given = {"training": dataset, **({} if holdout is None else {"held-out": holdout})}
        self.plain = {name: Records.of(data, device, reals) for name, data in given.items()}
        self.whose = whose or Whose()
        self.parts = parted(self.plain, self.whose)
        self.chunk = None if chunk is None else _check.count("chunk", chunk)
        check_model(model)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS evaluates the loss several times a step, which is not private. Use another optimiser."
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ValueError(
                "SparseAdam moves only the rows that were looked up, which tells them. Use Adam: noise is on every row."
            )
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau looks at the loss, which is not private. Use another scheduler.")
        self.loss = record_loss(model, loss_fn)
        self.parameters = trainable(model, optimizer)
        for records in self.plain.values():
            try_one(model, self.loss, self.detached(), records)
        form = self.plain["training"].marked(np.arange(min(1, len(self.plain["training"]))))
        self._zeros = form if form is None or fault_on_zeros(self.loss, self.detached(), form) is None else None
        everything = (*model.named_parameters(), *model.named_buffers())
        self.processes.spread({name: tensor.detach() for name, tensor in everything})  # all start from the first one's
        self._constants = _copies(_buffers(model))
        self._blocks: Blocks | None = None  # how records are computed where sums are exact

    @property
    def records(self) -> Records | Persons:
        """What is drawn: the records trained on, or their persons."""
        return self.parts["training"]

    @property
    def by_person(self) -> bool:
        """Whether units are persons, with several records each."""
        return isinstance(self.records, Persons)

    @property
    def accelerator(self) -> str:
        """The kind of device that the noise is drawn on; empty for a CPU."""
        kinds = {p.device.type for p in self.parameters.values()} - {"cpu"}
        return ", ".join(sorted(kinds))

    def detached(self) -> dict[str, Tensor]:
        """Return the current parameters, which are released."""
        return {name: p.detach() for name, p in self.parameters.items()}

    def norms(self, part: str, places: Any, *, rng: np.random.Generator, summed: bool = False) -> Any:
        """Return gradient norms at the current parameters, before clipping; of a person a bound from all records.

        Args:
            part: `training` or `held-out`.
            places: Which of its records, or of its persons.
            rng: Where the seed of what the loss draws comes from.
            summed: Whether a person contributes the sum over all of their records, and not the mean.
        """
        parameters, units = self.detached(), self.parts[part]
        records = units.records if isinstance(units, Persons) else units

        def norms(rows: Any) -> Any:
            return np.concatenate(
                [
                    record_norms(self.loss, parameters, records.marked(s, rng=rng), chunk=self.chunk, rng=rng).numpy()
                    for s in np.array_split(rows, max(1, len(rows) // _SLICE))
                ]
            )

        if isinstance(units, Persons):
            return units.largest(places, norms, summed=summed)
        return norms(places)

    def try_again(self, taken: int) -> None:
        """Run a record of zeros again after 1, 2, 4, … steps, and warn if it fails now, which no record decides."""
        if self._zeros is None or taken == 0 or taken & (taken - 1):
            return
        error = fault_on_zeros(self.loss, self.detached(), self._zeros)
        if error is not None:
            warnings.warn(
                f"The loss ran on a record of zeros before the first step, and after step {taken} it raises "
                f"{type(error).__name__}: {error}. Records on which it raises contribute nothing, in silence. Does it "
                "change as the training goes on, to something that torch.func.vmap cannot run, such as .item()?",
                stacklevel=2,
            )

    def sample(self, sample_rate: float, *, rng: np.random.Generator) -> Any:
        """Return the positions of a sample that every record, or person, enters by its own coin."""
        return poisson_sample(len(self.records), sample_rate, rng=rng)

    def exact_blocks(self) -> Blocks:
        """Return how records are computed with exact noise, which is found out once.

        Raises:
            PrivacyError: If there are several processes, an accelerator, or a loss that fails on made-up records.
        """
        if self.processes.size > 1:
            raise PrivacyError(
                "noise='exact' is for one process: in several, which of them computes a record depends on the others, "
                "and nothing shows that all compute the same bits. Train in one process, or with noise='float'."
            )
        if self.accelerator:
            raise PrivacyError(
                f"noise='exact' is for the CPU: nothing shows that {self.accelerator} computes the same bits for a "
                "record whoever is beside it. Move the model to the CPU, or use noise='float'."
            )
        if self._blocks is None:
            form = self.plain["training"].marked(np.arange(min(1, len(self.plain["training"]))))
            if form is None:  # there is no record, and so no sum
                return Blocks(Way(), 1)
            self._blocks = steady_blocks(self.loss, self.detached(), form, self.chunk)
        return self._blocks

    def clipped(self, sample: Any, bounds: Any, *, plan: Plan, rng: np.random.Generator) -> Clipped:
        """Return the clipped sum of this process's share of a sample; in whole steps of a grid if the plan has one.

        Args:
            sample: Places of the sampled records, or persons.
            bounds: What each of them may contribute.
            plan: How contributions are clipped and rounded, and how many records of a person are in one.
            rng: Where the seed of what the loss draws comes from.
        """
        self.drawn = sample
        for parameter in self.parameters.values():
            parameter.grad = None  # the last step's make room for this one's
        limits = torch.from_numpy(np.asarray(self.processes.share(bounds), dtype=np.float64))
        units, some = self.records, self.processes.share(sample)
        how: dict[str, Any] = {"softening": plan.softening, "rng": rng}
        if isinstance(units, Persons):
            if plan.grid is not None:
                raise PrivacyError("noise='exact' is for records: persons with several are not summed on a grid yet.")
            taken = units.several(some, plan.records_per_person or 1, rng=rng, summed=plan.of_person == "sum")
        else:
            taken = units.marked(some, rng=rng)
        if plan.grid is None:
            return clipped_sum(self.loss, self.detached(), taken, limits, chunk=self.chunk, **how)
        blocks = self.exact_blocks()
        return whole_sum(self.loss, self.detached(), taken, limits, grid=plan.grid, blocks=blocks, **how)

    def update(self, clipped: Clipped, plan: Plan, *, number: int, rng: np.random.Generator) -> None:
        """Add noise to the sum, divide by the declared batch size, and let the optimiser move the parameters.

        Args:
            clipped: What this process summed; the noisy mean takes the place of its sums in memory.
            plan: Noise, clip norm and divisor.
            number: Of the step, for messages.
            rng: Of the noise; the first process's counts.

        Raises:
            ValueError: If the parameters are not finite afterwards.
        """
        sums = self.processes.total(clipped.sums)
        if plan.grid is not None:
            sums = whole_mean(sums, grid=plan.grid, divisor=plan.batch_size, rng=rng)
        elif self.processes.leads:
            sums = noisy_mean(
                sums,
                clip_norm=plan.clip_norm,
                noise_multiplier=plan.noise_multiplier,
                divisor=plan.batch_size,
                rng=rng,
                overwrite=True,
            )
        gradients = self.processes.spread(sums)
        self.optimizer.zero_grad(set_to_none=True)  # only the private gradient may move a parameter
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        ends = [torch.stack(torch.aminmax(p.detach())).double() for p in self.parameters.values() if p.numel()]
        if not bool(torch.isfinite(torch.stack(ends)).all()):  # read once, not for each parameter
            raise ValueError(
                f"The parameters are not finite after step {number}: lower the learning rate, or start from a "
                "checkpoint of before. What was charged stays charged."
            )

    def initial(self) -> Callable[[], tuple[nn.Module, Any, Any]]:
        """Return a function that makes copies of model, optimiser and scheduler as they are now."""
        parts = [part for part in (self.model, self.optimizer, self.scheduler) if part is not None]
        states = copy.deepcopy([part.state_dict() for part in parts])

        def remake() -> tuple[nn.Module, Any, Any]:
            made = copy.deepcopy(parts)
            for part, state in zip(made, copy.deepcopy(states), strict=True):
                part.load_state_dict(state)
            model, optimizer, *scheduler = made
            return model, optimizer, scheduler[0] if scheduler else None

        return remake

    def require_constants(self) -> None:
        """Refuse a model whose buffers have changed since the run began: the private step does not change them.

        Raises:
            PrivacyError: If one has. It may remember records, and would be released with the weights.
        """
        now = _buffers(self.model)
        for name in {**self._constants, **now}:
            if name not in now or name not in self._constants or not _equal(self._constants[name], now[name]):
                raise PrivacyError(
                    f"Buffer {name!r} has changed since the run began, so it may remember records, and no guarantee "
                    "covers it. Run the model in eval mode on data, and keep what changes outside of it "
                    "(companions=…)."
                )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of model, optimiser, scheduler and companions."""
        self.require_constants()
        state: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = plain_state(self.scheduler)
        if self.companions:
            state["companions"] = {name: thing.state_dict() for name, thing in self.companions.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self._constants = _copies(_buffers(self.model))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and "scheduler" in state:
            self.scheduler.load_state_dict(state["scheduler"])
        for name, thing in self.companions.items():
            thing.load_state_dict(state["companions"][name])


def plain_state(scheduler: Any) -> dict[str, Any]:
    """Return what a checkpoint keeps of a scheduler: its state, without the functions in it."""
    return {k: v for k, v in scheduler.state_dict().items() if isinstance(v, int | float | str | list | None)}


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are saved with the weights."""
    moved = dict(model.named_parameters(remove_duplicate=False))
    return {name: b for name, b in model.state_dict().items() if name not in moved and isinstance(b, Tensor)}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or (one.is_floating_point() and torch.equal(one.nan_to_num(), other.nan_to_num()))
