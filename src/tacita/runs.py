"""Run directories: the only reader and writer of them.

    run.json         what was asked for and declared, versions, status; see `Run`
    ledger.sqlite    the run's own ledger, unless it shares one
    lock             held by whoever steps the run; see `tacita.owner`
    metrics.jsonl    one line a step, for the data's owner
    checkpoints/     of each of the last two: step-00000100.weights.safetensors, the released parameters and buffers;
                     step-00000100.sensitive.safetensors and .sensitive.json, all else: for the data's owner alone
    guarantee.json   the label as data, readings included, for the data's owner
    audit.json       what attacks found, for the data's owner
    label.html       safe to publish
    label-owner.html everything, for the data's owner
    publication.json who issued the label, once stated
    model.safetensors, weights.sha256  the weights alone and their checksum, of a run that is finished, or whose label
                     is issued

Files are written under another name, flushed to disk and renamed, so that a crash leaves the old file or the
new one. Nothing is ever unpickled: tensors are safetensors, everything else is JSON.
"""

from __future__ import annotations

import hashlib
import html
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita._files import RunError as RunError
from tacita._files import read_json as read_json
from tacita._files import replace_files
from tacita._files import write_json as write_json
from tacita._files import write_once as write_once
from tacita._files import write_text as write_text
from tacita._tensors import encoded, flatten, unflatten, weights_file
from tacita._version import __version__
from tacita.facts import RunFacts
from tacita.label import Label
from tacita.ledger import kept_place, on_server
from tacita.publication import Publication
from tacita.report.page import label_html

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 2
CHECKPOINT_SCHEMA = 3
FILE = "run.json"
_KEPT = 2
_PUBLICATION = "publication.json"


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
        ledgers          where it is charged: names in the folder, whole paths, or URLs without a password
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

    def _repr_html_(self) -> str:
        """Show what the run is in a notebook, with a link to its public page if there is one."""
        facts, page = self.facts, self.folder / "label.html"
        link = f': <a href="{html.escape(str(page))}">{html.escape(str(page))}</a>' if page.exists() else ""
        return f"<p>{html.escape(facts.title)} ({html.escape(self.kind)}, {facts.status}){link}</p>"

    def document(self) -> dict[str, Any]:
        """Return run.json; one of another version is refused."""
        if not self.exists and (self.folder / "best" / FILE).is_file():
            raise RunError(f"{str(self.folder)!r} is the folder of a tuning: the run that leaves it is in 'best'.")
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
    def ledgers(self) -> list[Path | str]:
        """Where the run is charged: files, or URLs."""
        with self.reading():
            return [place if on_server(place) else self.folder / place for place in self.document()["ledgers"]]

    @property
    def charged_at(self) -> list[Path | str]:
        """Where that is charged of which the label speaks: the tuning, for a run that one has chosen."""
        with self.reading():
            tuned = self.document().get("tuned")
            place = tuned["ledger"] if tuned else ""
        return self.ledgers if not place else [place if on_server(place) else self.folder / place]

    def place(self, ledger: str) -> str:
        """Return how run.json names a ledger: by its name alone inside of the folder, so that the folder can move."""
        if on_server(ledger):
            return kept_place(ledger)
        file = Path(ledger)
        return file.name if file.parent == self.folder else str(file.resolve())

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

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        document: Mapping[str, Any],
        *,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Keep a checkpoint; the document, written last, holds the checksums of the tensors.

        Args:
            step: How far the run is. The last two checkpoints are kept.
            state: Nested dicts and lists of tensors and plain data. It is kept as sensitive.
            document: Plain data that is read before the state is rebuilt. Sensitive as well.
            weights: The model's parameters and buffers, all of them released; kept in a file of their own, and
                loaded as `model`.

        Raises:
            OSError: If the disk is full, say. The earlier checkpoints are then as they were.
        """
        tensors, skeleton = flatten(state)
        payloads, parts = {"sensitive": encoded(tensors)}, {"sensitive": skeleton}
        if weights is not None:
            payloads["weights"], parts["weights"] = weights_file(weights)
        made = {
            "schema": CHECKPOINT_SCHEMA,
            "step": step,
            "sha256": {part: hashlib.sha256(payload).hexdigest() for part, payload in payloads.items()},
            "skeleton": parts,
            **document,
        }
        files = {f"{part}.safetensors": payload for part, payload in payloads.items()}
        files["sensitive.json"] = json.dumps(made, allow_nan=False).encode()
        stem = f"step-{step:08d}"
        replace_files({self.folder / "checkpoints" / f"{stem}.{ending}": payload for ending, payload in files.items()})
        for old in _steps(self.folder)[:-_KEPT]:
            for file in (self.folder / "checkpoints").glob(f"step-{old:08d}.*"):
                file.unlink(missing_ok=True)

    def load(self) -> tuple[Any, dict[str, Any]]:
        """Return state and document of the newest checkpoint. A damaged one is refused, never skipped silently."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        name, document = self._checkpoint()
        payloads = {part: self._payload(name, document, part) for part in _parts(document)}
        try:
            skeletons = document["skeleton"]
            parts = {part: unflatten(skeletons[part], load(payload)) for part, payload in payloads.items()}
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"Checkpoint {name} is damaged. {_way_out(self.folder, name)}") from error
        return {**parts["sensitive"], **({"model": parts["weights"]} if "weights" in parts else {})}, document

    def _checkpoint(self) -> tuple[str, dict[str, Any]]:
        """Return the newest checkpoint's name and its document."""
        steps = _steps(self.folder)
        if not steps:
            if any((self.folder / "checkpoints").glob("step-*.json")):
                raise RunError(
                    f"The checkpoints in {str(self.folder)!r} were written by another version (this one reads format "
                    f"{CHECKPOINT_SCHEMA}): use the version that wrote them. What the run was charged stays in its "
                    "ledger."
                )
            raise RunError(f"{str(self.folder)!r} has no checkpoint to resume from.")
        name = f"step-{steps[-1]:08d}"
        document = read_json(self.folder / "checkpoints", f"{name}.sensitive.json")
        if document.get("schema") != CHECKPOINT_SCHEMA or document.get("step") != steps[-1]:
            raise RunError(f"Checkpoint {name} is of another schema or step. {_way_out(self.folder, name)}")
        return name, document

    def _payload(self, name: str, document: Mapping[str, Any], part: str) -> bytes:
        """Return the content of one file of a checkpoint, its checksum checked."""
        try:
            payload = (self.folder / "checkpoints" / f"{name}.{part}.safetensors").read_bytes()
        except OSError as error:
            raise RunError(f"Checkpoint {name} has no tensors. {_way_out(self.folder, name)}") from error
        if hashlib.sha256(payload).hexdigest() != _parts(document)[part]:
            raise RunError(f"Checkpoint {name} is damaged: its checksum is wrong. {_way_out(self.folder, name)}")
        return payload

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

    def write_weights(self, file: str | Path | None = None) -> Path:
        """Write the newest checkpoint's weights alone, as plain torch and transformers read them.

        Whether they may leave the owner is for the caller to know: `cli.kinds` has the function that checks it.

        Args:
            file: Where to. By default model.safetensors in the run directory, with its checksum beside the page.

        Returns:
            The file that `sha256sum -c` reads, or the given one.

        Raises:
            RunError: If the run keeps no weights, or its newest checkpoint is damaged.
        """
        name, document = self._checkpoint()
        if "weights" not in _parts(document):
            raise RunError(f"The run in {str(self.folder)!r} keeps no weights that could be written alone.")
        return self.put_weights(self._payload(name, document, "weights"), file)

    def put_weights(self, payload: bytes, file: str | Path | None = None) -> Path:
        """Write the content of a file of weights; see `write_weights`."""
        if file is not None:
            replace_files({Path(file): payload})
            return Path(file)
        replace_files({self.folder / "model.safetensors": payload})
        write_text(self.folder, "weights.sha256", f"{hashlib.sha256(payload).hexdigest()}  model.safetensors\n")
        return self.folder / "weights.sha256"


def fresh_name(parent: str | Path, stem: str) -> Path:
    """Return the first of `stem-1`, `stem-2`, … that does not exist yet."""
    number = 1
    while (Path(parent) / f"{stem}-{number}").exists():
        number += 1
    return Path(parent) / f"{stem}-{number}"


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _steps(folder: Path) -> list[int]:
    ending = ".sensitive.json"
    found = (path.name for path in (folder / "checkpoints").glob(f"step-*{ending}"))
    numbers = (name.removeprefix("step-").removesuffix(ending) for name in found)
    return sorted(int(number) for number in numbers if number.isdigit())


def _parts(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksum of each file of tensors that a checkpoint consists of."""
    sums = document.get("sha256")
    named = sums if isinstance(sums, Mapping) else {}
    return {part: str(named[part]) for part in ("sensitive", "weights") if part in named}


def _way_out(folder: Path, name: str) -> str:
    older = _steps(folder)[:-1]
    if not older:
        return "There is no older one: start a new run; what was charged stays charged."
    return f"Delete {name}.* to go on from step {older[-1]}; the steps between stay charged."
