"""Read a CSV or NPZ file through a schema, record by record, and lead encoded records back to columns."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita._guard import held
from tacita.data.cells import open_csv, read_cells, records
from tacita.data.dataset import Dataset
from tacita.data.domains import Bool, Category, Real
from tacita.data.formats import read_npz
from tacita.data.ids import numbered

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tacita._check import Counts
    from tacita.data.dataset import Groups, Inputs, Targets
    from tacita.data.schema import Field, Schema

    Cells = Sequence[str] | NDArray[Any]

MISSING = "(missing)"


@dataclass(frozen=True)
class Encoded:
    """The encoded records of one file, and the ids of whose they are if the schema names them."""

    inputs: Inputs
    targets: Targets
    groups: Groups
    ids: NDArray[Any] | None = None

    def __getitem__(self, places: Any) -> Encoded:
        """Return some of the records."""
        groups = {name: group[places] for name, group in self.groups.items()}
        ids = None if self.ids is None else self.ids[places]
        return Encoded(self.inputs[places], self.targets[places], groups, ids)

    def dataset(self, test: Encoded, schema: Schema, **about: Any) -> Dataset:
        """Return these records and those held out, with what their schema says about them.

        Raises:
            ValueError: If a person is in both, or an id is missing and that is refused.
        """
        persons, held_out = _persons(self, test, schema)
        return Dataset(
            persons=persons,
            test_persons=held_out,
            inputs=self.inputs,
            targets=self.targets,
            groups=self.groups,
            test_inputs=test.inputs,
            test_targets=test.targets,
            test_groups=test.groups,
            classes=schema.target.labels,
            feature_names=schema.feature_names,
            target_range=schema.target_range,
            schema=schema,
            **about,
        )


def read_table(path: Path | str, schema: Schema, *, test: Path | str | None = None) -> Dataset:
    """Read a table and encode it by a public schema.

    A real value is clamped to [low, high] and scaled to [-1, 1] (`scale = "log"`: by log(1 + value - low)); a category
    becomes one feature per listed value, 1 or 0; a bool becomes 1 or -1. An `inputs` array is clamped and scaled to
    [0, 1], as images are. A real target is scaled to [0, 1]; `Dataset.restore` leads back. Missing is: empty, NA, NaN
    or ? (unless listed as a value), a value not listed, a number that cannot be read or is not finite.

    A CSV file is UTF-8 with a header, one record per line. Fields may be quoted but hold no line break, so no line,
    however broken, can change how another is read. A line that cannot be read, or has not as many fields as the header,
    has every value missing: it is left out, or refused under the policy "error". Blank lines and columns that the
    schema does not name are skipped. An NPZ file holds one array per column, or `inputs` and `targets`.

    Args:
        path: A .csv, .csv.gz or .npz file.
        schema: What it holds.
        test: A second file, held out; of other people, if the schema tells them apart.

    Raises:
        ValueError: If the file does not fit the schema. The message never holds a record's content, place or number.
        OSError: If the file cannot be read.

    Guarantee:
        A record's encoding depends on that record and the schema alone: leaving another out changes no bit of it.
    """
    file = Path(path)
    train = _read(file, schema)
    held_out = train[:0] if test is None else _read(Path(test), schema)
    return train.dataset(held_out, schema, name=file.stem, source=file.name, nominal_size=schema.nominal_size)


def decode(inputs: ArrayLike, targets: ArrayLike, schema: Schema) -> dict[str, list[Any]]:
    """Return encoded records as columns, the inverse of the encoding of `read_table`.

    Any finite numbers are led to values that the schema allows, so that a generator's output can be decoded: a real is
    unscaled and clamped to [low, high], and rounded if the schema says `whole`; a category is the value with the
    largest feature, the first of equals; a bool is the sign. Under missing = "zero" a category or bool whose features
    are all exactly 0 is missing: None. A real 0 is the middle of its scale: a missing one is encoded alike.

    Args:
        inputs: (n, features), as `Dataset.inputs`.
        targets: (n,), positions in the classes, or a real target in [0, 1], as `Dataset.targets`.
        schema: What the columns are, as `Dataset.schema`.

    Returns:
        For each column, in the schema's order and the target last, a list of n values: numbers, or text as in a file
        ("true" and "false" for a bool).

    Raises:
        ValueError: If the arrays do not fit the schema or are not finite. The message holds no record's content.

    Guarantee:
        Encoding what was decoded gives the same features again, up to round-off, if they came from an encoding.

    Examples:
        >>> from tacita.data import Schema
        >>> schema = Schema.from_dict({
        ...     "target": "smoker",
        ...     "columns": {"age": {"type": "real", "low": 0, "high": 100, "whole": True}, "smoker": {"type": "bool"}},
        ... })
        >>> decode([[-0.321], [7.0]], [1, 0], schema)
        {'age': [34, 100], 'smoker': ['true', 'false']}
    """
    if not schema.columns:
        raise ValueError("Only a schema with [columns.NAME] can be decoded to columns; this one describes [inputs].")
    features = np.asarray(inputs, dtype=np.float64)
    goals = np.asarray(targets)
    if features.ndim != 2 or features.shape[1] != len(schema.feature_names):
        raise ValueError(f"inputs must have shape (n, {len(schema.feature_names)}), got {features.shape}.")
    if goals.shape != (len(features),):
        raise ValueError(f"targets must have shape ({len(features)},), one per record, got {goals.shape}.")
    if not np.isfinite(features).all():
        raise ValueError("inputs must be finite, got NaN or infinity.")
    ends = np.cumsum([len(column.features) for column in schema.columns])[:-1]
    blocks = np.split(features, ends, axis=1)
    columns = {
        column.name: _decoded_block(column, block, with_missing=schema.missing == "zero")
        for column, block in zip(schema.columns, blocks, strict=True)
    }
    return {**columns, schema.target.name: _decoded_target(schema.target, goals)}


def write_csv(path: Path | str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns to a CSV file that `read_table` reads. None is written as a missing value.

    Raises:
        ValueError: If the columns are not equally long, or a name or a text holds a line break.
    """
    if not columns or len({len(values) for values in columns.values()}) > 1:
        raise ValueError("columns must be at least one and equally long.")
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    if any(isinstance(cell, str) and ("\n" in cell or "\r" in cell) for row in rows for cell in row):
        raise ValueError("A column's name and its values must hold no line break: a record is one line.")
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def encode_lines(lines: Iterable[bytes], header: Sequence[str], schema: Schema, *, name: str) -> Encoded:
    """Encode CSV lines whose fields are `header`.

    Args:
        lines: One record each; blank ones are skipped.
        header: The names of the fields.
        schema: What the columns hold.
        name: What messages call the file.
    """
    fields = (*schema.columns, schema.target)
    names = [*(field.name for field in fields), *([schema.person] if schema.person is not None else [])]
    found = [fields for fields in records(lines, header, names, file=name) if fields != []]
    if schema.missing == "error" and None in found:
        raise ValueError(
            f"{name} has a line that cannot be read or has not as many fields as the header; "
            'choose missing = "drop" to leave such records out.'
        )
    readable = [fields for fields in found if fields is not None]  # others have no target, so they are left out
    cells = {column: [fields[i] for fields in readable] for i, column in enumerate(names)}
    return _encode(cells, schema, name)


def _read(path: Path, schema: Schema) -> Encoded:
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".npz") and not path.name.lower().endswith(".csv.gz"):
        raise ValueError(f"{path.name} must be a .csv, .csv.gz or .npz file.")
    if schema.inputs is not None:
        if suffix != ".npz":
            raise ValueError(
                f"{path.name} must be .npz for a schema with inputs; describe a CSV with a table for each column."
            )
        encoded = _read_arrays(path, schema)
    elif suffix == ".npz":
        encoded = _read_columns(path, schema)
    else:
        with open_csv(path) as (lines, header):
            encoded = encode_lines(lines, header, schema, name=path.name)
    if not len(encoded.targets):
        raise ValueError(f"{path.name} holds no record that the schema can read; compare the two.")
    return encoded


def _read_columns(path: Path, schema: Schema) -> Encoded:
    columns = (*schema.columns, schema.target)
    own = [] if schema.person is None else [schema.person]
    arrays = read_npz(path, [*(column.name for column in columns), *own], name=path.name)
    for column in columns:
        array = arrays[column.name]
        real = isinstance(column.domain, Real)
        if array.ndim != 1 or array.dtype.kind not in ("biufUS" if real else "biuUS"):
            kinds = "numbers or text" if real else "whole numbers, truth values or text"
            raise ValueError(f"{path.name}: array {column.name!r} must be one-dimensional, of {kinds}.")
    _same_length(arrays, path.name)
    cells = {key: _cells(array) for key, array in arrays.items()}
    return _encode(cells, schema, path.name)


def _cells(array: NDArray[Any]) -> Cells:
    """Return numbers as they are, and text cell by cell; one that is not Unicode is missing."""
    if array.dtype.kind != "U":
        return array
    width = array.dtype.itemsize // 4
    plain = np.ascontiguousarray(array, dtype=f"=U{width}")
    points = plain.view(np.uint32).reshape(len(array), width) if plain.size and width else np.zeros((len(array), 1))
    readable = points.max(axis=1) <= sys.maxunicode  # Python may fail on others, or make text that breaks later
    return np.where(readable, plain, "")


def _same_length(arrays: Mapping[str, NDArray[Any]], name: str) -> None:
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError(f"{name}: the arrays {', '.join(map(repr, arrays))} must hold equally many records.")


def _read_arrays(path: Path, schema: Schema) -> Encoded:
    bounds = schema.inputs
    own = [] if schema.person is None else [schema.person]
    arrays = read_npz(path, ["inputs", "targets", *own], name=path.name)
    inputs, targets = arrays["inputs"], arrays["targets"]
    if bounds is None or inputs.ndim != 1 + len(bounds.shape) or inputs.shape[1:] != bounds.shape:
        raise ValueError(f"{path.name}: 'inputs' must have one record of shape {bounds and bounds.shape} per row.")
    if inputs.dtype.kind not in "biuf":
        raise ValueError(f"{path.name}: 'inputs' must be an array of real numbers.")
    classes = schema.target.labels
    if targets.ndim != 1 or targets.dtype.kind not in ("biuf" if classes is None else "iu"):
        what = "real numbers" if classes is None else "whole numbers, positions in classes"
        raise ValueError(f"{path.name}: 'targets' must be one-dimensional, of {what}.")
    _same_length(arrays, path.name)
    finite = np.isfinite(inputs)
    unit = _unit(np.where(finite, inputs, bounds.low), bounds.low, bounds.high) * finite
    whole = finite.all(axis=tuple(range(1, inputs.ndim)))
    if classes is None:
        codes = _codes(schema.target, targets)
    else:
        codes = np.where((targets >= 0) & (targets < len(classes)), targets, np.nan)
    kept = _kept({"inputs": np.where(whole, 0.0, np.nan), "targets": codes}, schema, path.name)
    return Encoded(unit.astype(np.float32), _goal(schema.target, codes), {}, _ids(arrays, schema))[kept]


def _encode(cells: Mapping[str, Cells], schema: Schema, name: str) -> Encoded:
    fields = (*schema.columns, schema.target)
    codes = {field.name: _codes(field, cells[field.name]) for field in fields}
    blocks = [_block(column, codes[column.name]) for column in schema.columns]
    groups = {field.name: _labels(field, codes[field.name]) for field in fields if field.name in schema.groups}
    goal = _goal(schema.target, codes[schema.target.name])
    return Encoded(np.concatenate(blocks, axis=1), goal, groups, _ids(cells, schema))[_kept(codes, schema, name)]


def _ids(cells: Mapping[str, Any], schema: Schema) -> NDArray[Any] | None:
    """Return whose the records are, if the schema names the column of ids."""
    if schema.person is None:
        return None
    ids = np.asarray(cells[schema.person])
    if ids.ndim != 1:
        raise ValueError(f"The array {schema.person!r} must be one-dimensional, with one id for each record.")
    return ids


def _persons(train: Encoded, test: Encoded, schema: Schema) -> tuple[Counts | None, Counts | None]:
    """Return a number for each record's person, and the same for those held out."""
    if schema.person is None or train.ids is None or test.ids is None:
        return None, None
    persons = numbered([*train.ids.tolist(), *test.ids.tolist()], missing=schema.missing_person, name=schema.person)
    trained, held_out = persons[: len(train.ids)], persons[len(train.ids) :]
    if np.isin(held_out, trained).any():
        raise ValueError("The test file holds records of people who are in the other file: keep each in one of them.")
    return trained, held_out


def _kept(codes: Mapping[str, NDArray[np.float64]], schema: Schema, name: str) -> NDArray[np.bool_]:
    """Return which records are kept; NaN stands for what is missing."""
    gaps = {column: np.isnan(found) for column, found in codes.items()}
    if schema.missing == "error":
        for column, gap in gaps.items():
            if gap.any():
                raise ValueError(
                    f"{name}: column {column!r} has values that are missing, unreadable or not in the schema; "
                    'choose missing = "zero" or missing = "drop", or correct the file.'
                )
    dropped = np.any(list(gaps.values()), axis=0) if schema.missing == "drop" else gaps[schema.target.name]
    return ~dropped


def _block(column: Field, codes: NDArray[np.float64]) -> Inputs:
    """Return a column's features, 0 where it is missing."""
    if isinstance(column.domain, Category):
        one_hot: Inputs = np.equal.outer(codes, np.arange(len(column.features))).astype(np.float32)
        return one_hot
    unit = _scaled(column, codes) if isinstance(column.domain, Real) else codes
    return _nan_to_zero(2.0 * unit - 1.0).reshape(-1, 1)


def _goal(column: Field, codes: NDArray[np.float64]) -> Targets:
    if isinstance(column.domain, Real):
        return _nan_to_zero(_scaled(column, codes))
    return _nan_to_zero(codes).astype(np.int64)


def _codes(column: Field, cells: Cells) -> NDArray[np.float64]:
    """Return a column's numbers, or the codes of its labels (1 is true); NaN where a value is missing."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf" and isinstance(column.domain, Real):
        with np.errstate(over="ignore"):
            values = cells.astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)
    with held():
        found = read_cells(column.domain, cells)
    return 1.0 - found if isinstance(column.domain, Bool) else found


def _labels(column: Field, codes: NDArray[np.float64]) -> NDArray[np.str_]:
    names = np.array([*(column.labels or ()), MISSING])
    return names[np.where(np.isnan(codes), len(names) - 1, codes).astype(np.int64)]


def _scaled(column: Field, values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = column.bounds
    if not _is_log(column):
        return _unit(values, low, high)
    offsets = (np.clip(values, low, high) - low).tolist()
    # math.log1p and not numpy's, whose last bit may depend on a value's place in the array.
    return np.array([math.log1p(offset) for offset in offsets]) / math.log1p(high - low)


def _is_log(column: Field) -> bool:
    return isinstance(column.domain, Real) and column.domain.scale == "log"


def _unit(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return (np.clip(values.astype(np.float64), low, high) - low) / (high - low)


def _nan_to_zero(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.where(np.isnan(values), 0.0, values).astype(np.float32)


def _decoded_block(column: Field, block: NDArray[np.float64], *, with_missing: bool) -> list[Any]:
    if isinstance(column.domain, Real):
        return _unscaled(column, (block[:, 0] + 1.0) / 2.0)
    codes = block.argmax(axis=1) if isinstance(column.domain, Category) else (block[:, 0] > 0.0).astype(np.int64)
    missing = [with_missing and not row.any() for row in block]
    names = column.labels or ()
    return [None if gone else names[code] for code, gone in zip(codes.tolist(), missing, strict=True)]


def _decoded_target(column: Field, goals: NDArray[Any]) -> list[Any]:
    if column.labels is None:
        if goals.dtype.kind not in "fiu" or not np.isfinite(goals).all():
            raise ValueError("targets must be finite numbers, as the target is real.")
        return _unscaled(column, goals.astype(np.float64))
    if goals.dtype.kind not in "iu" or not ((goals >= 0) & (goals < len(column.labels))).all():
        raise ValueError(f"targets must be whole numbers from 0 to {len(column.labels) - 1}, positions in the classes.")
    return [column.labels[goal] for goal in goals.tolist()]


def _unscaled(column: Field, unit: NDArray[np.float64]) -> list[Any]:
    """Return the values that `_scaled` maps to these numbers in [0, 1]; others are clamped."""
    low, high = column.bounds
    share = np.clip(unit, 0.0, 1.0)
    rise = np.expm1(share * math.log1p(high - low)) if _is_log(column) else share * (high - low)
    values = np.clip(low + rise, low, high)
    whole = isinstance(column.domain, Real) and column.domain.whole
    return [int(value) for value in np.rint(values).tolist()] if whole else values.tolist()
