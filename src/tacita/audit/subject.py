"""What is attacked: a run made in Python or a run directory, with as much of it as is at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita.accounting import BayesianAccountant, record_curves
from tacita.audit.replay import shapes_of
from tacita.label import Label
from tacita.runs import Run
from tacita.training.labels import standing_of_run
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan
from tacita.training.recipes import reopen

Data = tuple[Tensor, ...]
FEWEST = 20  # records a side that can be compared


class SkippedError(ValueError):
    """Why an attack cannot be made on this run."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is attacked: a mechanism, and if they are at hand the model, its records and how it was made.

    Attributes:
        plan: What was declared.
        steps: How many steps were taken.
        label: What is claimed.
        shapes: Of the trainable parameters.
        model: The trained model.
        loss_fn: Its loss.
        train: Records trained on: inputs …, target.
        held: Records like them that were not.
        own: Epsilons of followed records, of those trained on and of those held out.
        remake: Returns model, optimiser and scheduler as before the first step.
        classes: Names of the classes.
        why: Why what is missing is missing.
    """

    plan: Plan
    steps: int
    label: Label
    shapes: list[tuple[int, ...]]
    model: nn.Module | None = None
    loss_fn: Callable[[Any, Any], Tensor] | None = None
    train: Data | None = field(default=None, repr=False)
    held: Data | None = field(default=None, repr=False)
    own: tuple[Any, Any] | None = field(default=None, repr=False)
    remake: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Any]] | None = None
    classes: tuple[str, ...] | None = None
    why: str = ""

    def fresh(self) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        """Return model, optimiser and scheduler as before the first step, or say why there are none."""
        if self.remake is None:
            raise SkippedError(self.why)
        try:
            return self.remake()
        except (RuntimeError, ValueError, TypeError) as error:
            raise SkippedError(f"the model cannot be made again ({error})") from error

    def private(self, records: Data, **options: Any) -> PrivateTraining:
        """Start the run's training again, in memory, on the given records."""
        model, optimizer, scheduler = self.fresh()
        if self.loss_fn is None:
            raise SkippedError(self.why)
        options = {"panel": 0, "sample_rate": self.plan.sample_rate, **options}
        return PrivateTraining(
            model,
            self.loss_fn,
            records,
            optimizer=optimizer,
            scheduler=scheduler,
            steps=self.steps,
            clip_norm=self.plan.clip_norm,
            noise_multiplier=self.plan.noise_multiplier,
            batch_size=self.plan.batch_size,
            delta=self.plan.delta,
            **options,
        )


def subject_of(target: PrivateTraining | str | Path) -> tuple[Subject, Path | None]:
    """Return what can be attacked, and the run directory if there is one."""
    if isinstance(target, PrivateTraining):
        return _of_training(target), target.run_dir
    folder = Path(target)
    return _of_folder(folder), folder


def _of_training(private: PrivateTraining) -> Subject:
    label = private.label()
    steps = private.plan.steps if private.status == "failed" else private.taken
    train, held = private.tensors
    why = "the run was resumed, so the model it began with is not at hand"
    if train is None:
        why = "its records are not tensors (inputs, target)"
    elif held is None:
        why = "it has no held-out records; pass holdout=… to PrivateTraining"
    return Subject(
        plan=private.plan,
        steps=steps,
        label=label,
        shapes=shapes_of(private.parameters),
        model=private.model,
        loss_fn=private.loss_fn,
        train=train,
        held=held,
        own=_epsilons(private.accountants, label.worst.delta),
        remake=None if private._initial is None else private.remake,
        why=why,
    )


def _of_folder(folder: Path) -> Subject:
    standing = standing_of_run(folder)
    plan = standing.plan
    accountants = {name: panel.accountant for name, panel in standing.panels.items()}
    run = Run.open(folder, "training")
    state = run.load()[0]["model"]
    shapes = [tuple(t.shape) for t in state.values() if t.is_floating_point()]
    common = {"plan": plan, "steps": standing.taken, "label": standing.label(plan.delta)}
    if "recipe" not in run.document():
        why = "the run was made in Python: call tacita.audit.run(private) where its model and records are at hand"
        return Subject(shapes=shapes, why=why, **common)  # type: ignore[arg-type]
    made = reopen(folder)
    return Subject(
        shapes=shapes_of({n: p for n, p in made.model.named_parameters() if p.requires_grad}),
        model=made.model,
        loss_fn=made.loss,
        train=made.train,
        held=made.held,
        own=_epsilons(accountants, plan.delta),
        remake=made.remake,
        classes=made.dataset.classes,
        **common,  # type: ignore[arg-type]
    )


def _epsilons(accountants: Mapping[str, BayesianAccountant], delta: float) -> tuple[Any, Any] | None:
    """Return followed records' own epsilons, inside and outside, of at most 500 records each."""
    if set(accountants) != {"training", "held-out"} or min(len(a.counts) for a in accountants.values()) < FEWEST:
        return None
    sides = [accountants[name].counts for name in ("training", "held-out")]
    sides = [rows[np.unique(np.linspace(0, len(rows) - 1, 500).astype(int))] for rows in sides]
    one = accountants["training"]
    curves = record_curves(  # of both sides on one grid: equal records get equal figures
        np.concatenate(sides), sample_rate=one.sample_rate, noise_multiplier=one.noise_multiplier
    )
    own = curves.epsilon(delta)
    return own[: len(sides[0])], own[len(sides[0]) :]


def both(subject: Subject) -> tuple[Data, Data]:
    """Return the records trained on and those held out, or say why there are none."""
    if subject.train is None or subject.held is None or subject.remake is None:
        raise SkippedError(subject.why)
    return subject.train, subject.held


def classification(subject: Subject) -> tuple[Data, Data]:
    """Return records (inputs, class), trained on and held out, or say why there are none."""
    train, held = both(subject)
    if len(train) != 2 or train[1].is_floating_point() or train[1].dim() != 1:
        raise SkippedError("it attacks classifiers of records (inputs, class)")
    return train, held
