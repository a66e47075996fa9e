"""Per-record gradients of one parameter each, most of them never made.

The gradient of a weight by one record is a sum over positions (words, places of an image) of products of a row of what
the layer was given and a row of the gradient at its output. From these factors follow a record's norm, by making the
gradient of a few records at a time or from inner products of positions, and the sum over records, by one product of
matrices with one factor scaled.

Made in this way, the sum has the round-off of its terms and not of the gradient, which matters where positions nearly
cancel. `norms` therefore adds a bound on it, so that a record scaled to a bound keeps to it including round-off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_PIECE = 128  # coordinates whose squares are added in float32
_SMALLEST = 1e-12  # norms below need more than float32's squares
_BLOCK = {"cpu": 1 << 18}  # coordinates made at once: they stay in a processor's cache
_LARGE = 1 << 26  # on other devices, where few large products are faster
_DOUBLE = 3  # what a product in float64 costs, of one in float32


class Part(Protocol):
    """The records' gradients of one parameter."""

    @property
    def name(self) -> str:
        """The parameter."""
        ...

    def norms(self) -> Tensor:
        """Return each record's norm, float64; not finite where its gradient is not."""
        ...

    def without(self, dropped: Tensor) -> Part:
        """Return the same with the gradients of some records exactly zero."""
        ...

    def add_to(self, sums: dict[str, Tensor], factors: Tensor) -> None:
        """Add the records' gradients, each times its factor, to the sum."""
        ...


@dataclass(frozen=True)
class Made:
    """Gradients as they are, as (records, coordinates)."""

    name: str
    gradients: Tensor
    shape: tuple[int, ...] | None = None  # of a convolution's, whose channels are last

    def norms(self) -> Tensor:
        """Return each record's norm."""
        return norms(self.gradients)

    def without(self, dropped: Tensor) -> Made:
        """Return the same with the gradients of some records exactly zero."""
        return Made(self.name, _masked(self.gradients, dropped), self.shape)

    def add_to(self, sums: dict[str, Tensor], factors: Tensor) -> None:
        """Add the records' gradients, each times its factor, to the sum."""
        total = factors.to(self.gradients.dtype) @ self.gradients
        if self.shape is not None:
            total = total.view(self.shape).movedim(-1, 1)
        sums[self.name] += total.reshape(sums[self.name].shape)


@dataclass(frozen=True)
class Rows:
    """Gradients of an embedding: zero but for the rows that a record looks up.

    Attributes:
        name: The parameter.
        index: (records, positions): the rows, each at most once a record.
        values: (records, positions, columns): their gradients.
    """

    name: str
    index: Tensor
    values: Tensor

    def norms(self) -> Tensor:
        """Return each record's norm."""
        return norms(self.values.flatten(1))

    def without(self, dropped: Tensor) -> Rows:
        """Return the same with the gradients of some records exactly zero."""
        return Rows(self.name, self.index, _masked(self.values, dropped))

    def add_to(self, sums: dict[str, Tensor], factors: Tensor) -> None:
        """Add the records' gradients, each times its factor, to the sum."""
        scaled = self.values * factors.to(self.values.dtype)[:, None, None]
        sums[self.name].index_add_(0, self.index.flatten(), scaled.flatten(0, 1))


@dataclass(frozen=True)
class Product:
    """Gradients of a matrix: sums over positions of products of two rows.

    Attributes:
        name: The parameter.
        left: (records, positions, rows of the matrix).
        right: (records, positions, columns of the matrix).
        looked_up: What the same matrix gets as an embedding.
    """

    name: str
    left: Tensor
    right: Tensor
    looked_up: Rows | None = None

    def norms(self) -> Tensor:
        """Return each record's norm, plus a bound on the round-off of its share of a sum."""
        positions, high, wide = *self.left.shape[1:], self.right.shape[2]
        across = norms(self.left.flatten(1)) * norms(self.right.flatten(1))
        if positions == 1 and self.looked_up is None:
            return across
        others = 0 if self.looked_up is None else self.looked_up.index.shape[1]
        loose = slack(positions, self.left.dtype) * across
        if _DOUBLE * positions * (positions * (high + wide) + others * wide) < positions * high * wide:
            return self.by_inner_products(across) + loose
        return self.by_making() + 2.0 * loose

    def by_inner_products(self, across: Tensor) -> Tensor:
        """Return each record's norm from inner products of positions, computed in float64 and rounded up.

        Args:
            across: Each record's product of the norms of both factors, which bounds the norm.
        """
        positions, wide = self.left.shape[1], self.left.shape[2] + self.right.shape[2]
        squares = []
        for i in blocks(self.left, positions * wide):
            left, right = self.left[i].double(), self.right[i].double()
            square = ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
            if self.looked_up is not None:
                index, own = self.looked_up.index[i], self.looked_up.values[i].double()
                met = left.gather(2, index[:, None, :].expand(-1, positions, -1))
                square += own.square().sum((1, 2)) + 2.0 * ((met.mT @ right) * own).sum((1, 2))
                across = across.clone()
                across[i] += own.square().sum((1, 2)).sqrt()
            squares.append(square)
        most = (positions * positions + wide) * torch.finfo(torch.float64).eps  # round-off of these inner products
        return (torch.cat(squares).clamp_min(0.0) + most * across.square()).sqrt()

    def made(self) -> Tensor:
        """Return the gradients as (records, coordinates), where nothing is looked up."""
        return (self.left.mT @ self.right).flatten(1)

    def by_making(self) -> Tensor:
        """Return each record's norm from its gradient, made for a few records at a time."""
        high, wide = self.left.shape[2], self.right.shape[2]
        found = []
        for i in blocks(self.left, high * wide):
            made = self.left[i].mT @ self.right[i]
            if self.looked_up is not None:
                at = self.looked_up.index[i] + high * torch.arange(len(made), device=made.device)[:, None]
                made.view(-1, wide).index_add_(0, at.flatten(), self.looked_up.values[i].flatten(0, 1))
            found.append(norms(made.flatten(1)))
        return torch.cat(found)

    def without(self, dropped: Tensor) -> Product:
        """Return the same with the gradients of some records exactly zero."""
        also = None if self.looked_up is None else self.looked_up.without(dropped)
        return Product(self.name, _masked(self.left, dropped), _masked(self.right, dropped), also)

    def add_to(self, sums: dict[str, Tensor], factors: Tensor) -> None:
        """Add the records' gradients, each times its factor, to the sum."""
        scale = factors.to(self.left.dtype)[:, None, None]
        left, right = self.left, self.right
        left, right = (left * scale, right) if left.shape[2] <= right.shape[2] else (left, right * scale)
        sums[self.name].addmm_(left.flatten(0, 1).T, right.flatten(0, 1))
        if self.looked_up is not None:
            self.looked_up.add_to(sums, factors)


@dataclass(frozen=True)
class Convolution:
    """Gradients of a convolution's weight.

    Attributes:
        name: The parameter.
        output: (records, channels out, places …): gradients at the output.
        given: (records, channels in, places …).
        weight: The parameter, for its shape.
        settings: Stride, padding and dilation.
    """

    name: str
    output: Tensor
    given: Tensor
    weight: Tensor
    settings: tuple[tuple[int, ...], ...]

    def norms(self) -> Tensor:
        """Return each record's norm, plus a bound on the round-off of its share of a sum."""
        patches, output = self.patches(), self.output.flatten(2)
        channels, positions = output.shape[1:]
        wide = self.weight[0].numel()
        # a place of the input is in at most as many patches as a patch has places
        most = math.sqrt(self.weight[0, 0].numel())
        across = norms(output.flatten(1)) * norms(self.given.flatten(1)) * most
        loose = slack(positions, output.dtype) * across
        inner = _DOUBLE * positions * (channels + wide) < channels * wide
        found = []
        for i in blocks(output, positions * (channels + wide) if inner else channels * wide):
            part = Product(self.name, output[i].mT, patches[i].reshape(-1, positions, wide))
            found.append(part.by_inner_products(across[i]) if inner else part.by_making())
        return torch.cat(found) + (1.0 if inner else 2.0) * loose

    def made(self, batch: int = 1) -> Made:
        """Return the gradients themselves; a record may be a batch of its own."""
        patches, output = self.patches(), self.output.flatten(2)
        channels, positions = output.shape[1:]
        wide = self.weight[0].numel()
        out = output.new_empty(len(output), channels, wide)
        for i in blocks(output, positions * wide):
            torch.bmm(output[i], patches[i].reshape(-1, positions, wide), out=out[i])
        shape = (channels, *self.weight.shape[2:], self.weight.shape[1])
        return Made(self.name, out.view(-1, batch, channels * wide).sum(1) if batch > 1 else out.flatten(1), shape)

    def patches(self) -> Tensor:
        """Return a view of what each place of the output saw: (records, places …, places of the weight …, channels)."""
        stride, padding, dilation = self.settings
        given = (
            functional.pad(self.given, [p for p in reversed(padding) for _ in (0, 1)]) if any(padding) else self.given
        )
        kernel = self.weight.shape[2:]
        high = [
            (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(given.shape[2:], kernel, stride, dilation, strict=True)
        ]
        given = given.movedim(1, -1).contiguous()  # a patch is a few long runs of memory
        first, *steps, last = given.stride()
        return given.as_strided(
            (len(given), *high, *kernel, given.shape[-1]),
            (
                first,
                *(n * s for n, s in zip(steps, stride, strict=True)),
                *(n * d for n, d in zip(steps, dilation, strict=True)),
                last,
            ),
        )

    def without(self, dropped: Tensor) -> Convolution:
        """Return the same with the gradients of some records exactly zero."""
        output, given = _masked(self.output, dropped), _masked(self.given, dropped)
        return Convolution(self.name, output, given, self.weight, self.settings)

    def add_to(self, sums: dict[str, Tensor], factors: Tensor) -> None:
        """Add the records' gradients, each times its factor, to the sum."""
        stride, padding, dilation = self.settings
        places = [0] * len(stride)
        scaled = self.output * factors.to(self.output.dtype).view(-1, *(1 for _ in self.output.shape[1:]))
        weight = self.weight.to(scaled.dtype)
        sums[self.name] += torch.ops.aten.convolution_backward(
            scaled, self.given, weight, None, stride, padding, dilation, False, places, 1, (False, True, False)
        )[1]


def looked_up(index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that each record looks up, each once, with the sums of their gradients; the rest is zero.

    Args:
        index: (records, positions).
        values: (records, positions, columns): gradients at the positions.
    """
    records, positions = index.shape
    ordered, order = index.sort(dim=1, stable=True)
    place = torch.zeros_like(ordered)
    place[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    rows = torch.zeros_like(index).scatter_(1, place, ordered)
    at = place + positions * torch.arange(records, device=index.device)[:, None]
    origin = order + positions * torch.arange(records, device=index.device)[:, None]
    total = values.new_zeros(records * positions, values.shape[2])
    total.index_add_(0, at.flatten(), values.flatten(0, 1)[origin.flatten()])
    return rows, total.view_as(values)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return what sums over a dtype are kept in: float32 or better."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def slack(positions: int, dtype: torch.dtype) -> float:
    """Return how far the round-off of a sum over positions is from its terms' norms at most, relative to these."""
    return (positions + 8) * torch.finfo(dtype).eps / 2.0


def norms(tensor: Tensor) -> Tensor:
    """Return the rows' norms, summed in float64 over pieces short enough that float32 loses nothing that matters."""
    if tensor.device.type != "cpu":
        wide_norms: Tensor = torch.linalg.vector_norm(tensor, dim=1, dtype=torch.float64)
        return wide_norms
    whole = tensor.shape[1] // _PIECE * _PIECE
    pieces = [torch.linalg.vector_norm(tensor[:, :whole].reshape(len(tensor), -1, _PIECE), dim=2)] if whole else []
    if whole < tensor.shape[1]:
        pieces.append(torch.linalg.vector_norm(tensor[:, whole:], dim=1, keepdim=True))
    found: Tensor = torch.linalg.vector_norm(torch.cat(pieces, dim=1).double(), dim=1)
    small = found < _SMALLEST
    if bool(small.any()):
        found[small] = torch.linalg.vector_norm(tensor[small].double(), dim=1)
    return found


def blocks(tensor: Tensor, size: int) -> Sequence[slice]:
    """Return slices of a few records, for each of which a tensor of a size is made."""
    count = len(tensor)
    step = max(1, _BLOCK.get(tensor.device.type, _LARGE) // max(size, 1))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def _masked(tensor: Tensor, dropped: Tensor) -> Tensor:
    return tensor.masked_fill(dropped.view(-1, *(1 for _ in tensor.shape[1:])), 0.0)
