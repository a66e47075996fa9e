"""Read private records through a program's schema, and count what its queries ask for, exactly.

Every cell is some value of its column, whatever it holds, and depends on its own record alone: a cell that cannot be
read is false, a category's `other` label, or for numbers NaN, which a clamp makes its lower bound.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tacita._guard import attempt, held
from tacita.data.cells import open_csv, read_cells, records
from tacita.data.domains import Bool, Category, Domain
from tacita.data.ids import capped, numbered
from tacita.programs.clamping import Clamped
from tacita.programs.functions import converted
from tacita.programs.program import refuse_while_checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacita._check import Counts, Floats
    from tacita.programs.columns import Column
    from tacita.programs.people import People
    from tacita.programs.program import Program
    from tacita.programs.queries import Query

    Values = Counts | Floats


@dataclass(frozen=True, eq=False)
class Table:
    """The records of one program. Private: it prints nothing of them.

    Attributes:
        columns: For each column, one number a record: the place of a label, or a real number.
        unreadable: How many cells of each column could not be read. For the data's owner only.
        mapped: Clamped and mapped columns, made once: a record has one value, whatever the function does later.
    """

    columns: Mapping[str, Values] = field(repr=False)
    unreadable: Mapping[str, int] = field(repr=False)
    mapped: dict[Column, Values] = field(default_factory=dict, repr=False)

    def true_records(self, query: Query) -> int:
        """Return how many of the query's records there are, or have a true value in its column."""
        kept = self._selected(query)
        return int(kept.sum() if query.column is None else (self._values(query.column)[kept] == 0).sum())

    def total_steps(self, query: Query) -> int:
        """Return the sum of the query's clamped column over its records, in steps."""
        return int(_steps(query.grid, self._of_records(query)).sum())

    def cell_counts(self, query: Query) -> tuple[int, ...]:
        """Return how many of the query's records lie in each cell."""
        places, domain, cells = self._of_records(query), query.grid, query.statistic.cells
        if isinstance(domain, Clamped):  # not rounded to the grid first
            places = np.floor((_bounded(domain, places) - domain.low) * cells / (domain.high - domain.low) + 1e-9)
        codes = np.clip(places, 0, cells - 1).astype(np.int64)
        return tuple(np.bincount(codes, minlength=cells).tolist())

    def _of_records(self, query: Query) -> Floats:
        """Return the values of a query's column for its records."""
        return self._values(cast("Column", query.column))[self._selected(query)].astype(np.float64)

    def _selected(self, query: Query) -> NDArray[np.bool_]:
        kept = np.ones(len(next(iter(self.columns.values()))), dtype=np.bool_)
        for condition in query.conditions:
            kept &= np.isin(self._values(condition.column), sorted(condition.places))
        return kept

    def _values(self, column: Column) -> Values:
        """Return a column's value for every record, clamped numbers not yet rounded. It is made once."""
        if column.source is None:
            return self.columns[column.name]
        if column not in self.mapped:
            numbers, domain = self._mapped(column, column.source), column.domain
            self.mapped[column] = _bounded(domain, numbers) if isinstance(domain, Clamped) else _filled(domain, numbers)
        return self.mapped[column]

    def _mapped(self, column: Column, source: Column) -> Floats:
        """Return what a column's function makes of another column's values; NaN where it fails."""
        domain, function = column.domain, column.function
        if function is None:
            return self._reals(source)
        cells: list[Any] = self._reals(source).tolist()
        if isinstance(source.domain, Bool | Category):
            cells = [source.labels[int(place)] for place in cells]
        if column.results is not None:  # of every public value, from before there were data
            results = [column.results[cell] for cell in cells]
        else:
            with warnings.catch_warnings(), np.errstate(all="ignore"):  # a warning would say something of a record
                warnings.simplefilter("ignore")
                results = [attempt(lambda cell=cell: converted(domain, function(cell))) for cell in cells]
        return np.array([np.nan if result is None else result for result in results], dtype=np.float64)

    def _reals(self, column: Column) -> Floats:
        """Return a column's numbers, rounded to its grid if it is clamped, or the places of its labels."""
        values, domain = self._values(column).astype(np.float64), column.domain
        return np.asarray(_steps(domain, values) * float(domain.step)) if isinstance(domain, Clamped) else values


def read(
    program: Program, data: str | os.PathLike[str] | Mapping[str, Sequence[Any]], *, header: Sequence[str] | None = None
) -> Table:
    """Read a CSV file, or take a mapping from names to values, as the program's schema says.

    A CSV file (.gz too) is UTF-8 with a header; every line after it is a record, but for blank ones after the n-th.
    Fields may be quoted but hold no line break, so no line can change how another is read. A line that cannot be read,
    or has not as many fields as the header, is a record of unreadable cells. Columns that the schema does not name are
    skipped. Where people have several rows, blank lines are no rows, and only so many rows of each person are kept,
    once for all queries.

    Args:
        program: What the schema, n and the column of ids are taken from.
        data: The file, or the mapping.
        header: The names of a file's columns, if it has no header line.

    Raises:
        ValueError: If a column is missing, the number of records is not the program's n, or a row has no id.
        OSError: If the file cannot be read.

    Guarantee:
        What a record becomes depends on that record and the schema alone; which rows of a person are kept, on that
        person's rows and coins alone.
    """
    refuse_while_checked()
    cells = _given_cells(program, data) if isinstance(data, Mapping) else _file_cells(program, Path(data), header)
    if program.people is not None:
        cells = _capped(cells, program.people)
    for name, values in cells.items():
        if program.n is not None and len(values) != program.n:
            first = " (or leave the header out, if the file's first line names its columns)" if header else ""
            raise ValueError(
                f"The program is for n={program.n} records, but column {name!r} has {len(values)}; "
                f"give the program the true n, which is public{first}."
            )
    with held():
        found = {name: read_cells(program.schema[name], values) for name, values in cells.items()}
    unreadable = {name: int(np.isnan(values).sum()) for name, values in found.items()}
    return Table({name: _filled(program.schema[name], values) for name, values in found.items()}, unreadable)


def exact_numbers(query: Query, table: Table) -> tuple[int, ...]:
    """Return the exact whole numbers of a query, before any noise. Private.

    Cells are counted in the order of `query.labels`; of two cells of all records only the first. Sums, means and normal
    posteriors are the sum of the values in units of the step.
    """
    with held():
        return query.exact(table)


def _capped(cells: dict[str, Sequence[Any]], people: People) -> dict[str, Sequence[Any]]:
    """Return the columns of the schema with at most so many rows of each person, chosen now and only once."""
    lengths = {name: len(values) for name, values in cells.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns {', '.join(map(repr, lengths))} must hold equally many rows.")
    persons = numbered(cells[people.column], missing=people.missing, name=people.column)
    places = capped(persons, people.rows).tolist()
    return {name: [values[i] for i in places] for name, values in cells.items() if name != people.column}


def _file_cells(program: Program, path: Path, names: Sequence[str] | None) -> dict[str, Sequence[Any]]:
    with open_csv(path, names) as (lines, header):
        cells: dict[str, list[str | None]] = {name: [] for name in _needed(program)}
        blank = 0  # blank lines at the end, beyond the public n, are not records
        for fields in records(lines, header, list(cells), file=path.name):
            blank = blank + 1 if fields == [] else 0
            if fields == [] and program.people is not None:
                continue
            for place, values in enumerate(cells.values()):
                values.append(fields[place] if fields else None)
    if program.n is None:
        return dict(cells)
    return {name: values[: max(program.n, len(values) - blank)] for name, values in cells.items()}


def _needed(program: Program) -> list[str]:
    """Return the columns that are read: the schema's, and the ids by which people are told apart."""
    return [*program.schema, *([program.people.column] if program.people is not None else [])]


def _given_cells(program: Program, data: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    for name in _needed(program):
        if name not in data:
            which = "which the program's schema names" if name in program.schema else "which tells people apart"
            raise ValueError(f"The data have no column {name!r}, {which}.")
        shape = getattr(data[name], "shape", ())
        if len(shape) > 1:
            raise ValueError(f"Column {name!r} must hold one value for each record, got shape {shape}.")
    with held():
        return {name: _listed(data[name]) for name in _needed(program)}


def _listed(values: Any) -> list[Any]:
    """Return a column's values; None for one that the column cannot give."""
    own = not isinstance(values, list | tuple) and not hasattr(values, "__array__")
    if own and hasattr(values, "__len__") and hasattr(values, "__getitem__"):
        return [attempt(values.__getitem__, place) for place in range(len(values))]
    return list(values)


def _filled(domain: Domain | Clamped, values: Floats) -> Values:
    """Return a column's values with its fallback where there is none."""
    if isinstance(domain, Bool | Category):
        return np.where(np.isnan(values), domain.fallback, values).astype(np.int64)
    return values


def _bounded(domain: Clamped, values: Floats) -> Floats:
    return np.asarray(np.clip(np.where(np.isnan(values), domain.low, values), domain.low, domain.high))


def _steps(domain: Clamped, values: Floats) -> Counts:
    """Return numbers on the grid, in steps."""
    steps = np.rint(_bounded(domain, values) / float(domain.step))
    return np.clip(steps, domain.lowest, domain.highest).astype(np.int64)
