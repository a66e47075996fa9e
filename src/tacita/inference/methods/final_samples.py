"""Variational inference without noise, of which only a few draws are released; each one costs."""

from __future__ import annotations

import secrets
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.facts import RunFacts
from tacita.guarantee import round_up_text
from tacita.inference.box import Box
from tacita.inference.final_samples import box_guarantee
from tacita.inference.guides import GUIDES
from tacita.inference.labels import label_of_samples, purpose
from tacita.inference.methods.protocol import Method
from tacita.inference.release import FAMILY, Release, frozen
from tacita.inference.replays import Released, Replays, gathered, picks_of, read_pairs
from tacita.inference.results import Result
from tacita.inference.settings import Request
from tacita.inference.terms import Separated
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run
from tacita.training.randomness import randomness
from tacita.training.records import Records
from tacita.training.step import check_clip_norm


class FinalSamples(Method):
    """Fit a guide without noise, hold it to a declared box, and release draws alone."""

    name = "final-samples"
    text = "variational inference without noise; only final draws are released"
    note = "Only these draws are released, so means and intervals are only as precise as this number of draws allows."
    repeatable = False
    options = tuple(field.name for field in fields(Replays))
    defaults = MappingProxyType({"samples": 10})
    refuses = MappingProxyType(
        dict.fromkeys(("noise_multiplier", "holdout", "training"), ": there is no noise in its training")
    )

    def fit(self, request: Request) -> Result:
        """Fit without noise and release draws; see `Method`.

        Raises:
            PrivacyError: If the box does not keep the worst case within epsilon; nothing was computed by then.
        """
        settings, replays = request.settings, Replays(**request.options)
        if not GUIDES[settings.guide].diagonal:
            raise ValueError(
                f"method={self.name!r} compares diagonal posteriors only: leave guide={settings.guide!r} out."
            )
        check_clip_norm(settings.clip_norm)  # now, not after the charge
        random = randomness(request.seed)
        separated, tensors = request.separated()
        _require_within(request.epsilon, request.delta, settings.samples, replays.box, separated)
        if request.run_dir is not None:
            page_template()  # fail early if an extra is missing
        folder = None if request.run_dir is None else Run.create(request.run_dir).folder
        trained = len(tensors[0])
        release = Release(
            self,
            separated,
            tensors,
            settings,
            replays,
            RunFacts(request.title, purpose(self, separated), random.seeded, trained=trained, held_out=0),
            delta=request.delta,
            seed=secrets.randbits(128) if request.seed is None else int(request.seed),
            data=Records(tensors).fingerprint() if folder is not None else "",
            identity=secrets.token_hex(8),
            random=random,
            folder=folder,
            owner=Owner(folder),
        )
        own = ":memory:" if folder is None else folder / "ledger.sqlite"
        return release.finish(own if request.ledger is None else request.ledger, request.progress)

    def resume(self, run: Run, request: Request) -> Result:
        """Continue an interrupted release; nothing is drawn twice or charged twice. See `Method`.

        Raises:
            PrivacyError: If draws were made and are gone, or model, data, settings or ledger are not those of the run.
        """
        found, facts = Run.open(run.folder, FAMILY).document(), run.facts
        with run.reading():
            document = found["fit"]
            replays = Replays.from_dict(document["replays"])
            kept: dict[str, Any] = {key: found[key] for key in ("delta", "seed", "data", "ledgers", "head")}
            kept["identity"] = str(found["id"])
        separated, tensors = request.separated(fingerprint=kept["data"])
        kept |= {"folder": run.folder, "owner": Owner(run.folder), "random": randomness(None)}
        release = Release(self, separated, tensors, request.settings, replays, facts, **kept)
        if any(release.document[key] != document[key] for key in ("unknowns", "plate")):
            raise PrivacyError("This is not the model that the run was started with: it has other unknowns.")
        return release.finish(run.ledgers[0] if request.ledger is None else request.ledger, request.progress)

    def label(self, run: Run, *, delta: float | None) -> Label:
        """Return the label of a run directory; see `Method`."""
        found, facts = Run.open(run.folder, FAMILY).document(), run.facts
        with run.reading():
            document, name = found["fit"], str(found["id"])
            total = float(found["delta"]) if delta is None else _check.probability("delta", delta)
            released = Released.read(run.folder)
            with Ledger.open(run.ledgers[0]) as ledger:
                if not ledger.contains(str(found["head"])):
                    raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")
                if name not in ledger.runs() or ledger.runs()[name]["mechanism"] != frozen(document):
                    raise PrivacyError("The run's settings are not those that its ledger froze before the release.")
                if ledger.charged(name) == 0 or released is None:
                    raise PrivacyError("Nothing was released yet: there is nothing to label.")
            picks = picks_of(int(found["seed"]), facts.trained, document["replays"]["pairs"])
            without = gathered(read_pairs(run.folder, np.unique(picks)), picks)
            return label_of_samples(self, document, facts, total, released=released, without=without)


def _require_within(epsilon: float | None, delta: float, samples: int, box: Box | None, separated: Separated) -> None:
    """Refuse a box that does not fit the model, or does not keep the draws within epsilon."""
    if box is not None and box.dimension != separated.size:
        sites = ", ".join(f"{u.name} {u.place.stop - u.place.start}" for u in separated.unknowns)
        raise ValueError(f"The box has {box.dimension} coordinates and the model {separated.size} ({sites}).")
    worst = box_guarantee(box, samples=samples, delta=delta).epsilon
    if epsilon is None or worst <= _check.number("epsilon", epsilon):
        return
    if box is None:
        raise PrivacyError(
            f"epsilon={epsilon:g} needs a box: without one nothing bounds how far one record moves the posterior. Pass "
            f"box=tacita.inference.Box(bound=…, low=…, high=…, dimension={separated.size})."
        )
    single = round_up_text(box_guarantee(box, samples=1, delta=delta).epsilon)
    raise PrivacyError(
        f"{samples} draws from this box cost epsilon {round_up_text(worst)} at delta {delta:g}, and epsilon="
        f"{epsilon:g} was asked for; one draw costs {single}. Take fewer samples, a smaller bound, a larger low, or a "
        "high nearer to low. Nothing was computed or charged."
    )
