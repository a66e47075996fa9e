"""Contributions as whole numbers on a public grid, checked and summed without any rounding.

What a record contributes is computed in blocks of one fixed shape, filled up with zeros, on one thread: it is then the
same, bit for bit, whoever else is in the batch, so that one record moves the sum by its own contribution and by nothing
else. Blocks of several records are used where this was found to be so on made-up records, and blocks of one elsewhere.
All numbers here are whole numbers in float64 below 2^53, whose sums are exact in any order (docs: theory/noise).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tacita._guard import Stopped, held
from tacita.mechanisms.rounded import Grid, rounded_gaussian
from tacita.training.chunks import Chunk, Way, differentiated, out_of_memory
from tacita.training.gradients import Clipped, clip_factors, computing, generators_of, length
from tacita.training.layers import Loss, Parameters
from tacita.training.products import Convolution, Made, Part, Product, Rows, norms
from tacita.training.randomness import standing
from tacita.training.step import one_thread
from tacita.training.ways import made_up, tried_on_made_up

_LARGEST = 1e18  # norms above are beyond float32's squares
_MOST = 64  # records in a block
_ROOM = 2**24  # bytes of a block's whole numbers: memory of that size is kept and used again
_SHIFTS = (1, 2, 3, 5, 8, 13, 21)


@dataclass(frozen=True)
class Blocks:
    """How records are computed, the same for all of them: differentiated in which way, and how many at once."""

    way: Way
    size: int


def whole_sum(
    loss: Loss,
    parameters: Parameters,
    records: Any,
    bounds: Tensor,
    *,
    grid: Grid,
    blocks: Blocks,
    softening: float | None = None,
    rng: np.random.Generator | None = None,
) -> Clipped:
    """Return the sum over records of their clipped gradients, each rounded towards zero to whole steps of a grid.

    Args:
        loss: As for `clipped_sum`, as are the parameters, the records, and the bounds.
        parameters: What to differentiate.
        records: Along the first dimension.
        bounds: What each record's contribution may have as norm.
        grid: Its step is the unit of the sums.
        blocks: From `steady_blocks`.
        softening: As for `clipped_sum`.
        rng: Where the seed of what the loss draws comes from; the operating system if None.

    Returns:
        Sums in int64, in steps. The norms are those of the whole numbers, times the step.

    Guarantee:
        A record's whole numbers z have Σ z² <= (bound / step)², checked in whole numbers; they depend on the record,
        the parameters and what the loss draws for it. A record whose gradient is not finite, or on which the loss
        raises, contributes exactly zero. The sums are exact.
    """
    sums = {name: torch.zeros(p.shape, dtype=torch.int64) for name, p in parameters.items()}
    found = torch.zeros(length(records), dtype=torch.float64)
    losses = torch.full_like(found, torch.nan)
    with computing(loss, parameters, rng), one_thread():
        start, own = 0, generators_of(loss)
        while start < len(found):
            size, rows, stood = blocks.size, slice(start, min(start + blocks.size, len(found))), standing(own)
            count, part = rows.stop - start, tree_map(lambda t, r=rows, n=size: filled(t[r], n), records)
            limits = filled(bounds[rows], size)
            for chunk, kept in _computed(loss, parameters, part, blocks.way, count):
                if size > 1 and standing(own) != stood:  # records would share what was drawn
                    blocks = Blocks(Way(alone=True), 1)
                    break
                squares = _add(chunk, sums, torch.where(kept, limits, 0.0), grid, softening)
                found[rows] += squares[:count].sqrt() * grid.step
                losses[rows] = torch.where(kept, chunk.losses, filled(losses[rows], size))[:count]
                stood = standing(own)
            if blocks.size == size:
                start = rows.stop
    return Clipped(sums, found, losses)


def filled(tensor: Tensor, count: int) -> Tensor:
    """Return a copy with zeros after its rows, so that there are so many.

    It is always a copy: how memory is aligned may change the order in which kernels add.
    """
    out = tensor.new_zeros(count, *tensor.shape[1:])
    out[: len(tensor)] = tensor
    return out


def _computed(loss: Loss, parameters: Parameters, part: Any, way: Way, count: int) -> Iterator[tuple[Chunk, Tensor]]:
    """Yield gradients of a block's first records, and which of them count.

    Where the loss raises on some record, each is computed at its own place of a block of zeros, which gives the same
    bits as the whole block would have given.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        part: The block.
        way: How.
        count: How many records there are before the filling.
    """
    size = length(part)
    chunk = _attempted(loss, parameters, part, way)
    if chunk is not None:
        yield chunk, torch.arange(size) < count
        return
    for row in range(count if size > 1 else 0):
        only = torch.arange(size) == row
        chunk = _attempted(loss, parameters, _with_zeros(part, only), way)
        if chunk is not None:
            yield chunk, only


def _attempted(loss: Loss, parameters: Parameters, part: Any, way: Way) -> Chunk | None:
    """Return a block's gradients, or None if the loss raises on it; memory that is too short for zeros is an error."""
    full = False
    with held():
        try:
            return differentiated(loss, parameters, part, way)
        except Stopped:
            raise
        except BaseException as error:  # whatever it is, it would tell of a record
            full = out_of_memory(error)
    if full:
        try:
            differentiated(loss, parameters, tree_map(torch.zeros_like, part), way)
        except Exception as error:
            if out_of_memory(error):
                raise MemoryError("A block of records does not fit into memory: give a smaller chunk=….") from None
    return None


def _with_zeros(part: Any, kept: Tensor) -> Any:
    return tree_map(lambda t: torch.where(kept.view(-1, *(1,) * (t.dim() - 1)), t, torch.zeros_like(t)), part)


def _add(chunk: Chunk, sums: Parameters, bounds: Tensor, grid: Grid, softening: float | None) -> Tensor:
    """Add a block's contributions to sums, and return each one's sum of squares, in steps.

    Args:
        chunk: Gradients.
        sums: Where they go.
        bounds: Of each record; 0 for what does not count.
        grid: The unit.
        softening: As for `clipped_sum`.
    """
    parts = [part.made() if isinstance(part, Convolution) else part for part in chunk.parts]
    made = [(part, gradients(part, sums[part.name].shape)) for part in parts]
    if not made:
        return torch.zeros_like(bounds)
    norm = torch.stack([norms(g) for _, g in made]).square().sum(0).sqrt()
    factors = (clip_factors(norm, bounds, softening) / grid.step)[:, None]
    broken = ~(norm < _LARGEST)
    if bool(broken.any()):
        made = [(part, g.masked_fill(broken[:, None], 0.0)) for part, g in made]
    whole = [(part, torch.mul(g, factors).trunc_()) for part, g in made]
    squares = shrunk([z for _, z in whole], bounds, grid)
    ones = torch.ones(1, len(bounds), dtype=torch.float64)
    for part, z in whole:
        total = (ones @ z).long()
        if isinstance(part, Made) and part.shape is not None:
            total = total.view(part.shape).movedim(-1, 1)
        sums[part.name] += total.reshape(sums[part.name].shape)
    return squares


def shrunk(whole: list[Tensor], bounds: Tensor, grid: Grid) -> Tensor:
    """Halve records' whole numbers, in place and towards zero, until all are within their bounds.

    Args:
        whole: (records, coordinates) each; a record's are those of all tensors.
        bounds: Norms.
        grid: The unit.

    Returns:
        Each record's sum of squares, in steps.
    """
    mosts = {bound: float(grid.most(bound)) for bound in set(bounds.tolist())}
    most = torch.tensor([mosts[bound] for bound in bounds.tolist()], dtype=torch.float64)
    while True:
        squares = torch.stack([torch.linalg.vecdot(z, z) for z in whole]).sum(0)
        over = ~(squares <= most)
        if not bool(over.any()):
            return squares
        for z in whole:  # a float norm was wrong
            z[over] = (0.5 * z[over].nan_to_num(0.0, 0.0, 0.0)).trunc_()


def gradients(part: Part, shape: tuple[int, ...]) -> Tensor:
    """Return the records' gradients themselves, as (records, coordinates).

    Args:
        part: Of one parameter.
        shape: The parameter's.
    """
    if isinstance(part, Convolution):
        part = part.made()
    if isinstance(part, Made):
        return part.gradients
    if isinstance(part, Product):
        found = part.made()
        return found if part.looked_up is None else found + gradients(part.looked_up, shape)
    if not isinstance(part, Rows):
        raise TypeError(f"There is no exact sum of {type(part).__name__}.")
    count, rows = len(part.index), shape[0]
    out = part.values.new_zeros(count * rows, part.values.shape[2])
    at = part.index + rows * torch.arange(count)[:, None]
    return out.index_add_(0, at.flatten(), part.values.flatten(0, 1)).view(count, -1)


def steady_blocks(loss: Loss, parameters: Parameters, records: Any, most: int | None = None) -> Blocks:
    """Return how to compute records: as many at once as fit, or one if places or neighbours in a block matter.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        records: Of which only the form counts.
        most: The largest block.

    Raises:
        PrivacyError: If the loss runs on no made-up record.
    """
    one = tree_map(lambda t: torch.zeros_like(t[:1]), records)
    with computing(loss, parameters, None), one_thread():
        way, size = tried_on_made_up(loss, parameters, one)
        each = max(8 * sum(p.numel() for p in parameters.values()), size // 16)
        block = 1 if way.alone else max(1, min(_MOST if most is None else most, _ROOM // each))

        def found(weights: Parameters) -> bool:
            def computed(some: Any) -> Tensor:
                chunk = differentiated(loss, weights, some, way)
                return torch.cat([gradients(part, weights[part.name].shape) for part in chunk.parts], 1)

            return steady(computed, made_up(one, varied=True, count=block))

        with held():
            try:  # weights that are zero at first would hide the order of sums
                together = block > 1 and found(parameters) and found(_weights(parameters))
            except Exception:  # made-up records may be no records that the loss takes
                together = False
        return Blocks(way, block if together else 1)


def _weights(parameters: Parameters) -> Parameters:
    """Return made-up weights of the usual size."""
    rng = np.random.default_rng(0)
    noise = {name: torch.from_numpy(rng.standard_normal(p.shape)).to(p) for name, p in parameters.items()}
    return {name: n * (len(n) / n.numel()) ** 0.5 if n.dim() > 1 else 0.1 * n for name, n in noise.items()}


def steady(computed: Callable[[Any], Tensor], records: Any) -> bool:
    """Return whether rows are the same, bit for bit, at other places of a block and beside other records.

    Args:
        computed: Takes a block of records, and returns a row for each.
        records: Made-up ones.
    """
    places, wanted = torch.arange(length(records)), computed(records)
    orders = [places, places.flip(0), *(places.roll(shift % len(places)) for shift in _SHIFTS)]
    if not all(torch.equal(computed(tree_map(lambda t, o=o: t[o], records)), wanted[o]) for o in orders):
        return False
    for kept in (places % 2 == 0, places % 2 == 1, places == 0, places == places[-1]):
        for value in (0.0, torch.nan, torch.inf):
            others = tree_map(lambda t, v=value, k=kept: _beside(t, v, k), records)
            if not torch.equal(computed(others)[kept], wanted[kept]):
                return False
    return True


def _beside(tensor: Tensor, value: float, kept: Tensor) -> Tensor:
    """Return rows of which only some are kept; the others are of one value, or zero if they are whole numbers.

    Marks of records that can be read stay with a value, which would not count otherwise.
    """
    if tensor.dtype == torch.bool and value != 0.0:
        return tensor
    other = torch.full_like(tensor, value) if tensor.is_floating_point() else torch.zeros_like(tensor)
    return torch.where(kept.view(-1, *(1,) * (tensor.dim() - 1)), tensor, other)


def whole_mean(sums: Parameters, *, grid: Grid, divisor: float, rng: np.random.Generator) -> Parameters:
    """Return step (sums + noise) / divisor, the noise a Gaussian rounded to whole numbers, exactly.

    Args:
        sums: In steps, int64.
        grid: Step, and the noise's standard deviation in steps.
        divisor: A public constant.
        rng: Where the noise comes from.

    Returns:
        Tensors like `sums`, in float64. All that follows the whole sums and noise is post-processing.
    """
    found = {}
    for name, total in sums.items():
        noise = torch.from_numpy(rounded_gaussian(total.numel(), scale=grid.scale, rng=rng)).view(total.shape)
        found[name] = (total + noise).double() * grid.step / divisor
    return found
