"""What a privacy level is: everything in which one federation differs from another, in one value.

To add a level, write a file with a `Level` and enter it in `tacita.federated.levels.LEVELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tacita._check import PrivacyError

if TYPE_CHECKING:
    import numpy as np

    from tacita.accounting import BayesianAccountant
    from tacita.federated.client import Client
    from tacita.federated.plan import FederationPlan
    from tacita.federated.server import Server
    from tacita.guarantee import Guarantee
    from tacita.training.gradients import Parameters

Unit = Literal["client", "record"]


def all_steps(server: Server, rounds: int) -> int:
    """Return the steps of a client that is in every round."""
    return rounds * server.plan.steps_a_round


def noise_of_clients(plan: FederationPlan) -> float:
    """Return the standard deviation of noise that hides one clipped update."""
    return given(plan.noise_multiplier) * plan.clip_norm


@dataclass(frozen=True, kw_only=True)
class Level:
    """A privacy level.

    Attributes:
        name: As in plans, recipes and commands.
        units: What is protected, the larger unit first. Where it includes records, clients clip them and add noise
            themselves; otherwise the server clips whole updates and adds all noise.
        update: What a client computes from the parameters of a round, with its RNG for the round.
        total_noise: The standard deviation of the noise in every sum of updates, whoever takes part.
        trust: The code of the assumption about the server.
        followed: Who was followed, for the label, where there is no panel of clients.
        everybody_answers: Whether all clients must take part in every round.
        single_step: Whether a client may take one step in a round only.
        copies: Whether several clients may hold the same record, so that its costs add up.
        clients_step: Whether clients move the model by optimiser steps, so that the server adds their mean as it is.
        complete: Fills in numbers of a checked plan that follow from the others.
        shares: How many clients' noise the total is made of; 0 where the server adds it, or nobody needs it.
        enforced_noise: The noise multiplier of records that a client enforces by itself.
        server_measures: Whether the server sees updates without noise, and so measures clients' norms itself.
        norms_per_client: From the number of records that a client follows: how many norms it reports, masked, of each
            round; 0 for none.
        record_bound: From server and delta: the worst case that limits the typical cost of records, which clients
            report; None where they report none.
        record_steps: From server and rounds: the most steps that a record is in.
        beside: From plan, rounds and delta: a public figure for records beside that of clients.
        compared: The same, for comparison with the headline where it is smaller.
        papers_norms: From plan and counted norms: those of the federated paper's own accounting, for comparison.
        remarks: What the label declares about the level.
    """

    name: str
    units: tuple[Unit, ...]
    update: Callable[[Client, Parameters, np.random.Generator], Parameters]
    total_noise: Callable[[FederationPlan], float]
    trust: str
    followed: str
    everybody_answers: bool = False
    single_step: bool = False
    copies: bool = False
    clients_step: bool = False
    complete: Callable[[FederationPlan], FederationPlan] = lambda plan: plan
    shares: Callable[[FederationPlan], int] = lambda plan: 0
    enforced_noise: Callable[[FederationPlan], float] = lambda plan: given(plan.record_noise_multiplier)
    server_measures: bool = False
    norms_per_client: Callable[[int], int] = lambda record_panel: 0
    record_bound: Callable[[Server, float], Guarantee] | None = None
    record_steps: Callable[[Server, int], int] = all_steps
    beside: Callable[[FederationPlan, int, float], Guarantee] | None = None
    compared: Callable[[FederationPlan, int, float], Guarantee] | None = None
    papers_norms: Callable[[FederationPlan, BayesianAccountant], BayesianAccountant] = lambda plan, norms: norms
    remarks: Callable[[Server], tuple[str, ...]] = lambda server: ()

    @property
    def protects_clients(self) -> bool:
        """Whether a client with all it holds is protected."""
        return "client" in self.units

    @property
    def protects_records(self) -> bool:
        """Whether single records are protected, by clipping and noise inside their client."""
        return "record" in self.units

    @property
    def declared_noise(self) -> str:
        """The name of the noise multiplier that a plan of this level declares."""
        return "noise_multiplier" if self.protects_clients else "record_noise_multiplier"

    @property
    def counts_norms(self) -> bool:
        """Whether norms are counted anew every round, measured by the server or reported by clients."""
        return self.server_measures or self.norms_per_client(1) > 0


def copies_remark(plan: FederationPlan) -> tuple[str, ...]:
    """Return what the label says of records that several clients may hold."""
    if plan.copies == 1:
        return ()
    return (f"A record may be held by up to {plan.copies} clients: its costs are added up over them.",)


def given(value: float | None) -> float:
    """Return a number that the plan's level needs."""
    if value is None:
        raise PrivacyError("The federation's plan lacks a number that its level needs.")
    return value
