"""Final samples: a fit without noise of which only draws leave, and its replays without one record at a time.

    run.json         the run's identity, the seed of its training, where it is charged
    fitted.json      the fitted posterior, for the owner, and the draws of it that were released; written once
    pairs/           the posterior without one record, a file for each
    posterior.npz    the released draws, by site

The released fit and every replay use the same randomness, fixed by a seed before the data are read. Coins, and draws
of a record's own unknowns, belong to records, so leaving one out changes nothing for the others, and two trainings
differ by one record alone. The seed need not be secret: the protection comes from the randomness of the draws, which is
not kept.

One charge pays for one set of draws. An event is written to the ledger just before they are made; if they are lost
after that, for instance in a crash, they are not made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita._progress import Progress, shown
from tacita.facts import RunFacts, Status
from tacita.inference.descent import descend, seeded_draws
from tacita.inference.final_samples import Box, box_costs, box_guarantee
from tacita.inference.guides import GUIDES
from tacita.inference.labels import document_of, label_of_samples, require_same_model
from tacita.inference.methods.protocol import Method
from tacita.inference.replays import (
    OneStep,
    Released,
    Replays,
    gathered,
    pair_file,
    picks_of,
    read_pairs,
    spread,
    streams,
)
from tacita.inference.request import Request, Settings
from tacita.inference.results import Posterior, Result
from tacita.inference.terms import Separated, Tensors
from tacita.label import Label
from tacita.ledger import DECLARED, Ledger
from tacita.mechanisms.diagonal import DivergedError, Gaussians
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, write_json
from tacita.training.charges import ledger_at
from tacita.training.randomness import Randomness, randomness
from tacita.training.records import Records
from tacita.training.step import one_thread

FAMILY = "final-samples"  # of the run directory
_KEPT = ("id", "delta", "seed", "data", "ledgers", "head")  # fields of a `Release` that run.json holds
_DRAWN = "drawn"  # the ledger's event before a run's draws are made
_OTHER_LEDGER = "This is not the ledger that the run was opened in, or it was rolled back."
_GONE = (
    "The draws of this run were made, and they are gone. What was drawn may have been seen, so nothing is drawn again: "
    "start a new fit, which is charged."
)


class FinalSamples(Method):
    """Fit a guide without noise, hold it to a declared box, and release draws alone."""

    name = "final-samples"
    text = "variational inference without noise; only final draws are released"
    note = "Only these draws are released, so means and intervals are only as precise as this number of draws allows."
    repeatable = False
    options = tuple(entry.name for entry in fields(Replays))
    defaults = MappingProxyType({"samples": 10})
    refuses = MappingProxyType(
        dict.fromkeys(("noise_multiplier", "target", "holdout", "training"), ": there is no noise in its training")
        | dict.fromkeys(
            ("person", "records_per_person", "holdout_person"),
            ": its replays leave out single records, so its typical case is not about people with several",
        )
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
        random = randomness(request.seed)
        separated, tensors = request.separated()
        _require_within(request.epsilon, request.delta, settings.samples, replays.box, separated)
        folder = None
        if request.run_dir is not None:
            page_template()  # fail early if an extra is missing
            folder = Run.create(request.run_dir).folder
        release = Release(
            self,
            separated,
            tensors,
            settings,
            replays,
            RunFacts(request.title, self.purpose(separated), random.seeded, trained=len(tensors[0])),
            delta=request.delta,
            seed=secrets.randbits(128) if request.seed is None else int(request.seed),
            data=Records(tensors).fingerprint() if folder is not None else "",
            id=secrets.token_hex(8),
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
            document, replays = found["fit"], Replays.from_dict(found["fit"]["replays"])
            kept: dict[str, Any] = {key: found[key] for key in _KEPT}
        separated, tensors = request.separated(fingerprint=kept["data"])
        kept |= {"folder": run.folder, "owner": Owner(run.folder), "random": randomness(None)}
        release = Release(self, separated, tensors, request.settings, replays, facts, **kept)
        require_same_model(release.document, document)
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
                    raise PrivacyError(_OTHER_LEDGER)
                if name not in ledger.runs() or ledger.runs()[name]["mechanism"] != _frozen(document):
                    raise PrivacyError("The run's settings are not those that its ledger froze before the release.")
                if ledger.charged(name) == 0 or released is None:
                    raise PrivacyError("Nothing was released yet: there is nothing to label.")
            picks = picks_of(int(found["seed"]), facts.trained, document["replays"]["pairs"])
            without = gathered(read_pairs(run.folder, picks), picks)
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


@dataclass
class Release:
    """A release in progress: a fit without noise of which only draws leave.

    Attributes:
        method: The method, for the label.
        separated: The model.
        tensors: Its records.
        settings: The fit's.
        replays: What final samples declare beside them.
        facts: What the run knows about itself.
        delta: Of every figure.
        seed: Of the training and its replays; it need not be secret.
        data: The fingerprint of the records.
        id: The run's name in the ledger.
        random: Where the draws' noise comes from.
        folder: The run directory, if there is one.
        ledgers: Where the run is charged, as run.json names it.
        head: The ledger's head when the run was opened.
        owner: The lock on the run directory.
    """

    method: Method
    separated: Separated
    tensors: Tensors
    settings: Settings
    replays: Replays
    facts: RunFacts
    delta: float
    seed: int
    data: str
    id: str
    random: Randomness
    folder: Path | None
    ledgers: list[str] = field(default_factory=list)
    head: str = ""
    owner: Owner = field(default_factory=Owner)

    def finish(self, ledger: Ledger | str | Path, progress: Progress | None) -> Result:
        """Do what is left to do: charge, fit and draw, replay, label.

        Args:
            ledger: Where to charge.
            progress: Called after each training.

        Returns:
            The released draws with their label.

        Raises:
            PrivacyError: If the draws were made and are gone, or the ledger is not the run's.
        """
        with self.owner.opening(), nullcontext(ledger) if isinstance(ledger, Ledger) else ledger_at(ledger) as book:
            self._charge(book)
            try:
                released = Released.read(self.folder) or self._release(book)
                posterior = Posterior(self.separated, torch.tensor(released.draws, dtype=torch.get_default_dtype()))
                if self.folder is not None:
                    posterior.write(self.folder)
                with shown(progress) as report:
                    without = self._replay(report)
            except BaseException:
                self._set_status("interrupted")
                raise
            book.verify(self.id, owner=self.owner.token)
            self._set_status("done")
        document = self.document
        label = label_of_samples(self.method, document, self.facts, self.delta, released=released, without=without)
        if self.folder is not None:
            Run(self.folder).write_label(label)
        self.owner.close()
        elbo = tuple(math.nan if value is None else value for value in released.elbo)
        notes = tuple(document["notes"])
        return Result(posterior, self.method.name, label, elbo, notes, asdict(self.settings), self.folder)

    @property
    def document(self) -> dict[str, Any]:
        """What run.json holds about the fit."""
        notes = self.method.interval_notes(self.settings.guide)
        return document_of(self.separated, asdict(self.settings), notes, replays=asdict(self.replays))

    @property
    def picks(self) -> Any:
        """The records that are left out, one for each pair: drawn from all of them, uniformly, with replacement."""
        return picks_of(self.seed, len(self.tensors[0]), self.replays.pairs)

    def train(self, leave_out: int | None = None, watch: Any = None) -> tuple[Gaussians, tuple[float, ...]]:
        """Fit, optionally without one record, and hold what is fitted to the box. Equal calls give equal results.

        Raises:
            DivergedError: If there are no numbers to return and no box to hold them to. Where a computation fails,
                such as the root of a matrix out of all bounds, there are none: the parameters are not released, so
                neither is what became of them.
        """
        means = scales = np.full((1, self.separated.size), np.nan)
        elbo: list[float] = []
        rng = np.random.default_rng(streams(self.seed)[0])
        failures = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
        with one_thread(), seeded_draws(int(rng.integers(2**63))), suppress(*failures):
            optimizer, elbo = descend(
                self.separated, self.tensors, self.settings, rng, leave_out=leave_out, watch=watch
            )
            guide = optimizer.fitted()
            means, scales = (t.double().numpy()[None] for t in (guide.location, guide.scale))
        box = self.replays.box
        return (Gaussians(means, scales) if box is None else box.project(means, scales)), tuple(elbo)

    def _charge(self, book: Ledger) -> None:
        """Charge the draws, once: a release that was charged and not started costs nothing further."""
        if self.head and not book.contains(self.head):
            raise PrivacyError(_OTHER_LEDGER)
        mark, seeded = self.random.fingerprint, self.random.seeded
        curve = box_guarantee(self.replays.box, samples=self.settings.samples, delta=self.delta).profile
        book.open_run(self.id, mechanism=_frozen(self.document), seed_fingerprint=mark, seeded=seeded, curve=curve)
        book.own(self.id, self.owner.token)
        if not self.head:
            self.head = book.head
            own = self.folder is not None and book.path == self.folder / "ledger.sqlite"
            self.ledgers = [] if self.folder is None else [Run(self.folder).place(book.place)]
            self.facts = self.facts.with_ledger(book.name, shared=not own, fresh=book.fresh)
            self._write()
        drawn, released = self._drawn(book), Released.read(self.folder)
        if released is not None and not drawn:
            raise PrivacyError("The draws were released, and this ledger does not know of it: it was rolled back.")
        if drawn and released is None:
            raise PrivacyError(_GONE)
        if not book.charged(self.id):
            costs = box_costs(self.replays.box, samples=self.settings.samples, orders=DECLARED)
            book.charge(self.id, first=0, steps=1, costs=costs, owner=self.owner.token)

    def _drawn(self, book: Ledger) -> list[str]:
        """Return the ledger's rows that precede this run's draws; only the writer of the first may make them."""
        return [row.hash for row in book.events(self.id) if row.body["event"] == _DRAWN]

    def _release(self, book: Ledger) -> Released:
        """Fit and draw; what is returned is on disk, and neither this run nor a copy of it can draw again."""
        different, rows = np.unique(self.picks, return_inverse=True)
        watch = OneStep(self.separated, self.tensors, self.settings, different) if self.replays.one_step else None
        fitted, elbo = self.train(watch=watch)
        figure = None if watch is None else watch.figure(rows, self.delta)
        mark = book.event(self.id, _DRAWN, owner=self.owner.token)
        if self._drawn(book)[0] != mark:
            raise PrivacyError("Another process makes this run's draws; resume the run when that has ended.")
        noise = self.random.noise.standard_normal((self.settings.samples, self.separated.size))
        released = Released(
            location=tuple(fitted.means[0].tolist()),
            scale=tuple(fitted.scales[0].tolist()),
            draws=tuple(map(tuple, (fitted.means + fitted.scales * noise).tolist())),
            elbo=tuple(value if math.isfinite(value) else None for value in elbo),
            one_step=figure,
        )
        if self.folder is not None and not released.write(self.folder):
            raise PrivacyError("There is a fitted.json already, of another run: nothing was released.")
        return released

    def _replay(self, report: Progress) -> Gaussians | None:
        """Return the posterior without each of the drawn records, replaying those that are not on disk yet."""
        rows, different = read_pairs(self.folder, self.picks), np.unique(self.picks).tolist()
        report(1 + len(rows), 1 + len(different), "training")
        missing = [i for i in different if i not in rows]
        workers = self.replays.workers or min(2, os.cpu_count() or 1)
        with closing(spread(self._without, missing, workers)) as results:
            for i, row in results:
                rows[i] = row
                if self.folder is not None:
                    write_json(self.folder, pair_file(i), row)
                report(1 + len(rows), 1 + len(different), "training")
        return gathered(rows, self.picks)

    def _without(self, i: int) -> dict[str, Any]:
        """Return the posterior without a record; None for each number if it diverged and there is no box."""
        try:
            fitted, _ = self.train(i)
        except DivergedError:
            return dict.fromkeys(("location", "scale"), [None] * self.separated.size)
        return {"location": fitted.means[0].tolist(), "scale": fitted.scales[0].tolist()}

    def _set_status(self, status: Status) -> None:
        self.facts = self.facts.with_status(status)
        self._write()

    def _write(self) -> None:
        if self.folder is None:
            return
        (self.folder / "pairs").mkdir(exist_ok=True)
        Run(self.folder).write(
            kind=FAMILY,
            family=FAMILY,
            facts=self.facts.to_dict(),
            seed_fingerprint=self.random.fingerprint,
            fit=self.document,
            **{key: getattr(self, key) for key in _KEPT},
        )


def _frozen(document: Mapping[str, Any]) -> dict[str, int | str]:
    """Return all that the cost depends on, and a hash of all that the draws depend on, as the ledger freezes it."""
    box = json.dumps(document["replays"]["box"], sort_keys=True)
    rest = json.dumps([document["settings"], document["replays"]["pairs"]], sort_keys=True, default=float)
    return {
        "steps": 1,
        "release": "final samples",
        "samples": int(document["settings"]["samples"]),
        "box": box,
        "settings": hashlib.sha256(rest.encode()).hexdigest(),
    }
