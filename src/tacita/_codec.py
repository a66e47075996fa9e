"""Frozen dataclasses checked against their annotations, and to JSON and back: once for everybody.

Messages name the field and the rule and leave the value out: it may have been computed from one record.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar, Union

T = TypeVar("T")
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class Checked:
    """A base of frozen dataclasses that are checked when they are made and that JSON can hold."""

    def __post_init__(self) -> None:
        check(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` reads it. An infinite number is the text "infinity"."""
        return fields_to_plain(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Rebuild what `to_dict` wrote. Anything else is refused, by a ValueError."""
        return from_plain(cls, data)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check(instance: Any) -> None:
    """Refuse a dataclass whose fields are not what their annotations say. Call it in `__post_init__`.

    Raises:
        TypeError: If a field is of another type.
        ValueError: If a field is not one of the texts that its annotation lists, or not a number.
    """
    kind = type(instance)
    for name, hint in _hints(kind).items():  # type: ignore[arg-type]
        _fits(f"{kind.__name__.lower()} {name}", getattr(instance, name), hint)


def to_plain(value: Any) -> Any:
    """Return dataclasses and tuples as JSON can hold them; an infinite number becomes the text "infinity"."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return fields_to_plain(value)
    if isinstance(value, Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    return "infinity" if isinstance(value, float) and value == math.inf else value


def fields_to_plain(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain data."""
    return {field.name: to_plain(getattr(instance, field.name)) for field in dataclasses.fields(instance)}


def from_plain(cls: type[T], data: Any) -> T:
    """Rebuild a dataclass that `to_plain` wrote.

    Args:
        cls: The dataclass.
        data: What was read from JSON.

    Returns:
        The dataclass, its annotations checked.

    Raises:
        ValueError: If a field is missing, unknown or of another form.
    """
    name = cls.__name__.lower()
    if not isinstance(data, Mapping):
        raise ValueError(f"{name} must be an object.")
    hints = _hints(cls)  # type: ignore[arg-type]
    unknown, absent = sorted(set(data) - set(hints)), sorted(set(hints) - set(data))
    if unknown or absent:
        what = f"has no field {unknown[0]!r}" if unknown else f"lacks the field {absent[0]!r}"
        raise ValueError(f"{name} {what}.")
    try:
        made = cls(**{field: _read(f"{name} {field}", data[field], hint) for field, hint in hints.items()})
        check(made)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return made


def _read(name: str, value: Any, hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        (hint,) = (part for part in inner if part is not type(None))
        return _read(name, value, hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list.")
        parts = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        if len(parts) != len(value):
            raise ValueError(f"{name} must be tuples of {len(parts)}.")
        return tuple(_read(name, part, kind) for part, kind in zip(value, parts, strict=True))
    if isinstance(hint, type) and hasattr(hint, "from_dict"):
        return hint.from_dict(value)
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    return math.inf if hint is float and value == "infinity" else value


def _fits(name: str, value: Any, hint: Any) -> None:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, inner))}.")
    elif origin in (Union, types.UnionType):
        if not (value is None and type(None) in inner):
            (kind,) = (part for part in inner if part is not type(None))
            _fits(name, value, kind)
    elif origin is tuple:
        _fits_tuple(name, value, inner)
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number.")
        if value != value:
            raise ValueError(f"{name} must be a number, not NaN.")
    elif hint is int and isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number.")
    elif not isinstance(value, origin or hint):
        raise TypeError(f"{name} must be {_WORDS.get(hint) or f'of type {(origin or hint).__name__}'}.")


def _fits_tuple(name: str, value: Any, inner: tuple[Any, ...]) -> None:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a tuple.")
    if inner[-1] is Ellipsis:
        for part in value:
            _fits(name, part, inner[0])
        return
    if len(value) != len(inner):
        raise TypeError(f"{name} must be tuples of {len(inner)}.")
    for part, kind in zip(value, inner, strict=True):
        _fits(name, part, kind)
