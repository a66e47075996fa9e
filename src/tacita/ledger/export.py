"""A ledger as one JSON document for auditors: every row as it is stored, the head, and its owner's signature.

Each row's hash is SHA-256 of the hash before it (64 zeros before the first) followed by the JSON array
[seq, time, kind, run, body], in which `body` is text. So anybody can check the chain without this package. The
signature is Ed25519 over the UTF-8 text of `signed_text`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.ledger.admission import beyond
from tacita.ledger.chain import START, LedgerRow, verified
from tacita.ledger.rows import LedgerState, analyst_of
from tacita.ledger.store import Damaged, Fields

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from tacita.ledger.reader import LedgerReader

SCHEMA = 1
KIND = "tacita ledger export"
_FIELDS = ("seq", "time", "kind", "run", "body", "hash")
_SIGNED = ("name", "exported", "rows", "head")


def export_of(ledger: LedgerReader, *, key: bytes | None = None) -> dict[str, Any]:
    """Return a ledger for auditors, its chain checked.

    Args:
        ledger: The ledger.
        key: The owner's Ed25519 key as PEM, not encrypted; None leaves the head unsigned.

    Returns:
        Plain data for JSON. It names the ledger's file or database, and neither server nor password.

    Raises:
        PrivacyError: If the key is not one.
    """
    stored = ledger.stored()
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": KIND,
        "name": ledger.name,
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "head": rows_of(stored, ledger.name)[-1].hash,
        "rows": [dict(zip(_FIELDS, fields, strict=True)) for fields in stored],
        "signature": None,
    }
    if key is not None:
        secret = _private_key(key)
        document["signature"] = {
            "algorithm": "Ed25519",
            "public_key": secret.public_key().public_bytes_raw().hex(),
            "signature": secret.sign(signed_text(document).encode()).hex(),
        }
    return document


def signed_text(document: Mapping[str, Any]) -> str:
    """Return what a signature is over: the name, the time, how many rows there are, and the head."""
    signed = {**{name: document[name] for name in _SIGNED}, "rows": len(document["rows"]), "kind": KIND}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"))


def read_export(file: str | Path) -> dict[str, Any]:
    """Read an export. Its rows and its signature are checked by `export_rows` and `signing_key`.

    Raises:
        PrivacyError: If it is not one.
    """
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        if document["kind"] != KIND or document["schema"] != SCHEMA:
            raise ValueError(f"kind {document['kind']!r}, schema {document['schema']!r}")
        if not isinstance(document["rows"], list) or not all(isinstance(document[n], str) for n in ("name", "head")):
            raise ValueError("rows, name or head is of another type")
        _ = document["signature"], document["exported"]
    except FileNotFoundError:
        raise PrivacyError(f"There is no file {str(file)!r}.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise PrivacyError(f"{str(file)!r} is not an export of a ledger of this version: {error}.") from None
    return dict(document)


def export_rows(document: Mapping[str, Any]) -> list[LedgerRow]:
    """Return the rows of an export, having checked that each follows the one before and the last is its head.

    Raises:
        Damaged: If they do not.
    """
    try:
        rows = rows_of([tuple(row[name] for name in _FIELDS) for row in document["rows"]], document["name"])
    except (KeyError, TypeError) as error:
        raise Damaged(f"The export of {document['name']} is damaged: a row lacks {error}.") from None
    if not rows or rows[-1].hash != document["head"]:
        raise Damaged(f"The export of {document['name']} is damaged: its last row is not its head.")
    return rows


def rows_of(stored: Sequence[Fields], place: str) -> list[LedgerRow]:
    """Return rows as they are stored, having checked every link.

    Raises:
        Damaged: If there is another row in between, or none at all.
    """
    rows: list[LedgerRow] = []
    for seq, fields in enumerate(stored):
        rows.append(verified(fields, seq, rows[-1].hash if rows else START, place=place))
    if not rows:
        raise Damaged(f"The ledger {place} is damaged: it has no rows.")
    return rows


def beyond_budget(rows: Sequence[LedgerRow]) -> list[int]:
    """Return the numbers of rows that charge or reserve more than the budget, or their writer's share, then allowed.

    The ledger never grants such a row, so somebody wrote it by hand.

    Raises:
        Damaged: If a row cannot follow the others.
    """
    state, found = LedgerState(), []
    for row in rows:
        try:
            state.apply(row)
            if row.kind in ("charge", "release", "reserve") and beyond(state, analyst_of(row)):
                found.append(row.seq)
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"The ledger is damaged at row {row.seq}: {error}.") from error
    return found


def signing_key(document: Mapping[str, Any], expected: bytes | None = None) -> str:
    """Return the fingerprint of the key that an export's head is signed with; empty if it is unsigned.

    Args:
        document: The export.
        expected: The owner's public key as PEM; without one, any key is accepted, and its fingerprint is to be
            compared with the owner's.

    Raises:
        Damaged: If the signature is wrong, or of another key, or missing although a key is expected.
    """
    from_owner = None if expected is None else _public_key(expected)
    given = document["signature"]
    if given is None:
        if from_owner is not None:
            raise Damaged(f"The export of {document['name']} is not signed.")
        return ""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise _needs_cryptography() from error
    try:
        raw = bytes.fromhex(given["public_key"])
        Ed25519PublicKey.from_public_bytes(raw).verify(
            bytes.fromhex(given["signature"]), signed_text(document).encode()
        )
    except (InvalidSignature, KeyError, TypeError, ValueError):
        raise Damaged(f"The signature of the export of {document['name']} is wrong.") from None
    if from_owner is not None and from_owner.public_bytes_raw() != raw:
        raise Damaged(f"The export of {document['name']} is signed with another key than the one given.")
    return hashlib.sha256(raw).hexdigest()[:32]


def _needs_cryptography() -> ImportError:
    return _check.missing("Signatures need cryptography", "signing")


def _private_key(pem: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise _needs_cryptography() from error
    try:
        key = load_pem_private_key(pem, password=None)
    except (TypeError, ValueError):
        key = None  # what is wrong with it is not repeated
    if not isinstance(key, Ed25519PrivateKey):
        raise PrivacyError(
            "The key must be an Ed25519 key as PEM, not encrypted; make one with: "
            "openssl genpkey -algorithm ed25519 -out owner.pem"
        )
    return key


def _public_key(pem: bytes) -> Ed25519PublicKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise _needs_cryptography() from error
    try:
        key = load_pem_public_key(pem)
    except (TypeError, ValueError):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise PrivacyError(
            "The public key must be an Ed25519 key as PEM; make it with: openssl pkey -in owner.pem -pubout"
        )
    return key
