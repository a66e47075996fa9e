"""What both sides know: the model, who holds which digits, and what is declared before the first round."""

from functools import lru_cache

import numpy as np
import torch
from flwr.app import Context

from tacita.data import load
from tacita.federated import FederationPlan, federation_plan, splits


def plan(context: Context) -> FederationPlan:
    """Return what is declared, from the app's settings: the same on the server and on every client."""
    config = context.run_config
    level, clients = str(config["level"]), int(config["clients"])
    each = 1437 // clients  # digits a client holds
    declared = {"level": level, "clients": clients, "rounds": int(config["rounds"]), "delta": 1e-4}
    declared["client_rate"] = 1.0 if level == "sequential" else float(config["client-rate"])
    if level in ("client", "joint"):
        declared |= {"clip_norm": 1.0, "noise_multiplier": 1.2}
    if level != "client":
        declared |= {"record_clip_norm": 2.0, "local_batch": each / 2, "local_size": each}
    if level in ("parallel", "sequential"):
        declared |= {"clip_norm": 10.0, "record_noise_multiplier": 1.0}
    return federation_plan(**declared)


def model() -> torch.nn.Module:
    """Return a linear classifier that knows nothing yet."""
    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    for parameter in made.parameters():
        torch.nn.init.zeros_(parameter)
    return made


loss_fn = torch.nn.functional.cross_entropy


@lru_cache
def partitions(clients: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the digits of every client; in a real federation each client reads its own."""
    digits = load("digits")
    parts = splits.even(len(digits.targets), clients, 1437 // clients, rng=np.random.default_rng(0))
    inputs, targets = torch.from_numpy(digits.inputs), torch.from_numpy(digits.targets)
    return [(inputs[part], targets[part]) for part in parts]


def data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this client's digits."""
    return partitions(int(context.run_config["clients"]))[int(context.node_config["partition-id"])]
