"""Speed of a private step as ratios: against Opacus's hooks and against plain SGD, interleaved in one run.

A 28x28 CNN of 26,010 parameters, batches of 256, one thread. Ours is the shipped loop: Poisson sampling, per-record
clipping, noise, optimiser, ledger on disk; without followed records (their gradients are extra, and shown apart).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from turns import median_seconds

from tacita.training import PrivateTraining
from tacita.training.recipes import default_model

ROUNDS, WARM_UP, BATCH = 60, 6, 256


def plain() -> Callable[[], object]:
    """Return a step of ordinary SGD."""
    model = default_model((1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def opacus() -> Callable[[], object]:
    """Return a step of Opacus in hooks mode."""
    model = GradSampleModule(default_model((1, 28, 28), 10))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH
    )
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ours(folder: Path, panel: int) -> Callable[[], object]:
    """Return a step of the shipped loop, whose batches vary around 256."""
    model = default_model((1, 28, 28), 10)
    data = torch.randn(60_000, 1, 28, 28), torch.randint(0, 10, (60_000,))
    private = PrivateTraining(
        model,
        nn.functional.cross_entropy,
        data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        batch_size=BATCH,
        nominal_size=60_000,
        steps=10_000,
        noise_multiplier=1.0,
        panel=panel,
        ledger=folder / f"ledger-{panel}.sqlite",
    )
    return iter(private).__next__


def main() -> None:
    """Print medians and ratios."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        steps = {"plain SGD": plain(), "Opacus hooks": opacus()}
        steps |= {"ours": ours(where, 0), "ours, 64 followed": ours(where, 64)}
        medians = median_seconds(steps, time.perf_counter, rounds=ROUNDS, warm_up=WARM_UP)
    for name, value in medians.items():
        print(
            f"{name:20} {1e3 * value:7.1f} ms   {value / medians['plain SGD']:5.2f} of plain SGD   "
            f"{value / medians['Opacus hooks']:5.2f} of Opacus"
        )


if __name__ == "__main__":
    main()
