"""CIFAR-10 and Fashion-MNIST: a private linear model on public features, at which epsilon how accurate.

    python experiments/features/run.py                     # every run that has no row yet
    python experiments/features/run.py fashion-mnist-1     # one of them: dataset and epsilon
    python experiments/features/run.py choose fashion-mnist-1   # how its settings compare on held-out training images

Features come from formulas and synthetic images alone (`tacita.features`). They are computed once, 10,000 images at a
time, and kept under `.cache/`; an interrupted script goes on where it was. Each run appends a line to `results.jsonl`,
each comparison of settings one to `choices.jsonl`. Comparisons are made on a sixth of the training images, never on
the test set; most settings were not compared (see `chosen` in each row). No choice is paid for: with data that are
really private, choose on public data, or account for it. `page.py` makes the results page.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacita import features, runs
from tacita.data import Dataset, load
from tacita.training import PrivateTraining

HERE = Path(__file__).parent
DELTA = 1e-5
SEED = 0
PART = 10_000  # images in one file of features


COMPARED = "learning rate on a sixth of the training images (two values), the rest from an earlier trial; not paid for"
CARRIED = "from an earlier trial, not compared here; not paid for"


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
    chosen: str = CARRIED


SETTINGS = {
    "fashion-mnist-1": Setting("fashion-mnist", 1.0, 0.2, 60.0, 150, chosen=COMPARED),
    "fashion-mnist-3": Setting("fashion-mnist", 3.0, 0.2, 100.0, 150),
    "cifar10-3": Setting("cifar10", 3.0, 0.2, 100.0, 100, every=20),
    "cifar10-1": Setting("cifar10", 1.0, 0.2, 50.0, 100, every=20),
    "cifar10-8": Setting("cifar10", 8.0, 0.2, 150.0, 150, every=20),
}


class Wide(nn.Module):
    """Features are kept in half precision, and computed with in single precision."""

    def forward(self, x: Tensor) -> Tensor:
        """Return single precision."""
        return x.float()


def feature_map(dataset: str) -> features.Whitened:
    """Return the dataset's map: no record contributes to it."""
    shape = (3, 32, 32) if dataset == "cifar10" else (1, 28, 28)
    made = torch.zeros(200, *shape).uniform_(generator=torch.Generator().manual_seed(0))
    scattering = features.Scattering(shape, prior=made)  # only its maps are used, which need no prior

    def coarse(images: Tensor) -> Tensor:
        """Average scattering over 2x2 places: a quarter of the numbers, and no worse in a trial."""
        maps = scattering.standardised(images).reshape(len(images), -1, *scattering.places)
        return nn.functional.avg_pool2d(maps, 2).flatten(1)

    if dataset == "cifar10":
        maps: list[Any] = [features.Mirrored(features.Patches(shape, filters=800, cells=3)), coarse]
        return features.Whitened(*maps, prior="dead_leaves", shape=shape, directions=600)
    maps = [features.Patches(shape, filters=200, cells=3), scattering.standardised]
    return features.Whitened(*maps, prior="silhouettes", shape=shape, directions=600)


def computed(dataset: Dataset, name: str) -> tuple[Tensor, Tensor, float]:
    """Return features of training and test images, from files where they are there, and the CPU minutes they took."""
    cache = HERE / ".cache"
    cache.mkdir(exist_ok=True)
    wanted = [
        (cache / f"{name}-{kind}-{start}.pt", images[start : start + PART])
        for kind, images in (("train", dataset.inputs), ("test", dataset.test_inputs))
        for start in range(0, len(images), PART)
    ]
    missing = [(file, images) for file, images in wanted if not file.exists()]
    if missing:
        began = time.process_time()
        fixed = feature_map(name)
        for file, images in missing:
            found = fixed.blocks(torch.from_numpy(images), torch.float16)
            torch.save({"features": found, "minutes": (time.process_time() - began) / 60}, file)
            print(
                f"{file.name}: {found.shape[1]} features, {(time.process_time() - began) / 60:.1f} minutes", flush=True
            )
            began = time.process_time()
    parts = [torch.load(file, weights_only=True) for file, _ in wanted]
    blocks, minutes = [part["features"] for part in parts], sum(part["minutes"] for part in parts)
    train = sum("-train-" in file.name for file, _ in wanted)
    return torch.cat(blocks[:train]), torch.cat(blocks[train:]), minutes


def trained(setting: Setting, x: Tensor, y: Tensor, size: int, **follow: Any) -> tuple[nn.Module, PrivateTraining]:
    """Train a linear model, zero at first."""
    model = nn.Sequential(Wide(), nn.Linear(x.shape[1], 10, bias=False))
    nn.init.zeros_(model[1].weight)
    private = PrivateTraining(
        model,
        nn.functional.cross_entropy,
        (x, y),
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate, momentum=0.9),
        batch_size=setting.batch_size,
        nominal_size=size,
        steps=setting.steps,
        clip_norm=setting.clip_norm,
        target=(setting.epsilon, DELTA),
        seed=SEED,
        **follow,
    )
    for step in private.steps(curve=False):
        if step.number % 25 == 0:
            print(f"step {step.number} of {setting.steps}", flush=True)
    return model, private


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers, in percent."""
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(2000), y.split(2000), strict=True))
    return round(100.0 * right / len(y), 2)


def choose(name: str) -> None:
    """Compare settings around a run's on the last sixth of the training images."""
    dataset = load(SETTINGS[name].dataset)
    x, _, _ = computed(dataset, SETTINGS[name].dataset)
    y = torch.from_numpy(dataset.targets)
    kept = len(y) * 5 // 6
    for clip, factor in ((1.0, 1.0), (1.0, 2.0), (1.0, 0.5), (2.5, 1.0)):
        setting = replace(
            SETTINGS[name],
            clip_norm=SETTINGS[name].clip_norm * clip,
            learning_rate=SETTINGS[name].learning_rate * factor,
        )
        compared = {"run": name, **{word: value for word, value in asdict(setting).items() if word != "chosen"}}
        if any(compared.items() <= row.items() for row in rows("choices.jsonl")):
            continue
        model, _ = trained(setting, x[:kept], y[:kept], kept, panel=0)
        append("choices.jsonl", {**compared, "accuracy": accuracy(model, x[kept:], y[kept:])})


def append(file: str, row: dict[str, Any]) -> None:
    """Append a line and print it."""
    print(json.dumps(row), flush=True)
    with (HERE / file).open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def rows(file: str) -> list[dict[str, Any]]:
    """Return the rows written so far."""
    path = HERE / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(name: str) -> None:
    """Run one experiment."""
    setting = SETTINGS[name]
    dataset = load(setting.dataset)
    x, x_test, minutes = computed(dataset, setting.dataset)
    y, y_test = torch.from_numpy(dataset.targets), torch.from_numpy(dataset.test_targets)
    began = time.process_time()
    model, private = trained(
        setting, x, y, len(y),  # both sizes are documented by the datasets' authors
        individual_every=setting.every,
        holdout=(x_test, y_test),
        run_dir=runs.fresh_name("runs", name),
        name=dataset.name,
        purpose="A linear model on public features: formulas and synthetic images, to which no record contributed.",
    )  # fmt: skip
    score = accuracy(model, x_test, y_test)
    label = private.label(metrics={"accuracy": f"{score:.2f}% on the test set"})
    by_percent, shares = dict(label.readings.percentiles), label.readings.shares
    row = {
        "run": name,
        **asdict(setting),
        "delta": DELTA,
        "seed": SEED,
        "accuracy": score,
        "features": x.shape[1],
        "noise_multiplier": private.plan.noise_multiplier,
        "worst": label.worst.epsilon,
        "median": by_percent[50.0],
        "percentiles": {str(p): by_percent[p] for p in (50.0, 90.0, 99.0)},
        "shares": {str(p): e for p, e in shares.epsilons} if shares else None,
        "attack_success": {
            "anyone": label.worst.curve.attack_success(),
            "shares": {str(p): s for p, s in shares.successes} if shares else None,
        },
        "cpu_minutes": {"features": round(minutes, 1), "train": round((time.process_time() - began) / 60, 1)},
    }
    append("results.jsonl", row)


def main(words: list[str]) -> None:
    """Run what is asked for, or everything that has no row yet."""
    torch.set_num_threads(1)
    done = {row["run"] for row in rows("results.jsonl")}
    names = words[1:] if words[:1] == ["choose"] else words or [name for name in SETTINGS if name not in done]
    if not set(names) <= set(SETTINGS):
        sys.exit(f"usage: run.py [choose] {' '.join(SETTINGS)}")
    for name in names:
        choose(name) if words[:1] == ["choose"] else run(name)


if __name__ == "__main__":
    main(sys.argv[1:])
