"""Students: small classifiers trained on one set and judged on another, to measure the utility of the first.

The thesis trains them on synthetic records and judges them on real ones (Triastcyn 2020, sections 3.6 and 7.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita.audit.models import minimise, outputs
from tacita.data import Dataset

Labelled = tuple[Tensor, Tensor]  # inputs and labels
Kind = Literal["network", "logistic"]
Values = tuple[float | None, ...]  # None where there is none

LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1)  # of the students whose validation losses are compared

_BATCH = 128  # records of a step
_LARGE = 20  # an image with longer sides is trained on for longer
_JUDGED = 2000  # records at most of a validation set
_FOLLOWED, _CHECKPOINTS = 240, 15  # steps of a student whose losses are followed, and how often they are taken
_LARGEST_LOSS = 1e3  # a student that diverged has this loss


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """Accuracy by how many labelled records a student had (thesis, Fig. 7.4).

    Attributes:
        sizes: How many records; empty if no curve was asked for.
        synthetic: Accuracy on real test records after so many synthetic ones.
        real: The same after so many real ones; None where there are not so many.
    """

    sizes: tuple[int, ...]
    synthetic: Values
    real: Values


@dataclass(frozen=True, kw_only=True)
class ValidationCurves:
    """Losses of students in training on a real and on a synthetic validation set (thesis, Figs. 3.2 and 7.5).

    Attributes:
        learning_rates: One student each; they share everything else. Empty if none was asked for.
        steps: When the losses were taken.
        real: For each student, its losses on the real set; one that diverged has 1000.
        synthetic: The same on the synthetic set.
        accuracies: Of each student, at last, on the real set.
    """

    learning_rates: tuple[float, ...]
    steps: tuple[int, ...]
    real: tuple[tuple[float, ...], ...]
    synthetic: tuple[tuple[float, ...], ...]
    accuracies: tuple[float, ...]

    @property
    def pearson(self) -> Values:
        """Correlation of both losses along each student's training; None if one of them did not change."""
        return tuple(_correlation(pearsonr, a, b) for a, b in zip(self.real, self.synthetic, strict=True))

    @property
    def spearman(self) -> Values:
        """The same for ranks."""
        return tuple(_correlation(spearmanr, a, b) for a, b in zip(self.real, self.synthetic, strict=True))

    @property
    def selection(self) -> float | None:
        """Rank correlation of the last losses across students: would both sets put them in the same order?"""
        return _correlation(spearmanr, [losses[-1] for losses in self.real], [losses[-1] for losses in self.synthetic])

    @property
    def regret(self) -> float | None:
        """How much less accurate the student is that the synthetic set would choose than the best of all."""
        if not self.accuracies:
            return None
        last = [losses[-1] for losses in self.synthetic]
        return max(self.accuracies) - self.accuracies[last.index(min(last))]


def train_student(
    train: Labelled, classes: int, *, rng: np.random.Generator, steps: int | None = None, kind: Kind = "network"
) -> nn.Module:
    """Train a student: for images the thesis' network in small, for tables two hidden layers, or a linear model.

    The network has two convolutions (ReLU, max pooling, batch normalisation) of 16 and 32 channels and two fully
    connected layers. With twice the channels it was 0.1 points better on MNIST and took three times as long.

    Args:
        train: Images in [0, 1] or encoded table records, and their labels.
        classes: How many classes there are.
        rng: Where its first weights and its batches come from.
        steps: How many batches of 128; None takes 200 for a network on tables or on images of at most 20 pixels a
            side, else 600.
        kind: `network`, or `logistic` for a logistic regression.

    Returns:
        The student, ready for use, giving one logit for each class. A set of one class makes one that knows no other.
    """
    inputs, labels = checked("train", train, classes)
    _check.one_of("kind", kind, ("network", "logistic"))
    shape = tuple(inputs.shape[1:])
    long = kind == "logistic" or min(shape[1:], default=0) > _LARGE
    planned = _check.count("steps", steps if steps is not None else 600 if long else 200)
    model = _untrained(shape, classes, kind, rng)
    rate = 0.02 if kind == "logistic" else 0.004
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=planned + 1)
    for _ in _training(model, (inputs, labels), optimizer, planned, rng):
        schedule.step()
    return model.eval()


def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the class that a classifier finds likeliest for each record. `partial(predict, model)` is an annotator."""
    return outputs(model, inputs).argmax(1)


def accuracy(model: nn.Module, test: Labelled) -> float:
    """Return the share of records to which a classifier gives their label."""
    return float((predict(model, test[0]) == test[1]).double().mean())


def student(
    train: Labelled,
    test: Labelled,
    classes: int,
    *,
    rng: np.random.Generator,
    steps: int | None = None,
    kind: Kind = "network",
) -> float:
    """Return the accuracy on `test` of a student of `train`; see `train_student`.

    Args:
        train: What the student learns from.
        test: What it is judged on.
        classes: How many classes there are.
        rng: Where its weights and batches come from.
        steps: As in `train_student`.
        kind: As in `train_student`.

    Returns:
        A share between 0 and 1.
    """
    held = checked("test", test, classes, like=train[0])
    return accuracy(train_student(train, classes, rng=rng, steps=steps, kind=kind), held)


def learning_curve(
    synthetic: Labelled,
    test: Labelled,
    classes: int,
    sizes: Sequence[int],
    *,
    real: Labelled,
    rng: np.random.Generator,
    steps: int | None = None,
) -> LearningCurve:
    """Train students on the first so many of shuffled records, synthetic and real, and return their accuracies.

    Args:
        synthetic: As many records as the largest size, or more.
        test: Real records to judge the students by.
        classes: How many classes there are.
        sizes: How many records the students get.
        real: Real training records, for comparison.
        rng: Where the order and the students come from.
        steps: As in `train_student`.

    Returns:
        The accuracies by number of records.
    """
    most = len(checked("synthetic", synthetic, classes)[1])
    asked = tuple(_check.count("sizes", size, high=most, hint="There are no more synthetic records.") for size in sizes)

    def scores(data: Labelled) -> Values:
        order = drawn(data, len(data[1]), rng)
        return tuple(
            student((order[0][:size], order[1][:size]), test, classes, rng=rng, steps=steps)
            if size <= len(order[1])
            else None
            for size in asked
        )

    compared = scores(real)
    return LearningCurve(sizes=asked, synthetic=scores(synthetic), real=compared)


def validation_curves(
    train: Labelled,
    real_validation: Labelled,
    synthetic_validation: Labelled,
    classes: int,
    *,
    rng: np.random.Generator,
    learning_rates: Sequence[float] = LEARNING_RATES,
    steps: int | None = None,
) -> ValidationCurves:
    """Train students by SGD with momentum, at several learning rates, and follow their losses on both sets.

    Along one training most pairs of losses fall together, so a high correlation there says little about choosing
    between models. The same students are therefore compared with each other: see `selection` and `regret`.

    Args:
        train: What the students learn from; in use, synthetic records.
        real_validation: Real records; at most 2000 of them are used.
        synthetic_validation: Synthetic records that are not in `train`; at most 2000 are used.
        classes: How many classes there are.
        rng: Where the students come from: all from the same weights and batches.
        learning_rates: One student each.
        steps: How many batches of 128; None for 240. Losses are taken about 15 times.

    Returns:
        The losses of every student on both sets.
    """
    data = checked("train", train, classes)
    judges = [
        drawn(checked(name, judge, classes, like=data[0]), min(_JUDGED, len(judge[1])), rng)
        for name, judge in (("real_validation", real_validation), ("synthetic_validation", synthetic_validation))
    ]
    planned, seed = _check.count("steps", _FOLLOWED if steps is None else steps), int(rng.integers(2**62))
    every = max(1, planned // _CHECKPOINTS)
    losses: tuple[list[Any], list[Any]] = ([], [])
    accuracies = []
    rates = tuple(_check.in_range("learning_rates", rate, 1e-9, 1e3) for rate in learning_rates)
    for rate in rates:
        draws = np.random.default_rng(seed)
        model = _untrained(tuple(data[0].shape[1:]), classes, "network", draws)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        taken = [
            [_loss(model, judge) for judge in judges]
            for step in _training(model, data, optimizer, planned, draws)
            if step % every == 0
        ]
        for kept, values in zip(losses, zip(*taken, strict=True), strict=True):
            kept.append(values)
        accuracies.append(accuracy(model, judges[0]))
    return ValidationCurves(
        learning_rates=rates,
        steps=tuple(range(every, planned + 1, every)),
        real=tuple(losses[0]),
        synthetic=tuple(losses[1]),
        accuracies=tuple(accuracies),
    )


def checked(name: str, data: Labelled, classes: int, *, least: int = 1, like: Tensor | None = None) -> Labelled:
    """Return inputs as the students take them, and labels.

    Args:
        name: What to call the data in a message.
        data: Inputs and labels.
        classes: How many classes there are.
        least: How many records there must be.
        like: Records of the shape that these must have.

    Returns:
        Inputs as float32, and labels.

    Raises:
        TypeError: If it is not a pair of tensors.
        ValueError: If shapes, labels or values are not those of labelled records.
    """
    count = _check.count("classes", classes, low=2)
    if not (isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)):
        raise TypeError(f"{name} must be a pair of tensors, inputs and labels.")
    inputs, labels = data
    if inputs.ndim not in (2, 4) or not inputs.is_floating_point() or 0 in inputs.shape[1:]:
        raise ValueError(
            f"{name} must be images (n, channels, height, width) or table records (n, features) of floats, got "
            f"{inputs.ndim} dimensions of {inputs.dtype}."
        )
    if like is not None and inputs.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"{name} has records of shape {tuple(inputs.shape[1:])}, the others are {tuple(like.shape[1:])}; they must "
            "be encoded alike."
        )
    if labels.shape != (len(inputs),) or labels.dtype != torch.int64:
        raise ValueError(f"{name} must have one label (int64) a record, got labels of {labels.dtype}.")
    if len(inputs) < least:
        raise ValueError(f"{name} must have at least {least} labelled records.")
    if not 0 <= int(labels.min()) <= int(labels.max()) < count:
        raise ValueError(f"{name} must have labels from 0 to {count - 1}, one for each of {count} classes.")
    if not bool(torch.isfinite(inputs).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity.")
    return inputs.detach().float(), labels


def labelled(data: Dataset) -> Labelled:
    """Return a dataset's inputs and labels as tensors."""
    return torch.from_numpy(data.inputs), torch.from_numpy(data.targets)


def drawn(data: Labelled, count: int, rng: np.random.Generator) -> Labelled:
    """Return so many records in random order.

    Args:
        data: Inputs and labels.
        count: How many records.
        rng: Where the order comes from.

    Returns:
        Inputs and labels.
    """
    rows = torch.from_numpy(rng.permutation(len(data[1]))[:count])
    return data[0][rows], data[1][rows]


def _untrained(shape: tuple[int, ...], classes: int, kind: str, rng: np.random.Generator) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**62)))
        if kind == "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
        if len(shape) == 1:
            hidden = nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            return nn.Sequential(*hidden, nn.Linear(64, classes))
        channels, high, wide = shape
        pool = nn.MaxPool2d(2, ceil_mode=True)
        model = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3, padding=1), pool, nn.ReLU(), nn.BatchNorm2d(16)),
            *(nn.Conv2d(16, 32, 3, padding=1), pool, nn.ReLU(), nn.BatchNorm2d(32)),
            *(nn.Flatten(), nn.Linear(32 * math.ceil(high / 4) * math.ceil(wide / 4), 64), nn.ReLU()),
            nn.Linear(64, classes),
        )
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster; the stubs do not know it
        return model


def _training(
    model: nn.Module, data: Labelled, optimizer: torch.optim.Optimizer, steps: int, rng: np.random.Generator
) -> Iterator[int]:
    """Take step after step, and yield how many were taken."""
    inputs, labels = data

    def loss() -> Tensor:
        rows = torch.from_numpy(rng.integers(len(labels), size=_BATCH))
        return functional.cross_entropy(model(inputs[rows]), labels[rows])

    return minimise(optimizer, loss, steps)


def _loss(model: nn.Module, data: Labelled) -> float:
    loss = functional.cross_entropy(outputs(model, data[0]), data[1]).nan_to_num(_LARGEST_LOSS, _LARGEST_LOSS)
    return min(float(loss), _LARGEST_LOSS)


def _correlation(kind: Callable[..., Any], first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return a correlation coefficient; None for fewer than three pairs, or where one side does not change."""
    if len(first) < 3 or min(np.ptp(first), np.ptp(second)) == 0.0:
        return None
    return float(kind(first, second).statistic)
