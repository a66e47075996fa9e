"""Per-record gradients, clipped and summed, of any loss that takes one record at a time.

`torch.func.vmap` runs the loss on every record alone, so records cannot mix, whatever the model does; what each layer's
weights get is in `layers`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tacita._check import PrivacyError
from tacita._guard import Stopped, held
from tacita.training.chunks import Chunk, Way, differentiated, out_of_memory
from tacita.training.contributions import LARGEST as _LARGEST
from tacita.training.contributions import Several, blank, contributed, cut, flat
from tacita.training.layers import Loss as Loss
from tacita.training.layers import Parameters as Parameters
from tacita.training.memory import generators
from tacita.training.products import wide
from tacita.training.randomness import fresh_draws, standing
from tacita.training.ways import tried as tried
from tacita.training.ways import unchanged

_GENERATORS: WeakKeyDictionary[Loss, list[Any]] = WeakKeyDictionary()
_CHUNK_BYTES = 256 * 2**20  # what the per-record tensors of one chunk may take
_SAFE = 1.0 - 1e-6  # round-off in a norm stays below this: 16 additions a lane, half of it after the root


@dataclass(frozen=True)
class Clipped:
    """A clipped sum over records, or over persons.

    Attributes:
        sums: The sum of the clipped per-record gradients, by parameter name, in float32 or better.
        norms: Each record's contribution after clipping, float64; zero for a record that is not finite.
        losses: Each record's loss, as computed; may be NaN, and is where it cannot be. For the data's owner. A person's
            is the mean of those that are finite.
    """

    sums: Parameters
    norms: Tensor
    losses: Tensor


def clipped_sum(
    loss: Loss,
    parameters: Parameters,
    records: Any,
    bounds: Tensor,
    *,
    softening: float | None = None,
    chunk: int | None = None,
    rng: np.random.Generator | None = None,
) -> Clipped:
    """Return the sum over records of per-record gradients, each scaled down to its own bound.

    Args:
        loss: A function of the parameters and one record (no batch dimension); any torch code that
            `torch.func.vmap` can run.
        parameters: What to differentiate; detached tensors.
        records: A tensor, or tuples and dicts of tensors, each with the records along its first dimension. Or
            `Several` records of persons: the sum is then over persons, of the means over their records.
        bounds: Shape (records,), float64: the norm each record's contribution may have at most; of persons, theirs.
        softening: r, for contributions of g / (|g| + r), as in `clip_factors`; None shortens them only.
        chunk: Records differentiated at once. By default as many as fit 256 MiB; halved when memory runs out.
        rng: Where the seed of what the loss draws comes from; the operating system if None.

    Guarantee:
        A record's contribution has norm at most its bound times (1 + 1e-6), computed in float32 or better. A
        record whose gradient is not finite, or too large to square, contributes exactly zero, and so does one on
        which the loss raises: an error would tell that the record is there, and perhaps what it is. Records do not
        influence each other's contributions, and the chunk changes nothing but round-off.
    """
    sums = {name: _zeros_like(p) for name, p in parameters.items()}
    norms = torch.zeros(length(records), dtype=torch.float64)
    losses = torch.full_like(norms, torch.nan)
    with computing(loss, parameters, rng):
        for one, norm, rows in _chunks(loss, parameters, records, chunk):
            factors, finite = clip_factors(norm, bounds[rows].to(norm.device), softening), norm < _LARGEST
            one.add_to(sums, factors, ~finite)
            norms[rows] = torch.where(finite, norm, 0.0) * factors
            losses[rows] = one.losses
    return Clipped(sums, norms, losses)


def _zeros_like(parameter: Tensor) -> Tensor:
    """Return zeros in float32 or better, in numpy's memory on a CPU: of large pages, it costs a fifth of torch's."""
    dtype = wide(parameter.dtype)
    if parameter.device.type != "cpu":
        return torch.zeros_like(parameter, dtype=dtype)
    return torch.from_numpy(np.zeros(parameter.shape, np.float64 if dtype == torch.float64 else np.float32))


def clip_factors(norms: Tensor, bounds: Tensor, softening: float | None = None) -> Tensor:
    """Return what to multiply contributions by so that their norms keep to bounds; 0 where one is not finite or huge.

    Args:
        norms: Norms of contributions, in float64.
        bounds: What each may have at most.
        softening: r > 0, for automatic clipping: a norm becomes |g| / (|g| + r) where that is within its bound (Bu et
            al., 2023, arXiv:2206.07136, AUTO-S). None leaves norms within their bounds as they are.

    Returns:
        Factors in [0, 1], as many as norms; with a softening in [0, 1/r].
    """
    most = 1.0
    if softening is not None:
        most, bounds = 1.0 / softening, torch.minimum(bounds, norms / (norms + softening))
    return torch.where(norms < _LARGEST, (bounds * _SAFE / norms.clamp_min(1e-300)).clamp_max(most), 0.0)


def record_norms(
    loss: Loss,
    parameters: Parameters,
    records: Any,
    *,
    chunk: int | None = None,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Return every record's gradient norm before clipping, float64; zero for one that is not finite or raises.

    Args:
        loss: As for `clipped_sum`.
        parameters: What to differentiate.
        records: Along the first dimension of every tensor.
        chunk: Records differentiated at once.
        rng: Where the seed of what the loss draws comes from; the operating system if None.

    Returns:
        Shape (records,).
    """
    norms = torch.zeros(length(records), dtype=torch.float64)
    with computing(loss, parameters, rng):
        for _, norm, rows in _chunks(loss, parameters, records, chunk):
            norms[rows] = torch.where(norm < _LARGEST, norm, 0.0)
    return norms


def fault_on_zeros(loss: Loss, parameters: Parameters, records: Any) -> Exception | None:
    """Return what a loss raises on a record of zeros, in the way that it is differentiated; None if nothing.

    Args:
        loss: As for `clipped_sum`.
        parameters: What to differentiate.
        records: Of which only the form counts.
    """
    zeros = tree_map(lambda t: torch.zeros_like(t[:1]), records)
    with computing(loss, parameters, None):
        try:
            differentiated(loss, parameters, zeros, tried(loss, parameters, zeros)[0]).norms()
        except PrivacyError:
            raise
        except Exception as error:
            return error
    return None


def _chunks(
    loss: Loss, parameters: Parameters, records: Any, chunk: int | None
) -> Iterator[tuple[Chunk, Tensor, slice]]:
    """Yield gradients of records or persons, their norms and where they belong, in smaller chunks once memory runs out.

    A chunk that fails otherwise is halved until the record is found on which the loss raises. It is left out, also one
    that takes more memory than a record of zeros does. Records of a chunk in which something was drawn that they would
    share run one after the other: who shares it would hang on how many there are, and on which fail.
    """
    count = length(records)
    if count == 0:
        return
    way, size = tried(loss, parameters, flat(records))
    most = 1 if way.alone else chunk or max(1, min(1024, _room(parameters) // max(size, 1)))
    most = max(1, most // records.most) if isinstance(records, Several) else most
    start, chunk, own = 0, most, generators_of(loss)
    while start < count:
        rows = slice(start, min(start + chunk, count))
        part = cut(records, rows)
        one, full, single = None, False, rows.stop - start == 1
        together = not way.alone and length(flat(part)) > 1  # a person's records too: others must not decide it
        stood = standing(own) if together else []
        with held():
            try:
                one, norm = contributed(loss, parameters, part, way)
            except Stopped:
                raise
            except BaseException as error:  # whatever it is, it would tell of a record
                one, full = None, out_of_memory(error)
        if together and standing(own) != stood:
            way, chunk, most = Way(alone=True), 1, 1
            continue
        if full and single:  # is memory too short for a record of zeros, which tells nothing of any record?
            gc.collect()
            try:
                contributed(loss, parameters, blank(part), way)
            except Exception as error:
                if out_of_memory(error):
                    raise
            full = False  # it was the record
        if one is None:
            chunk = (rows.stop - start + 1) // 2
            if full:
                gc.collect()  # what was made before memory ran out hangs on the error's traceback
                most = chunk
            elif single:
                start, chunk = rows.stop, most
            continue
        yield one, norm, rows
        start = rows.stop
        del one


@contextmanager
def computing(loss: Loss, parameters: Parameters, rng: np.random.Generator | None) -> Iterator[None]:
    """Run a loss on records: it draws with seeds of its own, and may change neither parameters nor buffers.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        rng: Where the seed of what it draws comes from; the operating system if None.
    """
    with _draws(loss, rng), unchanged(loss, parameters):
        yield


def _draws(loss: Loss, rng: np.random.Generator | None) -> AbstractContextManager[None]:
    """Give the global generators, and those that a loss has itself, seeds of their own."""
    return fresh_draws(rng, generators_of(loss))


def generators_of(loss: Loss) -> list[Any]:
    """Return the random generators that a loss has itself."""
    try:
        own = _GENERATORS.get(loss)
        if own is None:
            own = _GENERATORS[loss] = generators(loss)
    except TypeError:  # a loss that cannot be remembered
        own = generators(loss)
    return own


def _room(parameters: Parameters) -> int:
    """Return the bytes that a chunk may take."""
    device = next((p.device for p in parameters.values()), torch.device("cpu"))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return max(_CHUNK_BYTES, free // 4)


def length(records: Any) -> int:
    """Return how many records there are along the first dimension, or how many persons."""
    if records is None:
        return 0
    return len(records) if isinstance(records, Several) else len(tree_leaves(records)[0])
