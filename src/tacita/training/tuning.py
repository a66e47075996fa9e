"""Tuning that is paid for: a random number of complete runs, of which only the best leaves.

A folder of a tuning holds

    tuning.sensitive.json   what was declared, how many trials were drawn and with which settings, and their scores
    sensitive/              the trials, a run directory each: none of them may leave
    best/                   the run directory of the best one, once all are done; its label covers the tuning
    ledger.sqlite           unless it is charged elsewhere
"""

from __future__ import annotations

import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import Target
from tacita.accounting.tuned_noise import keeps_to
from tacita.accounting.tuning import RenyiCurve, Trials, trial_curve, tuned_worst_case
from tacita.facts import MEMORY
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.runs import Run, RunError, read_json, write_json
from tacita.training.charges import ledger_at
from tacita.training.labels import label_of_run
from tacita.training.persons import Persons
from tacita.training.plan import Plan
from tacita.training.randomness import generator
from tacita.training.records import Records
from tacita.training.trials import MakeRun, Settings, Trial, Work, planned, released_model, scores_of
from tacita.training.tuned import Tuned

_FILE = "tuning.sensitive.json"
RECIPE = "recipe.sensitive.json"  # of a tuning that a recipe began
_MOST = 10_000  # settings


@dataclass(frozen=True)
class Tuning:
    """What leaves a tuning.

    Attributes:
        run_dir: The folder of the best run.
        settings: Its settings.
        label: Its label, which covers the tuning.
        model: Its model.
    """

    run_dir: Path
    settings: Settings
    label: Label
    model: nn.Module


def tune(
    make_run: MakeRun,
    space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    *,
    trials: Trials,
    score: Callable[[nn.Module], float],
    delta: float,
    folder: str | Path,
    seed: int | None = None,
    ledger: Ledger | str | Path | None = None,
    score_noise: float | None = None,
    score_apart: bool = False,
    target: tuple[float, float] | Target | None = None,
    processes: int = 1,
) -> Tuning | None:
    """Train with settings drawn at random, a random number of times, and keep the best model.

    Interrupted, it goes on when it is called again with the same arguments: finished trials are not repeated, an
    unfinished one is resumed, and neither the number of trials nor their settings are drawn again.

    Args:
        make_run: Makes a training of the given settings in the given run directory, as `PrivateTraining(…,
            run_dir=run_dir)`, with neither `ledger` nor `seed`. It is also called with None, to learn the plan of each
            setting before anything runs, and to load a trained model.
        space: The settings to draw from, each with the same chance: {name: values} for all combinations, or a list.
            Values must be plain data.
        trials: The law of the number of runs, such as `tacita.accounting.NegativeBinomial.expecting(10)`.
        score: From a trained model to how good it is; the larger, the better. It may use public data and nothing else,
            unless `score_noise` is given.
        delta: The label's δ.
        folder: Where to keep everything; for the data's owner, except for what may leave `best`.
        seed: Of the number of runs and of their settings, for experiments: it is marked as not secure.
        ledger: Where the tuning is charged, as one entry before the first run; the folder's own by default.
        score_noise: The score is then a private count that one record changes by at most 1, such as how many records
            of a validation set are classified correctly. Gaussian noise of this standard deviation is added, and paid.
        score_apart: For a private score: no record that is counted is ever trained on, and on which side a record is
            depends on that record, or a coin of its own, alone. One record then pays for the run or for the score.
            Where the unit is the person, both are about persons with all of their records: one may change a count of
            records by many.
        target: (epsilon, delta), or a `Target`, that the tuning must keep to: it is refused if it does not.
            `tacita.accounting.tuned_noise_multiplier` finds the noise.
        processes: How many trials are trained at once, each in a process of its own. `make_run` and `score` must then
            be functions, or objects, of modules that other processes can import.

    Returns:
        The best run. None if the law drew no run at all, which costs the same.

    Raises:
        PrivacyError: If a run is not the one that was declared, or the ledger's budget does not pay for the tuning.

    Guarantee:
        Worst case over neighbours, for the model, its settings and its score together, if the number of trials, the
        others and the time that all of it took stay secret (Papernot & Steinke 2022). Every trial is charged at the
        cost of the most expensive setting.
    """
    where, choices = Path(folder), listed(space)
    if not isinstance(trials, Trials):
        raise TypeError(f"trials must be a NegativeBinomial or a Poisson, got {type(trials).__name__}.")
    plans, best = declared(make_run, choices, trials, score_noise=score_noise, score_apart=score_apart)
    records = make_run(dict(choices[0]), None).mechanism.parts
    tuned_worst_case(best, delta=delta)  # fail early
    if target is not None and not keeps_to(target, best):
        raise PrivacyError(
            "The tuning exceeds its target; take more noise: see tacita.accounting.tuned_noise_multiplier."
        )
    terms = {
        "space": choices,
        "plans": [plan.frozen() for plan in plans],
        "law": [type(trials).__name__, trials.to_dict()],
        "score_noise": score_noise,
        "score_apart": score_apart,
        "seeded": seed is not None,
    }
    with _Kept(where) as kept:
        kept.begin(json.loads(json.dumps(terms)), trials, seed)
        kept.require_records(records)
        kept.charge(ledger, best, unit=plans[0].unit, law=trials.words)
        offered = Tuned(
            law=trials.words,
            curve=best,
            settings=(),
            choices=len(choices),
            score_noise=score_noise,
            score_apart=score_apart,
            ledger=kept.place,
            seeded=seed is not None,
        )

        def trial(number: int) -> Trial:
            drawn = kept.drawn[number]
            tuned = replace(offered, settings=_texts(choices[drawn]))
            return Trial(number, kept.trial(number), choices[drawn], plans[drawn].frozen(), tuned)

        left = [trial(number) for number, found in enumerate(kept.scores) if found is None]
        for number, found in scores_of(left, Work(make_run, score, score_noise), processes=processes):
            kept.note(number, found)
        if not kept.drawn:
            warnings.warn("The law drew no run at all, so nothing is released. What was charged stays.", stacklevel=2)
            return None
        kept.publish(delta)
        settings = choices[kept.drawn[kept.winner]]
        label = label_of_run(kept.best, delta=delta)
        return Tuning(kept.best, dict(settings), label, released_model(make_run, settings, kept.best))


class _Kept:
    """The folder of a tuning, held by one owner in a `with` statement.

    Args:
        folder: Where it is; made if it does not exist.

    Raises:
        RunError: If it holds something else.
    """

    drawn: list[int]
    scores: list[float | None]
    place: str  # of the ledger, as the best run names it

    def __init__(self, folder: Path) -> None:
        self.folder, self.best = folder, folder / "best"
        if folder.exists() and not self._begun and any(file.name not in ("lock", RECIPE) for file in folder.iterdir()):
            raise RunError(f"{str(folder)!r} is not empty, and holds no tuning; choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        self._owner = Owner(folder)

    def __enter__(self) -> _Kept:
        self._owner.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.close()

    @property
    def _begun(self) -> bool:
        return (self.folder / _FILE).exists()

    def begin(self, declared: Settings, trials: Trials, seed: int | None) -> None:
        """Draw the number of trials and their settings; or go on, if that was done.

        Args:
            declared: What a tuning that goes on must have been started with.
            trials: The law of the number of trials.
            seed: Of what is drawn.
        """
        if self._begun:
            self.document = read_json(self.folder, _FILE)
            if self.document["declared"] != declared:
                raise PrivacyError(
                    f"The tuning in {str(self.folder)!r} was started with another space, law, score noise or plan: go "
                    "on with the same ones, or start another one elsewhere."
                )
        else:
            rng = generator(seed)
            drawn = rng.integers(len(declared["space"]), size=trials.draw(rng)).tolist()
            self.document = {"declared": declared, "drawn": drawn, "scores": [None] * len(drawn), "charged": None}
            self.document["begun"] = int(time.time())
            self._write()
        self.drawn, self.scores = self.document["drawn"], self.document["scores"]

    def require_records(self, parts: Mapping[str, Records | Persons]) -> None:
        """Refuse to go on with other records: all trials are runs on the same ones.

        Args:
            parts: Those of the first setting, which are trained on, and which are held out.
        """
        if "data" not in self.document:
            self.document["data"] = {name: records.fingerprint() for name, records in parts.items()}
            self._write()
        kept = self.document["data"]
        if kept.keys() != parts.keys() or not all(records.matches(kept[name]) for name, records in parts.items()):
            raise PrivacyError(
                f"These are not the records that the tuning in {str(self.folder)!r} was started on: every trial needs "
                "the same ones. Start another tuning elsewhere."
            )

    def _write(self) -> None:
        write_json(self.folder, _FILE, self.document)

    def charge(self, where: Ledger | str | Path | None, best: RenyiCurve, *, unit: str, law: str) -> None:
        """Charge the tuning as one entry, on disk, unless that was done.

        Args:
            where: The ledger, or None for the folder's own.
            best: What it costs.
            unit: What is added or removed.
            law: The law of the number of trials, in words.
        """
        ledger = ledger_at(self.folder / "ledger.sqlite" if where is None else where, unit=unit)
        try:
            if str(ledger.path) == MEMORY:
                raise PrivacyError("A tuning is charged on disk: give ledger=… a path, or leave it out.")
            own = where is None
            self.place = "../ledger.sqlite" if own else Run(self.best).place(ledger.place)
            if self.document["charged"] is None:
                described = f"Tuning: the best of a random number of runs ({law})"
                self.document["charged"] = ledger.release(
                    self.folder.resolve().name, costs=best.costs, curve=best.proved(), description=described, unit=unit
                )
                self._write()
            elif not ledger.contains(self.document["charged"]):
                raise PrivacyError("The ledger does not hold the charge of this tuning: it is another one, or older.")
        finally:
            if ledger is not where:
                ledger.close()

    def trial(self, number: int) -> Path:
        """Return the folder of a trial; all have the same last name, so that no title tells their number."""
        return self.folder / "sensitive" / f"{number + 1:04d}" / self.folder.resolve().name

    def note(self, number: int, score: float) -> None:
        """Keep the score of a trial."""
        self.scores[number] = score
        self._write()

    @property
    def winner(self) -> int:
        """The best trial, the first one among equals."""
        return max(range(len(self.scores)), key=lambda number: (self.scores[number], -number))

    def publish(self, delta: float) -> None:
        """Mark the best trial, write its label, and take it out of the sensitive folder; once."""
        if self.best.exists():
            return
        run = Run.open(self.trial(self.winner), "training")
        run.write(tuned={**run.document()["tuned"], "chosen": True})
        run.write_label(label_of_run(run.folder, delta=delta))
        begun = self.document["begun"]
        for file in (run.folder, *run.folder.rglob("*")):  # when a file was written counts trials
            os.utime(file, (begun, begun))
        os.rename(run.folder, self.best)


def listed(space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> list[Settings]:
    """Return all settings of a space, as `tune` is given it."""
    if isinstance(space, Mapping):
        made = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    else:
        made = [dict(settings) for settings in space]
    _check.count("the number of settings in space", len(made), high=_MOST)
    try:
        same = json.loads(json.dumps(made, allow_nan=False)) == made
    except (TypeError, ValueError):
        same = False
    if not same or not all(made):
        raise TypeError("space must hold settings by name, of plain data: numbers, texts, lists or dicts of them.")
    return made


def _texts(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in settings.items())


def declared(
    make_run: MakeRun,
    choices: Sequence[Settings],
    trials: Trials,
    *,
    score_noise: float | None = None,
    score_apart: bool = False,
) -> tuple[list[Plan], RenyiCurve]:
    """Return the plan of every setting, and the Rényi curve of the best run: nothing is drawn, charged or trained.

    Record budgets and declared stops are left out: they only lower what all planned steps cost.

    Args:
        make_run: As `tune` is given it.
        choices: All settings.
        trials: The law of the number of runs.
        score_noise: As `tune` is given it.
        score_apart: As `tune` is given it.
    """
    if score_apart and score_noise is None:
        raise ValueError("score_apart is about the records that a private score counts: give score_noise, too.")
    plans = [planned(make_run(dict(choice), None)) for choice in choices]
    if len({plan.unit for plan in plans}) > 1:
        raise PrivacyError("All settings must protect the same unit.")
    if len({plan.noise for plan in plans}) > 1:
        raise PrivacyError("All settings must draw noise alike: noise='float' or noise='exact' in every one of them.")
    if score_noise is not None:
        _check.in_range("score_noise", score_noise, 0.0, 2.0**20)
    mechanisms = [(plan.sample_rate, plan.noise_multiplier, plan.steps) for plan in plans]
    return plans, trials.selected(trial_curve(mechanisms, score_noise=score_noise, score_apart=score_apart))
