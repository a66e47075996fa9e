"""Variational inference without privacy, for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tacita.assumptions import assume
from tacita.facts import RunFacts
from tacita.inference.descent import descend, gaussian_posterior
from tacita.inference.labels import add_fit, document_of, interval_notes, with_warning
from tacita.inference.results import Result
from tacita.inference.settings import Progress, Request, Settings, reporter
from tacita.inference.terms import Model
from tacita.inference.widening import estimate_errors
from tacita.label import Label, Readings, build, no_guarantee
from tacita.runs import Run, RunError

_UNUSED = ("epsilon", "noise_multiplier", "ledger", "run_dir", "holdout", "training")
_NO_RUN = "method='plain' writes no run directory: fit again."


class Plain:
    """Fit a guide without noise or clipping, and release all of it."""

    name = "plain"
    text = "variational inference without privacy"
    note = ""
    fits_guide = True
    objective = "evidence bound"
    repeatable = True
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = MappingProxyType({})
    refuses: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(_UNUSED, ", which has no privacy to keep or account for")
    )

    def fit(self, request: Request) -> Result:
        """Fit the model; see `Method`."""
        separated, tensors = request.separated()
        settings, rng = request.settings, np.random.default_rng(request.seed)
        report = reporter(request.progress, "Steps")
        optimizer, elbo = descend(separated, tensors, replace(settings, clip_norm=1e12), rng, progress=report)
        fitted, errors = optimizer.fitted(), estimate_errors(optimizer, 0.0)
        posterior = gaussian_posterior(separated, fitted, errors.widened(fitted), settings.samples, rng)
        notes, warning = interval_notes(self, settings.guide), errors.warning(fitted)
        label = build(
            RunFacts(request.title, "A posterior of a Pyro model, fitted without privacy.", seeded=False),
            no_guarantee(delta=request.delta),
            rests_on=(assume("posterior-unlimited"),),
            declared=("No guarantee: the data were used without noise.",),
            audit_command="tacita audit RUN",
            readings=Readings(panels="Nobody was followed: there is no noise to account for."),
        )
        label = add_fit(label, self, document_of(separated, asdict(settings), notes), {"warning": warning})
        return Result(posterior, self.name, label, tuple(elbo), with_warning(notes, warning), asdict(settings))

    def resume(
        self,
        run: Run,
        settings: Settings,
        model: Model,
        data: Any,
        *,
        holdout: Any,
        ledger: Any,
        progress: Progress | None,
    ) -> Result:
        """Refuse: there is no run directory to resume."""
        raise RunError(_NO_RUN)

    def label(self, run: Run, *, delta: float | None) -> Label:
        """Refuse: there is no run directory to label."""
        raise RunError(_NO_RUN)
