"""What an attack found, as plain data for the owner's label: a sentence, a table, a chart, a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["holds", "open", "warning"]
Hue = Literal["anyone", "typical", "spread", "plain"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart, in one of the label's colours. A histogram is a line with corners."""

    hue: Hue
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and what it shows in words. `log` makes both axes logarithmic."""

    heading: str
    caption: str
    description: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack's result.

    Attributes:
        key: Which attack: canaries, typical, membership, inversion, leak.
        heading: Its name, for people.
        state: `holds` if the claim stood, `warning` if it was broken or something leaks, `open` otherwise.
        sentence: The result in plain words.
        columns: Heads of the table.
        rows: Its rows, as many texts each as there are columns.
        chart: A chart to draw.
        picture: A PNG as a `data:` address.
        picture_text: What the picture shows, for those who cannot see it.
        notes: What the figures rest on, in sentences.
    """

    key: str
    heading: str
    state: State
    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    chart: Chart | None = None
    picture: str = ""
    picture_text: str = ""
    notes: tuple[str, ...] = ()
