"""A federation's run directory: checkpoints, what clients remember, its label and its end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.facts import RunFacts
from tacita.federated.client import Memory
from tacita.federated.labels import federation_label
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.runs import Run
from tacita.training.gradients import Parameters

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
    return (
        folder / "clients" / hashlib.sha256(client.encode()).hexdigest()[:16]
    )  # a client's name may not be a valid file name


def plan_of(run: Run) -> FederationPlan:
    """Return the plan of a federation's run."""
    with run.reading():
        return FederationPlan.from_dict(run.document()["plan"])


def save_federation(
    run: Run, server: Server, facts: RunFacts, state: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    """Write a checkpoint and the run's document.

    Args:
        run: The run directory.
        server: The federation's server.
        facts: What the run knows about itself.
        state: Tensors for the checkpoint.
        document: Plain data for the checkpoint.
    """
    run.save(server.taken, state, {"id": server.identity, **document})
    if not run.exists:
        run.write(kind=KIND, family=KIND)
    run.write(
        id=server.identity,
        plan=server.plan.to_dict(),
        facts=facts.to_dict(),
        ledgers=[run.place(ledger.path) for ledger in server.ledgers],
        seed_fingerprint=server.random.fingerprint,
    )


def restore_federation(
    run: Run, like: Parameters, held_out: Sequence[str] = (), *, owner: Owner | None = None
) -> tuple[Server, RunFacts, dict[str, Any], dict[str, Any]]:
    """Read a federation from its run directory.

    Args:
        run: The run directory.
        like: The parameters, for the names and shapes that an update must have.
        held_out: Clients that are followed and never drawn.
        owner: Who holds the folder of a run that is resumed; without one it is only read.

    Returns:
        The server as it stands, the run's facts, and the checkpoint's state and document.
    """
    state, saved = run.load()
    with run.reading():
        if not all(file.is_file() for file in run.ledgers):
            raise PrivacyError("The run's ledger is not where it was: what was charged cannot be known.")
        places = [Ledger.open(file) for file in run.ledgers]
        server = Server(
            plan_of(run),
            like,
            held_out=held_out,
            ledger=places[0],
            record_ledger=places[-1],
            identity=str(run.document()["id"]),
            owner=owner,
        )
        server.restore(state["panels"], saved, resume=owner is not None)
    return server, run.facts, state, saved


def rounds_kept(folder: str | Path) -> int:
    """Return how many rounds the newest checkpoint of a run knows."""
    return int(Run.open(folder, KIND).load()[1]["taken"])


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a federation's run directory, from its newest checkpoint; the data are not needed."""
    server, facts, _, _ = restore_federation(Run.open(folder, KIND), {})
    if server.taken == 0:
        raise PrivacyError("No round was taken yet: there is nothing to label.")
    return federation_label(server, facts, server.plan.delta if delta is None else _check.probability("delta", delta))


def declare_end(folder: str | Path, reason: str) -> None:
    """End the federation of a run directory, declaring that this depended on nothing private."""
    run = Run.open(folder, KIND)
    with Owner(run.folder).opening() as owner:
        restore_federation(run, {})[0].end(reason)
    owner.close()


def ledger_place(ledger: Ledger | str | Path | None, folder: Path | None, name: str) -> Ledger | str | Path:
    """Return the place of a ledger.

    Args:
        ledger: The ledger asked for, or None.
        folder: The run directory, which otherwise gets its own; None for one in memory.
        name: The file's name there.
    """
    if ledger is not None:
        return ledger
    return ":memory:" if folder is None else folder / name
