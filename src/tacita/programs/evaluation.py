"""Run a checked program on data: plan, read, charge, draw, and only then calculate from what was released.

Everything is planned before the data are read, the whole program is charged before any noise is drawn, and what is
calculated afterwards sees released results only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tacita.posterior.plans import ReleasePlan, charge, plan_release
from tacita.programs import tables
from tacita.programs.composition import guarantee_of, rounded_up
from tacita.programs.results import Failed, Results

if TYPE_CHECKING:
    from tacita.ledger import Ledger
    from tacita.programs.handles import Derived, PlannedRelease
    from tacita.programs.program import Program
    from tacita.programs.queries import Query


def run(
    program: Program,
    data: str | os.PathLike[str] | Mapping[str, Sequence[Any]],
    *,
    header: Sequence[str] | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    name: str = "program",
) -> Results:
    """Run a program: see `Program.run`, whose arguments these are."""
    cost = program.check()
    plans = [planned(release) for release in program.releases]
    for plan in plans:
        plan.prepare()
    table = tables.read(program, data if isinstance(data, Mapping) else Path(data), header=header)
    numbers = [tables.exact_numbers(release.query, table) for release in program.releases]
    spent = {"pure": rounded_up(cost.epsilon), "delta": rounded_up(cost.delta)}
    charge(ledger, name, f"{len(plans)} releases of {program.n} records", spent)
    values: dict[str, Any] = {}
    for release, plan, number in zip(program.releases, plans, numbers, strict=True):
        output = _drawn(release.query, plan, number)
        values[release.name] = release.query.measure.result(release.query, plan, output)
    for derived in program.derived:
        values[derived.name] = _derive(derived, values)
    return Results(MappingProxyType(values), guarantee_of(cost), ledger is not None)


def planned(release: PlannedRelease) -> ReleasePlan:
    """Return what will be done for a release. No data are needed."""
    return plan_release(release.mechanism, release.query.statistic)


def _drawn(query: Query, plan: ReleasePlan, numbers: tuple[int, ...]) -> tuple[int, ...]:
    if plan.table is not None and len(numbers) < query.cells:  # a table is over all cells
        numbers = (*numbers, query.program.n - sum(numbers))
    return plan.draw(numbers)


def _derive(derived: Derived, values: Mapping[str, Any]) -> Any:
    inputs = [values[released.name] for released in derived.inputs]
    for value in inputs:
        if isinstance(value, Failed):
            return value
    try:
        return derived.function(*inputs)
    except (Exception, SystemExit) as error:
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")
