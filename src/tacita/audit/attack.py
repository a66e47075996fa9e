"""What an attack gets, a `Session` with its `Target`, and what it is: a line of `tacita.audit.ATTACKS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita._progress import Progress, quiet
from tacita.accounting import BayesianAccountant, record_curves
from tacita.label import Finding, Label
from tacita.runs import Run
from tacita.training.jobs import reopen
from tacita.training.labels import standing_of_run
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan

Data = tuple[Tensor, ...]
FEWEST = 20  # records a side that can be compared
_MOST = 500  # followed records a side whose epsilons are compared


class SkippedError(ValueError):
    """Why an attack cannot be made on this run."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is attacked: a mechanism and, if available, the model, its records and how it was made.

    Attributes:
        plan: What was declared.
        steps: How many steps were taken.
        label: What is claimed.
        shapes: Shapes of the trainable parameters.
        model: The trained model.
        loss_fn: Its loss.
        train: Records trained on: inputs …, target.
        holdout: Records like them that were not trained on.
        record_epsilons: Epsilons of followed records, (trained on, held out).
        remake: Returns model, optimiser and scheduler as before the first step.
        classes: Names of the classes.
        why: Why something is missing.
    """

    plan: Plan
    steps: int
    label: Label
    shapes: list[tuple[int, ...]]
    model: nn.Module | None = None
    loss_fn: Callable[[Any, Any], Tensor] | None = None
    train: Data | None = field(default=None, repr=False)
    holdout: Data | None = field(default=None, repr=False)
    record_epsilons: tuple[Any, Any] | None = field(default=None, repr=False)
    remake: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Any]] | None = None
    classes: tuple[str, ...] | None = None
    why: str = ""

    def records(self) -> tuple[Data, Data]:
        """Return the records trained on and those held out, or raise `SkippedError`."""
        if self.plan.records_per_person is not None:
            raise SkippedError("it tells single records apart, and this run protects persons with several records")
        if self.train is None or self.holdout is None or self.remake is None:
            raise SkippedError(self.why)
        return self.train, self.holdout

    def classified(self) -> tuple[Data, Data]:
        """Return records (inputs, class), trained on and held out, or raise `SkippedError`."""
        train, holdout = self.records()
        if len(train) != 2 or train[1].is_floating_point() or train[1].dim() != 1:
            raise SkippedError("it attacks classifiers of records (inputs, class)")
        return train, holdout

    def trained(self) -> tuple[nn.Module, Callable[[Any, Any], Tensor]]:
        """Return the trained model and its loss, or raise `SkippedError`."""
        if self.model is None or self.loss_fn is None:
            raise SkippedError(self.why)
        return self.model, self.loss_fn

    def fresh(self) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        """Return model, optimiser and scheduler as before the first step, or raise `SkippedError`."""
        if self.remake is None:
            raise SkippedError(self.why)
        try:
            return self.remake()
        except (RuntimeError, ValueError, TypeError) as error:
            raise SkippedError(f"the model cannot be made again ({error})") from error

    def retrain(self, records: Data, **options: Any) -> PrivateTraining:
        """Start the run's training again, in memory, on the given records; `options` are `PrivateTraining`'s."""
        model, optimizer, scheduler = self.fresh()
        return PrivateTraining(
            model,
            self.trained()[1],
            records,
            optimizer=optimizer,
            scheduler=scheduler,
            steps=self.steps,
            clip_norm=self.plan.clipping,
            noise_multiplier=self.plan.noise_multiplier,
            noise=self.plan.noise,
            batch_size=self.plan.batch_size,
            delta=self.plan.delta,
            **{"panel": 0, "sample_rate": self.plan.sample_rate, **options},
        )


@dataclass(frozen=True, kw_only=True)
class Session:
    """One audit, as an attack sees it.

    Attributes:
        target: What is attacked.
        references: How many reference models an attack may train.
        base_seed: Makes the audit repeatable; None draws from the operating system.
        deadline: When the time is up, on the monotonic clock.
        progress: Called as the attack goes on.
        results: Plain results of the attacks made so far, by name.
    """

    target: Target
    references: int = 4
    base_seed: int | None = None
    deadline: float | None = None
    progress: Progress = quiet
    results: Mapping[str, Any] = field(default_factory=dict)

    def out_of_time(self) -> bool:
        """Return whether the time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def rng(self, stream: int) -> np.random.Generator:
        """Return the generator of a stream. Every use of randomness in the package has its own stream number."""
        return np.random.default_rng(None if self.base_seed is None else [self.base_seed, stream])

    def seed(self, stream: int) -> int | None:
        """Return a seed from that stream, None if the audit has none."""
        return None if self.base_seed is None else int(self.rng(stream).integers(2**40))


@dataclass(frozen=True)
class Attack:
    """One attack on a run. To add one, write a file with such a function and add a line to `ATTACKS`.

    Attributes:
        activity: What it does, in a few words, to be shown while it runs.
        run: Attacks `session.target`; returns plain data for audit.json, and the finding for the owner's label, where
            findings of the same key replace each other. A `SkippedError` says what the target lacks, and any other
            ValueError that the attack does not suit the run: it is skipped.
    """

    activity: str
    run: Callable[[Session], tuple[dict[str, Any], Finding]]


def target_of(run: PrivateTraining | str | Path) -> tuple[Target, Path | None]:
    """Return the target, and its run directory if it has one."""
    if isinstance(run, PrivateTraining):
        return _of_training(run), run.run_dir
    return _of_folder(Path(run)), Path(run)


def _of_training(private: PrivateTraining) -> Target:
    label = private.label()
    mechanism = private.mechanism
    parts = map(mechanism.plain.get, ("training", "held-out"))
    train, holdout = (None if records is None else records.tensors for records in parts)
    why = "the run was resumed, so the model it began with is not at hand"
    if train is None:
        why = "its records are not tensors (inputs, target)"
    elif holdout is None:
        why = "it has no held-out records; pass holdout=… to PrivateTraining"
    return Target(
        plan=private.plan,
        steps=private.plan.steps if private.status == "failed" else private.taken,
        label=label,
        shapes=[tuple(p.shape) for p in mechanism.parameters.values()],
        model=mechanism.model,
        loss_fn=mechanism.loss_fn,
        train=train,
        holdout=holdout,
        record_epsilons=_record_epsilons(private.accountants, label.worst.delta),
        remake=private.remake,
        why=why,
    )


def _of_folder(folder: Path) -> Target:
    standing = standing_of_run(folder)
    plan, label = standing.plan, standing.label(standing.plan.delta)
    run = Run.open(folder, "training")
    if "recipe" not in run.document():
        return Target(
            plan=plan,
            steps=standing.taken,
            label=label,
            shapes=[tuple(t.shape) for t in run.load()[0]["model"].values() if t.is_floating_point()],
            why="the run was made in Python: call tacita.audit.run(private) where its model and records are at hand",
        )
    made = reopen(folder)
    accountants = {name: panel.account(plan.delta) for name, panel in standing.panels.items()}
    return Target(
        plan=plan,
        steps=standing.taken,
        label=label,
        shapes=[tuple(p.shape) for p in made.model.parameters() if p.requires_grad],
        model=made.model,
        loss_fn=made.loss,
        train=made.train,
        holdout=made.held,
        record_epsilons=_record_epsilons(accountants, plan.delta),
        remake=made.remake,
        classes=made.dataset.classes,
    )


def _record_epsilons(accountants: Mapping[str, BayesianAccountant], delta: float) -> tuple[Any, Any] | None:
    """Return followed records' epsilons, inside and outside, of at most 500 records each."""
    if set(accountants) != {"training", "held-out"} or min(len(a.counts) for a in accountants.values()) < FEWEST:
        return None
    sides = [accountants[name].counts for name in ("training", "held-out")]
    sides = [rows[np.unique(np.linspace(0, len(rows) - 1, _MOST).astype(int))] for rows in sides]
    one = accountants["training"]
    curves = record_curves(  # of both sides on one grid: equal records get equal figures
        np.concatenate(sides), sample_rate=one.sample_rate, noise_multiplier=one.noise_multiplier
    )
    epsilons = curves.epsilon(delta)
    return epsilons[: len(sides[0])], epsilons[len(sides[0]) :]
