"""What each kind of row says, and what the rows add up to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from tacita import _check
from tacita._check import PrivacyError
from tacita.guarantee import SMALLEST_EPSILON
from tacita.ledger.chain import START, LedgerRow
from tacita.ledger.costs import DECLARED, Units
from tacita.ledger.totals import Totals

SCHEMA = 2
RELATIONS = ("add_remove", "replace_one")
ENDED = "ended"  # the event by which an owner ends a run early, for a reason that depended on nothing private
RESERVED = ("own", "resume", ENDED)  # events that count
Plain = float | int | str


@dataclass
class LedgerRun:
    """A run as far as the rows tell."""

    mechanism: dict[str, Plain]
    distance: tuple[Units, int] = (math.inf, 0)  # what its first charge adds to the account of distances
    analyst: str = ""  # who opened it, and answers for what it spends
    window: Window | None = None  # in which it was opened
    held: Totals | None = None  # what is reserved for all of its steps
    used: Totals = field(default_factory=Totals)  # its charges under the reservation
    charged: int = 0
    touched: int = 0  # row of the last charge or resume
    promise: tuple[float, float] | None = None  # (epsilon, delta) that all releases up to its last charge stay within
    ended: str = ""  # why its owner ended it early
    owners: list[str] = field(default_factory=list)  # tokens; only the last one may charge

    @property
    def owner(self) -> str:
        """The token of whoever opened or resumed it last; empty if nobody ever said."""
        return self.owners[-1] if self.owners else ""

    def counted(self, more: Totals | None = None) -> Totals:
        """Return what a reserved run counts for: the reservation, or what its charges add up to where that is more.

        Args:
            more: A charge to come.
        """
        used = self.used if more is None else self.used + more
        return used if self.held is None else self.held.at_least(used)


@dataclass(frozen=True)
class Window:
    """Days between which charges are about new data, as the budget's owner declares.

    Attributes:
        first: The first day, YYYY-MM-DD, in UTC.
        last: The last one.
    """

    first: str
    last: str

    def __contains__(self, time: str) -> bool:
        return self.first <= time[:10] <= self.last

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


class Past(NamedTuple):
    """What was spent before a window began, on data that are not those of the window."""

    window: Window | None
    budget: tuple[float, float] | None
    totals: Totals


@dataclass
class LedgerState:
    """What the rows up to `head` say."""

    last: int = -1
    head: str = START
    meta: dict[str, Any] = field(default_factory=dict)
    budget: tuple[float, float] | None = None
    promise: tuple[float, float] | None = None  # the budget, if one was in force from the start and never raised
    spent: dict[str, Totals] = field(default_factory=dict)  # by analyst; reserved runs are counted apart
    reserved: set[str] = field(default_factory=set)  # runs with a reservation
    shares: dict[str, float] = field(default_factory=dict)  # the epsilon that an analyst may spend
    window: Window | None = None  # outside of which nothing is charged
    past: list[Past] = field(default_factory=list)  # what was spent before, on other data
    releases: int = 0
    runs: dict[str, LedgerRun] = field(default_factory=dict)
    seeds: dict[str, tuple[str, bool]] = field(default_factory=dict)  # fingerprint -> run, seeded
    heads: dict[str, int] = field(default_factory=dict)

    def apply(self, row: LedgerRow) -> None:
        """Take in one more row; raises if it cannot follow the others."""
        body = row.body
        if (row.seq == 0) != (row.kind == "ledger"):
            raise ValueError("the first row must describe the ledger")
        if row.kind == "ledger":
            self.meta = _meta(body)
        elif row.kind == "budget":
            if "fresh" in body:
                self._begin(Window(*body["fresh"]))
            self._set_budget(float(body["epsilon"]), float(body["delta"]))
        elif row.kind == "share":
            self._set_share(body)
        elif row.kind == "run":
            self._open_run(row)
        elif row.kind in ("charge", "release"):
            self._add_costs(row)
        elif row.kind == "reserve":
            self._reserve(row)
        elif row.kind == "cancel":
            self._cancel(row.run)
        elif row.kind != "event":
            raise ValueError(f"unknown kind {row.kind!r}")
        elif body["event"] == "resume":
            self.runs[row.run].touched = row.seq
        elif body["event"] == ENDED:
            self._end(row.run, str(body["detail"]))
        elif body["event"] == "own":
            self.runs[row.run].owners.append(str(body["detail"]["token"]))
        self.last, self.head = row.seq, row.hash
        self.heads[row.hash] = row.seq

    def _set_budget(self, epsilon: float, delta: float) -> None:
        raised = self.budget is None or epsilon > self.budget[0] or delta > self.budget[1]
        self.budget = (epsilon, delta)
        if not self.releases:
            self.promise = self.budget
        elif raised:  # perhaps because of what was released: a limit chosen afterwards bounds nothing
            self.promise = None

    def _begin(self, window: Window) -> None:
        """Begin a window: data that nothing here was spent on yet. What is reserved for others is void."""
        if self.window is not None and window.first <= self.window.last:
            raise ValueError("a window begins before the last one has ended")
        self.past.append(Past(self.window, self.budget, self.totals))
        for name in self.reserved:
            self.runs[name].held = None
        self.window, self.spent, self.reserved, self.releases = window, {}, set(), 0

    def _set_share(self, body: Mapping[str, Any]) -> None:
        if body["epsilon"] is None:
            self.shares.pop(body["analyst"], None)
        else:
            self.shares[str(body["analyst"])] = float(body["epsilon"])

    def _open_run(self, row: LedgerRow) -> None:
        opened = LedgerRun(row.body["mechanism"], _distance(row.body["gaussian"]), analyst_of(row), self.window)
        run = self.runs.setdefault(row.run, opened)
        if run.mechanism != row.body["mechanism"]:
            raise ValueError("a run changes its mechanism")
        if row.body["seed"] is not None:
            self.seeds[row.body["seed"]] = (row.run, row.body["seeded"])

    def _add_costs(self, row: LedgerRow) -> None:
        more = charged_totals(row.body)
        if self.window is not None and row.time not in self.window:
            raise ValueError("it is charged outside of the window of its budget")
        self.releases += 1
        if row.kind == "release":
            self._spend(analyst_of(row), more)
            return
        run = self.runs[row.run]
        if row.body["first"] != run.charged:
            raise ValueError("a run's charges leave a gap")
        if run.ended:
            raise ValueError("a run is charged after its declared end")
        if run.window != self.window:
            raise ValueError("a run is charged in another window than it was opened in")
        run.charged += row.body["steps"]
        run.touched, run.promise = row.seq, self.promise
        if run.held is None:
            self._spend(run.analyst, more)
            return
        run.used += more
        if run.charged >= int(run.mechanism["steps"]):
            self._settle(row.run)

    def _reserve(self, row: LedgerRow) -> None:
        run = self.runs[row.run]
        if run.held is not None or run.charged or run.ended:
            raise ValueError("budget is reserved for a run that has begun, has ended, or has a reservation")
        run.held = charged_totals(row.body)
        self.reserved.add(row.run)

    def _cancel(self, name: str) -> None:
        run = self.runs[name]
        if run.held is None or run.charged:
            raise ValueError("a reservation is cancelled that was used, or is not there")
        run.held = None
        self.reserved.remove(name)

    def _end(self, name: str, reason: str) -> None:
        run = self.runs[name]
        run.ended = reason
        if run.held is not None and run.charged:
            self._settle(name)
        elif run.held is not None:  # no step can follow, so nothing is ever released under it
            self._cancel(name)

    def _settle(self, name: str) -> None:
        """Count a reservation as spent for good."""
        run = self.runs[name]
        self._spend(run.analyst, run.counted())
        run.held, run.used = None, Totals()
        self.reserved.remove(name)

    def _spend(self, analyst: str, more: Totals) -> None:
        self.spent[analyst] = self.spent.get(analyst, Totals()) + more

    def spending(self, run: str = "", analyst: str = "", more: Totals | None = None) -> dict[str, Totals]:
        """Return what counts as spent by each analyst, reservations included.

        Args:
            run: The run of a charge to come; empty for a release.
            analyst: Who would make the release.
            more: What it would add.
        """
        found, known = dict(self.spent), self.runs.get(run)
        for name in self.reserved:
            held = self.runs[name]
            counted = held.counted(more if name == run else None)
            found[held.analyst] = found.get(held.analyst, Totals()) + counted
        if more is not None and run not in self.reserved:
            who = known.analyst if known else analyst
            found[who] = found.get(who, Totals()) + more
        return found

    @property
    def totals(self) -> Totals:
        """What counts as spent: every charge and release, and what is reserved."""
        return sum(self.spending().values(), Totals())

    @property
    def gaussian_share(self) -> float:
        """The part of delta for charges that count as Gaussian distances."""
        return float(self.meta["gaussian_share"])


def analyst_of(row: LedgerRow) -> str:
    """Return who wrote a row; empty if nobody said."""
    return str(row.body.get("by", ""))


def window_of(first: str, last: str) -> Window:
    """Return a window of whole days.

    Raises:
        ValueError: If they are not days, or the last one is before the first.
    """
    for name, day in (("first", first), ("last", last)):
        try:
            same = date.fromisoformat(day).isoformat() == day
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(f"{name} must be a day such as 2026-01-31, got {day!r}.")
    if last < first:
        raise ValueError(f"The window's last day, {last}, is before its first, {first}.")
    return Window(first, last)


def charged_totals(body: Mapping[str, Any]) -> Totals:
    """Return what a charge or a release adds up to."""
    squared, fails = _distance(body["gaussian"])
    costs = tuple(decoded(cost) for cost in body["costs"])
    return Totals(costs, int(body["delta"]), decoded(body.get("pure", "inf")), squared, fails)


def _distance(stored: list[int | str]) -> tuple[Units, int]:
    squared, fails = stored
    return decoded(squared), int(fails)


def _meta(body: dict[str, Any]) -> dict[str, Any]:
    if body["schema"] != SCHEMA or tuple(body["orders"]) != DECLARED:
        raise ValueError("it was made by another version of tacita")
    _check.one_of("neighbours", body["neighbours"], RELATIONS)
    name_text("unit", body["unit"])
    _check.in_range("gaussian_share", body["gaussian_share"], 0.0, 1.0)
    return body


def budget_body(epsilon: object, delta: object) -> dict[str, float]:
    """Return a budget's row; both numbers are needed."""
    if epsilon is None or delta is None:
        raise ValueError("A budget needs both epsilon and delta.")
    return {
        "epsilon": _check.in_range("epsilon", epsilon, SMALLEST_EPSILON, 1e6),
        "delta": _check.probability("delta", delta),
    }


def mechanism_body(mechanism: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a mechanism as it is frozen; it must name its steps."""
    frozen = plain_body("mechanism", mechanism)
    if "steps" not in frozen:
        raise PrivacyError("mechanism must name 'steps', the most steps the run may take.")
    frozen["steps"] = _check.count("mechanism['steps']", frozen["steps"])
    return frozen


def plain_body(name: str, values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return names and values that JSON keeps exactly."""
    return {
        name_text(f"a key of {name}", key): _plain_value(f"{name}[{key!r}]", value) for key, value in values.items()
    }


def _plain_value(name: str, value: Plain) -> Plain:
    if isinstance(value, str | int):
        return value
    x = _check.number(name, value)
    if not math.isfinite(x):
        raise ValueError(f"{name} must be finite, got {x}.")
    return x


def name_text(name: str, value: object) -> str:
    """Return `value` if it can stand for something in a list that people read."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
        raise ValueError(f"{name} must be 1 to 200 printable characters, got {value!r}.")
    return value


def decoded(cost: int | str) -> Units:
    """Return a cost as it is added up; JSON has no infinity."""
    return math.inf if cost == "inf" else int(cost)
