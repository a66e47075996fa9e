"""Compare settings on training images that are held out from training; the results go to `choices.jsonl`.

    python -m experiments.features.choose                # all runs
    python -m experiments.features.choose "cifar10 3"    # one: dataset and epsilon

The first 25,000 training images are trained on, the next 5,000 held out. Each comparison is one run of DP-SGD with the
noise of the final run, which is for all training images; without accounts, in bfloat16, and with batches that are
blocks of shuffled images instead of samples. So it takes seconds.
"""

from __future__ import annotations

import sys
import time
from fnmatch import fnmatch

import torch
from torch import Tensor
from torch.nn import functional

from experiments import rows
from experiments.features.run import DELTA, computed
from tacita import calibrate
from tacita.data import load

TRAINED, HELD, BATCH = 25_000, 5_000, 8192
AVERAGED = 0.3  # of the steps: their iterates are averaged, for comparison
GRID = {  # clip norm, learning rate times clip norm, steps
    "cifar10 1": [*((0.2, product, 100) for product in (10.0, 20.0, 30.0)), (0.2, 20.0, 200), (0.5, 20.0, 100)],
    "cifar10 3": [
        *((0.2, product, 200) for product in (20.0, 30.0, 40.0)),
        (0.2, 40.0, 100), (0.1, 30.0, 200), (0.5, 30.0, 200), (0.2, 30.0, 300),
    ],
    "cifar10 8": [*((0.2, product, 200) for product in (30.0, 40.0, 60.0)), (0.5, 60.0, 200), (0.2, 40.0, 300)],
    "fashion-mnist 1": [*((0.2, product, 150) for product in (6.0, 12.0, 24.0)), (0.5, 12.0, 150)],
    "fashion-mnist 3": [*((0.2, product, 150) for product in (10.0, 20.0, 40.0)), (0.5, 20.0, 150)],
}  # fmt: skip


def trained(
    x: Tensor, y: Tensor, *, noise: float, clip_norm: float, learning_rate: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Return the weights of a linear softmax, and their average over the last steps.

    Args:
        x: Features, rows of length one, bfloat16.
        y: Classes.
        noise: Noise multiplier.
        clip_norm: The largest norm of a record's gradient: that of its residual, times one.
        learning_rate: Of SGD with momentum 0.9.
        steps: How many.
    """
    generator = torch.Generator().manual_seed(0)
    truth = functional.one_hot(y.long(), 10).float()
    weights = torch.zeros(10, x.shape[1])
    moving, average = torch.zeros_like(weights), torch.zeros_like(weights)
    blocks = len(x) // BATCH
    for step in range(steps):
        part = slice(step % blocks * BATCH, (step % blocks + 1) * BATCH)
        residual = torch.softmax((x[part] @ weights.bfloat16().T).float(), 1) - truth[part]
        residual *= (clip_norm / residual.norm(dim=1, keepdim=True)).clamp_max(1.0)
        total = (residual.T.bfloat16() @ x[part]).float()
        total += torch.randn(weights.shape, generator=generator) * noise * clip_norm
        moving = 0.9 * moving + total / BATCH
        weights = weights - learning_rate * moving
        if step >= (1.0 - AVERAGED) * steps:
            average += weights
    return weights, average


def choose(name: str) -> None:
    """Compare settings for one dataset and epsilon."""
    data, epsilon = name.split()[0], float(name.split()[1])
    dataset = load(data)
    x = computed(dataset, data, parts=slice(3))["train"].bfloat16()
    y = torch.from_numpy(dataset.targets)
    held = slice(TRAINED, TRAINED + HELD)
    for clip_norm, product, steps in GRID[name]:
        row = f"{name} C={clip_norm:g} lr={product / clip_norm:g} T={steps}"
        if row in rows.load("features", "choices.jsonl"):
            continue
        began = time.process_time()
        plan = calibrate(epsilon=epsilon, delta=DELTA, sample_rate=BATCH / len(y), steps=steps)
        found = trained(
            x[:TRAINED], y[:TRAINED], noise=plan.noise_multiplier,
            clip_norm=clip_norm, learning_rate=product / clip_norm, steps=steps,
        )  # fmt: skip
        right = [100.0 * float(((x[held] @ w.bfloat16().T).argmax(1) == y[held]).float().mean()) for w in found]
        compared = {"run": name, "clip_norm": clip_norm, "learning_rate": product / clip_norm, "steps": steps}
        compared |= {"accuracy": round(right[0], 2), "averaged": round(right[1], 2)}
        minutes = round((time.process_time() - began) / 60, 3)
        rows.append("features", {"row": row, "cpu_minutes": minutes, **compared}, "choices.jsonl")
        print(row, compared, f"{minutes} minutes", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in GRID:
        if any(fnmatch(wanted, pattern) for pattern in sys.argv[1:] or ["*"]):
            choose(wanted)
