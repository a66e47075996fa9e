"""Generators and critics: small networks for images and for tables.

No layer mixes or remembers records, so that a critic can be trained record by record and a generator can be clipped
as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMALLEST = 1e-12
SMALL = 16  # images with a shorter side are treated as plain numbers


def make_generator(
    shape: Sequence[int], classes: int, *, blocks: Sequence[int] = (), latent: int = 64, width: int = 64
) -> Generator:
    """Return an untrained generator of records of one shape.

    Args:
        shape: Of one record: (channels, height, width) in [0, 1], or (features,).
        classes: How many classes it can be asked for; 0 for a generator without labels.
        blocks: For tables: how many features each column has, 1 for a real or a bool, more for a category. Empty means
            that every feature is a column of its own.
        latent: Numbers drawn for a record; a table's categories need one more for each of their values.
        width: How wide its layers are.

    Returns:
        The generator, with random weights.
    """
    if len(shape) == 1:
        return TableGenerator(tuple(blocks) or (1,) * shape[0], classes, latent=latent, width=2 * width)
    channels, high, wide = shape
    if min(high, wide) < SMALL:  # convolutions would gain nothing and cost much
        net = nn.Sequential(
            nn.Linear(latent + classes, 4 * width),
            nn.LeakyReLU(0.2),
            nn.Linear(4 * width, 4 * width),
            nn.LeakyReLU(0.2),
            nn.Linear(4 * width, math.prod(shape)),
            nn.Sigmoid(),
            nn.Unflatten(1, tuple(shape)),
        )
        return NetworkGenerator(net, latent, classes)
    if high % 4 or wide % 4:
        raise ValueError(f"An image's sides must be multiples of 4, got {high} by {wide}; pad or crop it.")
    start = (2 * width, high // 4, wide // 4)
    net = nn.Sequential(
        nn.Linear(latent + classes, math.prod(start)),
        nn.Unflatten(1, start),
        nn.SELU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.SELU(),
        nn.ConvTranspose2d(width, channels, 4, 2, 1),
        nn.Sigmoid(),
    )
    return NetworkGenerator(net, latent, classes)


def make_critic(
    shape: Sequence[int], classes: int, *, width: int = 32, features: int = 64, layer_noise: float = 0.0
) -> Critic:
    """Return an untrained critic of records of one shape.

    Args:
        shape: Of one record.
        classes: As for the generator.
        width: How wide its layers are.
        features: The length of the feature vector before the last layer.
        layer_noise: Above 0, the "DP critic" of Triastcyn & Faltings 2018 (thesis 3.4.1): the feature vector is
            clipped to length one and gets Gaussian noise of this size. It regularises; it guarantees nothing.

    Returns:
        The critic, with random weights.
    """
    if len(shape) == 3 and min(shape[1:]) >= SMALL:
        channels, high, wide = shape
        size = 2 * width * (high // 4) * (wide // 4)
        body = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
        )
    else:
        size = 8 * width
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), size), nn.LeakyReLU(0.2))
    return Critic(body, size, classes, features, layer_noise)


class Generator(nn.Module):
    """From latent numbers, and labels where there are any, to records.

    Attributes:
        latent: How many standard normal numbers a record is made from.
        classes: How many classes it can be asked for; 0 if it knows none.
    """

    latent: int
    classes: int

    def entry(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Return the latent numbers with the label appended as ones and zeros."""
        if self.classes == 0:
            return z
        if labels is None:
            raise ValueError(f"This generator makes records of {self.classes} classes: say which, by labels.")
        return torch.cat([z, _ones(labels, self.classes, z.dtype)], 1)


class NetworkGenerator(Generator):
    """A network from latent numbers and labels to images; pixels in [0, 1]."""

    def __init__(self, net: nn.Module, latent: int, classes: int) -> None:
        super().__init__()
        self.net, self.latent, self.classes = net, latent, classes

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return one image for every row of `z`."""
        made: Tensor = self.net(self.entry(z, labels))
        return made


class TableGenerator(Generator):
    """Two hidden layers; a column of one feature is in [-1, 1], a category is one value out of several.

    A category is drawn by the Gumbel trick from latent numbers of its own, so that a record is a function of `z`;
    the derivative is that of the soft choice (straight through).
    """

    def __init__(self, blocks: tuple[int, ...], classes: int, *, latent: int, width: int) -> None:
        super().__init__()
        self.blocks, self.base, self.classes = blocks, latent, classes
        self.latent = latent + sum(size for size in blocks if size > 1)
        self.net = nn.Sequential(
            nn.Linear(latent + classes, width),
            nn.SELU(),
            nn.Linear(width, width),
            nn.SELU(),
            nn.Linear(width, sum(blocks)),
        )

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return one record for every row of `z`."""
        scores = self.net(self.entry(z[:, : self.base], labels))
        chance = torch.special.ndtr(z[:, self.base :]).clamp(1e-6, 1.0 - 1e-6)
        gumbel = -torch.log(-torch.log(chance))
        columns, used = [], 0
        for part in scores.split(self.blocks, 1):
            size = part.shape[1]
            if size == 1:
                columns.append(torch.tanh(part))
                continue
            soft = torch.softmax(part + gumbel[:, used : used + size], 1)
            hard = _ones(soft.argmax(1), size, soft.dtype)
            columns.append(hard + (soft - soft.detach()))
            used += size
        return torch.cat(columns, 1)


class Critic(nn.Module):
    """Features of a record, then one number: the larger, the more real it looks.

    The label picks a direction of the features that is added to the common one (Miyato & Koyama 2018). Appended to
    the input of a layer, as in the thesis, it has hardly any effect: noisy critics then learn records, and no classes.
    """

    def __init__(self, body: nn.Module, size: int, classes: int, features: int, layer_noise: float) -> None:
        super().__init__()
        self.body, self.classes, self.layer_noise = body, classes, layer_noise
        self.describe = nn.Linear(size, features)
        self.score = nn.Linear(features, 1)
        self.of_class = nn.Linear(classes, features, bias=False) if classes else None
        self.draws: torch.Generator | None = None  # where the layer's noise comes from

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return one number for every record."""
        vector = functional.selu(self.describe(self.body(inputs)))
        if self.layer_noise:
            length = vector.square().sum(1, keepdim=True).add(_SMALLEST).sqrt()
            noise = torch.randn(vector.shape, generator=self.draws, dtype=vector.dtype)
            vector = vector / length.clamp_min(1.0) + self.layer_noise * noise
        score: Tensor = self.score(vector)[:, 0]
        if self.of_class is None:
            return score
        if labels is None:
            raise ValueError("This critic judges records by their labels: pass them.")
        direction: Tensor = self.of_class(_ones(labels, self.classes, vector.dtype))
        return score + (vector * direction).sum(1)


def draw_latent(generator: Generator, count: int, *, draws: torch.Generator) -> Tensor:
    """Return the latent numbers of `count` records.

    Args:
        generator: What they are for.
        count: How many records.
        draws: Where they come from.

    Returns:
        (count, generator.latent) standard normal numbers.
    """
    return torch.randn(count, generator.latent, generator=draws)


def _ones(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Return labels as ones and zeros; torch's own form cannot be run record by record."""
    return (labels[:, None] == torch.arange(classes)).to(dtype)
