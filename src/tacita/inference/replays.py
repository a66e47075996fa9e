"""Which records a release of final samples leaves out, and the files that its fits are kept in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check, runs
from tacita.guarantee import Guarantee
from tacita.inference.box import Box
from tacita.mechanisms.diagonal import Gaussians

if TYPE_CHECKING:
    from tacita._check import Floats

ALL = "all"
_FITTED = "fitted.json"
_STREAM = 2**31  # of the seed: not one that `randomness` draws from
_FAR = 1e300  # a mean whose divergence from any other overflows, which makes it infinite


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
        if self.one_step and not self.pairs:
            raise ValueError("one_step=True needs pairs: it is the mean over replayed records.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"pairs": self.pairs, "workers": self.workers, "one_step": self.one_step}
        return {**plain, "box": None if self.box is None else self.box.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Replays:
        """Rebuild what `to_dict` wrote."""
        return cls(**{**data, "box": None if data["box"] is None else Box(**data["box"])})


@dataclass(frozen=True)
class Released:
    """What fitted.json holds: the fitted posterior, its released draws, and what else the owner keeps."""

    fitted: Gaussians
    draws: Floats
    elbo: tuple[float, ...]
    one_step: Guarantee | None

    def write(self, folder: Path) -> bool:
        """Write it once; False, and nothing is written, if there is one already."""
        plain = {
            **parameters(self.fitted),
            "draws": self.draws.tolist(),
            "elbo": [value if math.isfinite(value) else None for value in self.elbo],
            "one_step": None if self.one_step is None else self.one_step.to_dict(),
        }
        return runs.write_once(folder, _FITTED, plain)

    @classmethod
    def read(cls, folder: Path | None) -> Released | None:
        """Return what a run directory holds; None if nothing was released yet."""
        if folder is None or not (folder / _FITTED).is_file():
            return None
        data = runs.read_json(folder, _FITTED)
        fitted = Gaussians(np.array([data["location"]]), np.array([data["scale"]]))
        elbo = tuple(math.nan if value is None else float(value) for value in data["elbo"])
        figure = None if data["one_step"] is None else Guarantee.from_dict(data["one_step"])
        return cls(fitted, np.array(data["draws"], dtype=np.float64), elbo, figure)


def parameters(one: Gaussians) -> dict[str, Any]:
    """Return the parameters of a single Gaussian as plain data."""
    return {"location": one.means[0].tolist(), "scale": one.scales[0].tolist()}


def streams(seed: int) -> list[np.random.SeedSequence]:
    """Return the training's stream and that of the records to leave out."""
    return np.random.SeedSequence(seed, spawn_key=(_STREAM,)).spawn(2)


def picks_of(seed: int, size: int, pairs: int | str) -> Any:
    """Return the record that each pair leaves out: drawn uniformly with replacement, or every one once."""
    if pairs == ALL:
        return np.arange(size)
    return np.random.default_rng(streams(seed)[1]).integers(size, size=int(pairs))


def write_pair(folder: Path, record: int, row: Mapping[str, Any]) -> None:
    """Write the posterior without a record."""
    runs.write_json(folder, _pair_file(record), row)


def read_pairs(folder: Path, records: Any) -> dict[int, dict[str, Any]]:
    """Return the posteriors without these records, as far as they are on disk."""
    there = (int(i) for i in records if (folder / _pair_file(i)).is_file())
    return {i: runs.read_json(folder, _pair_file(i)) for i in there}


def _pair_file(record: int) -> str:
    return f"pairs/{record:08d}.json"


def gathered(rows: Mapping[int, Mapping[str, Any]], picks: Any) -> Gaussians | None:
    """Return one posterior for each pair, infinitely far from all others if it diverged; None unless all are there."""
    if len(picks) == 0 or not set(picks.tolist()) <= rows.keys():
        return None
    chosen = [rows[i] for i in picks.tolist()]
    means, scales = (np.array([row[key] for row in chosen], dtype=np.float64) for key in ("location", "scale"))
    return Gaussians(np.where(np.isnan(means), _FAR, means), np.where(np.isnan(scales), 1.0, scales))
