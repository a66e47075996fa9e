"""Numbers and tables in Markdown, for the pages that experiments write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import mean, median

from experiments.rows import Rows


def digits(value: float) -> str:
    """Return three digits, or four for thousands, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "infinite"
    if value >= 1000:
        return f"{value:,.0f}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def bound(value: float) -> str:
    """Return three digits of an upper bound, rounded up."""
    if not math.isfinite(value):
        return "infinite"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return digits(math.ceil(value / unit * (1.0 - 1e-12)) * unit)


def up(value: float, places: int = 2) -> str:
    """Return an upper bound with so many decimals, rounded up."""
    unit = 10.0**-places
    return f"{math.ceil(value / unit * (1.0 - 1e-12)) * unit:.{places}f}"


def spread(values: Iterable[float]) -> str:
    """Return the median of several seeds, and their range."""
    low, *_, high = ordered = sorted([*values] * 2)
    return digits(median(ordered)) + (f" ({digits(low)}–{digits(high)})" if digits(low) != digits(high) else "")


def percents(values: Iterable[float], places: int = 1) -> str:
    """Return the mean of several seeds' percentages, and their range."""
    found = list(values)
    low, high = f"{min(found):.{places}f}", f"{max(found):.{places}f}"
    return f"{mean(found):.{places}f}%" + (f" ({low}–{high})" if low != high else "")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def cost(rows: Rows, prefix: str = "") -> str:
    """Return the CPU time of the rows whose names begin with a prefix."""
    minutes = sum(row["cpu_minutes"] for name, row in rows.items() if name.startswith(prefix))
    return f"{60 * minutes:.0f} s of CPU" if minutes < 3 else f"{minutes:.0f} CPU minutes"
