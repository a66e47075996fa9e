"""Replays of final samples: which records they leave out, their files and processes, and the papers' figure."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import signal
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from tacita import _check, _codec, runs
from tacita._guard import attempt, held
from tacita.guarantee import Guarantee
from tacita.inference.final_samples import Box
from tacita.inference.guides import Variational
from tacita.inference.request import Settings
from tacita.inference.terms import Separated, Tensors
from tacita.mechanisms.diagonal import Gaussians, subsampled_gaussian_costs
from tacita.papers import ONE_STEP_ORDERS, one_step_figure
from tacita.training.gradients import clip_factors

if TYPE_CHECKING:
    from tacita._check import Floats

ALL = "all"
_FITTED = "fitted.json"
_STREAM = 2**31  # of the seed: not one that `randomness` draws from
_FAR = 1e300  # a mean whose divergence from any other overflows, which makes it infinite

Work = Callable[[int], dict[str, Any]]


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
        >>> import pyro, torch, pyro.distributions as dist
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
        if self.one_step and self.pairs in (0, 1):
            raise ValueError("one_step=True needs 2 pairs or more: it is estimated from replayed records.")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Replays:
        """Rebuild what a run directory holds."""
        return cls(**{**data, "box": None if data["box"] is None else Box(**data["box"])})


@dataclass(frozen=True, kw_only=True)
class Released:
    """What fitted.json holds.

    Attributes:
        location: The means of the fitted posterior.
        scale: Its standard deviations.
        draws: Those that were released, each a row.
        elbo: The evidence bound at every step; None where it is not a number.
        one_step: The papers' figure, if it was asked for.
    """

    location: tuple[float, ...]
    scale: tuple[float, ...]
    draws: tuple[tuple[float, ...], ...]
    elbo: tuple[float | None, ...]
    one_step: Guarantee | None

    @property
    def fitted(self) -> Gaussians:
        """The fitted posterior."""
        return Gaussians(np.array([self.location]), np.array([self.scale]))

    def write(self, folder: Path) -> bool:
        """Write it once; False, and nothing is written, if there is one already."""
        return runs.write_once(folder, _FITTED, _codec.to_plain(self))

    @classmethod
    def read(cls, folder: Path | None) -> Released | None:
        """Return what a run directory holds; None if nothing was released yet."""
        if folder is None or not (folder / _FITTED).is_file():
            return None
        return _codec.from_plain(cls, runs.read_json(folder, _FITTED))


def streams(seed: int) -> list[np.random.SeedSequence]:
    """Return the training's stream and that of the records to leave out."""
    return np.random.SeedSequence(seed, spawn_key=(_STREAM,)).spawn(2)


def picks_of(seed: int, size: int, pairs: int | str) -> Any:
    """Return the record that each pair leaves out: drawn uniformly with replacement, or every one once.

    Args:
        seed: The run's.
        size: How many records there are.
        pairs: How many pairs; "all" for every record.

    Returns:
        The indices of the records.
    """
    if pairs == ALL:
        return np.arange(size)
    return np.random.default_rng(streams(seed)[1]).integers(size, size=int(pairs))


def pair_file(record: int) -> str:
    """Return where a run directory holds the posterior without a record."""
    return f"pairs/{record:08d}.json"


def read_pairs(folder: Path | None, picks: Any) -> dict[int, dict[str, Any]]:
    """Return the posteriors without these records, as far as they are on disk."""
    if folder is None:
        return {}
    return {i: runs.read_json(folder, pair_file(i)) for i in set(picks.tolist()) if (folder / pair_file(i)).is_file()}


def gathered(rows: Mapping[int, Mapping[str, Any]], picks: Any) -> Gaussians | None:
    """Return one posterior for each pair, infinitely far from all others if it diverged; None unless all are there."""
    if len(picks) == 0 or not set(picks.tolist()) <= rows.keys():
        return None
    chosen = [rows[i] for i in picks.tolist()]
    means, scales = (np.array([row[key] for row in chosen], dtype=np.float64) for key in ("location", "scale"))
    return Gaussians(np.where(np.isnan(means), _FAR, means), np.where(np.isnan(scales), 1.0, scales))


def spread(work: Work, items: list[int], workers: int) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Yield (item, result) as they are done, by forked processes, which are ended when this is closed.

    Args:
        work: Computes one item; its result is plain data.
        items: What to compute.
        workers: How many processes at most; with one, or where processes cannot be forked, this one does it all.

    Yields:
        Each item with its result.

    Raises:
        ValueError: If an item fails.
        RuntimeError: If a process ends before its work is done.
    """
    count = min(workers, len(items))
    if count <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from ((item, work(item)) for item in items)
        return
    context = multiprocessing.get_context("fork")
    running: dict[Any, Any] = {}
    try:
        for k in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(work, items[k::count], sender, [*running, receiver]))
            with warnings.catch_warnings():  # newer Pythons warn of threads, which the child does not use
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            running[receiver] = process
            sender.close()
        waiting: list[Any] = list(running)
        while waiting:
            ready: Any
            for ready in multiprocessing.connection.wait(waiting):
                try:
                    item, result = json.loads(ready.recv_bytes())
                except EOFError:
                    waiting.remove(ready)
                    running[ready].join()
                    if running[ready].exitcode:
                        raise RuntimeError("A process that replayed fits ended before its work was done.") from None
                    continue
                if isinstance(result, str):
                    raise ValueError(f"A replay without one record failed: {result}")
                yield item, result
    finally:
        for receiver, process in running.items():
            receiver.close()
            process.terminate()
            process.join()


def _serve(work: Work, items: list[int], sender: Any, inherited: list[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in inherited:
        end.close()  # so that this process cannot outlive its parent
    for item in items:
        try:
            result: Any = work(item)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        sender.send_bytes(json.dumps([item, result]).encode())


class OneStep:
    """Follow a fit as the papers account for it: at each step, the guide after it with and without each record."""

    def __init__(self, separated: Separated, tensors: Tensors, settings: Settings, different: Any) -> None:
        self.settings, self.indices = settings, different
        self.records = tuple(t[different] for t in tensors)
        self.gradients = vmap(grad(separated.log_likelihood), in_dims=(None, 0), randomness="different")
        self.costs: list[Floats] = []
        self.infinite: Floats = np.full((len(ONE_STEP_ORDERS), len(different)), np.inf)

    def __call__(self, optimizer: Variational, sample: Any) -> None:
        """Record what the next step alone costs each record; infinitely much if a record makes the model fail."""
        with held():
            cost = attempt(self._cost, optimizer, sample)
        self.costs.append(self.infinite if cost is None else cost)

    def _cost(self, optimizer: Variational, sample: Any) -> Floats:
        pair = [self.after(optimizer, change) for change in self.changes(optimizer, sample)]
        return subsampled_gaussian_costs(ONE_STEP_ORDERS, *pair, sample_rate=self.settings.sample_rate)

    def figure(self, rows: Any, delta: float) -> Guarantee:
        """Return the papers' figure for pairs of these rows of the records."""
        untaken = [self.infinite] * (self.settings.steps - len(self.costs))  # by a fit that diverged before
        costs = [step[:, rows] for step in (*self.costs, *untaken)]
        return one_step_figure(costs, delta=delta, sample_rate=self.settings.sample_rate)

    def changes(self, optimizer: Variational, sample: Any) -> tuple[Tensor, Tensor]:
        """Return by how much the sum of clipped gradients changes with each record among the sample, and without it."""
        with torch.random.fork_rng(devices=[]):  # leaves the draws of the fit unchanged
            gradients = -self.gradients(optimizer.point.detach(), self.records).double()
        factors = clip_factors(gradients.norm(dim=1, keepdim=True), torch.tensor(self.settings.clip_norm))
        clipped = factors * gradients.nan_to_num(0.0, 0.0, 0.0)
        without = -torch.where(torch.from_numpy(np.isin(self.indices, sample))[:, None], clipped, 0.0)
        return without + clipped, without

    @staticmethod
    @torch.no_grad()
    def after(optimizer: Variational, change: Tensor) -> Gaussians:
        """Return the guide that one step of Adam would give, for each change of the sum of gradients."""
        guide, noise = optimizer.guide, optimizer._noise.double()
        joint = optimizer._gradient().double() + change / optimizer.sample_rate
        free = (guide.log_scale.exp() > guide.floor).double()
        moved = {}
        for name, gradient in (
            ("location", joint),
            ("log_scale", free * (joint * guide.scale.double() * noise - 1.0)),
        ):
            parameter = getattr(guide, name)
            state, group = optimizer.adam.state.get(parameter, {}), optimizer.adam.param_groups[0]
            taken, (first, second) = float(state.get("step", 0)) + 1.0, group["betas"]
            mean = first * state.get("exp_avg", torch.zeros(())).double() + (1 - first) * gradient
            square = second * state.get("exp_avg_sq", torch.zeros(())).double() + (1 - second) * gradient**2
            size = (square / (1 - second**taken)).sqrt() + group["eps"]
            moved[name] = parameter.double() - optimizer.rate * mean / (1 - first**taken) / size
        return Gaussians(moved["location"].numpy(), moved["log_scale"].exp().clamp_min(guide.floor).numpy())
