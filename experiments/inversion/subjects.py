"""Whose pictures are attacked, the students that are attacked, and what an attack on one finds."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita.audit import invert, recogniser
from tacita.data import load
from tacita.training import PrivateTraining

Labelled = tuple[Tensor, Tensor]

HIDDEN = {"mlp": (1000, 300), "softmax": (), "small": (64, 32)}  # the thesis's networks, and the attacker's favourite
STARTS = 5  # pictures rebuilt for each class
ALARMS = 0.01  # share of pictures without a face in which the detector sees one


class Evened(nn.Module):
    """Images made smaller, with average 0 and norm 4 each: nothing of one record enters another."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        """Return rows."""
        rows = functional.avg_pool2d(images, self.factor).flatten(1)
        rows = rows - rows.mean(dim=1, keepdim=True)
        return 4.0 * rows / (rows.norm(dim=1, keepdim=True) + 1e-3)


@dataclass(frozen=True, eq=False)
class Subject:
    """Pictures for the attacked models, others for their judges, and what the models see of a picture.

    Attributes:
        name: Of the data.
        attacked: What generators and models are trained on.
        other: What the judges are trained on, and the models' accuracy is measured on.
        classes: Their names.
        front: What comes before the first layer of a model.
        delta: For private models.
        shown: Whether rebuilt pictures may be shown: they are of nobody.
        judges: One for each seed that was asked for.
    """

    name: str
    attacked: Labelled
    other: Labelled
    classes: tuple[str, ...]
    front: nn.Module
    delta: float
    shown: bool = True
    judges: dict[int, nn.Module] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.attacked[0].shape[1:])

    @cached_property
    def averages(self) -> Tensor:
        """The average attacked picture of each class."""
        inputs, labels = self.attacked
        return torch.stack([inputs[labels == c].mean(0) for c in range(len(self.classes))])

    def model(self, kind: str, seed: int) -> nn.Module:
        """Return an untrained student; a softmax regression starts at zero."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = [self.front(self.attacked[0][:1]).shape[1], *HIDDEN[kind]]
            hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
            last = nn.Linear(sizes[-1], len(self.classes))
        if not hidden:
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        return nn.Sequential(self.front, *hidden, last)

    def judge(self, seed: int) -> nn.Module:
        """Return what recognises classes, trained on the other pictures."""
        if seed not in self.judges:
            self.judges[seed] = recogniser(*self.other, rng=np.random.default_rng([seed, 1]))
        return self.judges[seed]

    @cached_property
    def detector(self) -> Callable[[Tensor], Tensor]:
        """Whether there is a face: learned from the other faces, and from what shows none.

        That is clouds, things and animals, and what the attack makes of untrained models: of neither kind more than
        one picture in a hundred is taken for a face.
        """
        things = torch.from_numpy(load("cifar10").inputs[:4000]).mean(1, keepdim=True)
        kinds = [torch.cat([things, clouds(4000, 32)]), self._artefacts()]
        kinds = [part[torch.randperm(len(part), generator=_seeded(0))] for part in kinds]
        faces = functional.adaptive_avg_pool2d(self.other[0], (32, 32))
        without = torch.cat([part[::2] for part in kinds])
        labels = torch.cat([torch.ones(len(faces)), torch.zeros(len(without))]).long()
        network = recogniser(torch.cat([faces, without]), labels, steps=400, rng=np.random.default_rng(0))

        def score(pictures: Tensor) -> Tensor:
            with torch.no_grad():
                found: Tensor = network(pictures)
            return found[:, 1] - found[:, 0]

        threshold = max(float(score(part[1::2]).quantile(1.0 - ALARMS)) for part in kinds)
        return lambda pictures: score(functional.adaptive_avg_pool2d(pictures, (32, 32))) > threshold

    def _artefacts(self) -> Tensor:
        """Return what the attack makes of untrained models."""
        rng, models = np.random.default_rng(5), [self.model("mlp", 100 + i) for i in range(10)]
        for i in range(10):
            models.append(self.model("softmax", 100 + i))
            nn.init.normal_(models[-1][1].weight, std=0.03, generator=_seeded(i))  # type: ignore[index, arg-type]
        return torch.cat([invert(model, self.shape, len(self.classes), rng=rng) for model in models])


def clouds(count: int, side: int) -> Tensor:
    """Return patterns without a face, from white noise to smooth clouds."""
    draws = _seeded(1)
    steepness = 3.0 * torch.rand(count, 1, 1, generator=draws)
    each = torch.fft.fftfreq(side)
    distance = torch.hypot(each[:, None], each).clamp_min(1.0 / side)
    noise = torch.fft.fft2(torch.randn(count, side, side, generator=draws))
    return torch.fft.ifft2(noise * distance**-steepness).real[:, None].float()


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits() -> Subject:
    """Return 8x8 digits: half of the training images for the models, half for the judges."""
    return _halves("digits", nn.Flatten(), 1e-4)


def mnist(count: int = 20_000) -> Subject:
    """Return 28x28 digits, so many of them for the models and as many for the judges."""
    return _halves("mnist", nn.Flatten(), 1e-5, count)


def faces(side: int = 32) -> Subject:
    """Return the Olivetti faces, 40 people: seven photos of each for the models, the other three for the judges."""
    data = load("olivetti")
    x = torch.cat([torch.from_numpy(data.inputs), torch.from_numpy(data.test_inputs)])
    y = torch.cat([torch.from_numpy(data.targets), torch.from_numpy(data.test_targets)])
    photos = x[torch.argsort(y, stable=True)].view(40, 10, *x.shape[1:])
    order = torch.from_numpy(np.random.default_rng(0).permuted(np.tile(np.arange(10), (40, 1)), axis=1))
    photos = photos[torch.arange(40)[:, None], order]

    def part(first: int, last: int) -> Labelled:
        images = functional.avg_pool2d(photos[:, first:last].flatten(0, 1), 64 // side)
        return images, torch.arange(40).repeat_interleave(last - first)

    return Subject("faces", part(0, 7), part(7, 10), data.classes or (), Evened(max(1, side // 32)), 1e-3, shown=False)


def _halves(name: str, front: nn.Module, delta: float, count: int | None = None) -> Subject:
    data = load(name)
    x, y = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    half = count or len(y) // 2
    return Subject(
        name, (x[:half], y[:half]), (x[half : 2 * half], y[half : 2 * half]), data.classes or (), front, delta
    )


def train(model: nn.Module, records: Labelled, *, seed: int, steps: int = 400) -> nn.Module:
    """Train a student without privacy, by Adam on batches of 64."""
    rng, optimizer = np.random.default_rng([seed, 2]), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.from_numpy(rng.integers(len(records[1]), size=64))
        optimizer.zero_grad()
        functional.cross_entropy(model(records[0][rows]), records[1][rows]).backward()
        optimizer.step()
    return model.eval()


def train_privately(
    model: nn.Module, records: Labelled, *, epsilon: float, delta: float, rate: float, steps: int, seed: int
) -> nn.Module:
    """Train a student by DP-SGD, on at most about 500 records a step."""
    size = len(records[1])
    share = min(1.0, 500 / size)
    PrivateTraining(
        model,
        functional.cross_entropy,
        records,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        sample_rate=share,
        steps=steps,
        target=(epsilon, delta),
        batch_size=share * size,
        panel=0,
        seed=seed,
    ).run()
    return model.eval()


def accuracy(model: nn.Module, records: Labelled) -> float:
    """Return the share of records that the model gets right."""
    with torch.no_grad():
        return float((model(records[0]).argmax(1) == records[1]).double().mean())


def attack(subject: Subject, model: nn.Module, seed: int, *, steps: int = 100) -> tuple[dict[str, Any], Tensor]:
    """Rebuild every class's picture several times.

    Returns:
        The model's accuracy, the classes of which most pictures are recognised, the shares of pictures that are
        recognised and, for faces, in which a face is detected, their correlation with the average attacked picture of
        their class; and the first pictures.
    """
    rng, count = np.random.default_rng([seed, 3]), len(subject.classes)
    starts = [invert(model, subject.shape, count, steps=steps, rng=rng) for _ in range(STARTS)]
    right = torch.stack([recognised(subject, pictures, torch.arange(count), seed) for pictures in starts]).double()
    found = {
        "accuracy": accuracy(model, subject.other),
        "recognised": int((right.mean(0) > 0.5).sum()),
        "pictures": float(right.mean()),
        "likeness": float(torch.stack([_likeness(pictures, subject.averages) for pictures in starts]).mean()),
    }
    if subject.name == "faces":
        found["detected"] = float(subject.detector(torch.cat(starts)).double().mean())
    return found, starts[0]


def recognised(subject: Subject, pictures: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Return which pictures the judge takes for their class."""
    judge = subject.judge(seed)
    with torch.no_grad():
        return judge(pictures).argmax(1) == labels


def _likeness(pictures: Tensor, averages: Tensor) -> Tensor:
    """Return the correlation of pictures with others, pixel by pixel."""
    one, other = (part.flatten(1) - part.flatten(1).mean(1, keepdim=True) for part in (pictures, averages))
    return functional.cosine_similarity(one, other).mean()


def packed(pictures: Tensor) -> str:
    """Return pictures as text, a byte a pixel, each with its contrast stretched."""
    low, high = (f(pictures, dim=(1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax))
    return b64encode(((pictures - low) / (high - low).clamp_min(1e-6) * 255).byte().numpy().tobytes()).decode()
