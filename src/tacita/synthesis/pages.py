"""Self-contained pages and pictures about synthetic data, in the look of the privacy label.

`page` puts sections together: no script, no request, every text escaped, readable on a phone, on paper and in the
dark. A section has words, rows of figures, and drawings: pictures of samples, bars, lines.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita.label import Chart, Series
from tacita.report import figures
from tacita.report.charts import chart_figure
from tacita.report.curves import load_matplotlib
from tacita.report.page import template
from tacita.report.units import version

OWNER = ("For the data's owner.", "Everything here was computed from the data: do not publish.")
PUBLIC = ("Made from the released set alone.", "Safe to publish where the release is.")
THIS = "This release"
LIMIT = "What it does not show"
MOST_BARS = 12
GAP = 4  # pixels between the pictures of a grid
_PNG = b"\x89PNG\r\n\x1a\n"
_BOX = {name: getattr(figures, name) for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM")}

Points = tuple[tuple[float, float], ...]
State = Literal["", "holds", "open", "warning"]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG, such as `grid_png` makes.

    Attributes:
        png: The file.
        alt: What it shows, for those who cannot see it.
        name: A heading above it.
        caption: Words below it.
    """

    png: bytes
    alt: str
    name: str = ""
    caption: str = ""
    kind = "picture"

    def __post_init__(self) -> None:
        if not self.png.startswith(_PNG):
            raise ValueError("png must be the bytes of a PNG file, as grid_png returns them.")
        if not self.alt:
            raise ValueError("alt must say what the picture shows.")

    @property
    def width(self) -> int:
        """How many pixels wide it is."""
        return int.from_bytes(self.png[16:20], "big")

    @property
    def address(self) -> str:
        """The picture as a `data:` address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Shares of named values, each as a bar; below each, if given, the share in a set to compare with.

    Attributes:
        name: A heading above them.
        values: The values' names.
        shares: The share of each, from 0 to 1.
        others: The share of each in the set to compare with; empty if there is none.
        compared: The name of that set.
        caption: Words below them.
    """

    name: str
    values: tuple[str, ...]
    shares: tuple[float, ...]
    others: tuple[float, ...] = ()
    compared: str = ""
    caption: str = ""
    kind = "bars"

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.values) or len(self.others) not in (0, len(self.values)):
            raise ValueError(f"bars need {len(self.values)} shares, one for each value.")
        for share in (*self.shares, *self.others):
            _check.in_range("share", share, 0.0, 1.0 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A chart of lines, and a band between two of its own; `tacita.report.Chart` says what is drawn.

    Attributes:
        chart: Lines, axes and words.
        low: Points of the band's lower edge; empty for no band.
        high: Points of its upper edge.
    """

    chart: Chart
    low: Points = ()
    high: Points = ()
    kind = "lines"

    def figure(self, key: str) -> figures.Figure | None:
        """Return the chart's geometry, or None if there is no line to draw."""
        if min(len(self.low), len(self.high)) < 2:
            return chart_figure(key, self.chart)
        edges = tuple(Series(hue="plain", name="edge", points=points) for points in (self.low, self.high))
        drawn = chart_figure(key, replace(self.chart, series=self.chart.series + edges))
        if drawn is None or [line.name for line in drawn.lines[-2:]] != ["edge", "edge"]:
            return chart_figure(key, self.chart)  # an edge has no place on the chart
        *lines, low, high = drawn.lines
        back = "L".join(reversed(high.path.removeprefix("M").split("L")))
        return replace(drawn, lines=tuple(lines), area=f"{low.path}L{back}Z")


Drawing = Picture | Bars | Lines


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        text: What is seen here, in plain words; an empty line starts a new paragraph.
        figure: A drawing, or several side by side.
        rows: Figures as (name, value, what it does not show).
        heads: What stands above the rows.
        note: Small print below.
        state: Colours the text as a verdict: `holds`, `open` or `warning`.
    """

    title: str
    text: str
    figure: Drawing | Sequence[Drawing] | None = None
    rows: Sequence[tuple[str, str, str]] = ()
    heads: tuple[str, str, str] = ("Figure", "Value", LIMIT)
    note: str = ""
    state: State = ""

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """The drawings, one or several."""
        return (self.figure,) if isinstance(self.figure, Picture | Bars | Lines) else tuple(self.figure or ())


def page(title: str, lead: str, sections: Sequence[Section], *, owner: bool) -> str:
    """Return a complete HTML document.

    Args:
        title: The heading.
        lead: What the page is about, in a sentence or two.
        sections: The parts, in order.
        owner: Whether anything on it was computed from private data. It decides the banner and nothing else.

    Returns:
        The document, to be written as UTF-8. Equal arguments give equal bytes.

    Raises:
        ImportError: If jinja2 is missing; the message names the install command.
    """
    shown = [_drawn(section, index) for index, section in enumerate(sections)]
    band = OWNER if owner else PUBLIC
    return template("tacita.synthesis", "page.html.j2").render(
        title=title,
        lead=lead,
        sections=shown,
        owner=owner,
        band=band,
        box=_BOX,
        version=version(),
        percent=share_text,
        this=THIS,
    )


def grid_png(images: Tensor, *, columns: int, labels: Tensor | None = None, cell: int = 48) -> bytes:
    """Return pictures of samples in rows, with thin transparent gaps and crisp pixels.

    Args:
        images: (n, 1 or 3, height, width); values outside [0, 1] are clipped.
        columns: Pictures in a row.
        labels: Whole numbers. If given, row c holds the first `columns` images of label c, so that a class without
            images is an empty row. If not, the rows are filled in order.
        cell: How many pixels wide and high a picture is at least drawn, by whole factors.

    Returns:
        A PNG file. Equal images give equal bytes.

    Raises:
        ValueError: If the images have another shape.
        ImportError: If matplotlib is missing; the message names the install command.
    """
    if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(f"images must have shape (n, 1 or 3, height, width), got {tuple(images.shape)}.")
    wide = _check.count("columns", columns, high=1000)
    rows = _rows(len(images), wide, labels)
    factor = max(1, math.ceil(_check.count("cell", cell, high=1000) / max(images.shape[2:])))
    pixels = images.detach().nan_to_num().clamp(0.0, 1.0).mul(255.0).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    high, across = pixels.shape[1:3]
    sheet = np.zeros((len(rows) * (high + GAP) - GAP, wide * (across + GAP) - GAP, 4), dtype=np.uint8)
    for i, row in enumerate(rows):
        for j, index in enumerate(row):
            top, left = i * (high + GAP), j * (across + GAP)
            sheet[top : top + high, left : left + across, :3] = pixels[index]
            sheet[top : top + high, left : left + across, 3] = 255
    return _encoded(sheet)


def two_lines(
    names: tuple[str, str], first: Points, second: Points, *, heading: str, description: str, **words: str
) -> Lines:
    """Return a chart of this set and, if it has points, of one to compare with.

    Args:
        names: What the two lines are called.
        first: Points of this set.
        second: Points of the other; empty for none.
        heading: A heading above the chart.
        description: What it shows, for those who cannot see it.
        words: `x_title`, `y_title` and, if wanted, `caption`.

    Returns:
        The chart.
    """
    series = [Series(hue="typical", name=names[0], points=first)]
    if second:
        series.append(Series(hue="plain", name=names[1], points=second))
    return Lines(
        chart=Chart(heading=heading, description=description, series=tuple(series), **{"caption": "", **words})  # type: ignore[arg-type]
    )


def histogram(
    name: str,
    values: Tensor,
    *,
    low: float,
    high: float,
    others: Tensor | None = None,
    compared: str = "",
    bins: int = 20,
) -> Lines:
    """Return how numbers are spread between two public ends.

    Numbers outside go to the outermost bins; what is not a number is left out.

    Args:
        name: A heading above it.
        values: The numbers.
        low: The lower end.
        high: The upper end.
        others: Numbers of a set to compare with.
        compared: The name of that set.
        bins: How many equal steps there are.

    Returns:
        The chart.
    """
    edges = np.linspace(low, high, bins + 1)
    return two_lines(
        (THIS, compared),
        _stairs(edges, values),
        () if others is None else _stairs(edges, others),
        heading=name,
        description=f"How the values of {name} are spread, in {bins} steps from {low:g} to {high:g}.",
        x_title="value",
        y_title="share of the records",
    )


def share_text(share: float) -> str:
    """Format a share as a percentage with one decimal.

    Examples:
        >>> share_text(0.1234), share_text(0.0002), share_text(0.0)
        ('12.3%', 'under 0.1%', '0%')
    """
    if 0.0 < share < 0.0005:
        return "under 0.1%"
    return f"{100.0 * share:.1f}".removesuffix(".0") + "%"


def _drawn(section: Section, index: int) -> dict[str, Any]:
    """Collect what the template shows of a section."""
    drawings = []
    for i, drawing in enumerate(section.drawings):
        shown = drawing.figure(f"chart-{index}-{i}") if isinstance(drawing, Lines) else drawing
        if shown is not None:
            drawings.append((drawing.kind, shown, _legend(drawing)))
    legends = [(), *(legend for _, _, legend in drawings)]  # one that was just shown is not shown again
    return {
        "section": section,
        "paragraphs": [text for text in section.text.split("\n\n") if text.strip()],
        "drawings": [(*drawn, drawn[2] != last) for drawn, last in zip(drawings, legends, strict=False)],
        "dense": len(drawings) > 3 and all(kind != "picture" for kind, _, _ in drawings),
        "limits": any(limit for _, _, limit in section.rows),
    }


def _legend(drawing: Drawing) -> tuple[str, ...]:
    """Return the names of the sets in a drawing, if there are several."""
    if isinstance(drawing, Lines):
        return tuple(series.name for series in drawing.chart.series)
    return (THIS, drawing.compared) if isinstance(drawing, Bars) and drawing.compared else ()


def _rows(count: int, columns: int, labels: Tensor | None) -> list[list[int]]:
    """Return which image stands where."""
    if labels is None:
        return [list(range(start, min(start + columns, count))) for start in range(0, count, columns)]
    if labels.shape != (count,) or int(labels.min()) < 0:
        raise ValueError(f"labels must be {count} whole numbers from 0, one for each image.")
    return [(labels == c).nonzero()[:columns, 0].tolist() for c in range(int(labels.max()) + 1)]


def _encoded(sheet: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    load_matplotlib()
    from matplotlib.image import imsave

    raw = BytesIO()
    nameless: Any = {"Software": None}  # the same picture gives the same bytes, whatever drew it
    imsave(raw, sheet, format="png", metadata=nameless)
    return raw.getvalue()


def _stairs(edges: np.ndarray[Any, np.dtype[np.float64]], values: Tensor) -> Points:
    """Return a histogram's outline."""
    numbers = values.detach().double().flatten().numpy()
    numbers = np.clip(numbers[np.isfinite(numbers)], edges[0], edges[-1])
    shares = np.histogram(numbers, edges)[0] / max(1, len(numbers))
    corners = zip(np.repeat(edges, 2).tolist(), [0.0, *np.repeat(shares, 2).tolist(), 0.0], strict=True)
    return tuple(corners)
