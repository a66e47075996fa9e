"""From records' gradients to persons' contributions: the mean over some of a person's records, clipped as one.

Records run through the model side by side, whoever they belong to. Their gradients, most of them implicit, are then
added up person by person, each over the number of that person's records. So a person's contribution is a function of
that person's records alone, and its norm is that of the sum which is really formed.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tacita._guard import Stopped
from tacita.training.chunks import Chunk, Way, differentiated, out_of_memory
from tacita.training.layers import Loss, Parameters
from tacita.training.products import Convolution, Made, Part, Product, Rows, blocks, looked_up, norms, slack, wide
from tacita.training.uses import made_if_small

LARGEST = 1e18  # norms above are beyond float32's squares


@dataclass(frozen=True)
class Several:
    """Records of several persons, those of a person side by side.

    Attributes:
        records: Along the first dimension of every tensor.
        counts: How many of them each person has, at least one.
        most: How many there may be at most, as declared.
        weights: What each person's mean is multiplied by, in float64; None for means.
    """

    records: Any
    counts: Tensor
    most: int
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.counts)


def flat(units: Any) -> Any:
    """Return the records of some units, whoever they belong to."""
    return units.records if isinstance(units, Several) else units


def cut(units: Any, rows: slice) -> Any:
    """Return some of the units: records, or persons with all of their records here."""
    if not isinstance(units, Several):
        return tree_map(lambda t: t[rows], units)
    before, counts = int(units.counts[: rows.start].sum()), units.counts[rows]
    own = slice(before, before + int(counts.sum()))
    return replace(
        units,
        records=cut(units.records, own),
        counts=counts,
        weights=None if units.weights is None else units.weights[rows],
    )


def blank(units: Any) -> Any:
    """Return as many units of zeros."""
    zeros = tree_map(torch.zeros_like, flat(units))
    return replace(units, records=zeros) if isinstance(units, Several) else zeros


def contributed(loss: Loss, parameters: Parameters, units: Any, way: Way) -> tuple[Chunk, Tensor]:
    """Return the gradients of some units, and their norms before clipping.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        units: Records, or persons: one alone if the way says so.
        way: How records are differentiated.

    Returns:
        For a person the mean over that person's records here, times the person's weight. A record of which the
        gradient is not finite, or too large to square, counts as zero in it; so does one on which the loss raises,
        where the person is alone.
    """
    if not isinstance(units, Several):
        chunk = differentiated(loss, parameters, units, way)
        return chunk, chunk.norms()
    if len(units) > 1:
        return _together(loss, parameters, units, way)
    full = False
    if not way.alone:
        try:
            return _together(loss, parameters, units, way)
        except Stopped:
            raise
        except BaseException as error:  # whatever it is, it would tell of a record
            full = out_of_memory(error)
    if full:
        gc.collect()  # what was made before memory ran out hangs on the error's traceback
    chunk = _one_by_one(loss, parameters, units, way)
    return chunk, chunk.norms()


def _together(loss: Loss, parameters: Parameters, units: Several, way: Way) -> tuple[Chunk, Tensor]:
    chunk = differentiated(loss, parameters, units.records, way)
    persons = by_person(chunk, units)
    found = persons.norms()
    if not bool((found < LARGEST).all()):  # somebody has a record that is not finite: it is dropped, and nobody else's
        dropped = ~(chunk.norms() < LARGEST)
        persons = by_person(Chunk(chunk.losses, tuple(part.without(dropped) for part in chunk.parts)), units)
        found = persons.norms()
    return persons, found


def _one_by_one(loss: Loss, parameters: Parameters, person: Several, way: Way) -> Chunk:
    """Return the contribution of one person, without the records on which the loss raises."""
    sums = {name: torch.zeros_like(p, dtype=wide(p.dtype)) for name, p in parameters.items()}
    losses, count = [], int(person.counts[0])
    weight = 1.0 if person.weights is None else float(person.weights[0])
    share = torch.full((1,), weight / count, dtype=torch.float64)
    for row in range(count):
        try:
            one = differentiated(loss, parameters, cut(person.records, slice(row, row + 1)), way)
            dropped = ~(one.norms() < LARGEST)
        except Stopped:
            raise
        except BaseException as error:
            if out_of_memory(error):
                raise
            continue
        losses.append(one.losses)
        one.add_to(sums, share.to(dropped.device), dropped)
    mean = weight * _finite_mean(torch.cat(losses)) if losses else torch.full((), torch.nan, dtype=torch.float64)
    return Chunk(mean.reshape(1), tuple(Made(name, total.reshape(1, -1)) for name, total in sums.items()))


def _finite_mean(losses: Tensor) -> Tensor:
    return losses[torch.isfinite(losses)].mean()


def by_person(chunk: Chunk, units: Several) -> Chunk:
    """Return the means of records' gradients over each person's records, and of their finite losses, weighted.

    Args:
        chunk: Gradients of records, those of a person side by side.
        units: Whose they are.
    """
    counts, weights = units.counts, units.weights
    if weights is None and bool((counts == 1).all()):
        return chunk
    weights = torch.ones(len(counts), dtype=torch.float64) if weights is None else weights
    beside = _Beside(counts, weights, chunk.losses.device)
    each = torch.split(chunk.losses, counts.tolist())
    losses = torch.stack([_finite_mean(own) for own in each])
    return Chunk(losses * weights.to(losses.device), tuple(beside.joined(part) for part in chunk.parts))


class _Beside:
    """Puts what belongs to a person's records side by side.

    Args:
        counts: How many records each person has.
        weights: What each person's mean is multiplied by.
        device: Where their gradients are.
    """

    def __init__(self, counts: Tensor, weights: Tensor, device: torch.device) -> None:
        self.persons, self.most = len(counts), int(counts.max())
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        place = torch.arange(len(owner)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        self.owner, self.place = owner.to(device), place.to(device)
        self.share = (weights / counts)[owner].to(device)

    def joined(self, part: Part) -> Part:
        """Return the persons' gradients of a parameter from those of their records."""
        if isinstance(part, Made):
            means = part.gradients.new_zeros(self.persons, part.gradients.shape[1])
            return Made(part.name, means.index_add_(0, self.owner, self._shared(part.gradients)), part.shape)
        if isinstance(part, Rows):
            return self._rows(part)
        if isinstance(part, Product):
            left, right = self._padded(self._shared(part.left)), self._padded(part.right)
            also = None if part.looked_up is None else self._rows(part.looked_up)
            return made_if_small(Product(part.name, left.flatten(1, 2), right.flatten(1, 2), also))
        if isinstance(part, Convolution):
            output, given = self._padded(self._shared(part.output)), self._padded(part.given)
            whole = Convolution(part.name, output.flatten(0, 1), given.flatten(0, 1), part.weight, part.settings)
            return Convolutions(whole, self.most)
        raise TypeError(f"Gradients of the kind {type(part).__name__} have no sum over a person's records yet.")

    def _rows(self, part: Rows) -> Rows:
        index, values = self._padded(part.index), self._padded(self._shared(part.values))
        return Rows(part.name, *looked_up(index.flatten(1, 2), values.flatten(1, 2)))

    def _shared(self, tensor: Tensor) -> Tensor:
        return tensor * self.share.to(tensor.dtype).view(-1, *(1 for _ in tensor.shape[1:]))

    def _padded(self, tensor: Tensor) -> Tensor:
        """Return (persons, records, …), zeros where a person has fewer records than another."""
        padded = tensor.new_zeros(self.persons, self.most, *tensor.shape[1:])
        padded[self.owner, self.place] = tensor
        return padded


@dataclass(frozen=True)
class Convolutions:
    """Gradients of a convolution's weight by persons: sums over their records.

    Attributes:
        whole: Of all records, as many for each person, those of a person side by side.
        each: How many a person has, zeros included.
    """

    whole: Convolution
    each: int

    @property
    def name(self) -> str:
        """The parameter."""
        return self.whole.name

    def norms(self) -> Tensor:
        """Return each person's norm, plus a bound on the round-off of their share of a sum."""
        output, given, weight = self.whole.output, self.whole.given, self.whole.weight
        most = math.sqrt(weight[0, 0].numel())  # as for a single record
        across = (norms(output.flatten(1)) * norms(given.flatten(1))).view(-1, self.each).sum(1) * most
        found = []
        for i in blocks(across, self.each * weight.numel()):
            rows = slice(i.start * self.each, i.stop * self.each)
            some = Convolution(self.name, output[rows], given[rows], weight, self.whole.settings)
            found.append(some.made(self.each).norms())
        return torch.cat(found) + 2.0 * slack(self.each * output[0, 0].numel(), output.dtype) * across

    def without(self, dropped: Tensor) -> Convolutions:
        """Return the same with the gradients of some persons exactly zero."""
        return Convolutions(self.whole.without(dropped.repeat_interleave(self.each)), self.each)

    def add_to(self, sums: dict[str, Tensor], factors: Tensor) -> None:
        """Add the persons' gradients, each times its factor, to the sum."""
        self.whole.add_to(sums, factors.repeat_interleave(self.each))
