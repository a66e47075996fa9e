"""Where a training stands, and its books: the folder, the ledger and the owner."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tacita._check import PrivacyError
from tacita.facts import RunFacts
from tacita.ledger import Ledger, Promise
from tacita.owner import Owner
from tacita.runs import Run
from tacita.training.charges import Charges
from tacita.training.panel import Panel
from tacita.training.persons import Persons
from tacita.training.plan import Plan
from tacita.training.randomness import Randomness
from tacita.training.records import Records


@dataclass
class State:
    """Where a training stands: everything that changes from step to step.

    Attributes:
        plan: What was declared.
        facts: What the run knows about itself.
        panels: Who is followed. Processes that do not lead follow nobody.
        groups: For the owner's tables: the code of each record, and the values that codes stand for.
        data: The mark by which the records are known again.
        taken: Steps that may have been released.
        charged: Steps that were charged.
        paused_at: The ledger's head, if the run paused on a clean checkpoint.
        measure_now: Whether followed records must be measured before the next step.
        promise: What the ledger keeps, if it has a budget.
        process: Which process steps the run.
    """

    plan: Plan
    facts: RunFacts
    panels: dict[str, Panel]
    groups: dict[str, tuple[Any, list[str]]]
    data: str
    taken: int = 0
    charged: int = 0
    paused_at: str | None = None
    measure_now: bool = True
    promise: Promise | None = None
    process: int = field(default_factory=os.getpid)

    @classmethod
    def load(cls, run: Run) -> tuple[State, dict[str, Any], dict[str, Any]]:
        """Return the state of the newest checkpoint, with its tensors and its document."""
        document, (tensors, saved) = run.document(), run.load()
        with run.reading():
            if saved["id"] != str(document["id"]):
                raise PrivacyError("The checkpoint belongs to another run.")
            plan = Plan.from_dict(document["plan"])
            panels = {
                name: Panel.restore(part, saved["panels"][name], budget=plan.record_budget)
                for name, part in tensors["panels"].items()
            }
            groups = {name: (codes.numpy(), list(saved["groups"][name])) for name, codes in tensors["groups"].items()}
            facts, data, taken = RunFacts.from_dict(saved["facts"]), str(saved["data"]), int(saved["step"])
        return cls(plan, facts, panels, groups, data, taken), tensors, saved

    def require_records(self, parts: Mapping[str, Records | Persons]) -> None:
        """Refuse records other than those that the run was started on."""
        if not parts["training"].matches(self.data):
            whose = ", or other persons" if isinstance(parts["training"], Persons) else ""
            raise PrivacyError(f"These are not the records that the run was started on: it is another dataset{whose}.")
        for name, panel in self.panels.items():
            if name not in parts:
                raise PrivacyError("This run follows held-out records: pass the same holdout=… to resume it.")
            if len(panel.indices) and not 0 <= panel.indices.min() <= panel.indices.max() < len(parts[name]):
                raise PrivacyError("The checkpoint follows records that the dataset lacks: is it another dataset?")

    def tick(self) -> None:
        """Count a step at the current levels."""
        for panel in self.panels.values():
            panel.tick()
        self.taken += 1

    def lose(self, steps: int) -> None:
        """Count steps of which nothing is known any more; followed records are charged the clip bound for them."""
        for panel in self.panels.values():
            panel.lose(steps)
        self.taken += steps

    def proceed(self, start: int, charged: int) -> None:
        """Go on from step `start`; what was released since the checkpoint is not known."""
        self.lose(start - self.taken)
        self.charged, self.paused_at, self.measure_now = charged, None, True


class Keeper:
    """One training's books. Processes that do not lead hold neither folder nor ledger.

    Args:
        run: The run directory, or None if nothing is written.
        owner: Who holds it.
    """

    def __init__(self, run: Run | None = None, owner: Owner | None = None) -> None:
        self.run, self.owner = run, owner or Owner()
        self._charges: Charges | None = None

    def open(self, identity: str, plan: Plan, ledger: Ledger, random: Randomness) -> None:
        """Freeze the plan in the ledger, or check that it is the one that was frozen.

        Args:
            identity: The run's name there.
            plan: What was declared.
            ledger: Where it is charged, in blocks of at most 50 steps.
            random: Its streams, which the ledger refuses to see twice.
        """
        block = max(1, min(50, plan.steps // 100))
        self._charges = Charges(ledger, identity, plan, block, owner=self.owner.token)
        self._charges.open(random)

    @property
    def charges(self) -> Charges:
        """What this run charges."""
        if self._charges is None:
            raise PrivacyError("Only the first process holds the ledger.")
        return self._charges

    def ending(self) -> tuple[str, Promise | None]:
        """Return what the ledger knows of the run's end; processes that do not hold it label the plan."""
        if self._charges is None:
            return "", None
        ledger, identity = self.charges.ledger, self.charges.identity
        return ledger.ended(identity), ledger.promise(identity)

    def claim(self, state: State) -> None:
        """Hold the folder; after a pause, also claim the checkpoint, so that nobody else resumes it too.

        A step after a declared end, which may have come from elsewhere, is refused, also one that is charged already.
        """
        ended, _ = self.ending()
        if ended:
            raise PrivacyError(f"The run was ended by its owner ({ended}); start a new run.")
        self.owner.hold()
        if state.paused_at is None:
            return
        try:
            start = self.charges.standing(state.taken, state.paused_at, clean=True, resume=True)
        except PrivacyError:
            self.owner.close()
            raise
        state.proceed(start, self.charges.charged)

    def write(self, state: State, random: Randomness, **more: Any) -> None:
        """Write the run's document.

        Args:
            state: Where the run stands.
            random: Its streams.
            more: Further entries of it.
        """
        if self.run is not None:
            self.run.write(
                **more,
                id=self.charges.identity,
                plan=state.plan.to_dict(),
                facts=state.facts.to_dict(),
                ledgers=[self.run.place(self.charges.ledger.place)],
                seed_fingerprint=random.fingerprint,
            )

    def save(self, state: State, trained: dict[str, Any], *, clean: bool) -> None:
        """Keep a checkpoint.

        Args:
            state: Where the run stands.
            trained: What is kept of model and optimiser, as `Mechanism.state_dict` returns it.
            clean: Whether it is the last thing of a run that paused; resuming it loses no step.
        """
        if self.run is None:
            return
        panels = {name: panel.state() for name, panel in state.panels.items()}
        others = {name: part for name, part in trained.items() if name != "model"}
        tensors = {
            **others,
            "panels": {name: part for name, (part, _) in panels.items()},
            "groups": {name: torch.from_numpy(codes) for name, (codes, _) in state.groups.items()},
        }
        document = {
            "id": self.charges.identity,
            "clean": clean,
            "head": self.charges.head,
            "panels": {name: plain for name, (_, plain) in panels.items()},
            "groups": {name: values for name, (_, values) in state.groups.items()},
            "data": state.data,
            "facts": state.facts.to_dict(),
        }
        self.run.save(state.taken, tensors, document, weights=trained["model"])
