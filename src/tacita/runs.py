"""Run directories: the only reader and writer of them.

    run.json         what was declared, versions, the seed's fingerprint, the status
    ledger.sqlite    the run's own ledger, unless it shares one
    lock             held by whoever steps the run; see `tacita.owner`
    metrics.jsonl    one line a step, for the data's owner
    checkpoints/     step-00000100.safetensors with its .json; the last two are kept
    guarantee.json   the label as data, readings included, for the data's owner
    audit.json       what attacks found, for the data's owner
    label.html       safe to publish
    label-owner.html everything, for the data's owner

Files are written under another name, flushed to disk and renamed, so that a crash leaves the old file or the
new one. Nothing is ever unpickled: tensors are safetensors, everything else is JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1
LARGEST_JSON = 64 * 2**20
_KEPT = 2


class RunError(ValueError):
    """A run directory that cannot be used, and why."""


def create(path: str | Path) -> Path:
    """Make a run directory, or take an empty one. One that holds a run is refused."""
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{str(folder)!r} is not an empty folder; choose another run_dir, or resume the run that is there."
        )
    try:
        (folder / "checkpoints").mkdir(parents=True)
        os.chmod(folder, 0o700)  # everything but label.html is for the owner
    except OSError as error:
        raise RunError(
            f"The run directory {str(folder)!r} cannot be created: {error.strerror}; choose another place."
        ) from error
    return folder


def fresh_name(parent: str | Path, stem: str) -> Path:
    """Return the first of `stem-1`, `stem-2`, … that does not exist yet."""
    number = 1
    while (Path(parent) / f"{stem}-{number}").exists():
        number += 1
    return Path(parent) / f"{stem}-{number}"


def finished(folder: Path) -> str | None:
    """Return a line that says that a run is finished and what to do; None if something may be left to do."""
    if not (folder / "run.json").is_file() or read_json(folder, "run.json").get("status") != "done":
        return None
    return f"{str(folder)!r} is finished: no step is left to take. `tacita label {folder}` shows its label."


def write_json(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    """Replace a JSON document in the run directory."""
    _replace(folder / name, json.dumps(document, indent=2, allow_nan=False).encode() + b"\n")


def write_once(folder: Path, name: str, document: Mapping[str, Any]) -> bool:
    """Write a JSON document that can never be replaced; False, and nothing is written, if it is there already."""
    kept = folder / f"{name}.{os.getpid()}"
    _replace(kept, json.dumps(document, allow_nan=False).encode() + b"\n")
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
    _replace(folder / name, text.encode())


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


def refuse_others(folder: Path, document: Mapping[str, Any]) -> None:
    """Refuse any other run where only a training run will do."""
    if document.get("kind") == "synthesis":
        raise RunError(
            f"{str(folder)!r} is a generator's run: `tacita label` shows it, `tacita synthesise --resume` goes on, and "
            "its quality page holds what attacks found."
        )
    if document.get("kind") == "final-samples":
        raise RunError(
            f"{str(folder)!r} released draws of a posterior: `tacita label` shows it and tacita.inference.resume goes "
            "on; there is no private training in it."
        )
    if document.get("kind") == "federated":
        raise RunError(
            f"{str(folder)!r} is a federation's run: `tacita label` shows it and `tacita federate --resume` goes on; "
            "it is neither trained nor attacked as one dataset."
        )


def append_metrics(folder: Path, row: Mapping[str, Any]) -> None:
    """Add one line to metrics.jsonl."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write tensors and their document; the document, written last, holds the tensors' checksum."""
    from safetensors.torch import save

    stem = folder / "checkpoints" / f"step-{step:08d}"
    payload = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    _replace(stem.with_suffix(".safetensors"), payload)
    full = {"schema": SCHEMA, "step": step, "sha256": hashlib.sha256(payload).hexdigest(), **document}
    _replace(stem.with_suffix(".json"), json.dumps(full, allow_nan=False).encode())
    for old in _steps(folder)[:-_KEPT]:
        for suffix in (".json", ".safetensors"):
            (folder / "checkpoints" / f"step-{old:08d}{suffix}").unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the newest checkpoint. A damaged one is refused, never skipped in silence."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    steps = _steps(folder)
    if not steps:
        raise RunError(f"{str(folder)!r} has no checkpoint to resume from.")
    name = f"step-{steps[-1]:08d}"
    document = read_json(folder / "checkpoints", name + ".json")
    if document.get("schema") != SCHEMA or document.get("step") != steps[-1]:
        raise RunError(f"Checkpoint {name} is of another schema or step. {_way_out(folder, name)}")
    path = folder / "checkpoints" / (name + ".safetensors")
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise RunError(f"Checkpoint {name} has no tensors. {_way_out(folder, name)}") from error
    if hashlib.sha256(payload).hexdigest() != document.get("sha256"):
        raise RunError(f"Checkpoint {name} is damaged: its checksum is wrong. {_way_out(folder, name)}")
    try:
        return load(payload), document
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"Checkpoint {name} is damaged. {_way_out(folder, name)}") from error


def flatten(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Take the tensors out of nested dicts and lists, leaving plain data with references to them.

    Yields:
        (name, tensor) for each tensor, then ("", skeleton) where each tensor is {"tensor": name}.
    """
    import torch

    found: list[tuple[str, Any]] = []

    def walk(node: Any, name: str) -> Any:
        if isinstance(node, torch.Tensor):
            found.append((name, node.detach().cpu()))
            return {"tensor": name}
        if isinstance(node, Mapping):
            return {"dict": [[_key(k), walk(v, f"{name}.{k}")] for k, v in node.items()]}
        if isinstance(node, list | tuple):
            return {"list": [walk(v, f"{name}.{i}") for i, v in enumerate(node)]}
        if node is None or isinstance(node, bool | int | float | str):
            return {"value": node}
        raise RunError(f"Cannot save {type(node).__name__} at {name or 'the top'}: only tensors and plain data.")

    skeleton = walk(state, prefix)
    yield from found
    yield "", skeleton


def unflatten(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `flatten`."""
    if "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    if "dict" in skeleton:
        return {key: unflatten(value, tensors) for key, value in skeleton["dict"]}
    if "list" in skeleton:
        return [unflatten(value, tensors) for value in skeleton["list"]]
    return skeleton["value"]


def _key(key: object) -> int | str:
    if isinstance(key, int | str):
        return key
    raise RunError(f"Cannot save a key of type {type(key).__name__}.")


def _steps(folder: Path) -> list[int]:
    stems = (path.stem.removeprefix("step-") for path in (folder / "checkpoints").glob("step-*.json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _way_out(folder: Path, name: str) -> str:
    older = _steps(folder)[:-1]
    if not older:
        return "There is no older one: start a new run; what was charged stays charged."
    return f"Delete {name}.* to go on from step {older[-1]}; the steps between stay charged."


def _replace(path: Path, payload: bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
