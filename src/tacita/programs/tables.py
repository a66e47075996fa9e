"""Read private records through a program's schema, and count what its queries ask for, exactly.

Every cell is some value of its column, whatever it holds, and depends on its own record alone: a cell that cannot be
read is false, a category's `other` label, or for numbers NaN, which a clamp makes its lower bound.
"""

from __future__ import annotations

import gzip
import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tacita._guard import attempt, held
from tacita.data.domains import Bool, Category, Clamped, Finite
from tacita.data.table import split_line
from tacita.programs.columns import converted, labels_of
from tacita.programs.program import refuse_while_checked

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.data.domains import Domain
    from tacita.programs.columns import Column, Query
    from tacita.programs.program import Program

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
    cells = _mapped_cells(program, data) if isinstance(data, Mapping) else _unpacked(program, Path(data), header)
    for name, values in cells.items():
        if len(values) != program.n:
            first = " (or leave the header out, if the file's first line names its columns)" if header else ""
            raise ValueError(
                f"The program is for n={program.n} records, but column {name!r} has {len(values)}; "
                f"give the program the true n, which is public{first}."
            )
    with held():
        read_columns = {name: encoded(program.schema[name], values) for name, values in cells.items()}
    return Table(
        {name: values for name, (values, _) in read_columns.items()},
        {name: bad for name, (_, bad) in read_columns.items()},
    )


def statistic(query: Query, table: Table) -> tuple[int, ...]:
    """Return the exact whole numbers of a query, before any noise. Private.

    Cells are counted in the order of `query.labels`; of two cells of all records only the first. Sums, means and normal
    posteriors are the sum of the values in units of the step.
    """
    with held():
        return _counted(query, table)


def _counted(query: Query, table: Table) -> tuple[int, ...]:
    kept = np.ones(query.program.n, dtype=np.bool_)
    for condition in query.conditions:
        kept &= np.isin(_values(condition.column, table), sorted(condition.places))
    if query.column is None:
        return (int(kept.sum()),)
    domain = query.column.domain
    if isinstance(domain, Clamped):
        numbers = _bounded(domain, _made(query.column, table)[kept].astype(np.float64))
        if query.cells == 1:
            return (int(_on_grid(domain, numbers).sum()),)
        places = np.floor((numbers - domain.low) * query.cells / (domain.high - domain.low) + 1e-9)  # not rounded first
    else:
        places = _made(query.column, table)[kept].astype(np.float64)
        if query.cells == 1:
            return (int((places == 0).sum()),)
    codes = np.clip(places, 0, query.cells - 1).astype(np.int64)
    return tuple(np.bincount(codes, minlength=query.cells).tolist())[: query.numbers]


def _unpacked(program: Program, path: Path, names: Sequence[str] | None) -> dict[str, list[str | None]]:
    try:
        return _file_cells(program, path, names)
    except (gzip.BadGzipFile, EOFError, zlib.error):  # their messages hold bytes and checksums of the records
        raise ValueError(f"{path.name} is damaged: it cannot be unpacked.") from None


def _file_cells(program: Program, path: Path, names: Sequence[str] | None) -> dict[str, list[str | None]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        if lines.read(3) != b"\xef\xbb\xbf":
            lines.seek(0)
        header = split_line(lines.readline()) if names is None else list(names)
        if not header:
            raise ValueError(f"{path.name} must start with a header line of column names, in UTF-8.")
        places = {name: _place(name, header, path.name) for name in program.schema}
        cells: dict[str, list[str | None]] = {name: [] for name in places}
        blank = 0  # at the end, beyond the public n, such lines are no records
        for line in lines:
            blank = 0 if line.strip() else blank + 1
            fields = split_line(line)
            whole = fields is not None and len(fields) == len(header)
            for name, place in places.items():
                cells[name].append(fields[place] if whole and fields is not None else None)
    return {name: values[: max(program.n, len(values) - blank)] for name, values in cells.items()}


def _place(name: str, header: Sequence[str], file: str) -> int:
    if header.count(name) != 1:  # the header is not shown: without one, the first line is a record
        found = "more than one column" if name in header else "no column"
        raise ValueError(
            f"{file} has {found} {name!r}, which the program's schema names; compare the names of its columns, in the "
            "first line or in the header that was given, separated by commas."
        )
    return header.index(name)


def _mapped_cells(program: Program, data: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
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


def encoded(domain: Domain, cells: Sequence[object]) -> tuple[Values, int]:
    """Return one number for each cell, and how many cells could not be read. Call it under `held`."""
    if isinstance(domain, Bool | Category):
        places = [attempt(_index, domain, cell) for cell in cells]
        codes = [domain.fallback if place is None else place for place in places]
        return np.array(codes, dtype=np.int64), places.count(None)
    numbers = [attempt(_number, cell) for cell in cells]
    return np.array([math.nan if x is None else x for x in numbers], dtype=np.float64), numbers.count(None)


def _index(domain: Finite, cell: Any) -> int | None:
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # a column of whole numbers that went through floats
    return None if cell is None else domain.index(cell.decode() if isinstance(cell, bytes) else cell)


def _number(cell: Any) -> float | None:
    value = float(cell)
    return value if math.isfinite(value) and not (isinstance(cell, str) and "_" in cell) else None


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
    if isinstance(domain, Bool | Category):
        return np.array([domain.fallback if place is None else place for place in results], dtype=np.int64)
    numbers = np.array([math.nan if x is None else x for x in results], dtype=np.float64)
    return _bounded(cast("Clamped", domain), numbers)


def _seen(column: Column, table: Table) -> list[object]:
    """Return a column's values as a function sees them: truth values, labels, or real numbers."""
    if isinstance(column.domain, Bool | Category):
        labels = labels_of(column)
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
