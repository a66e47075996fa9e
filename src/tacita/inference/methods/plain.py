"""Variational inference without privacy, for comparison."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import MappingProxyType

import numpy as np

from tacita._progress import shown
from tacita.assumptions import assume
from tacita.facts import RunFacts
from tacita.inference.descent import descend, estimate_errors
from tacita.inference.labels import add_fit, document_of, with_warning
from tacita.inference.methods.protocol import Method
from tacita.inference.request import Request
from tacita.inference.results import Posterior, Result
from tacita.label import Readings, build, no_guarantee

_UNUSED = (
    *("epsilon", "target", "noise_multiplier", "ledger", "run_dir", "holdout", "training"),
    *("person", "records_per_person", "holdout_person"),
)


class Plain(Method):
    """Fit a guide without noise or clipping, and release all of it."""

    name = "plain"
    text = "variational inference without privacy"
    refuses = MappingProxyType(dict.fromkeys(_UNUSED, ", which has no privacy to keep or account for"))

    def fit(self, request: Request) -> Result:
        """Fit the model; see `Method`."""
        separated, tensors = request.separated()
        settings, rng = request.settings, np.random.default_rng(request.seed)
        with shown(request.progress) as report:
            optimizer, elbo = descend(separated, tensors, replace(settings, clip_norm=1e12), rng, progress=report)
        fitted, errors = optimizer.fitted(), estimate_errors(optimizer, 0.0)
        posterior = Posterior.gaussian(separated, fitted.location, errors.widened(fitted), settings.samples, rng)
        notes, warning = self.interval_notes(settings.guide), errors.warning(fitted)
        label = build(
            RunFacts(request.title, "A posterior of a Pyro model, fitted without privacy.", seeded=False),
            no_guarantee(delta=request.delta),
            rests_on=(assume("posterior-unlimited"),),
            declared=("No guarantee: the data were used without noise.",),
            audit_command="tacita audit RUN",
            readings=Readings(panels="No records were followed: there is no noise to account for."),
        )
        label = add_fit(label, self, document_of(separated, asdict(settings), notes), {"warning": warning})
        return Result(posterior, self.name, label, tuple(elbo), with_warning(notes, warning), asdict(settings))
