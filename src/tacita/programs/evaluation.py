"""Run a checked program on data: plan, read, charge, draw, and only then calculate from what was released.

Everything is planned before the data are read, the whole program is charged before any noise is drawn, and what is
calculated afterwards sees released results only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita.data.domains import Clamped
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.ledger import Ledger
from tacita.posterior.models import Dirichlet, Normal
from tacita.posterior.noise_aware import Grid, cells_posterior, total_posterior
from tacita.posterior.plans import Plan, cells_plan, draw, ledger_at, number_plan, sum_plan
from tacita.posterior.releases import Release, made
from tacita.programs import tables
from tacita.programs.composition import sensitivity

if TYPE_CHECKING:
    from tacita.programs.columns import Query
    from tacita.programs.composition import Cost
    from tacita.programs.handles import Derived, PlannedRelease
    from tacita.programs.program import Program


@dataclass(frozen=True, repr=False)
class Noisy:
    """Released numbers: counts, sums or a mean, with noise whose distribution is known.

    Attributes:
        values: The numbers, in the query's unit.
        labels: What each number is about; empty for a single one.
        plan: How they were made.
        unit: What one step of the noise is worth.
    """

    values: tuple[float, ...]
    labels: tuple[str, ...]
    plan: Plan
    unit: float

    @property
    def value(self) -> float:
        """The number, if there is only one."""
        if len(self.values) != 1:
            raise ValueError(f"There are {len(self.values)} numbers; use values.")
        return self.values[0]

    @property
    def sd(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.plan.source.sd * self.unit

    def interval(self, level: float = 0.95) -> tuple[tuple[float, float], ...]:
        """Return, for each number, where the one without noise lies with at least this probability."""
        half = self.plan.source.half_width(level) * self.unit
        return tuple((value - half, value + half) for value in self.values)

    def __repr__(self) -> str:
        return f"<Noisy: {self}>"

    def __str__(self) -> str:
        parts = [
            f"{v:.6g} ({low:.6g} to {high:.6g})" for v, (low, high) in zip(self.values, self.interval(), strict=True)
        ]
        named = [f"{label}: {part}" for label, part in zip(self.labels, parts, strict=True)] if self.labels else parts
        return f"{', '.join(named)}; 95% intervals of the noise; {self.plan.used}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "values": list(self.values),
            "labels": list(self.labels),
            "sd": self.sd,
            "interval_95": [list(ends) for ends in self.interval(0.95)],
            "mechanism": str(self.plan.used),
            "certificate": self.plan.certificate.to_dict(),
        }


@dataclass(frozen=True)
class Failed:
    """A calculation on released results that raised. The releases it was made from are not lost."""

    reason: str

    def __str__(self) -> str:
        return f"failed: {self.reason}"


@dataclass(frozen=True, repr=False)
class Results(Mapping[str, Any]):
    """What a program released, by name: `Release` for posteriors, `Noisy` for numbers, and what was derived.

    Attributes:
        guarantee: What is promised for everything together.
        charged: Whether a ledger was charged for it.
    """

    released: Mapping[str, Any]
    guarantee: Guarantee
    charged: bool

    def __getitem__(self, name: str) -> Any:
        return self.released[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.released)

    def __len__(self) -> int:
        return len(self.released)

    def __str__(self) -> str:
        from tacita.programs.show import text_table

        unpaid = "" if self.charged else "\nNot charged to any ledger: pass ledger=, so that what is spent is kept."
        return f"{text_table(self)}\n\n{self.guarantee}{unpaid}"

    def __repr__(self) -> str:
        return f"<Results: {', '.join(self.released)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what was derived and is not plain is given as text."""
        plain = {name: _plain(value) for name, value in self.released.items()}
        return {"schema": 1, "results": plain, "guarantee": self.guarantee.to_dict(), "charged": self.charged}


def run(
    program: Program,
    data: str | os.PathLike[str] | Mapping[str, Sequence[Any]],
    *,
    header: Sequence[str] | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    name: str = "program",
) -> Results:
    """Run a program on a CSV file, or on columns by name.

    Args:
        program: A program; it is checked first.
        data: A CSV file with a header, or a mapping from column names to values.
        header: The names of a file's columns, if it has no header line.
        ledger: A ledger for replace_one, or its file, that is charged for the whole program before noise is drawn. A
            file that is missing is made.
        name: What the program is called in the ledger.

    Raises:
        ProgramError: If the program is ill-typed or exceeds its own budget. No data are read then.
        BudgetExceeded: If it exceeds the ledger's. Nothing is released then.
        ValueError: If the data do not fit the schema, or are not n records.
    """
    cost = program.check()
    plans = [planned(release) for release in program.releases]
    for plan in plans:
        plan.prepare()
    table = tables.read(program, data if isinstance(data, Mapping) else Path(data), header=header)
    numbers = [tables.statistic(release.query, table) for release in program.releases]
    _charge(ledger, cost, name, f"{len(plans)} releases of {program.n} records")
    values: dict[str, Any] = {}
    for release, plan, number in zip(program.releases, plans, numbers, strict=True):
        values[release.name] = _result(release, plan, _drawn(release.query, plan, number))
    for derived in program.derived:
        values[derived.name] = _derive(derived, values)
    return Results(MappingProxyType(values), _guarantee(cost), ledger is not None)


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Release | Noisy):
        return value.to_dict()
    if isinstance(value, Failed):
        return {"error": value.reason}
    listed = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    try:
        json.dumps(listed, allow_nan=False)
    except (TypeError, ValueError):
        return {"text": str(value)}
    return {"value": listed}


def planned(release: PlannedRelease) -> Plan:
    """Return what will be done for a release. No data are needed."""
    query, request = release.query, release.request
    if query.cells > 1:
        return cells_plan(request, _prior(query), query.cells, _public_size(query))
    step = sensitivity(query).larger
    return number_plan(request, step) if query.kind == "count" else sum_plan(request, step)


def _public_size(query: Query) -> int | None:
    return None if query.conditions else query.program.n


def _prior(query: Query) -> Dirichlet | None:
    return query.model if isinstance(query.model, Dirichlet) else None


def _drawn(query: Query, plan: Plan, number: tuple[int, ...]) -> tuple[int, ...]:
    if plan.table is not None and len(number) < query.cells:
        number = (*number, query.program.n - sum(number))
    return draw(plan, number)


def _result(release: PlannedRelease, plan: Plan, output: tuple[int, ...]) -> Release | Noisy:
    query, n = release.query, _public_size(release.query)
    if isinstance(query.model, Dirichlet):
        posterior = cells_posterior(plan, query.model, output, n, query.program.n)
        return made(query.model, plan, output, posterior, n, tuple(map(str, query.labels)))
    if isinstance(query.model, Normal):
        mean = total_posterior(plan, query.model, output[0], query.program.n, _grid(query))
        return made(query.model, plan, output, mean, n)
    if query.cells > 1:
        whole = (output[0], query.program.n - output[0]) if len(output) < query.cells else output
        return Noisy(tuple(map(float, whole)), tuple(map(str, query.labels)), plan, 1.0)
    unit = float(query.unit) / (query.program.n if query.kind == "mean" else 1)
    return Noisy((output[0] * unit,), (), plan, unit)


def _grid(query: Query) -> Grid:
    domain = query.column.domain if query.column is not None else None
    if not isinstance(domain, Clamped):
        raise TypeError("a normal posterior needs a clamped column")
    return Grid(domain.lowest, domain.highest, float(domain.step))


def _derive(derived: Derived, values: Mapping[str, Any]) -> Any:
    inputs = [values[released.name] for released in derived.inputs]
    for value in inputs:
        if isinstance(value, Failed):
            return value
    try:
        return derived.function(*inputs)
    except (Exception, SystemExit) as error:
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _charge(ledger: Ledger | str | os.PathLike[str] | None, cost: Cost, name: str, description: str) -> None:
    if ledger is None:
        return
    if not isinstance(ledger, Ledger):
        with ledger_at(ledger) as opened:
            return _charge(opened, cost, name, description)
    ledger.release(
        name, pure=_up(cost.epsilon), delta=_up(cost.delta), description=description, neighbours="replace_one"
    )


def _guarantee(cost: Cost) -> Guarantee:
    return Guarantee(
        kind="worst_case",
        epsilon=max(SMALLEST_EPSILON, _up(cost.epsilon)),
        delta=_up(cost.delta),
        method="checked composition",
        neighbours="replace_one",
        sampling="none",
        assumptions=(
            "the number of records is public",
            "functions given to map depend on their argument alone",
            "what is calculated afterwards sees released results only",
        ),
        publishable=True,
    )


def _up(value: Fraction) -> float:
    """Return an exact number as a float that is written at least as large."""
    near = float(value)
    while Fraction(repr(near)) < value:
        near = float(np.nextafter(near, np.inf))
    return near
