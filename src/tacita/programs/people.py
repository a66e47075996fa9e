"""People with several rows: whose rows they are, and which of a person's rows count."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacita import _check
from tacita._guard import attempt, held

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ROWS = 10_000
MISSING = ("refuse", "own")


@dataclass(frozen=True)
class People:
    """Whom a program protects where a person may have several rows.

    Attributes:
        column: The column of ids, by which people are told apart.
        rows: How many rows of a person count, at most.
        missing: What a row without an id is: refused, or the only row of a person of its own (`own`).
    """

    column: str
    rows: int
    missing: str


def declared(person: object, rows: object, missing: object, schema: Mapping[str, object]) -> People | None:
    """Return what was declared about people; None if one row is one person.

    Args:
        person: The name of the column of ids.
        rows: How many rows of a person count.
        missing: What a row without an id is.
        schema: The program's columns, of which the ids are none.
    """
    _check.one_of("missing_person", missing, MISSING)
    if person is None:
        if rows is not None or missing != MISSING[0]:
            raise ValueError('Name the column of ids too: person="patient_id", rows_per_person=3.')
        return None
    if not isinstance(person, str) or not person:
        raise TypeError(f"person must be the name of a column of ids, such as 'patient_id', got {person!r}.")
    if person in schema:
        raise ValueError(f"{person!r} says whose rows they are, so the schema must not name it: ids are not released.")
    if rows is None:
        raise ValueError("Declare rows_per_person, how many rows of a person count at most, such as 3.")
    return People(person, _check.count("rows_per_person", rows, high=MOST_ROWS), str(missing))


def kept_rows(ids: Sequence[Any], people: People, coins: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the places of the rows that count, in order.

    Args:
        ids: One for each row, of any kind that can be hashed.
        people: How many rows of a person count, and what a missing id means.
        coins: One number for each row; from the operating system unless given.

    Raises:
        ValueError: If an id is missing and that is refused, one cannot be hashed or compared, or texts are among other
            ids. The message shows none.

    Guarantee:
        At most `people.rows` rows of each person. Which ones depends on that person's rows and their coins alone.
    """
    import numpy as np

    with held():
        owners = np.array(_numbered(ids, people), dtype=np.int64)
    if coins is None:
        coins = np.frombuffer(os.urandom(8 * len(owners)), dtype=np.uint64)
    order = np.lexsort((coins, owners))
    ranks = np.arange(len(order)) - np.searchsorted(owners[order], owners[order])
    return np.sort(order[ranks < people.rows])


def _numbered(ids: Sequence[Any], people: People) -> list[int]:
    """Return a number for each row's person."""
    known: dict[Any, int] = {}
    found, texts = [], set()
    for place, given in enumerate(ids):
        missing = _is_missing(given)
        if missing and people.missing == "refuse":
            raise ValueError(
                f"A row has no id in {people.column!r}, so nobody knows whose it is: correct it, or declare "
                'missing_person="own", where such a row is the only one of a person of its own.'
            )
        number = attempt(known.setdefault, (None, place) if missing else (given,), len(known))
        if number is None or (not missing and getattr(type(given), "__eq__", None) is object.__eq__):
            raise ValueError(f"The ids in {people.column!r} must be hashable and comparable, such as numbers or texts.")
        texts |= set() if missing else {isinstance(given, str | bytes)}
        found.append(number)
    if len(texts) > 1:
        raise ValueError(f"The ids in {people.column!r} are texts and others: one as both would be two people.")
    return found


def _is_missing(given: Any) -> bool:
    """Return whether there is no id: nothing, no text, or what does not equal itself, such as NaN."""
    if given is None or (isinstance(given, str | bytes) and not given.strip()):
        return True
    if isinstance(given, tuple):
        return any(map(_is_missing, given))
    return attempt(lambda: bool(given == given)) is not True
