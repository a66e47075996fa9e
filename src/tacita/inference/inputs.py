"""Convert whatever a caller passes as data to tensors, in the order of the model's arguments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita._guard import attempt, held, number_in
from tacita.inference.terms import Separated, Tensors


def tensors_of(data: Any) -> tuple[Tensors, tuple[str, ...]]:
    """Return the model's arguments as tensors, and their names if they are passed by name."""
    names: tuple[str, ...] = ()
    if isinstance(data, Mapping):
        names, data = tuple(map(str, data)), tuple(data.values())
    parts = data if isinstance(data, tuple | list) else (data,)
    try:
        tensors = tuple(_tensor(part) for part in parts)
    except (TypeError, ValueError, RuntimeError):  # without its text, which may hold a cell
        raise TypeError("data must be tensors or arrays of numbers: one, a tuple of them, or a dict.") from None
    if any(t.is_complex() or t.layout != torch.strided for t in tensors):
        raise TypeError("data must be dense arrays of real numbers, not complex or sparse ones.")
    lengths = {len(t) if t.dim() else 0 for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError("data must hold records along the first dimension, as many in each part, and not none.")
    kind = torch.get_default_dtype()
    return tuple(t.to(kind) if torch.is_floating_point(t) else t for t in tensors), names


def _tensor(part: Any) -> Tensor:
    if not isinstance(part, Tensor) and hasattr(part, "__array__"):  # pandas would index rows by its labels
        part = np.array(part)
    if not isinstance(part, list | tuple) and not (isinstance(part, np.ndarray) and part.dtype.kind in "OSU"):
        return torch.as_tensor(part).detach()
    with held():
        tensor = attempt(torch.as_tensor, part)
        return _cell_by_cell(part) if tensor is None or tensor.is_complex() else tensor.detach()


def _cell_by_cell(part: Any) -> Tensor:
    """Return the numbers of a part in which some cells are not numbers; each cell is read independently of the others.

    Such a cell, and every cell of a row whose shape differs from most, becomes NaN. Integers and booleans keep their
    type, as a model may accept nothing else: there it becomes the lowest integer, which is not a valid index, or False.
    """
    rows = [attempt(lambda row: np.array(row, dtype=object), row) for row in part]
    shapes = Counter(row.shape for row in rows if row is not None)
    shape = max(shapes, key=lambda shape: shapes[shape], default=())
    nothing = np.full(shape, None)
    alike = [nothing if row is None or row.shape != shape else row for row in rows]
    cells = [_stored(number_in(cell)) for row in alike for cell in row.flat]
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds:
        raise TypeError
    kind, missing = _KINDS[next(kind for kind in _KINDS if kind in kinds)]
    return torch.tensor([missing if cell is None else cell for cell in cells], dtype=kind).reshape(len(rows), *shape)


_KINDS: dict[type, tuple[torch.dtype, float]] = {  # the first type among the cells is used for all
    float: (torch.float64, math.nan),
    int: (torch.int64, -(2**63)),
    bool: (torch.bool, False),
}


def _stored(number: Any) -> Any:
    """Return a number, or None for an integer that does not fit a tensor."""
    return None if isinstance(number, int) and not -(2**63) < number < 2**63 else number


def records_like(separated: Separated, data: Any, what: str) -> Tensors:
    """Return further records in the order of the model's arguments; they must look like the data.

    Args:
        separated: The model.
        data: The records, passed as the data were.
        what: The argument's name, for messages.

    Returns:
        The records as tensors.

    Raises:
        ValueError: If they are passed in another way, or differ in shape or type.
    """
    tensors, names = tensors_of(data)
    if sorted(names) != sorted(separated.names):
        given = ", ".join(map(repr, separated.names))
        raise ValueError(f"{what} must be passed as the data were: {f'a dict of {given}' if given else 'by place'}.")
    if names:
        tensors = tuple(tensors[names.index(name)] for name in separated.names)
    kinds = [[(tuple(t.shape), t.dtype) for t in part] for part in (separated.example, tuple(t[0] for t in tensors))]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{what} must hold records like the data's, of {kinds[0]}, got {kinds[1]}.")
    return tensors
