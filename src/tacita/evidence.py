"""What a data-protection officer files about a run: one folder, with checksums.

README.txt       what is here, and who may see it
SHA256SUMS       of every other file; `sha256sum -c SHA256SUMS` checks them
public/          label.html, label.json, guarantees.json: nothing in them was computed from the data
confidential/    plan.json, ledger.json, versions.json, publication.json, and audit.json if there was an audit;
                 label-owner.html and guarantee.json where asked for
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from tacita.label import Label
from tacita.ledger import Ledger, is_there
from tacita.report.page import label_html
from tacita.runs import Run, RunError, read_json

_README = """Evidence of a privacy label: {title}

public/        may be published. Nothing in it was computed from the data, except what its owner chose to publish.
confidential/  for the data's owner and whoever supervises them: how far the run went, what attacks found and what else
               was charged may depend on the data.
{audit}
To check that no file was changed: sha256sum -c SHA256SUMS
The head of each ledger (confidential/ledger.json) names everything that was charged up to it.
Keep SHA256SUMS elsewhere too.
"""


def write_evidence(folder: Path, run: Run, label: Label, *, include: tuple[str, ...] = (), owner: bool = False) -> None:
    """Write the folder.

    Args:
        folder: A new folder, or an empty one.
        run: The run.
        label: Its label, with readings.
        include: Metrics that the owner chose to publish.
        owner: Whether to add the owner's label, with everything that was computed from the data.

    Raises:
        ValueError: If the folder holds anything.
    """
    require_empty(folder)
    public, document = label.public(include), run.document()
    plan = {
        name: _without_seeds(document[name]) for name in ("kind", "plan", "fit", "recipe", "tuned") if name in document
    }
    audited = (run.folder / "audit.json").exists()
    files: dict[str, Any] = {
        "public/label.html": label_html(public),
        "public/label.json": public.to_dict(),
        "public/guarantees.json": {"guarantees": [g.to_dict() for g in (public.worst, *public.comparisons)]},
        "confidential/plan.json": plan,
        "confidential/ledger.json": {"ledgers": [_ledger(place) for place in run.charged_at]},
        "confidential/versions.json": _versions(document),
        "confidential/publication.json": label.publication.to_dict(),
        **({"confidential/audit.json": read_json(run.folder, "audit.json")} if audited else {}),
        **({"confidential/label-owner.html": label_html(label)} if owner else {}),
        **({"confidential/guarantee.json": label.to_dict()} if owner else {}),
    }
    said = "" if audited else "               No attack was run on it: there is no audit.json.\n"
    files["README.txt"] = _README.format(title=" ".join(label.title.split()), audit=said)
    payloads = {name: _bytes(content) for name, content in files.items()}
    sums = "".join(f"{hashlib.sha256(payload).hexdigest()}  {name}\n" for name, payload in sorted(payloads.items()))
    for name, payload in {**payloads, "SHA256SUMS": sums.encode()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(payload)
    os.chmod(folder / "confidential", 0o700)


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds anything, or a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{str(folder)!r} exists and is not an empty folder; choose another: nothing is overwritten.")


def _without_seeds(value: Any) -> Any:
    """Return plain data without seeds: whoever knows one can remove the noise."""
    if isinstance(value, dict):
        return {name: _without_seeds(part) for name, part in value.items() if name not in ("seed", "coins")}
    return [_without_seeds(part) for part in value] if isinstance(value, list) else value


def _bytes(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode()
    return json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"


def _ledger(place: Path | str) -> dict[str, Any]:
    """Return every row of a ledger, its chain checked, and its head."""
    if not is_there(place):
        raise RunError(f"The ledger {str(place)!r} is not there: what was charged cannot be shown.")
    with Ledger.open(place) as ledger:
        return {
            "file": ledger.name,
            "data": ledger.data,
            "unit": ledger.unit,
            "neighbours": ledger.neighbours,
            "budget": None if ledger.budget is None else dict(zip(("epsilon", "delta"), ledger.budget, strict=True)),
            "head": ledger.head,
            "rows": [row._asdict() for row in ledger.rows()],
        }


def _versions(document: dict[str, Any]) -> dict[str, Any]:
    installed = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    return {
        "run": document.get("versions"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages_at_this_export": dict(sorted(installed.items())),
    }
