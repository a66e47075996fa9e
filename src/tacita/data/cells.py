"""Read records: lines of a CSV file into fields, and cells into the values of a domain. Each by itself."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tacita._guard import attempt
from tacita.data.domains import Domain, Real

if TYPE_CHECKING:
    from tacita._check import Floats


@contextmanager
def open_csv(path: Path, header: Sequence[str] | None = None) -> Iterator[tuple[IO[bytes], list[str]]]:
    """Open a UTF-8 CSV file, or one packed as .gz, and give its lines after the header, and the header.

    Args:
        path: The file.
        header: The names of the columns, if the file has no header line.

    Raises:
        ValueError: If there is no header, or the file cannot be unpacked.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            if lines.read(3) != b"\xef\xbb\xbf":
                lines.seek(0)
            names = split_line(lines.readline()) if header is None else list(header)
            if not names:
                raise ValueError(f"{path.name} must start with a header line of column names, in UTF-8.")
            yield lines, names  # type: ignore[misc]
    except (gzip.BadGzipFile, EOFError, zlib.error):  # their messages hold bytes and checksums of the records
        raise ValueError(f"{path.name} is damaged: it cannot be unpacked.") from None


def records(
    lines: Iterable[bytes], header: Sequence[str], names: Sequence[str], *, file: str
) -> Iterator[list[str] | None]:
    """Yield the named fields of each line; None if it cannot be read or has not as many fields as the header.

    A record is one line: fields may be quoted but hold no line break, so no line can change how another is read. A
    blank line gives an empty list.

    Args:
        lines: The lines after the header.
        header: The names of all fields.
        names: The fields to give, in this order.
        file: What messages call the file.

    Raises:
        ValueError: If the header does not have each name exactly once. The message does not show the header: without
            one, the first line is a record.
    """
    for name in names:
        if header.count(name) != 1:
            found = "more than one column" if name in header else "no column"
            raise ValueError(
                f"{file} has {found} {name!r}, which the schema names; compare the names of its columns, in the first "
                "line or in the header that was given, separated by commas."
            )
    places = [header.index(name) for name in names]
    for line in lines:
        fields = split_line(line)
        if not line.strip():
            yield []
        else:
            yield [fields[place] for place in places] if fields is not None and len(fields) == len(header) else None


def split_line(line: bytes) -> list[str] | None:
    """Return the fields of one line of a CSV file, or None if it cannot be read."""
    try:
        text = line.rstrip(b"\r\n").decode()
        return [field.strip() for field in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except (UnicodeDecodeError, csv.Error):
        return None


def read_cells(domain: Domain, cells: Iterable[object]) -> Floats:
    """Return one number for each cell: the position of its label, or its number; NaN where it cannot be read.

    Call it under `tacita._guard.held`: a cell may be any object, and run code of its own.
    """
    found = [attempt(_read, domain, cell) for cell in cells]
    return np.array([math.nan if value is None else value for value in found], dtype=np.float64)


def _read(domain: Domain, cell: Any) -> float | None:
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, bytes):
        cell = cell.decode()
    if isinstance(cell, float) and cell.is_integer() and not isinstance(domain, Real):
        cell = int(cell)  # a column of whole numbers that went through floats
    return None if cell is None else domain.read(cell)
