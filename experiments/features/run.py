"""CIFAR-10 and Fashion-MNIST: a private linear model on public features, at which epsilon how accurate.

    python -m experiments.features.run                       # every row that is missing
    python -m experiments.features.run "cifar10 3 *"         # some: dataset, epsilon, seed
    python -m experiments.features.run --quick               # small sizes, into quick.jsonl
    python -m experiments.features.choose                    # how settings compare on a part of the training images

Features come from formulas and synthetic images alone (`tacita.features`). They are computed once, 10,000 images at a
time, and kept under `.cache/`; an interrupted script goes on where it was. How settings were chosen is in
`choices.jsonl`: never on the test set. No choice is paid for: with data that are really private, choose on public
data, or account for it. `page.py` makes the results page.

With MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=8000000000 in the environment, as the Makefile sets them, memory is
reused instead of returned, and a step takes half the time.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.rows import Jobs, main
from tacita import features
from tacita.data import Dataset, load
from tacita.training import PrivateTraining

HERE = Path(__file__).parent
DELTA = 1e-5
SEEDS = (0, 1, 2)
PART = 10_000  # images in one file of features
SHAPES = {"cifar10": (3, 32, 32), "fashion-mnist": (1, 28, 28)}
FILTERS, DIRECTIONS = {"cifar10": 1200, "fashion-mnist": 200}, {"cifar10": 1200, "fashion-mnist": 600}
CHOSEN = {
    "cifar10": "clip norm, learning rate and steps on 30,000 of the training images (choices.jsonl); not paid for",
    "fashion-mnist": "from an earlier trial; at epsilon 1 of two learning rates on a sixth of the training images; not "
    "paid for",
}


@dataclass(frozen=True)
class Setting:
    """One run."""

    dataset: str
    epsilon: float
    clip_norm: float
    learning_rate: float
    steps: int
    batch_size: int = 8192
    every: int = 5  # steps between measurements of everybody's own bound
    seed: int = 0
    size: int | None = None  # images of the training and of the test set, if not all


SETTINGS = {
    "cifar10 1": Setting("cifar10", 1.0, 0.2, 100.0, 100, every=20),
    "cifar10 3": Setting("cifar10", 3.0, 0.2, 150.0, 200, every=20),
    "cifar10 8": Setting("cifar10", 8.0, 0.2, 300.0, 200, every=20),
    "cifar10 3 C=0.5": Setting("cifar10", 3.0, 0.5, 60.0, 200, every=20),
    "fashion-mnist 1": Setting("fashion-mnist", 1.0, 0.2, 60.0, 150),
    "fashion-mnist 3": Setting("fashion-mnist", 3.0, 0.2, 100.0, 150),
}


@functools.cache
def feature_map(dataset: str, quick: bool = False) -> features.Whitened:
    """Return the dataset's map: no record contributes to it."""
    shape = SHAPES[dataset]
    filters, directions = (20, 20) if quick else (FILTERS[dataset], DIRECTIONS[dataset])
    noise = torch.zeros(200, *shape).uniform_(generator=torch.Generator().manual_seed(0))
    scattering = features.Scattering(shape, prior=noise)  # only its maps are used, which need no prior
    maps: list[Any] = [features.Patches(shape, filters=filters, cells=3), scattering.standardised]
    prior = "silhouettes"
    if dataset == "cifar10":
        maps.insert(1, features.Halved(shape, filters=filters // 2))
        maps, prior = [features.Mirrored(part) for part in maps], "dead_leaves"
    return features.Whitened(*maps, prior=prior, shape=shape, directions=directions)


@functools.lru_cache(1)
def ready(name: str, size: int | None) -> tuple[Dataset, dict[str, Any]]:
    """Return a dataset and its features; kept for the next row of the same data."""
    dataset = load(name)
    return dataset, computed(dataset, name, size)


def computed(dataset: Dataset, name: str, size: int | None = None, parts: slice = slice(None)) -> dict[str, Any]:
    """Return features of training and test images, from files where they are there, and the CPU minutes they took.

    Args:
        dataset: The images.
        name: Its name.
        size: Of the first so many images, by a small map that is not kept.
        parts: Which files, if not all.
    """
    images = {"train": torch.from_numpy(dataset.inputs), "test": torch.from_numpy(dataset.test_inputs)}
    if size is not None:
        fixed = feature_map(name, quick=True)
        return {kind: fixed.blocks(some[:size], torch.float16) for kind, some in images.items()} | {"minutes": 0.0}
    cache = HERE / ".cache"
    cache.mkdir(exist_ok=True)
    wanted = [(kind, start) for kind, some in images.items() for start in range(0, len(some), PART)][parts]
    files = {(kind, start): cache / f"{name}-{kind}-{start}.pt" for kind, start in wanted}
    fixed = None if all(file.exists() for file in files.values()) else feature_map(name)
    for (kind, start), file in files.items():
        if fixed is not None and not file.exists():
            began = time.process_time()
            found = fixed.blocks(images[kind][start : start + PART], torch.float16)
            minutes = (time.process_time() - began) / 60
            torch.save({"features": found, "minutes": minutes}, file.with_suffix(".part"))
            file.with_suffix(".part").rename(file)
            print(f"{file.name}: {found.shape[1]} features, {minutes:.1f} minutes", flush=True)
    kept = {place: torch.load(file, weights_only=True) for place, file in files.items()}
    joined = {
        kind: torch.cat([part["features"] for place, part in kept.items() if place[0] == kind])
        for kind in dict.fromkeys(kind for kind, _ in kept)
    }
    return joined | {"minutes": sum(part["minutes"] for part in kept.values())}


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers, in percent."""
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(2000), y.split(2000), strict=True))
    return round(100.0 * right / len(y), 2)


def row(setting: Setting) -> dict[str, Any]:
    """Train one model and return what is measured of it."""
    torch.set_num_threads(1)
    name, size = setting.dataset, setting.size
    dataset, made = ready(name, size)
    y, y_test = (torch.from_numpy(targets)[:size] for targets in (dataset.targets, dataset.test_targets))
    model = features.PublicLinear(feature_map(name, size is not None), 10)
    began = time.process_time()
    private = PrivateTraining(
        model, nn.functional.cross_entropy, (made["train"], y),
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate, momentum=0.9),
        batch_size=setting.batch_size,
        nominal_size=size or dataset.nominal_size,  # documented by the datasets' authors
        steps=setting.steps,
        clip_norm=setting.clip_norm,
        target=(setting.epsilon, DELTA),
        individual_every=setting.every,
        holdout=(made["test"], y_test),
        seed=setting.seed,
        name=dataset.name,
    )  # fmt: skip
    for step in private.steps(curve=False):
        if step.number % 25 == 0:
            print(f"step {step.number} of {setting.steps}", flush=True)
    score = accuracy(model, made["test"], y_test)
    label = private.label(metrics={"accuracy": f"{score:.2f}% on the test set"})
    by_percent, shares = dict(label.readings.percentiles), label.readings.shares
    return {
        "seeds": [setting.seed],
        "settings": CHOSEN[name],
        "cpu_minutes": round((time.process_time() - began) / 60, 3),
        "feature_minutes": round(made["minutes"], 1),
        **{word: value for word, value in asdict(setting).items() if word not in ("seed", "size")},
        "delta": DELTA,
        "accuracy": score,
        "features": made["train"].shape[1],
        "noise_multiplier": private.plan.noise_multiplier,
        "worst": label.worst.epsilon,
        "percentiles": {str(p): by_percent[p] for p in (50.0, 90.0, 99.0)},
        "shares": {str(p): e for p, e in shares.epsilons} if shares else None,
        "attack_success": {
            "anyone": label.worst.curve.attack_success(),
            "shares": {str(p): s for p, s in shares.successes} if shares else None,
        },
    }


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    small: dict[str, Any] = {"size": 300, "batch_size": 64, "steps": 4, "every": 2} if quick else {}
    return {
        f"{name} seed {seed}": partial(row, replace(setting, seed=seed, **small))
        for seed in SEEDS[: 1 if quick else None]
        for name, setting in SETTINGS.items()
    }


if __name__ == "__main__":
    main("features", rows)
