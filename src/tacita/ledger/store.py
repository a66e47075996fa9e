"""Where the rows of a ledger are, and all that the chain needs to know of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

Fields = tuple[Any, ...]  # seq, time, kind, run, body, hash as they are stored


class Store(Protocol):
    """A connection to rows that can be added to and read, and nothing else.

    Attributes:
        place: What opens it again, as it may be shown and written down.
        name: A short name for labels.
    """

    place: str
    name: str

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
