"""Read private records through a program's schema, and count what its queries ask for, exactly.

Every cell is some value of its column, whatever it holds, and depends on its own record alone: a cell that cannot be
read is false, a category's `other` label, or for numbers NaN, which a clamp makes its lower bound.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tacita._guard import attempt, held
from tacita.data.cells import open_csv, read_cells, records
from tacita.data.domains import Bool, Category, Domain
from tacita.programs.clamping import Clamped
from tacita.programs.functions import converted
from tacita.programs.program import refuse_while_checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacita._check import Counts, Floats
    from tacita.programs.columns import Column
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


def read(
    program: Program, data: Path | str | Mapping[str, Sequence[Any]], *, header: Sequence[str] | None = None
) -> Table:
    """Read a CSV file, or take a mapping from names to values, as the program's schema says.

    A CSV file (.gz too) is UTF-8 with a header; every line after it is a record, but for blank ones after the n-th.
    Fields may be quoted but hold no line break, so no line can change how another is read. A line that cannot be read,
    or has not as many fields as the header, is a record of unreadable cells. Columns that the schema does not name are
    skipped.

    Args:
        program: What the schema and n are taken from.
        data: The file, or the mapping.
        header: The names of a file's columns, if it has no header line.

    Raises:
        ValueError: If a column is missing, or the number of records is not the program's n.
        OSError: If the file cannot be read.

    Guarantee:
        What a record becomes depends on that record and the schema alone.
    """
    refuse_while_checked()
    cells = _given_cells(program, data) if isinstance(data, Mapping) else _file_cells(program, Path(data), header)
    for name, values in cells.items():
        if len(values) != program.n:
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
        return query.measure.exact(query, table)


def true_records(query: Query, table: Table) -> int:
    """Return how many of the query's records there are, or have a true value in its column."""
    kept = _selected(query, table)
    return int(kept.sum() if query.column is None else (_made(query.column, table)[kept] == 0).sum())


def total_steps(query: Query, table: Table) -> int:
    """Return the sum of the query's clamped column over its records, in steps."""
    column = cast("Column", query.column)
    domain = cast("Clamped", column.domain)
    return int(_on_grid(domain, _made(column, table)[_selected(query, table)].astype(np.float64)).sum())


def cell_counts(query: Query, table: Table) -> tuple[int, ...]:
    """Return how many of the query's records lie in each cell."""
    column, cells = cast("Column", query.column), query.cells
    places = _made(column, table)[_selected(query, table)].astype(np.float64)
    if isinstance(column.domain, Clamped):  # not rounded to the grid first
        low, high = column.domain.low, column.domain.high
        places = np.floor((_bounded(column.domain, places) - low) * cells / (high - low) + 1e-9)
    codes = np.clip(places, 0, cells - 1).astype(np.int64)
    return tuple(np.bincount(codes, minlength=cells).tolist())


def _selected(query: Query, table: Table) -> NDArray[np.bool_]:
    kept = np.ones(query.program.n, dtype=np.bool_)
    for condition in query.conditions:
        kept &= np.isin(_values(condition.column, table), sorted(condition.places))
    return kept


def _file_cells(program: Program, path: Path, names: Sequence[str] | None) -> dict[str, list[str | None]]:
    with open_csv(path, names) as (lines, header):
        cells: dict[str, list[str | None]] = {name: [] for name in program.schema}
        blank = 0  # blank lines at the end, beyond the public n, are not records
        for fields in records(lines, header, list(cells), file=path.name):
            blank = blank + 1 if fields == [] else 0
            for place, values in enumerate(cells.values()):
                values.append(fields[place] if fields else None)
    return {name: values[: max(program.n, len(values) - blank)] for name, values in cells.items()}


def _given_cells(program: Program, data: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    for name in program.schema:
        if name not in data:
            raise ValueError(f"The data have no column {name!r}, which the program's schema names.")
    for name in program.schema:
        shape = getattr(data[name], "shape", ())
        if len(shape) > 1:
            raise ValueError(f"Column {name!r} must hold one value for each record, got shape {shape}.")
    with held():
        return {name: _listed(data[name]) for name in program.schema}


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


def _values(column: Column, table: Table) -> Values:
    """Return a column's value for every record: places of labels, steps of a clamped number, or reals."""
    made = _made(column, table)
    return _on_grid(column.domain, made.astype(np.float64)) if isinstance(column.domain, Clamped) else made


def _made(column: Column, table: Table) -> Values:
    """Return a column's value for every record, clamped numbers not yet rounded. It is made once."""
    if column.source is None:
        return table.columns[column.name]
    if column not in table.mapped:
        table.mapped[column] = _made_from(column, column.source, table)
    return table.mapped[column]


def _made_from(column: Column, source: Column, table: Table) -> Values:
    domain = column.domain
    if column.function is None:
        return _bounded(cast("Clamped", domain), _reals(source, table))
    cells = _seen(source, table)
    if column.results is not None:  # of every public value, from before there were data
        results = [column.results[cell] for cell in cells]
    else:
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # a warning would say something of a record
            warnings.simplefilter("ignore")
            function = column.function
            results = [attempt(lambda cell=cell: converted(domain, function(cell))) for cell in cells]
    numbers = np.array([np.nan if result is None else result for result in results], dtype=np.float64)
    return _bounded(domain, numbers) if isinstance(domain, Clamped) else _filled(domain, numbers)


def _seen(column: Column, table: Table) -> list[object]:
    """Return a column's values as a function sees them: truth values, labels, or real numbers."""
    if isinstance(column.domain, Bool | Category):
        labels = column.labels
        return [labels[place] for place in _values(column, table).tolist()]
    return list(_reals(column, table).tolist())


def _reals(column: Column, table: Table) -> Floats:
    step = float(column.domain.step) if isinstance(column.domain, Clamped) else 1.0
    return _values(column, table).astype(np.float64) * step


def _bounded(domain: Clamped, values: Floats) -> Floats:
    return np.asarray(np.clip(np.where(np.isnan(values), domain.low, values), domain.low, domain.high))


def _on_grid(domain: Clamped, values: Floats) -> Counts:
    steps = np.rint(_bounded(domain, values) / float(domain.step))
    return np.clip(steps, domain.lowest, domain.highest).astype(np.int64)
