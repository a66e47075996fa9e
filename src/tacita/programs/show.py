"""Released results for people: a table with small plots on a terminal, and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita.posterior.mixtures import BetaMixture, Mixture, Shares
from tacita.posterior.releases import Release
from tacita.programs.results import Noisy
from tacita.report.plots import Panel, Ridge, draw_posteriors

if TYPE_CHECKING:
    from tacita._check import Floats

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLOT_WIDTH = 36
_FIGURE_POINTS = 120


@dataclass(frozen=True, eq=False)
class ReleasedNumber:
    """One number of a result: its best guess, its 95% interval, and its distribution if it has one."""

    name: str
    mean: float
    low: float
    high: float
    posterior: Mixture | None = None


def released_numbers(results: Mapping[str, Any]) -> list[ReleasedNumber]:
    """Return every released number."""
    return [row for name, value in results.items() for row in _numbers(name, value)]


def text_table(results: Mapping[str, Any]) -> str:
    """Return a table with a small plot of each posterior, and what was derived below it."""
    listed = released_numbers(results)
    spans = _spans(listed)
    cells = [("", "value", "95% interval", "")]
    for row in listed:
        mean, low, high = (_number(x, row.high - row.low) for x in (row.mean, row.low, row.high))
        cells.append((row.name, mean, f"{low} to {high}", _plot(row, spans)))
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    lines = ["  ".join((*(f"{c:{w}}" for c, w in zip(row, widths, strict=False)), row[3])).rstrip() for row in cells]
    derived = [f"{n} = {_plain(value)}" for n, value in results.items() if not isinstance(value, Release | Noisy)]
    return "\n".join([*lines, *(["", *derived] if derived else [])])


def write_figure(path: Path, results: Mapping[str, Any]) -> None:
    """Draw every posterior, shares on one axis; the suffix decides the format."""
    listed = [row for row in released_numbers(results) if row.posterior is not None]
    spans = _spans(listed)
    shares = [row for row in listed if isinstance(row.posterior, BetaMixture)]
    panels = [Panel("Shares", tuple(_ridge(row) for row in shares), *spans[shares[0].name])] if shares else []
    panels += [Panel(r.name, (_ridge(r),), *spans[r.name]) for r in listed if r not in shares]
    draw_posteriors(path, panels)


def has_posteriors(results: Mapping[str, Any]) -> bool:
    """Return whether there is anything to draw."""
    return any(isinstance(value, Release) for value in results.values())


def _numbers(name: str, value: Any) -> list[ReleasedNumber]:
    if isinstance(value, Noisy):
        names = [f"{name}: {label}" for label in value.labels] or [name]
        ends = value.interval(0.95)
        return [ReleasedNumber(n, v, *e) for n, v, e in zip(names, value.values, ends, strict=True)]
    if not isinstance(value, Release):
        return []
    posterior = value.posterior
    if isinstance(posterior, Shares):
        known = value.labels or [str(i) for i in range(len(posterior.marginals))]
        return [_row(f"{name}: {label}", one) for label, one in zip(known, posterior.marginals, strict=True)]
    first = value.labels[0] if value.labels else True
    return [_row(name if first is True else f"{name}: {first}", posterior)]


def _number(x: float, width: float) -> str:
    """Return a number with as many decimals as its interval's width calls for."""
    decimals = 1 - math.floor(math.log10(width)) if width > 0.0 else 6
    return f"{x:.{min(max(decimals, 0), 12)}f}"


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _row(name: str, posterior: Mixture) -> ReleasedNumber:
    return ReleasedNumber(name, posterior.mean, *posterior.interval(0.95), posterior)


def _spans(listed: Sequence[ReleasedNumber]) -> dict[str, tuple[float, float]]:
    """Return the axis of each posterior: all shares have one, so that they can be compared."""
    shares = [row for row in listed if isinstance(row.posterior, BetaMixture)]
    low, high = min((r.low for r in shares), default=0.0), max((r.high for r in shares), default=1.0)
    beside = 0.15 * (high - low)
    common = (max(0.0, math.floor((low - beside) * 50) / 50), min(1.0, math.ceil((high + beside) * 50) / 50))
    others = {r.name: r.posterior.interval(0.998) for r in listed if r.posterior is not None and r not in shares}
    return {row.name: common for row in shares} | others


def _plot(row: ReleasedNumber, spans: Mapping[str, tuple[float, float]]) -> str:
    if row.posterior is None:
        return ""
    low, high = spans[row.name]
    heights = np.diff(row.posterior.cdf(np.linspace(low, high, _PLOT_WIDTH + 1)))
    bars = np.ceil(heights / heights.max() * (len(_BLOCKS) - 1) - 0.4).astype(int)
    return f"{low:.4g} {''.join(_BLOCKS[max(bar, 0)] for bar in bars)} {high:.4g}"


def _ridge(row: ReleasedNumber) -> Ridge:
    if row.posterior is None:
        raise ValueError("only posteriors are drawn")
    x: Floats = np.linspace(*row.posterior.interval(0.9998), _FIGURE_POINTS)
    return Ridge(row.name, tuple(x.tolist()), tuple(row.posterior.pdf(x).tolist()), row.mean, row.low, row.high)
