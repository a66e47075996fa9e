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
import os
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacita._check import PrivacyError
from tacita.facts import RunFacts, Status
from tacita.inference.descent import descend, seeded_draws, write_draws
from tacita.inference.final_samples import box_costs
from tacita.inference.labels import document_of, interval_notes, label_of_samples
from tacita.inference.one_step import OneStep
from tacita.inference.replays import (
    Released,
    Replays,
    gathered,
    parameters,
    picks_of,
    read_pairs,
    streams,
    write_pair,
)
from tacita.inference.results import Posterior, Result
from tacita.inference.settings import Progress, Settings, reporter
from tacita.inference.terms import Separated, Tensors
from tacita.inference.workers import spread
from tacita.ledger import DECLARED, Ledger
from tacita.mechanisms.diagonal import DivergedError, Gaussians
from tacita.owner import Owner
from tacita.runs import Run
from tacita.training.charges import ledger_at
from tacita.training.randomness import Randomness
from tacita.training.step import one_thread

if TYPE_CHECKING:
    from tacita.inference.methods.protocol import Method

FAMILY = "final-samples"  # of the run directory
_DRAWN = "drawn"  # the ledger's event before a run's draws are made
_GONE = (
    "The draws of this run were made, and they are gone. What was drawn may have been seen, so nothing is drawn again: "
    "start a new fit, which is charged."
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
        identity: The run's name in the ledger.
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
    identity: str
    random: Randomness
    folder: Path | None
    ledgers: list[str] = field(default_factory=list)
    head: str = ""
    owner: Owner = field(default_factory=Owner)

    def finish(self, ledger: Ledger | str | Path, progress: Progress | None) -> Result:
        """Do what is left to do: charge, fit and draw, replay, label.

        Args:
            ledger: Where to charge.
            progress: Called with (trainings done, trainings).

        Returns:
            The released draws with their label.

        Raises:
            PrivacyError: If the draws were made and are gone, or the ledger is not the run's.
        """
        different = np.unique(self.picks)
        with self.owner.opening(), nullcontext(ledger) if isinstance(ledger, Ledger) else ledger_at(ledger) as book:
            self._charge(book)
            try:
                released = Released.read(self.folder) or self._release(different, book)
                posterior = Posterior(self.separated, torch.from_numpy(released.draws).to(torch.get_default_dtype()))
                if self.folder is not None:
                    write_draws(self.folder, posterior)
                without = self._replay(different, reporter(progress, "Trainings"))
            except BaseException:
                self._set_status("interrupted")
                raise
            book.verify(self.identity, owner=self.owner.token)
            self._set_status("done")
        document = self.document
        label = label_of_samples(self.method, document, self.facts, self.delta, released=released, without=without)
        if self.folder is not None:
            Run(self.folder).write_label(label)
        self.owner.close()
        notes = tuple(document["notes"])
        return Result(posterior, self.method.name, label, released.elbo, notes, asdict(self.settings), self.folder)

    @property
    def document(self) -> dict[str, Any]:
        """What run.json holds about the fit."""
        notes = interval_notes(self.method, self.settings.guide)
        return document_of(self.separated, asdict(self.settings), notes, replays=self.replays.to_dict())

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
            raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")
        mark, seeded = self.random.fingerprint, self.random.seeded
        book.open_run(self.identity, mechanism=frozen(self.document), seed_fingerprint=mark, seeded=seeded)
        book.own(self.identity, self.owner.token)
        if not self.head:
            self.head = book.head
            own = self.folder is not None and book.path == self.folder / "ledger.sqlite"
            self.ledgers = [] if self.folder is None else [Run(self.folder).place(book.path)]
            self.facts = self.facts.with_ledger(book.path.name, shared=not own)
            self._write()
        drawn, released = self._drawn(book), Released.read(self.folder)
        if released is not None and not drawn:
            raise PrivacyError("The draws were released, and this ledger does not know of it: it was rolled back.")
        if drawn and released is None:
            raise PrivacyError(_GONE)
        if not book.charged(self.identity):
            costs = box_costs(self.replays.box, samples=self.settings.samples, orders=DECLARED)
            book.charge(self.identity, first=0, steps=1, costs=costs, owner=self.owner.token)

    def _drawn(self, book: Ledger) -> list[str]:
        """Return the ledger's rows that precede this run's draws; only the writer of the first may make them."""
        return [row.hash for row in book.events(self.identity) if row.body["event"] == _DRAWN]

    def _release(self, different: Any, book: Ledger) -> Released:
        """Fit and draw; what is returned is on disk, and neither this run nor a copy of it can draw again."""
        watch = OneStep(self.separated, self.tensors, self.settings, different) if self.replays.one_step else None
        fitted, elbo = self.train(watch=watch)
        figure = None if watch is None else watch.figure(np.searchsorted(different, self.picks), self.delta)
        mark = book.event(self.identity, _DRAWN, owner=self.owner.token)
        if self._drawn(book)[0] != mark:
            raise PrivacyError("Another process makes this run's draws; resume the run when that has ended.")
        noise = self.random.noise.standard_normal((self.settings.samples, self.separated.size))
        released = Released(fitted, fitted.means + fitted.scales * noise, elbo, figure)
        if self.folder is not None and not released.write(self.folder):
            raise PrivacyError("There is a fitted.json already, of another run: nothing was released.")
        return released

    def _replay(self, different: Any, report: Progress) -> Gaussians | None:
        """Return the posterior without each of the drawn records, replaying those that are not on disk yet."""
        rows = {} if self.folder is None else read_pairs(self.folder, different)
        total = 1 + len(different)
        report(1 + len(rows), total)
        missing = [int(i) for i in different if i not in rows]
        workers = self.replays.workers or min(2, os.cpu_count() or 1)
        with closing(spread(self._without, missing, workers)) as results:
            for i, row in results:
                rows[i] = row
                if self.folder is not None:
                    write_pair(self.folder, i, row)
                report(1 + len(rows), total)
        return gathered(rows, self.picks)

    def _without(self, i: int) -> dict[str, Any]:
        """Return the posterior without a record; None for each number if it diverged and there is no box."""
        try:
            return parameters(self.train(i)[0])
        except DivergedError:
            return dict.fromkeys(("location", "scale"), [None] * self.separated.size)

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
            id=self.identity,
            facts=self.facts.to_dict(),
            ledgers=self.ledgers,
            seed_fingerprint=self.random.fingerprint,
            fit=self.document,
            delta=self.delta,
            seed=self.seed,
            data=self.data,
            head=self.head,
        )


def frozen(document: Mapping[str, Any]) -> dict[str, int | str]:
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
