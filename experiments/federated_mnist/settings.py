"""What is measured of chapter 6, and how each setting is chosen: the candidates, and the best of them.

`choose.py` trains every candidate on five sixths of the training images and scores it on the last sixth. What it found
is in `choices.jsonl`; `chosen` takes the best. No test image is looked at, and the choice is not paid for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from experiments import rows as measured

FOLDER = "federated_mnist"
CHOICES = "choices.jsonl"
RECORD_DELTA = 1e-5
Changes = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One federation of FedSGD: who is protected, and how the model learns.

    Attributes:
        split: iid or shards (two of 300 images of one digit each).
        clients: How many.
        epsilon: The worst case for a client that is aimed at, after all rounds; None protects nobody.
        delta: At which delta.
        scheme: none, client (noise for clients), joint (clients' noise counted for both), split (noise for both).
        model: features (linear, on public features), cnn, or linear (on pixels).
        directions: How many features.
        rate: The chance of a client to take part in a round.
        rounds: How many.
        clip: The largest norm of a client's update.
        learning_rate: Of the server.
        momentum: Of the server.
        record_epsilon: Where images are protected, the worst case that is aimed at, at 1e-5.
        record_rate: There, the chance of an image to enter its client's step.
        panel: How many clients are followed for typical figures.
        data: mnist or retinamnist.
        each: Images a client holds.
        copies: Augmented copies of each image, with the client that holds it.
    """

    split: str
    clients: int
    epsilon: float | None
    delta: float
    scheme: str = "client"
    model: str = "features"
    directions: int = 60
    rate: float = 1.0
    rounds: int = 60
    clip: float = 0.5
    learning_rate: float = 1.0
    momentum: float = 0.9
    record_epsilon: float | None = None
    record_rate: float = 0.1
    panel: int = 32
    data: str = "mnist"
    each: int = 600
    copies: int = 1


SIZES = {100: (1.0, 1e-3), 1000: (0.1, 1e-5), 10_000: (0.01, 1e-6)}  # chance of a client, delta
EPSILONS = {  # of the paper: by differential privacy, and by its Bayesian accounting
    ("6.1", 100): (8.0, 4.0),
    ("6.1", 1000): (3.0, 1.5),
    ("6.1", 10_000): (1.0, 0.6),
    ("6.2", 100): (8.0, 2.0),
    ("6.2", 1000): (3.0, 1.0),
    ("6.2", 10_000): (1.0, 0.5),
}
SPLITS = {"6.1": "shards", "6.2": "iid"}


def tables() -> dict[str, tuple[Setting, list[Changes]]]:
    """Return every setting of tables 6.1 to 6.4 and figure 6.2 by name, with what is compared."""
    named: dict[str, tuple[Setting, list[Changes]]] = {}
    for (table, clients), epsilons in EPSILONS.items():
        rate, delta = SIZES[clients]
        size = Setting(SPLITS[table], clients, None, delta, rate=rate, panel=100 if clients == 100 else 32)
        for model in ("features", "cnn"):
            start, name = replace(size, model=model), f"table {table} {model} {clients}"
            named[f"{name} none"] = (replace(start, scheme="none"), BASELINE[model])
            for epsilon in epsilons:
                candidates = GRIDS[model, start.split, clients == 100]
                named[f"{name} {epsilon:g}"] = (replace(start, epsilon=epsilon), candidates)
    retina = Setting("iid", 100, None, 1e-3, model="linear", data="retinamnist", each=10, copies=35, panel=100)
    named["table 6.3 linear 100 none"] = (replace(retina, scheme="none"), RETINA_BASELINE)
    for epsilon in (8.0, 2.1):
        named[f"table 6.3 linear 100 {epsilon:g}"] = (replace(retina, epsilon=epsilon), RETINA)
    for split, epsilon in (("iid", 2.0), ("shards", 4.0)):
        start = Setting(split, 100, epsilon, 1e-3, scheme="joint", record_epsilon=0.1)
        named[f"table 6.4 features 100 {split}"] = (start, JOINT)
    for split in ("iid", "shards"):
        start = Setting(split, 1000, None, 1e-5, rate=0.1, rounds=100)
        for scheme in ("none", "client", "joint", "split"):
            client, record = (None if scheme == "none" else 1.0), (1.0 if scheme in ("joint", "split") else None)
            one = replace(start, scheme=scheme, epsilon=client, record_epsilon=record)
            named[f"figure 6.2 {split} {scheme}"] = (one, FIGURE[scheme])
    return named


def compared(*pairs: tuple[float, float], **common: Any) -> list[Changes]:
    """Return candidates that differ in C and the server's learning rate."""
    return [{**common, "clip": clip, "learning_rate": rate} for clip, rate in pairs]


GRIDS = {  # by model, split, and whether there are 100 clients: then noise is large, and fewer directions are better
    ("features", "iid", True): compared((0.05, 4.0), (0.1, 2.0), (0.2, 1.0), rounds=60),
    ("features", "shards", True): compared((0.15, 2.0), (0.3, 1.0), (0.3, 0.5), rounds=60),
    ("features", "iid", False): compared((0.02, 8.0), (0.03, 6.0), rounds=100, directions=200),
    ("features", "shards", False): compared((0.05, 8.0), (0.1, 4.0), rounds=100, directions=200),
    ("cnn", "iid", True): compared((0.1, 0.5), (0.3, 0.2), rounds=60),
    ("cnn", "shards", True): compared((0.3, 0.2), (0.5, 0.1), rounds=60),
    ("cnn", "iid", False): compared((0.1, 1.0), (0.3, 0.4), rounds=100),
    ("cnn", "shards", False): compared((0.3, 0.4), (0.5, 0.3), rounds=100),
}
BASELINE = {  # C is not used
    "features": compared((0.5, 4.0), rounds=100, directions=200),
    "cnn": compared((0.5, 0.2), rounds=100),
}
RETINA = compared((0.5, 0.01), (0.5, 0.03), (2.0, 0.01), rounds=40)
RETINA_BASELINE = compared((0.5, 0.02), (0.5, 0.1), rounds=60)
JOINT = compared((0.1, 2.0), (0.2, 1.0), rounds=60)
FIGURE = {
    "none": compared((0.5, 4.0)),
    "client": compared((0.05, 4.0), (0.1, 4.0)),
    "joint": compared((0.1, 4.0), (0.2, 2.0)),
    "split": compared((0.05, 4.0), (0.1, 1.0)),
}


def alike(name: str) -> str:
    """Return the setting whose choice is taken: for the CNN, that of the paper's smaller epsilon."""
    _, table, model, clients, epsilon = (name + " -").split()[:5]
    if model != "cnn" or epsilon == "none":
        return name
    return f"table {table} cnn {clients} {EPSILONS[table, int(clients)][1]:g}"


def candidate(name: str, changes: Changes) -> str:
    """Return the name of a candidate."""
    return f"{name}: " + " ".join(f"{key}={value:g}" for key, value in changes.items())


def chosen(name: str) -> Setting:
    """Return the best of what was compared; the first candidate, if nothing was."""
    start, candidates = tables()[name]
    found = measured.load(FOLDER, CHOICES)
    scores = [found.get(candidate(alike(name), changes), {}).get("accuracy", -1.0) for changes in candidates]
    return replace(start, **candidates[scores.index(max(scores))])
