"""Self-contained pages and pictures about synthetic data, in the look of the privacy label.

`page` puts sections together: no script, no request, every text escaped, readable on a phone, on paper and in the
dark. A section has words, rows of figures, and drawings: pictures of samples, bars, charts.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacita._version import __version__
from tacita.label import Chart, Series
from tacita.report.charts import draw, load_matplotlib
from tacita.report.page import template

OWNER = ("For the data's owner.", "Everything here was computed from the data: do not publish.")
PUBLIC = ("Made from the released set alone.", "Safe to publish where the release is.")
THIS = "This release"
LIMIT = "What it does not show"
GAP = 4  # pixels between the pictures of a grid

Points = Sequence[tuple[float, float]]
State = Literal["", "holds", "open", "warning"]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Samples as pixels.

    Attributes:
        png: The file, as `grid_png` makes it.
        alt: What it shows, for those who cannot see it.
        name: A heading above it.
        caption: Words below it.
    """

    png: bytes
    alt: str
    name: str = ""
    caption: str = ""

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
    """

    name: str
    values: tuple[str, ...]
    shares: tuple[float, ...]
    others: tuple[float, ...] = ()
    compared: str = ""


Drawing = Picture | Bars | Chart


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        text: What is seen here, in plain words; an empty line starts a new paragraph.
        drawings: Shown side by side.
        rows: Figures as (name, value, what it does not show).
        heads: What stands above the rows.
        note: Small print below.
        state: Colours the text as a verdict: `holds`, `open` or `warning`.
    """

    title: str
    text: str
    drawings: Sequence[Drawing] = ()
    rows: Sequence[tuple[str, str, str]] = ()
    heads: tuple[str, str, str] = ("Figure", "Value", LIMIT)
    note: str = ""
    state: State = ""


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
    shown = [(section, list(_shown(section, f"chart-{place}"))) for place, section in enumerate(sections)]
    return template("tacita.synthesis", "page.html.j2").render(
        title=title,
        lead=lead,
        sections=shown,
        owner=owner,
        band=OWNER if owner else PUBLIC,
        version=__version__,
        percent=share_text,
        this=THIS,
    )


def _shown(section: Section, key: str) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield how each drawing is drawn, what of, and the names of the sets in it."""
    for place, drawing in enumerate(section.drawings):
        if isinstance(drawing, Picture):
            yield "picture", drawing, ()
        elif isinstance(drawing, Bars):
            yield "bars", drawing, (drawing.compared,)
        elif figure := draw(f"{key}-{place}", drawing):
            yield "lines", figure, tuple(series.name for series in drawing.series[1:])


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
    if labels is None:
        rows = list(torch.split(torch.arange(len(images)), columns))
    else:
        rows = [(labels == c).nonzero()[:columns, 0] for c in range(int(labels.max()) + 1)]
    factor = max(1, math.ceil(cell / max(images.shape[2:])))
    pixels = images.detach().nan_to_num().clamp(0.0, 1.0).mul(255.0).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    high, across = pixels.shape[1:3]
    sheet = np.zeros((len(rows) * (high + GAP) - GAP, columns * (across + GAP) - GAP, 4), dtype=np.uint8)
    for i, row in enumerate(rows):
        for j, index in enumerate(row.tolist()):
            top, left = i * (high + GAP), j * (across + GAP)
            sheet[top : top + high, left : left + across, :3] = pixels[index]
            sheet[top : top + high, left : left + across, 3] = 255
    load_matplotlib()
    from matplotlib.image import imsave

    raw, nameless = BytesIO(), {"Software": None}  # the same picture gives the same bytes, whatever drew it
    imsave(raw, sheet, format="png", metadata=nameless)  # type: ignore[arg-type]
    return raw.getvalue()


def two_lines(names: tuple[str, str], first: Points, second: Points, *, heading: str, **words: str) -> Chart:
    """Return a chart of this set and, if it has points, of one to compare with.

    Args:
        names: What the two lines are called.
        first: Points of this set.
        second: Points of the other; empty for none.
        heading: A heading above the chart.
        words: `description`, `x_title`, `y_title` and, if wanted, `caption`.

    Returns:
        The chart.
    """
    series = [Series(hue="typical", name=names[0], points=tuple(first))]
    if second:
        series.append(Series(hue="plain", name=names[1], points=tuple(second)))
    return Chart(heading=heading, series=tuple(series), **{"caption": "", **words})  # type: ignore[arg-type]


def share_text(share: float) -> str:
    """Format a share as a percentage with one decimal.

    Examples:
        >>> share_text(0.1234), share_text(0.0002), share_text(0.0)
        ('12.3%', 'under 0.1%', '0%')
    """
    if 0.0 < share < 0.0005:
        return "under 0.1%"
    return f"{100.0 * share:.1f}".removesuffix(".0") + "%"
