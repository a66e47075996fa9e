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
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_model
from torch import nn

from tacita import _check
from tacita._check import PrivacyError
from tacita._progress import Progress, quiet
from tacita.accounting.tuning import RenyiCurve, Trials, gaussian_curve, largest_curve, steps_curve, tuned_worst_case
from tacita.facts import MEMORY
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.runs import Run, RunError, read_json, write_json
from tacita.training.charges import ledger_at
from tacita.training.labels import label_of_run
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan
from tacita.training.randomness import generator, secure_generator
from tacita.training.tuned import Tuned

Settings = dict[str, Any]
MakeRun = Callable[[Settings, Path | None], PrivateTraining]
_FILE = "tuning.sensitive.json"
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
    progress: Progress = quiet,
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
        progress: Called as `progress(done, total, "trial")`, for the owner: the total must stay secret.

    Returns:
        The best run. None if the law drew no run at all, which costs the same.

    Raises:
        PrivacyError: If a run is not the one that was declared, or the ledger's budget does not pay for the tuning.

    Guarantee:
        Worst case over neighbours, for the model, its settings and its score together, if the number of trials, the
        others and the time that all of it took stay secret (Papernot & Steinke 2022). Every trial is charged at the
        cost of the most expensive setting.
    """
    where, choices = Path(folder), _listed(space)
    if not isinstance(trials, Trials):
        raise TypeError(f"trials must be a NegativeBinomial or a Poisson, got {type(trials).__name__}.")
    plans = [_plan(make_run(dict(choice), None)) for choice in choices]
    best = trials.selected(_one_run(plans, score_noise))
    tuned_worst_case(best, delta=delta)  # fail early
    declared = {
        "space": choices,
        "plans": [plan.frozen() for plan in plans],
        "law": [type(trials).__name__, trials.to_dict()],
        "score_noise": score_noise,
        "seeded": seed is not None,
    }
    with _Kept(where) as kept:
        kept.begin(json.loads(json.dumps(declared)), trials, seed)
        kept.charge(ledger, best, unit=plans[0].unit, law=trials.words)
        offered = Tuned(
            law=trials.words,
            curve=best,
            settings=(),
            choices=len(choices),
            score_noise=score_noise,
            seeded=seed is not None,
        )
        for number, drawn in enumerate(kept.drawn):
            progress(number, len(kept.drawn), "trial")
            if kept.scores[number] is None:
                place, settings = kept.trial(number), choices[drawn]
                _finish(make_run, settings, plans[drawn], place, replace(offered, settings=_texts(settings)))
                kept.note(number, _scored(score(_model(make_run, settings, place)), score_noise))
        progress(len(kept.drawn), len(kept.drawn), "trial")
        if not kept.drawn:
            warnings.warn("The law drew no run at all, so nothing is released. What was charged stays.", stacklevel=2)
            return None
        kept.publish(delta)
        settings = choices[kept.drawn[kept.winner]]
        label = label_of_run(kept.best, delta=delta)
        return Tuning(kept.best, dict(settings), label, _model(make_run, settings, kept.best))


class _Kept:
    """The folder of a tuning, held by one owner in a `with` statement.

    Args:
        folder: Where it is; made if it does not exist.

    Raises:
        RunError: If it holds something else.
    """

    drawn: list[int]
    scores: list[float | None]

    def __init__(self, folder: Path) -> None:
        self.folder, self.best = folder, folder / "best"
        if folder.exists() and not self._begun and any(file.name != "lock" for file in folder.iterdir()):
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
            self._write()
        self.drawn, self.scores = self.document["drawn"], self.document["scores"]

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
        os.rename(run.folder, self.best)


def _listed(space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> list[Settings]:
    """Return all settings of a space."""
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


def _plan(made: Any) -> Plan:
    if not isinstance(made, PrivateTraining):
        raise TypeError(f"make_run must return a PrivateTraining, got {type(made).__name__}.")
    if made.mechanism.processes.size > 1:
        raise PrivacyError("A tuning runs in one process: several would draw numbers of trials of their own.")
    return made.plan


def _one_run(plans: Sequence[Plan], score_noise: float | None) -> RenyiCurve:
    """Return the Rényi curve that covers one run with any of the settings, and its score.

    Record budgets and declared stops are left out: they only lower what all planned steps cost.
    """
    if len({plan.unit for plan in plans}) > 1:
        raise PrivacyError("All settings must protect the same unit.")
    mechanisms = dict.fromkeys((plan.sample_rate, plan.noise_multiplier, plan.steps) for plan in plans)
    curve = largest_curve([steps_curve(sample_rate=q, noise_multiplier=s, steps=t) for q, s, t in mechanisms])
    return curve if score_noise is None else curve.after(gaussian_curve(score_noise))


def _finish(make_run: MakeRun, settings: Settings, plan: Plan, place: Path, tuned: Tuned) -> None:
    """Take all steps of a trial that are left.

    Args:
        make_run: Makes it.
        settings: Its settings.
        plan: What was declared for them.
        place: Its folder.
        tuned: What its folder says of the tuning.
    """
    run = Run(place)
    if not (run.exists and run.has_checkpoint):  # without a checkpoint no step was taken
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        training = make_run(dict(settings), place)
        if _plan(training).frozen() != plan.frozen() or training.taken or training.run_dir != place:
            raise PrivacyError("make_run must make a new run of the declared plan in the folder that it is given.")
    elif run.facts.status != "done":
        parts = make_run(dict(settings), None).mechanism
        attached = {name: getattr(parts, name) for name in ("optimizer", "scheduler", "companions", "chunk", "whose")}
        attached["holdout"] = parts.plain.get("held-out")
        training = PrivateTraining.resume(place, parts.model, parts.loss_fn, parts.plain["training"], **attached)
    else:
        return
    if run.facts.seeded:
        raise PrivacyError("Every trial needs fresh noise, and seed=… repeats it: leave it out in make_run.")
    if run.ledgers != [place / "ledger.sqlite"]:
        raise PrivacyError("The tuning is charged as one entry: leave ledger=… out in make_run, and give it to tune.")
    run.write(tuned=tuned.to_dict())
    if training.run(quiet).status != "done":
        raise PrivacyError(f"The trial in {str(place)!r} did not take all its steps ({training.status}).")
    training._stepper.keeper.charges.ledger.close()  # the folder may be moved


def _model(make_run: MakeRun, settings: Settings, place: Path) -> nn.Module:
    """Return a trial's model with the weights that it would release, and nothing else of it."""
    model = make_run(dict(settings), None).model
    load_model(model, str(place / "model.safetensors"))
    return model


def _scored(value: float, noise: float | None) -> float:
    """Return a finite score; a private one with its noise."""
    if noise is not None:
        return _check.count("a private score", value, low=0) + noise * float(secure_generator().standard_normal())
    found, largest = _check.number("a score", value), sys.float_info.max
    return max(-largest, min(found, largest)) if found == found else -largest
