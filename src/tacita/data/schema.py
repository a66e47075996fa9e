"""The public description of a table: everything an encoding may depend on besides the record itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tacita.data.domains import SCALES, Bool, Category, Domain, Real

TYPES = ("real", "category", "bool")
POLICIES = ("zero", "drop", "error")

_COMMON = ("file", "test", "missing", "nominal_size")
_TABLE = (*_COMMON, "target", "groups", "columns")
_ARRAYS = (*_COMMON, "inputs", "targets")
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
        if isinstance(self.domain, Bool):
            return {"type": "bool"}
        entry: dict[str, Any] = {"type": "real", "low": self.bounds[0], "high": self.bounds[1]}
        entry |= {"scale": self.domain.scale} if self.domain.scale != "linear" else {}
        return entry | ({"whole": True} if self.domain.whole else {})

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
        file: The file, as the configuration names it.
        test: The test file, as the configuration names it.
        nominal_size: A public size of the training set.
    """

    target: Field
    columns: tuple[Field, ...] = ()
    inputs: ArrayInputs | None = None
    missing: str = "zero"
    groups: tuple[str, ...] = ()
    file: str | None = None
    test: str | None = None
    nominal_size: int | None = None

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], *, within: str = "") -> Schema:
        """Return the schema that a TOML table (as tomllib reads it) describes.

        Args:
            table: The parsed table.
            within: Where the table is in its file, as in `"data."`, so that a mistake names the header to change.

        Raises:
            ValueError: With one line for every mistake.

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
        read = _arrays if "inputs" in table or "targets" in table else _table
        parts = read(table, within, mistakes)
        parts |= _common(table, mistakes)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return cls(**parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `from_dict` reads, without what it takes by default."""
        common = {"file": self.file, "test": self.test, "nominal_size": self.nominal_size}
        table: dict[str, Any] = {key: value for key, value in common.items() if value is not None}
        if self.missing != "zero":
            table["missing"] = self.missing
        if self.inputs is not None:
            table["inputs"] = {"low": self.inputs.low, "high": self.inputs.high, "shape": list(self.inputs.shape)}
            bounds = self.target_range
            table["targets"] = (
                {"classes": list(self.target.labels or ())} if bounds is None else {"low": bounds[0], "high": bounds[1]}
            )
            return table
        columns = {field.name: field.to_dict() for field in (*self.columns, self.target)}
        return table | {"target": self.target.name, "groups": list(self.groups), "columns": columns}

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


def _common(table: Mapping[str, Any], mistakes: list[str]) -> dict[str, Any]:
    for key in ("file", "test"):
        if not isinstance(table.get(key, ""), str):
            mistakes.append(f"{key} must be a file name in quotes.")
    missing = table.get("missing", "zero")
    if missing not in POLICIES:
        mistakes.append(f"missing must be one of {_listed(POLICIES)}, got {missing!r}.")
    size = table.get("nominal_size")
    if size is not None and not _whole(size):
        mistakes.append(f"nominal_size must be a whole number of at least 1, got {size!r}.")
    return {"file": table.get("file"), "test": table.get("test"), "missing": missing, "nominal_size": size}


def _table(table: Mapping[str, Any], within: str, mistakes: list[str]) -> dict[str, Any]:
    _unknown("", table, _TABLE, mistakes)
    listed = table.get("columns")
    if not isinstance(listed, Mapping) or not listed:
        mistakes.append(f"columns is missing: describe every column you use in a table [{within}columns.NAME].")
        return {}
    columns = {name: _field(name, f"{within}columns.{name}", entry, mistakes) for name, entry in listed.items()}
    target = table.get("target")
    if not isinstance(target, str) or target not in columns:
        got = "it is missing" if target is None else f"got {target!r}{_closest(target, columns)}"
        mistakes.append(f"target must be one of the columns; {got}.")
        return {}
    groups = _groups(table.get("groups", []), columns, mistakes)
    goal = columns.pop(target)
    _target(f"{within}columns.{target}", goal, mistakes)
    if not columns:
        mistakes.append("columns holds only the target; describe at least one more column.")
    return {"target": goal, "columns": tuple(columns.values()), "groups": groups}


def _field(name: str, where: str, entry: object, mistakes: list[str]) -> Field:
    if not name or name != name.strip():
        mistakes.append(f"{where}: a column's name must not be empty, nor start or end with a space.")
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or kind not in TYPES:
        got = "it is missing" if kind is None else f"got {kind!r}{_closest(kind, TYPES)}"
        mistakes.append(f"{where}: type must be one of {_listed(TYPES)}; {got}.")
        return Field(name, Bool())
    _unknown(where, entry, _COLUMN[kind], mistakes)
    if kind == "bool":
        return Field(name, Bool())
    if kind == "category":
        return Field(name, _category(f"{where}: values", entry.get("values"), mistakes))
    before = len(mistakes)
    low, high = _bounds(where, entry, mistakes)
    scale = entry.get("scale", "linear")
    if scale not in SCALES:
        mistakes.append(f"{where}: scale must be one of {_listed(SCALES)}, got {scale!r}.")
    whole = entry.get("whole", False)
    if not isinstance(whole, bool) or (whole and not (low.is_integer() and high.is_integer())):
        mistakes.append(
            f"{where}: whole must be true or false, and true needs a low and a high that are whole numbers."
        )
    return Field(name, Real(low, high, scale, whole) if len(mistakes) == before else Real(0.0, 1.0))


def _arrays(table: Mapping[str, Any], within: str, mistakes: list[str]) -> dict[str, Any]:
    _unknown("", table, _ARRAYS, mistakes)
    inputs, targets = table.get("inputs"), table.get("targets")
    if not isinstance(inputs, Mapping) or not isinstance(targets, Mapping):
        mistakes.append(
            f"inputs and targets must both be tables: [{within}inputs] low, high, shape and [{within}targets] classes."
        )
        return {}
    _unknown(f"{within}inputs", inputs, ("low", "high", "shape"), mistakes)
    low, high = _bounds(f"{within}inputs", inputs, mistakes)
    shape = inputs.get("shape")
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 4 or not all(map(_whole, shape)):
        mistakes.append(
            f"{within}inputs: shape must list 1 to 4 sizes of one record, as in [1, 28, 28], got {shape!r}."
        )
        shape = ()
    if "classes" in targets:
        _unknown(f"{within}targets", targets, ("classes",), mistakes)
        goal = Field("targets", _category(f"{within}targets: classes", targets["classes"], mistakes))
    else:
        _unknown(f"{within}targets", targets, ("classes", "low", "high"), mistakes)
        before = len(mistakes)
        bounds = _bounds(f"{within}targets", targets, mistakes)
        goal = Field("targets", Real(*bounds) if len(mistakes) == before else Real(0.0, 1.0))
    _target(f"{within}targets", goal, mistakes)
    return {"target": goal, "inputs": ArrayInputs(low, high, tuple(shape))}


def _target(where: str, field: Field, mistakes: list[str]) -> None:
    if isinstance(field.domain, Category) and len(field.domain.labels) == 1:
        mistakes.append(f"{where}: a target needs at least two classes, got one.")
    if isinstance(field.domain, Real) and field.domain.scale != "linear":
        mistakes.append(f"{where}: scale must be 'linear' for the target, so that predictions can be restored.")


def _groups(groups: object, columns: Mapping[str, Field], mistakes: list[str]) -> tuple[str, ...]:
    if not isinstance(groups, list | tuple) or len({str(name) for name in groups}) != len(groups):
        mistakes.append(f"groups must list columns, each once, got {groups!r}.")
        return ()
    for name in groups:
        if not isinstance(name, str) or name not in columns:
            mistakes.append(f"groups must list columns, got {name!r}{_closest(name, columns)}.")
        elif isinstance(columns[name].domain, Real):
            mistakes.append(f"groups must list category or bool columns; {name!r} is real.")
    return tuple(groups)


def _bounds(where: str, entry: Mapping[str, Any], mistakes: list[str]) -> tuple[float, float]:
    found = []
    for key in ("low", "high"):
        value = entry.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300:  # NaN fails
            found.append(float(value))
        else:
            got = "it is missing" if value is None else f"got {value!r}"
            mistakes.append(f"{where}: {key} must be a finite number known beforehand, not read off the data; {got}.")
    if len(found) < 2:
        return 0.0, 1.0
    low, high = found
    if not low < high or not math.isfinite(1.0 / (high - low)):
        mistakes.append(f"{where}: low must be below high, got low={low:g}, high={high:g}.")
    return low, high


def _category(where: str, listed: object, mistakes: list[str]) -> Category:
    if not isinstance(listed, list | tuple) or not listed:
        mistakes.append(f"{where} must list at least one value, got {listed!r}.")
        return Category.of_any_size(())
    for value in listed:
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int)
            or not str(value)
            or str(value) != str(value).strip()
        ):
            mistakes.append(
                f"{where} must be text that neither is empty nor starts or ends with a space, got {value!r}."
            )
    names = [str(value) for value in listed]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        mistakes.append(f"{where} must not repeat a value, got {name!r} more than once.")
    return Category.of_any_size(names)


def _unknown(where: str, entry: Mapping[str, Any], known: tuple[str, ...], mistakes: list[str]) -> None:
    for key in entry:
        if key not in known:
            hint = _closest(key, known) or f"; the keys are {_listed(known)}"
            mistakes.append(f"{where}{': ' if where else ''}unknown key {key!r}{hint}.")


def _closest(word: object, known: Any) -> str:
    match = get_close_matches(str(word), list(known), n=1)
    return f", the closest is {match[0]!r}" if match else ""


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
