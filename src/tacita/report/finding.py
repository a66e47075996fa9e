"""What an attack found, as plain data for the owner's label: a sentence, a table, a chart, a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tacita.report import fields

State = Literal["not-refuted", "open", "warning"]
_BEFORE = {"holds": "not-refuted"}  # what older files call a state
Hue = Literal["anyone", "typical", "spread", "plain"]

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart, in one of the label's colours. A histogram is a line with corners."""

    hue: Hue
    name: str
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        fields.one_of("series hue", self.hue, get_args(Hue))
        fields.text("series name", self.name)
        fields.several("series points", self.points, tuple)
        for x, y in self.points:
            fields.finite("series points", x)
            fields.finite("series points", y)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"hue": self.hue, "name": self.name, "points": [list(point) for point in self.points]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Series:
        """Rebuild what `to_dict` wrote."""
        return cls(hue=data["hue"], name=data["name"], points=fields.pairs(data["points"]))


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and what it shows in words.

    `log` makes both axes logarithmic; points that are not above 0 on both have no place there and are left out.
    """

    heading: str
    caption: str
    description: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("heading", "caption", "description", "x_title", "y_title"):
            fields.text(f"chart {name}", getattr(self, name))
        fields.several("chart series", self.series, Series)
        if not isinstance(self.log, bool):
            raise TypeError("chart log must be true or false.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return vars(self) | {"series": [series.to_dict() for series in self.series]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Chart:
        """Rebuild what `to_dict` wrote."""
        series = tuple(Series.from_dict(each) for each in fields.rows(data["series"]))
        return cls(**{**data, "series": series})


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An epsilon that an attack proved, beside the one that the label claims.

    Attributes:
        who: About which record.
        lower: The mechanism has at least this epsilon: a lower confidence bound.
        upper: The label claims at most this epsilon. It may be infinite: nothing is claimed.
        state: As for a finding. A bound that is above its claim is shown as a warning in any case.
    """

    who: str
    lower: float
    upper: float
    state: State

    def __post_init__(self) -> None:
        fields.text("bound who", self.who)
        fields.epsilon("bound lower", self.lower)
        fields.finite("bound lower", self.lower)
        fields.epsilon("bound upper", self.upper)
        fields.one_of("bound state", self.state, get_args(State))

    @property
    def broken(self) -> bool:
        """Whether the attack proved more than the label claims."""
        return self.lower > self.upper

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. An infinite epsilon is the string "infinity"."""
        return {name: fields.to_plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Bound:
        """Rebuild what `to_dict` wrote."""
        read = {"upper": fields.from_plain(data["upper"]), "state": _BEFORE.get(data["state"], data["state"])}
        return cls(**{**data, **read})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack's result.

    Attributes:
        key: Which attack; a label shows one finding of a key.
        heading: Its name, for people.
        state: `not-refuted` if the attack could have broken a claim, or shown a leak, and did not: that proves neither.
            `warning` if it did, `open` if it cannot be judged.
        sentence: The result in plain words.
        columns: Heads of the table.
        rows: Its rows, as many texts each as there are columns.
        bounds: Lower bounds on epsilon beside the claims.
        chart: A chart to draw.
        picture: A PNG as a `data:` address.
        picture_text: What the picture shows, for those who cannot see it. A picture needs one.
        notes: What the figures rest on, in sentences.
        tests_claim: Whether the attack tests a claim of the label, so that a warning breaks it. False if it looks for
            a leak that no claim excludes.
    """

    key: str
    heading: str
    state: State
    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    bounds: tuple[Bound, ...] = ()
    chart: Chart | None = None
    picture: str = ""
    picture_text: str = ""
    notes: tuple[str, ...] = ()
    tests_claim: bool = True

    def __post_init__(self) -> None:
        for name in ("key", "heading", "sentence", "picture", "picture_text"):
            fields.text(f"finding {name}", getattr(self, name))
        fields.one_of("finding state", self.state, get_args(State))
        fields.several("finding columns", self.columns, str)
        fields.several("finding rows", self.rows, tuple)
        for row in self.rows:
            fields.several("finding row", row, str)
            if len(row) != len(self.columns):
                raise ValueError(f"finding rows must have {len(self.columns)} texts each, as there are columns.")
        fields.several("finding bounds", self.bounds, Bound)
        if self.chart is not None and not isinstance(self.chart, Chart):
            raise TypeError("finding chart must be a Chart or None.")
        _check_picture(self.picture, self.picture_text)
        fields.several("finding notes", self.notes, str)
        if not isinstance(self.tests_claim, bool):
            raise TypeError("finding tests_claim must be true or false.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` reads it."""
        return vars(self) | {
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "bounds": [bound.to_dict() for bound in self.bounds],
            "chart": None if self.chart is None else self.chart.to_dict(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Rebuild what `to_dict` wrote. Anything else is refused.

        Files written before `tests_claim` existed are read as testing a claim: then a warning is not weakened.
        """
        read = {
            "state": _BEFORE.get(data["state"], data["state"]),
            "columns": tuple(fields.rows(data["columns"])),
            "rows": tuple(tuple(fields.rows(row)) for row in fields.rows(data["rows"])),
            "bounds": tuple(Bound.from_dict(bound) for bound in fields.rows(data["bounds"])),
            "chart": None if data["chart"] is None else Chart.from_dict(data["chart"]),
            "notes": tuple(fields.rows(data["notes"])),
        }
        return cls(**{**data, **read})


def _check_picture(picture: str, words: str) -> None:
    """Refuse every address but an embedded PNG's: nothing else may be fetched or run from the page."""
    if picture and not _PICTURE.fullmatch(picture):
        raise ValueError('finding picture must be empty or "data:image/png;base64," and base64 characters.')
    if picture and not words:
        raise ValueError("finding picture needs a picture_text that says what it shows.")
