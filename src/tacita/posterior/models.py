"""Conjugate models: a prior, and the likelihood of one record.

Plain descriptions, with no arithmetic in them, so that a program is checked quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacita import _check

LARGEST_PRIOR = 1e6
LARGEST_NUMBER = 1e12


@dataclass(frozen=True)
class Dirichlet:
    """A Dirichlet prior over the shares of K categories; with two categories it is a Beta prior."""

    alphas: tuple[float, ...]

    @property
    def cells(self) -> int:
        """The number of categories."""
        return len(self.alphas)

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}({', '.join(f'{a:g}' for a in self.alphas)})"


@dataclass(frozen=True)
class Beta(Dirichlet):
    """A Beta prior over the share of records that are true. `alphas` holds (true, false)."""


@dataclass(frozen=True)
class Normal:
    """A normal prior over the mean of normal records whose standard deviation is known."""

    mean: float
    sd: float
    record_sd: float

    def __str__(self) -> str:
        return f"normal({self.mean:g}, {self.sd:g}, record_sd={self.record_sd:g})"


Model = Dirichlet | Normal


def beta(true: float, false: float) -> Beta:
    """Return a Beta prior for the share of records that are true.

    Examples:
        >>> print(beta(1, 1))
        beta(1, 1)
    """
    return Beta((_weight("true", true), _weight("false", false)))


def dirichlet(*alphas: float) -> Dirichlet:
    """Return a Dirichlet prior for the shares of the categories, one number for each.

    Examples:
        >>> dirichlet(1, 1, 1).cells
        3
    """
    if len(alphas) < 2:
        raise ValueError(f"dirichlet needs one number for each of at least two categories, got {len(alphas)}.")
    return Dirichlet(tuple(_weight(f"alphas[{i}]", a) for i, a in enumerate(alphas)))


def normal(mean: float, sd: float, *, record_sd: float) -> Normal:
    """Return a normal prior for the mean of records whose own standard deviation is known.

    Args:
        mean: Where the mean is expected.
        sd: How uncertain that is.
        record_sd: The standard deviation of one record around the mean.
    """
    return Normal(
        _check.in_range("mean", mean, -LARGEST_NUMBER, LARGEST_NUMBER),
        _check.in_range("sd", sd, 1.0 / LARGEST_NUMBER, LARGEST_NUMBER),
        _check.in_range("record_sd", record_sd, 1.0 / LARGEST_NUMBER, LARGEST_NUMBER),
    )


def _weight(name: str, value: object) -> float:
    return _check.in_range(name, value, 1e-6, LARGEST_PRIOR)
