"""Append-only rows in one SQLite file, each carrying the hash of everything before it.

The file is in WAL mode with synchronous=FULL: when `transaction` returns, the row is on the disk. Every failure of
SQLite or of the file becomes a `PrivacyError`, raised before the caller can release anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tacita._check import PrivacyError
from tacita.facts import MEMORY

START = "0" * 64
_APPLICATION = 0x7AC17A
_TIMEOUT = 30.0  # seconds to wait for another writer
_SCHEMA = f"""
BEGIN;
PRAGMA application_id = {_APPLICATION};
CREATE TABLE ledger (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, run TEXT NOT NULL,
    body TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
CREATE TRIGGER no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_gap BEFORE INSERT ON ledger
WHEN NEW.seq IS NOT (SELECT ifnull(max(seq) + 1, 0) FROM ledger)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
COMMIT;
"""


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

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.path = path
        self.connection = connection
        self.lock = threading.RLock()
        self._process = os.getpid()
        self.file = None if path == MEMORY else Path(path).resolve()  # SQLite's -wal lies beside what a link points to
        self._opened: tuple[tuple[int, int], ...] | None = None
        self.close = weakref.finalize(self, connection.close)

    @classmethod
    def create(cls, path: str, first: Sequence[tuple[str, Mapping[str, Any]]]) -> Chain:
        """Make a chain of the rows `first`; refuses a path that exists. Only the owner may read or write the file."""
        if path != MEMORY:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except FileExistsError:
                raise PrivacyError(f"{path} exists already; open it, or choose another path.") from None
            except OSError as error:
                raise PrivacyError(f"The ledger {path} cannot be created: {error.strerror}.") from error
        try:
            with _clear(path):
                chain = cls(_connect(path), path)
                chain.connection.executescript(_SCHEMA)
                chain._configure()
                with chain.transaction():
                    head = START
                    for seq, (kind, body) in enumerate(first):
                        head = chain.append(kind, "", body, last=seq - 1, head=head)
                _sync_folder(path)
                chain._opened = chain._files()
        except BaseException:
            if path != MEMORY:
                Path(path).unlink()
            raise
        return chain

    @classmethod
    def open(cls, path: str) -> Chain:
        """Open a chain and check that the file is sound. Rows are checked when they are read."""
        if path == MEMORY or not Path(path).is_file():
            raise PrivacyError(
                f"There is no ledger at {path}: create it first, or give the place that it was moved to."
            )
        with _clear(path):
            chain = cls(_connect(path), path)
            try:
                chain._check_file()
                chain._configure()
                chain.connection.execute("SELECT 1 FROM ledger").fetchone()  # the -wal is there from now on
                chain._opened = chain._files()
            except BaseException:
                chain.close()
                raise
        return chain

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the only write lock; on leaving, what was appended is on the disk, or nothing is."""
        with self._use():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def read(self, *, last: int = -1, head: str = START) -> list[LedgerRow]:
        """Return the rows after number `last`, whose hash was `head`, having checked every link."""
        with self._use():
            query = "SELECT seq, time, kind, run, body, hash FROM ledger WHERE seq >= ? ORDER BY seq"
            found = self.connection.execute(query, (last,)).fetchall()
        if last >= 0 and (not found or found[0][5] != head):
            raise PrivacyError(
                f"The ledger {self.path} was rolled back or replaced while in use; restore the newest copy."
            )
        rows = []
        for fields in found[last >= 0 :]:
            rows.append(self._verified(fields, last + 1, head))
            last, head = rows[-1].seq, rows[-1].hash
        return rows

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
        time = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        digest = _digest(head, last + 1, time, kind, run, text)
        self.connection.execute("INSERT INTO ledger VALUES (?,?,?,?,?,?)", (last + 1, time, kind, run, text, digest))
        return digest

    @contextmanager
    def _use(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise PrivacyError(f"The ledger {self.path} was opened by another process; open it again in this one.")
        with self.lock, _clear(self.path):
            if self._opened is not None and self.close.alive and self._files() != self._opened:
                raise PrivacyError(
                    f"The ledger {self.path} was removed or replaced while in use: what is charged to it would be "
                    "forgotten. Restore the newest copy and resume; nothing is released until then."
                )
            yield

    def _files(self) -> tuple[tuple[int, int], ...] | None:
        """Return which files are where the ledger's were opened; SQLite writes on to files that were removed.

        New rows are in the -wal until SQLite moves them, and its locks are in the -shm, so all three must stay.
        """
        if self.file is None:
            return None
        found = []
        for suffix in ("", "-wal", "-shm"):
            try:
                status = os.stat(f"{self.file}{suffix}")
            except FileNotFoundError:
                found.append((0, 0))
            else:
                found.append((status.st_dev, status.st_ino))
                if status.st_nlink > 1:
                    raise PrivacyError(
                        f"The ledger {self.path} has a second name (a hard link), under which its charges would not be "
                        "seen: remove the other name."
                    )
        return tuple(found)

    def _verified(self, fields: tuple[Any, ...], seq: int, head: str) -> LedgerRow:
        try:
            seq_found, time, kind, run, body, digest = fields
            if seq_found == seq and digest == _digest(head, seq, time, kind, run, body):
                return LedgerRow(seq, time, kind, run, json.loads(body), digest)
        except (TypeError, ValueError):  # not text, or not JSON
            pass
        raise PrivacyError(f"The ledger {self.path} is damaged at row {seq}; restore it from a copy.")

    def _check_file(self) -> None:
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION or _schema(self.connection) != _expected_schema():
            raise PrivacyError(f"{self.path} is not a ledger of this version, or its triggers were changed.")
        (verdict,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise PrivacyError(
                f"The ledger {self.path} is damaged: {' '.join(verdict.split())}; restore it from a copy."
            )

    def _configure(self) -> None:
        (mode,) = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != ("memory" if self.path == MEMORY else "wal"):
            raise PrivacyError(f"The ledger {self.path} cannot be made crash-safe there; put it on a local disk.")
        self.connection.execute("PRAGMA synchronous = FULL")


@contextmanager
def _clear(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = " ".join(str(error).split())
        raise PrivacyError(f"The ledger {path} cannot be used: {reason}. Release nothing.") from error


def _connect(path: str) -> sqlite3.Connection:
    target = path if path == MEMORY else f"{Path(path).absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(target, uri=True, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _sync_folder(path: str) -> None:
    if path == MEMORY:
        return
    folder = os.open(Path(path).absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(head: str, *fields: int | str) -> str:
    return hashlib.sha256((head + json.dumps(fields)).encode()).hexdigest()


def _schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _expected_schema() -> list[tuple[str, ...]]:
    connection = sqlite3.connect(MEMORY)
    try:
        connection.executescript(_SCHEMA)
        return _schema(connection)
    finally:
        connection.close()
