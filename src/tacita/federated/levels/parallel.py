"""Level parallel: each client adds noise to its steps; a record is protected from everybody, the server included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacita.federated.levels.level import Level, copies_remark
from tacita.federated.participation import hidden_participation
from tacita.training.step import poisson_sample, private_gradient

if TYPE_CHECKING:
    import numpy as np

    from tacita.federated.client import Client
    from tacita.federated.server import Server
    from tacita.guarantee import Guarantee
    from tacita.training.gradients import Parameters


def private_steps(client: Client, parameters: Parameters, rng: np.random.Generator) -> Parameters:
    """Return by how much DP-SGD inside the client moves the parameters: each step samples, clips and adds noise.

    Args:
        client: The client.
        parameters: The model of the round.
        rng: The client's generator for the round.
    """
    declared, now = client.declared, dict(parameters)
    for _ in range(client.plan.local_steps):
        client.measure(now)
        sample = poisson_sample(len(client.records), declared.sample_rate, rng=rng)
        gradient, _ = private_gradient(
            client.task.loss,
            now,
            client.records.marked(sample),
            clip_norm=declared.clip_norm,
            noise_multiplier=declared.noise_multiplier,
            divisor=declared.batch_size,
            rng=rng,
        )
        now = {name: p - client.task.local.learning_rate * gradient[name] for name, p in now.items()}
    return {name: now[name] - p for name, p in parameters.items()}


def busiest_steps(server: Server, rounds: int) -> int:
    """Return the most steps that a record is in, by the coins, which do not depend on the data.

    They count once all rounds that the label speaks of were taken: before, how many were taken may depend on the data.
    """
    steps = rounds * server.plan.steps_a_round
    return min(steps, server.most_steps) if server.covered_end[0] == server.taken >= rounds else steps


def busiest_bound(server: Server, delta: float) -> Guarantee:
    """Return the worst case of a record of the busiest client so far."""
    return server.plan.record_worst(server.most_steps, delta)


def remarks(server: Server) -> tuple[str, ...]:
    """Return whose record the headline is for."""
    if server.unnamed_took_part:
        whose = (
            "The headline is for a record of a client that took part in every round, because not every client declared "
            "its identity."
        )
    else:
        whose = (
            "Coin flips decide who takes part, independently of the data. Once all rounds have been taken, the "
            "headline is for a record of the client that took part most often; until then, for a record of a client "
            "that takes part in every round."
        )
    return whose, *copies_remark(server.plan)


PARALLEL = Level(
    name="parallel",
    units=("record",),
    update=private_steps,
    total_noise=lambda plan: 0.0,
    copies=True,
    clients_step=True,
    record_steps=busiest_steps,
    record_bound=busiest_bound,
    compared=hidden_participation,
    remarks=remarks,
    trust="server-not-trusted",
    followed="each client followed records of its own; the largest figure over all clients is shown",
)
