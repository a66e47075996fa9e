"""Charging rounds: one ledger for each protected unit, on disk before anybody is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tacita._check import PrivacyError
from tacita.federated import participation
from tacita.federated.plan import FederationPlan
from tacita.ledger import Ledger, Promise
from tacita.training.charges import Charges, ledger_at
from tacita.training.randomness import Randomness

Place = Ledger | str | Path


class RoundCharges:
    """The ledgers of a federation, the larger unit's first.

    Args:
        plan: What was declared.
        identity: The run's name in the ledgers.
        token: The mark of who holds the run.
        ledger: The ledger of the larger unit.
        record_ledger: That of records, where both units are protected.

    Raises:
        PrivacyError: If a ledger counts another unit.
    """

    def __init__(self, plan: FederationPlan, identity: str, token: str, ledger: Place, record_ledger: Place) -> None:
        self.identity, self._rounds, self._opened = identity, plan.rounds, False
        also, charges = json.dumps(plan.to_dict(), sort_keys=True), list[Charges]()
        if plan.of_clients is not None:
            failure = plan.failure / plan.rounds
            charges.append(
                Charges(ledger_at(ledger, unit="client"), identity, plan.of_clients, 1, failure, also, token)
            )
            budget = charges[0].ledger.budget
            if failure and budget is not None and budget[0] > participation.LARGEST_EPSILON:
                raise PrivacyError(
                    f"Level {plan.level!r} promises nothing beyond epsilon {participation.LARGEST_EPSILON:g}, and the "
                    f"ledger's budget is {budget[0]:g}: lower it, or choose another ledger."
                )
        if plan.of_records is not None:
            place = ledger_at(record_ledger if charges else ledger)
            charges.append(Charges(place, identity, plan.of_records, plan.steps_a_round, also=also, owner=token))
        if tuple(one.plan.unit for one in charges) != plan.privacy_level.units:
            raise PrivacyError(f"The plan lacks noise that level {plan.level!r} needs: declare it anew.")
        for one in charges:
            if one.ledger.unit != one.plan.unit:
                raise PrivacyError(
                    f"The ledger {one.ledger.name} counts {one.ledger.unit}s, and this federation charges "
                    f"{one.plan.unit}s there: use another ledger."
                )
        self._charges = tuple(charges)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers that are charged."""
        return tuple(charges.ledger for charges in self._charges)

    @property
    def ended(self) -> str:
        """The owner's reason for ending the federation early; empty if it was not ended."""
        return self.ledgers[0].ended(self.identity) if self.ledgers else ""

    def promise(self, unit: str) -> Promise | None:
        """Return what the ledger of a unit keeps, if it had a budget from its first charge on."""
        own = (charges.ledger for charges in self._charges if charges.plan.unit == unit)
        return next((ledger.promise(self.identity) for ledger in own), None)

    def end(self, reason: str) -> None:
        """Declare the federation ended in every ledger."""
        if not self._charges:
            raise PrivacyError("This federation promises nothing, so there is no end to declare.")
        for charges in reversed(self._charges):  # the first one speaks for all
            if charges is self._charges[0] or not charges.ledger.ended(self.identity):
                charges.ledger.end(self.identity, reason, owner=charges.owner if self._opened else "")

    def charge(self, taken: int, random: Randomness) -> bool:
        """Charge the round after `taken` ones in every ledger; False if the budget of one is used up.

        The last ledger is always charged. One before it may be a round ahead, if charging was interrupted between them.
        """
        for charges in self._charges:
            if not self._opened:
                charges.open(random)
        self._opened = True
        ended = next(filter(None, (ledger.ended(self.identity) for ledger in self.ledgers)), "")
        if ended:
            raise PrivacyError(f"The federation was ended by its owner ({ended}); start a new one.")
        for charges in self._charges:
            steps = self._steps_a_round(charges)
            target = (taken + 1) * steps
            if charges is not self._charges[-1] and charges.charged == target:
                charges.check()
                continue
            if charges.grant(target - steps, whole=True) < target:
                return False
        return True

    def check(self) -> None:
        """Refuse to say what was spent if the run goes on elsewhere, or a ledger was taken away."""
        for charges in self._charges:
            charges.check()

    def charged_rounds(self, taken: int, heads: Sequence[object], random: Randomness, *, resume: bool) -> int:
        """Return how many rounds were charged, for a checkpoint after `taken` rounds.

        Args:
            taken: Rounds that the checkpoint knows.
            heads: The ledgers' heads at the checkpoint.
            random: The randomness of a run that goes on.
            resume: Whether the run goes on, which is recorded in the ledgers.
        """
        reached = []
        for charges, head in zip(self._charges, heads, strict=True):
            steps, known = self._steps_a_round(charges), charges.ledger.runs().get(self.identity)
            if known is not None and known["mechanism"] != charges.mechanism:
                raise PrivacyError("The run's plan is not the one that its ledger froze before the first round.")
            if resume:
                charges.open(random)
            standing = charges.standing(taken * steps, str(head), clean=False, resume=resume)
            reached.append(-(-standing // steps))
        if not reached:  # nothing is charged where nobody is protected
            return taken
        if reached[0] - reached[-1] not in (0, 1):
            raise PrivacyError("The run's two ledgers know different numbers of rounds: one of them was rolled back.")
        return reached[-1]  # nobody is asked before the last ledger was charged

    def _steps_a_round(self, charges: Charges) -> int:
        return charges.plan.steps // self._rounds
