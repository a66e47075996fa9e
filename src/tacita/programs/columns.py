"""What can be asked of private records: columns, parts by public conditions, and the queries made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, cast

from tacita import _check
from tacita.data.domains import Bool, Category, Domain, Finite, Real
from tacita.posterior.models import Beta, Dirichlet, Model, Normal, beta, dirichlet, normal
from tacita.programs.clamping import Clamped, clamped
from tacita.programs.errors import Note, ProgramError, did_you_mean
from tacita.programs.functions import tried_out
from tacita.programs.handles import Handle, Private, of_another_program
from tacita.programs.queries import Count, Histogram, Mean, PosteriorOfMean, PosteriorOfShares, Query, Sum
from tacita.programs.source import caller

LARGEST_BINS = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class Condition:
    """The records whose value in `column` is at one of `places` among its public labels."""

    column: Column
    places: frozenset[int]

    @property
    def text(self) -> str:
        """As people write it."""
        labels = self.column.labels
        return f"{self.column.name}={'/'.join(str(labels[place]) for place in sorted(self.places))}"


@dataclass(frozen=True, eq=False, repr=False)
class Column(Private):
    """A column, one value for each record, possibly clamped or mapped. `source` and `function` say from what.

    `results` holds what the function makes of each public value that the source can take, where these are few.
    """

    offered: ClassVar[tuple[str, ...]] = ("clamp", "count", "histogram", "map", "mean", "posterior", "sum")
    name: str
    domain: Domain | Clamped
    source: Column | None = None
    function: Callable[[Any], object] | None = None
    results: Mapping[object, float | None] | None = None

    @property
    def description(self) -> str:
        """What it is."""
        return f"the column {self.name!r}"

    @property
    def labels(self) -> tuple[object, ...]:
        """The public values of a truth value or a category."""
        return cast("Finite", self.domain).labels

    def clamp(self, low: float, high: float, step: float | None = None) -> Column:
        """Bound a real column: each value is moved into [low, high].

        Args:
            low: The lower bound, known without the data.
            high: The upper bound.
            step: What sums and means round values to a multiple of; by default a power of ten, at most a fiftieth of
                the width.
        """
        if not isinstance(self.domain, Real | Clamped):
            raise self._misfit("clamp", "only numbers are clamped")
        domain = clamped(self.name, low, high, step)
        return replace(self, domain=domain, span=caller(), source=self, function=None, results=None)

    def map(
        self,
        function: Callable[[Any], object],
        *,
        low: float | None = None,
        high: float | None = None,
        step: float | None = None,
        to: Finite | None = None,
    ) -> Column:
        """Apply a function to each record's value. The result is forced into what is declared: a bound, or a domain.

        Args:
            function: It sees one value: True or False, a label, or a number (NaN if unreadable), and returns a plain
                one: True or False, a label or a number. It is tried beforehand, on public values, and must answer each
                the same every time. At most 1000 possible values are all tried, and records look up their answer.
            low: The least result; smaller ones, results that are not numbers, and exceptions count as this.
            high: The largest result.
            step: The grid the result is rounded to, as for `clamp`.
            to: `Bool()` or `Category(...)` instead of a bound; what does not fit counts as its fallback.
        """
        span = caller()
        if not callable(function):
            raise TypeError(f"function must be callable, got {function!r}.")
        domain: Finite | Clamped
        if isinstance(to, Bool | Category) and low is None and high is None:
            domain = to
        elif to is None and low is not None and high is not None:
            domain = clamped(self.name, low, high, step)
        else:
            raise ProgramError(
                "T005",
                f"the values mapped from {self.name!r} have no declared bound",
                "declare one: .map(function, low=0, high=100, step=1), or .map(function, to=Bool())",
                span=span,
            )
        called = getattr(function, "__name__", "map").replace("<lambda>", "map")
        results = tried_out(function, called, self.domain, domain, span)
        name = f"{called}({self.name})"
        return replace(self, name=name, domain=domain, span=span, source=self, function=function, results=results)

    def count(self) -> Query:
        """How many records are true."""
        if not isinstance(self.domain, Bool):
            raise self._misfit("count", "a count of true records needs a truth value")
        return self._query(Count)

    def sum(self) -> Query:
        """The sum of a clamped column."""
        return self._numbers("sum")._query(Sum)

    def mean(self) -> Query:
        """The sum of a clamped column over the public number of records."""
        column = self._numbers("mean")
        self._need_public_size("mean")
        return column._query(Mean)

    def histogram(self, bins: int | None = None) -> Query:
        """How many records there are of each value, or in each of `bins` (10) equal intervals of a clamped column."""
        column = self._bounded("histogram")
        if isinstance(column.domain, Clamped):
            number = 10 if bins is None else _check.count("bins", bins, low=2, high=LARGEST_BINS)
            return column._query(Histogram, bins=number)
        if bins is not None:
            raise TypeError(f"bins are for clamped numbers, but {self.name!r} is {self.domain}; leave them out.")
        return self._query(Histogram)

    def posterior(self, model: object) -> Query:
        """What is known of the column's distribution after seeing the data, under a model."""
        column = self._bounded("posterior")
        cells = None if isinstance(column.domain, Clamped) else len(self.labels)
        found = _recognised(model, cells)
        self._require_fit(found, cells, written=found is model)
        if not isinstance(found, Normal):
            return column._query(PosteriorOfShares, model=found)
        self._need_public_size("posterior")
        return column._query(PosteriorOfMean, model=found)

    def _query(self, kind: type[Query], **options: Any) -> Query:
        return kind(self.program, self.conditions, caller(), self, **options)

    def _require_fit(self, model: Model, cells: int | None, *, written: bool) -> None:
        """Refuse a model that is not about such a column; one found in Pyro code counts its categories from 0."""
        fitting = f"dirichlet({', '.join('1' * (cells or 0))})"
        if cells is None or isinstance(model, Normal):
            fits = cells is None and isinstance(model, Normal)
        else:
            same = isinstance(model, Beta) == isinstance(self.domain, Bool)
            fits = model.cells == cells and (same or (written and isinstance(model, Beta)))
        if cells is None or isinstance(self.domain, Bool):
            fitting = "normal(0, 10, record_sd=1)" if cells is None else "beta(1, 1)"
        if not fits:
            raise self._error(
                "T007",
                f"{model} does not fit {self.name!r}, which is {self.domain}",
                f"use {fitting if len(fitting) < 40 else f'dirichlet with {cells} numbers'}",
            )

    def _misfit(self, operation: str, why: str) -> ProgramError:
        return self._error(
            "T022",
            f"{self.name!r} is {self.domain} and has no {operation}: {why}",
            "use .histogram() or .posterior(...), or .map(function, low=0, high=1) to make numbers of it",
        )

    def _numbers(self, operation: str) -> Column:
        """Return the clamped column that is summed."""
        column = self._bounded(operation)
        if not isinstance(column.domain, Clamped):
            raise self._misfit(operation, f"a {operation} needs numbers")
        return column

    def _bounded(self, operation: str) -> Column:
        """Return this column, real numbers clamped to the bounds of the schema."""
        if not isinstance(self.domain, Real):
            return self
        if self.domain.bounds is None:
            raise self._unbounded(operation)
        return self.clamp(*self.domain.bounds, step=1.0 if self.domain.whole else None)

    def _unbounded(self, operation: str) -> ProgramError:
        code, why = "T005", "needs bounds: the column can hold any number"
        if operation in ("sum", "mean"):
            code, why = "T004", "has no bound, so no noise can hide one record"
        call = {"sum": "sum()", "mean": "mean()", "histogram": "histogram(bins=10)"}.get(operation, f"{operation}(...)")
        way_out = f"clamp it, to bounds known without the data: {self.span.text or 'column'}.clamp(0, 100).{call}"
        return self._error(code, f"the {operation} of {self.name!r} {why}", way_out)

    def _need_public_size(self, operation: str) -> None:
        if self.conditions or self.program.people is not None:
            raise self._error(
                "T009",
                f"the {operation} of {self.name!r}{self.where_text} divides by a private size",
                f"release .sum() of the column and {'.count() of the part' if self.conditions else 'p.count()'}, "
                "and divide in p.derive",
            )

    def _place(self, value: object) -> int:
        """Return the place of a public value among the labels."""
        if isinstance(value, Handle):
            value._refuse("T016")
        place = cast("Finite", self.domain).read(value)
        if place is None:
            raise ProgramError("T002", f"{self.name!r} has no value {value!r}", did_you_mean(value, self.labels))
        return place


@dataclass(frozen=True, eq=False, repr=False)
class Part(Private):
    """The records that satisfy public conditions. How many they are is private."""

    offered: ClassVar[tuple[str, ...]] = ("column", "count", "partition", "where")

    @property
    def description(self) -> str:
        """What it is."""
        return f"the part{self.where_text}"

    def column(self, name: str) -> Column:
        """Return a column of these records."""
        schema = self.program.schema
        if not isinstance(name, str) or name not in schema:
            note = Note(self.program.span, "the program was made here")
            suggestion = did_you_mean(name, list(schema))
            raise ProgramError("T001", f"the schema has no column {name!r}", suggestion, notes=(note,))
        return Column(self.program, self.conditions, caller(), name, schema[name])

    def where(self, *true: Column, **values: object) -> Part:
        """Keep the records that satisfy conditions.

        Args:
            *true: Columns of truth values, such as mapped ones, that must be true.
            **values: For a column's name, the value or the list of values it must have.
        """
        if not true and not values:
            raise TypeError('where needs a condition, such as where(job="Sales").')
        added: list[Condition] = []
        for column in map(self._labelled, true):
            if not isinstance(column.domain, Bool):
                raise ProgramError(
                    "T003",
                    f"{column.name!r} is {column.domain}, which is neither true nor false",
                    f"say which values: where({column.name}={column.labels[0]!r})",
                )
            added += [*column.conditions, Condition(column, frozenset([0]))]
        for name, wanted in values.items():
            column = self._labelled(self.column(name))
            listed = list(wanted) if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
            added.append(Condition(column, frozenset(map(column._place, listed))))
        return Part(self.program, (*self.conditions, *added), caller())

    def partition(self, column: str | Column) -> Partition:
        """Return the parts by the public labels of a column, as a mapping."""
        by = self._labelled(self.column(column) if isinstance(column, str) else column)
        span, among = caller(), (*self.conditions, *by.conditions)
        conditions = {label: Condition(by, frozenset([i])) for i, label in enumerate(by.labels)}
        return Partition(by, {label: Part(self.program, (*among, c), span) for label, c in conditions.items()})

    def count(self) -> Query:
        """How many records there are."""
        return Count(self.program, self.conditions, caller(), None)

    def _labelled(self, column: object) -> Column:
        """Return a column of this program that has public values."""
        if not isinstance(column, Column):
            raise TypeError(f'where and partition take columns, or where(job="Sales"), got {column!r}.')
        if column.program is not self.program:
            raise of_another_program(column)
        if not isinstance(column.domain, Bool | Category):
            raise ProgramError(
                "T003",
                f"{column.name!r} is {column.domain}: only truth values and categories have public values",
                f'make a truth value of it: where(p.column("{column.name}").map(lambda v: v >= 65, to=Bool()))',
            )
        return column


class Partition(dict[Any, Part]):
    """Parts by public label; a label that does not exist is an error of the program."""

    def __init__(self, column: Column, parts: dict[Any, Part]) -> None:
        super().__init__(parts)
        self._column = column

    def __missing__(self, label: object) -> Part:
        unknown = did_you_mean(label, self._column.labels)
        raise ProgramError("T002", f"{self._column.name!r} has no value {label!r}", unknown)


def _recognised(model: object, cells: int | None) -> Model:
    if isinstance(model, Dirichlet | Normal):
        return model
    if any(model is known for known in (beta, dirichlet, normal)) or not callable(model):
        raise ProgramError(
            "T008",
            f"{getattr(model, '__name__', repr(model))} is not a model",
            "give it its numbers: beta(1, 1), dirichlet(1, 1, 1) or normal(0, 10, record_sd=1)",
        )
    name = getattr(model, "__name__", "the model")
    otherwise = "for any other model, release .histogram(...) and infer from it in p.derive"
    try:
        pyro_model = import_module("tacita.posterior.pyro_model")
    except ImportError as error:
        known = "beta(a, b), dirichlet(a, b, ...) and normal(mean, sd, record_sd=...) need no Pyro"
        raise ProgramError("T008", f"{name} cannot be used: {error}", f"{known}\n{otherwise}") from error
    try:
        found: Model = pyro_model.recognise(model, cells=cells)
    except pyro_model.UnsupportedModel as error:
        raise ProgramError("T008", f"{name} cannot be used: {error.reason}", f"{error.help}\n{otherwise}") from error
    return found
