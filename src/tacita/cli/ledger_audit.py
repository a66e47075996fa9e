"""`tacita ledger export|check`: a ledger for auditors, and whether it is the one that it was."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import JSON, busy, print_json
from tacita.cli.ledger import FILE, ledger_app, opened

if TYPE_CHECKING:
    from tacita.ledger import LedgerRow

FOUND = 1  # exit code of a check that found something wrong; 2 if it could not be made
_OUT = Annotated[Path, typer.Option("--output", "-o", help="A new JSON file.")]
_KEY = Annotated[Path | None, typer.Option(help="The owner's Ed25519 key (PEM), to sign the head with.")]
_LEDGER = Annotated[str, typer.Argument(help="A ledger's file or URL, or an export of one (.json).", metavar="LEDGER")]


@ledger_app.command(epilog="Example: tacita ledger export budget.sqlite -o export.json --key owner.pem")
def export(file: FILE, output: _OUT, key: _KEY = None, as_json: JSON = False) -> None:
    """Write every row as it is stored, and the head, signed if a key is given. It holds no server and no password."""
    from tacita.ledger import export_of

    pem = None if key is None else key.read_bytes()
    if output.exists():
        raise ValueError(f"{str(output)!r} exists already; choose another file: nothing is overwritten.")
    with opened(file) as ledger:
        document = export_of(ledger, key=pem)
    with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as written:
        json.dump(document, written, indent=1)
    signature = document["signature"]
    if as_json:
        told = {"rows": len(document["rows"]), "head": document["head"], "signature": signature}
        print_json({"schema": 1, "written": str(output), **told})
        return
    typer.echo(f"Written: {output} ({len(document['rows'])} rows, {'signed' if signature else 'not signed'})")
    typer.echo(f"head:    {document['head']}")


@dataclass
class _Check:
    """What a check says and what it found wrong."""

    said: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@ledger_app.command(epilog="Example: tacita ledger check budget.sqlite --export export.json --public-key owner.pub.pem")
def check(
    ledger: _LEDGER,
    head: Annotated[str | None, typer.Option(help="A head that was kept elsewhere.")] = None,
    export: Annotated[Path | None, typer.Option(help="An export that was kept elsewhere.")] = None,
    public_key: Annotated[Path | None, typer.Option(help="The owner's public Ed25519 key (PEM).")] = None,
    as_json: JSON = False,
) -> None:
    """Check a ledger: every link of its chain, every charge against the budget in force, and what was kept of it.

    Exit code 0 if all is well, 1 if something is wrong, 2 if it could not be checked. Without a kept head or export an
    older copy of the ledger cannot be told from the newest.
    """
    from tacita.ledger import Damaged

    is_export = ledger.endswith(".json")
    if public_key is not None and export is None and not is_export:
        raise ValueError("--public-key is for the signature of an export: pass --export FILE too.")
    if is_export and export is not None:
        raise ValueError("Compare an export with a ledger: pass the ledger's file or URL, not another export.")
    if head is not None and (len(head) != 64 or set(head) - set("0123456789abcdef")):
        raise ValueError("--head must be the 64 digits that `tacita ledger show` prints.")
    expected, found = None if public_key is None else public_key.read_bytes(), _Check()
    rows: Sequence[LedgerRow] = ()
    with busy("Checking", quiet=as_json):
        try:
            rows = _exported(Path(ledger), expected, found) if is_export else _read(ledger, found)
            _compare(rows, head, "The head that was kept", found)
            if export is not None:
                kept = _exported(export, expected, found)
                _compare(rows, kept[-1].hash, "The export's head", found)
        except Damaged as error:
            found.problems.append(str(error))
    _tell(rows, found, as_json)
    if found.problems:
        raise typer.Exit(FOUND)


def _read(place: str, found: _Check) -> list[LedgerRow]:
    from tacita.ledger.export import beyond_budget

    with opened(place) as ledger:
        rows = ledger.rows()
    found.said.append(f"chain:     {len(rows)} rows, each follows the one before")
    _check_budget(beyond_budget(rows), found)
    return rows


def _exported(file: Path, expected: bytes | None, found: _Check) -> list[LedgerRow]:
    from tacita.ledger.export import beyond_budget, export_rows, read_export, signing_key

    document = read_export(file)
    rows = export_rows(document)
    found.said.append(f"export:    {len(rows)} rows of {document['name']}, each follows the one before")
    _check_budget(beyond_budget(rows), found)
    key, compare = signing_key(document, expected), "" if expected else "; compare it with the owner's"
    found.said.append(f"signature: by the key {key}{compare}" if key else "signature: none")
    return rows


def _check_budget(beyond: list[int], found: _Check) -> None:
    if beyond:
        shown = ", ".join(map(str, beyond[:10])) + (" and more" if len(beyond) > 10 else "")
        found.problems.append(f"Beyond the budget in force when they were written: rows {shown}.")


def _compare(rows: Sequence[LedgerRow], head: str | None, what: str, found: _Check) -> None:
    if head is None:
        return
    place = next((row.seq for row in rows if row.hash == head), None)
    if place is None:
        found.problems.append(f"{what} is not in this ledger: it was rolled back, or is another one.")
        return
    later = rows[-1].seq - place
    found.said.append(f"kept:      {what.lower()} is row {place}; {later or 'no'} rows were added since")


def _tell(rows: Sequence[LedgerRow], found: _Check, as_json: bool) -> None:
    head = rows[-1].hash if rows else None
    if as_json:
        told: dict[str, Any] = {"ok": not found.problems, "problems": found.problems, "checked": found.said}
        print_json({"schema": 1, **told, "rows": len(rows), "head": head})
        return
    for line in found.said:
        typer.echo(line)
    if head is not None:
        typer.echo(f"head:      {head}")
    for problem in found.problems:
        typer.echo(f"WRONG:     {problem}")
    typer.echo("Something is wrong with this ledger." if found.problems else "All is well.")
