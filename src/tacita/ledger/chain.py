"""Append-only rows, each carrying the hash of everything before it, wherever they are stored."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tacita._check import PrivacyError
from tacita.ledger.postgres import PostgresStore
from tacita.ledger.sqlite import SqliteStore
from tacita.ledger.store import Damaged, Fields, Store, on_server

START = "0" * 64


class LedgerRow(NamedTuple):
    """One entry. `run` is empty for rows about the ledger itself; `body` is plain JSON data."""

    seq: int
    time: str
    kind: str
    run: str
    body: dict[str, Any]
    hash: str


class Chain:
    """A connection to the rows. It belongs to the process that made it; threads may share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.RLock()
        self._process = os.getpid()
        self.close = weakref.finalize(self, store.close)

    @classmethod
    def create(cls, place: str, first: Sequence[tuple[str, Mapping[str, Any]]], analyst: str = "") -> Chain:
        """Make a chain of the rows `first`, written by an analyst; refuses a place that has one."""
        with _kind(place).creating(place) as store:
            store.declare(analyst)
            chain, head = cls(store), START
            for seq, (kind, body) in enumerate(first):
                head = chain.append(kind, "", body, last=seq - 1, head=head)
        return chain

    @classmethod
    def open(cls, place: str, analyst: str = "") -> Chain:
        """Open a chain, having checked that its place is sound. Rows are checked when they are read."""
        chain = cls(_kind(place).open(place))
        try:
            chain.store.declare(analyst)
        except BaseException:
            chain.close()
            raise
        return chain

    def again(self) -> Chain | None:
        """Open the chain a second time, as somebody else would; None if nobody else can."""
        store = self.store.again()
        return None if store is None else Chain(store)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the only right to write; on leaving, what was appended is on the disk, or nothing is."""
        with self._use(), self.store.transaction():
            yield

    def read(self, *, last: int = -1, head: str = START) -> list[LedgerRow]:
        """Return the rows after number `last`, whose hash was `head`, having checked every link."""
        with self._use():
            found = self.store.rows(last)
        if last >= 0 and (not found or found[0][5] != head):
            raise Damaged(
                f"The ledger {self.store.place} was rolled back or replaced while in use; restore the newest copy."
            )
        rows = []
        for fields in found[last >= 0 :]:
            rows.append(verified(fields, last + 1, head, place=self.store.place))
            last, head = rows[-1].seq, rows[-1].hash
        return rows

    def stored(self) -> list[Fields]:
        """Return every row as it is stored, unchecked."""
        with self._use():
            return self.store.rows(0)

    def append(self, kind: str, run: str, body: Mapping[str, Any], *, last: int, head: str) -> str:
        """Add a row after number `last` within a transaction; return its hash.

        Args:
            kind: The kind of row.
            run: The run that it is about; empty for the ledger itself.
            body: Plain JSON data.
            last: The number of the last row.
            head: Its hash.

        Returns:
            The new row's hash.
        """
        time, by = self.store.now(), {"by": self.store.analyst} if self.store.analyst else {}
        text = json.dumps({**body, **by}, sort_keys=True, separators=(",", ":"), allow_nan=False)
        digest = _digest(head, last + 1, time, kind, run, text)
        self.store.insert((last + 1, time, kind, run, text, digest))
        return digest

    @contextmanager
    def _use(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise PrivacyError(
                f"The ledger {self.store.place} was opened by another process; open it again in this one."
            )
        with self.lock, self.store.using():
            yield


def verified(fields: Fields, seq: int, head: str, *, place: str) -> LedgerRow:
    """Return a row as it is stored, if it is the one that follows row `seq` - 1.

    Args:
        fields: seq, time, kind, run, body and hash as they are stored.
        seq: Its number.
        head: The hash of the row before.
        place: Where it is, for people.

    Raises:
        Damaged: If it is another one.
    """
    try:
        seq_found, time, kind, run, body, digest = fields
        if seq_found == seq and digest == _digest(head, seq, time, kind, run, body):
            return LedgerRow(seq, time, kind, run, json.loads(body), digest)
    except (TypeError, ValueError):  # not text, or not JSON
        pass
    raise Damaged(f"The ledger {place} is damaged at row {seq}; restore it from a copy.")


def _kind(place: str) -> type[PostgresStore] | type[SqliteStore]:
    return PostgresStore if on_server(place) else SqliteStore


def _digest(head: str, *fields: int | str) -> str:
    return hashlib.sha256((head + json.dumps(fields)).encode()).hexdigest()
