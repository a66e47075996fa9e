"""Tensors of what is not one yet: arrays of any type, numbers, lists, tables and columns of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_MISSING = np.iinfo(np.int64).min  # a missing whole number: models fail on it, so that its record contributes nothing
_ENCODE = "encode them by a list of values that you declare, not by the values that occur"


class UnfitError(TypeError):
    """Something that cannot become a tensor. The message names parts and types, never values."""


def as_tensor(value: Any, dtype: torch.dtype | None = None, name: str = "The dataset") -> Tensor:
    """Return a tensor of what is not one; tensors stay as they are.

    Reals become `dtype`, and whole numbers int64, but for images and the like of uint8, which stay as they are: more
    than one number a record. Truth values stay. A column or a table of pandas is read by its values, the index aside.

    Args:
        value: An array, a number, nested lists of numbers, or a Series or DataFrame of pandas.
        dtype: Of reals; torch's default type unless given.
        name: What it is called in messages.

    Raises:
        UnfitError: If it holds texts, dates, objects or nothing at all.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise UnfitError(f"{name} is a tensor of layout {value.layout}: make it dense, by .to_dense().")
        return value.detach().as_subclass(Tensor)
    if value is None or isinstance(value, str | bytes | dict):
        raise UnfitError(f"{name} is a {type(value).__name__}, of which there is no tensor: drop or encode it.")
    array = _of_pandas(value, name) if hasattr(value, "iloc") else _array(value, name)
    kind = array.dtype.kind
    if kind == "f":
        reals = torch.get_default_dtype() if dtype is None else dtype
        wide = array.astype(np.float64 if reals == torch.float64 else np.float32, copy=False)
        return _owned(wide).to(reals)
    if kind in "iu" and not (array.dtype == np.uint8 and array.ndim > 1):
        if array.dtype == np.uint64:
            array = np.minimum(array, np.iinfo(np.int64).max)
        return _owned(array.astype(np.int64, copy=False))
    if kind in "biuc":
        return _owned(array)
    raise UnfitError(
        f"{name} holds {array.dtype}. Convert numbers by .astype('float32') or .astype('int64'); where they are names, "
        f"{_ENCODE}."
    )


def _array(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        if isinstance(value, list) and isinstance(value[0], Tensor):
            return torch.stack(value).numpy(force=True)
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, IndexError):
        raise UnfitError(
            f"{name} is a {type(value).__name__} of which there is no array: pad its parts to one length, and drop "
            "what is no number."
        ) from None


def _of_pandas(value: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the values of a Series or a DataFrame, by the types of the columns alone, whatever is missing in them."""
    columns = [(name, value.dtype)] if value.ndim == 1 else list(value.dtypes.items())
    for column, kind in columns:
        if kind.kind not in "biuf":
            where = name if value.ndim == 1 else f"Column {column!r}"
            raise UnfitError(
                f"{where} holds {kind}. Where these are names, {_ENCODE}; convert numbers by .astype('float32')."
            )
    kinds = {kind.kind for _, kind in columns}
    if kinds <= {"b"} and all(isinstance(kind, np.dtype) for _, kind in columns):
        return np.asarray(value)
    if kinds <= {"i", "u"}:
        return np.asarray(value.to_numpy(dtype=np.int64, na_value=_MISSING))
    return np.asarray(value.to_numpy(dtype=np.float64, na_value=np.nan))


def _owned(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor of an array as torch takes it: writable, in the machine's byte order, without strides below 0."""
    fit = array.flags.writeable and array.dtype.isnative and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if fit else array.astype(array.dtype.newbyteorder("=")))
