"""Per-record gradients of one chunk of records, together or one record after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from tacita._guard import attempt
from tacita.training.layers import Loss, OtherwiseUsedError, Parameters, Tap, Use
from tacita.training.products import Made, Part, wide
from tacita.training.uses import joined, parts_of
from tacita.training.vectors import Records, vectorised


@dataclass(frozen=True)
class Way:
    """How a loss is differentiated.

    Attributes:
        tapped: Parameters whose gradients follow from what layers are given, and from the gradients at their outputs.
        channels_last: Whether convolutions run with their channels last: on a CPU they, and pooling, are several times
            faster that way.
        alone: Whether each record runs on its own, because `vmap` cannot run the loss.
    """

    tapped: frozenset[str] = frozenset()
    channels_last: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Chunk:
    """Per-record gradients of one chunk, most of them implicit."""

    losses: Tensor
    parts: tuple[Part, ...]  # of one parameter each

    def norms(self) -> Tensor:
        """Return each record's norm over all parameters, float64; not finite where a gradient is not."""
        if not self.parts:
            return torch.zeros_like(self.losses)
        return torch.stack([part.norms() for part in self.parts]).square().sum(0).sqrt()

    def add_to(self, sums: Parameters, factors: Tensor, dropped: Tensor) -> None:
        """Add the records' gradients, each times its factor, to sums; those dropped contribute exactly zero."""
        spoiled = bool(dropped.any())
        for part in self.parts:
            (part.without(dropped) if spoiled else part).add_to(sums, factors)


def differentiated(loss: Loss, parameters: Parameters, part: Any, way: Way) -> Chunk:
    """Return the per-record gradients of a chunk.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        part: Records along the first dimension; one alone if the way says so.
        way: How.
    """
    if way.alone:
        return _alone(loss, parameters, part)
    try:
        return _together(loss, parameters, part, way)
    except OtherwiseUsedError:  # a model that runs its layers differently from call to call
        return _together(loss, parameters, part, Way())


def _alone(loss: Loss, parameters: Parameters, part: Any) -> Chunk:
    leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    record = tree_map(lambda t: t[0].clone(), part)  # which the loss may overwrite
    with torch.enable_grad():
        value = loss(leaves, record)
    made: list[Part] = []
    if value.requires_grad:
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        for name, g in zip(leaves, gradients, strict=True):
            if g is not None:
                made.append(Made(name, g.to_dense().to(wide(g.dtype)).reshape(1, -1)))
    return Chunk(value.detach().double().reshape(1), tuple(made))


def _together(loss: Loss, parameters: Parameters, part: Any, way: Way) -> Chunk:
    first = tree_leaves(part)[0]
    fixed = {name: parameters[name].detach() for name in parameters if name in way.tapped}
    if way.channels_last:
        fixed = {name: _channels_last(p) if p.dim() == 4 else p for name, p in fixed.items()}
    fixed = {name: p.requires_grad_() for name, p in fixed.items()}  # so that what layers put out has a gradient
    names = {id(p): name for name, p in fixed.items()}
    each = {
        name: p.detach().expand(len(first), *p.shape).requires_grad_()
        for name, p in parameters.items()
        if name not in fixed
    }
    uses: list[Use] = []

    def value(each: Parameters, zero: Tensor, record: Any) -> Tensor:
        tap = Tap(names, Records(zero))
        with tap:
            out = loss({**fixed, **each}, record)
        uses.extend(tap.uses)
        return out

    with vectorised(), torch.enable_grad():
        losses = vmap(value, randomness="different")(each, torch.zeros(len(first), device=first.device), part)
    if losses.dim() != 1:
        raise ValueError(f"The loss of a record must be one number, got one of shape {tuple(losses.shape[1:])}.")
    if any(use.changed for use in uses):
        raise OtherwiseUsedError
    if not losses.requires_grad:
        return Chunk(losses.double(), ())
    wanted: list[Any] = [*each.values(), *(use.at for use in uses)]
    found = torch.autograd.grad(losses, wanted, torch.ones_like(losses), allow_unused=True)
    made: dict[str, Tensor] = {
        name: g.to(wide(g.dtype)).flatten(1) if g.dim() > 1 else g[:, None]
        for name, g in zip(each, found, strict=False)
        if g is not None
    }
    parts: list[Part] = [Made(name, g) for name, g in made.items()]
    for use, g in zip(uses, found[len(each) :], strict=True):
        if g is not None:
            parts += parts_of(use, g.movedim(use.place, 0), parameters)
    return Chunk(losses.detach().double(), joined(parts))


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in (attempt(str, error) or "")


def _channels_last(weight: Tensor) -> Tensor:
    _, channels, rows, columns = weight.shape
    turned = weight.permute(0, 2, 3, 1).contiguous()  # strides are set by hand: with one channel torch would not
    return turned.as_strided(weight.shape, (rows * columns * channels, 1, columns * channels, channels))
