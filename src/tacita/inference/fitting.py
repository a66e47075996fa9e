"""Fit a Pyro model to sensitive records: private posterior draws with a guarantee and a label."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacita import _check
from tacita._check import renamed
from tacita._progress import Progress
from tacita.accounting import Target
from tacita.inference.methods import METHODS
from tacita.inference.request import Request, Settings
from tacita.inference.results import Result
from tacita.inference.terms import Model
from tacita.label import Label
from tacita.runs import Run

TRAINING = (
    "stops",
    "budget",
    "individual_every",
    "record_budget",
    "rungs",
    "certificate",
    "tolerated",
    "groups",
    "chunk",
)
"""Arguments of PrivateTraining that a fit passes on."""


@renamed("rng")
def fit(
    model: Model,
    data: Any,
    *,
    epsilon: float | None = None,
    target: Target | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    method: str = "noisy",
    holdout: Any = None,
    ledger: Any = None,
    run_dir: str | Path | None = None,
    seed: int | None = None,
    name: str | None = None,
    panel: int = 256,
    progress: Progress | None = None,
    training: Mapping[str, Any] | None = None,
    person: Any = None,
    records_per_person: int | None = None,
    holdout_person: Any = None,
    missing_person: str = "refuse",
    **settings: Any,
) -> Result:
    """Fit a Pyro model privately.

    Args:
        model: An ordinary Pyro model of a batch of records, whose observed sites stand in a plate of their number.
        data: The model's arguments: a tensor, a tuple of tensors by place, or a dict by name; records along the
            first dimension. A cell that is not a number becomes NaN, and its record contributes nothing; among
            integers it becomes the lowest one, among booleans false.
        epsilon: The worst case to stay within, at `delta`. Or give `target` or `noise_multiplier`.
        target: What an attacker may achieve, such as `Target(attack_success=0.55)`.
        delta: The total failure probability.
        noise_multiplier: Noise standard deviation over the clip norm.
        method: `noisy` (variational inference with clipped and noised gradients), `sgld` (Langevin dynamics whose
            noise is the privacy's), `final-samples` (no noise: only `samples` draws leave, 10 by default, and each
            one costs), or `plain` (no privacy, for comparison).
        holdout: Records like those of the data that are not fitted to; followed for the typical case.
        ledger: A path, a database's URL or a `Ledger` to charge.
        run_dir: Where to write the run; None writes nothing, and the fit cannot be resumed.
        seed: A chosen seed; None, the default, takes one from the operating system.
        name: The title of the label.
        panel: How many records are followed for the typical case.
        progress: Called after each step; with trainings for `final-samples`. None shows a bar on
            the terminal, if there is one.
        training: Further arguments of `tacita.training.PrivateTraining`, such as `groups`: any of `fitting.TRAINING`.
        person: For `noisy` and `sgld`, whose each record is, where people have several: one id for each. People are
            then drawn, clipped and accounted for as one, and `batch_size`, `nominal_size` and `panel` count them. A
            person contributes the gradient of the sum of their records' log likelihoods, as the posterior has it.
        records_per_person: How many of a person's records are looked at in a step; of somebody with more the sum is
            estimated from a fresh random subset.
        holdout_person: Whose the records of `holdout` are.
        missing_person: What a missing id means; see `tacita.training.Whose`.
        settings: Fields of `Settings` (guide, samples, steps, clip_norm, learning_rate, …); `batch_size` and
            `nominal_size`, both declared, or `sample_rate`; for `final-samples` also fields of `replays.Replays`.

    Returns:
        The posterior with its summary, its guarantee and its label.

    Guarantee:
        `noisy` and `sgld` are Poisson-sampled Gaussian steps; everything in the result but `elbo` is computed from
        their outcomes, so the posterior, its draws and its summary cost nothing further. The model sees records one
        at a time. With `person` the unit is the person. `final-samples` is covered by its box alone: without one the
        worst case is infinite.

    Raises:
        PrivacyError: If the model's records cannot be separated, or the budget does not suffice.
        ValueError: If the model fails, or an argument is out of range.
    """
    privacy: dict[str, Any] = {
        "epsilon": epsilon,
        "target": target,
        "delta": delta,
        "noise_multiplier": noise_multiplier,
    }
    privacy |= {"training": training}
    books = {"ledger": ledger, "run_dir": run_dir, "seed": seed, "name": name, "progress": progress}
    followed = {"holdout": holdout, "panel": panel, "person": person, "holdout_person": holdout_person}
    followed |= {"missing_person": missing_person, "records_per_person": records_per_person}
    request = _request(method, settings, model=model, data=data, **privacy, **books, **followed)
    return METHODS[method].fit(request)


def resume(
    run_dir: str | Path,
    model: Model,
    data: Any,
    *,
    holdout: Any = None,
    ledger: Any = None,
    progress: Progress | None = None,
    person: Any = None,
    holdout_person: Any = None,
    missing_person: str = "refuse",
) -> Result:
    """Continue an interrupted fit: the same settings, the same guarantee, fresh noise.

    A fit that is finished is returned as it is, with a line on standard error.

    Args:
        run_dir: The run directory.
        model: The same model.
        data: The same records.
        holdout: The same held-out records.
        ledger: Its ledger, if it has moved.
        progress: As in `fit`.
        person: The same ids, as the two that follow.
        holdout_person: The same.
        missing_person: The same.

    Returns:
        The result of the whole fit.

    Raises:
        PrivacyError: If the model, the data, the settings or the ledger are not those of the run.
        RunError: If there is no run of a fit, or it is damaged.
    """
    run = Run.open(run_dir)
    with run.reading():
        settings = Settings(**run.document()["fit"]["settings"])
        method = METHODS[settings.method]
    if run.finished is not None:
        print(f"tacita: {run.finished}", file=sys.stderr)
    given = {"holdout": holdout, "ledger": ledger, "progress": progress, "person": person}
    given |= {"holdout_person": holdout_person, "missing_person": missing_person}
    return method.resume(run, Request(model=model, data=data, settings=settings, **given))


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a fit's run directory; neither data nor model are needed."""
    run = Run.open(folder)
    with run.reading():
        method = METHODS[run.document()["fit"]["settings"]["method"]]
    return method.label(run, delta=delta)


def _request(method: str, settings: dict[str, Any], **arguments: Any) -> Request:
    """Refuse, before anything is charged, what would fail later or elsewhere under another name."""
    way = METHODS[_check.one_of("method", method, tuple(METHODS))]
    for other in METHODS.values():
        foreign = [key for key in other.options if key in settings and key not in way.options]
        if foreign:
            raise ValueError(f"{', '.join(foreign)}: for method={other.name!r} only, got method={method!r}.")
    options = {key: settings.pop(key) for key in way.options if key in settings}
    epsilon, seed, name, progress, training = map(arguments.get, ("epsilon", "seed", "name", "progress", "training"))
    if epsilon is not None:
        _check.in_range("epsilon", epsilon, 1e-4, 500.0)
    if arguments["target"] is not None and not isinstance(arguments["target"], Target):
        raise TypeError(f"target must be a Target, got {type(arguments['target']).__name__}.")
    if seed is not None:
        _check.count("seed", seed, low=0, high=2**63)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a text, got {type(name).__name__}.")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of (done, total, note), got {type(progress).__name__}.")
    if training is not None and not isinstance(training, Mapping):
        raise TypeError(f"training must be a dict of arguments of PrivateTraining, got {type(training).__name__}.")
    for key in training or ():
        if key not in TRAINING:
            raise ValueError(f"training may not hold {key!r}: what fit passes on is {', '.join(TRAINING)}.")
    declared = Settings.declare(method, {**way.defaults, **settings})
    for key, reason in way.refuses.items():
        if arguments[key] is not None:
            raise ValueError(f"{key} does not go with method={method!r}{reason}.")
    return Request(settings=declared, options=options, **arguments)
