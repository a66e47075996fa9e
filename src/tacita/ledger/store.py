"""Where the rows of a ledger are, and all that the chain needs to know of it."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from tacita._check import PrivacyError
from tacita.facts import MEMORY

P = ParamSpec("P")
R = TypeVar("R")
ANALYST = "TACITA_ANALYST"  # names the analyst where no code can
_ATTEMPTS = 8
_PAUSES = random.SystemRandom()  # nobody's seeded stream

Place = str | os.PathLike[str]
Fields = tuple[Any, ...]  # seq, time, kind, run, body, hash as they are stored


class Conflict(PrivacyError):
    """A transaction that for certain wrote nothing, for a reason that may be gone the next time."""


def repeated(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method that writes one row begin anew if its transaction wrote nothing because of another one's."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for attempt in range(_ATTEMPTS):
            try:
                return method(*args, **kwargs)
            except Conflict:
                time.sleep(_PAUSES.uniform(0.0, 0.01 * 2**attempt))
        return method(*args, **kwargs)

    return call


class Damaged(PrivacyError):
    """Rows that are not those that were written: edited, cut off, replaced or rolled back."""


class Store(Protocol):
    """A connection to rows that can be added to and read, and nothing else.

    Attributes:
        place: What opens it again, as it may be shown and written down: without a password.
        name: A short name for labels.
        analyst: Who writes, as every row will say; empty if nobody does.
    """

    place: str
    name: str
    analyst: str

    def declare(self, analyst: str) -> None:
        """Say who writes from now on; refused where the rows' keeper knows better."""

    def now(self) -> str:
        """Return the time that a row gets, in UTC and ISO 8601, to the second."""

    def using(self) -> AbstractContextManager[None]:
        """Turn what fails within into a `PrivacyError`; refuse if the rows are not those that were opened."""

    def transaction(self) -> AbstractContextManager[None]:
        """Hold the only right to write; on leaving, what was inserted is on the disk, or nothing is."""

    def rows(self, first: int) -> list[Fields]:
        """Return the rows from number `first` on, in order."""

    def insert(self, fields: Fields) -> None:
        """Add a row within a transaction."""

    def again(self) -> Store | None:
        """Open the same rows a second time, as somebody else would; None if nobody else can."""

    def close(self) -> None:
        """Close the connection."""


def on_server(place: Place) -> bool:
    """Return whether a place is the URL of a database rather than a file.

    Examples:
        >>> on_server("postgresql://alice@db.example.org/patients"), on_server("budget.sqlite")
        (True, False)
    """
    text = os.fspath(place)
    if re.match("postgres(ql)?:/(?!/)", text):  # what Path makes of a URL; it may hold a password
        raise ValueError("ledger: a URL must be passed as text; a Path loses one of its slashes.")
    return text.startswith(("postgresql://", "postgres://"))


def is_there(place: Place) -> bool:
    """Return whether a ledger is to be opened rather than made.

    One on a server is never made in passing: a team's budget has an owner, who creates it.
    """
    return on_server(place) or (os.fspath(place) != MEMORY and Path(place).exists())


def kept_place(place: str) -> str:
    """Return a place that is about to be written down; refuses a URL with a password.

    Raises:
        ValueError: If there is a password in it.
    """
    if on_server(place):
        from tacita.ledger.postgres import place_of

        if place_of(place).secrets:
            raise ValueError(
                "ledger: a recipe is kept in the run's folder, so its URL must not hold a password: put that into "
                "PGPASSWORD or ~/.pgpass."
            )
    return place


def name_of(place: str) -> str:
    """Return the short name of the ledger at a place, which may not be there yet."""
    if on_server(place):
        from tacita.ledger.postgres import place_of

        return place_of(place).name
    return Path(place).name
