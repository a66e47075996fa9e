"""What can be asked of private records: columns, parts by public conditions, and the queries made of them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from tacita import _check
from tacita.data.domains import Bool, Category, Clamped, Domain, Finite, Real
from tacita.posterior.models import Beta, Dirichlet, Model, Normal, beta, dirichlet, normal
from tacita.programs.errors import Note, ProgramError, did_you_mean
from tacita.programs.handles import Handle, Private, of_another_program
from tacita.programs.source import Span, caller

if TYPE_CHECKING:
    from tacita.programs.composition import Sensitivity
    from tacita.programs.program import Program

LARGEST_UNITS = 10**9  # so that a sum over 10**9 records stays within 64 bits
LARGEST_BINS = 10_000
_MOST_PROBES = 1000
_PLAIN = (bool, str, bytes, numbers.Number, type(None))
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 3.0, 18.0, 40.0, 65.0, 1e3, 1e6, math.nan)


@dataclass(frozen=True, eq=False, repr=False)
class Condition:
    """The records whose value in `column` is at one of `places` among its public labels."""

    column: Column
    places: frozenset[int]

    @property
    def text(self) -> str:
        """As people write it."""
        labels = labels_of(self.column)
        return f"{self.column.name}={'/'.join(str(labels[place]) for place in sorted(self.places))}"


@dataclass(frozen=True, eq=False, repr=False)
class Column(Private):
    """A column, one value for each record, possibly clamped or mapped. `source` and `function` say from what.

    `results` holds what the function makes of each public value that the source can take, where these are few.
    """

    program: Program
    name: str
    domain: Domain
    conditions: tuple[Condition, ...]
    span: Span
    source: Column | None = None
    function: Callable[[Any], object] | None = None
    results: Mapping[object, float | None] | None = None

    @property
    def description(self) -> str:
        """What it is."""
        return f"the column {self.name!r}"

    def clamp(self, low: float, high: float, step: float | None = None) -> Column:
        """Bound a real column: each value is moved into [low, high].

        Sums and means round it to a multiple of `step`: unless given, a power of ten, at most a fiftieth of the width.
        """
        if not isinstance(self.domain, Real | Clamped):
            self._misfit("clamp", "only numbers are clamped")
        return replace(
            self, domain=_grid(self, low, high, step), span=caller(), source=self, function=None, results=None
        )

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
                alike every time; of at most 1000 possible values all are tried, and records look their answer up.
            low: The least result; smaller ones, those that are no number, and exceptions count as this.
            high: The largest result.
            step: The grid the result is rounded to, as for `clamp`.
            to: `Bool()` or `Category(...)` instead of a bound; what does not fit counts as its fallback.
        """
        span = caller()
        if not callable(function):
            raise TypeError(f"function must be callable, got {function!r}.")
        if isinstance(to, Bool | Category) and low is None and high is None:
            return self._mapped(function, to, span)
        if to is not None or low is None or high is None:
            raise ProgramError(
                "T005",
                f"the values mapped from {self.name!r} have no declared bound",
                span,
                "declare one: .map(function, low=0, high=100, step=1), or .map(function, to=Bool())",
            )
        return self._mapped(function, _grid(self, low, high, step), span)

    def count(self) -> Query:
        """How many records are true."""
        if not isinstance(self.domain, Bool):
            self._misfit("count", "a count of true records needs a truth value")
        return self._query("count")

    def sum(self) -> Query:
        """The sum of a clamped column."""
        self._need_bound("sum")
        return self._query("sum")

    def mean(self) -> Query:
        """The sum of a clamped column over the public number of records."""
        self._need_bound("mean")
        self._need_public_size("mean")
        return self._query("mean")

    def histogram(self, bins: int | None = None) -> Query:
        """How many records there are of each value, or in each of `bins` (10) equal intervals of a clamped column."""
        if isinstance(self.domain, Real):
            self._need_clamp("histogram")
        if isinstance(self.domain, Clamped):
            number = 10 if bins is None else _check.count("bins", bins, low=2, high=LARGEST_BINS)
            return self._query("histogram", bins=number)
        if bins is not None:
            raise TypeError(f"bins are for clamped numbers, but {self.name!r} is {self.domain}; leave them out.")
        return self._query("histogram")

    def posterior(self, model: object) -> Query:
        """What is known of the column's distribution after seeing the data, under a model."""
        if isinstance(self.domain, Real):
            self._need_clamp("posterior")
        cells = None if isinstance(self.domain, Clamped) else len(labels_of(self))
        found = _recognised(model, cells)
        if self._fits(found, cells, written=found is model):
            if cells is None:
                self._need_public_size("posterior")
            return self._query("posterior", model=found)
        fitting = f"dirichlet({', '.join('1' * (cells or 0))})"
        if cells is None or isinstance(self.domain, Bool):
            fitting = "normal(0, 10, record_sd=1)" if cells is None else "beta(1, 1)"
        wanted = fitting if len(fitting) < 40 else f"dirichlet with {cells} numbers"
        raise ProgramError(
            "T007",
            f"{found} does not fit {self.name!r}, which is {self.domain}",
            caller(),
            f"use {wanted}",
            (Note(self.span, "the handle was made here"),),
        )

    def _mapped(self, function: Callable[[Any], object], domain: Domain, span: Span) -> Column:
        called = getattr(function, "__name__", "map").replace("<lambda>", "map")
        results = _tried_out(function, called, self.domain, domain, span)
        known = results if len(results) == _size(self.domain) else None
        name = f"{called}({self.name})"
        return replace(self, name=name, domain=domain, span=span, source=self, function=function, results=known)

    def _fits(self, model: Model, cells: int | None, *, written: bool) -> bool:
        """Return whether a model is about such a column; one found in Pyro code counts its categories from 0."""
        if cells is None or isinstance(model, Normal):
            return cells is None and isinstance(model, Normal)
        same = isinstance(model, Beta) == isinstance(self.domain, Bool)
        return model.cells == cells and (same or (written and isinstance(model, Beta)))

    def _query(self, kind: str, *, bins: int | None = None, model: Model | None = None) -> Query:
        return Query(self.program, kind, self, self.conditions, caller(), bins, model)

    def _misfit(self, operation: str, why: str) -> NoReturn:
        raise ProgramError(
            "T022",
            f"{self.name!r} is {self.domain} and has no {operation}: {why}",
            caller(),
            "use .histogram() or .posterior(...), or .map(function, low=0, high=1) to make numbers of it",
            (Note(self.span, "the handle was made here"),),
        )

    def _need_bound(self, operation: str) -> None:
        if isinstance(self.domain, Real):
            raise ProgramError(
                "T004",
                f"the {operation} of {self.name!r} has no bound, so no noise can hide one record",
                caller(),
                f"clamp it, to bounds known without the data: {self.span.text or 'column'}.clamp(0, 100).{operation}()",
                (Note(self.span, "the handle was made here"),),
            )
        if not isinstance(self.domain, Clamped):
            self._misfit(operation, f"a {operation} needs numbers")

    def _need_clamp(self, operation: str) -> NoReturn:
        rest = ".histogram(bins=10)" if operation == "histogram" else f".{operation}(...)"
        raise ProgramError(
            "T005",
            f"the {operation} of {self.name!r} needs bounds: the column can hold any number",
            caller(),
            f"clamp it, to bounds known without the data: {self.span.text or 'column'}.clamp(0, 100){rest}",
            (Note(self.span, "the handle was made here"),),
        )

    def _need_public_size(self, operation: str) -> None:
        if self.conditions:
            where = ", ".join(condition.text for condition in self.conditions)
            raise ProgramError(
                "T009",
                f"the {operation} of {self.name!r} where {where} divides by a private size",
                caller(),
                "release .sum() of the column and .count() of the part, and divide in p.derive",
                (Note(self.span, "the handle was made here"),),
            )


@dataclass(frozen=True, eq=False, repr=False)
class Part(Private):
    """The records that satisfy public conditions. How many they are is private."""

    program: Program
    conditions: tuple[Condition, ...]
    span: Span

    @property
    def description(self) -> str:
        """What it is."""
        return f"the part where {', '.join(condition.text for condition in self.conditions)}"

    def column(self, name: str) -> Column:
        """Return a column of these records."""
        return Column(self.program, name, self._domain(name), self.conditions, caller())

    def where(self, *true: Column, **values: object) -> Part:
        """Keep the records that satisfy conditions.

        Args:
            *true: Columns of truth values, such as mapped ones, that must be true.
            **values: For a column's name, the value or the list of values it must have.
        """
        if not true and not values:
            raise TypeError('where needs a condition, such as where(job="Sales").')
        added: list[Condition] = []
        for column in map(self._truth, true):
            added += [*column.conditions, Condition(column, frozenset([0]))]
        for name, wanted in values.items():
            column = self._labelled(self.column(name))
            listed = list(wanted) if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
            added.append(Condition(column, frozenset(_place(column, value) for value in listed)))
        return Part(self.program, (*self.conditions, *added), caller())

    def partition(self, column: str | Column) -> Partition:
        """Return the parts by the public labels of a column, as a mapping."""
        by = self._labelled(self.column(column) if isinstance(column, str) else self._own(column))
        span = caller()
        conditions = {label: Condition(by, frozenset([i])) for i, label in enumerate(labels_of(by))}
        among = (*self.conditions, *by.conditions)
        return Partition(by, {label: Part(self.program, (*among, c), span) for label, c in conditions.items()})

    def count(self) -> Query:
        """How many records there are."""
        return Query(self.program, "count", None, self.conditions, caller())

    def _domain(self, name: str) -> Domain:
        schema = self.program.schema
        if isinstance(name, str) and name in schema:
            return schema[name]
        raise ProgramError(
            "T001",
            f"the schema has no column {name!r}",
            caller(),
            did_you_mean(name, list(schema)),
            (Note(self.program.span, "the program was made here"),),
        )

    def _own(self, column: object) -> Column:
        if not isinstance(column, Column):
            raise TypeError(f'where and partition take columns, or where(job="Sales"), got {column!r}.')
        if column.program is not self.program:
            raise of_another_program(column)
        return self._labelled(column)

    def _truth(self, column: object) -> Column:
        found = self._own(column)
        if isinstance(found.domain, Bool):
            return found
        raise ProgramError(
            "T003",
            f"{found.name!r} is {found.domain}, which is neither true nor false",
            caller(),
            f"say which values: where({found.name}={labels_of(found)[0]!r})",
        )

    def _labelled(self, column: Column) -> Column:
        if isinstance(column.domain, Bool | Category):
            return column
        raise ProgramError(
            "T003",
            f"{column.name!r} is {column.domain}: only truth values and categories have public values",
            caller(),
            f'make a truth value of it: where(p.column("{column.name}").map(lambda v: v >= 65, to=Bool()))',
        )


class Partition(dict[Any, Part]):
    """Parts by public label; a label that does not exist is an error of the program."""

    def __init__(self, column: Column, parts: dict[Any, Part]) -> None:
        super().__init__(parts)
        self._column = column

    def __missing__(self, label: object) -> Part:
        raise _unknown_value(self._column, label)


@dataclass(frozen=True, eq=False, repr=False)
class Query(Private):
    """Something that can be released: whole numbers on a public grid, which one record moves by a bounded amount.

    Attributes:
        kind: `count`, `histogram`, `posterior`, `sum` or `mean`.
        column: Of which column; None if the records of a part are counted.
        conditions: Of which records; all of them if empty.
        bins: The number of intervals of a clamped column's histogram.
        model: The model of a posterior.
    """

    program: Program
    kind: str
    column: Column | None
    conditions: tuple[Condition, ...]
    span: Span
    bins: int | None = None
    model: Model | None = None

    @property
    def description(self) -> str:
        """What it is."""
        return f"the {self.label}"

    @property
    def label(self) -> str:
        """What it is, shortly."""
        of = "records" if self.column is None else repr(self.column.name)
        return f"{self.kind} of {of}{self._where}"

    @property
    def short(self) -> str:
        """What a result is called that was not given a name."""
        named = self.kind == "posterior" and self.column is not None
        return f"{self.column.name}{self._where}" if named else self.label  # type: ignore[union-attr]

    @property
    def _where(self) -> str:
        return f" where {', '.join(condition.text for condition in self.conditions)}" if self.conditions else ""

    @property
    def metric(self) -> str:
        """How far two answers are apart: by the sum of absolute differences of their whole numbers."""
        return "L1"

    @property
    def sensitivity(self) -> Sensitivity:
        """By how much one record moves the answer: within the part, and into or out of it."""
        from tacita.programs.composition import sensitivity

        return sensitivity(self)

    @property
    def cells(self) -> int:
        """How many values are told apart: the categories of a histogram or a finite posterior, otherwise 1."""
        if self.kind not in ("histogram", "posterior") or isinstance(self.model, Normal) or self.column is None:
            return 1
        return self.bins or len(labels_of(self.column))

    @property
    def numbers(self) -> int:
        """How many whole numbers are released. Of two cells of all records one says everything, as n is public."""
        return 1 if self.cells == 2 and not self.conditions else self.cells

    @property
    def labels(self) -> tuple[object, ...]:
        """The cells' public labels: values, or the ends of intervals; empty for a single number."""
        if self.cells == 1 or self.column is None:
            return ()
        domain = self.column.domain
        if not isinstance(domain, Clamped):
            return labels_of(self.column)
        width = (domain.high - domain.low) / self.cells
        edges = [domain.low + i * width for i in range(self.cells + 1)]
        return tuple(f"{low:g} to {high:g}" for low, high in pairwise(edges))

    @property
    def unit(self) -> Fraction:
        """What one whole number stands for: the step of a sum or a mean, otherwise 1."""
        summed = self.cells == 1 and self.column is not None and isinstance(self.column.domain, Clamped)
        return self.column.domain.step if summed else Fraction(1)  # type: ignore[union-attr]


def labels_of(column: Column) -> tuple[object, ...]:
    """Return the public values of a truth value or a category."""
    return _finite(column).labels


def _finite(column: Column) -> Finite:
    if not isinstance(column.domain, Bool | Category):
        raise TypeError(f"{column.name!r} has no labels: it is {column.domain}.")
    return column.domain


def _size(domain: Domain) -> int | None:
    """Return how many values there are; None of real numbers."""
    if isinstance(domain, Clamped):
        return domain.highest - domain.lowest + 1
    return None if isinstance(domain, Real) else len(domain.labels)


def _probes(domain: Domain) -> tuple[object, ...]:
    """Return public values to try a function on, before any data are read: all of them where they are few."""
    if isinstance(domain, Bool | Category):
        return domain.labels[:_MOST_PROBES]
    if isinstance(domain, Real):
        return _NUMBERS
    steps = range(domain.lowest, domain.highest + 1)
    if len(steps) > _MOST_PROBES:
        steps = steps[:: (len(steps) - 1) // 9]
    return tuple(step * float(domain.step) for step in steps)


def converted(domain: Domain, result: object) -> float | None:
    """Return what a function made of a value, as a label's place or a number; None if it is none of a domain's labels.

    Raises:
        TypeError: If it is nothing plain, such as a function that was not called, or a handle.
    """
    if not isinstance(result, Handle) and getattr(result, "shape", None) == ():
        result = result.item()  # type: ignore[attr-defined]
    if not isinstance(result, _PLAIN):
        raise TypeError(f"it returns a {type(result).__name__}, which is no plain value")
    if isinstance(domain, Bool):
        if isinstance(result, str | bytes):
            raise TypeError(f"it returns a {type(result).__name__}, which is neither true nor false")
        return 0 if result else 1
    return domain.index(result) if isinstance(domain, Category) else float(result)  # type: ignore[arg-type]


def _tried_out(
    function: Callable[[Any], object], called: str, domain: Domain, to: Domain, span: Span
) -> dict[object, float | None]:
    """Return what a function makes of public values, tried three times, to and fro.

    One that fails on a public label, or on all numbers tried, is refused: records would silently be fallbacks. So is
    one that answers a value differently from time to time: a record's value would depend on other records.
    """
    probes = _probes(domain)

    def answer(value: object) -> object:
        result = function(value)
        if isinstance(result, Handle):
            way_out = "return a plain value: a handle has none before the program runs"
            note = (Note(result.span, "the handle was made here"),)
            raise ProgramError("T029", f"{called} returns {result!r}", span, way_out, note)
        return result

    results, failed = _answers(answer, probes, to)
    for order in (probes[::-1], probes):
        again, _ = _answers(answer, order, to)
        for value in probes:
            if again[value] != results[value] and not (_is_nan(again[value]) and _is_nan(results[value])):
                raise ProgramError(
                    "T030",
                    f"{called} answers {value!r} differently from time to time",
                    span,
                    "make it a function of its argument alone: what it keeps of one record would change another's",
                )
    if failed and (isinstance(domain, Bool | Category) or len(failed) == len(probes)):
        value, reason = next(iter(failed.items()))
        every = "every value that was tried, such as " if len(failed) == len(probes) else ""
        raise ProgramError(
            "T029",
            f"{called} fails on {every}{value!r}: {reason}",
            span,
            "correct it: records on which it fails count as the lower bound or the fallback, in silence",
        )
    return results


def _answers(
    function: Callable[[Any], object], values: tuple[object, ...], to: Domain
) -> tuple[dict[object, float | None], dict[object, str]]:
    results: dict[object, float | None] = {}
    failed = {}
    for value in values:
        try:
            results[value] = converted(to, function(value))
        except ProgramError:
            raise
        except (Exception, SystemExit) as error:
            results[value] = None
            failed[value] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return results, failed


def _is_nan(result: float | None) -> bool:
    return result is not None and math.isnan(result)


def _place(column: Column, value: object) -> int:
    if isinstance(value, Handle):
        value._refuse("T016")
    place = _finite(column).index(value)
    if place is None:
        raise _unknown_value(column, value)
    return place


def _unknown_value(column: Column, value: object) -> ProgramError:
    known = did_you_mean(value, labels_of(column))
    return ProgramError("T002", f"{column.name!r} has no value {value!r}", caller(), known)


def _recognised(model: object, cells: int | None) -> Model:
    if isinstance(model, Dirichlet | Normal):
        return model
    if any(model is known for known in (beta, dirichlet, normal)) or not callable(model):
        raise ProgramError(
            "T008",
            f"{getattr(model, '__name__', repr(model))} is not a model",
            caller(),
            "give it its numbers: beta(1, 1), dirichlet(1, 1, 1) or normal(0, 10, record_sd=1)",
        )
    try:
        found: Model = import_module("tacita.posterior.pyro_model").recognise(model, cells=cells)
    except (ValueError, ImportError) as error:
        name = getattr(model, "__name__", "the model")
        reason, _, rest = " ".join(str(error).split()).partition(". ")
        known = (
            "supported are beta(a, b), dirichlet(a, b, ...), normal(mean, sd, record_sd=...) and Pyro models of them"
        )
        way_out = f"{rest or known}\nfor any other model, release .histogram(...) and infer from it in p.derive"
        raise ProgramError("T008", f"{name} cannot be used: {reason.rstrip('.')}", caller(), way_out) from error
    return found


def _fitting_step(low: float, high: float) -> float:
    """Return the largest power of ten that both bounds are multiples of, at most a fiftieth of the width."""
    if not -1e300 < low < high < 1e300:
        return 1.0  # what is wrong is said elsewhere
    power = math.floor(math.log10((high - low) / 50.0) + 1e-9)
    ends = [Fraction(repr(low)), Fraction(repr(high))]
    for down in range(20):
        step = Fraction(10) ** (power - down)
        if all((end / step).denominator == 1 for end in ends):
            return float(step)
    return float(Fraction(10) ** power)


def _grid(column: Column, low: object, high: object, step: object) -> Clamped:
    bounds = {"low": _check.number("low", low), "high": _check.number("high", high)}
    bounds["step"] = _fitting_step(**bounds) if step is None else _check.number("step", step)
    if not all(abs(value) < 1e300 for value in bounds.values()) or not bounds["step"] > 0:
        listed = ", ".join(f"{name}={value:g}" for name, value in bounds.items())
        raise ProgramError("T006", f"bounds must be finite and the step positive, got {listed}", caller())
    if not bounds["low"] < bounds["high"]:
        raise ProgramError(
            "T006", f"low must be below high, got low={bounds['low']:g} and high={bounds['high']:g}", caller()
        )
    exact = {name: Fraction(repr(value)) for name, value in bounds.items()}
    units = {name: exact[name] / exact["step"] for name in ("low", "high")}
    for name, unit in units.items():
        if unit.denominator != 1:
            below = unit.numerator // unit.denominator
            near = [f"{float(count * exact['step']):g}" for count in (below, below + 1)]
            raise ProgramError(
                "T006",
                f"{name}={bounds[name]:g} of {column.name!r} is not a whole multiple of step={bounds['step']:g}",
                caller(),
                f"the nearest ones are {near[0]} and {near[1]}",
            )
        if abs(unit) > LARGEST_UNITS:
            raise ProgramError(
                "T006",
                f"{name}={bounds[name]:g} is more than {LARGEST_UNITS:g} steps of {bounds['step']:g} from zero",
                caller(),
                "take a larger step",
            )
    return Clamped(int(units["low"]), int(units["high"]), exact["step"])
