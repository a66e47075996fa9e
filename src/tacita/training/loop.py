"""The training loop: sample, clip, add noise, step; charge first, measure along the way, keep everything."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita._files import replace_files
from tacita._guard import Interrupts
from tacita._numbers import delta_text, round_up_text
from tacita._progress import Progress, ProgressBar
from tacita._tensors import weights_file
from tacita.accounting import BayesianAccountant
from tacita.facts import Status
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.report.page import page_template
from tacita.runs import Run
from tacita.training.labels import Standing, with_audit
from tacita.training.mechanism import Mechanism
from tacita.training.plan import Plan
from tacita.training.settings import Books, Follow, Whose, declared, grouped
from tacita.training.stepping import Step, Stepper
from tacita.training.tuned import tuned_of


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
        whose: Whose each record is, where people have several; or the fields of `Whose` (`person`, `holdout_person`,
            `missing_person`) as keywords. With `person=ids` and `records_per_person=k` the unit is the person: batch
            and nominal size, panels, budgets and every figure count persons.
        follow: Who is followed; or the fields of `Follow` (`panel`, `holdout`, `groups`) as keywords.
        books: Where the run is kept; or the fields of `Books` (`ledger`, `run_dir`, `seed`, `name`, `purpose`) as
            keywords.
        scheduler: A learning-rate scheduler to step and to checkpoint.
        companions: Further things to checkpoint, by name, each with `state_dict` and `load_state_dict`, such as the
            optimiser of a generator that is fitted to the trained model. Only what is computed from released
            parameters belongs here.
        chunk: Records differentiated at once; by default it adapts to memory.
        settings: Single settings of `plan`, `whose`, `follow` and `books`, as said there.

    Guarantee:
        Every step is a Poisson-sampled Gaussian release: independent coins, per-record clipping in float32 or
        better, fresh noise, a public divisor; its cost is on disk before the parameters change. A record that
        is not finite contributes zero, as does one on which the model raises, one that cannot be read and one that
        does not look like the others. With `person` this holds of persons, who
        come or go with all of their records: one coin for each, and one clip of the mean over at most
        `records_per_person` of them. Nothing that looks at the data stops the run. The label holds whenever the run is
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

    remake: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Any]] | None = None
    """Makes copies of model, optimiser and scheduler as before the first step; None if the run was resumed."""
    _loop: weakref.ref[Generator[Step, None, None]] | None = None

    @_check.renamed("rng")
    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        dataset: Any,
        *,
        optimizer: torch.optim.Optimizer,
        plan: Plan | None = None,
        whose: Whose | None = None,
        follow: Follow | None = None,
        books: Books | None = None,
        scheduler: Any = None,
        companions: Mapping[str, Any] | None = None,
        chunk: int | None = None,
        **settings: Any,
    ) -> None:
        whose = grouped("whose", Whose, whose, settings)
        follow = grouped("follow", Follow, follow, settings)
        books = grouped("books", Books, books, settings)
        if books.run_dir is not None:
            page_template()  # fail early if an extra is missing
        attached = {"holdout": follow.holdout, "scheduler": scheduler, "companions": companions, "chunk": chunk}
        self.mechanism = Mechanism(model, loss_fn, dataset, optimizer=optimizer, whose=whose, **attached)
        self.plan = declared(plan, settings)
        self.remake = self.mechanism.initial()
        self._stepper = Stepper.start(self.mechanism, self.plan, follow, books)

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        dataset: Any,
        *,
        optimizer: torch.optim.Optimizer,
        ledger: Ledger | None = None,
        whose: Whose | None = None,
        **attached: Any,
    ) -> PrivateTraining:
        """Go on with an interrupted run: the same plan, the same guarantee, fresh noise.

        Steps that were charged after the last checkpoint may have left the process before it died, so they
        are neither repeated nor refunded: they count among the planned ones, at the clip bound.

        Args:
            run_dir: The run's folder.
            model: As at its start; its parameters are those of the checkpoint afterwards.
            loss_fn: As at its start.
            dataset: The same records.
            optimizer: As at its start; its state is that of the checkpoint afterwards.
            ledger: Where the run is charged, if that is open already.
            whose: As at its start; or its fields as keywords.
            attached: `holdout`, `scheduler` and `companions` as at its start, and `chunk`.
        """
        whose = grouped("whose", Whose, whose, attached)
        run = Run.open(run_dir, "training")
        made = cls.__new__(cls)
        made.mechanism = Mechanism(model, loss_fn, dataset, optimizer=optimizer, whose=whose, **attached)
        made._stepper = Stepper.resume(made.mechanism, run, ledger)
        made.plan = made._stepper.plan
        return made

    def __repr__(self) -> str:
        state = self._stepper.state
        worst = self.plan.headline(self.taken, self.plan.delta, promise=state.promise)
        where = "" if self.run_dir is None else f", in {str(self.run_dir)!r}"
        how_far = f"step {self.taken} of {self.plan.steps}, {self.status}"
        return f"<PrivateTraining {state.facts.title!r}: {how_far}; {_said(worst)}{where}>"

    def __iter__(self) -> Iterator[Step]:
        """Take the remaining steps one by one. Interrupting leaves a run that can be resumed."""
        return self.steps()

    def steps(self, *, curve: bool = True) -> Iterator[Step]:
        """Take the remaining steps one by one, as iterating does.

        Args:
            curve: Whether to take running figures of the typical case, for a curve on the label. They cost several
                times what the final figure does.
        """
        self._leave_loop()  # one loop at a time: the earlier one pauses here
        self._stepper.refuse_failed()
        steps = self._steps(curve)
        self._loop = weakref.ref(steps)
        return steps

    def _steps(self, curve: bool) -> Generator[Step, None, None]:
        quiet: tuple[type[PrivacyError], ...] = ()
        processes = self.mechanism.processes
        with Interrupts() as interrupts:
            try:
                while (step := self._stepper.advance()) is not None:
                    if curve:
                        self._stepper.read()
                    yield step
                    if any(processes.gathered(interrupts.seen)):  # all stop after the same step
                        raise KeyboardInterrupt
            except GeneratorExit:  # nobody hears what is raised where a loop is left; the next call raises it again
                quiet = (PrivacyError,)
                raise
            finally:
                with suppress(*quiet):
                    self._stepper.pause()

    def advance(self) -> Step | None:
        """Take one step and return it; None if no step, or no budget, is left.

        Iterating does the same, and also takes running figures, lets a step finish on Ctrl-C and pauses at the end.
        """
        return self._stepper.advance()

    def run(self, progress: Progress | None = None) -> PrivateTraining:
        """Take all remaining steps.

        Args:
            progress: Called as `progress(done, total, "step")`. By default there is a bar on a terminal or in a
                notebook, and elsewhere a line for every tenth of the steps, with the epsilon that the label will have.
        """
        step: Step | None = None

        def detail() -> str:
            return "" if step is None else _said(step.spent)

        with ProgressBar(detail) if progress is None else nullcontext(progress) as shown:
            for step in self:
                shown(step.number, self.plan.steps, "step")
        return self

    def pause(self) -> None:
        """Keep a checkpoint from which nothing is lost, and let go of the run directory, as leaving a loop does.

        Until then nobody else can resume the run. The next step goes on, unless somebody else has resumed it.
        """
        self._leave_loop()
        self._stepper.pause()

    def _leave_loop(self) -> None:
        before = self._loop() if self._loop is not None else None
        if before is not None:
            before.close()

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label of the run, and write it to the run directory.

        The headline is that of the declared end which covers the steps taken: the plan's, unless `stops` were
        declared, or the owner's `end`, or the budget of a ledger that had one from its first charge on.

        Args:
            delta: Total failure probability of every figure on it.
            metrics: Results for the owner, such as {"accuracy on the test set": "95.2%"}. They are exact: a choice
                made by them, if they were measured on private records, is not covered by the label.
        """
        state, keeper = self._stepper.state, self._stepper.keeper
        if state.taken == 0:
            raise PrivacyError("No step was taken yet: there is nothing to label.")
        if self._stepper.leads:
            keeper.charges.check()
        state.facts = state.facts.with_metrics(metrics or {})
        shown = state
        if self.status == "failed":  # when it failed may depend on the data: it is labelled as if it had not
            shown = copy.deepcopy(state)
            shown.lose(self.plan.steps - state.taken)
        total = self.plan.delta if delta is None else _check.probability("delta", delta)
        standing = Standing(
            self.plan, shown.taken, shown.panels, state.facts, state.groups, *keeper.ending(), tuned_of(keeper.run)
        )
        label = standing.label(total)
        if keeper.run is not None:
            label = with_audit(label, keeper.run, shown.taken)
            keeper.write(state, self._stepper.random)
            keeper.run.write_label(label)
        return label

    def export(self, file: str | Path) -> Path:
        """Write the model's weights alone, as plain torch and transformers read them, and nothing of its records.

        `load_model(model, file)` of `safetensors.torch` reads them back. Tensors that are tied are stored once.

        Args:
            file: Where to, such as "model.safetensors"; replaced if it exists.

        Raises:
            PrivacyError: If no step was taken, the last one failed, the ledger lacks one, or a buffer has changed.
        """
        self.require_released()
        if self._stepper.leads:
            replace_files({Path(file): weights_file(self.model.state_dict())[0]})
        return Path(file)

    def require_released(self) -> None:
        """Refuse weights that may not leave this process.

        Raises:
            PrivacyError: If no step was taken, the last one failed, the ledger lacks one, a buffer has changed, or a
                tuning did not choose this run.
        """
        state = self._stepper.state
        self._stepper.refuse_failed()
        if state.taken == 0:
            raise PrivacyError("No step was taken yet: there are no weights to export.")
        self.mechanism.require_constants()
        tuned_of(self._stepper.keeper.run)
        if self._stepper.leads:
            charges = self._stepper.keeper.charges
            charges.check()
            if charges.charged < state.taken:
                raise PrivacyError("The ledger lacks steps of this run: its weights must not leave it.")

    def end(self, reason: str) -> None:
        """End the run here, declaring that this depended on nothing private: no record, no loss, no released output.

        The label then speaks of the steps taken, with your reason as an open assumption. No step can follow.

        Args:
            reason: What ended it, such as "the machine was needed elsewhere"; shown on the public label.
        """
        self.pause()
        if self._stepper.leads:
            charges = self._stepper.keeper.charges
            charges.ledger.end(charges.identity, reason, owner=charges.owner)
            self._stepper.keeper.write(self._stepper.state, self._stepper.random)

    @property
    def taken(self) -> int:
        """How many steps were taken."""
        return self._stepper.state.taken

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.mechanism.model

    @property
    def optimizer(self) -> Any:
        """The optimiser."""
        return self.mechanism.optimizer

    @property
    def accountants(self) -> dict[str, BayesianAccountant]:
        """The followed records' accountants, `training` and `held-out`, at the plan's delta; sensitive."""
        return {name: panel.account(self.plan.delta) for name, panel in self._stepper.state.panels.items()}

    @property
    def run_dir(self) -> Path | None:
        """Where the run is written."""
        return None if self._stepper.keeper.run is None else self._stepper.keeper.run.folder

    @property
    def status(self) -> Status:
        """`running`, `done`, `interrupted`, `resumed`, `failed` or `budget-spent`."""
        return self._stepper.state.facts.status

    @property
    def bounds(self) -> Any:
        """What each training record is held to now, over the clip norm; sensitive. Ones without `individual_every`."""
        return self._stepper.bounds(np.arange(len(self.mechanism.records))) / self.plan.clip_norm

    @property
    def readings(self) -> tuple[tuple[int, float], ...]:
        """(step, typical epsilon so far), from at most 1000 followed records; for the owner."""
        return self._stepper.state.facts.curve


def _said(worst: Guarantee) -> str:
    return f"epsilon {round_up_text(worst.epsilon)} at delta {delta_text(worst.delta)}"
