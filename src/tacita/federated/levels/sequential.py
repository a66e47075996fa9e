"""Level sequential: every record of the federation has its own coin, and all clients share the noise of one step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tacita.federated.levels.level import Level, given
from tacita.federated.updates import norm_counts
from tacita.papers import sequential_accountant

if TYPE_CHECKING:
    import numpy as np

    from tacita.federated.client import Client
    from tacita.federated.plan import FederationPlan
    from tacita.federated.server import Server
    from tacita.training.gradients import Parameters


def shared_step(client: Client, parameters: Parameters, rng: np.random.Generator) -> Parameters:
    """Return the clipped mean of the client's records with its share of the noise; count its followed norms.

    Args:
        client: The client.
        parameters: The model of the round.
        rng: The client's generator for the round.
    """
    norms = client.measure(parameters)
    if norms is not None:
        client.histogram = norm_counts(norms)
    return client.with_share(client.clipped_mean(parameters, rng), rng)


def total_noise(plan: FederationPlan) -> float:
    """Return the standard deviation of noise that hides one record in the sum over all clients."""
    return given(plan.record_noise_multiplier) * plan.record_reach


def share_of_noise(plan: FederationPlan) -> float:
    """Return the noise multiplier of one client's share: what the others add it cannot check."""
    return given(plan.record_noise_multiplier) / math.sqrt(plan.shares)


def remarks(server: Server) -> tuple[str, ...]:
    """Return how records are sampled."""
    return ("In every round each record of the federation is drawn by its own coin flip, and all clients answer.",)


SEQUENTIAL = Level(
    name="sequential",
    units=("record",),
    update=shared_step,
    total_noise=total_noise,
    shares=lambda plan: plan.clients,
    enforced_noise=share_of_noise,
    everybody_answers=True,
    single_step=True,
    norms_per_client=lambda record_panel: record_panel,
    papers_norms=lambda plan, norms: sequential_accountant(norms, clients=plan.clients),
    remarks=remarks,
    trust="server-trusted-to-sum",
    followed="the norms of the records followed by each client were measured afresh in every round, in aggregate",
)
