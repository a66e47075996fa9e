"""What a run knows about itself besides its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self

from tacita import _codec

Status = Literal["running", "interrupted", "resumed", "done", "failed", "budget-spent"]
MEMORY = ":memory:"
Fresh = tuple[tuple[str, str, str], ...]  # first and last day of data that are declared to be new, and their unit

_LATER: dict[str, Any] = {"lone_records": False, "fresh": []}  # what was added to facts later, where it says nothing


@dataclass(frozen=True)
class RunFacts(_codec.Checked):
    """Title, size, status and results of a run.

    Only title, purpose, seeded, form_taken, lone_records, features, client_noise, device and fresh may be published.

    Attributes:
        title: The title of its label.
        purpose: A sentence on what was made.
        seeded: True if the noise comes from a chosen seed.
        trained: How many records, persons or clients there are.
        held_out: How many held-out records there are.
        form_taken: True if the form of a record was taken from the data instead of being declared.
        lone_records: True if each record without an id was declared to be the only one of a person of its own.
        features: What the public feature maps in the model are made from, such as ("dead_leaves",); empty without any.
        client_noise: True if clients that run elsewhere add noise, with seeds that nobody here can know.
        device: The kind of accelerator that noise was drawn on, such as "cuda"; empty for a CPU.
        status: How it stands.
        started: When, in ISO 8601; now, unless given.
        ledger: The name of a shared ledger, ":memory:" for one that is nowhere on disk, else empty.
        fresh: The windows of the ledgers' budgets, if they have one: days between which data are declared to be new.
        curve: Running typical figures, as (step, epsilon).
        metrics: Accuracy and the like, as (name, value) texts.
    """

    title: str
    purpose: str
    seeded: bool
    trained: int = 0
    held_out: int = 0
    form_taken: bool = False
    lone_records: bool = False
    features: tuple[str, ...] = ()
    client_noise: bool = False
    device: str = ""
    status: Status = "running"
    started: str = ""
    ledger: str = ""
    fresh: Fresh = ()
    curve: tuple[tuple[int, float], ...] = ()
    metrics: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.started or datetime.now(UTC).isoformat(timespec="seconds"))
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; what was added to facts later is left out where it says nothing."""
        plain = super().to_dict()
        return {name: value for name, value in plain.items() if value or name not in _LATER}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Rebuild what `to_dict` wrote."""
        return super().from_dict({**_LATER, **data} if isinstance(data, Mapping) else data)

    @property
    def in_memory(self) -> bool:
        """Whether the run is charged to a ledger that is nowhere on disk."""
        return self.ledger == MEMORY

    def with_status(self, status: Status) -> RunFacts:
        """Return the facts in another state."""
        return replace(self, status=status)

    def with_metrics(self, metrics: Mapping[str, str]) -> RunFacts:
        """Return the facts with results added or replaced."""
        return replace(self, metrics=tuple({**dict(self.metrics), **metrics}.items()))

    def with_ledger(self, name: str, *, shared: bool, fresh: Fresh = ()) -> RunFacts:
        """Return the facts with the name of a shared ledger, or of one that is nowhere on disk.

        Args:
            name: Its name.
            shared: Whether others charge it too.
            fresh: `Ledger.fresh` of the ledger, or of several.
        """
        return replace(self, ledger=name if shared or name == MEMORY else "", fresh=fresh)
