"""The training loop: sample, clip, add noise, step; charge first, measure along the way, keep everything."""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import Interrupts
from tacita.accounting import BayesianAccountant
from tacita.facts import RunFacts, Status
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, RunError
from tacita.training.gradients import Clipped
from tacita.training.keeper import Keeper
from tacita.training.labels import Standing, reading, reading_times, with_audit
from tacita.training.mechanism import Mechanism
from tacita.training.panel import new_panels, restored_panel
from tacita.training.plan import Pair, Plan
from tacita.training.randomness import randomness
from tacita.training.settings import Books, Follow, declared, group_codes, grouped


@dataclass
class Progress:
    """Where a run stands: steps taken and charged, and the ledger's head if it paused on a clean checkpoint."""

    taken: int
    charged: int
    paused_at: str | None = None
    measure_now: bool = True
    in_step: bool = False
    process: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Step:
    """What one step did, for the data's owner: `loss` and `norms` are exact, so no guarantee covers them.

    Attributes:
        number: 1 for the first step.
        loss: Mean loss of the sampled records, NaN if there were none. Exact: a run that is ended because of it is
            covered by no label, whatever its steps.
        norms: Quantiles (10, 50, 90%) of the sampled records' clipped norms over the clip norm. Exact, like the loss.
        plan: The mechanism.
        promise: (epsilon, delta) that the ledger keeps, if it has a budget; see `Plan.headline`.
    """

    number: int
    loss: float
    norms: tuple[float, float, float]
    plan: Plan
    promise: Pair | None = None

    @cached_property
    def spent(self) -> Guarantee:
        """What the label says if the run ends here, at the plan's delta: the next declared end's figure, or the plan's.

        It does not grow with every step: when to end may depend on what was released, so only declared ends count.
        """
        return self.plan.headline(self.number, self.plan.delta, promise=self.promise)


class PrivateTraining:
    """Train a model on sensitive data with DP-SGD, and say what it leaks.

    Args:
        model: Any module of per-record layers; layers that mix records, such as BatchNorm, are refused.
        loss_fn: As in PyTorch: takes the model's output and the target of a batch. None if the model takes a whole
            record and returns its loss.
        dataset: Map-style dataset, tensor dataset, or tensors; records are (inputs, target) or dicts. What the records
            of a map-style dataset look like is taken from most of 15 of them, unless it is declared, with a made-up
            record: `tacita.training.records.Records(dataset, like=(torch.zeros(3, 32, 32), 0))`.
        optimizer: Any torch optimiser of the model's parameters; groups and frozen parameters are respected.
        plan: The mechanism, from `Plan.declare`; or its arguments, such as `steps`, `batch_size`, `nominal_size`,
            `noise_multiplier` or `target`, `clip_norm`, as keywords.
        follow: Who is followed; or the fields of `Follow` (`panel`, `holdout`, `groups`) as keywords.
        books: Where the run is kept; or the fields of `Books` (`ledger`, `run_dir`, `seed`, `name`, `purpose`) as
            keywords.
        scheduler: A learning-rate scheduler to step and to checkpoint.
        companions: Further things to checkpoint, by name, each with `state_dict` and `load_state_dict`, such as the
            optimiser of a generator that is fitted to the trained model. Only what is computed from released
            parameters belongs here.
        chunk: Records differentiated at once; by default it adapts to memory.
        settings: Single settings of `plan`, `follow` and `books`, as said there.

    Guarantee:
        Every step is a Poisson-sampled Gaussian release: independent coins, per-record clipping in float32 or
        better, fresh noise, a public divisor; its cost is on disk before the parameters change. A record that
        is not finite contributes zero, as does one on which the model raises, one that cannot be read and one that
        does not look like the others. Nothing that looks at the data stops the run. The label holds whenever the run is
        ended, if that was decided from the model's parameters or public data; not if the exact loss or private
        validation records were looked at.

    Examples:
        >>> import torch
        >>> x, y = torch.randn(200, 4), torch.randint(0, 2, (200,))
        >>> model = torch.nn.Linear(4, 2)
        >>> private = PrivateTraining(model, torch.nn.functional.cross_entropy, (x, y), batch_size=20,
        ...     nominal_size=200, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), steps=10,
        ...     noise_multiplier=2.0, panel=32)
        >>> for step in private:
        ...     pass
        >>> step.number, round(step.spent.epsilon, 2)
        (10, 0.8)
    """

    _iterator: weakref.ref[Generator[Step, None, None]] | None
    _promise: Pair | None = None
    _remake: Callable[[], tuple[nn.Module, Any, Any]] | None = None

    @_check.renamed("rng")
    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        dataset: Any,
        *,
        optimizer: torch.optim.Optimizer,
        plan: Plan | None = None,
        follow: Follow | None = None,
        books: Books | None = None,
        scheduler: Any = None,
        companions: Mapping[str, Any] | None = None,
        chunk: int | None = None,
        **settings: Any,
    ) -> None:
        follow = grouped("follow", Follow, follow, settings)
        books = grouped("books", Books, books, settings)
        if books.run_dir is not None:
            page_template()  # fail early if an extra is missing
        self._attach(
            Mechanism(
                model,
                loss_fn,
                dataset,
                optimizer=optimizer,
                holdout=follow.holdout,
                scheduler=scheduler,
                companions=companions,
                chunk=chunk,
            )
        )
        self.plan = declared(plan, settings)
        self._random = randomness(books.seed)
        self._groups = group_codes(follow.groups, len(self._mechanism.records))
        self._fingerprint = self._mechanism.records.fingerprint() if books.run_dir is not None else ""
        size = _check.count("panel", follow.panel, low=0, high=10**7)
        self._panels = (
            new_panels(self.plan, self._mechanism.parts, size, rng=self._random.sampling) if self._leads else {}
        )
        self._remake = self._mechanism.initial()
        self._at = Progress(0, 0)
        held = self._mechanism.held
        self._facts = RunFacts(
            title=books.name or (Path(books.run_dir).name if books.run_dir else "Private training"),
            purpose=books.purpose or f"A {type(model).__name__} model trained with DP-SGD.",
            seeded=self._random.seeded,
            trained=len(self._mechanism.records),
            held_out=0 if held is None else len(held),
            form_taken=self._mechanism.records.form_taken,
        )
        if self._leads:
            self._open(books)
        self._mechanism.processes.agree(None)

    # What users call.

    def __iter__(self) -> Iterator[Step]:
        """Take the remaining steps one by one. Interrupting leaves a run that can be resumed."""
        return self.steps()

    def steps(self, *, curve: bool = True) -> Iterator[Step]:
        """Take the remaining steps one by one, as iterating does.

        Args:
            curve: Whether to take running figures of the typical case, for a curve on the label. They cost several
                times what the final figure does.
        """
        before = self._iterator() if self._iterator is not None else None
        if before is not None:
            before.close()  # one loop at a time: the earlier one pauses here
        self._refuse_failed()
        steps = self._steps(curve)
        self._iterator = weakref.ref(steps)
        return steps

    def _steps(self, curve: bool) -> Generator[Step, None, None]:
        quiet: tuple[type[PrivacyError], ...] = ()
        with Interrupts() as interrupts:
            try:
                while (step := self.advance()) is not None:
                    if curve:
                        self._read()
                    yield step
                    if interrupts.seen:
                        raise KeyboardInterrupt
            except GeneratorExit:  # nobody hears what is raised where a loop is left; the next call raises it again
                quiet = (PrivacyError,)
                raise
            finally:
                if self._facts.status != "failed":
                    with suppress(*quiet):
                        self._pause()

    def advance(self) -> Step | None:
        """Take one step and return it; None if no step, or no budget, is left.

        Iterating does the same, and also takes running figures, lets a step finish on Ctrl-C and pauses at the end.
        """
        if not self._stepping.acquire(blocking=False):
            raise PrivacyError("A step of this run is under way, in another thread or around this call: wait for it.")
        try:
            self._refuse_failed()
            if self._at.taken >= self.plan.steps or not self._reserve():
                return None
            try:
                return self._step()
            except BaseException:
                self._count_failed()
                raise
        finally:
            self._stepping.release()

    def pause(self) -> None:
        """Keep a checkpoint from which nothing is lost, and let go of the run directory, as leaving a loop does.

        Until then nobody else can resume the run. The next step goes on, unless somebody else has resumed it.
        """
        before = self._iterator() if self._iterator is not None else None
        if before is not None:
            before.close()
        if self._facts.status != "failed":
            self._pause()

    def _refuse_failed(self) -> None:
        if self._facts.status == "failed":
            raise PrivacyError("A step of this run failed halfway. Resume it from its run directory, or start anew.")

    def run(self) -> PrivateTraining:
        """Take all remaining steps."""
        for _ in self:
            pass
        return self

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label of the run, and write it to the run directory.

        The headline is that of the declared end which covers the steps taken: the plan's, unless `stops` were
        declared, or the owner's `end`, or the budget of a ledger that had one from its first charge on.

        Args:
            delta: Total failure probability of every figure on it.
            metrics: Results for the owner, such as {"accuracy on the test set": "95.2%"}. They are exact: a choice
                made by them, if they were measured on private records, is not covered by the label.
        """
        if self._at.taken == 0:
            raise PrivacyError("No step was taken yet: there is nothing to label.")
        if self._keeper.ledger is not None:
            self._keeper.charges.check()
        self._facts = self._facts.with_metrics(metrics or {})
        taken, panels = self._at.taken, self._panels
        if self._facts.status == "failed":  # when it failed may depend on the data: it is labelled as if it had not
            taken = self.plan.steps
            panels = {name: panel.with_lost(taken - panel.accountant.taken) for name, panel in panels.items()}
        total = self.plan.delta if delta is None else _check.probability("delta", delta)
        label = Standing(self.plan, taken, panels, self._facts, self._groups, *self._keeper.ending()).label(total)
        if self._keeper.run is not None:
            label = with_audit(label, self._keeper.run, taken)
            self._keeper.write(self._facts, self._random)
            self._keeper.run.write_label(label)
        return label

    def end(self, reason: str) -> None:
        """End the run here, declaring that this depended on nothing private: no record, no loss, no released output.

        The label then speaks of the steps taken, with your reason as an open assumption. No step can follow.

        Args:
            reason: What ended it, such as "the machine was needed elsewhere"; shown on the public label.
        """
        self.pause()
        self._keeper.book.end(self._keeper.identity, reason, owner=self._keeper.owner.token)
        self._keeper.write(self._facts, self._random)

    @property
    def taken(self) -> int:
        """How many steps were taken."""
        return self._at.taken

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._mechanism.model

    @property
    def loss_fn(self) -> Callable[[Any, Any], Tensor] | None:
        """The loss as it was given."""
        return self._mechanism.loss_fn

    @property
    def optimizer(self) -> Any:
        """The optimiser."""
        return self._mechanism.optimizer

    @property
    def scheduler(self) -> Any:
        """The learning-rate scheduler, or None."""
        return self._mechanism.scheduler

    @property
    def accountants(self) -> dict[str, BayesianAccountant]:
        """The followed records' accountants, `training` and `held-out`; sensitive."""
        for panel in self._panels.values():
            panel.settle()
        return {name: panel.accountant for name, panel in self._panels.items()}

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return dict(self._mechanism.parameters)

    def remake(self) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        """Return copies of model, optimiser and scheduler as they were before the first step."""
        if self._remake is None:
            raise ValueError("The run was resumed, so what it began with is not at hand.")
        return self._remake()

    @property
    def tensors(self) -> tuple[Any, Any]:
        """Training and held-out records as tuples of tensors (inputs …, target); None where they are not. Sensitive."""
        held = self._mechanism.held
        return self._mechanism.records.tensors, None if held is None else held.tensors

    @property
    def run_dir(self) -> Path | None:
        """Where the run is written."""
        return None if self._keeper.run is None else self._keeper.run.folder

    @property
    def status(self) -> Status:
        """`running`, `done`, `interrupted`, `resumed`, `failed` or `budget-spent`."""
        return self._facts.status

    @property
    def bounds(self) -> Any:
        """What each training record is held to now, over the clip norm; sensitive. Ones without `individual_every`."""
        everyone = np.arange(len(self._mechanism.records))
        return self._bounds(everyone) / self.plan.clip_norm

    @property
    def readings(self) -> tuple[tuple[int, float], ...]:
        """(step, typical epsilon so far), from at most 1000 followed records; for the owner."""
        return self._facts.curve

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        dataset: Any,
        *,
        optimizer: torch.optim.Optimizer,
        holdout: Any = None,
        scheduler: Any = None,
        companions: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        chunk: int | None = None,
    ) -> PrivateTraining:
        """Go on with an interrupted run: the same plan, the same guarantee, fresh noise.

        Steps that were charged after the last checkpoint may have left the process before it died, so they
        are neither repeated nor refunded: they count among the planned ones, at the clip bound.
        """
        run = Run.open(run_dir, "training")
        made = cls.__new__(cls)
        parts = {"holdout": holdout, "scheduler": scheduler, "companions": companions, "chunk": chunk}
        made._attach(Mechanism(model, loss_fn, dataset, optimizer=optimizer, **parts))
        made._own(run)  # before the checkpoint is read, so that it is nobody else's any more
        with made._keeper.owner.opening():
            made._restore(run, ledger)
        return made

    # Setting up.

    def _attach(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._stepping = threading.Lock()
        self._iterator = None
        self._keeper = Keeper()

    @property
    def _leads(self) -> bool:
        """Whether this process samples, charges and keeps the run."""
        return self._mechanism.processes.leads

    def _own(self, run: Run) -> None:
        """Lock the run directory; only the first process owns it, and the others are told if it cannot."""
        problem = None
        if self._leads:
            self._keeper = Keeper(run, Owner(run.folder))
            try:
                self._keeper.owner.hold()
            except PrivacyError as error:
                problem = str(error)
        self._mechanism.processes.agree(problem)

    def _open(self, books: Books) -> None:
        if books.run_dir is not None:
            run = Run.create(books.run_dir)
            self._keeper = Keeper(run, Owner(run.folder).hold())
        identity = secrets.token_hex(8)
        self._facts = self._keeper.open(identity, self.plan, books.ledger, self._random, self._facts)
        self._keeper.write(self._facts, self._random)
        self._save(clean=False)

    # Steps.

    def _reserve(self) -> bool:
        """Charge the next block of steps, on disk, before any of it is computed. False if there is no budget."""
        if os.getpid() != self._at.process:
            raise PrivacyError("This process was forked from the one that trains: both would add the same noise.")
        problem, granted = None, self._at.charged
        if self._leads:
            try:
                self._keeper.require_open()
                self._claim()
                granted = self._charge() if self._at.taken >= self._at.charged else self._at.charged
            except PrivacyError as error:
                problem = str(error)
        self._at.charged = self._mechanism.processes.agree(problem, granted)
        return self._at.taken < self._at.charged

    def _charge(self) -> int:
        granted = self._keeper.charges.grant(self._at.taken)
        _, self._promise = self._keeper.ending()
        if granted == self._at.taken:
            self._facts = self._facts.with_status("budget-spent")
        return granted

    def _step(self) -> Step:
        at, mechanism = self._at, self._mechanism
        at.in_step = True
        self._measure()
        drawn = None
        if self._leads:
            sample = mechanism.sample(self.plan.sample_rate, rng=self._random.sampling)
            drawn = (sample, self._bounds(sample))
        sample, bounds = mechanism.processes.agree(None, drawn)
        mine = mechanism.processes.share(sample)
        clipped = self._clipped(sample[mine], bounds[mine])
        self._update(clipped)
        for panel in self._panels.values():
            panel.tick()
        at.taken += 1
        norms = _quantiles(clipped.norms / self.plan.clip_norm)
        step = Step(at.taken, _mean(clipped.losses), norms, self.plan, self._promise)
        at.in_step = False
        self._note(step)
        return step

    def _measure(self) -> None:
        """Measure followed records where one is due, at the current parameters, which are released."""
        every, at = self.plan.individual_every or 1, self._at
        if not (at.measure_now or at.taken % every == 0):
            return
        period = min(every - at.taken % every, self.plan.steps - at.taken)
        for panel in self._panels.values():
            self._mechanism.measure(panel, self.plan, period=period, rng=self._random.sampling)
        at.measure_now = False

    def _clipped(self, sample: Any, bounds: Any) -> Clipped:
        return self._mechanism.clipped(sample, bounds, rng=self._random.noise)

    def _update(self, clipped: Clipped) -> None:
        self._mechanism.update(clipped, self.plan, number=self._at.taken + 1, rng=self._random.noise)

    def _bounds(self, sample: Any) -> Any:
        if self.plan.individual_every is None:
            return np.full(len(sample), self.plan.clip_norm)
        return self.plan.clip_norm * self._panels["training"].bounds(sample)

    # Keeping.

    def _note(self, step: Step) -> None:
        if self._keeper.run is None or not self._leads:
            return
        every = max(10, self.plan.steps // 20)
        row = {"step": step.number, "loss": step.loss if np.isfinite(step.loss) else None, "norms": step.norms}
        self._keeper.run.append_metrics(row)
        if (
            self._at.taken == self._at.charged
            and self._at.taken // every > (self._at.taken - self._keeper.block) // every
        ):
            self._save(clean=False)

    def _read(self) -> None:
        """Take a running figure where one is due."""
        if self._leads and self._panels and self._at.taken in reading_times(self.plan):
            worst = max(reading(panel, self.plan.delta) for panel in self._panels.values())
            self._facts = self._facts.with_reading(self._at.taken, worst)

    def _pause(self) -> None:
        """Leave everything on disk, and the folder; nothing is released after it before `_claim`."""
        if not self._leads or self._at.paused_at is not None:
            return
        if self._at.taken >= self.plan.steps:
            self._facts = self._facts.with_status("done")
        elif self._at.taken > 0 and self._facts.status != "budget-spent":
            self._facts = self._facts.with_status("interrupted")
        if self._keeper.run is None:
            return
        try:
            self._at.paused_at = (
                self._keeper.charges.head
            )  # first: a clean checkpoint must be claimed even if writing fails here
            if self._at.taken > 0:
                self._save(clean=True)
                self._keeper.write(self._facts, self._random)
        finally:
            self._keeper.owner.close()

    def _count_failed(self) -> None:
        """Count a step that failed halfway, since its noisy result may be in the parameters; do not keep them."""
        if not self._at.in_step:  # it failed after the step, in keeping it
            return
        self._at.in_step = False
        self._at.taken += 1
        for panel in self._panels.values():
            panel.lose(1)
        self._facts = self._facts.with_status("failed")
        if self._leads:
            self._keeper.write(self._facts, self._random)
            self._keeper.owner.close()

    def _claim(self) -> None:
        """Hold the folder; after a pause, also claim the checkpoint, so that nobody else resumes it too."""
        self._keeper.owner.hold()
        if self._at.paused_at is None:
            return
        try:
            start = self._keeper.charges.standing(self._at.taken, self._at.paused_at, clean=True, resume=True)
        except PrivacyError:
            self._keeper.owner.close()
            raise
        for panel in self._panels.values():
            panel.lose(start - self._at.taken)
        self._at = Progress(start, self._keeper.charges.charged)

    def _save(self, *, clean: bool) -> None:
        if self._keeper.run is None:
            return
        panels = {name: panel.state() for name, panel in self._panels.items()}
        state = {
            **self._mechanism.state_dict(),
            "panels": {name: tensors for name, (tensors, _) in panels.items()},
            "groups": {name: torch.from_numpy(codes) for name, (codes, _) in self._groups.items()},
        }
        document = {
            "panels": {name: plain for name, (_, plain) in panels.items()},
            "groups": {name: values for name, (_, values) in self._groups.items()},
            "data": self._fingerprint,
            "facts": self._facts.to_dict(),
        }
        self._keeper.save(self._at.taken, state, document, clean=clean)

    def _restore(self, run: Run, ledger: Ledger | None) -> None:
        document, (state, saved) = run.document(), run.load()
        try:
            self.plan = Plan.from_dict(document["plan"])
            identity, self._fingerprint = str(document["id"]), str(saved["data"])
            self._facts = RunFacts.from_dict(saved["facts"])
            (where,) = run.ledgers
            head, clean = str(saved["head"]), saved["clean"] is True
            if saved["id"] != identity:
                raise PrivacyError("The checkpoint belongs to another run.")
            if not self._mechanism.records.matches(str(saved["data"])):
                raise PrivacyError("These are not the records that the run was started on: it is another dataset.")
            self._mechanism.load_state_dict(state)
            self._groups = {n: (t.numpy(), list(saved["groups"][n])) for n, t in state["groups"].items()}
            self._panels = {
                name: restored_panel(self.plan, self._mechanism.parts, name, part, saved["panels"][name])
                for name, part in state["panels"].items()
            }
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise RunError(f"The checkpoint does not fit this model, optimizer or dataset: {error}") from error
        self._random = randomness(None)  # fresh, whatever the run was started with
        start, charged = 0, 0
        if self._leads:
            self._keeper.reopen(identity, self.plan, Ledger.open(where) if ledger is None else ledger, self._random)
            start = self._keeper.charges.standing(int(saved["step"]), head, clean=clean, resume=True)
            charged = self._keeper.charges.charged
        else:
            self._panels = {}
        start, charged = self._mechanism.processes.agree(None, (start, charged))
        for panel in self._panels.values():
            panel.lose(start - int(saved["step"]))
        self._at = Progress(start, charged)
        self._facts = self._facts.with_status("resumed")
        self._keeper.write(self._facts, self._random)


def _mean(losses: Tensor) -> float:
    finite = losses[torch.isfinite(losses)]
    return float(finite.mean()) if len(finite) else float("nan")


def _quantiles(norms: Tensor) -> tuple[float, float, float]:
    if len(norms) == 0:
        return 0.0, 0.0, 0.0
    values = np.quantile(norms.numpy(), (0.1, 0.5, 0.9))
    return float(values[0]), float(values[1]), float(values[2])
