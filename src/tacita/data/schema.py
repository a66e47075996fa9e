"""The public description of a table: everything an encoding may depend on besides the record itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from tacita import _check
from tacita.data.domains import Bool, Category, Domain, Real
from tacita.data.ids import MISSING

# The keys of a schema of columns, of one of arrays, and of a column of each type.
_PERSONS = ("person", "missing_person")
_TABLE = ("missing", "nominal_size", "target", "groups", "columns", *_PERSONS)
_ARRAYS = ("missing", "nominal_size", "inputs", "targets", *_PERSONS)
_COLUMN = {"real": ("type", "low", "high", "scale", "whole"), "category": ("type", "values"), "bool": ("type",)}


@dataclass(frozen=True)
class Field:
    """A named column of a table, and what it may hold. A `Real` has bounds here."""

    name: str
    domain: Domain

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The values it can take, in the order of their codes, or None if it is real."""
        if isinstance(self.domain, Real):
            return None
        return self.domain.labels if isinstance(self.domain, Category) else ("false", "true")

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of a real column."""
        if not isinstance(self.domain, Real) or self.domain.bounds is None:
            raise TypeError(f"column {self.name!r} has no bounds: it is {self.domain}")
        return self.domain.bounds

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a schema's table that describes it."""
        if isinstance(self.domain, Category):
            return {"type": "category", "values": list(self.domain.labels)}
        return {"type": "bool"} if isinstance(self.domain, Bool) else {"type": "real", **asdict(self.domain)}

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features it becomes."""
        if isinstance(self.domain, Category):
            return tuple(f"{self.name}={value}" for value in self.domain.labels)
        return (self.name,)


@dataclass(frozen=True)
class ArrayInputs:
    """Inputs that come as one array: every number in [low, high], every record of one shape."""

    low: float
    high: float
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Schema:
    """What a file holds, written down beforehand. Nothing in it is ever learned from the records.

    Attributes:
        target: The column to predict.
        columns: The columns that become features, in order; empty if `inputs` is given.
        inputs: The array that becomes the features; None for a table.
        missing: What happens to a record with a missing value: "zero" (the value's features are 0), "drop" (the
            record is left out) or "error". A record without a target is left out under "zero" too.
        groups: Category or bool columns kept for the owner's per-group tables.
        nominal_size: A public size of the training set; with `person` how many people are in it.
        person: The column, or the array, of ids by which people are told apart; none of the columns. None if one record
            is one person.
        missing_person: What a record without an id is: refused (`refuse`), or the only one of a person of its own
            (`own`).
    """

    target: Field
    columns: tuple[Field, ...] = ()
    inputs: ArrayInputs | None = None
    missing: str = "zero"
    groups: tuple[str, ...] = ()
    nominal_size: int | None = None
    person: str | None = None
    missing_person: str = "refuse"

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], *, within: str = "") -> Schema:
        """Return the schema that a TOML table (as tomllib reads it) describes.

        Args:
            table: The parsed table.
            within: Where the table is in its file, as in `"data."`, so that a mistake names the header to change.

        Raises:
            ValueError: With a line for every part that has a mistake.

        Examples:
            >>> schema = Schema.from_dict({
            ...     "target": "smoker",
            ...     "columns": {"age": {"type": "real", "low": 0, "high": 100}, "smoker": {"type": "bool"}},
            ... })
            >>> [column.name for column in schema.columns], schema.target.labels
            (['age'], ('false', 'true'))
        """
        if not isinstance(table, Mapping):
            raise TypeError(f"A schema must be a table of keys, got {type(table).__name__}.")
        mistakes: list[str] = []
        arrays = "inputs" in table or "targets" in table
        with _noting(mistakes):
            _require_keys(table, _ARRAYS if arrays else _TABLE)
        parts = (_arrays if arrays else _columns)(table, within, mistakes)
        with _noting(mistakes):
            parts["missing"] = _check.one_of("missing", table.get("missing", "zero"), ("zero", "drop", "error"))
        with _noting(mistakes):
            size = table.get("nominal_size")
            parts["nominal_size"] = None if size is None else _size("nominal_size", size)
        with _noting(mistakes):
            parts |= _persons(table)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return cls(**parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `from_dict` reads."""
        table: dict[str, Any] = {"missing": self.missing}
        if self.nominal_size is not None:
            table["nominal_size"] = self.nominal_size
        if self.person is not None:
            table |= {"person": self.person, "missing_person": self.missing_person}
        if self.inputs is None:
            columns = {field.name: field.to_dict() for field in (*self.columns, self.target)}
            return table | {"target": self.target.name, "groups": list(self.groups), "columns": columns}
        bounds = self.target_range
        targets = {"classes": self.target.labels} if bounds is None else {"low": bounds[0], "high": bounds[1]}
        return table | {"inputs": asdict(self.inputs), "targets": targets}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per feature of a table."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def target_range(self) -> tuple[float, float] | None:
        """The (low, high) of a real target, None for classes."""
        return self.target.bounds if isinstance(self.target.domain, Real) else None

    @property
    def domains(self) -> dict[str, Domain]:
        """What each column holds, by name, the target last: a program's schema."""
        return {field.name: field.domain for field in (*self.columns, self.target)}


@contextmanager
def _noting(mistakes: list[str], where: str = "") -> Iterator[None]:
    """Add what is raised inside to the mistakes."""
    try:
        yield
    except (TypeError, ValueError) as error:
        mistakes.append(f"{where}: {error}" if where else str(error))


def _columns(table: Mapping[str, Any], within: str, mistakes: list[str]) -> dict[str, Any]:
    listed = table.get("columns")
    if not isinstance(listed, Mapping) or not listed:
        mistakes.append(f"columns is missing: describe every column you use in a table [{within}columns.NAME].")
        return {}
    columns: dict[str, Field] = {}
    for name, entry in listed.items():
        with _noting(mistakes, f"{within}columns.{name}"):
            columns[name] = Field(name, Bool())  # so that a target or group that names it is not a mistake too
            columns[name] = Field(name, _domain(name, entry, is_target=name == table.get("target")))
    target, groups = table.get("target"), table.get("groups", [])
    with _noting(mistakes):
        if not isinstance(target, str) or target not in columns:
            got = "it is missing" if target is None else f"got {target!r}{_closest(target, columns)}"
            raise ValueError(f"target must be one of the columns; {got}.")
        if len(columns) == 1:
            raise ValueError("columns holds only the target; describe at least one more column.")
    with _noting(mistakes):
        if not isinstance(groups, list | tuple) or len({str(name) for name in groups}) != len(groups):
            raise ValueError(f"groups must list columns, each once, got {groups!r}.")
        for name in groups:
            if not isinstance(name, str) or name not in columns:
                raise ValueError(f"groups must list columns, got {name!r}{_closest(name, columns)}.")
            if isinstance(columns[name].domain, Real):
                raise ValueError(f"groups must list category or bool columns; {name!r} is real.")
    if mistakes:
        return {}
    goal = columns.pop(str(target))
    return {"target": goal, "columns": tuple(columns.values()), "groups": tuple(groups)}


def _arrays(table: Mapping[str, Any], within: str, mistakes: list[str]) -> dict[str, Any]:
    inputs, targets = table.get("inputs"), table.get("targets")
    if not isinstance(inputs, Mapping) or not isinstance(targets, Mapping):
        mistakes.append(
            f"inputs and targets must both be tables: [{within}inputs] low, high, shape and [{within}targets] classes."
        )
        return {}
    parts: dict[str, Any] = {}
    with _noting(mistakes, f"{within}inputs"):
        _require_keys(inputs, ("low", "high", "shape"))
        shape = inputs.get("shape")
        if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 4:
            raise ValueError(f"shape must list 1 to 4 sizes of one record, as in [1, 28, 28], got {shape!r}.")
        parts["inputs"] = ArrayInputs(*_bounds(inputs), tuple(_size("shape", size) for size in shape))
    with _noting(mistakes, f"{within}targets"):
        _require_keys(targets, ("classes",) if "classes" in targets else ("classes", "low", "high"))
        goal = _category("classes", targets["classes"]) if "classes" in targets else Real(*_bounds(targets))
        parts["target"] = Field("targets", goal)
    return parts


def _persons(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return by which ids people are told apart."""
    person = table.get("person")
    missing = _check.one_of("missing_person", table.get("missing_person", MISSING[0]), MISSING)
    if person is None:
        if "missing_person" in table:
            raise ValueError("missing_person goes with person, the column of ids; name it too.")
        return {}
    if not isinstance(person, str) or not person.strip():
        raise ValueError(f"person must name the column of ids, got {person!r}.")
    if person in table.get("columns", ("inputs", "targets")):
        raise ValueError(f"person names {person!r}, which says whose records they are: leave it out of the columns.")
    return {"person": person, "missing_person": missing}


def _domain(name: str, entry: Any, *, is_target: bool) -> Domain:
    """Return what a column holds."""
    if not name or name != name.strip():
        raise ValueError("a column's name must not be empty, nor start or end with a space.")
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    if kind not in _COLUMN:
        got = "it is missing" if kind is None else f"got {kind!r}{_closest(kind, _COLUMN)}"
        raise ValueError(f"type must be one of {_listed(_COLUMN)}; {got}.")
    _require_keys(entry, _COLUMN[kind])
    if kind == "bool":
        return Bool()
    if kind == "category":
        return _category("values", entry.get("values"))
    if is_target and entry.get("scale", "linear") != "linear":
        raise ValueError("scale must be 'linear' for the target, so that predictions can be restored.")
    return Real(*_bounds(entry), **{key: entry[key] for key in ("scale", "whole") if key in entry})


def _bounds(entry: Mapping[str, Any]) -> tuple[float, float]:
    for key in ("low", "high"):
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
            got = "it is missing" if value is None else f"got {value!r}"
            raise ValueError(f"{key} must be a finite number known beforehand, not read off the data; {got}.")
    bounds = Real(entry["low"], entry["high"]).bounds or (0.0, 1.0)
    if not math.isfinite(1.0 / (bounds[1] - bounds[0])):
        raise ValueError("low and high are too close to one another.")
    return bounds


def _category(key: str, listed: object) -> Category:
    """Return a category of listed values; whole numbers count as their texts."""
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{key} must list the values, got {listed!r}.")
    return Category(*(str(value) if type(value) is int else value for value in listed))


def _size(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return value


def _require_keys(entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in entry:
        if key not in known:
            raise ValueError(f"unknown key {key!r}{_closest(key, known) or f'; the keys are {_listed(known)}'}.")


def _closest(word: object, known: Iterable[str]) -> str:
    match = get_close_matches(str(word), list(known), n=1)
    return f", the closest is {match[0]!r}" if match else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
