"""What happened in a ledger, in order, from its rows: for pages and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tacita._numbers import delta_text
from tacita.ledger.chain import LedgerRow
from tacita.ledger.rows import ENDED, LedgerState, analyst_of, charged_totals
from tacita.ledger.totals import Totals

_MOMENTS = 300  # so many totals are computed, evenly spread over the rows


@dataclass(frozen=True)
class Entry:
    """A run, or a release.

    Attributes:
        name: Its name.
        what: What was released; empty for a run.
        analyst: Who opened or released it; empty if nobody said.
        first: The time of its first row.
        last: The time of its last charge, or of its only one.
        charged: Charged steps; 1 for a release.
        planned: Planned steps; 1 for a release.
        epsilon: What it costs by itself, at the budget's delta; a reservation's as a whole.
        state: How it stands: released, open, charged in part, charged, ended, reserved or cancelled.
    """

    name: str
    what: str
    analyst: str
    first: str
    last: str
    charged: int
    planned: int
    epsilon: float
    state: str


@dataclass(frozen=True)
class Moment:
    """The total after a row: its epsilon at the budget's delta, and the budget's epsilon, if there is one."""

    time: str
    epsilon: float
    budget: float | None


@dataclass(frozen=True)
class Decision:
    """What an owner set: when, who, and what, in words."""

    time: str
    analyst: str
    what: str


@dataclass(frozen=True)
class History:
    """What happened.

    Attributes:
        entries: Runs and releases, in the order in which they first appear.
        moments: The total over time.
        decisions: Budgets, windows and shares.
    """

    entries: tuple[Entry, ...]
    moments: tuple[Moment, ...]
    decisions: tuple[Decision, ...]


@dataclass
class _Making:
    """An entry in the making."""

    name: str
    what: str
    analyst: str
    first: str
    last: str
    planned: int = 1
    charged: int = 0
    totals: Totals = field(default_factory=Totals)
    held: Totals | None = None
    state: str = "open"

    def made(self, delta: float, share: float) -> Entry:
        totals = self.totals if self.held is None else self.held.at_least(self.totals)
        epsilon = totals.epsilon(delta, gaussian_share=share) if self.charged or self.held else 0.0
        times, steps = (self.first, self.last), (self.charged, self.planned)
        return Entry(self.name, self.what, self.analyst, *times, *steps, epsilon, self.state)


def history(rows: Sequence[LedgerRow]) -> History:
    """Return what happened.

    Args:
        rows: Every row of a ledger, checked.

    Raises:
        ValueError: If a row cannot follow the others.
    """
    state, moments, decisions = LedgerState(), [], []
    runs: dict[str, _Making] = {}
    entries: list[_Making] = []
    shown = _evenly([row.seq for row in rows if row.kind in ("charge", "release", "reserve", "cancel", "budget")])
    for row in rows:
        state.apply(row)
        _note(row, runs, entries)
        if row.kind in ("budget", "share"):
            decisions.append(Decision(row.time, analyst_of(row), _decided(row)))
        if row.seq in shown:
            moments.append(_moment(row, state))
    delta = _delta(state)
    made = tuple(entry.made(delta, state.gaussian_share) for entry in entries)
    return History(made, tuple(moments), tuple(decisions))


def _note(row: LedgerRow, runs: dict[str, _Making], entries: list[_Making]) -> None:
    body, who = row.body, analyst_of(row)
    if row.kind == "release":
        more = charged_totals(body)
        what = str(body["description"]) or "A release"
        entries.append(_Making(row.run, what, who, row.time, row.time, charged=1, totals=more, state="released"))
    elif row.kind == "run" and row.run not in runs:
        planned = int(body["mechanism"]["steps"])
        runs[row.run] = _Making(row.run, "", who, row.time, row.time, planned)
        entries.append(runs[row.run])
    elif row.run in runs:
        _note_of_run(row, runs[row.run])


def _note_of_run(row: LedgerRow, run: _Making) -> None:
    if row.kind == "charge":
        run.charged += int(row.body["steps"])
        run.totals += charged_totals(row.body)
        run.last, run.state = row.time, "charged" if run.charged == run.planned else "charged in part"
    elif row.kind == "reserve":
        run.held, run.state, run.last = charged_totals(row.body), "reserved", row.time
    elif row.kind == "cancel":
        run.held, run.state = None, "cancelled"
    elif row.kind == "event" and row.body["event"] == ENDED:
        run.held = run.held if run.charged else None
        run.state = "ended"


def _decided(row: LedgerRow) -> str:
    body = row.body
    if row.kind == "share":
        share = body["epsilon"]
        return f"share of {body['analyst']}: {'none any more' if share is None else f'epsilon {share:g}'}"
    days = f", for new data from {body['fresh'][0]} to {body['fresh'][1]}" if "fresh" in body else ""
    return f"budget: epsilon {body['epsilon']:g} at delta {delta_text(body['delta'])}{days}"


def _moment(row: LedgerRow, state: LedgerState) -> Moment:
    spent = bool(state.releases or state.reserved)
    epsilon = state.totals.epsilon(_delta(state), gaussian_share=state.gaussian_share) if spent else 0.0
    return Moment(row.time, epsilon, state.budget[0] if state.budget else None)


def _delta(state: LedgerState) -> float:
    return state.budget[1] if state.budget else 1e-5


def _evenly(numbers: Sequence[int]) -> set[int]:
    if len(numbers) <= _MOMENTS:
        return set(numbers)
    return {numbers[round(k * (len(numbers) - 1) / (_MOMENTS - 1))] for k in range(_MOMENTS)}
