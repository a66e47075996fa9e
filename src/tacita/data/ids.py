"""Whose each record is: ids that tell people apart, and which of a person's records count."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._guard import attempt, held

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacita._check import Counts

MISSING = ("refuse", "own")
MOST_RECORDS = 10_000  # of a person that count
_NO_ID = ("", "na", "n/a", "nan", "none", "null", "?")


def numbered(ids: Iterable[Any], *, missing: str, name: str) -> Counts:
    """Return a number for each record's person: equal ids have the same one.

    Args:
        ids: One for each record: numbers, texts, or anything else that can be hashed and compared.
        missing: What no id (None, NaN, an empty text, NA, null or ?) means: `refuse`, or `own`, that the record is the
            only one of a person of its own.
        name: What messages call the ids.

    Raises:
        ValueError: If an id is missing and that is refused, one cannot be hashed or compared, or texts are among other
            ids. The message shows none.
    """
    _check.one_of("missing_person", missing, MISSING)
    known: dict[Any, int] = {}
    found, texts = [], set()
    with held():
        for place, one in enumerate(ids):
            given = one.item() if getattr(one, "ndim", None) == 0 else one  # a tensor's hash is where it is in memory
            absent = _is_missing(given)
            if absent and missing == "refuse":
                raise ValueError(
                    f"A record has no id in {name!r}, so nobody knows whose it is: correct it, or declare "
                    'missing_person="own", where such a record is the only one of a person of its own.'
                )
            number = attempt(known.setdefault, (None, place) if absent else (given,), len(known))
            if number is None or (not absent and getattr(type(given), "__eq__", None) is object.__eq__):
                raise ValueError(f"The ids in {name!r} must be hashable and comparable, such as numbers or texts.")
            texts |= set() if absent else {isinstance(given, str | bytes)}
            found.append(number)
    if len(texts) > 1:
        raise ValueError(f"The ids in {name!r} are texts and others: the same one as both would be two people.")
    return np.array(found, dtype=np.int64)


def capped(persons: Counts, most: int, *, coins: Any = None) -> Counts:
    """Return the places of the records that count, in order.

    Args:
        persons: Whose each record is, from `numbered`.
        most: How many records of a person count.
        coins: A random number for each record; from the operating system unless given.

    Guarantee:
        At most `most` records of each person. Which ones depends on that person's records and their coins alone.
    """
    order = np.lexsort((_coins(len(persons)) if coins is None else coins, persons))
    ranks = np.arange(len(order)) - np.searchsorted(persons[order], persons[order])
    return np.sort(order[ranks < most])


def _coins(records: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * records), dtype=np.uint64)


def _is_missing(given: Any) -> bool:
    """Return whether there is no id: nothing, a text that says so, or what does not equal itself, such as NaN."""
    if isinstance(given, str | bytes):
        text = given.decode(errors="replace") if isinstance(given, bytes) else given
        return text.strip().casefold() in _NO_ID
    if isinstance(given, tuple):
        return any(map(_is_missing, given))
    return given is None or attempt(lambda: bool(given == given)) is not True
