"""Final samples: a fit without noise of which only draws leave, and its replays without one record at a time.

    run.json         the run's identity, the seed of its training, where it is charged
    fitted.json      the fitted posterior, for the owner, and the draws of it that were released; written once
    pairs/           the posterior without one record, a file for each
    posterior.npz    the released draws, by site

One randomness, fixed by a seed before the data are looked at, drives the released fit and every replay: coins, and the
draws of a record's own unknowns, belong to records, so leaving one out changes nothing for the others, and two
trainings differ by one record alone. It need not be secret: what protects is the randomness of the draws, and that is
not kept.

One charge pays for one set of draws. The ledger is told just before they are made; if they are lost after that, be it
in a crash, they are not made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tacita import _check, runs
from tacita._check import PrivacyError
from tacita.facts import RunFacts, Status
from tacita.guarantee import Guarantee, round_up_text
from tacita.inference.divergences import Box, DivergedError, Gaussians
from tacita.inference.final_samples import box_costs, box_guarantee
from tacita.inference.fit import (
    Progress,
    Settings,
    _purpose,
    descend,
    own_draws,
    shown,
    title_of,
    write_draws,
)
from tacita.inference.inputs import tensors_of
from tacita.inference.labels import NOTES, box_of, document_of, label_of_samples
from tacita.inference.one_step import OneStep
from tacita.inference.results import Posterior, Result
from tacita.inference.separation import separate
from tacita.inference.terms import Model, Separated
from tacita.inference.workers import spread
from tacita.label import Label
from tacita.ledger import DECLARED, Ledger
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run
from tacita.training.charges import ledger_at
from tacita.training.randomness import Randomness, randomness
from tacita.training.records import Records
from tacita.training.step import check_clip_norm, one_thread

if TYPE_CHECKING:
    from tacita._check import Floats

METHOD = "final-samples"
ALL = "all"
SAMPLES = 10  # released unless asked otherwise; each one costs
_FITTED = "fitted.json"
_STREAM = 2**31  # of the seed: not one that `randomness` draws from
_DRAWN = "drawn"  # the ledger's row that says that a run's draws are being made
_FAR = 1e300  # a mean whose divergence from any other overflows, which makes it infinite
_GONE = (
    "The draws of this run were made, and they are gone. What was drawn may have been seen, so nothing is drawn again: "
    "start a new fit, which is charged."
)


@dataclass(frozen=True, kw_only=True)
class Replays:
    """What final samples declare beside the fit's settings.

    Attributes:
        box: What every mean and scale of the unconstrained posterior is held to, declared without looking at the
            data. Without one the worst case is infinite. One with low = high promises the most: scales that may
            differ give much away.
        pairs: How many records are drawn for the typical case; the fit is replayed once without each different one.
            "all" leaves every record out once: as many fits as there are records, but no record is unseen, so the
            typical case is exact, and finite without a box. 0 replays nothing.
        workers: How many processes replay; two by default.
        one_step: Also compute the papers' figure, which is unsound, for comparison.

    Examples:
        >>> import pyro, pyro.distributions as dist
        >>> from tacita.inference import Box, fit
        >>> def average(x):
        ...     m = pyro.sample("m", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("people", len(x)):
        ...         pyro.sample("x", dist.Normal(m, 1.0), obs=x)
        >>> result = fit(average, torch.rand(20), method="final-samples", samples=1, steps=10, pairs=4, workers=1,
        ...     box=Box(bound=0.5, low=2.0, high=2.0, dimension=1))
        >>> round(result.guarantee.epsilon, 1), len(result.posterior.sample()["m"])
        (2.2, 1)
    """

    box: Box | None = None
    pairs: int | str = 100
    workers: int | None = None
    one_step: bool = False

    def __post_init__(self) -> None:
        if self.box is not None and not isinstance(self.box, Box):
            raise TypeError(f"box must be a tacita.inference.Box, got {type(self.box).__name__}.")
        if self.pairs != ALL:
            _check.count("pairs", self.pairs, low=0, high=10**7)
        if self.workers is not None:
            _check.count("workers", self.workers, high=1000)
        if self.one_step and not self.pairs:
            raise ValueError("one_step=True needs pairs: it is the mean over replayed records.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"pairs": self.pairs, "workers": self.workers, "one_step": self.one_step}
        return {**plain, "box": None if self.box is None else self.box.to_dict()}


FIELDS = tuple(found.name for found in fields(Replays))


@dataclass(frozen=True)
class _Released:
    """What fitted.json holds. Only the draws are released."""

    fitted: Gaussians
    draws: Floats
    elbo: tuple[float, ...]
    one_step: Guarantee | None

    def to_dict(self) -> dict[str, Any]:
        return {
            **_plain(self.fitted),
            "draws": self.draws.tolist(),
            "elbo": [value if math.isfinite(value) else None for value in self.elbo],
            "one_step": None if self.one_step is None else self.one_step.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> _Released:
        figure = None if data["one_step"] is None else Guarantee.from_dict(data["one_step"])
        elbo = tuple(math.nan if value is None else float(value) for value in data["elbo"])
        return cls(_gaussian(data), np.array(data["draws"], dtype=np.float64), elbo, figure)


@dataclass
class _Run:
    """One release on its way."""

    separated: Separated
    tensors: tuple[Tensor, ...]
    chosen: Settings
    asked: Replays
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

    def finished(self, ledger: Ledger | str | Path, progress: Progress | None) -> Result:
        """Do what is left to do: charge, fit and draw, replay, label."""
        tell = shown(progress, "Trainings")
        different = np.unique(self.picks)
        with self.owner.opening(), nullcontext(ledger) if isinstance(ledger, Ledger) else ledger_at(ledger) as book:
            self._charge(book)
            with self._noting_interruption():
                kept = self._kept() or self._release(different, book)
                self._write_draws(kept)
                without = self._replay(different, tell)
            book.verify(self.identity, owner=self.owner.token)
            self._note("done")
        label = label_of_samples(
            self.document, self.facts, self.delta, fitted=kept.fitted, without=without, one_step=kept.one_step
        )
        if self.folder is not None:
            Run(self.folder).write_label(label)
        self.owner.close()
        notes = tuple(self.document["notes"])
        return Result(self._posterior(kept), METHOD, label, kept.elbo, notes, asdict(self.chosen), self.folder)

    @property
    def document(self) -> dict[str, Any]:
        """What the run directory says of the fit."""
        notes = (NOTES[METHOD], NOTES[self.chosen.guide])
        return document_of(self.separated, asdict(self.chosen), notes, replays=self.asked.to_dict())

    @property
    def picks(self) -> Any:
        """The records that are left out, one for each pair: drawn from all of them, uniformly, with replacement."""
        return _picks(self.seed, len(self.tensors[0]), self.asked.pairs)

    def train(self, leave_out: int | None = None, watch: Any = None) -> tuple[Gaussians, tuple[float, ...]]:
        """Fit, optionally without one record, and hold what is fitted to the box. Equal calls give equal results.

        Raises:
            DivergedError: If there are no numbers to return and no box to hold them to. Where a computation fails,
                such as the root of a matrix out of all bounds, there are none: the parameters are not released, so
                neither is what became of them.
        """
        means = scales = np.full((1, self.separated.size), np.nan)
        elbo: list[float] = []
        rng = np.random.default_rng(_streams(self.seed)[0])
        failures = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
        with one_thread(), own_draws(int(rng.integers(2**63))), suppress(*failures):
            optimizer, elbo = descend(self.separated, self.tensors, self.chosen, rng, leave_out=leave_out, watch=watch)
            guide = optimizer.fitted()
            means, scales = (t.double().numpy()[None] for t in (guide.location, guide.scale))
        box = self.asked.box
        return (Gaussians(means, scales) if box is None else box.project(means, scales)), tuple(elbo)

    def _charge(self, book: Ledger) -> None:
        """Charge the draws, once: a release that was charged and not begun is made at no further cost."""
        if self.head and not book.contains(self.head):
            raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")
        mark, seeded = self.random.fingerprint, self.random.seeded
        book.open_run(self.identity, mechanism=_mechanism(self.document), seed_fingerprint=mark, seeded=seeded)
        book.own(self.identity, self.owner.token)
        if not self.head:
            self.head = book.head
            own = self.folder is not None and book.path == self.folder / "ledger.sqlite"
            self.ledgers = [] if self.folder is None else [Run(self.folder).place(book.path)]
            self.facts = self.facts.with_ledger(book.path.name, shared=not own)
            self._write()
        drawn, kept = self._drawn(book), self._kept()
        if kept is not None and not drawn:
            raise PrivacyError("The draws were released, and this ledger does not know of it: it was rolled back.")
        if drawn and kept is None:
            raise PrivacyError(_GONE)
        if not book.charged(self.identity):
            costs = box_costs(self.asked.box, samples=self.chosen.samples, orders=DECLARED)
            book.charge(self.identity, first=0, steps=1, costs=costs, owner=self.owner.token)

    def _drawn(self, book: Ledger) -> list[str]:
        """Return the rows that say that this run's draws are being made; only the first is entitled to make them."""
        return [row.hash for row in book.events(self.identity) if row.body["event"] == _DRAWN]

    def _release(self, different: Any, book: Ledger) -> _Released:
        """Fit and draw; what is returned is on disk, and neither this run nor a copy of it can draw again."""
        watch = OneStep(self.separated, self.tensors, self.chosen, different) if self.asked.one_step else None
        fitted, elbo = self.train(watch=watch)
        figure = None if watch is None else watch.figure(np.searchsorted(different, self.picks), self.delta)
        mark = book.event(self.identity, _DRAWN, owner=self.owner.token)
        if self._drawn(book)[0] != mark:
            raise PrivacyError("Another process makes this run's draws; resume the run when that has ended.")
        noise = self.random.noise.standard_normal((self.chosen.samples, self.separated.size))
        made = _Released(fitted, fitted.means + fitted.scales * noise, elbo, figure)
        if self.folder is not None and not runs.write_once(self.folder, _FITTED, made.to_dict()):
            raise PrivacyError(f"There is a {_FITTED} already, of another run: nothing was released.")
        return made

    def _kept(self) -> _Released | None:
        if self.folder is None or not (self.folder / _FITTED).is_file():
            return None
        return _Released.from_dict(runs.read_json(self.folder, _FITTED))

    def _replay(self, different: Any, tell: Progress) -> Gaussians | None:
        """Return the posterior without each of the drawn records, replaying those that are not on disk yet."""
        found = {} if self.folder is None else _replayed(self.folder, different)
        total = 1 + len(different)
        tell(1 + len(found), total)
        missing = [int(i) for i in different if i not in found]
        workers = self.asked.workers or min(2, os.cpu_count() or 1)
        with closing(spread(self._without, missing, workers)) as made:
            for i, row in made:
                found[i] = row
                if self.folder is not None:
                    runs.write_json(self.folder, _pair_file(i), row)
                tell(1 + len(found), total)
        return _gathered(found, self.picks)

    def _without(self, i: int) -> dict[str, Any]:
        """Return the posterior without a record; nothing in each place if it diverged and there is no box."""
        try:
            return _plain(self.train(i)[0])
        except DivergedError:
            return dict.fromkeys(("location", "scale"), [None] * self.separated.size)

    @contextmanager
    def _noting_interruption(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._note("interrupted")
            raise

    def _posterior(self, kept: _Released) -> Posterior:
        return Posterior(self.separated, torch.from_numpy(kept.draws).to(torch.get_default_dtype()))

    def _write_draws(self, kept: _Released) -> None:
        if self.folder is not None:
            write_draws(self.folder, self._posterior(kept))

    def _note(self, status: Status) -> None:
        self.facts = self.facts.with_status(status)
        self._write()

    def _write(self) -> None:
        if self.folder is None:
            return
        (self.folder / "pairs").mkdir(exist_ok=True)
        run = Run(self.folder)
        run.write(
            kind=METHOD,
            family=METHOD,
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


def release(
    model: Model,
    data: Any,
    asked: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    epsilon: float | None,
    delta: float,
    ledger: Ledger | str | Path | None,
    run_dir: str | Path | None,
    rng: int | None,
    name: str | None,
    progress: Progress | None,
) -> Result:
    """Fit without noise and release draws; see `tacita.inference.fit`.

    Args:
        model: A Pyro model.
        data: Its records.
        asked: Fields of `Replays`.
        settings: Fields of `Settings`.
        epsilon: Refuse, before anything is computed, if the box does not keep the worst case within it.
        delta: Of every figure.
        ledger: Where to charge.
        run_dir: Where to write.
        rng: A seed for everything, the draws included; None takes fresh randomness.
        name: The label's title.
        progress: Called with (trainings done, trainings).
    """
    chosen, wanted = Settings(method=METHOD, **{"samples": SAMPLES, **settings}), Replays(**asked)
    if chosen.guide != "diagonal":
        raise ValueError(f"method={METHOD!r} compares diagonal posteriors only: leave guide={chosen.guide!r} out.")
    check_clip_norm(chosen.clip_norm)  # now, not after the charge
    random = randomness(rng)
    tensors, names = tensors_of(data)
    separated = separate(model, tensors, names, draws=chosen.local_draws)
    _require_within(epsilon, delta, chosen.samples, wanted.box, separated)
    if run_dir is not None:
        page_template()  # a missing extra is told now, not after the work
    folder = None if run_dir is None else Run.create(run_dir).folder
    facts = RunFacts(
        name or title_of(model), _purpose(separated, chosen), random.seeded, trained=len(tensors[0]), held_out=0
    )
    run = _Run(
        separated,
        tensors,
        chosen,
        wanted,
        facts,
        delta=delta,
        seed=secrets.randbits(128) if rng is None else int(rng),
        data=Records(tensors).fingerprint() if folder is not None else "",
        identity=secrets.token_hex(8),
        random=random,
        folder=folder,
        owner=Owner(folder),
    )
    own = ":memory:" if folder is None else folder / "ledger.sqlite"
    return run.finished(own if ledger is None else ledger, progress)


def resume(folder: Path, model: Model, data: Any, *, ledger: Any = None, progress: Progress | None = None) -> Result:
    """Go on with a release that was interrupted. Nothing is drawn twice or charged twice.

    Raises:
        PrivacyError: If draws were made and are gone, or model, data, settings or ledger are not those of the run.
    """
    saved = Run.open(folder, METHOD)
    found = saved.document()
    with saved.reading():
        document = found["fit"]
        chosen = Settings(**document["settings"])
        asked = Replays(**{**document["replays"], "box": box_of(document)})
        kept: dict[str, Any] = {key: found[key] for key in ("delta", "seed", "data", "ledgers", "head")}
        kept["identity"], facts = str(found["id"]), saved.facts
    tensors, names = tensors_of(data)
    if Records(tensors).fingerprint() != kept["data"]:
        raise PrivacyError("These are not the records that the run was started on: it is another dataset.")
    separated = separate(model, tensors, names, draws=chosen.local_draws)
    kept |= {"folder": folder, "owner": Owner(folder)}
    run = _Run(separated, tensors, chosen, asked, facts, random=randomness(None), **kept)
    if any(run.document[key] != document[key] for key in ("unknowns", "plate")):
        raise PrivacyError("This is not the model that the run was started with: it has other unknowns.")
    return run.finished(saved.ledgers[0] if ledger is None else ledger, progress)


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a run directory; neither data nor model are needed."""
    run = Run.open(folder, METHOD)
    found, facts = run.document(), run.facts
    with run.reading():
        document, name = found["fit"], str(found["id"])
        total = float(found["delta"]) if delta is None else _check.probability("delta", delta)
        with Ledger.open(run.ledgers[0]) as ledger:
            if not ledger.contains(str(found["head"])):
                raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")
            if name not in ledger.runs() or ledger.runs()[name]["mechanism"] != _mechanism(document):
                raise PrivacyError("The run's settings are not those that its ledger froze before the release.")
            if ledger.charged(name) == 0 or not (run.folder / _FITTED).is_file():
                raise PrivacyError("Nothing was released yet: there is nothing to label.")
        kept = _Released.from_dict(runs.read_json(run.folder, _FITTED))
        picks = _picks(int(found["seed"]), facts.trained, document["replays"]["pairs"])
        without = _gathered(_replayed(run.folder, np.unique(picks)), picks)
        return label_of_samples(document, facts, total, fitted=kept.fitted, without=without, one_step=kept.one_step)


def refuse(**given: Any) -> None:
    """Refuse arguments of `fit` that have no meaning here."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} does not go with method={METHOD!r}: there is no noise in its training.")


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


def _mechanism(document: Mapping[str, Any]) -> dict[str, int | str]:
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


# Records, and the posteriors without them.


def _streams(seed: int) -> list[np.random.SeedSequence]:
    """Return the training's stream and that of the records to leave out."""
    return np.random.SeedSequence(seed, spawn_key=(_STREAM,)).spawn(2)


def _picks(seed: int, size: int, pairs: int | str) -> Any:
    if pairs == ALL:
        return np.arange(size)
    return np.random.default_rng(_streams(seed)[1]).integers(size, size=int(pairs))


def _pair_file(i: int) -> str:
    return f"pairs/{i:08d}.json"


def _replayed(folder: Path, different: Any) -> dict[int, dict[str, Any]]:
    there = (int(i) for i in different if (folder / _pair_file(i)).is_file())
    return {i: runs.read_json(folder, _pair_file(i)) for i in there}


def _gathered(found: Mapping[int, Mapping[str, Any]], picks: Any) -> Gaussians | None:
    """Return one posterior for each pair, infinitely far from all others if it diverged; None unless all are there."""
    if len(picks) == 0 or not set(picks.tolist()) <= found.keys():
        return None
    rows = [found[i] for i in picks.tolist()]
    means, scales = (np.array([row[key] for row in rows], dtype=np.float64) for key in ("location", "scale"))
    return Gaussians(np.where(np.isnan(means), _FAR, means), np.where(np.isnan(scales), 1.0, scales))


def _plain(one: Gaussians) -> dict[str, Any]:
    return {"location": one.means[0].tolist(), "scale": one.scales[0].tolist()}


def _gaussian(row: Mapping[str, Any]) -> Gaussians:
    return Gaussians(np.array([row["location"]]), np.array([row["scale"]]))
