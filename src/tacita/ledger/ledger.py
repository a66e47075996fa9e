"""The ledger: what was spent on one dataset, by whom, and what may still be spent.

Everything known is a replay of the chain's rows. A charge holds the only right to write while it reads what others
added, checks the budget and appends; the noise may leave the process only after `charge` has returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.ledger.admission import (
    distance,
    price,
    release_price,
    require_budget,
    require_same,
    stored,
    stored_totals,
)
from tacita.ledger.costs import Costs
from tacita.ledger.owning import OwnedLedger
from tacita.ledger.reader import Head, resumed_elsewhere
from tacita.ledger.rows import (
    ENDED,
    RESERVED,
    LedgerRun,
    Plain,
    charged_totals,
    mechanism_body,
    name_text,
    plain_body,
)
from tacita.ledger.store import repeated
from tacita.ledger.totals import Totals
from tacita.profile import Profile


class Ledger(OwnedLedger):
    """A privacy budget in one file or database: `create` or `open` it; close it, or use it in a `with` statement.

    Guarantee:
        While a budget (ε, δ) was in force all along, everything released after its charge returned is together
        (ε, δ)-differentially private for the ledger's unit and relation, however runs were chosen (see `totals`), and
        whatever was reserved and cancelled. A budget with a window promises this for the units of its own data.

    Examples:
        >>> with Ledger.create(":memory:", epsilon=2.0, delta=1e-5) as ledger:
        ...     ledger.open_run("a", mechanism={"steps": 100}, seed_fingerprint=None, seeded=False)
        ...     _ = ledger.charge("a", first=0, steps=10, costs={7: 0.1, 11: 0.2})
        ...     print(ledger.charged("a"), round(ledger.spent().epsilon, 3))
        10 1.055
    """

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
            require_same(self._state, neighbours, unit)
        frozen = mechanism_body(mechanism)
        if seeded and not seed_fingerprint:
            raise PrivacyError(
                "A run with a user's seed needs seed_fingerprint, so that no other run can repeat its noise."
            )
        body: dict[str, Any] = {"mechanism": frozen, "seed": seed_fingerprint, "seeded": bool(seeded)}
        body["gaussian"] = distance(self._fresh(), curve, delta)
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
        body = price(self._state, costs, delta, neighbours, unit)
        body |= {"first": start, "steps": count} | ({"owner": owner} if owner else {})
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
            body["gaussian"] = [0, 0] if run.charged else [stored(run.distance[0]), run.distance[1]]
            self._require(f"Steps {start} to {start + count - 1} of run {run_id!r}", body, run_id)
            return self._append("charge", run_id, body)

    @repeated
    def reserve(
        self,
        run_id: str,
        *,
        costs: Costs,
        delta: float = 0.0,
        neighbours: str = "add_remove",
        unit: str = "record",
        owner: str = "",
    ) -> Head:
        """Hold budget for all steps of a run that has not begun: others find it spent until it is cancelled.

        Its charges then count only where they are more than was reserved, so a run whose reservation was granted is
        granted its steps, unless the budget is lowered. Its first charge makes the reservation final.

        Args:
            run_id: A run that was opened, with its curve if it has one, and not charged.
            costs: λ D_{λ+1} of all its steps, as for `charge`.
            delta: The failure probability of all of them.
            neighbours: The relation that the costs are for.
            unit: The unit that they are for.
            owner: The token of the run's owner, if it has one.

        Returns:
            The new row's hash.

        Raises:
            BudgetExceeded: If the whole run does not fit; nothing is written.
            PrivacyError: If the run has begun, has ended, or has a reservation.
        """
        body = price(self._state, costs, delta, neighbours, unit)
        with self._writing():
            run = self._owned(run_id, owner)
            _require_open(run_id, run)
            if run.charged or run.held is not None:
                why = f"{run.charged} steps are charged" if run.charged else "there is a reservation"
                raise PrivacyError(f"Nothing can be reserved for run {run_id!r}, because {why}.")
            steps = int(run.mechanism["steps"])  # costs of blocks are rounded up one by one, and differ by round-off
            body["costs"] = [cost if cost == "inf" else cost + 2 * steps for cost in body["costs"]]
            body["delta"] += steps
            body["gaussian"] = [stored(run.distance[0]), run.distance[1]]
            self._require(f"Reserving run {run_id!r}", body, run_id)
            return self._append("reserve", run_id, body)

    @repeated
    def commit(self, run_id: str, *, owner: str = "") -> Head:
        """Charge at once all steps that a run has reserved and not charged. Release them only after this has returned.

        Args:
            run_id: A run with a reservation.
            owner: The token of the run's owner, if it has one.

        Returns:
            The new row's hash.

        Raises:
            PrivacyError: If there is no reservation, or the budget was lowered below what is spent.
        """
        with self._writing():
            run = self._owned(run_id, owner)
            held = _reserved(run_id, run)
            body = stored_totals(held.beyond(run.used))
            body |= {"first": run.charged, "steps": int(run.mechanism["steps"]) - run.charged}
            body |= {"owner": owner} if owner else {}
            self._require(f"Run {run_id!r}", body, run_id)
            return self._append("charge", run_id, body)

    @repeated
    def cancel(self, run_id: str, *, owner: str = "") -> Head:
        """Give back what is reserved for a run of which no step was charged, so that nothing was released of it.

        Args:
            run_id: A run with a reservation.
            owner: The token of the run's owner; without one the reservation is given back whoever owns the run.

        Returns:
            The new row's hash.

        Raises:
            PrivacyError: If there is no reservation, or a step was charged: it may have been released.
        """
        with self._writing():
            run = self._owned(run_id, owner) if owner else self._run(run_id)
            _reserved(run_id, run)
            if run.charged:
                raise PrivacyError(
                    f"The reservation of run {run_id!r} was used: {run.charged} steps are charged and may have been "
                    "released, so it stays spent."
                )
            return self._append("cancel", run_id, {})

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
        terms: dict[str, Any] = {"neighbours": neighbours, "unit": unit}
        body = release_price(self._fresh(), costs=costs, pure=pure, delta=delta, curve=curve, **terms)
        body["description"] = str(description)
        with self._writing():
            self._require(f"Release {name_text('name', name)!r}", body)
            return self._append("release", name, body)

    def _require(self, what: str, body: Mapping[str, Any], run: str = "") -> None:
        require_budget(self._state, what, charged_totals(body), self._writer, run=run)

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


def _require_open(run_id: str, run: LedgerRun) -> None:
    if run.ended:
        raise PrivacyError(f"Run {run_id!r} was ended by its owner ({run.ended}); start a new run.")


def _reserved(run_id: str, run: LedgerRun) -> Totals:
    if run.held is None:
        raise PrivacyError(f"Nothing is reserved for run {run_id!r}, or all its steps are charged.")
    return run.held
