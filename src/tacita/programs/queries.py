"""Queries: what can be released of some records.

A kind of query is one class and one entry of `QUERIES`: which whole numbers it takes from the records, by how much one
record moves them, and what they become once released. It loads numerical libraries only when there are data.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, cast

from tacita.posterior.mechanisms import Statistic
from tacita.programs.handles import Private

if TYPE_CHECKING:
    from tacita.posterior.models import Dirichlet, Model, Normal
    from tacita.posterior.plans import ReleasePlan
    from tacita.posterior.releases import Release
    from tacita.programs.clamping import Clamped
    from tacita.programs.columns import Column
    from tacita.programs.results import Noisy
    from tacita.programs.tables import Table


@dataclass(frozen=True)
class Sensitivity:
    """By how much one record moves a query's whole numbers, in L1: within the part, and into or out of it."""

    stay: int
    cross: int

    @property
    def larger(self) -> int:
        """What the noise is scaled to."""
        return max(self.stay, self.cross)

    def __str__(self) -> str:
        return f"L1 {self.stay}" + (f", {self.cross} in or out" if self.cross else "")


@dataclass(frozen=True, eq=False, repr=False)
class Query(Private):
    """Something that can be released: whole numbers on a public grid, which one record moves by a bounded amount.

    Attributes:
        name: What it is called.
        column: What is asked of; None if the records of a part are counted.
        model: The model of a posterior; None for anything else.
    """

    origin: ClassVar[str] = "the query was made here"
    name: ClassVar[str]
    column: Column | None
    model: Model | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def moves(self) -> tuple[int, int]:
        """By how much a record that stays in the part moves the numbers, in L1, and one that enters or leaves it."""

    @property
    @abstractmethod
    def statistic(self) -> Statistic:
        """What a mechanism may know of the numbers."""

    @abstractmethod
    def exact(self, table: Table) -> tuple[int, ...]:
        """Return the whole numbers without noise. Private."""

    def result(self, plan: ReleasePlan, output: tuple[int, ...]) -> Release | Noisy:
        """Return what released numbers mean, given how they were drawn."""
        from tacita.programs.results import Noisy

        if len(output) < self.statistic.cells:  # the first of two cells determines the other
            output = (output[0], cast("int", self.program.n) - output[0])
        return Noisy(tuple(n * self.scale for n in output), tuple(map(str, self.labels)), plan, self.scale)

    @property
    def labels(self) -> tuple[object, ...]:
        """The cells' public labels: values, or the ends of intervals; empty for a single number."""
        return ()

    @property
    def unit(self) -> Fraction:
        """What one whole number stands for: the step of a sum or a mean, otherwise 1."""
        return Fraction(1)

    @property
    def scale(self) -> float:
        """What one whole number is worth in the result."""
        return float(self.unit)

    @property
    def description(self) -> str:
        """What it is."""
        return f"the {self.label}"

    @property
    def label(self) -> str:
        """What it is, in few words."""
        of = "records" if self.column is None else repr(self.column.name)
        return f"{self.name} of {of}{self.where_text}"

    @property
    def title(self) -> str:
        """What it is, with its model."""
        return self.label if self.model is None else f"{self.label}, {self.model}"

    @property
    def short(self) -> str:
        """What a result is called that was not given a name."""
        return self.label if self.model is None or self.column is None else f"{self.column.name}{self.where_text}"

    @property
    def sensitivity(self) -> Sensitivity:
        """By how much replacing one record can move the answer. Without conditions a record is always in the part.

        Where people come and go, with all their rows: each row enters or leaves.
        """
        stay, cross = self.moves
        if self.rows is not None:
            return Sensitivity(0, self.rows * cross)
        return Sensitivity(stay, cross if self.conditions else 0)

    @property
    def rows(self) -> int | None:
        """How many rows of a person count; None if one record is replaced by another."""
        return None if self.program.people is None else self.program.people.rows

    @property
    def public_size(self) -> int | None:
        """The number of records, unless it is that of a part or of people's rows, which is private."""
        return None if self.conditions else self.program.n

    @property
    def grid(self) -> Clamped:
        """The domain of a clamped column."""
        return cast("Clamped", cast("Column", self.column).domain)


class Count(Query):
    """How many records a part has, or how many values of a column are true."""

    name: ClassVar[str] = "count"

    @property
    def moves(self) -> tuple[int, int]:
        """A column's value may change; the part's size does not while the record stays."""
        return 0 if self.column is None else 1, 1

    @property
    def statistic(self) -> Statistic:
        """A single count."""
        return Statistic(n=self.public_size, step=self.rows or 1, rows=self.rows)

    def exact(self, table: Table) -> tuple[int, ...]:
        """Count the records."""
        return (table.true_records(self),)


@dataclass(frozen=True, eq=False, repr=False)
class Histogram(Query):
    """How many records there are of each value, or in each of `bins` equal intervals of a clamped column."""

    name: ClassVar[str] = "histogram"
    bins: int | None = None

    @property
    def moves(self) -> tuple[int, int]:
        """A record leaves one cell and enters another, unless one number determines both cells."""
        return min(self.statistic.numbers, 2), 1

    @property
    def statistic(self) -> Statistic:
        """The cells."""
        return Statistic(self.bins or len(self.labels), self.public_size, step=self.rows or 1, rows=self.rows)

    @property
    def labels(self) -> tuple[object, ...]:
        """The values, or the intervals."""
        if self.bins is None:
            return cast("Column", self.column).labels
        low, width = self.grid.low, (self.grid.high - self.grid.low) / self.bins
        edges = [low + i * width for i in range(self.bins + 1)]
        return tuple(f"{left:g} to {right:g}" for left, right in pairwise(edges))

    def exact(self, table: Table) -> tuple[int, ...]:
        """Count the records of each cell; of two cells of all records only the first."""
        return table.cell_counts(self)[: self.statistic.numbers]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PosteriorOfShares(Histogram):
    """The posterior of the shares of a column's values, under a Beta or Dirichlet prior."""

    name: ClassVar[str] = "posterior"
    model: Dirichlet

    @property
    def statistic(self) -> Statistic:
        """The cells, with the prior."""
        return replace(super().statistic, prior=self.model)

    def result(self, plan: ReleasePlan, output: tuple[int, ...]) -> Release:
        """Return the noise-aware posterior."""
        from tacita.posterior.noise_aware import cells_posterior
        from tacita.posterior.releases import Release

        posterior = cells_posterior(plan, self.model, output, self.public_size, self.program.n)
        return Release(posterior, output, plan, self.model, self.public_size, self.labels)


class Sum(Query):
    """The sum of a clamped column, in units of its step."""

    name: ClassVar[str] = "sum"

    @property
    def moves(self) -> tuple[int, int]:
        """The width of the range, and the largest value."""
        return self.grid.highest - self.grid.lowest, max(abs(self.grid.lowest), abs(self.grid.highest))

    @property
    def statistic(self) -> Statistic:
        """A single sum."""
        return Statistic(n=self.public_size, step=self.sensitivity.larger, summed=True, rows=self.rows)

    @property
    def unit(self) -> Fraction:
        """The step of the column's grid."""
        return self.grid.step

    def exact(self, table: Table) -> tuple[int, ...]:
        """Sum the records' values in steps."""
        return (table.total_steps(self),)


class Mean(Sum):
    """The sum of a clamped column over the public number of records."""

    name: ClassVar[str] = "mean"

    @property
    def scale(self) -> float:
        """The step over the number of records."""
        return float(self.unit) / cast("int", self.program.n)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PosteriorOfMean(Sum):
    """The posterior of the mean of a clamped column, under a normal prior."""

    name: ClassVar[str] = "posterior"
    model: Normal

    def result(self, plan: ReleasePlan, output: tuple[int, ...]) -> Release:
        """Return the noise-aware posterior."""
        from tacita.posterior.noise_aware import Grid, total_posterior
        from tacita.posterior.releases import Release

        grid = Grid(self.grid.lowest, self.grid.highest, float(self.unit))
        posterior = total_posterior(plan, self.model, output[0], cast("int", self.program.n), grid)
        return Release(posterior, output, plan, self.model, self.public_size)


QUERIES: dict[str, type[Query]] = {
    "count": Count,
    "histogram": Histogram,
    "sum": Sum,
    "mean": Mean,
    "posterior of shares": PosteriorOfShares,
    "posterior of a mean": PosteriorOfMean,
}
