"""Queries: what can be released of some records, and the measures that say what it is.

A measure is one class and one entry of `MEASURES`: which whole numbers it takes from the records, by how much one
record moves them, and what they become once released. It loads numerical libraries only when there are data.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from tacita.posterior.mechanisms import Statistic
from tacita.programs.clamping import Clamped
from tacita.programs.handles import Private

if TYPE_CHECKING:
    from tacita.posterior.models import Dirichlet, Model, Normal
    from tacita.posterior.plans import ReleasePlan
    from tacita.posterior.releases import Release
    from tacita.programs.columns import Column, Condition
    from tacita.programs.program import Program
    from tacita.programs.results import Noisy
    from tacita.programs.source import Span
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
        measure: What is asked.
        column: Of which column; None if the records of a part are counted.
        conditions: Of which records; all of them if empty.
    """

    program: Program
    measure: Measure
    column: Column | None
    conditions: tuple[Condition, ...]
    span: Span

    @property
    def description(self) -> str:
        """What it is."""
        return f"the {self.label}"

    @property
    def label(self) -> str:
        """What it is, in few words."""
        of = "records" if self.column is None else repr(self.column.name)
        return f"{self.measure.name} of {of}{self._where}"

    @property
    def short(self) -> str:
        """What a result is called that was not given a name."""
        return f"{self.column.name}{self._where}" if self.model is not None and self.column is not None else self.label

    @property
    def _where(self) -> str:
        return f" where {', '.join(condition.text for condition in self.conditions)}" if self.conditions else ""

    @property
    def model(self) -> Model | None:
        """The model of a posterior."""
        return self.measure.model

    @property
    def sensitivity(self) -> Sensitivity:
        """By how much replacing one record can move the answer. Without conditions a record is always in the part."""
        return Sensitivity(self.measure.stay(self), self.measure.cross(self) if self.conditions else 0)

    @property
    def public_size(self) -> int | None:
        """The number of records, unless it is that of a part, which is private."""
        return None if self.conditions else self.program.n

    @property
    def statistic(self) -> Statistic:
        """What a mechanism may know of the numbers."""
        return self.measure.statistic(self)

    @property
    def cells(self) -> int:
        """How many values are distinguished: the categories of a histogram or a finite posterior, otherwise 1."""
        return self.statistic.cells

    @property
    def numbers(self) -> int:
        """How many whole numbers are released. The first of two cells determines the other, as n is public."""
        return self.statistic.numbers

    @property
    def labels(self) -> tuple[object, ...]:
        """The cells' public labels: values, or the ends of intervals; empty for a single number."""
        return self.measure.labels(self)

    @property
    def unit(self) -> Fraction:
        """What one whole number stands for: the step of a sum or a mean, otherwise 1."""
        return self.measure.unit(self)


@runtime_checkable
class Measure(Protocol):
    """What is asked of a column, or of the records of a part."""

    name: ClassVar[str]

    @property
    def model(self) -> Model | None:
        """The model of a posterior; None for anything else."""
        return None

    def stay(self, query: Query) -> int:
        """Return by how much a record that stays in the part moves the numbers, in L1."""

    def cross(self, query: Query) -> int:
        """Return by how much a record that enters or leaves the part moves the numbers, in L1."""

    def statistic(self, query: Query) -> Statistic:
        """Return what a mechanism may know of the numbers."""

    def labels(self, query: Query) -> tuple[object, ...]:
        """Return the public label of each number; nothing for a single one."""
        return ()

    def unit(self, query: Query) -> Fraction:
        """Return what one whole number stands for."""
        return Fraction(1)

    def exact(self, query: Query, table: Table) -> tuple[int, ...]:
        """Return the whole numbers without noise. Private."""

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Release | Noisy:
        """Return what the released numbers mean.

        Args:
            query: What was asked.
            plan: How the numbers were drawn.
            output: The numbers.
        """


@dataclass(frozen=True)
class Count(Measure):
    """How many records a part has, or how many values of a column are true."""

    name: ClassVar[str] = "count"

    def stay(self, query: Query) -> int:
        """Return 1 if a column's value may change; the part's size does not while the record stays."""
        return 0 if query.column is None else 1

    def cross(self, query: Query) -> int:
        """Return 1."""
        return 1

    def statistic(self, query: Query) -> Statistic:
        """Return a single count."""
        return Statistic(n=query.public_size)

    def exact(self, query: Query, table: Table) -> tuple[int, ...]:
        """Count the records."""
        from tacita.programs.tables import true_records

        return (true_records(query, table),)

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Noisy:
        """Return the noisy count."""
        return _noisy(plan, output)


@dataclass(frozen=True)
class Histogram(Measure):
    """How many records there are of each value, or in each of `bins` equal intervals of a clamped column."""

    name: ClassVar[str] = "histogram"
    bins: int | None = None

    def stay(self, query: Query) -> int:
        """Return 2, as a record leaves one cell and enters another; 1 if one number determines both cells."""
        return query.statistic.changed

    def cross(self, query: Query) -> int:
        """Return 1."""
        return 1

    def statistic(self, query: Query) -> Statistic:
        """Return the cells."""
        return Statistic(self.bins or len(_column(query).labels), query.public_size)

    def labels(self, query: Query) -> tuple[object, ...]:
        """Return the values, or the intervals."""
        if self.bins is None:
            return _column(query).labels
        domain = _clamped(query)
        width = (domain.high - domain.low) / self.bins
        edges = [domain.low + i * width for i in range(self.bins + 1)]
        return tuple(f"{low:g} to {high:g}" for low, high in pairwise(edges))

    def exact(self, query: Query, table: Table) -> tuple[int, ...]:
        """Count the records of each cell; of two cells of all records only the first."""
        from tacita.programs.tables import cell_counts

        return cell_counts(query, table)[: query.numbers]

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Release | Noisy:
        """Return the noisy counts."""
        whole = (output[0], query.program.n - output[0]) if len(output) < query.cells else output
        return _noisy(plan, whole, tuple(map(str, query.labels)))


@dataclass(frozen=True, kw_only=True)
class PosteriorOfShares(Histogram):
    """The posterior of the shares of a column's values, under a Beta or Dirichlet prior."""

    name: ClassVar[str] = "posterior"
    prior: Dirichlet

    @property
    def model(self) -> Dirichlet:
        """The prior."""
        return self.prior

    def statistic(self, query: Query) -> Statistic:
        """Return the cells, with the prior."""
        return Statistic(len(_column(query).labels), query.public_size, prior=self.prior)

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Release:
        """Return the noise-aware posterior."""
        from tacita.posterior.noise_aware import cells_posterior
        from tacita.posterior.releases import Release

        posterior = cells_posterior(plan, self.prior, output, query.public_size, query.program.n)
        return Release(posterior, output, plan, self.prior, query.public_size, query.labels)


@dataclass(frozen=True)
class Sum(Measure):
    """The sum of a clamped column, in units of its step."""

    name: ClassVar[str] = "sum"

    def stay(self, query: Query) -> int:
        """Return the width of the range."""
        return _clamped(query).highest - _clamped(query).lowest

    def cross(self, query: Query) -> int:
        """Return the largest value."""
        return max(abs(_clamped(query).lowest), abs(_clamped(query).highest))

    def statistic(self, query: Query) -> Statistic:
        """Return a single sum."""
        return Statistic(n=query.public_size, step=query.sensitivity.larger, summed=True)

    def unit(self, query: Query) -> Fraction:
        """Return the step of the column's grid."""
        return _clamped(query).step

    def exact(self, query: Query, table: Table) -> tuple[int, ...]:
        """Sum the records' values in steps."""
        from tacita.programs.tables import total_steps

        return (total_steps(query, table),)

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Release | Noisy:
        """Return the noisy sum."""
        return _noisy(plan, output, unit=float(query.unit))


@dataclass(frozen=True)
class Mean(Sum):
    """The sum of a clamped column over the public number of records."""

    name: ClassVar[str] = "mean"

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Noisy:
        """Return the noisy mean."""
        return _noisy(plan, output, unit=float(query.unit) / query.program.n)


@dataclass(frozen=True, kw_only=True)
class PosteriorOfMean(Sum):
    """The posterior of the mean of a clamped column, under a normal prior."""

    name: ClassVar[str] = "posterior"
    prior: Normal

    @property
    def model(self) -> Normal:
        """The prior."""
        return self.prior

    def result(self, query: Query, plan: ReleasePlan, output: tuple[int, ...]) -> Release:
        """Return the noise-aware posterior."""
        from tacita.posterior.noise_aware import Grid, total_posterior
        from tacita.posterior.releases import Release

        domain = _clamped(query)
        grid = Grid(domain.lowest, domain.highest, float(domain.step))
        posterior = total_posterior(plan, self.prior, output[0], query.program.n, grid)
        return Release(posterior, output, plan, self.prior, query.public_size)


MEASURES: dict[str, type[Measure]] = {
    "count": Count,
    "histogram": Histogram,
    "sum": Sum,
    "mean": Mean,
    "posterior of shares": PosteriorOfShares,
    "posterior of a mean": PosteriorOfMean,
}


def _column(query: Query) -> Column:
    if query.column is None:
        raise TypeError(f"the {query.measure.name} of records needs a column")
    return query.column


def _clamped(query: Query) -> Clamped:
    domain = _column(query).domain
    if not isinstance(domain, Clamped):
        raise TypeError(f"the {query.measure.name} needs a clamped column, this is {domain}")
    return domain


def _noisy(plan: ReleasePlan, output: tuple[int, ...], labels: tuple[str, ...] = (), unit: float = 1.0) -> Noisy:
    from tacita.programs.results import Noisy

    return Noisy(tuple(number * unit for number in output), labels, plan, unit)
