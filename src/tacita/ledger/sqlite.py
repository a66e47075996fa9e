"""Rows in one SQLite file.

The file is in WAL mode with synchronous=FULL: when `transaction` returns, the row is on the disk. Every failure of
SQLite or of the file becomes a `PrivacyError`, raised before the caller can release anything.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tacita._check import PrivacyError
from tacita.facts import MEMORY
from tacita.ledger.store import Damaged, Fields

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


class SqliteStore:
    """The rows of one file, or of this process's memory; see `Store`."""

    def __init__(self, path: str) -> None:
        self.place = path
        self.name, self.analyst = Path(path).name, ""
        self.file = None if path == MEMORY else Path(path).resolve()  # SQLite's -wal lies beside what a link points to
        self.connection = _connect(path)
        self._opened: tuple[tuple[int, int], ...] | None = None
        self._closed = False

    @classmethod
    @contextmanager
    def creating(cls, path: str) -> Iterator[SqliteStore]:
        """Make a file for the rows that are inserted within; refuses a path that exists.

        Only the owner may read or write the file. If anything fails, no file is left.
        """
        if path != MEMORY:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except FileExistsError:
                raise PrivacyError(f"{path} exists already; open it, or choose another path.") from None
            except OSError as error:
                raise PrivacyError(f"The ledger {path} cannot be created: {error.strerror}.") from error
        try:
            with _clear(path):
                store = cls(path)
                store.connection.executescript(_SCHEMA)
                store._configure()
                with store.transaction():
                    yield store
                _sync_folder(path)
                store._opened = store._files()
        except BaseException:
            if path != MEMORY:
                Path(path).unlink()
            raise

    @classmethod
    def open(cls, path: str) -> SqliteStore:
        """Open a file, having checked that it is sound. Rows are checked when they are read."""
        if path == MEMORY or not Path(path).is_file():
            raise PrivacyError(
                f"There is no ledger at {path}: create it first, or give the place that it was moved to."
            )
        with _clear(path):
            store = cls(path)
            try:
                store._check_file()
                store._configure()
                store.connection.execute("SELECT 1 FROM ledger").fetchone()  # the -wal is there from now on
                store._opened = store._files()
            except BaseException:
                store.close()
                raise
        return store

    def declare(self, analyst: str) -> None:
        """Say who writes; a file knows nobody, so it is a name that is taken at its word."""
        self.analyst = analyst

    def now(self) -> str:
        """Return the time on this machine's clock."""
        return datetime.now(UTC).isoformat(timespec="seconds")

    def again(self) -> SqliteStore | None:
        """Open the file a second time, whatever the working directory is by now; None in memory."""
        return None if self.file is None else SqliteStore.open(str(self.file))

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self.connection.close()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Turn failures into a `PrivacyError`; refuse if the file is not the one that was opened."""
        with _clear(self.place):
            if self._opened is not None and not self._closed and self._files() != self._opened:
                raise PrivacyError(
                    f"The ledger {self.place} was removed or replaced while in use: what is charged to it would be "
                    "forgotten. Restore the newest copy and resume; nothing is released until then."
                )
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the file's only write lock."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def rows(self, first: int) -> list[Fields]:
        """Return the rows from number `first` on, in order."""
        query = "SELECT seq, time, kind, run, body, hash FROM ledger WHERE seq >= ? ORDER BY seq"
        return self.connection.execute(query, (first,)).fetchall()

    def insert(self, fields: Fields) -> None:
        """Add a row within a transaction."""
        self.connection.execute("INSERT INTO ledger VALUES (?,?,?,?,?,?)", fields)

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
                        f"The ledger {self.place} has a second name (a hard link), under which its charges would not "
                        "be seen: remove the other name."
                    )
        return tuple(found)

    def _check_file(self) -> None:
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION or _schema(self.connection) != _expected_schema():
            raise Damaged(f"{self.place} is not a ledger of this version, or its triggers were changed.")
        (verdict,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise Damaged(f"The ledger {self.place} is damaged: {' '.join(verdict.split())}; restore it from a copy.")

    def _configure(self) -> None:
        (mode,) = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != ("memory" if self.place == MEMORY else "wal"):
            raise PrivacyError(f"The ledger {self.place} cannot be made crash-safe there; put it on a local disk.")
        self.connection.execute("PRAGMA synchronous = FULL")


@contextmanager
def _clear(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = " ".join(str(error).split())
        kind = Damaged if "malformed" in reason or "not a database" in reason else PrivacyError
        raise kind(f"The ledger {path} cannot be used: {reason}. Release nothing.") from error


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


def _schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _expected_schema() -> list[tuple[str, ...]]:
    connection = sqlite3.connect(MEMORY)
    try:
        connection.executescript(_SCHEMA)
        return _schema(connection)
    finally:
        connection.close()
