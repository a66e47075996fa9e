"""Level client: the server clips updates and adds the noise; a client with all it holds is protected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tacita.federated.levels.level import Level, noise_of_clients

if TYPE_CHECKING:
    import numpy as np

    from tacita.federated.client import Client
    from tacita.training.gradients import Parameters


def train_freely(client: Client, parameters: Parameters, rng: np.random.Generator) -> Parameters:
    """Return by how much the client's training moves the parameters; its records are protected by nothing yet.

    Args:
        client: The client.
        parameters: The model of the round.
        rng: The client's generator for the round.
    """
    task = client.task
    if not len(client.records):
        return {name: torch.zeros_like(value) for name, value in parameters.items()}
    if task.training is not None:
        update, client.memory = task.training(parameters, client.records, client.memory, rng)
        return update
    task.settle(client.records)
    return task.train(parameters, client.batches(rng), task.local.learning_rate)


CLIENT = Level(
    name="client",
    units=("client",),
    update=train_freely,
    total_noise=noise_of_clients,
    server_measures=True,
    trust="server-trusted",
    followed="the norms of the participating clients were measured afresh in every round, in aggregate",
)

# The same training with nothing clipped and no noise, so nobody is protected. Not in the table of levels: only
# `FederationPlan.without_guarantee` makes plans of it, and their label is an infinite worst case.
UNPROTECTED = replace(
    CLIENT,
    name="none",
    units=(),
    total_noise=lambda plan: 0.0,
    server_measures=False,
    trust="client-unlimited",
    followed="No clients were followed: there is no noise to account for.",
    remarks=lambda server: ("No guarantee: updates were averaged without clipping or noise.",),
)
