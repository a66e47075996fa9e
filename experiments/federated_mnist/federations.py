"""Federations on MNIST and RetinaMNIST: data, models, and the four schemes of figure 6.2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.federated_mnist.settings import RECORD_DELTA, Setting
from tacita.accounting import calibrate
from tacita.data import load
from tacita.features import GradientHistograms
from tacita.federated import Client, Federation, FederationPlan, Task, federation_plan, splits
from tacita.federated.participation import hidden_participation

SIXTH = {"mnist": 10_000, "retinamnist": 180}  # the last training images: for choosing
SPLIT_CLIP = 0.5  # of an image's gradient, at scheme split; the server scales what it gets anyway
loss = nn.functional.cross_entropy


@dataclass(frozen=True)
class Data:
    """Inputs and labels, for training and testing."""

    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of right answers in percent."""
        with torch.no_grad():
            return round(100 * float((model(self.x_test).argmax(1) == self.y_test).float().mean()), 2)


@lru_cache(maxsize=2)
def inputs(data: str, model: str, directions: int) -> Data:
    """Return a dataset as a model takes it, by public constants and public features."""
    raw = load(data)
    images = [torch.from_numpy(part) for part in (raw.inputs, raw.test_inputs)]
    labels = [torch.from_numpy(part) for part in (raw.targets, raw.test_targets)]
    if model == "features":
        public = GradientHistograms(tuple(images[0].shape[1:]), window=5, stride=2, directions=directions, scale=1.0)
        with torch.no_grad():
            made = [torch.cat([public(some) for some in part.split(1000)]) for part in images]
    else:
        middle = {"mnist": 0.13, "retinamnist": 0.4}[data]
        made = [3.0 * (nn.functional.avg_pool2d(part, 2) - middle) for part in images]
    return Data(made[0], labels[0], made[1], labels[1])


def read(setting: Setting, *, choosing: bool) -> Data:
    """Return the data of a setting; to choose settings, the last sixth of the training images in the place of tests."""
    data = inputs(setting.data, setting.model, setting.directions)
    if not choosing:
        return data
    last = SIXTH[setting.data]
    return Data(data.x[:-last], data.y[:-last], data.x[-last:], data.y[-last:])


def augmented(data: Data, copies: int, seed: int) -> Data:
    """Return each training image with copies of it after it: mirrored, and shifted by up to two pixels."""
    if copies == 1:
        return data
    rng = np.random.default_rng(seed)
    x = [data.x]
    for _ in range(copies - 1):
        turned = [data.x.flip(axes) for axes in ((), (2,), (3,), (2, 3))]
        picks = torch.from_numpy(rng.integers(0, 4, len(data.x)))
        mixed = torch.stack(turned)[picks, torch.arange(len(data.x))]
        down, right = (int(shift) for shift in rng.integers(-2, 3, 2))
        padded = nn.functional.pad(mixed, (2, 2, 2, 2), mode="replicate")
        side = mixed.shape[-1]
        x.append(padded[..., 2 + down : 2 + down + side, 2 + right : 2 + right + side])
    return Data(torch.stack(x, 1).flatten(0, 1), data.y.repeat_interleave(copies), data.x_test, data.y_test)


def fresh(setting: Setting, data: Data, seed: int) -> nn.Module:
    """Return a model with seeded weights."""
    torch.manual_seed(seed)
    outputs, channels = int(data.y.max()) + 1, data.x.shape[1]
    if setting.model == "cnn":
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, outputs)
        )
    model = nn.Sequential(nn.Flatten(), nn.Linear(data.x[0].numel(), outputs))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return model


def held(setting: Setting, data: Data, each: int, seed: int) -> list[Any]:
    """Return who holds which images."""
    rng = np.random.default_rng(seed)
    if setting.split == "shards":
        return splits.shards(data.y.numpy(), setting.clients, shard=each // 2, rng=rng)
    parts = splits.even(len(data.y), setting.clients, each, rng=rng)
    copies = np.arange(setting.copies)
    return [(part[:, None] * setting.copies + copies).ravel() for part in parts]


def times_held(setting: Setting) -> int:
    """Return how many clients hold the same image of MNIST."""
    return max(1, setting.clients * setting.each // 60_000) if setting.data == "mnist" else 1


def record_plan(setting: Setting, noise: float, each: int) -> FederationPlan:
    """Return a federation of level parallel with the record noise of a setting: each client adds it itself."""
    return federation_plan(
        level="parallel",
        clients=setting.clients,
        client_rate=setting.rate,
        rounds=setting.rounds,
        delta=RECORD_DELTA,
        record_clip_norm=SPLIT_CLIP,
        record_noise_multiplier=noise,
        record_rate=setting.record_rate,
        local_batch=setting.record_rate * each,
        copies=times_held(setting),
    )


def record_noise(setting: Setting, each: int) -> float:
    """Return the least noise of a client's step that keeps an image at `record_epsilon`, over all who hold it."""
    low, high = 0.3, 3000.0
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        found = hidden_participation(record_plan(setting, middle, each), setting.rounds, RECORD_DELTA).epsilon
        low, high = (low, middle) if found <= setting.record_epsilon else (middle, high)
    return high


def noise_multiplier(setting: Setting) -> float:
    """Return the least noise over C that keeps a client at the epsilon that is aimed at."""
    return calibrate(
        epsilon=float(setting.epsilon or 0.0), delta=setting.delta, sample_rate=setting.rate, steps=setting.rounds
    ).noise_multiplier


def planned(setting: Setting, each: int) -> FederationPlan:
    """Return the plan of a setting; its worst case for a client is the one that is aimed at."""
    if setting.epsilon is None:
        return FederationPlan.without_guarantee(
            clients=setting.clients, client_rate=setting.rate, rounds=setting.rounds, delta=setting.delta
        )
    common: dict[str, Any] = {
        "clients": setting.clients,
        "client_rate": setting.rate,
        "rounds": setting.rounds,
        "clip_norm": setting.clip,
        "noise_multiplier": noise_multiplier(setting),
        "delta": setting.delta,
    }
    if setting.scheme != "joint":
        return federation_plan(level="client", **common)
    inside = {"record_rate": setting.record_rate, "local_batch": setting.record_rate * each}
    inside["copies"] = times_held(setting)
    wanted = record_noise(setting, each)
    trial = federation_plan(level="joint", record_clip_norm=1.0, **common, **inside)
    clip = trial.share_noise * inside["local_batch"] / wanted  # of an image's gradient
    return federation_plan(level="joint", record_clip_norm=clip, **common, **inside)


def noisy_step(model: nn.Module, plan: FederationPlan) -> Any:
    """Return a client's training of scheme split: one step with noise for its images, which the server clips."""
    task = Task(model, loss)

    def train(parameters: Any, records: Any, memory: Any, random: np.random.Generator) -> Any:
        inside = Client("inside", task, records, plan, seed=int(random.integers(2**62)))
        return inside.update(parameters, 1), memory

    return train


def started(
    setting: Setting, seed: int, *, choosing: bool = False, panel: int = 0
) -> tuple[Federation, Data, FederationPlan | None]:
    """Return a federation, ready to run, its data, and the plan of its images' own noise for scheme split."""
    data = read(setting, choosing=choosing)
    each = setting.each * 5 // 6 if choosing else setting.each
    parts = held(setting, data, each, seed)
    data = augmented(data, setting.copies, seed)
    model, plan, records, local = fresh(setting, data, seed), planned(setting, each), None, None
    if setting.scheme == "split":
        records = record_plan(setting, record_noise(setting, each), each)
        local = noisy_step(fresh(setting, data, seed), records)
    made = Federation(
        model,
        loss,
        ((data.x, data.y), parts),
        plan,
        local=local,
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate, momentum=setting.momentum),
        panel=panel,
        record_panel=0,
        seed=seed,
    )
    return made, data, records


def trained(made: Federation, data: Data, *, points: int = 10) -> list[tuple[int, float]]:
    """Take all rounds; return the accuracy at some of them, the last one included."""
    curve, rounds = [], made.plan.rounds
    for now in made:
        if now.number % max(1, rounds // points) == 0 or now.number == rounds:
            curve.append((now.number, data.accuracy(made.model)))
    return curve
