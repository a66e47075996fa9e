"""The ledger: what was spent on one dataset, by whom, and what may still be spent.

Everything known is a replay of the chain's rows. A charge holds the only right to write while it reads what others
added, checks the budget and appends; the noise may leave the process only after `charge` has returned.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita.ledger.chain import Chain
from tacita.ledger.costs import (
    DECLARED,
    Costs,
    Units,
    cost_units,
    delta_units,
    pure_costs,
    pure_units,
)
from tacita.ledger.reader import Head, LedgerReader, resumed_elsewhere
from tacita.ledger.rows import (
    ENDED,
    RELATIONS,
    RESERVED,
    SCHEMA,
    LedgerRun,
    LedgerState,
    Plain,
    budget_body,
    charged_totals,
    mechanism_body,
    name_text,
    plain_body,
)
from tacita.ledger.store import Place, repeated
from tacita.ledger.totals import distance_units, floor_for
from tacita.profile import Profile


class BudgetExceeded(PrivacyError):
    """A charge that would pass the budget. Nothing was written."""


class BudgetRaised(PrivacyError):
    """A larger budget than the one in force, without its owner's consent. Nothing was written."""


class Ledger(LedgerReader):
    """A privacy budget in one file or database: `create` or `open` it; close it, or use it in a `with` statement.

    Guarantee:
        While a budget (ε, δ) was in force all along, everything released after its charge returned is together
        (ε, δ)-differentially private for the ledger's unit and relation, however runs were chosen (see `totals`).

    Examples:
        >>> with Ledger.create(":memory:", epsilon=2.0, delta=1e-5) as ledger:
        ...     ledger.open_run("a", mechanism={"steps": 100}, seed_fingerprint=None, seeded=False)
        ...     _ = ledger.charge("a", first=0, steps=10, costs={7: 0.1, 11: 0.2})
        ...     print(ledger.charged("a"), round(ledger.spent().epsilon, 3))
        10 1.055
    """

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
    ) -> Ledger:
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
        return cls(Chain.create(os.fspath(path), first))._verified()

    @repeated
    def end(self, run_id: str, reason: str, *, owner: str = "") -> None:
        """Record that a run's owner ends it here, for a reason that depended on nothing private. It is final.

        Args:
            run_id: The run.
            reason: What ended it, in words that its label will show.
            owner: The token of the run's owner, if it has one.

        Raises:
            PrivacyError: If the run was ended already, or somebody else owns it.
        """
        body = {"event": ENDED, "detail": name_text("reason", reason)}
        with self._writing():
            run = self._owned(run_id, owner) if owner else self._run(run_id)
            if run.ended:
                raise PrivacyError(f"Run {run_id!r} was ended already: {run.ended}.")
            self._append("event", run_id, body)

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
    def open_run(
        self,
        run_id: str,
        *,
        mechanism: Mapping[str, Plain],
        seed_fingerprint: str | None,
        seeded: bool,
        curve: Profile | None = None,
        delta: float = 0.0,
        neighbours: str = "add_remove",
        unit: str = "record",
    ) -> None:
        """Freeze a run's mechanism before its first step; for a run that is there already, check that it is the same.

        Args:
            run_id: The run's name in this ledger.
            mechanism: All that its cost depends on; `steps`, the most it may take, is required.
            seed_fingerprint: A hash that tells whether two runs draw the same noise. One run's fingerprint is
                refused for any other: their releases subtract to nothing but data.
            seeded: Whether the seed came from a user rather than the operating system.
            curve: The privacy curve of all its steps together, for the ledger's unit and relation. Its first charge
                then adds the whole run to the account of distances; steps that are not taken are not refunded there.
            delta: What may fail in all its steps beside the curve.
            neighbours: The relation that the curve is for.
            unit: The unit that it is for.

        Raises:
            PrivacyError: If the run is there with another mechanism, another run drew the same noise, or the curve is
                for another relation or unit than the ledger's.
        """
        if curve is not None:
            _require_same(self, neighbours, unit)
        frozen = mechanism_body(mechanism)
        if seeded and not seed_fingerprint:
            raise PrivacyError(
                "A run with a user's seed needs seed_fingerprint, so that no other run can repeat its noise."
            )
        body: dict[str, Any] = {"mechanism": frozen, "seed": seed_fingerprint, "seeded": bool(seeded)}
        body["gaussian"] = self._distance(curve, delta)
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

    @repeated
    def own(self, run_id: str, token: str) -> None:
        """Make the holder of a token the run's owner, from the next row on; whoever owned it before is refused.

        A run that was never owned takes charges from anybody, as long as they continue each other.
        """
        with self._writing():
            run = self._run(run_id)
            if name_text("token", token) in run.owners[:-1]:
                raise PrivacyError(resumed_elsewhere(run_id))
            if token != run.owner:
                self._append("event", run_id, {"event": "own", "detail": {"token": token}})

    @repeated
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
        price, by = _price(self, costs, delta, neighbours, unit), {"owner": owner} if owner else {}
        body = {**price, "first": start, "steps": count, **by}
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
            body["gaussian"] = [0, 0] if run.charged else [_stored(run.reserved[0]), run.reserved[1]]
            self._require_budget(f"Steps {start} to {start + count - 1} of run {run_id!r}", body)
            return self._append("charge", run_id, body)

    @repeated
    def release(
        self,
        name: str,
        *,
        costs: Costs | None = None,
        pure: float | None = None,
        delta: float = 0.0,
        curve: Profile | None = None,
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
            curve: Its whole privacy curve, by which it counts as a Gaussian distance; without one, a pure epsilon's.
            description: What was released, for people.
            neighbours: The relation that the costs are for.
            unit: The unit that they are for.

        Returns:
            The new row's hash.

        Raises:
            BudgetExceeded: If the total would pass the budget; nothing is written.
            PrivacyError: If the relation or the unit is not the ledger's, or the row cannot be written.
        """
        if costs is None:
            if pure is None:
                raise TypeError("A release needs its costs, or its pure epsilon.")
            costs = pure_costs(pure)
        body = {**_price(self, costs, delta, neighbours, unit), "description": str(description)}
        body["pure"] = _stored(pure_units(math.inf if pure is None else pure))
        if curve is None and pure is not None:
            curve = Profile.of_pair(pure, delta)
        body["gaussian"] = self._distance(curve)
        with self._writing():
            self._require_budget(f"Release {name_text('name', name)!r}", body)
            return self._append("release", name, body)

    @repeated
    def event(self, run_id: str, kind: str, detail: Mapping[str, Plain] | str = "", *, owner: str = "") -> Head:
        """Append a row that costs nothing, such as a run's `close`.

        Args:
            run_id: The run.
            kind: What happened, such as `close`.
            detail: What else is worth keeping, as text or as names and values.
            owner: The token of the run's owner, if it has one.

        Returns:
            The new row's hash.

        Raises:
            ValueError: If the kind is one that has a method of its own.
            PrivacyError: If somebody else owns the run.
        """
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

    @repeated
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

        Returns:
            The step to go on from.

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

    @contextmanager
    def _writing(self) -> Iterator[LedgerState]:
        with self._chain.transaction():
            yield self._fresh()
        self._fresh()

    def _distance(self, curve: Profile | None, delta: float = 0.0) -> list[int | str]:
        floor = floor_for(self.budget, self.gaussian_share)
        squared, fails = distance_units(curve, delta=delta, floor=floor)
        return [_stored(squared), fails]

    def _require_budget(self, what: str, body: Mapping[str, Any]) -> None:
        state = self._state
        if state.budget is None:
            return
        epsilon, delta = state.budget
        after = (state.totals + charged_totals(body)).epsilon(delta, gaussian_share=self.gaussian_share)
        if not after <= epsilon:
            raise BudgetExceeded(
                f"{what} would bring the total to epsilon {round_up_text(after)} at delta {delta:g}, and the budget is "
                f"{epsilon:g}. Nothing was charged: stop here, or let the budget's owner raise it."
            )

    def _append(self, kind: str, run: str, body: Mapping[str, Any]) -> Head:
        return self._chain.append(kind, run, body, last=self._state.last, head=self._state.head)


def _require_open(run_id: str, run: LedgerRun) -> None:
    if run.ended:
        raise PrivacyError(f"Run {run_id!r} was ended by its owner ({run.ended}); start a new run.")


def _stored(units: Units) -> int | str:
    return units if isinstance(units, int) else "inf"


def _price(ledger: LedgerReader, costs: Costs, delta: float, neighbours: str, unit: str) -> dict[str, Any]:
    _require_same(ledger, neighbours, unit)
    return {"costs": [_stored(cost) for cost in cost_units(costs)], "delta": delta_units(delta)}


def _require_same(ledger: LedgerReader, neighbours: str, unit: str) -> None:
    _check.one_of("neighbours", neighbours, RELATIONS)
    if neighbours != ledger.neighbours:
        fix = "Make a ledger for replace_one (tacita ledger create FILE --neighbours replace_one)."
        if ledger.neighbours == "replace_one":
            fix = "Pass costs=replace_one_costs(costs) with neighbours='replace_one'."
        raise PrivacyError(
            f"This ledger is for {ledger.neighbours}, got costs for {neighbours}: another relation enters only by a "
            f"proved conversion. {fix}"
        )
    if unit != ledger.unit:
        raise PrivacyError(
            f"This ledger protects one {ledger.unit}, got costs for one {unit}: no conversion is known. Keep a "
            "ledger for each unit."
        )
