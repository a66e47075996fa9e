"""A ledger as a page: who spent what of a dataset's budget, over time, and what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tacita._numbers import delta_text, epsilon_text, odds_text, round_up_text
from tacita._version import __version__
from tacita.cli.ledger import assumed
from tacita.label import Chart, Points, Series
from tacita.ledger.history import Entry, History, Moment, history
from tacita.profile import Profile
from tacita.report.charts import draw
from tacita.report.page import template

if TYPE_CHECKING:
    from tacita.ledger import Ledger

_SHOWN = 200  # runs and releases on a page; the latest ones
NOBODY = "not said"
BAND = (
    "For the owner and the team.",
    "This page names people and runs, and when a run ended may depend on the data: do not publish it.",
)
_STATES = {
    "released": "released",
    "open": "opened, nothing charged",
    "charged in part": "steps left",
    "charged": "all steps charged",
    "ended": "ended early",
    "reserved": "reserved, can be cancelled",
    "cancelled": "reservation cancelled",
}


def ledger_html(ledger: Ledger) -> str:
    """Return a complete HTML document, to be written as UTF-8: no script, no request. Equal ledgers give equal pages.

    Raises:
        ImportError: If jinja2 or matplotlib is missing; the message names the install command.
    """
    rows = ledger.rows()
    return template("tacita.cli", "ledger.html.j2").render(_view(ledger, history(rows), rows[-1].time))


def _view(ledger: Ledger, found: History, last: str) -> dict[str, Any]:
    budget, spent = ledger.budget, ledger.spent() if ledger.budget else ledger.spent(1e-5)
    total, delta = (spent.epsilon, spent.delta) if spent else (0.0, budget[1] if budget else 1e-5)
    held = ledger.reservations()
    entries = sorted(found.entries, key=lambda entry: entry.last)[-_SHOWN:][::-1]
    return {
        "band": BAND,
        "title": ledger.data or ledger.name,
        "place": ledger.name,
        "unit": ledger.unit,
        "relation": {"add_remove": "added or removed", "replace_one": "replaced by another"}[ledger.neighbours],
        "delta": delta_text(delta),
        "spent": epsilon_text(total),
        "budget": f"{budget[0]:g}" if budget else "",
        "left": _left(budget[0], total) if budget else "",
        "filled": _percent(total, budget[0]) if budget else 0.0,
        "window": str(ledger.window) if ledger.window else "",
        "assumed": [one.text for one in assumed(ledger)],
        "meaning": _meaning(ledger, total, delta),
        "planned": epsilon_text(ledger.planned_epsilon(delta)) if spent else "",
        "analysts": _analysts(ledger, total),
        "nobody": NOBODY,
        "reserved": [_row(entry) for entry in found.entries if entry.name in held and not entry.what],
        "entries": [_row(entry) for entry in entries],
        "more": len(found.entries) - len(entries),
        "past": [
            (str(days) if days else "before there were windows", epsilon_text(epsilon), delta_text(at))
            for days, epsilon, at in ledger.past()
        ],
        "decisions": [(_when(one.time), one.analyst or NOBODY, one.what) for one in found.decisions[::-1]],
        "chart_": draw("spending", _chart(found.moments)),
        "head": ledger.head,
        "last": _when(last),
        "version": __version__,
    }


def _meaning(ledger: Ledger, epsilon: float, delta: float) -> str:
    """Return what the total means to an attacker, and what the budget does if charges were chosen by what was seen."""
    unit, where = ledger.unit, " from the data of its window" if ledger.window else ""
    if epsilon == 0.0:
        return f"Nothing was released{where} yet."
    if not math.isfinite(epsilon):
        return f"Nothing limits what was released about one {unit}: a charge has no bound."
    success = odds_text(Profile.of_pair(epsilon, delta).attack_success())
    said = (
        f"Whoever sees everything released{where}, and guesses whether one {unit} was used, is right at most "
        f"{success}, where guessing blindly is right 50 times"
    )
    if ledger.budget is None:
        return f"{said}; provided that no charge was chosen in the light of earlier releases."
    allowed = odds_text(Profile.of_pair(*ledger.budget).attack_success())
    return f"{said}. Where charges were chosen in the light of earlier releases, the budget is what holds: {allowed}."


def _left(budget: float, total: float) -> str:
    return round_up_text(max(0.0, budget - total), up=False) if math.isfinite(total) else "0"


def _percent(part: float, whole: float) -> float:
    return round(100.0 * min(1.0, part / whole), 1) if whole > 0.0 and math.isfinite(part) else 100.0


def _analysts(ledger: Ledger, total: float) -> list[dict[str, Any]]:
    """Return each analyst's own charges; bars are of the share, or of the budget, or of the total."""
    largest = ledger.budget[0] if ledger.budget else total
    return [
        {
            "name": name or NOBODY,
            "epsilon": epsilon_text(one.epsilon),
            "share": "" if one.share is None else f"{one.share:g}",
            "filled": _percent(one.epsilon, largest if one.share is None else one.share),
        }
        for name, one in ledger.analysts().items()
    ]


def _row(entry: Entry) -> dict[str, str]:
    return {
        "name": entry.name,
        "what": entry.what or f"A run of {entry.planned:,} planned steps",
        "analyst": entry.analyst or NOBODY,
        "when": _between(entry.first, entry.last),
        "steps": "" if entry.what else f"{entry.charged:,} of {entry.planned:,}",
        "epsilon": epsilon_text(entry.epsilon),
        "state": _STATES[entry.state],
    }


def _when(time: str) -> str:
    return f"{time[:10]} {time[11:16]}"


def _between(first: str, last: str) -> str:
    if first[:16] == last[:16]:
        return _when(first)
    return f"{_when(first)} to {last[11:16] if first[:10] == last[:10] else _when(last)}"


def _chart(moments: Sequence[Moment]) -> Chart | None:
    """Return the total over time as stairs, and the budget beside it."""
    if len(moments) < 2:
        return None
    times = [datetime.fromisoformat(moment.time).timestamp() for moment in moments]
    unit, seconds = _scale(times[-1] - times[0])
    places = [(time - times[0]) / seconds for time in times]
    totals = [(x, one.epsilon) for x, one in zip(places, moments, strict=True) if math.isfinite(one.epsilon)]
    budgets = [(x, one.budget) for x, one in zip(places, moments, strict=True) if one.budget is not None]
    highest = max((y for _, y in totals), default=0.0)
    series = [Series(hue="anyone", name=f"Spent: {epsilon_text(moments[-1].epsilon)}", points=_stairs(totals))]
    if budgets:
        series.append(Series(hue="plain", name=f"Budget: {budgets[-1][1]:g}", points=_stairs(budgets)))
    return Chart(
        heading="Spent over time",
        caption="Every charge and every reservation, all runs and people together. A cancelled reservation is given "
        "back; a window of new data begins at 0.",
        description=f"From {_when(moments[0].time)} to {_when(moments[-1].time)} the total reached epsilon "
        f"{epsilon_text(highest)}, and is {epsilon_text(moments[-1].epsilon)} at the end.",
        series=tuple(series),
        x_title=f"{unit} since {_when(moments[0].time)} UTC",
        y_title="epsilon",
    )


def _scale(span: float) -> tuple[str, float]:
    for unit, seconds in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if span >= 2 * seconds:
            return unit, seconds
    return "seconds", 1.0


def _stairs(points: Sequence[tuple[float, float]]) -> Points:
    """Go along at the old height, then up or down."""
    corners: list[tuple[float, float]] = list(points[:1])
    for x, y in points[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    return tuple(corners)
