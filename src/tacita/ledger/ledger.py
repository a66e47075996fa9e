"""The ledger: what was spent on one dataset, by whom, and what may still be spent.

Everything known is a replay of the chain's rows. A charge holds the file's write lock while it reads what others
added, checks the budget and appends; the noise may leave the process only after `charge` has returned.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from tacita import _check
from tacita._check import PrivacyError
from tacita.assumptions import assume
from tacita.guarantee import Guarantee, round_up_text
from tacita.ledger.chain import Chain, Row
from tacita.ledger.costs import (
    DECLARED,
    SHARES,
    Costs,
    Units,
    cost_units,
    delta_units,
    pure_costs,
    pure_units,
    total_epsilon,
)
from tacita.ledger.rows import (
    ENDED,
    RELATIONS,
    RESERVED,
    SCHEMA,
    Plain,
    Run,
    State,
    budget_body,
    decoded,
    mechanism_body,
    name_text,
    plain_body,
)

Head = str  # the hash of a row, in hexadecimal: it names everything up to that row

_ASSUMPTIONS = tuple(map(assume, ("all-in-ledger", "runs-fresh-noise", "newest-copy")))


class BudgetExceeded(PrivacyError):
    """A charge that would pass the budget. Nothing was written."""


class BudgetRaised(PrivacyError):
    """A larger budget than the one in force, without its owner's consent. Nothing was written."""


class Ledger:
    """A privacy budget in one file. Make it with `create` or `open`; close it, or use it in a `with` statement.

    Guarantee:
        While a budget (ε, δ) was in force all along, everything released after its charge returned is together
        (ε, δ)-differentially private for the ledger's unit and relation, however runs were chosen (see `costs`).

    Examples:
        >>> with Ledger.create(":memory:", epsilon=2.0, delta=1e-5) as ledger:
        ...     ledger.open_run("a", mechanism={"steps": 100}, seed_fingerprint=None, seeded=False)
        ...     _ = ledger.charge("a", first=0, steps=10, costs={7: 0.1, 11: 0.2})
        ...     print(ledger.charged("a"), round(ledger.spent().epsilon, 3))
        10 0.992
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._state = State()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        unit: str = "record",
        neighbours: str = "add_remove",
        dataset: str = "",
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Ledger:
        """Make a new ledger; `:memory:` makes one that lives in the process only.

        Args:
            path: Where; refused if it exists.
            unit: What one neighbour step changes. Fixed for ever, like the relation.
            neighbours: `add_remove` or `replace_one`.
            dataset: A name for people; enters the chain.
            epsilon: Worst-case budget, together with `delta`, or neither.
            delta: Worst-case budget.
        """
        meta = {
            "schema": SCHEMA,
            "unit": name_text("unit", unit),
            "neighbours": _check.one_of("neighbours", neighbours, RELATIONS),
            "dataset": str(dataset),
            "orders": list(DECLARED),
        }
        first: list[tuple[str, Mapping[str, Any]]] = [("ledger", meta)]
        if epsilon is not None or delta is not None:
            first.append(("budget", budget_body(epsilon, delta)))
        return cls(Chain.create(os.fspath(path), first))._verified()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a ledger, having checked the file, every link of the chain, and that the rows follow each other."""
        return cls(Chain.open(os.fspath(path)))._verified()

    def close(self) -> None:
        """Close the file."""
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
    def path(self) -> Path:
        """Where the file is."""
        return Path(self._chain.path)

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

    def promise(self, run_id: str) -> tuple[float, float] | None:
        """Return the (epsilon, delta) that a run keeps however it ended, because its ledger does; None without one.

        It is the budget that was in force before the ledger's first charge, if it was not raised up to the run's last
        one: a limit that may have been chosen by what was released bounds nothing.
        """
        run = self._known(run_id)
        return run.promise if run else None

    def ended(self, run_id: str) -> str:
        """Return why the owner of a run ended it early; empty if nobody did."""
        run = self._known(run_id)
        return run.ended if run else ""

    def _known(self, run_id: str) -> Run | None:
        """Return what the file says of a run, also after its user has closed it."""
        if self._chain.close.alive:
            return self._fresh().runs.get(run_id)
        if self._chain.file is None:
            return self._state.runs.get(run_id)
        with Ledger.open(self._chain.file) as found:
            return found._state.runs.get(run_id)

    def end(self, run_id: str, reason: str, *, owner: str = "") -> None:
        """Record that a run's owner ends it here, for a reason that depended on nothing private. It is final.

        Args:
            run_id: The run.
            reason: What ended it, in words that its label will show.
            owner: The token of the run's owner, if it has one.
        """
        text = name_text("reason", reason)
        with self._writing():
            run = self._owned(run_id, owner) if owner else self._run(run_id)
            if run.ended:
                raise PrivacyError(f"Run {run_id!r} was ended already: {run.ended}.")
            self._append("event", run_id, {"event": ENDED, "detail": text})

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return each run's mechanism, charged steps and whether a user's seed drove it."""
        state = self._fresh()
        seeded = {run for run, by_user in state.seeds.values() if by_user}
        return {
            name: {"mechanism": dict(run.mechanism), "charged": run.charged, "seeded": name in seeded}
            for name, run in state.runs.items()
        }

    def rows(self) -> list[Row]:
        """Return every row, read and checked again."""
        return self._chain.read()

    def releases(self) -> list[dict[str, str]]:
        """Return the name and the description of each release by another mechanism, in order."""
        rows = (row for row in self.rows() if row.kind == "release")
        return [{"name": row.run, "description": row.body["description"]} for row in rows]

    def events(self, run_id: str) -> list[Row]:
        """Return a run's zero-cost rows: `resume`, `close` and what else `event` wrote."""
        return [row for row in self.rows() if row.kind == "event" and row.run == run_id]

    def set_budget(self, epsilon: float, delta: float, *, raise_it: bool = False) -> Head:
        """Set the budget. Lowering is always allowed, even below what is spent; nothing is granted then.

        Raising needs `raise_it=True`: what was promised so far no longer bounds what is released from now on.
        """
        body = budget_body(epsilon, delta)
        with self._writing() as state:
            if state.budget and not raise_it and (epsilon > state.budget[0] or delta > state.budget[1]):
                raise BudgetRaised(
                    f"The budget is epsilon {state.budget[0]:g} at delta {state.budget[1]:g}, and {epsilon:g} at "
                    f"{delta:g} would raise it; if its owner agrees, pass raise_it=True."
                )
            return self._append("budget", "", body)

    def open_run(
        self, run_id: str, *, mechanism: Mapping[str, Plain], seed_fingerprint: str | None, seeded: bool
    ) -> None:
        """Freeze a run's mechanism before its first step; for a run that is there already, check that it is the same.

        Args:
            run_id: The run's name in this ledger.
            mechanism: All that its cost depends on; `steps`, the most it may take, is required.
            seed_fingerprint: A hash that tells whether two runs draw the same noise. One run's fingerprint is
                refused for any other: their releases subtract to nothing but data.
            seeded: Whether the seed came from a user rather than the operating system.
        """
        frozen = mechanism_body(mechanism)
        if seeded and not seed_fingerprint:
            raise PrivacyError(
                "A run with a user's seed needs seed_fingerprint, so that no other run can repeat its noise."
            )
        body = {"mechanism": frozen, "seed": seed_fingerprint, "seeded": bool(seeded)}
        with self._writing() as state:
            known = state.runs.get(name_text("run_id", run_id))
            if known and known.mechanism != frozen:
                names = (n for n in {**frozen, **known.mechanism} if frozen.get(n) != known.mechanism.get(n))
                raise PrivacyError(
                    f"Run {run_id!r} was opened with another mechanism ({', '.join(sorted(names))} differ); it is "
                    "frozen before the first step. Start a run under another name."
                )
            owner = state.seeds.get(seed_fingerprint, (run_id, False))[0] if seed_fingerprint else run_id
            if owner != run_id:
                raise PrivacyError(
                    f"Run {owner!r} used this seed: releases with the same noise subtract to nothing but data. Leave "
                    "the seed out, or choose one that was never used on this dataset."
                )
            if not known or (seed_fingerprint and seed_fingerprint not in state.seeds):
                self._append("run", run_id, body)

    def own(self, run_id: str, token: str) -> None:
        """Make the holder of a token the run's owner, from the next row on; whoever owned it before is refused.

        A run that was never owned takes charges from anybody, as long as they continue each other.
        """
        with self._writing():
            run = self._run(run_id)
            if name_text("token", token) in run.owners[:-1]:
                raise PrivacyError(_elsewhere(run_id))
            if token != run.owner:
                self._append("event", run_id, {"event": "own", "detail": {"token": token}})

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
        if self._chain.file is None:
            return
        with Ledger.open(self._chain.file) as found:
            if not found.contains(head):
                raise PrivacyError(f"The ledger {found.path} was rolled back while in use; restore the newest copy.")
            found.head_of(run_id, owner=owner)

    def charge(
        self,
        run_id: str,
        *,
        first: int,
        steps: int,
        costs: Costs,
        delta: float = 0.0,
        neighbours: str = "add_remove",
        unit: str = "record",
        owner: str = "",
    ) -> Head:
        """Charge steps [first, first + steps) of a run. Release them only after this has returned.

        Args:
            run_id: A run that was opened.
            first: The number of steps charged to the run so far.
            steps: How many to charge.
            costs: λ D_{λ+1} of the whole block: {λ: cost}, or an array at DECLARED or at ORDERS.
            delta: The block's own failure probability.
            neighbours: The relation that the costs are for.
            unit: The unit that they are for.
            owner: The token of the run's owner, if it has one.

        Returns:
            The new row's hash.

        Raises:
            BudgetExceeded: If the total would pass the budget; nothing is written.
            PrivacyError: If the steps do not continue the run, somebody else owns it, or the row cannot be written.
        """
        start, count = _check.count("first", first, low=0), _check.count("steps", steps)
        body = {**self._price(costs, delta, neighbours, unit), "first": start, "steps": count}
        if owner:
            body["owner"] = owner
        with self._writing():
            run = self._owned(run_id, owner)
            _require_open(run_id, run)
            if start != run.charged:
                raise PrivacyError(
                    f"Run {run_id!r} has {run.charged} steps charged, so the next charge must start there, got "
                    f"first={start}; call resume to learn where to go on."
                )
            if start + count > int(run.mechanism["steps"]):
                raise PrivacyError(
                    f"Run {run_id!r} was opened for {run.mechanism['steps']} steps, not {start + count}; "
                    "open another run."
                )
            self._require_budget(f"Steps {start} to {start + count - 1} of run {run_id!r}", body)
            return self._append("charge", run_id, body)

    def release(
        self,
        name: str,
        *,
        costs: Costs | None = None,
        pure: float | None = None,
        delta: float = 0.0,
        description: str,
        neighbours: str = "add_remove",
        unit: str = "record",
    ) -> Head:
        """Charge one release by another mechanism. Make it public only after this has returned.

        Args:
            name: What people call it.
            costs: λ D_{λ+1}, as for `charge`; may be left out if `pure` is given.
            pure: The ε of a release that is ε-private outright, but for `delta`. Such releases also add up plainly.
            delta: The release's own failure probability.
            description: What was released, for people.
            neighbours: The relation that the costs are for.
            unit: The unit that they are for.
        """
        if costs is None:
            if pure is None:
                raise TypeError("A release needs its costs, or its pure epsilon.")
            costs = pure_costs(pure)
        body = self._price(costs, delta, neighbours, unit)
        body["pure"] = _stored(pure_units(math.inf if pure is None else pure))
        body["description"] = str(description)
        with self._writing():
            self._require_budget(f"Release {name_text('name', name)!r}", body)
            return self._append("release", name, body)

    def event(self, run_id: str, kind: str, detail: Mapping[str, Plain] | str = "", *, owner: str = "") -> Head:
        """Append a row that costs nothing, such as a run's `close`; refused to an owner who no longer is one."""
        if kind in RESERVED:
            raise ValueError(f"An event may not be called {', '.join(RESERVED)}: these have methods of their own.")
        body = {
            "event": name_text("kind", kind),
            "detail": detail if isinstance(detail, str) else plain_body("detail", detail),
        }
        with self._writing():
            if owner:
                self._owned(run_id, owner)
            self._run(run_id)
            return self._append("event", run_id, body)

    def resume(self, run_id: str, *, step: int, head: Head, clean: bool, owner: str = "") -> int:
        """Return the step from which a run may go on, and record that it does.

        Steps that were charged but not reached by the checkpoint may have been released, so they are lost, unless
        the checkpoint is clean and is resumed for the first time.

        Args:
            run_id: The run.
            step: The checkpoint's step.
            head: The ledger's head kept in the checkpoint.
            clean: Whether the process that wrote the checkpoint released nothing after it.
            owner: The token of the run's owner, if it has one.

        Raises:
            PrivacyError: If the ledger does not contain `head`, knows fewer steps than the checkpoint, or somebody
                else owns the run.
        """
        with self._writing():
            _require_open(run_id, self._owned(run_id, owner))
            start = self._standing(run_id, step, head, clean)
            detail = {"step": int(step), "head": head, "clean": bool(clean), "from": start}
            self._append("event", run_id, {"event": "resume", "detail": detail})
        return start

    def standing(self, run_id: str, *, step: int, head: Head, clean: bool) -> int:
        """Return how many steps of a run may have been released, as `resume` would, without recording anything."""
        self._fresh()
        return self._standing(run_id, step, head, clean)

    def _standing(self, run_id: str, step: int, head: Head, clean: bool) -> int:
        done, state, run = _check.count("step", step, low=0), self._state, self._run(run_id)
        if head not in state.heads:
            raise PrivacyError(
                f"The ledger {self._chain.path} does not contain the head kept in the checkpoint: it was rolled "
                "back or is a foreign one. Use the ledger that the run was charged to."
            )
        if done > run.charged:
            raise PrivacyError(
                f"The checkpoint is at step {done} of run {run_id!r}, but only {run.charged} were charged: it is "
                "newer than the ledger. Use the ledger that the run was charged to."
            )
        return done if clean and run.touched <= state.heads[head] else run.charged

    def spent(self, delta: float | None = None) -> Guarantee | None:
        """Return the worst-case total of all rows at the budget's delta or a given one; None if nothing was charged.

        A charge is granted if and only if this stays at or below the budget's epsilon.
        """
        state = self._fresh()
        if delta is None and state.budget is None:
            raise ValueError("delta must be given: this ledger has no budget to take it from.")
        dlt = _check.probability("delta", delta if delta is not None else state.budget and state.budget[1])
        if not state.releases:
            return None
        planned = assume("planned-charges")
        if state.promise:
            epsilon, delta = state.promise
            planned = assume("planned-or-promise", epsilon=f"{epsilon:g}", delta=f"{delta:g}")
        return Guarantee(
            kind="worst_case",
            epsilon=total_epsilon(state.totals, state.deltas, delta=dlt, pure=state.pure),
            delta=dlt,
            method="rdp filter" if math.isinf(state.pure) else "rdp filter or plain sum",
            neighbours=self.neighbours,
            unit=self.unit,
            sampling="as declared by each run",
            delta_split=(("orders", dlt * (SHARES - 1) / SHARES), ("releases' own deltas", dlt / SHARES)),
            assumptions=(*_ASSUMPTIONS, planned),
            publishable=True,
        )

    def remaining(self) -> dict[str, float | None]:
        """Return the budget, what is spent of it and what is left, for display. Costs do not add up in epsilon."""
        state = self._fresh()
        if state.budget is None:
            return {"epsilon": None, "delta": None, "spent": None, "left": None}
        epsilon, delta = state.budget
        spent = total_epsilon(state.totals, state.deltas, delta=delta, pure=state.pure) if state.releases else 0.0
        return {"epsilon": epsilon, "delta": delta, "spent": spent, "left": max(0.0, epsilon - spent)}

    def _verified(self) -> Ledger:
        try:
            if not self._fresh().meta:
                raise PrivacyError(f"The ledger {self._chain.path} is damaged: it has no rows; restore it from a copy.")
        except BaseException:
            self.close()
            raise
        return self

    def _fresh(self) -> State:
        state = self._state
        with self._chain.lock:
            for row in self._chain.read(last=state.last, head=state.head):
                try:
                    state.apply(row)
                except (KeyError, TypeError, ValueError) as error:
                    raise PrivacyError(
                        f"The ledger {self._chain.path} is damaged at row {row.seq}: {error}."
                    ) from error
        return state

    @contextmanager
    def _writing(self) -> Iterator[State]:
        with self._chain.transaction():
            yield self._fresh()
        self._fresh()

    def _append(self, kind: str, run: str, body: Mapping[str, Any]) -> Head:
        return self._chain.append(kind, run, body, last=self._state.last, head=self._state.head)

    def _run(self, run_id: str) -> Run:
        run = self._state.runs.get(run_id)
        if run is None:
            raise PrivacyError(f"Run {run_id!r} is not in the ledger; call open_run before its first step.")
        return run

    def _owned(self, run_id: str, owner: str) -> Run:
        run = self._run(run_id)
        if run.owner != owner:
            raise PrivacyError(_elsewhere(run_id))
        return run

    def _price(self, costs: Costs, delta: float, neighbours: str, unit: str) -> dict[str, Any]:
        _check.one_of("neighbours", neighbours, RELATIONS)
        if neighbours != self.neighbours:
            fix = "Make a ledger for replace_one (tacita ledger create FILE --neighbours replace_one)."
            if self.neighbours == "replace_one":
                fix = "Pass costs=replace_one_costs(costs) with neighbours='replace_one'."
            raise PrivacyError(
                f"This ledger is for {self.neighbours}, got costs for {neighbours}: another relation enters only by a "
                f"proved conversion. {fix}"
            )
        if unit != self.unit:
            raise PrivacyError(
                f"This ledger protects one {self.unit}, got costs for one {unit}: no conversion is known. Keep a "
                "ledger for each unit."
            )
        return {"costs": [_stored(cost) for cost in cost_units(costs)], "delta": delta_units(delta)}

    def _require_budget(self, what: str, body: Mapping[str, Any]) -> None:
        state = self._state
        if state.budget is None:
            return
        epsilon, delta = state.budget
        totals = [total + decoded(cost) for total, cost in zip(state.totals, body["costs"], strict=True)]
        pure = state.pure + decoded(body.get("pure", "inf"))
        after = total_epsilon(totals, state.deltas + body["delta"], delta=delta, pure=pure)
        if not after <= epsilon:
            raise BudgetExceeded(
                f"{what} would bring the total to epsilon {round_up_text(after)} at delta {delta:g}, and the budget is "
                f"{epsilon:g}. Nothing was charged: stop here, or let the budget's owner raise it."
            )


def _elsewhere(run_id: str) -> str:
    return (
        f"Run {run_id!r} was resumed elsewhere, so it goes on there and nothing is released here any more; what was "
        "charged stays charged. Resume it from its run directory to go on here."
    )


def _require_open(run_id: str, run: Run) -> None:
    if run.ended:
        raise PrivacyError(f"Run {run_id!r} was ended by its owner ({run.ended}); start a new run.")


def _stored(units: Units) -> int | str:
    return units if isinstance(units, int) else "inf"
