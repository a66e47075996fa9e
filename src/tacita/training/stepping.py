"""One step after the other: charged on disk, then sampled, clipped, noised and released; paused, resumed or failed."""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS
from tacita.facts import MEMORY, RunFacts
from tacita.features import priors_of
from tacita.guarantee import Guarantee
from tacita.ledger import Ledger, Promise
from tacita.owner import Owner
from tacita.runs import Run, RunError
from tacita.training.charges import ledger_at, require_reserved
from tacita.training.keeper import Keeper, State
from tacita.training.labels import reading, reading_times
from tacita.training.mechanism import Mechanism
from tacita.training.panel import Panel, new_panels
from tacita.training.persons import Persons
from tacita.training.plan import Plan
from tacita.training.randomness import Randomness, randomness
from tacita.training.settings import Books, Follow, group_codes

KIND = "training"  # what a run is unless its caller makes it another kind


@dataclass(frozen=True)
class Step:
    """What one step did, for the data's owner: `loss` and `norms` are exact, so no guarantee covers them.

    Attributes:
        number: 1 for the first step.
        loss: Mean loss of the sampled records, NaN if there were none. Exact: a run that is ended because of it is
            covered by no label, whatever its steps.
        norms: Quantiles (10, 50, 90%) of the sampled records' clipped norms over the clip norm. Exact, like the loss.
        plan: The mechanism.
        promise: What the ledger keeps, if it has a budget; see `Plan.headline`.
    """

    number: int
    loss: float
    norms: tuple[float, float, float]
    plan: Plan
    promise: Promise | None = None

    @cached_property
    def spent(self) -> Guarantee:
        """What the label says if the run ends here, at the plan's delta: the next declared end's figure, or the plan's.

        It does not grow with every step: when to end may depend on what was released, so only declared ends count.
        """
        return self.plan.headline(self.number, self.plan.delta, promise=self.promise)


class Stepper:
    """Takes the steps of a training, one at a time.

    Args:
        mechanism: What a step works on.
        state: Where the training stands.
        keeper: Its books.
        random: Coins and noise.
    """

    def __init__(self, mechanism: Mechanism, state: State, keeper: Keeper, random: Randomness) -> None:
        self.mechanism, self.state, self.keeper, self.random = mechanism, state, keeper, random
        self.plan, self.leads = state.plan, mechanism.processes.leads  # who leads samples, charges and keeps the run
        self._stepping = threading.Lock()
        self.unsaved = False  # a pause that could not write its checkpoint, as on a full disk

    @classmethod
    def start(cls, mechanism: Mechanism, plan: Plan, follow: Follow, books: Books) -> Stepper:
        """Begin a run: freeze its plan in the ledger, and write its folder.

        Args:
            mechanism: What a step works on.
            plan: What is declared.
            follow: Who is followed.
            books: Where the run is kept.
        """
        require_unit(plan, mechanism)
        if plan.grid is not None:
            mechanism.exact_blocks()
        parts, random, processes = mechanism.parts, randomness(books.seed), mechanism.processes
        leads, records = processes.leads, parts["training"]
        size = _check.count("panel", follow.panel, low=0, high=10**7)
        facts = RunFacts(
            title=books.name or (Path(books.run_dir).name if books.run_dir else "Private training"),
            purpose=books.purpose or f"A {type(mechanism.model).__name__} model trained with DP-SGD.",
            seeded=random.seeded,
            trained=len(records),
            held_out=len(parts.get("held-out", ())),
            form_taken=records.form_taken,
            lone_records=mechanism.by_person and mechanism.whose.missing_person == "own",
            features=priors_of(mechanism.model),
            device=mechanism.accelerator,
        )
        panels = new_panels(plan, parts, size, rng=random.sampling, rate=follow.panel_rate) if leads else {}
        groups = records.grouped(follow.groups) if isinstance(records, Persons) else follow.groups
        state = State(plan, facts, panels, group_codes(groups, len(records)), data="")
        with processes.together():
            if leads and (books.run_dir is not None or processes.size > 1):
                state.data = records.fingerprint()
        state.data, declared = processes.agree((state.data, plan.frozen()))
        made = cls(mechanism, state, Keeper(), random)
        with processes.together():
            if leads:
                made._open(books)
            elif not records.matches(state.data) or plan.frozen() != declared:
                raise PrivacyError(
                    "The processes of this run have different records or plans. Each takes the same arguments and "
                    "holds the whole dataset: every step's sample is split among them."
                )
        return made

    def _open(self, books: Books) -> None:
        """Charge and keep a new run."""
        own: Path | str = MEMORY
        if books.run_dir is not None:
            run = Run.create(books.run_dir)
            self.keeper, own = Keeper(run, Owner(run.folder).hold()), run.folder / "ledger.sqlite"
        ledger = ledger_at(own if books.ledger is None else books.ledger, unit=self.plan.unit)
        identity = require_reserved(ledger, books.reservation) if books.reservation else secrets.token_hex(8)
        self.keeper.open(identity, self.plan, ledger, self.random)
        self.state.facts = self.state.facts.with_ledger(
            ledger.name, shared=books.ledger is not None, fresh=ledger.fresh
        )
        self.keeper.write(self.state, self.random, kind=KIND, family="training")
        self.keeper.save(self.state, self.mechanism.state_dict(), clean=False)

    @classmethod
    def resume(cls, mechanism: Mechanism, run: Run, ledger: Ledger | None) -> Stepper:
        """Go on with a run from its newest checkpoint, with fresh randomness.

        Args:
            mechanism: What a step works on, with the records that the run was started on.
            run: Its folder, which is locked before the checkpoint is read: it is nobody else's any more.
            ledger: Where it is charged, if that is open already.
        """
        processes = mechanism.processes
        keeper = Keeper(run, Owner(run.folder)) if processes.leads else Keeper()
        with processes.together():
            keeper.owner.hold()
        with keeper.owner.opening():
            standing = (0, 0)
            with processes.together():
                state, tensors, saved = State.load(run)
                require_unit(state.plan, mechanism)
                state.require_records(mechanism.parts)
                try:
                    mechanism.load_state_dict(tensors)
                except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
                    raise RunError(f"The checkpoint does not fit this model, optimizer or dataset: {error}") from error
                if state.plan.grid is not None:
                    mechanism.exact_blocks()
                made = cls(mechanism, state, keeper, randomness(None))  # fresh, whatever the run was started with
                if made.leads:
                    book = Ledger.open(run.ledgers[0]) if ledger is None else ledger
                    keeper.open(saved["id"], state.plan, book, made.random)
                    clean = saved["clean"] is True
                    start = keeper.charges.standing(state.taken, str(saved["head"]), clean=clean, resume=True)
                    standing = start, keeper.charges.charged
                else:
                    state.panels = {}
            state.proceed(*processes.agree(standing))
            state.facts = state.facts.with_status("resumed")
            keeper.write(state, made.random)
        return made

    def advance(self) -> Step | None:
        """Take one step and return it; None if no step, or no budget, is left.

        Iterating does the same, and also takes running figures, lets a step finish on Ctrl-C and pauses at the end.
        """
        if not self._stepping.acquire(blocking=False):
            raise PrivacyError("A step of this run is under way, in another thread or around this call: wait for it.")
        try:
            self.refuse_failed()
            if self.state.taken >= self.plan.steps or not self._reserve():
                return None
            try:
                step = self._step()
            except BaseException:
                self._fail()
                raise
            self._note(step)
            return step
        finally:
            self._stepping.release()

    def refuse_failed(self) -> None:
        """Refuse to go on after a step that failed halfway."""
        if self.state.facts.status == "failed":
            raise PrivacyError("A step of this run failed halfway. Resume it from its run directory, or start anew.")

    def bounds(self, sample: Any) -> Any:
        """Return what the training records at these places are held to now; sensitive with `individual_every`."""
        if self.plan.individual_every is None:
            return np.full(len(sample), self.plan.clip_norm)
        return self.plan.clip_norm * NORM_LEVELS[self.state.panels["training"].levels[sample]]

    def _reserve(self) -> bool:
        """Charge the next block of steps, on disk, before any of it is computed. False if there is no budget."""
        state, processes = self.state, self.mechanism.processes
        if os.getpid() != state.process:
            raise PrivacyError("This process was forked from the one that trains: both would add the same noise.")
        with processes.together():
            if self.leads:
                self.keeper.claim(state)
                if state.taken >= state.charged:
                    state.charged = self.keeper.charges.grant(state.taken)
                    _, state.promise = self.keeper.ending()
        state.charged = processes.agree(state.charged)
        if state.charged == state.taken:
            state.facts = state.facts.with_status("budget-spent")
        return state.taken < state.charged

    def _step(self) -> Step:
        state, mechanism = self.state, self.mechanism
        mechanism.try_again(state.taken)
        self.measure()
        drawn: Any = None
        if self.leads:
            sample = mechanism.sample(self.plan.sample_rate, rng=self.random.sampling)
            drawn = (sample, self.bounds(sample))
        sample, bounds = mechanism.processes.agree(drawn)
        with mechanism.processes.together():
            clipped = mechanism.clipped(sample, bounds, plan=self.plan, rng=self.random.noise)
        mechanism.update(clipped, self.plan, number=state.taken + 1, rng=self.random.noise)
        state.tick()
        losses, norms = clipped.losses[torch.isfinite(clipped.losses)], clipped.norms.numpy() / self.plan.clip_norm
        low, half, high = np.quantile(norms, (0.1, 0.5, 0.9)).tolist() if len(norms) else (0.0, 0.0, 0.0)
        mean = float(losses.mean()) if len(losses) else float("nan")
        return Step(state.taken, mean, (low, half, high), self.plan, state.promise)

    def measure(self) -> None:
        """Measure followed records where one is due, at the current parameters, which are released."""
        every, state, processes = self.plan.individual_every or 1, self.state, self.mechanism.processes
        period = min(every - state.taken % every, self.plan.steps - state.taken)
        due = {name: self._due(panel, every) for name, panel in state.panels.items()}
        due = {name: places for name, places in due.items() if len(places)}
        for name, places in processes.agree(due).items():
            with processes.together():
                summed = self.plan.of_person == "sum"
                own = self.mechanism.norms(name, processes.share(places), rng=self.random.sampling, summed=summed)
            norms = np.empty(len(places))
            for rank, part in enumerate(processes.gathered(own)):
                norms[rank :: processes.size] = part
            if self.leads:
                state.panels[name].measure(self.plan.contributions(norms), period=period)
        state.measure_now = False

    def _due(self, panel: Panel, every: int) -> Any:
        """Return which of a panel's records are measured before the next step."""
        if panel.rate < 1.0:
            return panel.draw(self.random.sampling)
        return panel.indices if self.state.measure_now or self.state.taken % every == 0 else panel.indices[:0]

    def _note(self, step: Step) -> None:
        """Keep what a step showed, and a checkpoint now and then."""
        state, run = self.state, self.keeper.run
        if run is None:
            return
        row = {"step": step.number, "loss": step.loss if np.isfinite(step.loss) else None, "norms": step.norms}
        run.append_metrics(row)
        every, block = max(10, self.plan.steps // 20), self.keeper.charges.block
        if state.taken == state.charged and state.taken // every > (state.taken - block) // every:
            self.keeper.save(state, self.mechanism.state_dict(), clean=False)

    def read(self) -> None:
        """Take a running figure where one is due."""
        state = self.state
        if state.panels and state.taken in reading_times(self.plan):
            worst = max(reading(panel, self.plan.delta) for panel in state.panels.values())
            state.facts = replace(state.facts, curve=(*state.facts.curve, (state.taken, worst)))

    def pause(self) -> None:
        """Leave everything on disk, and the folder; nothing is released after it before the next claim."""
        state, keeper = self.state, self.keeper
        if state.facts.status == "failed" or (state.paused_at is not None and not self.unsaved):
            return
        if state.taken >= self.plan.steps:
            state.facts = state.facts.with_status("done")
        elif state.taken > 0 and state.facts.status != "budget-spent":
            state.facts = state.facts.with_status("interrupted")
        if not self.leads or keeper.run is None:
            return
        self.unsaved = True
        try:
            keeper.owner.hold()  # it was let go of if writing failed before
            state.paused_at = keeper.charges.head  # first: a clean checkpoint must be claimed even if writing fails
            if state.taken > 0:
                keeper.save(state, self.mechanism.state_dict(), clean=True)
                keeper.write(state, self.random)
                if state.facts.status == "done" and keeper.run.kind == KIND:
                    keeper.run.write_weights()
            self.unsaved = False
        finally:
            keeper.owner.close()

    def _fail(self) -> None:
        """Count a step that failed halfway, since its noisy result may be in the parameters; do not keep them."""
        self.state.lose(1)
        self.state.facts = self.state.facts.with_status("failed")
        if self.leads:
            try:
                self.keeper.write(self.state, self.random)
            finally:
                self.keeper.owner.close()


def require_unit(plan: Plan, mechanism: Mechanism) -> None:
    """Refuse a plan for persons without ids, and ids without such a plan: the unit would not be the one that is drawn.

    Args:
        plan: What is declared.
        mechanism: What a step works on.
    """
    if mechanism.by_person and plan.records_per_person is None:
        raise ValueError(
            "person=… needs records_per_person=k in the plan: how many of a person's records one contribution is the "
            "mean of, at most."
        )
    if plan.records_per_person is not None and not mechanism.by_person:
        raise ValueError("records_per_person=… speaks of persons: pass person=…, the id of each record's person.")
