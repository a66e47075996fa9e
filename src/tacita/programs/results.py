"""What a program released: noisy numbers, posteriors, and what was calculated from them; as a table and a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita.posterior.mixtures import BetaMixture, Mixture, Shares
from tacita.posterior.releases import Release
from tacita.report.text import aligned

if TYPE_CHECKING:
    from pathlib import Path

    from tacita.guarantee import Guarantee
    from tacita.posterior.plans import ReleasePlan

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLOT_WIDTH = 36
_FIGURE_POINTS = 120


@dataclass(frozen=True, repr=False)
class Noisy:
    """Released numbers: counts, sums or a mean, with noise whose distribution is known.

    Attributes:
        values: The numbers, in the query's unit.
        labels: What each number is about; empty for a single one.
        plan: How they were made.
        unit: What one step of the noise is worth.
    """

    values: tuple[float, ...]
    labels: tuple[str, ...]
    plan: ReleasePlan
    unit: float

    @property
    def value(self) -> float:
        """The number, if there is only one."""
        if len(self.values) != 1:
            raise ValueError(f"There are {len(self.values)} numbers; use values.")
        return self.values[0]

    @property
    def sd(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.plan.source.sd * self.unit

    def interval(self, level: float = 0.95) -> tuple[tuple[float, float], ...]:
        """Return, for each number, where the one without noise lies with at least this probability."""
        half = self.plan.source.half_width(level) * self.unit
        return tuple((value - half, value + half) for value in self.values)

    def __repr__(self) -> str:
        return f"<Noisy: {self}>"

    def __str__(self) -> str:
        names = [f"{label}: " for label in self.labels] or [""]
        rows = zip(names, self.values, self.interval(), strict=True)
        parts = [f"{name}{value:.6g} ({low:.6g} to {high:.6g})" for name, value, (low, high) in rows]
        return f"{', '.join(parts)}; 95% intervals of the noise; {self.plan.used}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "values": list(self.values),
            "labels": list(self.labels),
            "sd": self.sd,
            "interval_95": [list(ends) for ends in self.interval(0.95)],
            "mechanism": str(self.plan.used),
            "certificate": self.plan.certificate.to_dict(),
        }


@dataclass(frozen=True)
class Failed:
    """A calculation on released results that raised. The releases it was made from are not lost."""

    reason: str

    def __str__(self) -> str:
        return f"failed: {self.reason}"


def calculated(function: Callable[..., object], inputs: Sequence[Any]) -> Any:
    """Return what a function makes of released results; `Failed` if it raises, or an input did."""
    for value in inputs:
        if isinstance(value, Failed):
            return value
    try:
        return function(*inputs)
    except (Exception, SystemExit) as error:
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")


@dataclass(frozen=True, repr=False)
class Results(Mapping[str, Any]):
    """What a program released, by name: `Release` for posteriors, `Noisy` for numbers, and what was derived.

    Attributes:
        guarantee: What is promised for everything together.
        charged: Whether a ledger was charged for it.
    """

    released: Mapping[str, Any]
    guarantee: Guarantee
    charged: bool

    def __getitem__(self, name: str) -> Any:
        return self.released[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.released)

    def __len__(self) -> int:
        return len(self.released)

    def __str__(self) -> str:
        unpaid = "" if self.charged else "\nNot charged to any ledger: pass ledger=, so that what is spent is kept."
        return f"{text_table(self)}\n\n{self.guarantee}{unpaid}"

    def __repr__(self) -> str:
        return f"<Results: {', '.join(self.released)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what was derived and is not plain is given as text."""
        plain = {name: _plain(value) for name, value in self.released.items()}
        return {"schema": 1, "results": plain, "guarantee": self.guarantee.to_dict(), "charged": self.charged}


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Release | Noisy):
        return value.to_dict()
    if isinstance(value, Failed):
        return {"error": value.reason}
    listed = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    try:
        json.dumps(listed, allow_nan=False)
    except (TypeError, ValueError):
        return {"text": str(value)}
    return {"value": listed}


@dataclass(frozen=True, eq=False)
class ReleasedNumber:
    """One number of a result: its best guess, its 95% interval, and its distribution if it has one."""

    name: str
    mean: float
    low: float
    high: float
    posterior: Mixture | None = None


def released_numbers(name: str, value: object) -> list[ReleasedNumber]:
    """Return every number of a result; nothing of what was derived."""
    if isinstance(value, Noisy):
        names = [f"{name}: {label}" for label in value.labels] or [name]
        return [ReleasedNumber(n, v, *ends) for n, v, ends in zip(names, value.values, value.interval(), strict=True)]
    if not isinstance(value, Release):
        return []
    posterior, parts = value.posterior, dict[str, Mixture]()
    if isinstance(posterior, Shares):
        labels = value.labels or range(len(posterior.marginals))
        parts = {f"{name}: {label}": one for label, one in zip(labels, posterior.marginals, strict=True)}
    else:
        whole = not value.labels or value.labels[0] is True
        parts = {name if whole else f"{name}: {value.labels[0]}": posterior}
    return [ReleasedNumber(part, one.mean, *one.interval(0.95), one) for part, one in parts.items()]


def text_table(results: Mapping[str, Any]) -> str:
    """Return a table with a small plot of each posterior, and what was derived below it."""
    numbers = [number for name, value in results.items() for number in released_numbers(name, value)]
    axes, rows = _axes(numbers), []
    for number in numbers:
        width = number.high - number.low
        decimals = min(max(1 - math.floor(math.log10(width)), 0), 12) if width > 0.0 else 6
        mean, low, high = (f"{x:.{decimals}f}" for x in (number.mean, number.low, number.high))
        plot = _plot(number.posterior, *axes[number.name]) if number.posterior is not None else ""
        rows.append((number.name, mean, f"{low} to {high}", plot))
    derived = {name: value for name, value in results.items() if not isinstance(value, Release | Noisy)}
    below = [
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in derived.items()
    ]
    return "\n".join([*aligned(("", "value", "95% interval", ""), rows), *(["", *below] if below else [])])


def write_figure(path: Path, results: Mapping[str, Any]) -> None:
    """Draw every posterior, if there are any, shares on one axis; the suffix decides the format."""
    from tacita.report.plots import Panel, Ridge, draw_posteriors

    numbers = [number for name, value in results.items() for number in released_numbers(name, value)]
    axes, panels, shares = _axes(numbers), [], []
    for number in numbers:
        if number.posterior is None:
            continue
        x = np.linspace(*number.posterior.interval(0.9998), _FIGURE_POINTS)
        density = tuple(number.posterior.pdf(x).tolist())
        ridge = Ridge(number.name, tuple(x.tolist()), density, number.mean, number.low, number.high)
        if isinstance(number.posterior, BetaMixture):
            shares.append(ridge)
        else:
            panels.append(Panel(number.name, (ridge,), *axes[number.name]))
    if shares:
        panels.insert(0, Panel("Shares", tuple(shares), *axes[shares[0].name]))
    if panels:
        draw_posteriors(path, panels)


def _axes(numbers: Sequence[ReleasedNumber]) -> dict[str, tuple[float, float]]:
    """Return the axis of each posterior: all shares have one, so that they can be compared."""
    shares = [number for number in numbers if isinstance(number.posterior, BetaMixture)]
    low, high = min((s.low for s in shares), default=0.0), max((s.high for s in shares), default=1.0)
    beside = 0.15 * (high - low)
    common = (max(0.0, math.floor((low - beside) * 50) / 50), min(1.0, math.ceil((high + beside) * 50) / 50))
    axes = {n.name: n.posterior.interval(0.998) for n in numbers if n.posterior is not None}
    return axes | {share.name: common for share in shares}


def _plot(posterior: Mixture, low: float, high: float) -> str:
    heights = np.diff(posterior.cdf(np.linspace(low, high, _PLOT_WIDTH + 1)))
    bars = np.ceil(heights / heights.max() * (len(_BLOCKS) - 1) - 0.4).astype(int)
    return f"{low:.4g} {''.join(_BLOCKS[max(bar, 0)] for bar in bars)} {high:.4g}"
