"""Level joint: clients' noise protects records and is counted again for clients; the server adds what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.federated.levels.level import Level, copies_remark, noise_of_clients
from tacita.federated.participation import hidden_participation, noise_shares
from tacita.federated.updates import norm_counts, norm_of

if TYPE_CHECKING:
    from tacita.federated.client import Client
    from tacita.federated.plan import FederationPlan
    from tacita.federated.server import Server
    from tacita.guarantee import Guarantee
    from tacita.training.gradients import Parameters

_NOISE_RANGE = (0.01, 1e4)


def shared_step(client: Client, parameters: Parameters, rng: np.random.Generator) -> Parameters:
    """Return the clipped mean of the client's records with its share of the noise; count its norm before the noise.

    Args:
        client: The client.
        parameters: The model of the round.
        rng: The client's generator for the round.
    """
    client.measure(parameters)
    mean = client.clipped_mean(parameters, rng)
    client.histogram = norm_counts(np.array([min(1.0, norm_of(mean) / client.plan.clip_norm)]))
    return client.with_share(mean, rng)


def with_record_noise(plan: FederationPlan) -> FederationPlan:
    """Return the plan with the noise multiplier that a client's share gives its records."""
    noise = min(plan.share_noise / plan.record_reach, _NOISE_RANGE[1])  # more noise than that is not counted
    _check.in_range("the noise multiplier that clients' shares give their records", noise, *_NOISE_RANGE)
    return replace(plan, record_noise_multiplier=noise)


def record_bound(server: Server, delta: float) -> Guarantee:
    """Return a record's worst case over who took part: how often a client did is its own to hide."""
    return hidden_participation(server.plan, server.taken, delta)


def remarks(server: Server) -> tuple[str, ...]:
    """Return what happens if too many clients are drawn."""
    plan = server.plan
    if plan.shares == plan.clients:
        return copies_remark(plan)
    return *copies_remark(plan), f"If more than {plan.shares} clients are drawn for a round, none is asked."


JOINT = Level(
    name="joint",
    units=("client", "record"),
    update=shared_step,
    total_noise=noise_of_clients,
    shares=lambda plan: noise_shares(plan.clients, plan.client_rate, plan.rounds),
    complete=with_record_noise,
    single_step=True,
    copies=True,
    norms_per_client=lambda record_panel: 1,
    record_bound=record_bound,
    beside=hidden_participation,
    remarks=remarks,
    trust="server-trusted-for-clients",
    followed="the norms of the participating clients were measured afresh in every round, in aggregate",
)
