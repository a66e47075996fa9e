"""Files that survive a crash and a full disk: written under another name, flushed to disk and renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST_JSON = 64 * 2**20


class RunError(ValueError):
    """A run directory that cannot be used, and why."""


def write_json(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    """Replace a JSON document in the run directory."""
    replace_files({folder / name: json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"})


def write_once(folder: Path, name: str, document: Mapping[str, Any]) -> bool:
    """Write a JSON document that can never be replaced; False, and nothing is written, if it is there already."""
    kept = folder / f"{name}.{os.getpid()}"
    replace_files({kept: json.dumps(document, allow_nan=False).encode() + b"\n"})
    try:
        os.link(kept, folder / name)
    except FileExistsError:
        return False
    finally:
        kept.unlink()
    _sync_folder(folder)
    return True


def write_text(folder: Path, name: str, text: str) -> None:
    """Replace a text file in the run directory."""
    replace_files({folder / name: text.encode()})


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON document of a run directory; a file that is not one is refused in one line."""
    path = folder / name
    if not folder.is_dir():
        what = "it is a file" if folder.is_file() else "there is no such folder"
        raise RunError(f"{str(folder)!r} is not a run directory: {what}.")
    if not path.is_file():
        raise RunError(f"{str(folder)!r} has no {name}: it is not a run directory, or one of another kind.")
    if path.stat().st_size > LARGEST_JSON:
        raise RunError(f"{str(path)!r} is too large to be genuine.")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{str(path)!r} is damaged: it is not JSON.") from error
    if not isinstance(document, dict):
        raise RunError(f"{str(path)!r} is damaged: it holds no JSON object.")
    return document


def replace_files(files: Mapping[Path, bytes]) -> None:
    """Replace files, the last one last: none of them, and nothing is left behind, if there is no room for all."""
    parts = {path: path.with_name(path.name + ".part") for path in files}
    try:
        for path, payload in files.items():
            with parts[path].open("wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
