"""Fit a Pyro model to sensitive records, and get private posterior draws with a guarantee and a label."""

from __future__ import annotations

import contextlib
import inspect
import math
import secrets
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita.inference.errors import errors_of
from tacita.inference.guides import GUIDES, Guide, Langevin, Variational, guide_of
from tacita.inference.inputs import records_like, tensors_of
from tacita.inference.labels import (
    KIND,
    METHOD_TEXTS,
    NOTES,
    OWNER,
    decorated,
    document_of,
    label_of_plain,
)
from tacita.inference.results import Posterior, Result, gaussian_draws
from tacita.inference.separation import separate, start_of
from tacita.inference.terms import Model, Separated
from tacita.posterior.pyro_model import isolated_pyro_session
from tacita.runs import Run, read_json, write_json
from tacita.training.loop import PrivateTraining
from tacita.training.plan import declared_rate
from tacita.training.step import poisson_sample, private_gradient

_FITS_OWN = (
    "optimizer",
    "sample_rate",
    "steps",
    "clip_norm",
    "target",
    "batch_size",
    "nominal_size",
    "purpose",
    "model",
    "loss_fn",
    "dataset",
)
METHODS = ("noisy", "final-samples", "sgld", "plain")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a fit declares beside the private step.

    Attributes:
        method: `noisy`, `final-samples`, `sgld` or `plain`.
        guide: `diagonal` or `low-rank`.
        samples: How many draws are released with the fit.
        steps: How many steps are taken.
        sample_rate: The chance with which each record enters a step.
        bare_rate: True if that was given as a number, which may have been computed from the data.
        clip_norm: The largest norm of one record's gradient at the current point.
        learning_rate: Of the guide.
        initial_scale: The standard deviation that unconstrained unknowns start with.
        floor: The smallest standard deviation.
        local_draws: Draws that average out a record's own continuous unknowns.
    """

    method: str = "noisy"
    guide: str = "diagonal"
    samples: int = 100
    steps: int = 500
    sample_rate: float = 0.1
    bare_rate: bool = False
    clip_norm: float = 1.0
    learning_rate: float = 0.05
    initial_scale: float = 0.1
    floor: float = 1e-6
    local_draws: int = 16

    def __post_init__(self) -> None:
        _check.one_of("method", self.method, METHODS)
        _check.one_of("guide", self.guide, GUIDES)
        for name in ("samples", "steps", "local_draws"):
            _check.count(name, getattr(self, name), high=10**7)
        _check.rate("sample_rate", self.sample_rate)
        for name, high in (("learning_rate", 10.0), ("initial_scale", 1e3), ("floor", 1e3)):
            _check.in_range(name, getattr(self, name), 1e-12, high)


class Evidence(nn.Module):
    """Minus the log likelihood of a batch of one record, at the current point."""

    def __init__(self, separated: Separated, start: Tensor) -> None:
        super().__init__()
        self.separated = separated
        self.point = nn.Parameter(start.clone())

    def forward(self, *record: Tensor) -> Tensor:
        """Return the record's loss."""
        return -self.separated.log_likelihood(self.point, tuple(t.squeeze(0) for t in record))


def fit(
    model: Model,
    data: Any,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    method: str = "noisy",
    holdout: Any = None,
    ledger: Any = None,
    run_dir: str | Path | None = None,
    rng: int | None = None,
    name: str | None = None,
    panel: int = 256,
    progress: Progress | None = None,
    training: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Fit a Pyro model privately.

    Args:
        model: An ordinary Pyro model of a batch of records, whose observed sites stand in a plate of their number.
        data: The model's arguments: a tensor, a tuple of tensors by place, or a dict by name; records along the
            first dimension. A cell that is no number is taken as NaN, and its record contributes nothing, in silence;
            among whole numbers it is the lowest one there is, among truth values false.
        epsilon: The worst case to stay within, at `delta`. Or give `noise_multiplier`.
        delta: The total failure probability.
        noise_multiplier: Noise standard deviation over the clip norm.
        method: `noisy` (variational inference with clipped and noised gradients), `sgld` (Langevin dynamics whose
            noise is the privacy's), `final-samples` (no noise: only `samples` draws leave, 10 by default, and each
            one costs), or `plain` (no privacy, for comparison).
        holdout: Records like those of the data that are not fitted to; followed for the typical case.
        ledger: A path or `Ledger` to charge.
        run_dir: Where to write the run; None writes nothing, and the fit cannot be resumed.
        rng: A seed; None is seeded by the operating system.
        name: The title of the label.
        panel: How many records are followed for the typical case.
        progress: Called with (step, steps) after each step; with trainings for `final-samples`. None shows a line on
            the terminal, if there is one.
        training: Further arguments of `tacita.training.PrivateTraining`, such as `individual_every` or `groups`.
        settings: Fields of `Settings`: guide, samples, steps, clip_norm, learning_rate, …; how many records a step
            looks at by `batch_size` and `nominal_size` (declared, not counted), or as a chance by `sample_rate`; for
            `final-samples` also those of `replays.Replays`: box, pairs, workers, one_step.

    Guarantee:
        `noisy` and `sgld` are Poisson-sampled Gaussian steps; everything in the result but `elbo` is computed from
        their outcomes, so the posterior, its draws and its summary cost nothing further. The model sees records one
        at a time. `final-samples` is covered by its box alone: without one the worst case is infinite.

    Raises:
        PrivacyError: If the model's records cannot be separated, or the budget does not suffice.
        ValueError: If the model fails, or an argument is out of range.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> def heights(cm):
        ...     mean = pyro.sample("mean", dist.Normal(170.0, 20.0))
        ...     with pyro.plate("people", len(cm)):
        ...         pyro.sample("cm", dist.Normal(mean, 10.0), obs=cm)
        >>> cm = 175.0 + 10.0 * torch.randn(2000)
        >>> result = fit(heights, cm, noise_multiplier=3.0, steps=20, panel=0)
        >>> 0.5 < result.guarantee.epsilon < 1.0
        True
    """
    from tacita.inference import replays

    own = {key: settings.pop(key) for key in replays.FIELDS if key in settings}
    _require_arguments(epsilon, rng, name, progress, settings, training)
    settings = _with_rate(settings)
    if method == replays.METHOD:
        replays.refuse(noise_multiplier=noise_multiplier, holdout=holdout, training=training)
        common = {"ledger": ledger, "run_dir": run_dir, "rng": rng, "name": name, "progress": progress}
        return replays.release(model, data, own, settings, epsilon=epsilon, delta=delta, **common)
    if own:
        raise ValueError(f"{', '.join(own)}: for method={replays.METHOD!r} only, got method={method!r}.")
    chosen = Settings(method=method, **settings)
    if chosen.method == "plain":
        given = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "ledger": ledger, "run_dir": run_dir}
        for key, value in {**given, "holdout": holdout, "training": training}.items():
            if value is not None:
                raise ValueError(f"{key} does not go with method='plain', which has no privacy to keep or account for.")
    tensors, names = tensors_of(data)
    separated = separate(model, tensors, names, draws=chosen.local_draws)
    if chosen.method == "plain":
        return _plain(separated, tensors, chosen, rng, name, delta, progress)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("Pass either noise_multiplier or epsilon, which finds it, and not both.")
    target = None if epsilon is None else (epsilon, delta)
    evidence, optimizer = _parts(separated, chosen, rng)
    with own_draws(rng):
        private = PrivateTraining(
            evidence,
            None,
            tensors,
            optimizer=optimizer,
            **_given_rate(chosen),
            steps=chosen.steps,
            clip_norm=chosen.clip_norm,
            noise_multiplier=noise_multiplier,
            target=target,
            batch_size=1.0,
            delta=delta,
            holdout=None if holdout is None else records_like(separated, holdout, "holdout"),
            panel=panel,
            ledger=ledger,
            run_dir=run_dir,
            seed=rng,
            name=name or title_of(model),
            purpose=_purpose(separated, chosen),
            **dict(training or {}),
        )
        chosen = replace(chosen, sample_rate=private.plan.sample_rate, steps=private.plan.steps)  # as it was declared
        if private.run_dir is not None:
            Run(private.run_dir).write(kind=KIND, fit=document_of(separated, asdict(chosen)))
        return _finished(private, separated, chosen, progress, rng)


def resume(
    run_dir: str | Path,
    model: Model,
    data: Any,
    *,
    holdout: Any = None,
    ledger: Any = None,
    progress: Progress | None = None,
) -> Result:
    """Go on with an interrupted fit: the same settings, the same guarantee, fresh noise.

    A fit that is finished is returned as it is, which a line on standard error says.

    Args:
        run_dir: The run directory.
        model: The same model.
        data: The same records.
        holdout: The same held-out records.
        ledger: Its ledger, if it is not at the place it was.
        progress: Called with (step, steps) after each step.
    """
    run = Run.open(run_dir)
    with run.reading():
        chosen = Settings(**run.document()["fit"]["settings"])
    said = run.finished
    if said is not None:
        print(f"tacita: {said}", file=sys.stderr)
    if chosen.method == "final-samples":
        from tacita.inference import replays

        return replays.resume(Path(run_dir), model, data, ledger=ledger, progress=progress)
    tensors, names = tensors_of(data)
    separated = separate(model, tensors, names, draws=chosen.local_draws)
    told = run.document()["fit"]
    if (told["unknowns"], told["plate"]) != ({u.name: list(u.shape) for u in separated.unknowns}, separated.plate):
        raise PrivacyError("This is not the model that the run was begun with: its unknowns or its plate differ.")
    evidence, optimizer = _parts(separated, chosen, None)
    with own_draws(None):
        private = PrivateTraining.resume(
            run_dir,
            evidence,
            None,
            tensors,
            optimizer=optimizer,
            holdout=None if holdout is None else records_like(separated, holdout, "holdout"),
            ledger=ledger,
        )
        if any(getattr(chosen, name) != getattr(private.plan, name) for name in ("sample_rate", "steps", "clip_norm")):
            raise PrivacyError("The settings in run.json are not those that the run was begun with.")
        return _finished(private, separated, chosen, progress, None)


def _require_arguments(
    epsilon: Any, rng: Any, name: Any, progress: Any, settings: Mapping[str, Any], training: Any
) -> None:
    """Refuse, before anything is charged, what would fail later or elsewhere under another name."""
    if epsilon is not None:
        _check.in_range("epsilon", epsilon, 1e-4, 500.0)
    if rng is not None:
        _check.count("rng", rng, low=0, high=2**63)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a text, got {type(name).__name__}.")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of (step, steps), got {type(progress).__name__}.")
    known = [field.name for field in fields(Settings) if field.name not in ("method", "bare_rate")]
    known += ["batch_size", "nominal_size"]
    for key in settings:
        if key not in known:
            raise TypeError(f"fit() got an unknown setting {key!r}; there are {', '.join(known)}.")
    if training is not None and not isinstance(training, Mapping):
        raise TypeError(f"training must be a dict of arguments of PrivateTraining, got {type(training).__name__}.")
    options = inspect.signature(PrivateTraining).parameters
    for key in training or ():
        if key in (*_FITS_OWN, *inspect.signature(fit).parameters):
            raise ValueError(f"training may not hold {key!r}, which fit decides or takes as its own argument.")
        if key not in options:
            raise TypeError(f"training holds {key!r}, which is no argument of PrivateTraining.")


def _with_rate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the sample rate that declared sizes give; one given as a number is marked as such."""
    given = dict(settings)
    if "batch_size" not in given and "nominal_size" not in given:
        return {**given, "bare_rate": True} if "sample_rate" in given and given["sample_rate"] != 1.0 else given
    batch, size = given.pop("batch_size", None), given.pop("nominal_size", None)
    divisor, _ = declared_rate(given.get("sample_rate"), batch, size)
    return {**given, "sample_rate": 1.0 / (_check.number("nominal_size", size) / divisor)}


def _given_rate(chosen: Settings) -> dict[str, Any]:
    """Return the rate as PrivateTraining takes it, next to a divisor of 1."""
    if chosen.bare_rate:
        return {"sample_rate": chosen.sample_rate}
    return {"nominal_size": 1.0 / chosen.sample_rate}


@contextlib.contextmanager
def own_draws(seed: int | None) -> Iterator[None]:
    """Give torch's generator, which draws records' own unknowns, a seed that nobody knows unless one was chosen.

    What a model leaves in Pyro's parameter store is gone afterwards.
    """
    with isolated_pyro_session():
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        yield


def shown(progress: Progress | None, what: str) -> Progress:
    """Return what to tell progress to: the caller's function, else a line on the terminal, if there is one."""
    if progress is not None:
        return progress
    if not sys.stderr.isatty():
        return lambda done, total: None

    def line(done: int, total: int) -> None:
        sys.stderr.write(f"\r{what}: {done} of {total}" + ("\n" if done >= total else ""))
        sys.stderr.flush()

    return line


def title_of(model: Model) -> str:
    """Return what a fit is called if nobody named it."""
    return str(getattr(model, "__name__", "Inference"))


def _parts(separated: Separated, chosen: Settings, seed: int | None) -> tuple[Evidence, Variational | Langevin]:
    start = start_of(separated)
    evidence = Evidence(separated, start)
    if chosen.method == "sgld":
        return evidence, Langevin(
            evidence.point,
            separated.log_prior,
            sample_rate=chosen.sample_rate,
            steps=chosen.steps,
            keep=chosen.samples,
        )
    return evidence, variational(evidence.point, separated, chosen, start, seed)


def variational(point: nn.Parameter, separated: Separated, chosen: Settings, start: Tensor, seed: Any) -> Variational:
    """Return the optimiser of a guide."""
    return Variational(
        point,
        guide_of(chosen.guide, start, scale=chosen.initial_scale, floor=chosen.floor),
        separated.log_prior,
        sample_rate=chosen.sample_rate,
        steps=chosen.steps,
        learning_rate=chosen.learning_rate,
        seed=seed,
    )


def _finished(
    private: PrivateTraining, separated: Separated, chosen: Settings, progress: Progress | None, seed: int | None
) -> Result:
    optimizer, size = private.optimizer, private._facts.trained
    optimizer.steps = private.plan.steps  # fewer than asked for where a budget says so
    chosen = replace(chosen, steps=private.plan.steps)
    if isinstance(optimizer, Langevin):
        optimizer.set_noise(private.plan.noise_multiplier * private.plan.clip_norm)
    tell, elbo, norms = shown(progress, "Steps"), [], []
    for step in private.steps(curve=False):
        elbo.append(-step.loss * size + float(optimizer.public))
        norms.append(step.norms)
        tell(step.number, private.plan.steps)
    rng = np.random.default_rng(None if seed is None else [seed, 2**31 + 1])  # not the stream of the secret coins
    posterior, notes, warning = _posterior(private, separated, chosen, rng)
    told = tuple(NOTES[key] for key in (chosen.method, chosen.guide) if key in NOTES)  # without what came out
    document = document_of(separated, asdict(chosen), told)
    known = read_json(private.run_dir, OWNER) if private.run_dir and (private.run_dir / OWNER).is_file() else {}
    owner = {**known, "warning": warning, **({"clipped": clipped_share(norms)} if norms else {})}
    label = decorated(private.label(), document, owner)
    if private.run_dir is not None:
        run = Run(private.run_dir)
        run.write(fit=document)
        write_json(private.run_dir, OWNER, owner)
        write_draws(private.run_dir, posterior)
        run.write_label(label)
    return Result(
        posterior, chosen.method, label, tuple(elbo), with_warning(notes, warning), asdict(chosen), private.run_dir
    )


def with_warning(notes: tuple[str, ...], warning: str) -> tuple[str, ...]:
    """Return what a reader of the intervals is told, with a warning at its end if there is one."""
    return (*notes, f"Warning: {warning}.") if warning else notes


def clipped_share(norms: Sequence[tuple[float, float, float]]) -> float:
    """Return what share of the records was clipped in the last quarter of the steps: 0.9, 0.5, 0.1 or 0, at least."""
    late = [row for row in norms[-max(1, len(norms) // 4) :] if not math.isnan(row[0])]  # NaN: nobody was sampled
    if not late:
        return 0.0
    return next(
        (share for share, norm in zip((0.9, 0.5, 0.1), np.median(late, axis=0), strict=True) if norm > 0.999), 0.0
    )


def _purpose(separated: Separated, chosen: Settings) -> str:
    return f"The posterior of {separated.size} unknown numbers of a Pyro model, by {METHOD_TEXTS[chosen.method]}."


def _posterior(
    private: PrivateTraining, separated: Separated, chosen: Settings, rng: np.random.Generator
) -> tuple[Posterior, tuple[str, ...], str]:
    """Return the posterior, what to know about its intervals, and a warning if there is cause for one."""
    optimizer, plan = private.optimizer, private.plan
    if isinstance(optimizer, Langevin):
        kept = optimizer.kept if len(optimizer.kept) else optimizer.point.detach()[None].clone()
        return Posterior(separated, kept), (NOTES["sgld"],), ""
    if not isinstance(optimizer, Variational):
        raise TypeError("The run is not a fit of a posterior.")
    noise = plan.noise_multiplier * plan.clip_norm / plan.sample_rate
    fitted = optimizer.fitted()
    errors = errors_of(optimizer, noise)
    covariance, own = errors.widened(fitted), fitted.covariance()
    widest = float((covariance.diagonal() / own.diagonal()).sqrt().max())
    posterior = released(separated, fitted, covariance, chosen.samples, rng)
    wider = f"They are wider for it, by {math.ceil(100 * widest - 100)}% at most."
    return posterior, (f"{NOTES['noisy']} {wider}", NOTES[chosen.guide]), errors.warning(fitted)


def released(separated: Separated, guide: Guide, covariance: Tensor, samples: int, rng: Any) -> Posterior:
    """Return a Gaussian posterior with its first draws."""
    location = guide.location.detach()
    return Posterior(separated, gaussian_draws(location, covariance, samples, rng), location, covariance)


def write_draws(folder: Path, posterior: Posterior) -> None:
    """Write the released draws: posterior.npz, one array for each site."""
    with zipfile.ZipFile(folder / "posterior.npz", "w") as archive:  # np.savez knows no array called "file"
        for name, values in posterior.sample().items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values.numpy(), allow_pickle=False)


def descend(
    separated: Separated,
    tensors: tuple[Tensor, ...],
    chosen: Settings,
    rng: np.random.Generator,
    *,
    leave_out: int | None = None,
    progress: Progress | None = None,
    watch: Callable[[Variational, Any], None] | None = None,
) -> tuple[Variational, list[float]]:
    """Fit a guide without noise, each record's gradient clipped; optionally without one record.

    The coins, the points and the draws of records' own unknowns are those of all records, and in the left-out record's
    place another one stands, whose gradient there is not counted; so two calls with equal generators differ by the
    left-out record alone. `watch` is called before each step, with the gradient in place and the sampled records.
    """
    if leave_out is not None:
        tensors = tuple(t.clone() for t in tensors)
        for t in tensors:
            t[leave_out] = t[leave_out - 1]
    size, start = len(tensors[0]), start_of(separated)
    point = nn.Parameter(start.clone())
    optimizer = variational(point, separated, chosen, start, rng.integers(2**63))
    elbo = []

    def loss(parameters: dict[str, Tensor], record: tuple[Tensor, ...]) -> Tensor:
        return -separated.log_likelihood(parameters["point"], record)

    for number in range(1, chosen.steps + 1):
        sample = poisson_sample(size, chosen.sample_rate, rng=rng)
        counted = torch.from_numpy(sample != leave_out)
        records = tuple(t[sample] for t in tensors) if len(sample) else None
        gradient, clipped = private_gradient(
            loss,
            {"point": point.detach()},
            records,
            clip_norm=chosen.clip_norm,
            noise_multiplier=0.0,
            divisor=1.0,
            rng=rng,
            bounds=chosen.clip_norm * counted.double(),
        )
        point.grad = gradient["point"]
        if watch is not None:
            watch(optimizer, sample)
        optimizer.step()
        elbo.append(-float(clipped.losses[counted].nanmean()) * size + optimizer.public if counted.any() else math.nan)
        if progress is not None:
            progress(number, chosen.steps)
    return optimizer, elbo


def _plain(
    separated: Separated,
    tensors: tuple[Tensor, ...],
    chosen: Settings,
    seed: int | None,
    name: str | None,
    delta: float,
    progress: Progress | None,
) -> Result:
    rng = np.random.default_rng(seed)
    tell = shown(progress, "Steps")
    optimizer, elbo = descend(separated, tensors, replace(chosen, clip_norm=1e12), rng, progress=tell)
    fitted = optimizer.fitted()
    errors = errors_of(optimizer, 0.0)
    posterior = released(separated, fitted, errors.widened(fitted), chosen.samples, rng)
    notes, warning = (NOTES[chosen.guide],), errors.warning(fitted)
    document, owner = document_of(separated, asdict(chosen), notes), {"warning": warning}
    label = label_of_plain(name or title_of(separated.model), document, delta, owner)
    return Result(posterior, "plain", label, tuple(elbo), with_warning(notes, warning), asdict(chosen))
