"""Private training: DP-SGD on any per-record model, charged before release, resumable, with everyone's account."""

from __future__ import annotations

import copy
import os
import secrets
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import BayesianAccountant
from tacita.accounting.filters import Budget
from tacita.facts import MEMORY, RunFacts, Status
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, RunError
from tacita.training.charges import Charges, ledger_at
from tacita.training.followed import Panel
from tacita.training.gradients import Clipped, clipped_sum, record_norms
from tacita.training.labels import Standing, reading, reading_times, with_audit
from tacita.training.plan import Pair, Plan, make_plan
from tacita.training.randomness import randomness
from tacita.training.records import Records, check_model, record_loss, trainable, try_one
from tacita.training.step import noisy_mean, poisson_sample
from tacita.training.team import Team

_SLICE = 4096  # records measured at once


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
        loss_fn: As in PyTorch: takes the model's output and the target of a batch.
        dataset: Map-style dataset, tensor dataset, or tensors; records are (inputs, target) or dicts. What the records
            of a map-style dataset look like is taken from most of 15 of them, unless it is declared, with a made-up
            record: `tacita.training.records.Records(dataset, like=(torch.zeros(3, 32, 32), 0))`.
        optimizer: Any torch optimiser of the model's parameters; groups and frozen parameters are respected.
        batch_size: The planned batch: how many records a step looks at on average if there are `nominal_size`. The
            noisy sum is divided by it, whatever the realised number.
        nominal_size: The public size of the data, declared and never counted from them. Each record enters a step on
            its own coin, with chance batch_size / nominal_size. The guarantee holds whatever the true size is.
        sample_rate: That chance as a number, instead of `nominal_size`. Whether it was computed from the data nobody
            can tell, so it becomes an open assumption on the label.
        steps: How many steps to take at most. The label speaks of all of them, even if the run is ended earlier.
        stops: Further ends, declared now, such as (100, 200, 400): a run that ends by one of them is labelled with
            it. Each takes an equal share of delta, or the share given as {step: share}.
        clip_norm: The largest norm of one record's gradient.
        noise_multiplier: Noise standard deviation over the clip norm. Or give `target`.
        target: (epsilon, delta): find the least noise that keeps the worst case within it.
        budget: (epsilon, delta): cut the steps so that the worst case stays within it.
        individual_every: Measure every record once in so many steps and hold it to its own bound in between:
            every record's own account, enforced.
        record_budget: From `token_profile`, `token_budget` or `moments_budget`: what a record may spend before
            it is held back, in silence. Needs `individual_every`.
        certificate: A budget, declared now, for a conformal certificate.
        tolerated: How many followed records may pass the certificate's budget.
        panel: How many training records (and as many held-out ones) are followed when not all are measured.
            Each costs a gradient at every step; 0 follows nobody, and there is no typical case then.
        holdout: Records like those of the dataset that are not trained on.
        groups: For the owner's tables: {column: one value per training record}.
        scheduler: A learning-rate scheduler to step and to checkpoint.
        companions: Further things to checkpoint, by name, each with `state_dict` and `load_state_dict`, such as the
            optimiser of a generator that is fitted to the trained model. Only what is computed from released
            parameters belongs here.
        ledger: A path, or a `tacita.ledger.Ledger`, to charge; made if it does not exist. Without one the run
            directory gets its own.
        run_dir: Where to write the run. None writes nothing, and the run cannot be resumed.
        rng: A seed. None, the default, is seeded by the operating system; a chosen seed is marked as not secure.
            A resumed run goes on with fresh randomness in any case.
        delta: At which delta running figures are given.
        chunk: Records differentiated at once; by default it adapts to memory.
        name: The run's name on its label.
        purpose: What is made, in a sentence, for its label.

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
    _initial: tuple[dict[str, Tensor], Any, Any] | None = None

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        dataset: Any,
        *,
        optimizer: torch.optim.Optimizer,
        steps: int,
        batch_size: float | None = None,
        nominal_size: float | None = None,
        sample_rate: float | None = None,
        stops: Sequence[int] | Mapping[int, float] = (),
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        target: Pair | None = None,
        budget: Pair | None = None,
        individual_every: int | None = None,
        record_budget: Budget | None = None,
        certificate: Budget | None = None,
        tolerated: int = 0,
        panel: int = 256,
        holdout: Any = None,
        groups: Mapping[str, Any] | None = None,
        scheduler: Any = None,
        companions: Mapping[str, Any] | None = None,
        ledger: Ledger | str | Path | None = None,
        run_dir: str | Path | None = None,
        rng: int | None = None,
        delta: float = 1e-5,
        chunk: int | None = None,
        name: str | None = None,
        purpose: str = "",
    ) -> None:
        if run_dir is not None:
            page_template()  # a missing extra is told now, not after the work
        self._attach(model, loss_fn, dataset, holdout, optimizer, scheduler, chunk)
        self._companions = dict(companions or {})
        self.plan = make_plan(
            sample_rate=sample_rate,
            nominal_size=nominal_size,
            steps=steps,
            stops=stops,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            target=target,
            budget=budget,
            batch_size=batch_size,
            delta=delta,
            individual_every=individual_every,
            record_budget=record_budget,
            certificate=certificate,
            tolerated=tolerated,
        )
        self._random = randomness(rng)
        self._groups = _group_codes(groups, len(self._records))
        self._fingerprint = self._records.fingerprint() if run_dir is not None else ""
        self._panels = self._new_panels(_check.count("panel", panel, low=0, high=10**7))
        self._initial = (
            {name: p.detach().clone() for name, p in self._parameters.items()},
            copy.deepcopy(optimizer.state_dict()),
            None if scheduler is None else copy.deepcopy(scheduler.state_dict()),
        )
        self._begin(0)
        self._identity = secrets.token_hex(8)
        self._facts = RunFacts(
            title=name or (Path(run_dir).name if run_dir else "Private training"),
            purpose=purpose or f"A {type(model).__name__} model trained with DP-SGD.",
            seeded=self._random.seeded,
            trained=len(self._records),
            held_out=0 if self._held is None else len(self._held),
            form_taken=self._records.form_taken,
        )
        if self._team.leads:
            self._open(run_dir, ledger)
        self._team.agree(None)

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
            if self.taken >= self.plan.steps or not self._reserve():
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
        if self.taken == 0:
            raise PrivacyError("No step was taken yet: there is nothing to label.")
        if self._ledger is not None:
            self._charges.check()
        self._facts = self._facts.with_metrics(metrics or {})
        taken = self.taken
        if self._facts.status == "failed":  # when it failed may depend on the data: it is labelled as if it had not
            taken = self.plan.steps
            for panel in self._panels.values():
                panel.lose(taken - panel.accountant.taken)
        total = self.plan.delta if delta is None else _check.probability("delta", delta)
        label = Standing(
            self.plan,
            taken,
            self._panels,
            self._facts,
            self._groups,
            *self._ending(),
        ).label(total)
        if self._run is not None:
            label = with_audit(label, self._run, taken)
            self._write_run()
            self._run.write_label(label)
        return label

    def _ending(self) -> tuple[str, Pair | None]:
        """Return what the ledger knows of the run's end; processes that do not hold it label the plan."""
        if self._ledger is None:
            return "", None
        return self._ledger.ended(self._identity), self._ledger.promise(self._identity)

    def end(self, reason: str) -> None:
        """End the run here, declaring that this depended on nothing private: no record, no loss, no released output.

        The label then speaks of the steps taken, with your reason as an open assumption. No step can follow.

        Args:
            reason: What ended it, such as "the machine was needed elsewhere"; shown on the public label.
        """
        self.pause()
        self._book.end(self._identity, reason, owner=self._owner.token)
        self._write_run()

    @property
    def accountants(self) -> dict[str, BayesianAccountant]:
        """The followed records' accountants, `training` and `held-out`; sensitive."""
        for panel in self._panels.values():
            panel.settle()
        return {name: panel.accountant for name, panel in self._panels.items()}

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return dict(self._parameters)

    def remake(self) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        """Return copies of model, optimiser and scheduler as they were before the first step."""
        if self._initial is None:
            raise ValueError("The run was resumed, so what it began with is not at hand.")
        parameters, optimizer_state, scheduler_state = self._initial
        model, optimizer, scheduler = copy.deepcopy((self.model, self.optimizer, self.scheduler))
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in parameters.items():
                named[name].copy_(value)
        optimizer.load_state_dict(copy.deepcopy(optimizer_state))
        if scheduler is not None:
            scheduler.load_state_dict(copy.deepcopy(scheduler_state))
        return model, optimizer, scheduler

    @property
    def tensors(self) -> tuple[Any, Any]:
        """Training and held-out records as tuples of tensors (inputs …, target); None where they are not. Sensitive."""
        return self._records.tensors, None if self._held is None else self._held.tensors

    @property
    def run_dir(self) -> Path | None:
        """Where the run is written."""
        return None if self._run is None else self._run.folder

    @property
    def status(self) -> Status:
        """`running`, `done`, `interrupted`, `resumed`, `failed` or `stopped …`."""
        return self._facts.status

    @property
    def bounds(self) -> Any:
        """What each training record is held to now, over the clip norm; sensitive. Ones without `individual_every`."""
        everyone = np.arange(len(self._records))
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
        loss_fn: Callable[[Any, Any], Tensor],
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
        made._attach(model, loss_fn, dataset, holdout, optimizer, scheduler, chunk)
        made._companions = dict(companions or {})
        made._own(run.folder)  # before the checkpoint is read, so that it is nobody else's any more
        with made._owner.opening():
            made._restore(run, ledger)
        return made

    # Setting up.

    def _attach(
        self, model: nn.Module, loss_fn: Any, dataset: Any, holdout: Any, optimizer: Any, scheduler: Any, chunk: Any
    ) -> None:
        self.model, self.loss_fn, self.optimizer, self.scheduler = model, loss_fn, optimizer, scheduler
        self._team = Team()
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._records = Records.of(dataset, device)
        self._held = None if holdout is None else Records.of(holdout, device)
        self._chunk = None if chunk is None else _check.count("chunk", chunk)
        check_model(model)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS evaluates the loss several times a step, which is not private. Use another optimiser."
            )
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau looks at the loss, which is not private. Use another scheduler.")
        self._loss = record_loss(model, loss_fn)
        self._parameters = trainable(model, optimizer)
        for records in (self._records, self._held):
            if records is not None:
                try_one(model, self._loss, self._detached(), records)
        self._team.check_same(self._parameters)
        self._stepping = threading.Lock()
        self._run: Run | None = None
        self._ledger: Ledger | None = None
        self._iterator = None
        self._owner = Owner()

    def _own(self, folder: Path) -> None:
        """Lock the run directory; only the first process owns it, and the others are told if it cannot."""
        problem = None
        if self._team.leads:
            self._owner = Owner(folder)
            try:
                self._owner.hold()
            except PrivacyError as error:
                problem = str(error)
        self._team.agree(problem)

    def _begin(self, step: int) -> None:
        self.taken = step
        self._charged = step
        self._measure_now = True
        self._paused_at: str | None = None
        self._in_step = False
        self._process = os.getpid()
        self._save_every = max(10, self.plan.steps // 20)

    def _new_panels(self, size: int) -> dict[str, Panel]:
        if not self._team.leads:
            return {}
        panels = {}
        for name, records in (("training", self._records), ("held-out", self._held)):
            if records is None or (size == 0 and self.plan.individual_every is None):
                continue
            everyone = np.arange(len(records))
            if self.plan.individual_every is None and size < len(records):
                everyone = np.sort(self._random.sampling.choice(everyone, size, replace=False))
            panels[name] = Panel(records, everyone, self._accountant(), budget=self.plan.record_budget)
        return panels

    def _accountant(self) -> BayesianAccountant:
        return BayesianAccountant(
            sample_rate=self.plan.sample_rate,
            noise_multiplier=self.plan.noise_multiplier,
            steps=self.plan.steps,
            budget=self.plan.certificate,
            tolerated=self.plan.tolerated,
        )

    def _open(self, run_dir: str | Path | None, ledger: Ledger | str | Path | None) -> None:
        if run_dir is not None:
            self._run = Run.create(run_dir)
            self._owner = Owner(self._run.folder).hold()
        own = self._run.folder / "ledger.sqlite" if self._run is not None else MEMORY
        self._ledger = ledger_at(own if ledger is None else ledger, unit=self.plan.unit)
        self._facts = self._facts.with_ledger(self._ledger.path.name, shared=ledger is not None)
        self._charges.open(self._random)
        if self._run is not None:
            self._run.write(kind="training", family="training")
            self._write_run()
            self._save(clean=False)

    # Steps.

    def _reserve(self) -> bool:
        """Charge the next block of steps, on disk, before any of it is computed. False if there is no budget."""
        if os.getpid() != self._process:
            raise PrivacyError("This process was forked from the one that trains: both would add the same noise.")
        problem, granted = None, self._charged
        if self._team.leads:
            try:
                self._require_open()
                self._claim()
                granted = self._charge() if self.taken >= self._charged else self._charged
            except PrivacyError as error:
                problem = str(error)
        self._charged = self._team.agree(problem, granted)
        return self.taken < self._charged

    def _require_open(self) -> None:
        """Refuse a step after a declared end, which may have come from elsewhere, also one that is charged already."""
        ended = self._book.ended(self._identity)
        if ended:
            raise PrivacyError(f"The run was ended by its owner ({ended}); start a new run.")

    def _charge(self) -> int:
        granted = self._charges.grant(self.taken)
        self._promise = self._book.promise(self._identity)
        if granted == self.taken:
            self._facts = self._facts.with_status("budget-spent")
        return granted

    @property
    def _block(self) -> int:
        return max(1, min(50, self.plan.steps // 100))

    @property
    def _charges(self) -> Charges:
        return Charges(self._book, self._identity, self.plan, self._block, owner=self._owner.token)

    def _step(self) -> Step:
        self._in_step = True
        self._measure()
        drawn = None
        if self._team.leads:
            sample = poisson_sample(len(self._records), self.plan.sample_rate, rng=self._random.sampling)
            drawn = (sample, self._bounds(sample))
        sample, bounds = self._team.agree(None, drawn)
        mine = self._team.share(sample)
        clipped = self._clipped(sample[mine], bounds[mine])
        self._update(clipped)
        for panel in self._panels.values():
            panel.tick()
        self.taken += 1
        step = Step(
            self.taken,
            _mean(clipped.losses),
            _quantiles(clipped.norms / self.plan.clip_norm),
            self.plan,
            self._promise,
        )
        self._in_step = False
        self._note(step)
        return step

    def _measure(self) -> None:
        """Measure followed records where one is due, at the current parameters, which are released."""
        every = self.plan.individual_every or 1
        if not (self._measure_now or self.taken % every == 0):
            return
        period = min(every - self.taken % every, self.plan.steps - self.taken)
        parameters = self._detached()
        for panel in self._panels.values():
            norms = [
                self._norms(parameters, panel.records.marked(part))  # type: ignore[union-attr]
                for part in np.array_split(panel.indices, max(1, len(panel.indices) // _SLICE))
            ]
            panel.measure(np.concatenate(norms) / self.plan.clip_norm, period=period)
        self._measure_now = False

    def _norms(self, parameters: dict[str, Tensor], records: Any) -> Any:
        return record_norms(self._loss, parameters, records, chunk=self._chunk, rng=self._random.sampling).numpy()

    def _bounds(self, sample: Any) -> Any:
        if self.plan.individual_every is None:
            return np.full(len(sample), self.plan.clip_norm)
        return self.plan.clip_norm * self._panels["training"].bounds(sample)

    def _clipped(self, sample: Any, bounds: Any) -> Clipped:
        parameters = self._detached()
        records = self._records.marked(sample)
        limits = torch.from_numpy(np.asarray(bounds, dtype=np.float64))
        return clipped_sum(self._loss, parameters, records, limits, chunk=self._chunk, rng=self._random.noise)

    def _update(self, clipped: Clipped) -> None:
        sums = self._team.total(clipped.sums)
        if self._team.leads:
            sums = noisy_mean(
                sums,
                clip_norm=self.plan.clip_norm,
                noise_multiplier=self.plan.noise_multiplier,
                divisor=self.plan.batch_size,
                rng=self._random.noise,
            )
        gradients = self._team.spread(sums)
        self.optimizer.zero_grad(set_to_none=True)  # nobody else's gradient may move a parameter
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if not all(bool(torch.isfinite(p).all()) for p in self._parameters.values()):
            raise ValueError(
                f"The parameters are not finite after step {self.taken + 1}: lower the learning rate, or start from a "
                "checkpoint of before. What was charged stays charged."
            )

    def _detached(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self._parameters.items()}

    # Keeping.

    @property
    def _book(self) -> Ledger:
        if self._ledger is None:
            raise PrivacyError("Only the first process holds the ledger.")
        return self._ledger

    def _note(self, step: Step) -> None:
        if self._run is None or not self._team.leads:
            return
        row = {"step": step.number, "loss": step.loss if np.isfinite(step.loss) else None, "norms": step.norms}
        self._run.append_metrics(row)
        if (
            self.taken == self._charged
            and self.taken // self._save_every > (self.taken - self._block) // self._save_every
        ):
            self._save(clean=False)

    def _read(self) -> None:
        """Take a running figure where one is due."""
        if self._team.leads and self._panels and self.taken in reading_times(self.plan):
            worst = max(reading(panel, self.plan.delta) for panel in self._panels.values())
            self._facts = self._facts.with_reading(self.taken, worst)

    def _pause(self) -> None:
        """Leave everything on disk, and the folder; nothing is released after it before `_claim`."""
        if not self._team.leads or self._paused_at is not None:
            return
        if self.taken >= self.plan.steps:
            self._facts = self._facts.with_status("done")
        elif self.taken > 0 and self._facts.status != "budget-spent":
            self._facts = self._facts.with_status("interrupted")
        if self._run is None:
            return
        try:
            self._paused_at = self._charges.head  # first: a clean checkpoint must be claimed even if writing fails here
            if self.taken > 0:
                self._save(clean=True)
                self._write_run()
        finally:
            self._owner.close()

    def _count_failed(self) -> None:
        """Count a step that failed halfway, since its noisy result may be in the parameters; do not keep them."""
        if not self._in_step:  # it failed after the step, in keeping it
            return
        self._in_step = False
        self.taken += 1
        for panel in self._panels.values():
            panel.lose(1)
        self._facts = self._facts.with_status("failed")
        if self._team.leads:
            self._write_run()
            self._owner.close()

    def _claim(self) -> None:
        """Hold the folder; after a pause, also claim the checkpoint, so that nobody else resumes it too."""
        self._owner.hold()
        if self._paused_at is None:
            return
        try:
            start = self._charges.standing(self.taken, self._paused_at, clean=True, resume=True)
        except PrivacyError:
            self._owner.close()
            raise
        for panel in self._panels.values():
            panel.lose(start - self.taken)
        self._begin(start)
        self._charged = self._charges.charged

    def _write_run(self) -> None:
        if self._run is None:
            return
        self._run.write(
            id=self._identity,
            plan=self.plan.to_dict(),
            facts=self._facts.to_dict(),
            ledgers=[self._run.place(self._book.path)],
            seed_fingerprint=self._random.fingerprint,
        )

    def _save(self, *, clean: bool) -> None:
        state: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = {
                k: v for k, v in self.scheduler.state_dict().items() if isinstance(v, int | float | str | list | None)
            }
        if self._companions:
            state["companions"] = {name: thing.state_dict() for name, thing in self._companions.items()}
        panels = {name: panel.state() for name, panel in self._panels.items()}
        state["panels"] = {name: tensors for name, (tensors, _) in panels.items()}
        state["groups"] = {name: torch.from_numpy(codes) for name, (codes, _) in self._groups.items()}
        document = {
            "id": self._identity,
            "clean": clean,
            "head": self._charges.head,
            "panels": {name: plain for name, (_, plain) in panels.items()},
            "groups": {name: values for name, (_, values) in self._groups.items()},
            "data": self._fingerprint,
            "facts": self._facts.to_dict(),
        }
        if self._run is not None:
            self._run.save(self.taken, state, document)

    def _restore(self, run: Run, ledger: Ledger | None) -> None:
        self._run, document = run, run.document()
        state, saved = run.load()
        try:
            self.plan = Plan.from_dict(document["plan"])
            self._identity, self._fingerprint = str(document["id"]), str(saved["data"])
            self._facts = RunFacts.from_dict(saved["facts"])
            (where,) = run.ledgers
            head, clean = str(saved["head"]), saved["clean"] is True
            if saved["id"] != self._identity:
                raise PrivacyError("The checkpoint belongs to another run.")
            if not self._records.matches(str(saved["data"])):
                raise PrivacyError("These are not the records that the run was started on: it is another dataset.")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None and "scheduler" in state:
                self.scheduler.load_state_dict(state["scheduler"])
            for name, thing in self._companions.items():
                thing.load_state_dict(state["companions"][name])
            self._groups = {n: (t.numpy(), list(saved["groups"][n])) for n, t in state["groups"].items()}
            self._panels = {
                name: self._restored_panel(name, part, saved["panels"][name]) for name, part in state["panels"].items()
            }
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise RunError(f"The checkpoint does not fit this model, optimizer or dataset: {error}") from error
        self._random = randomness(None)  # fresh, whatever the run was started with
        start, charged = 0, 0
        if self._team.leads:
            self._ledger = Ledger.open(where) if ledger is None else ledger
            self._charges.open(self._random)
            start = self._charges.standing(int(saved["step"]), head, clean=clean, resume=True)
            charged = self._charges.charged
        else:
            self._run, self._panels = None, {}
        start, charged = self._team.agree(None, (start, charged))
        for panel in self._panels.values():
            panel.lose(start - int(saved["step"]))
        self._begin(start)
        self._charged = charged
        self._facts = self._facts.with_status("resumed")
        self._write_run()

    def _restored_panel(self, name: str, tensors: Any, document: Any) -> Panel:
        records = self._records if name == "training" else self._held
        if records is None:
            raise PrivacyError("This run follows held-out records: pass the same holdout=… to resume it.")
        return Panel.restore(records, tensors, document, budget=self.plan.record_budget)


class Interrupts:
    """Let a step finish when Ctrl-C comes; a second one interrupts at once."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *details: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: Any) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True


def _group_codes(groups: Mapping[str, Any] | None, size: int) -> dict[str, tuple[Any, list[str]]]:
    coded = {}
    for name, values in (groups or {}).items():
        array = np.asarray(values)
        if array.shape != (size,):
            raise ValueError(f"groups[{name!r}] must hold one value per training record, got shape {array.shape}.")
        levels, codes = np.unique(array.astype(str), return_inverse=True)
        coded[str(name)] = (codes.astype(np.int64), levels.tolist())
    return coded


def _mean(losses: Tensor) -> float:
    finite = losses[torch.isfinite(losses)]
    return float(finite.mean()) if len(finite) else float("nan")


def _quantiles(norms: Tensor) -> tuple[float, float, float]:
    if len(norms) == 0:
        return 0.0, 0.0, 0.0
    values = np.quantile(norms.numpy(), (0.1, 0.5, 0.9))
    return float(values[0]), float(values[1]), float(values[2])
