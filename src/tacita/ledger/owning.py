"""What the owner of a budget does: make the ledger, and set what may be spent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from tacita import _check
from tacita._check import PrivacyError
from tacita.ledger.chain import Chain
from tacita.ledger.costs import DECLARED
from tacita.ledger.reader import Head, LedgerReader, declared_analyst
from tacita.ledger.rows import RELATIONS, SCHEMA, LedgerState, budget_body, name_text, window_of
from tacita.ledger.store import Place, repeated


class BudgetRaised(PrivacyError):
    """A larger budget than the one in force, without its owner's consent. Nothing was written."""


class OwnedLedger(LedgerReader):
    """A ledger that can be made and whose budget can be set; `Ledger` adds charging."""

    @classmethod
    @_check.renamed("dataset")
    def create(
        cls,
        path: Place,
        *,
        unit: str = "record",
        neighbours: str = "add_remove",
        data: str = "",
        epsilon: float | None = None,
        delta: float | None = None,
        gaussian_share: float = 0.5,
        analyst: str | None = None,
    ) -> Self:
        """Create a ledger; `:memory:` creates one that lives in the process only.

        Args:
            path: Where: a file, or the URL of a database (`postgresql://USER@HOST/DATABASE`), which then is for this
                ledger alone. Refused if there is a ledger.
            unit: What one neighbour step changes. Fixed for ever, like the relation.
            neighbours: `add_remove` or `replace_one`.
            data: Which data it is about, for people; enters the chain.
            epsilon: Worst-case budget, together with `delta`; neither sets none.
            delta: Its delta.
            gaussian_share: The part of delta for charges that count as Gaussian distances, the rest being for those
                that count by their moments; fixed for ever. At 1 every charge needs a privacy curve, a run is charged
                for all of its plan at its first step, and the budget itself has the curve of one Gaussian release.
            analyst: Who makes it; see `open`.

        Returns:
            The ledger, open.

        Raises:
            PrivacyError: If there is one, or it cannot be written.
        """
        meta = {
            "schema": SCHEMA,
            "unit": name_text("unit", unit),
            "neighbours": _check.one_of("neighbours", neighbours, RELATIONS),
            "dataset": str(data),
            "orders": list(DECLARED),
            "gaussian_share": _check.in_range("gaussian_share", gaussian_share, 0.0, 1.0),
        }
        first: list[tuple[str, Mapping[str, Any]]] = [("ledger", meta)]
        if epsilon is not None or delta is not None:
            first.append(("budget", budget_body(epsilon, delta)))
        return cls(Chain.create(os.fspath(path), first, declared_analyst(path, analyst)))._verified()

    @_check.renamed("raise_it")
    @repeated
    def set_budget(self, epsilon: float, delta: float, *, allow_increase: bool = False) -> Head:
        """Set the budget. Lowering is always allowed, even below what is spent; nothing is granted then.

        Args:
            epsilon: The worst-case epsilon of everything charged to the ledger.
            delta: Its delta.
            allow_increase: Needed for a larger budget than the one in force: what was promised so far no longer
                bounds what is released from now on.

        Returns:
            The new row's hash.

        Raises:
            BudgetRaised: If the budget is larger and `allow_increase` is not set; nothing is written.
        """
        body = budget_body(epsilon, delta)
        with self._writing() as state:
            if state.budget and not allow_increase and (epsilon > state.budget[0] or delta > state.budget[1]):
                raise BudgetRaised(
                    f"The budget is epsilon {state.budget[0]:g} at delta {state.budget[1]:g}, and {epsilon:g} at "
                    f"{delta:g} would raise it; if its owner agrees, pass allow_increase=True."
                )
            return self._append("budget", "", body)

    @repeated
    def set_share(self, analyst: str, epsilon: float | None) -> Head:
        """Set the most that one analyst's own charges may come to, at the budget's delta; None takes the share away.

        Analysts without a share are limited by the budget alone. From the first share on, every charge needs a name,
        and a run is charged by whoever opened it.

        Args:
            analyst: The role that logs in to a server; for a file, the name that its charges declare.
            epsilon: Their share; 0 lets them spend nothing.

        Returns:
            The new row's hash.

        Raises:
            PrivacyError: If there is no budget.
        """
        share = None if epsilon is None else _check.in_range("epsilon", epsilon, 0.0, 1e6)
        body = {"analyst": name_text("analyst", analyst), "epsilon": share}
        with self._writing() as state:
            if state.budget is None:
                raise PrivacyError("A share is a part of a budget: set a budget first.")
            return self._append("share", "", body)

    @repeated
    def open_window(self, first: str, last: str, *, epsilon: float, delta: float, data_are_new: bool) -> Head:
        """Set a budget for data collected anew, which is in force on these days alone.

        What was spent before was spent on other people's data, so it does not count against this budget. Nothing is
        charged outside of the window, and never again without one. Shares stay as they are.

        Args:
            first: The first day, YYYY-MM-DD, in UTC.
            last: The last one.
            epsilon: The worst-case epsilon of everything charged in the window.
            delta: Its delta.
            data_are_new: The owner's word that no unit of the data to be charged is among data charged at other times.

        Returns:
            The new row's hash.

        Raises:
            PrivacyError: If the owner does not give that word, or another window has not ended.
        """
        window = window_of(first, last)
        if not data_are_new:
            raise PrivacyError(
                f"A window begins a budget anew. That holds only if no {self.unit} in the data to be charged is among "
                "the data charged at other times: if so, pass data_are_new=True (--data-are-new)."
            )
        body = {**budget_body(epsilon, delta), "fresh": [window.first, window.last]}
        with self._writing() as state:
            if state.window is not None:
                today = self._chain.store.now()[:10]
                if today <= state.window.last or first <= state.window.last:
                    raise PrivacyError(
                        f"The window {state.window} has not ended, or overlaps this one: open the next one when it has."
                    )
            return self._append("budget", "", body)

    @contextmanager
    def _writing(self) -> Iterator[LedgerState]:
        with self._chain.transaction():
            yield self._fresh()
        self._fresh()

    def _append(self, kind: str, run: str, body: Mapping[str, Any]) -> Head:
        return self._chain.append(kind, run, body, last=self._state.last, head=self._state.head)
