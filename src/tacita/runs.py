"""Run directories: the only reader and writer of them.

    run.json         what was asked for and declared, versions, status; see `Run`
    ledger.sqlite    the run's own ledger, unless it shares one
    lock             held by whoever steps the run; see `tacita.owner`
    metrics.jsonl    one line a step, for the data's owner
    checkpoints/     step-00000100.safetensors with its .json; the last two are kept
    guarantee.json   the label as data, readings included, for the data's owner
    audit.json       what attacks found, for the data's owner
    label.html       safe to publish
    label-owner.html everything, for the data's owner
    publication.json who issued the label, once stated
    model.safetensors, weights.sha256  the weights alone and their checksum, once the label is issued

Files are written under another name, flushed to disk and renamed, so that a crash leaves the old file or the
new one. Nothing is ever unpickled: tensors are safetensors, everything else is JSON.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita._version import __version__
from tacita.facts import RunFacts
from tacita.label import Label
from tacita.publication import Publication
from tacita.report.page import label_html

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 2
FILE = "run.json"
LARGEST_JSON = 64 * 2**20
_KEPT = 2
_PUBLICATION = "publication.json"


class RunError(ValueError):
    """A run directory that cannot be used, and why."""


@dataclass(frozen=True)
class Run:
    """A run directory. It knows no kind of run by name: `cli.kinds` has the table of them.

    `run.json` says what a run is:

        schema, kind     the kind decides who builds its label
        family           which package wrote its checkpoints and can continue it
        id               its name in the ledger
        versions         of tacita and torch
        recipe           what was asked for, where a recipe started it
        plan             what was declared
        facts            `RunFacts`: title, status, sizes
        ledgers          where it is charged: names in the folder, or whole paths
        seed_fingerprint of a chosen seed
        own              whatever else its kind needs

    Attributes:
        folder: Where it is.
    """

    folder: Path

    @classmethod
    def create(cls, path: str | Path) -> Run:
        """Make a run directory, or take an empty one.

        Raises:
            RunError: If the folder holds anything, or cannot be made.
        """
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
        return cls(folder)

    @classmethod
    def open(cls, path: str | Path, family: str | None = None) -> Run:
        """Return an existing run.

        Args:
            path: Its folder.
            family: Refuse runs of other families.

        Raises:
            RunError: If there is no run, it is of another version, or it is of another family.
        """
        run = cls(Path(path))
        found = run.document()
        if family is not None and found["family"] != family:
            raise RunError(
                f"{str(run.folder)!r} is a run of kind {found['kind']!r} and is not one of {family}; "
                f"`tacita label {run.folder}` shows it."
            )
        return run

    @property
    def exists(self) -> bool:
        """Whether there is a run.json."""
        return (self.folder / FILE).is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to go on from."""
        return bool(_steps(self.folder))

    def document(self) -> dict[str, Any]:
        """Return run.json; one of another version is refused."""
        document = read_json(self.folder, FILE)
        if document.get("schema") != SCHEMA:
            raise RunError(
                f"{str(self.folder)!r} was written by another version (format {document.get('schema')}; this one reads "
                f"{SCHEMA}): use the version that wrote it. What the run was charged stays in its ledger."
            )
        for name in ("kind", "family"):
            if not isinstance(document.get(name), str):
                raise RunError(f"The run in {str(self.folder)!r} is damaged: its {name} is missing.")
        return document

    def write(self, **entries: Any) -> None:
        """Add entries to run.json, or replace them; `kind` and `family` first of all."""
        before = self.document() if self.exists else {"schema": SCHEMA}
        versions = {"tacita": __version__, "torch": _torch_version()}
        write_json(self.folder, FILE, {**before, **entries, "versions": versions})

    @property
    def kind(self) -> str:
        """Which kind of run it is."""
        return str(self.document()["kind"])

    @property
    def facts(self) -> RunFacts:
        """What the run knows about itself."""
        with self.reading():
            return RunFacts.from_dict(self.document()["facts"])

    @property
    def recipe(self) -> dict[str, Any]:
        """What was asked for, where the run was started by a recipe.

        Raises:
            RunError: If it was not.
        """
        found = self.document().get("recipe")
        if not isinstance(found, dict):
            raise RunError(
                f"The run in {str(self.folder)!r} has no recipe: it was started from Python, and goes on there."
            )
        return found

    @property
    def ledgers(self) -> list[Path]:
        """Where the run is charged."""
        with self.reading():
            return [self.folder / place for place in self.document()["ledgers"]]

    def place(self, ledger: Path) -> str:
        """Return how run.json names a ledger: by its name alone inside of the folder, so that the folder can move."""
        return ledger.name if ledger.parent == self.folder else str(ledger.resolve())

    @property
    def finished(self) -> str | None:
        """A line that says that the run is finished and what to do; None if something may be left to do."""
        if not self.exists or self.document().get("facts", {}).get("status") != "done":
            return None
        return (
            f"{str(self.folder)!r} is finished: no step is left to take. `tacita label {self.folder}` shows its label."
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Report whatever is missing, or of another type, as a damaged run."""
        try:
            yield
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise RunError(f"The run in {str(self.folder)!r} is damaged: {error}") from error

    def save(self, step: int, state: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        """Keep a checkpoint; the document, written last, holds the checksum of the tensors.

        Args:
            step: How far the run is. The last two checkpoints are kept.
            state: Nested dicts and lists of tensors and plain data.
            document: Plain data that is read before the state is rebuilt.
        """
        from safetensors.torch import save

        tensors, skeleton = _flatten(state)
        stem = self.folder / "checkpoints" / f"step-{step:08d}"
        payload = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        _replace(stem.with_suffix(".safetensors"), payload)
        sums = {"schema": SCHEMA, "step": step, "sha256": hashlib.sha256(payload).hexdigest(), "skeleton": skeleton}
        _replace(stem.with_suffix(".json"), json.dumps({**sums, **document}, allow_nan=False).encode())
        for old in _steps(self.folder)[:-_KEPT]:
            for suffix in (".json", ".safetensors"):
                (self.folder / "checkpoints" / f"step-{old:08d}{suffix}").unlink(missing_ok=True)

    def load(self) -> tuple[Any, dict[str, Any]]:
        """Return state and document of the newest checkpoint. A damaged one is refused, never skipped silently."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        steps = _steps(self.folder)
        if not steps:
            raise RunError(f"{str(self.folder)!r} has no checkpoint to resume from.")
        name = f"step-{steps[-1]:08d}"
        document = read_json(self.folder / "checkpoints", name + ".json")
        if document.get("schema") != SCHEMA or document.get("step") != steps[-1]:
            raise RunError(f"Checkpoint {name} is of another schema or step. {_way_out(self.folder, name)}")
        path = self.folder / "checkpoints" / (name + ".safetensors")
        try:
            payload = path.read_bytes()
        except OSError as error:
            raise RunError(f"Checkpoint {name} has no tensors. {_way_out(self.folder, name)}") from error
        if hashlib.sha256(payload).hexdigest() != document.get("sha256"):
            raise RunError(f"Checkpoint {name} is damaged: its checksum is wrong. {_way_out(self.folder, name)}")
        try:
            return _unflatten(document["skeleton"], load(payload)), document
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"Checkpoint {name} is damaged. {_way_out(self.folder, name)}") from error

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def write_label(self, label: Label, *, include: Iterable[str] = ()) -> None:
        """Write guarantee.json, label.html (safe to publish) and label-owner.html.

        Args:
            label: The owner's label.
            include: Metrics to put on the public page although they depend on the data.
        """
        write_text(self.folder, "label.html", label_html(self.published(label).public(include)))
        self.write_owner_label(label)

    def write_owner_label(self, label: Label) -> None:
        """Write guarantee.json and label-owner.html, and leave the public page as it is."""
        shown = self.published(label)
        write_json(self.folder, "guarantee.json", shown.to_dict())
        write_text(self.folder, "label-owner.html", label_html(shown))

    @property
    def publication(self) -> Publication:
        """What is stated of the label's issuer: kept by `publish`, or else in the recipe."""
        with self.reading():
            try:
                if (self.folder / _PUBLICATION).exists():
                    return Publication.from_dict(read_json(self.folder, _PUBLICATION))
                recipe = self.document().get("recipe") or {}
                return Publication.from_table(recipe.get("publication") or {})
            except RunError:
                raise
            except ValueError as error:
                where = str(self.folder / _PUBLICATION)
                raise RunError(f"{where!r} is damaged: {error} Delete it, and state the issuer again.") from error

    def publish(self, stated: Publication) -> None:
        """Keep what is stated of the label's issuer: every later label of this run says it."""
        write_json(self.folder, _PUBLICATION, stated.to_dict())

    def published(self, label: Label) -> Label:
        """Return the label with what is stated of its issuer."""
        stated = self.publication
        return replace(label, publication=stated) if stated.stated else label

    def write_weights(self) -> Path:
        """Write the newest checkpoint's weights alone, as plain torch reads them, and their checksum beside the page.

        Returns:
            The file of the checksum, which `sha256sum -c` reads.
        """
        from safetensors.torch import save

        with self.reading():
            weights = self.load()[0]["model"]
            payload = save({name: tensor.contiguous() for name, tensor in sorted(weights.items())})
        _replace(self.folder / "model.safetensors", payload)
        write_text(self.folder, "weights.sha256", f"{hashlib.sha256(payload).hexdigest()}  model.safetensors\n")
        return self.folder / "weights.sha256"


def fresh_name(parent: str | Path, stem: str) -> Path:
    """Return the first of `stem-1`, `stem-2`, … that does not exist yet."""
    number = 1
    while (Path(parent) / f"{stem}-{number}").exists():
        number += 1
    return Path(parent) / f"{stem}-{number}"


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


def _flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Take the tensors out of nested dicts and lists, leaving plain data with references to them."""
    import torch

    found: dict[str, Tensor] = {}

    def walk(node: Any, name: str) -> Any:
        if isinstance(node, torch.Tensor):
            found[name] = node.detach().cpu()
            return {"tensor": name}
        if isinstance(node, Mapping):
            return {"dict": [[_key(k), walk(v, f"{name}.{k}")] for k, v in node.items()]}
        if isinstance(node, list | tuple):
            return {"list": [walk(v, f"{name}.{i}") for i, v in enumerate(node)]}
        if node is None or isinstance(node, bool | int | float | str):
            return {"value": node}
        raise RunError(f"Cannot save {type(node).__name__} at {name or 'the top'}: only tensors and plain data.")

    return found, walk(state, "")


def _unflatten(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `_flatten`."""
    if "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    if "dict" in skeleton:
        return {key: _unflatten(value, tensors) for key, value in skeleton["dict"]}
    if "list" in skeleton:
        return [_unflatten(value, tensors) for value in skeleton["list"]]
    return skeleton["value"]


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


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
