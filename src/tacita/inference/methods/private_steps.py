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
from tacita._progress import shown
from tacita.inference.descent import estimate_errors, seeded_draws, variational
from tacita.inference.guides import GUIDES, Langevin
from tacita.inference.labels import KIND, OWNER, add_fit, document_of, owner_facts, require_same_model, with_warning
from tacita.inference.methods.protocol import Method
from tacita.inference.request import Request, Settings, records_like
from tacita.inference.results import Posterior, Result
from tacita.inference.separation import start_of
from tacita.inference.terms import Separated, Tensors
from tacita.label import Label
from tacita.runs import Run, write_json
from tacita.training.labels import label_of_run as label_of_training
from tacita.training.loop import PrivateTraining

Rng = np.random.Generator
_OF_PERSONS = (
    "They take a person's records to be independent given the unknowns, and leave out that no more than {most} of them "
    "are looked at in a step."
)
Outcome = tuple[Posterior, tuple[str, ...], str]  # what to know about intervals, and a warning


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
    def optimizer(self, point: nn.Parameter, separated: Separated, settings: Settings, seed: int | None) -> Any:
        """Return the optimiser that turns private gradients at a point into a posterior.

        Args:
            point: The parameter of the likelihood, where the fit starts.
            separated: The model.
            settings: The fit's.
            seed: Of the points that are drawn.

        Returns:
            A `PointOptimizer`.
        """

    @abstractmethod
    def posterior(self, private: PrivateTraining, separated: Separated, settings: Settings, rng: Rng) -> Outcome:
        """Return the outcome of the steps.

        Args:
            private: The training after its last step.
            separated: The model.
            settings: The fit's.
            rng: Of the released draws.

        Returns:
            The posterior, what to know about its intervals, and a warning or an empty text.
        """

    def fit(self, request: Request) -> Result:
        """Fit the model; see `Method`."""
        separated, tensors = request.separated()
        goals = (request.epsilon, request.target, request.noise_multiplier)
        if sum(goal is not None for goal in goals) != 1:
            raise ValueError("Pass either noise_multiplier or epsilon, which finds it, and not both; or a target.")
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
                target=request.target if request.epsilon is None else (request.epsilon, request.delta),
                batch_size=1.0,
                delta=request.delta,
                holdout=_holdout(separated, request.holdout),
                panel=request.panel,
                panel_rate=1.0,  # a record's gradient is cheap here
                whose=request.whose,
                records_per_person=request.records_per_person,
                of_person="mean" if request.records_per_person is None else "sum",
                ledger=request.ledger,
                run_dir=request.run_dir,
                seed=request.seed,
                name=request.title,
                purpose=self.purpose(separated),
                **dict(request.training or {}),
            )
            settings = replace(settings, sample_rate=private.plan.sample_rate, steps=private.plan.steps)
            if private.run_dir is not None:
                Run(private.run_dir).write(kind=KIND, fit=document_of(separated, asdict(settings)))
            return self._finish(private, separated, settings, request)

    def resume(self, run: Run, request: Request) -> Result:
        """Continue an interrupted fit with fresh noise; see `Method`."""
        (separated, tensors), settings = request.separated(), request.settings
        require_same_model(document_of(separated, {}), run.document()["fit"])
        evidence, optimizer = self.parts(separated, settings, None)
        with seeded_draws(None):
            private = PrivateTraining.resume(
                run.folder,
                evidence,
                None,
                tensors,
                optimizer=optimizer,
                holdout=_holdout(separated, request.holdout),
                whose=request.whose,
                ledger=request.ledger,
            )
            declared = ("sample_rate", "steps", "clip_norm")
            if any(getattr(settings, name) != getattr(private.plan, name) for name in declared):
                raise PrivacyError("The settings in run.json are not those that the run was started with.")
            return self._finish(private, separated, settings, request)

    def label(self, run: Run, *, delta: float | None) -> Label:
        """Return the label of a run directory; see `Method`."""
        label = label_of_training(run.folder, delta=delta)
        with run.reading():
            return add_fit(label, self, run.document()["fit"], owner_facts(run.folder))

    def parts(self, separated: Separated, settings: Settings, seed: int | None) -> tuple[Evidence, Any]:
        """Return the loss of a record, and the optimiser of its one parameter.

        Args:
            separated: The model.
            settings: The fit's.
            seed: Of the points that are drawn.

        Returns:
            Both, before the first step.
        """
        evidence = Evidence(separated, start_of(separated))
        return evidence, self.optimizer(evidence.point, separated, settings, seed)

    def _finish(self, private: PrivateTraining, separated: Separated, settings: Settings, request: Request) -> Result:
        optimizer, plan, size = private.optimizer, private.plan, len(private.mechanism.records)
        settings = replace(settings, steps=plan.steps)  # fewer than requested where a budget cut them
        optimizer.start(plan.steps, noise=plan.noise_multiplier * plan.clip_norm)
        elbo, norms = [], []
        with shown(request.progress) as report:
            for step in private.steps(curve=False):
                elbo.append(-step.loss * size + float(optimizer.public))
                norms.append(step.norms)
                report(step.number, plan.steps, "step")
        seeds = None if request.seed is None else [request.seed, 2**31 + 1]  # not the stream of the secret coins
        posterior, notes, warning = self.posterior(private, separated, settings, np.random.default_rng(seeds))
        # The run's document, which is public, leaves out what was computed from the outcome.
        of_persons = () if plan.records_per_person is None else (_OF_PERSONS.format(most=plan.records_per_person),)
        document = document_of(separated, asdict(settings), (*self.interval_notes(settings.guide), *of_persons))
        owner = owner_facts(private.run_dir) | {"warning": warning}
        if norms:
            owner["clipped"] = clipped_share(norms)
        label = add_fit(private.label(), self, document, owner)
        if private.run_dir is not None:
            run = Run(private.run_dir)
            run.write(fit=document)
            write_json(run.folder, OWNER, owner)
            posterior.write(run.folder)
            run.write_label(label)
        notes = with_warning((*notes, *of_persons), warning)
        return Result(posterior, self.name, label, tuple(elbo), notes, asdict(settings), private.run_dir)


class Noisy(PrivateSteps):
    """Fit a guide by private steps; its intervals include the noise of the fit."""

    name = "noisy"
    text = "variational inference, each record's gradient clipped and noised"
    note = "Intervals include the noise of the private fit."

    def optimizer(self, point: nn.Parameter, separated: Separated, settings: Settings, seed: int | None) -> Any:
        """Return the optimiser of a guide; see `PrivateSteps`."""
        return variational(point, separated, settings, seed)

    def posterior(self, private: PrivateTraining, separated: Separated, settings: Settings, rng: Rng) -> Outcome:
        """Return the fitted Gaussian, widened by the error of the fit; see `PrivateSteps`."""
        plan, fitted = private.plan, private.optimizer.fitted()
        errors = estimate_errors(private.optimizer, plan.noise_multiplier * plan.clip_norm / plan.sample_rate)
        covariance = errors.widened(fitted)
        widest = float((covariance.diagonal() / fitted.covariance().diagonal()).sqrt().max())
        posterior = Posterior.gaussian(separated, fitted.location, covariance, settings.samples, rng)
        wider = f"It widens them by at most {math.ceil(100 * widest - 100)}%."
        return posterior, (f"{self.note} {wider}", GUIDES[settings.guide].note), errors.warning(fitted)


class Sgld(PrivateSteps):
    """Keep points of one chain of private steps as draws."""

    name = "sgld"
    text = "Langevin dynamics, whose own noise provides the privacy"
    note = "Draws from one chain that has not reached its stationary distribution: intervals are not calibrated."
    fits_guide = False
    objective = "log joint density"

    def optimizer(self, point: nn.Parameter, separated: Separated, settings: Settings, seed: int | None) -> Any:
        """Return the chain; see `PrivateSteps`."""
        rate, steps, keep = settings.sample_rate, settings.steps, settings.samples
        return Langevin(point, separated.log_prior, sample_rate=rate, steps=steps, keep=keep)

    def posterior(self, private: PrivateTraining, separated: Separated, settings: Settings, rng: Rng) -> Outcome:
        """Return the points that were kept; the last one if there are none. See `PrivateSteps`."""
        optimizer = private.optimizer
        kept = optimizer.kept if len(optimizer.kept) else optimizer.point.detach()[None].clone()
        return Posterior(separated, kept), (self.note,), ""


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
