"""Rows in one table of a PostgreSQL database, shared by machines and people.

A transaction is serialisable, and first waits for its turn: a lock on an empty table of its own, because a lock on the
rows' table would need the right to change rows. If the connection is lost before COMMIT is sent, nothing was written
and the transaction is tried again; if it is lost afterwards, nobody knows, and the caller is told to release nothing.
Every failure becomes a `PrivacyError` of one line, raised before the caller can release anything.

Passwords are kept apart from the place as it is shown, in this process alone, and errors of libpq about a connection
are not repeated where they could quote what was parsed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString
from urllib.parse import quote, urlencode

from tacita import _check
from tacita._check import PrivacyError
from tacita.ledger.store import Conflict, Damaged, Fields

if TYPE_CHECKING:
    import psycopg

_TIMEOUT = 30.0  # seconds to wait for another writer, or for a server that restarts
_UNREADABLE = (
    "ledger: the URL cannot be read (it is not shown, as it may hold a password). Pass "
    "postgresql://USER@HOST:PORT/DATABASE, and write special characters as %40 and the like."
)
_SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_GIVEN: dict[str, Mapping[str, str]] = {}  # passwords that opened a place, for what this process opens again by it
_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "30000", "application_name": "tacita"}
_TURN = "LOCK TABLE tacita.turn IN SHARE ROW EXCLUSIVE MODE"
_CLOCK = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"+00:00\"')"
_REFUSES = "BEGIN RAISE EXCEPTION 'the ledger is append-only'; END"
_NO_GAP = """BEGIN
    IF NEW.seq IS DISTINCT FROM (SELECT coalesce(max(seq) + 1, 0) FROM tacita.ledger) THEN
        RAISE EXCEPTION 'the ledger is append-only';
    END IF;
    IF NEW.body::json->>'by' IS DISTINCT FROM session_user::text THEN
        RAISE EXCEPTION 'a row must name the role that has logged in to write it';
    END IF;
    RETURN NEW;
END"""
_SCHEMA = f"""
CREATE SCHEMA tacita;
CREATE TABLE tacita.ledger (
    seq bigint PRIMARY KEY, "time" text NOT NULL, kind text NOT NULL, run text NOT NULL,
    body text NOT NULL, hash text NOT NULL
);
CREATE TABLE tacita.turn ();
CREATE FUNCTION tacita.refuse() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $${_REFUSES}$$;
CREATE FUNCTION tacita.no_gap() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $${_NO_GAP}$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tacita.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION tacita.refuse();
CREATE TRIGGER no_gap BEFORE INSERT ON tacita.ledger FOR EACH ROW EXECUTE FUNCTION tacita.no_gap();
ALTER TABLE tacita.ledger ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE tacita.ledger ENABLE ALWAYS TRIGGER no_gap;
REVOKE ALL ON tacita.ledger, tacita.turn FROM PUBLIC;
REVOKE UPDATE, DELETE, TRUNCATE ON tacita.ledger FROM CURRENT_USER;
ALTER TABLE tacita.ledger ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody_sees_all ON tacita.ledger FOR SELECT USING (true);
CREATE POLICY chargers_set_no_budget ON tacita.ledger FOR INSERT WITH CHECK (kind NOT IN ('ledger', 'budget', 'share'));
"""
_TRIGGERS = """
SELECT tgname, tgtype::int, tgenabled::text, prosrc FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE tgrelid = 'tacita.ledger'::regclass AND NOT tgisinternal ORDER BY tgname
"""
# What pg_trigger holds of them: 58 is before update, delete and truncate; 7 before insert, for each row; A is always.
_EXPECTED = [("append_only", 58, "A", _REFUSES), ("no_gap", 7, "A", _NO_GAP)]


@dataclass(frozen=True)
class ServerPlace:
    """A URL taken apart.

    Attributes:
        shown: The URL without what is secret.
        name: The database.
        options: What to connect with, but for the secrets.
        secrets: Passwords that the URL held.
    """

    shown: str
    name: str
    options: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)


def place_of(url: str) -> ServerPlace:
    """Take a URL apart.

    Examples:
        >>> place_of("postgresql://alice:secret@db.example.org/patients").shown
        'postgresql://alice@db.example.org/patients'
    """
    given = _parsed(url)
    name, host = given.get("dbname", ""), given.get("host", "")
    if "@" in name + host or not re.fullmatch(r"[\d,]*", given.get("port", "")):  # a part of a password, perhaps
        raise ValueError(_UNREADABLE)
    if not name:
        raise ValueError("ledger: the URL names no database; pass postgresql://USER@HOST/DATABASE.")
    secrets = {key: given.pop(key) for key in _SECRETS if key in given}
    rest = {key: value for key, value in given.items() if key not in ("user", "dbname")}
    address = f"{quote(given['user'], safe='')}@" if "user" in given else ""
    if re.fullmatch(r"[\w.-]+", host) and given.get("port", "0").isdigit():
        address += rest.pop("host") + (f":{rest.pop('port')}" if "port" in rest else "")
    query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return ServerPlace(f"postgresql://{address}/{quote(name, safe='')}{query}", name, given, secrets)


def _parsed(url: str) -> dict[str, str]:
    """Return what libpq makes of a URL. Its complaints quote the URL, so they are not repeated."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise _check.missing("A ledger on a server needs psycopg", "postgres") from error
    try:
        return {key: str(value) for key, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        pass
    raise ValueError(_UNREADABLE)


class PostgresStore:
    """The rows of one database; see `Store`. A connection that was lost is made anew at the next use."""

    def __init__(self, place: ServerPlace) -> None:
        self._where, self.place, self.name, self.analyst = place, place.shown, place.name, ""
        self._process, self._closed, self._writing, self._time = os.getpid(), False, False, ""
        self.connection = self._connected()

    @classmethod
    @contextmanager
    def creating(cls, url: str) -> Iterator[PostgresStore]:
        """Make the schema for the rows that are inserted within; if anything fails, nothing is left of it."""
        store = cls(place_of(url))
        try:
            with store.using():
                store._execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL synchronous_commit = on")
                if store._has_ledger():
                    raise PrivacyError(f"{store.place} has a ledger already; open it, or choose another database.")
                store._execute(_SCHEMA)
                store._time, store._writing = store._last(_CLOCK), True
                yield store
            store._commit()
            store._leave()
        except BaseException:
            store.close()
            raise

    @classmethod
    def open(cls, url: str) -> PostgresStore:
        """Open a database's ledger, having checked that its triggers are as they were made."""
        return cls._opened(place_of(url))

    @classmethod
    def _opened(cls, place: ServerPlace) -> PostgresStore:
        store = cls(place)
        try:
            with store.using():
                store._check_schema()
        except BaseException:
            store.close()
            raise
        return store

    def declare(self, analyst: str) -> None:
        """Refuse another name than that of the role which has logged in: the server refuses its rows as well."""
        if analyst not in ("", self.analyst):
            raise PrivacyError(
                f"On a server the analyst is the role that logs in, which is {self.analyst!r}: leave the name "
                f"{analyst!r} out, or connect as that role."
            )

    def now(self) -> str:
        """Return the time on the clock of the server, one for all; in a transaction, that of its turn."""
        return self._time if self._writing else str(self._read(_CLOCK)[0][0])

    def again(self) -> PostgresStore:
        """Open the rows a second time, over another connection."""
        return PostgresStore._opened(self._where)

    def close(self) -> None:
        """Close the connection; in a forked child it is the parent's, and stays."""
        self._closed = True
        if os.getpid() == self._process:
            self.connection.close()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Turn failures into a `PrivacyError`; a `Conflict` in a transaction, before its COMMIT is sent."""
        import psycopg
        from psycopg import errors

        try:
            yield
        except psycopg.Error as error:
            again = isinstance(error, errors.SerializationFailure | errors.DeadlockDetected | errors.UniqueViolation)
            kind = Conflict if self._writing and (again or self.connection.closed) else PrivacyError
            raise kind(f"The ledger {self.place} cannot be used: {_reason(error)}. Release nothing.") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Wait for this writer's turn; on leaving, what was inserted is on the server's disk, or nothing is.

        Raises:
            Conflict: If for certain nothing was written, and the next time something may be.
        """
        self._reconnect()
        self._writing = True
        try:
            with self.using():
                self._time = self._last(
                    "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL synchronous_commit = on; "
                    f"SET LOCAL lock_timeout = {round(1000 * _TIMEOUT)}; "
                    "SET LOCAL idle_in_transaction_session_timeout = '60s'; "
                    f"{_TURN}; "  # before the first query, so that this sees what others have added
                    f"{_CLOCK}"
                )
                yield
            self._commit()
        finally:
            self._leave()

    def rows(self, first: int) -> list[Fields]:
        """Return the rows from number `first` on, in order."""
        query = 'SELECT seq, "time", kind, run, body, hash FROM tacita.ledger WHERE seq >= %s ORDER BY seq'
        if self._writing:  # never over another connection than the one that holds the turn
            return self.connection.execute(query, (first,)).fetchall()
        return self._read(query, first)

    def _read(self, query: LiteralString, *values: Any) -> list[Fields]:
        import psycopg

        self._reconnect()
        try:
            return self.connection.execute(query, values).fetchall()
        except psycopg.OperationalError:
            if not self.connection.closed:
                raise
        self._reconnect()
        return self.connection.execute(query, values).fetchall()

    def insert(self, fields: Fields) -> None:
        """Add a row within a transaction."""
        done = self.connection.execute("INSERT INTO tacita.ledger VALUES (%s, %s, %s, %s, %s, %s)", fields)
        if done.rowcount != 1:  # a rule of the database's owner can turn an insert into nothing
            raise PrivacyError(f"The ledger {self.place} did not take a row. Release nothing.")

    def _commit(self) -> None:
        import psycopg
        from psycopg import errors

        try:
            done = self.connection.execute("COMMIT").statusmessage
        except errors.SerializationFailure as error:
            raise Conflict(f"The ledger {self.place} was in use by others. Nothing was charged.") from error
        except psycopg.Error as error:
            if not self.connection.closed:
                raise
            raise PrivacyError(
                f"The connection to the ledger {self.place} was lost while a row was being kept, so nobody knows "
                "whether it was: count it as charged, and release nothing. The ledger says it when it is there again."
            ) from error
        if done != "COMMIT":  # of a transaction that failed, PostgreSQL says ROLLBACK and no error
            raise PrivacyError(f"The ledger {self.place} did not keep a row. Release nothing.")

    def _leave(self) -> None:
        """End a transaction that is still open; one that was interrupted in between is dropped with its connection."""
        import psycopg
        from psycopg.pq import TransactionStatus

        self._writing = False
        status = self.connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                self._execute("ROLLBACK")
        elif status != TransactionStatus.IDLE:
            self.connection.close()

    def _execute(self, statements: str) -> None:
        self.connection.execute(statements.encode())

    def _last(self, statements: str) -> str:
        """Run statements and return the only value of the last one."""
        cursor = self.connection.execute(statements.encode())
        while cursor.nextset():
            pass
        found = cursor.fetchone()
        return str(found[0]) if found else ""

    def _reconnect(self) -> None:
        """Make a lost connection anew, for as long as a server takes to restart."""
        if self._closed:
            raise PrivacyError(f"The ledger {self.place} cannot be used: it was closed. Release nothing.")
        until = time.monotonic() + _TIMEOUT
        while self.connection.closed:
            try:
                self.connection = self._connected()
            except PrivacyError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def _connected(self) -> psycopg.Connection[Fields]:
        import psycopg

        secrets = self._where.secrets or _GIVEN.get(self.place, {})
        options: dict[str, Any] = {**_DEFAULTS, **self._where.options, **secrets}
        failed = ""
        try:
            made = psycopg.connect(**options, autocommit=True, prepare_threshold=None, client_encoding="utf-8")
        except psycopg.Error as error:  # without what it came from, which may quote an option
            failed = _reason(error)
            for secret in filter(None, secrets.values()):
                failed = failed.replace(secret, "***")
        if failed:
            raise PrivacyError(f"The ledger {self.place} cannot be reached: {failed}. Release nothing.")
        _GIVEN[self.place] = secrets
        try:
            with self.using():
                self._check_server(made)
        except BaseException:
            made.close()
            raise
        return made

    def _check_server(self, made: psycopg.Connection[Fields]) -> None:
        """Refuse a server that forgets what it said it kept."""
        found = made.execute("SELECT current_setting('fsync'), pg_is_in_recovery(), session_user::text").fetchone()
        if found is None or found[0] != "on":
            raise PrivacyError(f"The ledger {self.place} cannot be made crash-safe: its server runs with fsync off.")
        if found[1]:
            raise PrivacyError(f"The ledger {self.place} is a standby's copy, which may lag: connect to its primary.")
        self.analyst = str(found[2])  # whoever logged in, whatever role was taken on since

    def _has_ledger(self) -> bool:
        query = "SELECT 1 FROM pg_class WHERE relname = 'ledger' AND relnamespace = to_regnamespace('tacita')"
        return self.connection.execute(query).fetchone() is not None

    def _check_schema(self) -> None:
        if not self._has_ledger():
            raise PrivacyError(f"There is no ledger at {self.place}: create it first (tacita ledger create URL).")
        if self.connection.execute(_TRIGGERS).fetchall() != _EXPECTED:
            raise Damaged(f"{self.place} is not a ledger of this version, or its triggers were changed.")


def _reason(error: psycopg.Error) -> str:
    """Return what the server or libpq says in one line, without the details, which quote the row."""
    text = error.diag.message_primary or str(error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__
