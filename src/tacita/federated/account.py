"""What a client knows about the cost of its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita._check import PrivacyError
from tacita.accounting import BayesianAccountant
from tacita.federated.plan import FederationPlan
from tacita.training.plan import Plan

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

EPSILON_STEPS = 256  # buckets of a masked maximum, in equal ratios up to the worst case
_RATIO = 1.03


class Account:
    """The followed records of a client, and what the client's steps cost them.

    Args:
        plan: What the federation declared; its level protects records.
        followed: The positions of the followed records.
    """

    def __init__(self, plan: FederationPlan, followed: Counts) -> None:
        self.plan, self.followed = plan, followed
        declared = record_plan(plan)
        self.accountant = BayesianAccountant(
            sample_rate=declared.sample_rate, noise_multiplier=declared.noise_multiplier, steps=declared.steps
        )

    def step(self, norms: Floats) -> None:
        """Charge one step to the followed records."""
        self.accountant.step(norms)

    def epsilons(self, steps: int) -> list[float]:
        """Return the typical epsilon of a record of this client: distribution-free, and by the papers' estimator.

        The failure probability of the estimators is divided among all clients, since the largest figure is reported.
        """
        if not len(self.followed):  # no record costs anything
            return [0.0, 0.0]
        self.settle(steps)
        delta, gamma = self.plan.delta, self.plan.delta / 20 / self.plan.clients
        band = self.accountant.guarantee(delta=delta * 19 / 20 + gamma, gamma=gamma).epsilon
        if len(self.followed) < 2:
            return [band, band]
        return [band, self.accountant.guarantee(delta=delta, estimator="student", notion="weak").epsilon]

    def settle(self, steps: int) -> None:
        """Charge steps that were counted by the server and not here, at the clip bound."""
        missing = steps - self.accountant.taken
        if missing > 0:
            self.accountant.step(np.ones(len(self.followed)), steps=missing)

    def state(self) -> dict[str, Any]:
        """Return plain data."""
        return {"followed": self.followed.tolist(), "accountant": self.accountant.state_dict()}

    @classmethod
    def restore(cls, plan: FederationPlan, state: Mapping[str, Any]) -> Account:
        """Rebuild what `state` returned."""
        made = cls(plan, np.asarray(state["followed"], dtype=np.int64))
        made.accountant = BayesianAccountant.from_state(state["accountant"])
        return made


def epsilon_levels(plan: FederationPlan) -> Floats:
    """Return the buckets of the masked maximum: in equal ratios, the last one the worst case of all rounds."""
    worst = plan.record_worst(record_plan(plan).steps, plan.delta).epsilon
    levels: Floats = worst * _RATIO ** np.arange(1.0 - EPSILON_STEPS, 1.0)
    return levels


def record_plan(plan: FederationPlan) -> Plan:
    """Return the mechanism as a record sees it; raise where records are not protected."""
    if plan.of_records is None:
        raise PrivacyError(f"Level {plan.level!r} does not protect single records.")
    return plan.of_records
