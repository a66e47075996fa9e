"""What every row shares: who holds which records, the running mean of a generator, and how a generator is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.rows import Row
from tacita.data import Dataset
from tacita.synthesis import FedGP, average_case, frechet, measuring_features, student
from tacita.synthesis.fedgp import held_records, ready
from tacita.synthesis.students import Labelled, drawn

LEAST = 100  # records of the smallest client that there can be
GAMMA = 1e-15
TRIED = 2_000  # records whose share of the set is measured


@dataclass(frozen=True)
class Sizes:
    """How large the runs are.

    Attributes:
        data: The name of the dataset.
        least: The fewest records of a client.
        made: Records of a synthetic set.
        steps: Of a student; None takes the library's number.
        short: Of a student that helps to choose settings.
    """

    data: str = "mnist"
    least: int = LEAST
    made: int = 20_000
    steps: int | None = None
    short: int = 200


FULL, QUICK = Sizes(), Sizes(data="digits", least=10, made=500, steps=20, short=20)


class Average:
    """A running mean of a generator's weights at the server: it looks at nothing but what the server has."""

    def __init__(self, generator: nn.Module, keep: float) -> None:
        self._mean = [p.detach().clone() for p in generator.parameters()]
        self._keep, self._seen = keep, 0

    @torch.no_grad()
    def follow(self, generator: nn.Module) -> None:
        """Take the generator's present weights into the mean; the early ones are soon forgotten."""
        self._seen += 1
        keep = min(self._keep, self._seen / (10 + self._seen))
        for mean, parameter in zip(self._mean, generator.parameters(), strict=True):
            mean.lerp_(parameter, 1.0 - keep)

    @torch.no_grad()
    def settle(self, generator: nn.Module) -> None:
        """Put the mean into the generator."""
        for mean, parameter in zip(self._mean, generator.parameters(), strict=True):
            parameter.copy_(mean)


def held(recipe: FedGP) -> Labelled:
    """Return the records of all clients together, each once."""
    return held_records(ready(recipe))


def unheld(recipe: FedGP, count: int) -> Labelled:
    """Return training records that no client holds, to choose settings by."""
    job = ready(recipe)
    taken = np.unique(np.concatenate([part.positions for part in job.holdings.values()]))
    free = np.setdiff1d(np.arange(len(job.dataset.targets)), taken)
    rows = np.random.default_rng(recipe.seed).permutation(free)[:count]
    return torch.from_numpy(job.dataset.inputs[rows]), torch.from_numpy(job.dataset.targets[rows])


def test_records(dataset: Dataset) -> Labelled:
    """Return the test set, which is read once a row."""
    return torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_targets)


def judged(made: Labelled, recipe: FedGP, sizes: Sizes) -> Row:
    """Return what a synthetic set is worth on the test set, and the average-case measure of it."""
    real, test = held(recipe), test_records(ready(recipe).dataset)
    rng = np.random.default_rng(recipe.seed)
    features = measuring_features(made[0].shape[1:])
    scored = student(made, test, 10, rng=rng, steps=sizes.steps)
    near = frechet(drawn(made, 5_000, rng)[0], test[0], features=features)
    return {"student": scored, "frechet": near, **mu(real, made[0], rng)}


def mu(real: Labelled, made: Tensor, rng: np.random.Generator) -> dict[str, Any]:
    """Return the measure of a set as large as the records held, so that each stands for one of its points."""
    count = min(len(made), len(real[1]))
    tried = drawn(real, min(TRIED, len(real[1])), rng)[0]
    features = measuring_features(made.shape[1:])
    found = average_case(tried, made[:count], features=features, k=1, gamma=GAMMA)
    return {"mu": found.student, "mu_record": found.chebyshev, "points": count, "held": len(real[1])}
