"""What a charge adds up to as it is stored, and whether it may be made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita.ledger.costs import Costs, Units, cost_units, delta_units, pure_costs, pure_units
from tacita.ledger.rows import RELATIONS, LedgerState, charged_totals
from tacita.ledger.totals import Totals, distance_units, floor_for
from tacita.profile import Profile

_MOST = 10**6  # more of the same than this are not counted


class BudgetExceeded(PrivacyError):
    """A charge that would pass the budget. Nothing was written."""


@dataclass(frozen=True)
class Fit:
    """Whether a charge would be granted now, and what it would bring the total to.

    Attributes:
        fits: Whether it would be granted.
        reason: Why not; empty if it fits.
        before: The total's epsilon now, reservations included, at `delta`.
        after: The total's epsilon with the charge.
        times: How many of the same would be granted one after the other, up to a million.
        budget: The budget's epsilon, or None.
        delta: The budget's delta, or the one asked for.
    """

    fits: bool
    reason: str
    before: float
    after: float
    times: int
    budget: float | None
    delta: float

    @property
    def left(self) -> float | None:
        """What the budget's epsilon exceeds the total by afterwards; None without a budget."""
        return None if self.budget is None else max(0.0, self.budget - self.after)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, which has no infinity."""
        found = {"before": self.before, "after": self.after, "left": self.left}
        plain = {name: x if x is None or math.isfinite(x) else "inf" for name, x in found.items()}
        return {
            "fits": self.fits,
            "reason": self.reason,
            **plain,
            "times": self.times,
            "budget": self.budget,
            "delta": self.delta,
        }


def price(state: LedgerState, costs: Costs, delta: float, neighbours: str, unit: str) -> dict[str, Any]:
    """Return the moments of a charge as its row holds them, for the ledger's relation and unit."""
    require_same(state, neighbours, unit)
    return {"costs": [stored(cost) for cost in cost_units(costs)], "delta": delta_units(delta)}


def release_price(
    state: LedgerState,
    *,
    costs: Costs | None,
    pure: float | None,
    delta: float,
    curve: Profile | None,
    neighbours: str,
    unit: str,
) -> dict[str, Any]:
    """Return what a release adds up to, as its row holds it; the arguments are those of `Ledger.release`."""
    if costs is None:
        if pure is None:
            raise TypeError("A release needs its costs, or its pure epsilon.")
        costs = pure_costs(pure)
    body = price(state, costs, delta, neighbours, unit)
    body["pure"] = stored(pure_units(math.inf if pure is None else pure))
    if curve is None and pure is not None:
        curve = Profile.of_pair(pure, delta)
    return {**body, "gaussian": distance(state, curve)}


def distance(state: LedgerState, curve: Profile | None, delta: float = 0.0) -> list[int | str]:
    """Return the Gaussian distance of a curve as a row holds it; see `distance_units`."""
    squared, fails = distance_units(curve, delta=delta, floor=floor_for(state.budget, state.gaussian_share))
    return [stored(squared), fails]


def stored_totals(totals: Totals) -> dict[str, Any]:
    """Return what a row holds of a total."""
    return {
        "costs": [stored(cost) for cost in totals.orders],
        "delta": totals.deltas,
        "gaussian": [stored(totals.squared), totals.fails],
    }


def stored(units: Units) -> int | str:
    """Return a cost as JSON keeps it."""
    return units if isinstance(units, int) else "inf"


def require_same(state: LedgerState, neighbours: str, unit: str) -> None:
    """Refuse costs for another relation or unit than the ledger's."""
    _check.one_of("neighbours", neighbours, RELATIONS)
    own, protected = state.meta["neighbours"], state.meta["unit"]
    if neighbours != own:
        fix = "Make a ledger for replace_one (tacita ledger create FILE --neighbours replace_one)."
        if own == "replace_one":
            fix = "Pass costs=replace_one_costs(costs) with neighbours='replace_one'."
        raise PrivacyError(
            f"This ledger is for {own}, got costs for {neighbours}: another relation enters only by a "
            f"proved conversion. {fix}"
        )
    if unit != protected:
        raise PrivacyError(
            f"This ledger protects one {protected}, got costs for one {unit}: no conversion is known. Keep a "
            "ledger for each unit."
        )


@dataclass(frozen=True)
class Writer:
    """Who wants to write a row, and when.

    Attributes:
        analyst: Their name; empty if nobody said.
        time: The time that the row would get.
    """

    analyst: str
    time: str


def require_budget(state: LedgerState, what: str, more: Totals, writer: Writer, *, run: str = "") -> None:
    """Refuse a charge that would pass the budget or its writer's share, or that is outside of the budget's window.

    Args:
        state: What is there.
        what: What is charged, for people.
        more: What it adds up to.
        writer: Who charges it, and when.
        run: The run that it is for; empty for a release.

    Raises:
        BudgetExceeded: If nothing of this size may be charged now.
        PrivacyError: If the ledger has shares, and nobody or the wrong one charges the run.
    """
    _require_window(state, what, writer.time, run)
    if state.budget is None:
        return
    known = state.runs.get(run)
    if state.shares and not writer.analyst:
        raise PrivacyError(
            "This ledger has shares, so every charge needs a name: pass analyst=… to Ledger.open, or set "
            "TACITA_ANALYST. Nothing was charged."
        )
    if state.shares and known and known.analyst != writer.analyst:
        opened = f"was opened by {known.analyst!r}" if known.analyst else "was opened by nobody who said so"
        raise PrivacyError(
            f"Run {run!r} {opened}, whose share it would spend: {writer.analyst!r} cannot charge it. Nothing was "
            "charged."
        )
    _, delta = state.budget
    found = state.spending(run, writer.analyst, more)
    for who, epsilon in (("", state.budget[0]), (writer.analyst, state.shares.get(writer.analyst, math.inf))):
        total = found.get(who, Totals()) if who else sum(found.values(), Totals())
        after = total.epsilon(delta, gaussian_share=state.gaussian_share)
        if not after <= epsilon:
            of, ask = (f"{who}'s charges", f"the share of {who}") if who else ("the total", "the budget")
            raise BudgetExceeded(
                f"{what} would bring {of} to epsilon {round_up_text(after)} at delta {delta:g}, and {ask} is "
                f"{epsilon:g}. Nothing was charged: stop here, or let the budget's owner raise it."
            )


def _require_window(state: LedgerState, what: str, time: str, run: str) -> None:
    if state.window is None:
        return
    known = state.runs.get(run)
    if time not in state.window:
        raise BudgetExceeded(
            f"{what} cannot be charged: it is {time[:10]}, and the budget is for {state.window}. Its owner may open "
            "another window, if there are new data."
        )
    if known and known.window != state.window:
        raise BudgetExceeded(
            f"{what} cannot be charged: the run was opened before the window of the budget, {state.window}, so its "
            "data are not new. Start a new run on the new data."
        )


def beyond(state: LedgerState, analyst: str) -> bool:
    """Return whether more is spent than the budget, or the share of an analyst, allows."""
    if state.budget is None:
        return False
    found, (epsilon, delta) = state.spending(), state.budget
    caps = [(sum(found.values(), Totals()), epsilon)]
    if analyst in state.shares:
        caps.append((found.get(analyst, Totals()), state.shares[analyst]))
    return any(not total.epsilon(delta, gaussian_share=state.gaussian_share) <= cap for total, cap in caps)


def fit_of(state: LedgerState, body: Mapping[str, Any], *, delta: float, writer: Writer) -> Fit:
    """Return whether a charge would be granted now; nothing is written.

    Args:
        state: What is there.
        body: The row of the charge.
        delta: At which delta totals are given: the budget's, if there is one.
        writer: Who would make it, and when.
    """
    more = charged_totals(body)

    def refused(count: int) -> str:
        try:
            require_budget(state, "It", more.times(count), writer)
        except PrivacyError as error:
            return str(error)
        return ""

    share, reason = state.gaussian_share, refused(1)
    times = 0 if reason else _largest(lambda count: not refused(count))
    return Fit(
        not reason,
        reason,
        before=state.totals.epsilon(delta, gaussian_share=share) if state.releases or state.reserved else 0.0,
        after=(state.totals + more).epsilon(delta, gaussian_share=share),
        times=times,
        budget=state.budget[0] if state.budget else None,
        delta=delta,
    )


def _largest(granted: Any) -> int:
    """Return the largest number up to `_MOST` that is granted, given that 1 is."""
    low, high = 1, 2
    while high <= _MOST and granted(high):
        low, high = high, 2 * high
    high = min(high, _MOST + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if granted(middle) else (low, middle)
    return low
