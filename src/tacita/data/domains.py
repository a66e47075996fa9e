"""The schema language: what a column may hold. Public, declared beforehand, never learned from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacita import _check

LARGEST_CATEGORIES = 10_000
SCALES = ("linear", "log")


@dataclass(frozen=True, init=False)
class Bool:
    """A truth value. In a program, what is spelled neither true nor false counts as false.

    Examples:
        >>> Bool(true="ja", false="nein").read("JA")
        0
    """

    true: tuple[str, ...]
    false: tuple[str, ...]

    def __init__(
        self, *, true: str | Sequence[str] = ("true", "yes", "1"), false: str | Sequence[str] = ("false", "no", "0")
    ) -> None:
        spelled = [tuple(t.strip().casefold() for t in _texts(n, v)) for n, v in (("true", true), ("false", false))]
        if both := set(spelled[0]) & set(spelled[1]):
            raise ValueError(f"Bool: {sorted(both)[0]!r} is spelled both true and false; keep it in one of them.")
        object.__setattr__(self, "true", spelled[0])
        object.__setattr__(self, "false", spelled[1])

    @property
    def labels(self) -> tuple[bool, bool]:
        """Its values, in the order in which they are counted."""
        return (True, False)

    @property
    def fallback(self) -> int:
        """The position of the value that a program takes for unreadable cells: false."""
        return 1

    def read(self, cell: object) -> int | None:
        """Return the position of a cell's value in `labels`, or None if it has none."""
        if isinstance(cell, bool):
            return 0 if cell else 1
        text = str(cell).strip().casefold()
        return 0 if text in self.true else 1 if text in self.false else None

    def __str__(self) -> str:
        return "a truth value"


@dataclass(frozen=True, init=False)
class Category:
    """One of some public labels: `Category("a", "b", "c")`, or `Category(3)` for "0", "1" and "2".

    Args:
        *labels: The labels, or how many there are.
        other: The label that a program takes for everything else; the first one unless given.

    Examples:
        >>> Category(3).labels
        ('0', '1', '2')
    """

    labels: tuple[str, ...]
    other: str

    def __init__(self, *labels: str | int, other: str | None = None) -> None:
        counted = len(labels) == 1 and isinstance(labels[0], int) and not isinstance(labels[0], bool)
        if counted and not 2 <= int(labels[0]) <= LARGEST_CATEGORIES:
            raise ValueError(f"Category needs 2 to {LARGEST_CATEGORIES} labels, got Category({labels[0]}).")
        names = tuple(str(i) for i in range(int(labels[0]))) if counted else tuple(map(_label, labels))
        if len(set(names)) != len(names) or not 2 <= len(names) <= LARGEST_CATEGORIES:
            raise ValueError(f"Category needs 2 to {LARGEST_CATEGORIES} different labels, got {len(set(names))}.")
        if other is not None and _label(other) not in names:
            raise ValueError(f"Category: other={other!r} must be one of its labels; add it to them.")
        object.__setattr__(self, "labels", names)
        object.__setattr__(self, "other", names[0] if other is None else _label(other))

    @property
    def fallback(self) -> int:
        """The position of the label that a program takes for unreadable and unknown cells."""
        return self._places[self.other]

    def read(self, cell: object) -> int | None:
        """Return the position of a cell's label, or None if it is not one of them."""
        return self._places.get(str(cell).strip())

    @cached_property
    def _places(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}

    def __str__(self) -> str:
        return f"one of {len(self.labels)} categories"


@dataclass(frozen=True)
class Real:
    """A number: any, or one in [low, high], where values outside are moved to the nearer bound.

    Training needs the bounds. In a program, a column without bounds must be clamped before it is summed.

    Attributes:
        low: The lower bound, or None.
        high: The upper bound, or None.
        scale: How training encodes it: "linear", or "log" for log(1 + value - low).
        whole: Whether it holds whole numbers. Generated records and the sums of programs are rounded accordingly.

    Examples:
        >>> Real(0, 120).read("34.5"), Real().read("1_000")
        (34.5, None)
    """

    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    whole: bool = False

    def __post_init__(self) -> None:
        bounds = [_check.number(name, b) for name, b in (("low", self.low), ("high", self.high)) if b is not None]
        if len(bounds) == 1 or not all(map(math.isfinite, bounds)):
            raise ValueError(f"Real needs both bounds, finite, or none, got low={self.low!r}, high={self.high!r}.")
        if bounds and not bounds[0] < bounds[1]:
            raise ValueError(f"low must be below high, got low={bounds[0]:g}, high={bounds[1]:g}.")
        _check.one_of("scale", self.scale, SCALES)
        if not isinstance(self.whole, bool) or (self.whole and not all(bound.is_integer() for bound in bounds)):
            raise ValueError("whole must be true or false, and true needs a low and a high that are whole.")
        for name, bound in zip(("low", "high"), bounds, strict=False):
            object.__setattr__(self, name, bound)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both bounds, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def fallback(self) -> float:
        """NaN: what a program takes for unreadable cells until the column is clamped, to its lower bound then."""
        return math.nan

    def read(self, cell: Any) -> float | None:
        """Return a cell's number, or None if it has none or is not finite. It is not moved to the bounds yet.

        Raises:
            ValueError: If a text is not a number.
            TypeError: If the cell cannot be converted to a number.
        """
        value = float(cell)
        return value if math.isfinite(value) and not (isinstance(cell, str) and "_" in cell) else None

    def __str__(self) -> str:
        return "a real number" if self.low is None else f"a real number in [{self.low:g}, {self.high:g}]"


Finite = Bool | Category
Domain = Bool | Category | Real


def _texts(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise TypeError(f"Bool: {name} must be a spelling or several, such as {name}='x', got {value!r}.")
    return texts


def _label(label: object) -> str:
    if not isinstance(label, str) or not label.strip():
        raise TypeError(f"Category takes labels one by one, such as Category('a', 'b'), got {label!r}.")
    return label.strip()
