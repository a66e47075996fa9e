"""What trusted randomness costs, as ratios measured side by side in one run: bits, coins, noise, and a training step.

One thread, CPU time, medians. The first table is nanoseconds a number; the second one step of the shipped loop.

    python benchmarks/randomness.py
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import NETWORKS
from torch import nn
from turns import median_seconds

from tacita.mechanisms.rounded import rounded_gaussian
from tacita.posterior.samplers import sampler
from tacita.training import PrivateTraining, poisson_sample
from tacita.training.randomness import generator, secure_generator

COUNT, FEW, SCALE = 1 << 20, 1 << 12, 1 << 20
STEPPED = ("CNN, 26 thousand",)


def bits() -> None:
    """Print what words, coins and noise cost by a statistical and by a cryptographic generator, and exactly."""
    plain, secure, opendp = generator(0), secure_generator(), sampler("gaussian", float(SCALE))
    kinds: dict[str, tuple[Callable[[], object], int]] = {
        "words, PCG64": (lambda: plain.integers(2**64 - 1, size=COUNT, dtype=np.uint64, endpoint=True), COUNT),
        "words, AES": (lambda: secure.integers(2**64 - 1, size=COUNT, dtype=np.uint64, endpoint=True), COUNT),
        "coins, PCG64": (lambda: poisson_sample(COUNT, 0.01, rng=plain), COUNT),
        "coins, AES": (lambda: poisson_sample(COUNT, 0.01, rng=secure), COUNT),
        "normals, PCG64": (lambda: plain.standard_normal(COUNT), COUNT),
        "normals, AES": (lambda: secure.standard_normal(COUNT), COUNT),
        "rounded Gaussian, AES": (lambda: rounded_gaussian(COUNT, scale=SCALE, rng=secure), COUNT),
        "discrete Gaussian, OpenDP": (lambda: opendp([0] * FEW), FEW),
    }
    medians = median_seconds({name: run for name, (run, _) in kinds.items()}, time.process_time, rounds=9, warm_up=1)
    each = {name: 1e9 * seconds / kinds[name][1] for name, seconds in medians.items()}
    for name, nanoseconds in each.items():
        print(f"{name:30} {nanoseconds:10.1f} ns {nanoseconds / each['normals, PCG64']:10.2f} of normals by PCG64")


def step(name: str, folder: Path, **settings: Any) -> Callable[[], object]:
    """Return a step of the shipped loop, in a run of 2,000 steps."""
    model, records = NETWORKS[name].fresh()
    count = len(records[-1])
    private = PrivateTraining(
        model,
        nn.functional.cross_entropy,
        records,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        batch_size=count,
        nominal_size=count,
        steps=2000,
        noise_multiplier=1.0,
        panel=0,
        ledger=Path(tempfile.mkdtemp(dir=folder)) / "ledger.sqlite",
        **settings,
    )
    return iter(private).__next__


def steps() -> None:
    """Print a step's time by generator and kind of noise, and what coins and noise take of it."""
    plain, secure = generator(0), secure_generator()
    for name in STEPPED:
        size, count = sum(p.numel() for p in NETWORKS[name].fresh()[0].parameters()), len(NETWORKS[name].records()[-1])
        with tempfile.TemporaryDirectory() as folder:
            runs = {
                "PCG64": step(name, Path(folder), seed=1),
                "AES": step(name, Path(folder)),
                "exact": step(name, Path(folder), noise="exact"),
                "normals, PCG64": lambda size=size, count=count: (plain.standard_normal(size), plain.random(count)),
                "normals, AES": lambda size=size, count=count: (secure.standard_normal(size), secure.random(count)),
                "rounded": lambda size=size: rounded_gaussian(size, scale=SCALE, rng=secure),
            }
            medians = median_seconds(runs, time.process_time, rounds=15, warm_up=2)
            del runs
        extra = medians["normals, AES"] - medians["normals, PCG64"]
        print(f"{name}: a step by AES {1e3 * medians['AES']:.1f} ms, by PCG64 {1e3 * medians['PCG64']:.1f} ms;")
        print(f"  AES takes {extra / medians['PCG64']:.1%} of a step more than PCG64 for coins and noise,")
        print(f"  exact noise {medians['rounded'] / medians['AES']:.1%} of a step, and a whole exact step", end=" ")
        print(f"{medians['exact'] / medians['AES']:.2f} times one in floating point:")
        more = 1e9 * (medians["exact"] - medians["AES"] - medians["rounded"]) / (size * count)
        print(f"  {more:.1f} ns more for each record and parameter", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    bits()
    steps()
