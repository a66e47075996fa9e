"""What a column may hold. Public, written down beforehand, and total: every cell, however odd, is some value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

LARGEST_CATEGORIES = 10_000


@dataclass(frozen=True, init=False)
class Bool:
    """A truth value. What is neither spelled true nor false counts as false.

    Examples:
        >>> Bool(true="ja", false="nein").index("JA")
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
        """The position of the value that stands for unreadable cells: false."""
        return 1

    def index(self, cell: object) -> int | None:
        """Return the position of a cell's value in `labels`, or None if it has none."""
        text = str(cell).strip().casefold()
        if isinstance(cell, bool) or text in self.true or text in self.false:
            return 0 if cell is True or (cell is not False and text in self.true) else 1
        return None

    def __str__(self) -> str:
        return "a truth value"


@dataclass(frozen=True, init=False)
class Category:
    """One of some public labels: `Category("a", "b", "c")`, or `Category(3)` for "0", "1" and "2".

    Args:
        *labels: The labels, or how many there are.
        other: The label that stands for everything else; the first one unless given.

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
        """The position of the label that stands for unreadable and unknown cells."""
        return self._places[self.other]

    def index(self, cell: object) -> int | None:
        """Return the position of a cell's label, or None if it is not one of them."""
        return self._places.get(str(cell).strip())

    @cached_property
    def _places(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}

    def __str__(self) -> str:
        return f"one of {len(self.labels)} categories"


@dataclass(frozen=True)
class Real:
    """Any number. It has no bound until it is clamped."""

    def __str__(self) -> str:
        return "a real number"


@dataclass(frozen=True)
class Clamped:
    """A number on the grid `step` times a whole number from `lowest` to `highest`. Made by `clamp` and `map`."""

    lowest: int
    highest: int
    step: Fraction

    @property
    def low(self) -> float:
        """The lower bound."""
        return float(self.lowest * self.step)

    @property
    def high(self) -> float:
        """The upper bound."""
        return float(self.highest * self.step)

    def __str__(self) -> str:
        return f"a number in [{self.low:g}, {self.high:g}] in steps of {float(self.step):g}"


Finite = Bool | Category
Domain = Bool | Category | Real | Clamped


def _texts(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise TypeError(f"Bool: {name} must be a spelling or several, such as {name}='x', got {value!r}.")
    return texts


def _label(label: object) -> str:
    if not isinstance(label, str) or not label.strip():
        raise TypeError(f"Category takes labels one by one, such as Category('a', 'b'), got {label!r}.")
    return label.strip()
