"""Fits by private steps: the data enter through clipped and noised gradients alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from tacita._check import PrivacyError
from tacita.inference.descent import seeded_draws, write_draws
from tacita.inference.guides import PointOptimizer
from tacita.inference.inputs import records_like
from tacita.inference.labels import (
    KIND,
    OWNER,
    add_fit,
    document_of,
    interval_notes,
    owner_facts,
    purpose,
    with_warning,
)
from tacita.inference.methods.protocol import Method
from tacita.inference.results import Posterior, Result
from tacita.inference.separation import start_of
from tacita.inference.settings import Progress, Request, Settings, reporter
from tacita.inference.terms import Separated, Tensors
from tacita.label import Label
from tacita.runs import Run, write_json
from tacita.training.labels import label_of_run as label_of_training
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan


class Evidence(nn.Module):
    """Minus the log likelihood of a batch of one record, at the current point."""

    def __init__(self, separated: Separated, start: Tensor) -> None:
        super().__init__()
        self.separated = separated
        self.point = nn.Parameter(start.clone())

    def forward(self, *record: Tensor) -> Tensor:
        """Return the record's loss."""
        return -self.separated.log_likelihood(self.point, tuple(t.squeeze(0) for t in record))


class PrivateSteps(Method):
    """What the methods whose steps are a `PrivateTraining` share."""

    @abstractmethod
    def optimizer(
        self, point: nn.Parameter, separated: Separated, settings: Settings, start: Tensor, seed: int | None
    ) -> PointOptimizer:
        """Return the optimiser that turns private gradients into a posterior."""

    @abstractmethod
    def posterior(
        self, optimizer: Any, plan: Plan, separated: Separated, settings: Settings, rng: np.random.Generator
    ) -> tuple[Posterior, tuple[str, ...], str]:
        """Return the posterior, what to know about its intervals, and a warning or an empty text."""

    def fit(self, request: Request) -> Result:
        """Fit the model; see `Method`."""
        separated, tensors = request.separated()
        if (request.epsilon is None) == (request.noise_multiplier is None):
            raise ValueError("Pass either noise_multiplier or epsilon, which finds it, and not both.")
        settings = request.settings
        evidence, optimizer = self.parts(separated, settings, request.seed)
        with seeded_draws(request.seed):
            private = PrivateTraining(
                evidence,
                None,
                tensors,
                optimizer=optimizer,
                **settings.declared_rate,
                steps=settings.steps,
                clip_norm=settings.clip_norm,
                noise_multiplier=request.noise_multiplier,
                target=None if request.epsilon is None else (request.epsilon, request.delta),
                batch_size=1.0,
                delta=request.delta,
                holdout=_holdout(separated, request.holdout),
                panel=request.panel,
                ledger=request.ledger,
                run_dir=request.run_dir,
                seed=request.seed,
                name=request.title,
                purpose=purpose(self, separated),
                **dict(request.training or {}),
            )
            settings = replace(settings, sample_rate=private.plan.sample_rate, steps=private.plan.steps)
            if private.run_dir is not None:
                Run(private.run_dir).write(kind=KIND, fit=document_of(separated, asdict(settings)))
            return self._finish(private, separated, settings, request.progress, request.seed)

    def resume(self, run: Run, request: Request) -> Result:
        """Continue an interrupted fit with fresh noise; see `Method`."""
        (separated, tensors), settings = request.separated(), request.settings
        document, found = run.document()["fit"], document_of(separated, {})
        if any(document[key] != found[key] for key in ("unknowns", "plate")):
            raise PrivacyError("This is not the model that the run was started with: its unknowns or its plate differ.")
        evidence, optimizer = self.parts(separated, settings, None)
        with seeded_draws(None):
            private = PrivateTraining.resume(
                run.folder,
                evidence,
                None,
                tensors,
                optimizer=optimizer,
                holdout=_holdout(separated, request.holdout),
                ledger=request.ledger,
            )
            declared = ("sample_rate", "steps", "clip_norm")
            if any(getattr(settings, name) != getattr(private.plan, name) for name in declared):
                raise PrivacyError("The settings in run.json are not those that the run was started with.")
            return self._finish(private, separated, settings, request.progress, None)

    def label(self, run: Run, *, delta: float | None) -> Label:
        """Return the label of a run directory; see `Method`."""
        label = label_of_training(run.folder, delta=delta)
        with run.reading():
            return add_fit(label, self, run.document()["fit"], owner_facts(run.folder))

    def parts(self, separated: Separated, settings: Settings, seed: int | None) -> tuple[Evidence, PointOptimizer]:
        """Return the loss of a record, and the optimiser of its one parameter."""
        start = start_of(separated)
        evidence = Evidence(separated, start)
        return evidence, self.optimizer(evidence.point, separated, settings, start, seed)

    def _finish(
        self,
        private: PrivateTraining,
        separated: Separated,
        settings: Settings,
        progress: Progress | None,
        seed: int | None,
    ) -> Result:
        optimizer, plan, size = private.optimizer, private.plan, private._facts.trained
        settings = replace(settings, steps=plan.steps)  # fewer than requested where a budget cut them
        optimizer.start(plan.steps, noise=plan.noise_multiplier * plan.clip_norm)
        report, elbo, norms = reporter(progress, "Steps"), [], []
        for step in private.steps(curve=False):
            elbo.append(-step.loss * size + float(optimizer.public))
            norms.append(step.norms)
            report(step.number, plan.steps)
        rng = np.random.default_rng(None if seed is None else [seed, 2**31 + 1])  # not the stream of the secret coins
        posterior, notes, warning = self.posterior(optimizer, plan, separated, settings, rng)
        # The run's document, which is public, leaves out what was computed from the outcome.
        document = document_of(separated, asdict(settings), interval_notes(self, settings.guide))
        owner = owner_facts(private.run_dir) | {"warning": warning}
        if norms:
            owner["clipped"] = clipped_share(norms)
        label = add_fit(private.label(), self, document, owner)
        if private.run_dir is not None:
            run = Run(private.run_dir)
            run.write(fit=document)
            write_json(run.folder, OWNER, owner)
            write_draws(run.folder, posterior)
            run.write_label(label)
        notes = with_warning(notes, warning)
        return Result(posterior, self.name, label, tuple(elbo), notes, asdict(settings), private.run_dir)


def _holdout(separated: Separated, holdout: Any) -> Tensors | None:
    return None if holdout is None else records_like(separated, holdout, "holdout")


def clipped_share(norms: Sequence[tuple[float, float, float]]) -> float:
    """Return what share of the records was clipped in the last quarter of the steps: 0.9, 0.5, 0.1 or 0, at least."""
    late = [row for row in norms[-max(1, len(norms) // 4) :] if not math.isnan(row[0])]  # NaN: nobody was sampled
    if not late:
        return 0.0
    return next(
        (share for share, norm in zip((0.9, 0.5, 0.1), np.median(late, axis=0), strict=True) if norm > 0.999), 0.0
    )
