"""A federation's run directory: checkpoints, what clients remember, its label and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.facts import MEMORY, RunFacts, Status
from tacita.federated.client import Memory
from tacita.federated.labels import federation_label
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.label import Label
from tacita.ledger import Ledger, is_there
from tacita.owner import Owner
from tacita.runs import Run
from tacita.training.gradients import Parameters
from tacita.training.settings import Books

KIND = "federation"


def keep_memory(folder: Path, client: str, number: int, memory: Memory) -> None:
    """Write what a client remembers after a round to its own folder, apart from the server's checkpoints.

    Args:
        folder: The run directory.
        client: The client's name.
        number: The round.
        memory: What it remembers; nothing is written if it is empty.
    """
    if memory:
        own = _client_folder(folder, client)
        (own / "checkpoints").mkdir(parents=True, exist_ok=True)
        Run(own).save(number, memory, {"client": client})


def kept_memory(folder: Path, client: str) -> Memory:
    """Return what a client remembers; nothing if it never took part."""
    own = _client_folder(folder, client)
    return dict(Run(own).load()[0]) if own.is_dir() else {}


def _client_folder(folder: Path, client: str) -> Path:
    name = hashlib.sha256(client.encode()).hexdigest()[:16]  # a client's own may not be a valid file name
    return folder / "clients" / name


def plan_of(run: Run) -> FederationPlan:
    """Return the plan of a federation's run."""
    with run.reading():
        return FederationPlan.from_dict(run.document()["plan"])


class Kept:
    """A federation's server, what is known about its run, and the folder in which both are kept.

    Args:
        server: The federation's server.
        facts: What the run knows about itself.
        run: The run directory; None for a federation that writes nothing.
    """

    def __init__(self, server: Server, facts: RunFacts, run: Run | None = None) -> None:
        self.server, self.facts, self.run = server, facts, run

    @classmethod
    def begin(
        cls,
        plan: FederationPlan,
        like: Parameters,
        books: Books,
        *,
        record_ledger: Ledger | str | Path | None,
        panel: int,
        held_out: Sequence[str] = (),
        **facts: Any,
    ) -> Kept:
        """Create the server of a new federation, its ledgers and its run directory.

        Args:
            plan: What was declared.
            like: The parameters, for the names and shapes that an update must have.
            books: Where the run is kept.
            record_ledger: The ledger of records, where clients are protected as well.
            panel: How many clients are followed.
            held_out: Clients that are followed and never drawn.
            facts: What else the run knows about itself: fields of `RunFacts`.
        """
        run = None if books.run_dir is None else Run.create(books.run_dir)

        def place(ledger: Ledger | str | Path | None, name: str) -> Ledger | str | Path:
            if ledger is not None:
                return ledger
            return MEMORY if run is None else run.folder / name

        server = Server(
            plan,
            like,
            panel=panel,
            held_out=held_out,
            ledger=place(books.ledger, "ledger.sqlite"),
            record_ledger=place(record_ledger, "record-ledger.sqlite"),
            seed=books.seed,
            owner=Owner(None if run is None else run.folder).hold(),
        )
        facts["title"] = books.name or ("Private federation" if run is None else run.folder.name)
        facts["purpose"] = books.purpose or facts["purpose"]
        known = RunFacts(seeded=books.seed is not None, held_out=len(held_out), **facts)
        if server.ledgers:
            fresh = tuple(window for ledger in server.ledgers for window in ledger.fresh)
            known = known.with_ledger(server.ledgers[0].name, shared=books.ledger is not None, fresh=fresh)
        return cls(server, known, run)

    @classmethod
    def restore(
        cls, run: Run, like: Parameters, held_out: Sequence[str] = (), *, owner: Owner | None = None
    ) -> tuple[Kept, dict[str, Any], dict[str, Any]]:
        """Read a federation from its run directory.

        Args:
            run: The run directory.
            like: The parameters, for the names and shapes that an update must have.
            held_out: Clients that are followed and never drawn.
            owner: Who holds the folder of a run that is resumed; without one it is only read.

        Returns:
            The federation as it stands, and the checkpoint's state and document.
        """
        state, saved = run.load()
        with run.reading():
            plan = plan_of(run)
            if len(run.ledgers) != len(plan.privacy_level.units) or not all(map(is_there, run.ledgers)):
                raise PrivacyError("The run's ledger is not where it was: what was charged cannot be known.")
            places: list[Ledger | str] = [*map(Ledger.open, run.ledgers)] or [MEMORY]
            server = Server(
                plan,
                like,
                held_out=held_out,
                ledger=places[0],
                record_ledger=places[-1],
                identity=str(run.document()["id"]),
                owner=owner,
            )
            server.restore(state["panels"], saved, resume=owner is not None)
        return cls(server, run.facts, run), state, saved

    def save(self, state: Mapping[str, Any], document: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint and the run's document.

        Args:
            state: Tensors for the checkpoint, besides the server's: `model`, its parameters and buffers, and more.
            document: Plain data for the checkpoint, besides the server's.
        """
        if self.run is None:
            return
        server = self.server
        panels, standing = server.state()
        others = {name: part for name, part in state.items() if name != "model"}
        told = {"id": server.identity, **standing, **(document or {})}
        self.run.save(server.taken, {**others, "panels": panels}, told, weights=state["model"])
        if not self.run.exists:
            self.run.write(kind=KIND, family=KIND)
        self.run.write(
            id=server.identity,
            plan=server.plan.to_dict(),
            facts=self.facts.to_dict(),
            ledgers=[self.run.place(ledger.place) for ledger in server.ledgers],
            seed_fingerprint=server.random.fingerprint,
        )
        if self.facts.status == "done":
            self.run.write_weights()

    def note(self, status: Status) -> None:
        """Keep how the run stands; `save` writes it."""
        self.facts = self.facts.with_status(status)

    def label(self, delta: float | None, metrics: Mapping[str, str] | None, collect: Callable[[], None]) -> Label:
        """Return the label of the rounds taken so far, and write it to the run directory.

        Args:
            delta: Total failure probability; the plan's if not given.
            metrics: Results to keep, and to show to the owner.
            collect: Asks clients for figures of the owner's that they have not reported yet.
        """
        if self.server.taken:
            self.server.charges.check()
            collect()
        self.facts = self.facts.with_metrics(metrics or {})
        label = federation_label(self.server, self.facts.with_status(self.server.status), delta)
        if self.run is not None:
            self.run.write_label(label)
        return label


def rounds_kept(folder: str | Path) -> int:
    """Return how many rounds the newest checkpoint of a run knows."""
    return int(Run.open(folder, KIND).load()[1]["taken"])


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a federation's run directory, from its newest checkpoint; the data are not needed."""
    kept = Kept.restore(Run.open(folder, KIND), {})[0]
    return federation_label(kept.server, kept.facts, None if delta is None else _check.probability("delta", delta))


def require_released(folder: str | Path) -> None:
    """Refuse weights that may not leave a run directory: of no round yet, or of rounds that its ledgers lack."""
    if Kept.restore(Run.open(folder, KIND), {})[0].server.taken == 0:
        raise PrivacyError("No round was taken yet: there are no weights to export.")


def declare_end(folder: str | Path, reason: str) -> None:
    """End the federation of a run directory, declaring that this depended on nothing private."""
    run = Run.open(folder, KIND)
    with Owner(run.folder).opening() as owner:
        Kept.restore(run, {})[0].server.charges.end(reason)
    owner.close()
