"""A private program: what will be released, checked before any data are read."""

from __future__ import annotations

import inspect
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from tacita import _check
from tacita.data.domains import Bool, Category, Domain, Real
from tacita.guarantee import Guarantee
from tacita.posterior.mechanisms import Mechanism
from tacita.posterior.mechanisms.protocol import people_refusal
from tacita.programs.columns import Column, Part, Partition
from tacita.programs.composition import Cost, charge, exact, guarantee_of, text, total
from tacita.programs.errors import Note, ProgramError
from tacita.programs.handles import Derived, Handle, PlannedRelease, Released, handle_in, of_another_program
from tacita.programs.people import People, declared
from tacita.programs.queries import Query
from tacita.programs.source import Span, assigned_name, caller

if TYPE_CHECKING:
    from tacita.ledger import Ledger
    from tacita.programs.results import Results

LARGEST_BUDGET = 1e6
checking: list[str] = []  # files that are being executed to be checked; no thread may read data meanwhile


class Program:
    """The releases of one table within one budget, where one record may be replaced by another.

    Where a person may have several rows, name the column of ids: then a person comes or goes with all rows.

    Args:
        schema: What each column holds, by name: `Bool()`, `Category(...)` or `Real()`.
        n: The number of records. It is public. With `person` it is private: leave it out.
        epsilon: The budget of all releases together.
        delta: Their failure probability together.
        person: The column of ids, by which people are told apart; not a column of the schema.
        rows_per_person: How many rows of a person count, in all releases together; with more, some by chance.
        missing_person: What a row without an id is: refused (`refuse`), or, by your word, the only row of a person of
            its own (`own`).

    Examples:
        >>> p = Program(schema=dict(smoker=Bool()), n=100, epsilon=1.0)
        >>> p.column("smoker").count()
        <private: the count of 'smoker'>
    """

    def __init__(
        self,
        *,
        schema: Mapping[str, Domain],
        n: int | None = None,
        epsilon: float,
        delta: float = 0.0,
        person: str | None = None,
        rows_per_person: int | None = None,
        missing_person: str = "refuse",
    ) -> None:
        for name, domain in dict(schema).items():
            if not isinstance(name, str) or not isinstance(domain, Bool | Category | Real):
                raise TypeError(f"schema[{name!r}] must be Bool(), Category(...) or Real(), got {domain!r}.")
        if not schema:
            raise ValueError("schema must name at least one column, such as dict(smoker=Bool()).")
        self.schema: Mapping[str, Domain] = MappingProxyType(dict(schema))
        self.people = declared(person, rows_per_person, missing_person, self.schema)
        self.n = _size(n, self.people)
        self.epsilon = _check.in_range("epsilon", epsilon, 1e-4, LARGEST_BUDGET)
        self.delta = _check.in_range("delta", delta, 0.0, 0.5)
        self.span = caller()
        self._results: dict[str, Released] = {}

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """What is released, in order."""
        return tuple(result for result in self._results.values() if isinstance(result, PlannedRelease))

    @property
    def derived(self) -> tuple[Derived, ...]:
        """What is calculated from releases, in order."""
        return tuple(result for result in self._results.values() if isinstance(result, Derived))

    def column(self, name: str) -> Column:
        """Return a column of all records."""
        return self._everyone.column(name)

    def where(self, *true: Column, **values: object) -> Part:
        """Return the records that satisfy public conditions, such as `where(job="Sales", sex=["F", "X"])`."""
        return self._everyone.where(*true, **values)

    def partition(self, column: str | Column) -> Partition:
        """Return the parts by the public labels of a column, as a mapping."""
        return self._everyone.partition(column)

    def count(self) -> Query:
        """How many rows people have, for programs where a person may have several; otherwise it is n."""
        if self.n is not None:
            raise ValueError(f"the number of records is public: n={self.n}; count a part, p.where(...).count().")
        return self._everyone.count()

    def release(self, query: Query, mechanism: Mechanism, name: str | None = None) -> PlannedRelease:
        """Make a query public through a mechanism.

        Args:
            query: What is released.
            mechanism: `geometric`, `gaussian`, `laplace`, `exponential` or `best`, with its part of the budget.
            name: What it is called in the results; the variable it is assigned to, if there is one.
        """
        span = caller()
        _require_releasable(query, self)
        if not isinstance(mechanism, Mechanism) or isinstance(mechanism, type):
            called = getattr(mechanism, "__name__", repr(mechanism)).lower()
            raise TypeError(f"mechanism must be such as geometric(epsilon=0.5), got {called}.")
        if problem := mechanism.refusal(query.statistic) or people_refusal(mechanism, query.statistic):
            raise query._error("T011", f"{mechanism.name} cannot release {query.description}", problem, span)
        chosen = self._name(name, span, query.short)
        made = PlannedRelease(self, chosen, span, query, mechanism, charge(query, mechanism))
        self._results[chosen] = made
        return made

    def derive(self, function: Callable[..., object], *released: Released, name: str | None = None) -> Derived:
        """Calculate something from released results, when the program runs. It costs nothing.

        Args:
            function: It gets the results of `released`, in order.
            *released: Results of `release` and `derive`.
            name: What it is called in the results; the variable it is assigned to, if there is one.
        """
        span = caller()
        if not callable(function):
            raise TypeError(f"function must be callable, got {function!r}.")
        for result in released:
            if isinstance(result, Handle) and not isinstance(result, Released):
                raise ProgramError(
                    "T010", f"{result!r} was not released", "release it first: p.release(...)", span=span
                )
            if not isinstance(result, Released):
                raise TypeError(f"derive takes released results after the function, got {result!r}.")
            if result.program is not self:
                raise of_another_program(result)
        _require_arguments(function, len(released))
        if (used := handle_in(function)) is not None:
            raise used._error(
                "T021",
                f"the function uses {used!r} by itself, which has no value when it is called",
                "give it as an argument: p.derive(lambda result: ..., released)",
                span,
            )
        chosen = self._name(name, span, f"from {', '.join(result.name for result in released)}")
        made = Derived(self, chosen, span, function, released)
        self._results[chosen] = made
        return made

    def check(self) -> Cost:
        """Return what the program costs, or raise ProgramError if it is more than the budget. Needs no data.

        What the releases cost is added up. If that is more than the budget and there is a delta, their whole curves
        are composed, which is what `guarantee` says.
        """
        if not self.releases:
            raise ProgramError(
                "T025", "the program releases nothing", "add p.release(query, geometric(epsilon=0.5))", span=self.span
            )
        spent = total(self.releases)
        if spent.epsilon > exact(self.epsilon) and 0 < spent.delta <= exact(self.delta):
            spent = Cost(exact(guarantee_of(self.releases).epsilon), spent.delta)
        if spent.epsilon > exact(self.epsilon):
            raise _exceeded(self, "epsilon")
        if spent.delta > exact(self.delta):
            raise _exceeded(self, "delta")
        return spent

    def guarantee(self) -> Guarantee:
        """Return what the whole program promises to every record or person, whatever the data. Needs no data.

        Raises:
            ProgramError: If the program releases nothing, or exceeds its budget.

        Guarantee:
            Worst case, for replacing one record of a public number of records: (epsilon, delta)-differential privacy
            of all releases together, by the composition of their curves over where the record was and where it goes.
            With `person`, for adding or removing a person with all rows, of whom at most `rows_per_person` count,
            over where these rows lie. At most what `check` returns.
        """
        self.check()
        return guarantee_of(self.releases)

    def run(
        self,
        data: str | os.PathLike[str] | Mapping[str, Sequence[Any]],
        *,
        header: Sequence[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        name: str = "program",
    ) -> Results:
        """Check the program, plan every release, read the data, charge a ledger, and release.

        The whole program is charged before any noise is drawn, and what is derived sees released results only.

        Args:
            data: A CSV file with a header, or a mapping from column names to values.
            header: The names of a file's columns, if it has no header line.
            ledger: A ledger for replace_one, with `person` for add_remove and the unit person, or its file or URL, that
                is charged for the whole program before noise is drawn. A file that is missing is created.
            name: What the program is called in the ledger.

        Raises:
            ProgramError: If the program is ill-typed or exceeds its own budget. No data are read then.
            BudgetExceeded: If it exceeds the ledger's. Nothing is released then.
            ValueError: If the data do not fit the schema, are not n records, or an id is missing.

        Guarantee:
            That of `guarantee()`, whatever the records hold.
        """
        refuse_while_checked()
        from tacita.posterior.plans import charge as charge_ledger
        from tacita.posterior.plans import plan_release
        from tacita.programs.results import Results, calculated
        from tacita.programs.tables import exact_numbers, read

        promised = self.guarantee()
        plans = [plan_release(release.mechanism, release.query.statistic) for release in self.releases]
        for plan in plans:
            plan.prepare()
        table = read(self, data, header=header)
        numbers = [exact_numbers(release.query, table) for release in self.releases]
        spent = {"pure": promised.epsilon, "delta": promised.delta, "curve": promised.profile}
        who = f"{self.n} records" if self.people is None else f"at most {self.people.rows} rows of a person"
        about = {"neighbours": promised.neighbours, "unit": promised.unit}
        charge_ledger(ledger, name, f"{len(plans)} releases of {who}", spent, **about)
        values: dict[str, Any] = {}
        for release, plan, number in zip(self.releases, plans, numbers, strict=True):
            values[release.name] = release.query.result(plan, plan.draw(number))
        for derived in self.derived:
            values[derived.name] = calculated(derived.function, [values[result.name] for result in derived.inputs])
        return Results(MappingProxyType(values), promised, ledger is not None)

    @property
    def _everyone(self) -> Part:
        return Part(self, (), self.span)

    def _name(self, given: str | None, span: Span, otherwise: str) -> str:
        if given is not None:
            if not isinstance(given, str) or not given:
                raise TypeError(f"name must be a text, got {given!r}.")
            if given in self._results:
                note = Note(self._results[given].span, "first used here")
                raise ProgramError(
                    "T014", f"two results are named {given!r}", "choose another name", span=span, notes=(note,)
                )
            return given
        assigned = assigned_name(span)
        if assigned and assigned not in self._results:
            return assigned
        places = (otherwise, *(f"{otherwise} ({i})" for i in range(2, len(self._results) + 3)))
        return next(place for place in places if place not in self._results)


def _size(n: object, people: People | None) -> int | None:
    if people is None and n is None:
        raise ValueError("n, the public number of records, must be declared; or whose rows they are, by person.")
    if people is not None and n is not None:
        raise ValueError("n must be left out: how many rows people have is private, and is not needed.")
    return None if people is not None else _check.count("n", n)


def _require_arguments(function: Callable[..., object], number: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as a class or a function of C: nothing is known
        return
    try:
        signature.bind(*range(number))
    except TypeError as error:
        raise TypeError(f"the function given to derive does not take {number} results: {error}.") from None


def refuse_while_checked() -> None:
    """Raise if a program's file is being checked: no data may be read then."""
    if checking:
        raise ProgramError(
            "T026",
            "the program reads its data while it is checked",
            'put it under `if __name__ == "__main__":`, or leave it to the command: tacita run FILE --data DATA',
        )


def _require_releasable(query: object, program: Program) -> None:
    if isinstance(query, Released):
        raise query._error("T010", f"{query.name!r} is released already", "use the result in p.derive")
    if isinstance(query, Column) and isinstance(query.domain, Real) and query.domain.bounds is None:
        raise query._unbounded("release")
    if isinstance(query, Column | Part):
        raise query._error(
            "T010",
            f"{query.description} stands for records, and records are never released",
            "ask for something about all of them: .count(), .histogram(), .posterior(...), .sum() or .mean()",
        )
    if not isinstance(query, Query):
        raise TypeError(f'query must be such as p.column("age").clamp(0, 100).mean(), got {query!r}.')
    if query.program is not program:
        raise of_another_program(query)


def _exceeded(program: Program, what: str) -> ProgramError:
    budget, releases = exact(getattr(program, what)), program.releases

    def spent(count: int) -> Fraction:
        return cast("Fraction", getattr(total(releases[:count]), what))

    first = bisect_left(range(1, len(releases) + 1), True, key=lambda count: spent(count) > budget)
    places: dict[Span, list[PlannedRelease]] = {}
    for release in releases:
        places.setdefault(release.span, []).append(release)
    labels = {span: _cost_label(group, what) for span, group in places.items()}
    primary, together, left = releases[first].span, spent(len(releases)), budget - spent(len(releases) - 1)
    ways = [f"multiply every {what} by {text(budget / together, 4, math.floor)}"] if budget else []
    if left > 0 and (what == "delta" or left >= exact(1e-4)):
        fitting = text(left, 4, math.floor)
        ways.append(f"or give {releases[-1].name!r} {what}={fitting}, which is what the others leave")
    ways.append(f"or allow the program {what}={text(together)}")
    if not budget:
        ways = [f"give the program a {what}, such as Program(..., {what}=1e-6), or use mechanisms without one"]
    return ProgramError(
        "T012",
        f"the releases cost {what} {text(together)} together, more than the budget of {text(budget)}",
        "\n".join(ways),
        span=primary,
        notes=tuple(Note(span, label) for span, label in labels.items() if span != primary),
        label=labels[primary],
    )


def _cost_label(group: list[PlannedRelease], what: str) -> str:
    costs = [getattr(release.charge.largest, what) for release in group]
    if len(group) == 1:
        return f"costs {what} {text(costs[0])}"
    return f"{len(group)} releases, each costs {what} up to {text(max(costs))}"
