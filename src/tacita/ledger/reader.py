"""Reading a ledger: what was spent on one dataset, by whom, and what is left.

Everything known is a replay of the chain's rows, read again before each answer.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from tacita import _check
from tacita._check import PrivacyError
from tacita.assumptions import assume
from tacita.facts import Fresh
from tacita.guarantee import Guarantee
from tacita.ledger.admission import Fit, Writer, distance, fit_of, price, release_price
from tacita.ledger.chain import Chain, LedgerRow
from tacita.ledger.costs import SHARES, Costs
from tacita.ledger.rows import LedgerRun, LedgerState, Window, name_text
from tacita.ledger.statements import Analyst, Promise, Reservation
from tacita.ledger.store import ANALYST, Damaged, Fields, Place, on_server
from tacita.ledger.totals import Totals, cap_profile
from tacita.profile import Profile

Head = str  # the hash of a row, in hexadecimal: it names everything up to that row

_ASSUMPTIONS = tuple(map(assume, ("all-in-ledger", "runs-fresh-noise", "newest-copy")))


class LedgerReader:
    """What a ledger says. `Ledger` adds charging; nothing here writes to it."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._state = LedgerState()

    @classmethod
    def open(cls, path: Place, *, analyst: str | None = None) -> Self:
        """Open a ledger: a file, or a database by its URL (`postgresql://USER@HOST/DATABASE`).

        The place, every link of the chain and that the rows follow each other are checked first. A password may be in
        the URL, in PGPASSWORD or in ~/.pgpass; it is shown and kept nowhere.

        Args:
            path: Where.
            analyst: Who charges, for a file: a name that every row will carry, taken at its word; the one in
                TACITA_ANALYST unless given. On a server it is the role that logged in, and the server checks it.
        """
        return cls(Chain.open(os.fspath(path), declared_analyst(path, analyst)))._verified()

    def close(self) -> None:
        """Close the file, or the connection."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def head(self) -> Head:
        """The hash of the last row. Keep it elsewhere: `contains` then tells whether the file was rolled back."""
        return self._fresh().head

    @property
    def place(self) -> str:
        """Where it is, as `open` takes it; a URL without its password."""
        return self._chain.store.place

    @property
    def name(self) -> str:
        """A short name for labels: the file's, or the database's."""
        return self._chain.store.name

    @property
    def analyst(self) -> str:
        """Who writes here, as every row says; empty if nobody said."""
        return self._chain.store.analyst

    @property
    def path(self) -> Path | None:
        """Where the file is; None on a server."""
        return None if on_server(self.place) else Path(self.place)

    @property
    def data(self) -> str:
        """Which data it is about, for people; may be empty."""
        return str(self._state.meta["dataset"])

    @property
    def unit(self) -> str:
        """What one neighbour step changes."""
        return str(self._state.meta["unit"])

    @property
    def neighbours(self) -> Literal["add_remove", "replace_one"]:
        """The neighbouring relation."""
        return cast(Literal["add_remove", "replace_one"], self._state.meta["neighbours"])

    @property
    def budget(self) -> tuple[float, float] | None:
        """(epsilon, delta) in force, or None."""
        return self._fresh().budget

    def contains(self, head: Head) -> bool:
        """Return whether a row with this hash is in the chain."""
        return head in self._fresh().heads

    def charged(self, run_id: str) -> int:
        """Return how many steps were charged to a run; 0 for one that was not opened."""
        run = self._fresh().runs.get(run_id)
        return run.charged if run else 0

    @property
    def gaussian_share(self) -> float:
        """The part of delta for charges that count as Gaussian distances; the rest is for moments."""
        return float(self._state.meta["gaussian_share"])

    def promise(self, run_id: str) -> Promise | None:
        """Return what a run keeps however it ended, because its ledger does; None without such a budget.

        It is the budget that was in force before the ledger's first charge, if it was not raised up to the run's last
        one: a limit that may have been chosen by what was released bounds nothing.
        """
        run = self._known(run_id)
        if run is None or run.promise is None:
            return None
        return Promise(*run.promise, cap_profile(run.promise, self.gaussian_share))

    def ended(self, run_id: str) -> str:
        """Return why the owner of a run ended it early; empty if nobody did."""
        run = self._known(run_id)
        return run.ended if run else ""

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return each run's mechanism, charged steps and whether a user's seed drove it."""
        state = self._fresh()
        seeded = {run for run, by_user in state.seeds.values() if by_user}
        return {
            name: {"mechanism": dict(run.mechanism), "charged": run.charged, "seeded": name in seeded}
            for name, run in state.runs.items()
        }

    def rows(self) -> list[LedgerRow]:
        """Return every row, read and checked again."""
        return self._chain.read()

    def stored(self) -> list[Fields]:
        """Return every row as it is stored: seq, time, kind, run, body and hash."""
        return self._chain.stored()

    def releases(self) -> list[dict[str, str]]:
        """Return the name and the description of each release by another mechanism, in order."""
        rows = (row for row in self.rows() if row.kind == "release")
        return [{"name": row.run, "description": row.body["description"]} for row in rows]

    def events(self, run_id: str) -> list[LedgerRow]:
        """Return a run's zero-cost rows: `resume`, `close` and what else `event` wrote."""
        return [row for row in self.rows() if row.kind == "event" and row.run == run_id]

    def head_of(self, run_id: str, *, owner: str) -> Head:
        """Return the head if the run is still this owner's: nobody else has touched the run up to there.

        Raises:
            PrivacyError: If somebody else owns it by now.
        """
        with self._chain.lock:
            state = self._fresh()
            self._owned(run_id, owner)
            return state.head

    def verify(self, run_id: str, *, owner: str) -> None:
        """Read the file again as somebody else would; refuse unless it holds all that is known here.

        Raises:
            PrivacyError: If the file was removed, replaced or rolled back, or somebody else owns the run by now.
        """
        head = self.head_of(run_id, owner=owner) if self._chain.close.alive else self._state.head
        again = self._chain.again()
        if again is None:
            return
        with LedgerReader(again)._verified() as found:
            if not found.contains(head):
                raise Damaged(f"The ledger {found.place} was rolled back while in use; restore the newest copy.")
            found.head_of(run_id, owner=owner)

    def standing(self, run_id: str, *, step: int, head: Head, clean: bool) -> int:
        """Return how many steps of a run may have been released, as `resume` would, without recording anything.

        Args:
            run_id: The run.
            step: The checkpoint's step.
            head: The ledger's head kept in the checkpoint.
            clean: Whether the process that wrote the checkpoint released nothing after it.

        Returns:
            The number of steps.

        Raises:
            PrivacyError: If the ledger does not contain `head`, or knows fewer steps than the checkpoint.
        """
        self._fresh()
        return self._standing(run_id, step, head, clean)

    def spent(self, delta: float | None = None) -> Guarantee | None:
        """Return the worst-case total of all rows at the budget's delta or a given one; None if nothing was charged.

        A charge is granted only if this stays at or below the budget's epsilon. What is reserved counts, although
        nothing may have been released of it.

        Guarantee:
            All releases up to now together are (epsilon, delta)-differentially private for the ledger's unit and
            relation, if their charges were not chosen by what earlier releases showed; else the budget is what
            holds (see `Ledger` and `promise`). Where the budget has a window, this is about units of the window's data
            alone, which are in no other data, as its owner declares (`past` has the figures of the others).
        """
        state = self._fresh()
        if delta is None and state.budget is None:
            raise ValueError("delta must be given: this ledger has no budget to take it from.")
        dlt = _check.probability("delta", delta if delta is not None else state.budget and state.budget[1])
        if not (state.releases or state.reserved):
            return None
        planned = assume("planned-charges")
        if state.promise:
            epsilon, delta = state.promise
            planned = assume("planned-or-promise", epsilon=f"{epsilon:g}", delta=f"{delta:g}")
        fresh = (assume("fresh-data", first=first, last=last, unit=unit) for first, last, unit in self.fresh)
        share = self.gaussian_share
        orders = dlt * (1.0 - share) / SHARES
        return Guarantee(
            kind="worst_case",
            epsilon=state.totals.epsilon(dlt, gaussian_share=share),
            delta=dlt,
            method="filter of Gaussian distances and of moments",
            neighbours=self.neighbours,
            unit=self.unit,
            sampling="as declared by each run",
            delta_split=(
                ("Gaussian distances", dlt * share),
                ("orders", orders * (SHARES - 1)),
                ("releases' own deltas", orders),
            ),
            assumptions=(
                *_ASSUMPTIONS,
                planned,
                *fresh,
            ),
            publishable=True,
        )

    def planned_epsilon(self, delta: float) -> float:
        """Return the epsilon of all charges if they had been fixed beforehand: what adaptive choice costs is the rest.

        A charge is granted by `spent`, never by this figure.
        """
        return self._fresh().totals.planned_epsilon(_check.probability("delta", delta))

    def would_fit(
        self,
        *,
        costs: Costs | None = None,
        pure: float | None = None,
        delta: float = 0.0,
        curve: Profile | None = None,
        neighbours: str = "add_remove",
        unit: str = "record",
        at: float = 1e-5,
    ) -> Fit:
        """Return whether a release, or a whole run, would be granted now. Nothing is charged or held.

        Args:
            costs: λ D_{λ+1} of all of it, as for `charge`; may be left out if `pure` is given.
            pure: The ε of a release that is ε-private outright, but for `delta`.
            delta: What may fail beside.
            curve: Its whole privacy curve; of a run, that of all planned steps.
            neighbours: The relation that all this is for.
            unit: The unit that it is for.
            at: The delta of the figures, if the ledger has no budget.

        Returns:
            Whether it fits, why not, the total before and after, and how many of the same would fit.

        Raises:
            PrivacyError: If the relation or the unit is not the ledger's.

        Examples:
            >>> from tacita.ledger import Ledger
            >>> with Ledger.create(":memory:", epsilon=1.0, delta=1e-5) as ledger:
            ...     found = ledger.would_fit(pure=0.3)
            ...     print(found.fits, round(found.after, 3), found.times, ledger.spent())
            True 0.3 3 None
        """
        state = self._fresh()
        terms: dict[str, Any] = {"delta": delta, "neighbours": neighbours, "unit": unit}
        if pure is None and costs is not None:
            body = {**price(state, costs, **terms), "gaussian": distance(state, curve, delta)}
        else:
            body = release_price(state, costs=costs, pure=pure, curve=curve, **terms)
        at = state.budget[1] if state.budget else _check.probability("at", at)
        return fit_of(state, body, delta=at, writer=self._writer)

    def reservations(self) -> dict[str, Reservation]:
        """Return what is reserved for runs that are neither finished, ended nor cancelled, by the run's name."""
        state, rows = self._fresh(), {row.run: row for row in self.rows() if row.kind == "reserve"}
        delta = state.budget[1] if state.budget else 1e-5
        return {
            name: Reservation(
                run.analyst,
                rows[name].time,
                int(run.mechanism["steps"]),
                run.charged,
                run.counted().epsilon(delta, gaussian_share=self.gaussian_share),
            )
            for name, run in sorted(state.runs.items())
            if name in state.reserved
        }

    def analysts(self) -> dict[str, Analyst]:
        """Return what each analyst's own charges come to, reservations included, and the share of those who have one.

        The epsilons do not add up to the total, which grows more slowly. Nobody's charges are under an empty name.
        """
        state = self._fresh()
        delta, spent = state.budget[1] if state.budget else 1e-5, state.spending()
        return {
            name: Analyst(
                spent[name].epsilon(delta, gaussian_share=self.gaussian_share) if name in spent else 0.0,
                state.shares.get(name),
            )
            for name in sorted({*spent, *state.shares})
        }

    @property
    def window(self) -> Window | None:
        """The days of the budget in force, between which charges are about new data; None for any day."""
        return self._fresh().window

    @property
    def fresh(self) -> Fresh:
        """The window's first and last day and the unit of its data, for the assumption `fresh-data`; empty without."""
        window = self.window
        return () if window is None else ((window.first, window.last, self.unit),)

    def past(self) -> list[tuple[Window | None, float, float]]:
        """Return the earlier windows, each with the epsilon that was spent in it and its delta, on its own data.

        The first one has no days, if anything was charged before there were windows.
        """
        share = self.gaussian_share
        return [
            (past.window, past.totals.epsilon(delta, gaussian_share=share), delta)
            for past in self._fresh().past
            for delta in (past.budget[1] if past.budget else 1e-5,)
            if past.window or past.totals != Totals()
        ]

    @property
    def _writer(self) -> Writer:
        return Writer(self.analyst, self._chain.store.now())

    def _known(self, run_id: str) -> LedgerRun | None:
        """Return what the file says of a run, also after its user has closed it."""
        if self._chain.close.alive:
            return self._fresh().runs.get(run_id)
        again = self._chain.again()
        if again is None:
            return self._state.runs.get(run_id)
        with LedgerReader(again)._verified() as found:
            return found._state.runs.get(run_id)

    def _verified(self) -> Self:
        try:
            if not self._fresh().meta:
                raise Damaged(f"The ledger {self.place} is damaged: it has no rows; restore it from a copy.")
        except BaseException:
            self.close()
            raise
        return self

    def _fresh(self) -> LedgerState:
        state = self._state
        with self._chain.lock:
            for row in self._chain.read(last=state.last, head=state.head):
                try:
                    state.apply(row)
                except (KeyError, TypeError, ValueError) as error:
                    raise Damaged(f"The ledger {self.place} is damaged at row {row.seq}: {error}.") from error
        return state

    def _run(self, run_id: str) -> LedgerRun:
        run = self._state.runs.get(run_id)
        if run is None:
            raise PrivacyError(f"Run {run_id!r} is not in the ledger; call open_run before its first step.")
        return run

    def _owned(self, run_id: str, owner: str) -> LedgerRun:
        run = self._run(run_id)
        if run.owner != owner:
            raise PrivacyError(resumed_elsewhere(run_id))
        return run

    def _standing(self, run_id: str, step: int, head: Head, clean: bool) -> int:
        done, state, run = _check.count("step", step, low=0), self._state, self._run(run_id)
        if head not in state.heads:
            raise PrivacyError(
                f"The ledger {self.place} does not contain the head kept in the checkpoint: it was rolled "
                "back or is a foreign one. Use the ledger that the run was charged to."
            )
        if done > run.charged:
            raise PrivacyError(
                f"The checkpoint is at step {done} of run {run_id!r}, but only {run.charged} were charged: it is "
                "newer than the ledger. Use the ledger that the run was charged to."
            )
        return done if clean and run.touched <= state.heads[head] else run.charged


def resumed_elsewhere(run_id: str) -> str:
    """Return the message for an owner who no longer is one."""
    return (
        f"Run {run_id!r} was resumed elsewhere, so it goes on there and nothing is released here any more; what was "
        "charged stays charged. Resume it from its run directory to go on here."
    )


def declared_analyst(path: Place, given: str | None) -> str:
    """Return the name that an analyst declares; empty for none. TACITA_ANALYST is for files alone."""
    name = ("" if on_server(path) else os.environ.get(ANALYST, "")) if given is None else given
    return name_text("analyst", name) if name else ""
