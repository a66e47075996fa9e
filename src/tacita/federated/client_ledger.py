"""A client's ledger: what its records have spent, over all servers and runs, charged on disk before every answer."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from tacita import _check
from tacita._check import PrivacyError
from tacita.facts import MEMORY
from tacita.federated.plan import FederationPlan
from tacita.ledger import Ledger, is_there
from tacita.training.charges import Charges
from tacita.training.plan import Plan


@dataclass(frozen=True)
class Standing:
    """What a client remembers of its last charge.

    Attributes:
        run: The run's name in the ledger; empty before the first charge.
        steps: How many steps of that run were charged.
        head: The ledger's head after the charge.
    """

    run: str = ""
    steps: int = 0
    head: str = ""


@dataclass(frozen=True)
class ClientLedger:
    """Where a client charges its answers.

    Attributes:
        place: The ledger's file, of unit record, created if it does not exist; or a database's URL.
        budget: (epsilon, delta), or None for a ledger that already has one, or that only counts.
    """

    place: str | Path = field(repr=False)  # a URL may hold a password
    budget: tuple[float, float] | None = None

    def charge(
        self, plan: FederationPlan, last: Standing, *, title: str = "federation", seed_mark: str | None = None
    ) -> Standing:
        """Charge one answer and return the new standing. Compute the answer only after this has returned.

        A run is continued only if the client remembers all of its charges. Otherwise (a restart, an answer that
        failed, two answers at once) the answer is charged to a new run. With a chosen seed that is refused, because
        the noise of the forgotten answers would be repeated.

        Args:
            plan: What the federation declared.
            last: What the previous charge returned, if the client still has it.
            title: The beginning of a new run's name.
            seed_mark: A hash of the client's seed, if it was given one.
        """
        declared = enforced_plan(plan)
        with self._open(last.head) as ledger:
            known = last.run and ledger.charged(last.run) == last.steps
            now = last if known else Standing(f"{title} {secrets.token_hex(8)}")
            also = json.dumps(plan.to_dict(), sort_keys=True)
            charges = Charges(ledger, now.run, declared, plan.local_steps, also=also)
            ledger.open_run(
                now.run,
                mechanism=charges.mechanism,
                seed_fingerprint=seed_mark,
                seeded=seed_mark is not None,
                curve=charges.curve,
            )
            reached = charges.grant(now.steps, whole=True)
            if reached < now.steps + plan.local_steps:
                raise PrivacyError("The ledger's budget does not pay for another answer. Nothing was charged.")
            return Standing(now.run, reached, ledger.head)

    def _open(self, head: str) -> Ledger:
        if str(self.place) == MEMORY:
            raise PrivacyError("A client's ledger must be a file: one in memory forgets what was spent.")
        if not is_there(self.place) and not head:
            epsilon, delta = self.budget or (None, None)
            return Ledger.create(self.place, epsilon=epsilon, delta=delta)
        ledger = Ledger.open(self.place)
        try:
            if head and not ledger.contains(head):
                raise PrivacyError(
                    f"The ledger {ledger.place} was replaced or rolled back: restore the one charged so far."
                )
            if self.budget is not None and ledger.budget is None:
                ledger.set_budget(*self.budget)
            if self.budget is not None and ledger.budget != self.budget:
                raise PrivacyError(
                    f"The ledger {ledger.place} has another budget than the epsilon and delta given: leave them out, "
                    "or change the ledger's budget (tacita ledger budget)."
                )
        except BaseException:
            ledger.close()
            raise
        return ledger


def enforced_plan(plan: FederationPlan) -> Plan:
    """Return the mechanism that a client enforces by itself, as one of its records sees it.

    It counts the client's noise and its sampling of records. What the client cannot check does not count: the noise of
    the server and of other clients, and the coin that decides whether the client takes part.

    Examples:
        >>> from tacita.federated.plan import federation_plan
        >>> plan = federation_plan(level="sequential", clients=4, client_rate=1.0, rounds=3, record_clip_norm=1.0,
        ...                        record_noise_multiplier=2.0, record_rate=0.5, local_batch=10)
        >>> enforced_plan(plan).noise_multiplier  # one of four shares
        1.0
    """
    declared = plan.of_records
    if declared is None:
        raise PrivacyError(
            f"At level {plan.level!r} the server adds the noise, so the client enforces nothing that its ledger could "
            "count: leave ledger out, or choose a level with noise on the client."
        )
    noise = plan.privacy_level.enforced_noise(plan)
    _check.in_range("the noise multiplier of this client's share", noise, 0.01, 1e4)
    return replace(declared, noise_multiplier=noise, steps=plan.rounds * plan.local_steps)
