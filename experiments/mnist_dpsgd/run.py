"""MNIST with DP-SGD: what a small CNN, and a linear model on public features, reach at which epsilon, over five runs.

    python -m experiments.mnist_dpsgd.run                    # every row that is missing
    python -m experiments.mnist_dpsgd.run "cnn *"            # some: the setting, and the seed
    python -m experiments.mnist_dpsgd.run --quick            # small sizes, into quick.jsonl

`cnn` is a small CNN at epsilon 1, `linear-0.75` and `linear-2` are linear models on wavelet scattering, `filter` holds
linear-0.75 to a record budget instead of plain DP, and `filter-longer` spends the same budget on more steps. Every
record is followed and held to its own bound. Rows that are called `earlier` were measured before there were seeds.
The first seed also leaves a run directory under `runs/`, with its label.

The settings were chosen on 10,000 training images held out for that, which is not accounted for: they are a recipe for
MNIST, and choosing them on private data would cost privacy. `page.py` makes the results page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.mnist_dpsgd.scattering import features
from experiments.rows import Jobs, main
from tacita import runs
from tacita.accounting import token_profile
from tacita.data import load
from tacita.training import PrivateTraining
from tacita.training.recipes import default_model

HERE = Path(__file__).parent
DELTA = 1e-5
SEEDS = (0, 1, 2, 3, 4)
CHOSEN = "on 10,000 training images held out for that; not paid for"


@dataclass(frozen=True)
class Setting:
    """One run."""

    name: str
    epsilon: float
    batch_size: int
    steps: int
    learning_rate: float
    every: int
    profile: tuple[tuple[float, float], ...] = ()
    clip_norm: float = 0.1
    seed: int = 0
    size: int | None = None  # images of the training and of the test set, if not all


SETTINGS = (
    Setting("cnn", 1.0, 1024, 500, 4.0, 25),
    Setting("linear-0.75", 0.75, 4096, 300, 90.0, 1),
    Setting("filter", 0.75, 4096, 300, 90.0, 5, ((1.0, 0.5), (0.5, 0.2), (0.1, 0.3))),
    Setting("linear-2", 2.0, 4096, 400, 100.0, 1),
    Setting("filter-longer", 0.75, 4096, 500, 90.0, 5, ((1.0, 0.3), (0.5, 0.2), (0.1, 0.5))),
)


def scattered(images: Tensor, name: str) -> Tensor:
    """Return the features of images; those of a whole set are kept in a file between runs.

    Args:
        images: Shape (n, 1, 28, 28).
        name: What the file is called; none is kept of less than a whole set.
    """
    if len(images) < 10_000:
        return features(images)
    cache = HERE / ".cache" / f"{name}.pt"
    if not cache.exists():
        cache.parent.mkdir(exist_ok=True)
        torch.save(features(images), cache.with_suffix(".part"))
        cache.with_suffix(".part").rename(cache)
    kept: Tensor = torch.load(cache, weights_only=True)
    return kept


def prepared(setting: Setting) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the model as it begins, the records and the test set."""
    mnist = load("mnist")
    x, x_test = (torch.from_numpy(images)[: setting.size] for images in (mnist.inputs, mnist.test_inputs))
    y, y_test = (torch.from_numpy(targets)[: setting.size] for targets in (mnist.targets, mnist.test_targets))
    torch.manual_seed(setting.seed)
    if setting.name == "cnn":
        return default_model((1, 28, 28), 10), (x, y), (x_test, y_test)
    x, x_test = scattered(x, "train"), scattered(x_test, "test")
    model = nn.Linear(x.shape[1], 10, bias=False)
    nn.init.zeros_(model.weight)
    return model, (x, y), (x_test, y_test)


def row(setting: Setting) -> dict[str, Any]:
    """Train one model and return what is measured of it."""
    torch.set_num_threads(1)
    name, profile = setting.name, dict(setting.profile)
    model, records, (x_test, y_test) = prepared(setting)
    kept = setting.seed == SEEDS[0] and setting.size is None
    private = PrivateTraining(
        model,
        nn.functional.cross_entropy,
        records,
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate, momentum=0.9),
        batch_size=setting.batch_size,
        nominal_size=setting.size or 60_000,
        steps=setting.steps,
        clip_norm=setting.clip_norm,
        target=(setting.epsilon, DELTA),
        individual_every=setting.every,
        record_budget=token_profile(profile, steps=setting.steps) if profile else None,
        holdout=(x_test, y_test),
        groups={"digit": records[1].numpy()},
        run_dir=runs.fresh_name("runs", f"mnist-{name}") if kept else None,
        seed=setting.seed,
        name="Handwritten digits (MNIST)",
        purpose="A small convolutional network that reads handwritten digits, trained on 60,000 images."
        if name == "cnn"
        else "A linear model on public wavelet-scattering features that reads handwritten digits.",
    )
    for step in private.steps(curve=kept):
        if step.number % max(1, setting.steps // 10) == 0:
            print(f"{name} step {step.number}: accuracy {accuracy(model, x_test, y_test):.2%}", flush=True)
    score = accuracy(model, x_test, y_test)
    label = private.label(metrics={"accuracy": f"{score:.2%} on the test set"})
    by_percent, shares = dict(label.readings.percentiles), label.readings.shares
    return {
        "seeds": [setting.seed],
        "settings": CHOSEN,
        "accuracy": round(100 * score, 2),
        "worst": label.worst.epsilon,
        "band": label.readings.typical[0].epsilon,
        "student": label.readings.typical[-1].epsilon,
        "percentiles": {str(p): by_percent[p] for p in (50.0, 90.0, 99.0, 99.9)},
        "shares": {str(p): e for p, e in shares.epsilons} if shares else None,
        "attack_success": {
            "anyone": label.worst.curve.attack_success(),
            "shares": {str(p): s for p, s in shares.successes} if shares else None,
        },
        "noise_multiplier": private.plan.noise_multiplier,
    }


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def rows(quick: bool) -> Jobs:
    """Return what measures each row: all settings with the first seed, then with the second, and so on."""
    small: dict[str, Any] = {"size": 300, "batch_size": 64, "steps": 10, "every": 5} if quick else {}
    return {
        f"{setting.name} seed {seed}": partial(row, replace(setting, seed=seed, **small))
        for seed in SEEDS[: 1 if quick else None]
        for setting in SETTINGS[: None if seed == SEEDS[0] else -1]  # one run of the last is enough
    }


if __name__ == "__main__":
    main("mnist_dpsgd", rows)
