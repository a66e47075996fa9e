"""The trials of a tuning: each a complete run in a folder of its own, trained here or in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from tacita import _check
from tacita._check import PrivacyError
from tacita._progress import quiet
from tacita.mechanisms.rounded import Grid, rounded_gaussian
from tacita.runs import Run, RunError
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan
from tacita.training.randomness import secure_generator
from tacita.training.tuned import Tuned

Settings = dict[str, Any]
MakeRun = Callable[[Settings, Path | None], PrivateTraining]


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        number: Among those that were drawn.
        place: Its folder.
        settings: Its settings.
        plan: What was declared for them.
        tuned: What its folder says of the tuning.
    """

    number: int
    place: Path
    settings: Settings
    plan: Mapping[str, Any]
    tuned: Tuned


@dataclass(frozen=True)
class Work:
    """What makes trials, and scores them.

    Attributes:
        make_run: As `tune` is given it.
        score: As `tune` is given it.
        score_noise: As `tune` is given it.
    """

    make_run: MakeRun
    score: Callable[[nn.Module], float]
    score_noise: float | None

    def __call__(self, trial: Trial) -> float:
        """Take the steps of a trial that are left, and return its score."""
        _finish(self.make_run, trial)
        return _scored(self.score(released_model(self.make_run, trial.settings, trial.place)), self.score_noise)


def scores_of(trials: Sequence[Trial], work: Work, *, processes: int = 1) -> Iterator[tuple[int, float]]:
    """Finish trials, and return the number and the score of each, as they are done.

    Args:
        trials: Which ones.
        work: Makes and scores them.
        processes: How many at once. One works in this process.

    Raises:
        RunError: If a process died. What was done stays done, and the same call goes on.
    """
    if _check.count("processes", processes, high=1024) == 1 or not trials:
        yield from ((trial.number, work(trial)) for trial in trials)
        return
    _require_importable(work)
    context = multiprocessing.get_context("spawn")
    stop, threads = context.Event(), max(1, torch.get_num_threads() // processes)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_join, initargs=(stop, threads)) as pool:
        waiting = {pool.submit(work, trial): trial.number for trial in trials}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise RunError(
                "A process of the tuning died. What was done is kept: call it again with the same arguments to go on. "
                "Processes need functions that they can import, from a script guarded by if __name__ == '__main__'."
            ) from None
        finally:
            if not all(future.done() for future in waiting):
                stop.set()
            pool.shutdown(cancel_futures=True)


def released_model(make_run: MakeRun, settings: Settings, place: Path) -> nn.Module:
    """Return a trial's model with the weights that it would release, and nothing else of it.

    Args:
        make_run: Makes it.
        settings: Its settings.
        place: Its folder.
    """
    model = make_run(dict(settings), None).model
    load_model(model, str(place / "model.safetensors"))
    return model


def planned(made: Any) -> Plan:
    """Return the plan of what `make_run` made, if a tuning can be made of it."""
    if not isinstance(made, PrivateTraining):
        raise TypeError(f"make_run must return a PrivateTraining, got {type(made).__name__}.")
    if made.mechanism.processes.size > 1:
        raise PrivacyError("A tuning is not distributed: several ranks would draw numbers of trials of their own.")
    return made.plan


def _finish(make_run: MakeRun, trial: Trial) -> None:
    """Take all steps of a trial that are left."""
    place, run = trial.place, Run(trial.place)
    if not (run.exists and run.has_checkpoint):  # without a checkpoint no step was taken
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        training = make_run(dict(trial.settings), place)
        if planned(training).frozen() != trial.plan or training.taken or training.run_dir != place:
            raise PrivacyError("make_run must make a new run of the declared plan in the folder that it is given.")
    elif run.facts.status != "done":
        parts = make_run(dict(trial.settings), None).mechanism
        attached = {name: getattr(parts, name) for name in ("optimizer", "scheduler", "companions", "chunk", "whose")}
        attached["holdout"] = parts.plain.get("held-out")
        training = PrivateTraining.resume(place, parts.model, parts.loss_fn, parts.plain["training"], **attached)
    else:
        return
    if run.facts.seeded:
        raise PrivacyError("Every trial needs fresh noise, and seed=… repeats it: leave it out in make_run.")
    if run.ledgers != [place / "ledger.sqlite"]:
        raise PrivacyError("The tuning is charged as one entry: leave ledger=… out in make_run, and give it to tune.")
    run.write(tuned=trial.tuned.to_dict())
    if training.run(quiet).status != "done":
        raise PrivacyError(f"The trial in {str(place)!r} did not take all its steps ({training.status}).")
    training._stepper.keeper.charges.ledger.close()  # the folder may be moved


def _scored(value: float, noise: float | None) -> float:
    """Return a finite score; a private one, a whole number, with a rounded Gaussian on a grid of which 1 is a part."""
    if noise is not None:
        grid, count = Grid.of(1.0, max(noise, 1 / 32)), _check.count("a private score", value, low=0)
        drawn = int(rounded_gaussian(1, scale=grid.scale, rng=secure_generator())[0])
        return (count * round(1.0 / grid.step) + drawn) * grid.step
    found, largest = _check.number("a score", value), sys.float_info.max
    return max(-largest, min(found, largest)) if found == found else -largest


def _require_importable(work: Work) -> None:
    try:
        ForkingPickler.dumps(work)  # as it is sent to a process
    except Exception as error:
        raise TypeError(
            "Several processes need a make_run and a score that they can import: functions of a module, or objects of "
            f"its classes, and not what is defined inside of a function ({error})."
        ) from None


def _join(stop: Any, threads: int) -> None:
    """Begin as one of several processes, which ends at once when it is told to, or when its parent has died."""
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        while parent is not None and parent.is_alive() and not stop.wait(0.5):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
