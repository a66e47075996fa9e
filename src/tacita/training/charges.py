"""The ledger's side of a run: steps are charged, on disk, before any of them is computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita._check import PrivacyError
from tacita.accounting import most_spent
from tacita.accounting.profiles import worst_profile
from tacita.ledger import DECLARED, BudgetExceeded, Fit, Ledger, is_there
from tacita.profile import Profile
from tacita.training.plan import Plan
from tacita.training.randomness import Randomness

if TYPE_CHECKING:
    from tacita._check import Floats


@dataclass(frozen=True)
class Charges:
    """A run in its ledger.

    Attributes:
        ledger: Where it is charged.
        identity: The run's name there.
        plan: The mechanism, frozen there before the first step.
        block: How many steps are charged at once; what a crash loses of them is not refunded.
        delta: The failure probability of a step that its costs do not cover.
        also: Further terms to freeze, such as what a federation declared, as text.
        owner: The token of whoever steps the run; see `tacita.owner`. Readers have none.
    """

    ledger: Ledger
    identity: str
    plan: Plan
    block: int = 1
    delta: float = 0.0
    also: str = ""
    owner: str = ""

    @property
    def mechanism(self) -> dict[str, float | int | str]:
        """What is frozen before the first step."""
        return {**self.plan.frozen(), **({"also": self.also} if self.also else {})}

    @property
    def curve(self) -> Profile:
        """The privacy curve of all planned steps, or of the record budget where that is lower."""
        return plan_curve(self.plan)

    def open(self, random: Randomness | None) -> None:
        """Freeze the mechanism, or check that it is the one that was frozen; from here on the run is the owner's.

        Args:
            random: The run's streams; None if there are none yet.
        """
        self.ledger.open_run(
            self.identity,
            mechanism=self.mechanism,
            seed_fingerprint=random.fingerprint if random else None,
            seeded=random is not None and random.seeded,
            curve=self.curve,
            delta=min(1.0, self.plan.steps * self.delta),
            unit=self.plan.unit,
        )
        if self.owner:
            self.ledger.own(self.identity, self.owner)

    @property
    def head(self) -> str:
        """The ledger's head for a checkpoint; refused if somebody else has resumed the run, or the file is gone."""
        return self.ledger.head_of(self.identity, owner=self.owner)

    def check(self) -> None:
        """Refuse to say what was spent if the run goes on elsewhere, or its ledger was taken away."""
        self.ledger.verify(self.identity, owner=self.owner)

    @property
    def charged(self) -> int:
        """How many steps were charged."""
        return self.ledger.charged(self.identity)

    def standing(self, step: int, head: str, *, clean: bool, resume: bool) -> int:
        """Return how many steps may have been released, given a checkpoint; `resume` also records that it goes on.

        Args:
            step: The checkpoint's step.
            head: The ledger's head kept in it.
            clean: Whether nothing was released after it.
            resume: Whether the run goes on, which is recorded.
        """
        if resume:
            return self.ledger.resume(self.identity, step=step, head=head, clean=clean, owner=self.owner)
        return self.ledger.standing(self.identity, step=step, head=head, clean=clean)

    def grant(self, taken: int, *, whole: bool = False) -> int:
        """Charge the next block and return up to which step is granted; `taken` if the budget is used up.

        Where the budget does not pay for the block, one step is charged, unless only `whole` blocks are of use.

        Raises:
            PrivacyError: If the budget does not pay for the very first step.
        """
        for size in sorted({self.block, self.block if whole else 1}, reverse=True):
            block = min(size, self.plan.steps - taken)
            before, after = (_moments(self.plan, steps) for steps in (taken, taken + block))
            try:
                self.ledger.charge(
                    self.identity,
                    first=taken,
                    steps=block,
                    costs=after - before,
                    delta=block * self.delta,
                    unit=self.plan.unit,
                    owner=self.owner,
                )
            except BudgetExceeded as error:
                if taken == 0 and (whole or block == 1):
                    raise PrivacyError(str(error)) from error
                continue
            return taken + block
        return taken


def plan_curve(plan: Plan) -> Profile:
    """Return the privacy curve of all planned steps, or of the record budget where that is lower."""
    mechanism: dict[str, Any] = {"sample_rate": plan.sample_rate, "noise_multiplier": plan.noise_multiplier}
    whole = worst_profile(**mechanism, steps=plan.steps)
    return whole if plan.record_budget is None else whole & plan.record_budget.profile(**mechanism)


def _moments(plan: Plan, steps: int) -> Floats:
    return most_spent(
        plan.record_budget,
        steps=steps,
        orders=DECLARED,
        sample_rate=plan.sample_rate,
        noise_multiplier=plan.noise_multiplier,
    )


def would_fit(plan: Plan, ledger: Ledger) -> Fit:
    """Return whether all steps of a plan would be granted now; see `LedgerReader.would_fit`."""
    return ledger.would_fit(costs=_moments(plan, plan.steps), curve=plan_curve(plan), unit=plan.unit)


def reserve(plan: Plan, ledger: Ledger, name: str) -> None:
    """Hold the budget of a whole training, which then is started with `reservation=name` and the same plan.

    Args:
        plan: What will be declared.
        ledger: Where.
        name: A name for the run, which has not begun and has no reservation.

    Raises:
        BudgetExceeded: If the whole training does not fit; nothing is held.
        PrivacyError: If the name is taken, also by a run of another plan.
    """
    if name in ledger.reservations() or ledger.charged(name):
        raise PrivacyError(f"Run {name!r} has a reservation, or has begun: choose another name.")
    fit = would_fit(plan, ledger)
    if not fit.fits:  # before the run is opened; `Ledger.reserve` has the last word
        raise BudgetExceeded(f"The training cannot be reserved. {fit.reason}")
    Charges(ledger, name, plan).open(None)
    ledger.reserve(name, costs=_moments(plan, plan.steps), unit=plan.unit)


def require_reserved(ledger: Ledger, name: str) -> str:
    """Return the name of a reservation that nothing has used.

    Raises:
        PrivacyError: If there is none.
    """
    found = ledger.reservations().get(name)
    if found is None or found.charged:
        why = "was used already" if found else "is not in the ledger, was used or was cancelled"
        raise PrivacyError(f"The reservation {name!r} {why}. Make one with: tacita ledger reserve.")
    return name


def ledger_at(where: Ledger | str | Path, *, unit: str = "record") -> Ledger:
    """Return a ledger as it is, or the one at a place; a file is made if it does not exist."""
    if isinstance(where, Ledger):
        return where
    return Ledger.open(where) if is_there(where) else Ledger.create(where, unit=unit)
