"""People with several rows: whom a program protects, as it declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacita import _check


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
    _check.one_of("missing_person", missing, ("refuse", "own"))
    if person is None:
        if rows is not None or missing != "refuse":
            raise ValueError('Name the column of ids too: person="patient_id", rows_per_person=3.')
        return None
    if not isinstance(person, str) or not person:
        raise TypeError(f"person must be the name of a column of ids, such as 'patient_id', got {person!r}.")
    if person in schema:
        raise ValueError(f"{person!r} says whose rows they are, so the schema must not name it: ids are not released.")
    if rows is None:
        raise ValueError("Declare rows_per_person, how many rows of a person count at most, such as 3.")
    return People(person, _check.count("rows_per_person", rows, high=10_000), str(missing))
