"""Checks of the plain data that a label is made of, and its way to JSON and back.

Messages name the field and the rule and leave the value out: it may have been computed from one record.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

LARGEST = sys.float_info.max


def text(name: str, value: object) -> None:
    """Refuse what is not text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {type(value).__name__}.")


def texts(name: str, *groups: Iterable[object]) -> None:
    """Refuse groups that hold anything but texts, and a text in place of a group."""
    for values in groups:
        if isinstance(values, str):
            raise TypeError(f"{name} must be several texts, got one.")
        for value in values:
            text(name, value)


def several(name: str, values: object, kind: type) -> None:
    """Refuse what is not a tuple of the given type."""
    if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"{name} must be a tuple of {kind.__name__}.")


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse what is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}.")


def whole(name: str, value: object) -> None:
    """Refuse what is not a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{name} must be a whole number.")


def finite(name: str, value: object) -> None:
    """Refuse what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{name} must be finite numbers.")


def epsilon(name: str, value: object) -> None:
    """Refuse what is not an epsilon. It may be infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{name} epsilon must be a number that is at least 0.")


def to_plain(value: Any) -> Any:
    """Return a value as JSON can hold it: an infinite number becomes the text "infinity"."""
    return "infinity" if value == math.inf else value


def from_plain(value: Any) -> Any:
    """Undo `to_plain`."""
    return math.inf if value == "infinity" else value


def rows(data: Any) -> list[Any]:
    """Return a list that was read. Anything else is refused: a text would fall apart into letters."""
    if not isinstance(data, list | tuple):
        raise TypeError(f"a list was expected, got {type(data).__name__}.")
    return list(data)


def points(data: Any) -> tuple[tuple[Any, Any], ...]:
    """Return (place, number) pairs that were read."""
    return tuple((place, from_plain(number)) for place, number in map(rows, rows(data)))


def pairs(data: Any) -> tuple[tuple[Any, Any], ...]:
    """Return pairs that were read."""
    return tuple((first, second) for first, second in map(rows, rows(data)))
