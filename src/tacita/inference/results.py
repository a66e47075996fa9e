"""What a fit returns: a posterior to draw from, its summary, its guarantee and its label."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError, renamed
from tacita._numbers import round_up_text
from tacita.guarantee import Guarantee
from tacita.inference.terms import Separated
from tacita.label import Label

_MANY = 4000  # draws that a summary is read from, where draws are free


@dataclass(frozen=True)
class Posterior:
    """A posterior over the unknowns that all records share.

    Attributes:
        separated: The model.
        released: Draws that were released, flat and unconstrained, shape (samples, size).
        location: The mean of the Gaussian over the unconstrained unknowns; None if only draws are released.
        covariance: Its covariance, including the noise of the fit; None if only draws are released.
    """

    separated: Separated
    released: Tensor
    location: Tensor | None = None
    covariance: Tensor | None = None

    @classmethod
    def gaussian(
        cls, separated: Separated, location: Tensor, covariance: Tensor, samples: int, rng: np.random.Generator
    ) -> Posterior:
        """Return a Gaussian posterior with its first draws.

        Args:
            separated: The model.
            location: The mean of the unconstrained unknowns.
            covariance: Theirs, with the error of the fit.
            samples: How many draws are released with it.
            rng: Of the draws.

        Returns:
            The posterior.
        """
        mean = location.detach()
        return cls(separated, _gaussian_draws(mean, covariance, samples, rng), mean, covariance)

    @renamed("rng")
    def sample(self, size: int | None = None, *, seed: int | None = None) -> dict[str, Tensor]:
        """Return draws of every site, by name, along the first dimension.

        Args:
            size: How many; by default those that were released with the fit. Where the posterior itself is private,
                further draws are free. Where only draws were released there are no more than those.
            seed: Of further draws; None takes one from the operating system.

        Returns:
            The draws by site.

        Raises:
            PrivacyError: If only draws were released, and more are requested.
        """
        if size is None:
            return self.separated.values(self.released)
        count = _check.count("size", size, high=10**7)
        if self.location is not None and self.covariance is not None:
            rng = np.random.default_rng(seed)
            return self.separated.values(_gaussian_draws(self.location, self.covariance, count, rng))
        if count > len(self.released):
            raise PrivacyError(
                f"{len(self.released)} draws were released and paid for, and {count} are asked for. Fit again with "
                f"samples={count}; each one costs."
            )
        return self.separated.values(self.released[:count])

    def write(self, folder: Path) -> None:
        """Write the released draws: posterior.npz, one array for each site."""
        with zipfile.ZipFile(folder / "posterior.npz", "w") as archive:  # np.savez reserves the name "file"
            for name, values in self.sample().items():
                with archive.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, values.numpy(), allow_pickle=False)


def _gaussian_draws(location: Tensor, covariance: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return draws of a Gaussian, flat, along the first dimension."""
    root = torch.linalg.cholesky(covariance.double())
    noise = torch.from_numpy(rng.standard_normal((count, len(location))))
    draws: Tensor = location.double() + noise @ root.T
    return draws.to(location.dtype)


@dataclass(frozen=True)
class Row:
    """One number of the posterior: its site, mean, standard deviation and central interval."""

    name: str
    mean: float
    sd: float
    low: float
    high: float

    def shown(self) -> tuple[str, ...]:
        """Return mean, sd and interval with as many digits as the standard deviation gives a meaning to."""
        values = (self.mean, self.sd, self.low, self.high)
        if not (0.0 < self.sd < math.inf and max(map(abs, values)) < 1e9 * self.sd):
            return tuple(f"{v:.3g}" for v in values)
        decimals = max(0, 1 - math.floor(math.log10(self.sd)))
        return tuple(f"{v:.{decimals}f}" for v in values)


@dataclass(frozen=True)
class Summary:
    """A posterior in a table. Prints as text."""

    rows: tuple[Row, ...]
    level: float
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __str__(self) -> str:
        tail = 50.0 * (1.0 - self.level)
        head = ("", "mean", "sd", f"{tail:g}%", f"{100 - tail:g}%")
        lines = [head, *((r.name, *r.shown()) for r in self.rows)]
        widths = [max(len(line[k]) for line in lines) for k in range(5)]
        text = [
            "  ".join([line[0].ljust(widths[0]), *(v.rjust(w) for v, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines
        ]
        return "\n".join((*text, *self.notes))


def summarise(draws: Mapping[str, Tensor], level: float, notes: tuple[str, ...] = ()) -> Summary:
    """Return means, standard deviations and central intervals of draws of every site.

    ArviZ's summaries and forest plots, which `Result.to_arviz` opens, show highest-density intervals. These are
    central ones: they hold the same probability after a change of scale, and `coverage` checks them.

    Args:
        draws: Along the first dimension, by site.
        level: The probability that an interval holds.
        notes: What a reader should know.

    Returns:
        A row for each number of each site.
    """
    rows: list[Row] = []
    for name, values in draws.items():
        table = values.reshape(len(values), -1).double().numpy()
        low, high = np.quantile(table, ((1.0 - level) / 2.0, (1.0 + level) / 2.0), axis=0)
        sd = table.std(0, ddof=1) if len(table) > 1 else np.full(len(low), math.nan)
        for place, *numbers in zip(np.ndindex(tuple(values.shape[1:])), table.mean(0), sd, low, high, strict=True):
            where = f"{name}[{','.join(map(str, place))}]" if place else name
            rows.append(Row(where, *map(float, numbers)))
    return Summary(tuple(rows), level, notes)


@dataclass(frozen=True, repr=False)
class Result:
    """A fitted model.

    Attributes:
        posterior: Draw from it with `posterior.sample()`.
        method: A name in `tacita.inference.methods.METHODS`.
        elbo: The evidence bound at every step, for the data's owner: it is not private. The log joint density of the
            chain for `sgld`, which has no guide.
        notes: What a reader of the intervals should know.
        settings: How it was fitted, as written to the run directory.
    """

    posterior: Posterior
    method: str
    privacy_label: Label
    elbo: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None

    def __repr__(self) -> str:
        sites = ", ".join(u.name for u in self.posterior.separated.unknowns)
        epsilon, delta = (round_up_text(value) for value in (self.guarantee.epsilon, self.guarantee.delta))
        return f"<posterior of {sites} by {self.method!r}: epsilon {epsilon}, delta {delta}; see summary() and label()>"

    @property
    def guarantee(self) -> Guarantee:
        """The worst case of everything that the fit released."""
        return self.privacy_label.worst

    def label(self) -> Label:
        """Return the privacy label."""
        return self.privacy_label

    def draws(self, *, seed: int = 0) -> dict[str, Tensor]:
        """Return the draws that figures are read from: many where they are free, else the released ones."""
        return self.posterior.sample(_MANY if self.posterior.location is not None else None, seed=seed)

    def summary(self, *, level: float = 0.95) -> Summary:
        """Return means, standard deviations and central intervals of every unknown.

        Args:
            level: The probability that an interval holds.
        """
        return summarise(self.draws(), _check.probability("level", level), self.notes)

    def to_arviz(self) -> Any:
        """Return the posterior as ArviZ's InferenceData: one chain, the released draws."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # ArviZ announces its next version once a day
                import arviz
        except ImportError as error:
            raise _check.missing("ArviZ output needs ArviZ", "bayes") from error
        draws = {name: values.numpy()[None] for name, values in self.posterior.sample().items()}
        notes = {"inference_library": "tacita", "method": self.method, "privacy": self.guarantee.claim}
        return arviz.from_dict(posterior=draws, posterior_attrs=notes)
