"""The folder, the ledger and the owner of a training: what is charged, written and claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacita._check import PrivacyError
from tacita.facts import MEMORY, RunFacts
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.runs import Run
from tacita.training.charges import Charges, ledger_at
from tacita.training.plan import Pair, Plan
from tacita.training.randomness import Randomness


class Keeper:
    """One training's books. Processes that do not lead hold neither folder nor ledger.

    Args:
        run: The run directory, or None if nothing is written.
        owner: Who holds it.
    """

    def __init__(self, run: Run | None = None, owner: Owner | None = None) -> None:
        self.run, self.owner = run, owner or Owner()
        self.ledger: Ledger | None = None
        self.identity = ""
        self.plan: Plan | None = None

    def open(
        self, identity: str, plan: Plan, ledger: Ledger | str | Path | None, random: Randomness, facts: RunFacts
    ) -> RunFacts:
        """Freeze the plan in the ledger, and write a new run's document; return the facts with the ledger's name."""
        own = self.run.folder / "ledger.sqlite" if self.run is not None else MEMORY
        self.identity, self.plan = identity, plan
        self.ledger = ledger_at(own if ledger is None else ledger, unit=plan.unit)
        self.charges.open(random)
        if self.run is not None:
            self.run.write(kind="training", family="training")
        return facts.with_ledger(self.ledger.path.name, shared=ledger is not None)

    def reopen(self, identity: str, plan: Plan, ledger: Ledger, random: Randomness) -> None:
        """Take up a run's ledger: the plan must be the one that was frozen."""
        self.identity, self.plan, self.ledger = identity, plan, ledger
        self.charges.open(random)

    @property
    def book(self) -> Ledger:
        """The ledger."""
        if self.ledger is None:
            raise PrivacyError("Only the first process holds the ledger.")
        return self.ledger

    @property
    def block(self) -> int:
        """How many steps are charged at once."""
        return max(1, min(50, self._plan.steps // 100))

    @property
    def charges(self) -> Charges:
        """What this run charges."""
        return Charges(self.book, self.identity, self._plan, self.block, owner=self.owner.token)

    @property
    def _plan(self) -> Plan:
        if self.plan is None:
            raise PrivacyError("The run was not opened.")
        return self.plan

    def ending(self) -> tuple[str, Pair | None]:
        """Return what the ledger knows of the run's end; processes that do not hold it label the plan."""
        if self.ledger is None:
            return "", None
        return self.ledger.ended(self.identity), self.ledger.promise(self.identity)

    def require_open(self) -> None:
        """Refuse a step after a declared end, which may have come from elsewhere, also one that is charged already."""
        ended = self.book.ended(self.identity)
        if ended:
            raise PrivacyError(f"The run was ended by its owner ({ended}); start a new run.")

    def write(self, facts: RunFacts, random: Randomness) -> None:
        """Write the run's document."""
        if self.run is not None:
            self.run.write(
                id=self.identity,
                plan=self._plan.to_dict(),
                facts=facts.to_dict(),
                ledgers=[self.run.place(self.book.path)],
                seed_fingerprint=random.fingerprint,
            )

    def save(self, step: int, state: dict[str, Any], document: dict[str, Any], *, clean: bool) -> None:
        """Keep a checkpoint. A clean one is the last thing of a run that paused; resuming it loses no step."""
        if self.run is not None:
            kept = {"id": self.identity, "clean": clean, "head": self.charges.head}
            self.run.save(step, state, {**kept, **document})
