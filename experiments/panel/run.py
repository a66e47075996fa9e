"""What it loses to measure followed records at some of the steps instead of all.

    python -m experiments.panel.run                          # every row that is missing
    python -m experiments.panel.run --quick                  # digits, few steps, into quick.jsonl
    python -m experiments.panel.run --table                  # what docs/how-to/train.md shows

MNIST, the recipe's CNN, noise 1, clip norm 1, batches of 256. Held-out records are measured at every step of one
training; what each way of following them would have said is computed from these levels, so that nothing differs but
the way. Nothing is chosen by the results.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments import rows as measured
from experiments.rows import Jobs, Rows, main
from experiments.tables import table
from tacita import BayesianAccountant
from tacita.accounting.levels import NORM_LEVELS, TOP
from tacita.accounting.shares import certified_shares
from tacita.accounting.unmeasured import Sampled, measuring_rate
from tacita.data import load
from tacita.training import PrivateTraining
from tacita.training.recipes import default_model

DELTA, BATCH = 1e-5, 256
SHARES = ("50.0", "75.0", "90.0")


def levels_of(name: str, steps: int, followed: int, seed: int) -> tuple[Any, float]:
    """Return the norm levels of held-out records at every step, (steps, records), and the accuracy in percent."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data, cache = load(name), measured.HERE / "panel" / ".cache" / f"{name}-{steps}-{followed}-{seed}.npz"
    if cache.exists():
        kept = np.load(cache)
        return kept["levels"].astype(np.int64), float(kept["accuracy"])
    train, test = (
        tuple(map(torch.from_numpy, part))
        for part in ((data.inputs, data.targets), (data.test_inputs, data.test_targets))
    )
    model = default_model(tuple(train[0].shape[1:]), 10)
    private = PrivateTraining(
        model, nn.functional.cross_entropy, train,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        batch_size=BATCH, nominal_size=data.nominal_size, steps=steps, noise_multiplier=1.0, delta=DELTA,
        panel=followed, panel_rate=1.0, holdout=test, seed=seed,
    )  # fmt: skip
    found, before = np.empty((steps, followed), dtype=np.int64), np.zeros((followed, len(NORM_LEVELS)), dtype=np.int64)
    for step in private.steps(curve=False):
        counts = private.accountants["held-out"].counts.copy()
        found[step.number - 1] = (counts - before).argmax(1)
        before = counts
        if step.number % 100 == 0:
            print(f"step {step.number} of {steps}", flush=True)
    with torch.no_grad():
        right = float((model(test[0]).argmax(1) == test[1]).double().mean())
    cache.parent.mkdir(exist_ok=True)
    np.savez_compressed(cache, levels=found.astype(np.int16), accuracy=100.0 * right)
    return found, 100.0 * right


def counts_of(levels: Any, measured_at: Any) -> Any:
    """Return how many steps each record spent at each level, of those in which it was measured."""
    counts = np.zeros((levels.shape[1], len(NORM_LEVELS)), dtype=np.int64)
    for record, seen in enumerate(measured_at.T):
        np.add.at(counts[record], levels[seen, record], 1)
    return counts


def ways(levels: Any, rate: float, rng: np.random.Generator) -> dict[str, tuple[BayesianAccountant, ...]]:
    """Return accounts of the same records by each way of following them: for the typical case, and for shares."""
    (steps, size), empty = levels.shape, BayesianAccountant(sample_rate=rate, noise_multiplier=1.0)
    chance = measuring_rate(steps, BATCH, 2 * size)

    def account(counts: Any, rate: float = 1.0, *failures: float) -> tuple[BayesianAccountant, ...]:
        return tuple(empty.completed(counts, Sampled(steps, rate, failure)) for failure in failures or (1e-12,))

    always = np.full(levels.shape, True)
    regular = np.arange(steps) % max(1, round(1 / chance)) == 0
    held = np.where(regular[:, None], levels, TOP)
    few = max(1, round(size * chance))
    return {
        "every step": account(counts_of(levels, always)),
        "default": account(counts_of(levels, rng.random(levels.shape) < chance), chance, 1e-3 * DELTA, 0.05),
        "bound in between": account(counts_of(held, always)),
        "few": account(counts_of(levels[:, :few], always[:, :few])),
    }


def row(name: str, steps: int, followed: int, seed: int) -> dict[str, Any]:
    """Return what each way says of shares of the population and of the typical case."""
    levels, accuracy = levels_of(name, steps, followed, seed)
    rate = BATCH / load(name).nominal_size
    found: dict[str, Any] = {}
    for way, (made, *others) in ways(levels, rate, np.random.default_rng(seed)).items():
        worst = made.worst_case(delta=DELTA)
        shares = certified_shares((others or [made])[0], worst)
        found[way] = {
            "followed": len(made.counts),
            "shares": {str(p): e for p, e in shares.epsilons} if shares else None,
            "typical": made.guarantee(delta=DELTA).epsilon,
            "worst": worst.epsilon,
        }
    chance = measuring_rate(steps, BATCH, 2 * followed)
    settings = "set beforehand; nothing was chosen"
    return {"seeds": [seed], "settings": settings, "steps": steps, "accuracy": accuracy, "rate": chance, "ways": found}


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    if quick:
        return {"digits 40": partial(row, "digits", 40, 200, 0)}
    return {"mnist 1000": partial(row, "mnist", 1000, 200, 0), "mnist 3500": partial(row, "mnist", 3500, 200, 0)}


WORDS = {
    "every step": "{n} records at every step",
    "default": "{n} records at {percent} of the steps, at random (default)",
    "bound in between": "{n} records at as many steps, the clip bound in between",
    "few": "{n} records at every step, at the same cost",
}


def compared(found: Rows) -> str:
    """Return the table of the guide."""
    lines = []
    for name, wanted in found.items():
        data, steps = name.split()
        for way, made in wanted["ways"].items():
            shares = made["shares"] or dict.fromkeys(SHARES)
            said = [f"{e:.2f}" if e is not None and e < made["worst"] else "–" for e in map(shares.get, SHARES)]
            words = WORDS[way].format(n=made["followed"], percent=f"{100 * wanted['rate']:.0f}%")
            lines.append([f"{data.upper()}, {steps} steps", words, *said, f"{made['worst']:.2f}"])
    return table(["run", "held-out records followed", "50% of people", "75%", "90%", "anyone"], lines)


if __name__ == "__main__":
    if "--table" in sys.argv:
        print(compared(measured.load("panel")))
    else:
        main("panel", rows)
