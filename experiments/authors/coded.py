"""DP-SGD as the authors coded it: the mean gradient of a batch is clipped as one vector, the noise is on the mean.

From mnist_experiments.ipynb and cifar10_experiments.ipynb in github.com/AlekseiTriastcyn/bayesian-differential-privacy.
At every step the accountant is given the distances between the mean gradients of the batch without one record, for
each of its first eight records. Without batch normalisation that gradient is (B g - g_j) / (B - 1), so eight gradients
of single records give what the code takes eight passes over the batch for. With batch normalisation, which the code's
network has on MNIST, there is no gradient of a single record, and the eight passes are made at some steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

Floats = NDArray[np.float64]
Labelled = tuple[Tensor, Tensor]

CHUNK = 128  # records that are differentiated at once: all of 1,024 take half as long again
FOLLOWED = 8  # records of each batch that are left out, one at a time


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What a step does.

    Attributes:
        batch: B, records in a batch; batches are cut from a shuffled training set.
        stddev: Of the noise in each entry of the batch's mean gradient.
        clip_norm: To which that gradient is clipped; infinite for no clipping.
        updated: Share of the weights that a step changes, drawn anew at each one.
        adam: Whether Adam follows, or plain gradient descent.
        learning_rate: Its learning rate.
        epochs: Passes over the training set.
    """

    batch: int
    stddev: float
    clip_norm: float
    updated: float
    adam: bool
    learning_rate: float
    epochs: int


DELTA = 1e-5
SIZES = {"mnist": 60_000, "cifar10": 50_000}
CODED = {
    "mnist": Mechanism(batch=1024, stddev=0.1, clip_norm=1.0, updated=0.1, adam=False, learning_rate=0.02, epochs=32),
    "cifar10": Mechanism(batch=512, stddev=0.8, clip_norm=1.0, updated=1.0, adam=True, learning_rate=0.001, epochs=2),
}
LONGEST = {"mnist": (10.0, 80.0), "cifar10": (25.0,)}  # clip norms for single records; few gradients reach the last


@dataclass(frozen=True)
class Seen:
    """What a training showed.

    Attributes:
        distances: Shape (measured steps, pairs): between mean gradients without one record.
        every: Steps from one measurement of them to the next.
        records: Shape (measured steps, followed): norms of the followed records' own gradients; None where batch
            normalisation mixes records.
        batches: Shape (steps,): norms of the mean gradients before clipping.
        accuracies: (epoch, percent on the test set).
    """

    distances: Floats
    every: int
    records: Floats | None
    batches: Floats
    accuracies: list[tuple[int, float]]


def convolutional(*, normalised: bool) -> nn.Module:
    """Return the network of the code's MNIST experiment, with its two layers of batch normalisation or without."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(64)]
    layers += [nn.Conv2d(64, 64, 5), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(1024, 384), nn.SELU(), nn.Linear(384, 192), nn.SELU(), nn.Linear(192, 10)]
    kept = [layer for layer in layers if normalised or not isinstance(layer, nn.BatchNorm2d)]
    return nn.Sequential(*kept).to(memory_format=torch.channels_last)


def mixes(model: nn.Module) -> bool:
    """Return whether batch normalisation makes a record's output depend on the others in its batch."""
    return any(isinstance(part, nn.BatchNorm2d) for part in model.modules())


def train(
    model: nn.Module,
    mechanism: Mechanism,
    data: Labelled,
    test: Labelled,
    *,
    seed: int,
    tests: int = 1,
    every: int = 1,
) -> Seen:
    """Train in place.

    Args:
        model: What is trained.
        mechanism: What a step does.
        data: Training images, or their features, and classes.
        test: The same for tests, which decide nothing.
        seed: Of batches, noise and the choice of weights.
        tests: Epochs between tests.
        every: Steps between measurements of distances.
    """
    torch.manual_seed(seed)
    (x, y), (m, parameters) = data, (mechanism, list(model.parameters()))
    kind = torch.optim.Adam if m.adam else torch.optim.SGD
    optimizer = kind(parameters, lr=m.learning_rate)
    distances, records, batches, accuracies = [], [], [], []
    for epoch in range(1, m.epochs + 1):
        for rows in torch.randperm(len(y)).split(m.batch):
            if len(rows) < m.batch:
                continue
            batch = x[rows], y[rows]
            mean = mean_gradient(model, batch)
            # The code draws one choice of weights for the accountant and another for the update.
            if len(batches) % every == 0 and mixes(model):
                distances.append(pdist(by_passes(model, batch, m)))
            elif len(batches) % every == 0:
                own = torch.cat(list(record_gradients(model, (batch[0][:FOLLOWED], batch[1][:FOLLOWED]))))
                distances.append(pdist(without_one(mean, own, m)))
                records.append(own.norm(dim=1).numpy())
            batches.append(float(mean.norm()))
            noisy = _clipped(mean, m.clip_norm) + m.stddev * torch.randn_like(mean)
            _give(parameters, noisy * (torch.rand_like(mean) < m.updated))
            optimizer.step()
        if epoch % tests == 0 or epoch == m.epochs:
            accuracies.append((epoch, accuracy(model, test)))
            print(f"epoch {epoch} of {m.epochs}: {accuracies[-1][1]}% on the test set", flush=True)
    return Seen(np.stack(distances), every, np.stack(records) if records else None, np.array(batches), accuracies)


def pair_distances(model: nn.Module, mechanism: Mechanism, data: Labelled, *, batches: int, records: int) -> Floats:
    """Return the distances of the code's figure 5.7: between mean gradients without one of the first records.

    Args:
        model: The trained model.
        mechanism: How its gradients were clipped and chosen from.
        data: Inside or outside the training set.
        batches: How many batches of these.
        records: How many of each batch are left out, one at a time.
    """
    found = []
    for rows in torch.randperm(len(data[1])).split(mechanism.batch)[:batches]:
        batch = data[0][rows], data[1][rows]
        mean, own = mean_gradient(model, batch), record_gradients(model, (batch[0][:records], batch[1][:records]))
        kept = torch.rand_like(mean) < mechanism.updated
        found.append(pdist(np.concatenate([without_one(mean, part, mechanism, kept, len(rows)) for part in own])))
    return np.concatenate(found)


def without_one(
    mean: Tensor, own: Tensor, mechanism: Mechanism, kept: Tensor | None = None, size: int | None = None
) -> Floats:
    """Return the clipped mean gradients of a batch without each of some records, on some of the weights.

    Args:
        mean: The batch's mean gradient.
        own: A row for the gradient of each of these records.
        mechanism: What a step does.
        kept: Which weights; drawn anew if not given.
        size: The batch's size, if it is another than the mechanism's.
    """
    kept = torch.rand_like(mean) < mechanism.updated if kept is None else kept
    size = size or mechanism.batch
    rest = (size * mean.double() - own.double()) / (size - 1)
    return np.stack([_clipped(row, mechanism.clip_norm)[kept].numpy() for row in rest])


def by_passes(model: nn.Module, batch: Labelled, mechanism: Mechanism) -> Floats:
    """Return the same for any model, by a pass over the batch for each of the first records."""
    parameters = list(model.parameters())
    losses = cross_entropy(model(batch[0]), batch[1], reduction="none")
    kept = torch.rand(sum(p.numel() for p in parameters)) < mechanism.updated
    found = []
    for j in range(FOLLOWED):
        mean = (losses.sum() - losses[j]) / (len(losses) - 1)
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(mean, parameters, retain_graph=True)])
        found.append(_clipped(flat.double(), mechanism.clip_norm)[kept].numpy())
    return np.stack(found)


def mean_gradient(model: nn.Module, batch: Labelled) -> Tensor:
    """Return the gradient of the mean loss, flat."""
    model.zero_grad()
    chunk = len(batch[1]) if mixes(model) else CHUNK
    for x, y in zip(batch[0].split(chunk), batch[1].split(chunk), strict=True):
        (cross_entropy(model(x), y, reduction="sum") / len(batch[1])).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def record_gradients(model: nn.Module, records: Labelled) -> Iterator[Tensor]:
    """Yield the gradients of a few records at a time, a row for each."""
    fixed = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (x[None],)), y[None])

    differentiate: Callable[..., dict[str, Tensor]] = vmap(grad(loss), in_dims=(None, 0, 0))
    for x, y in zip(records[0].split(FOLLOWED), records[1].split(FOLLOWED), strict=True):
        yield torch.cat([g.flatten(1) for g in differentiate(fixed, x, y).values()], 1)


def accuracy(model: nn.Module, data: Labelled) -> float:
    """Return the share of right answers, in percent."""
    model.eval()
    with torch.no_grad():
        parts = zip(data[0].split(CHUNK), data[1].split(CHUNK), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
    model.train()
    return round(100.0 * right / len(data[1]), 2)


def _clipped(vector: Tensor, clip_norm: float) -> Tensor:
    return vector / max(1.0, float(vector.norm()) / clip_norm)


def _give(parameters: list[nn.Parameter], flat: Tensor) -> None:
    """Put a flat gradient where the optimiser reads it."""
    parts = flat.split([p.numel() for p in parameters])
    for p, part in zip(parameters, parts, strict=True):
        p.grad = part.reshape(p.shape)
