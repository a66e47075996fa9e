"""The mean-embedding generator: one noisy sum of public features, class by class, and a generator fitted to it.

Everybody's features are added up once, noise is added once, and the rest is post-processing (DP-MERF, Harder,
Adamczewski & Park 2021, arXiv:2002.11603v5). What makes it work is the choice of features: those of `Moments` give the
mean and the covariance of each class, from which a generator follows in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._progress import Progress, quiet
from tacita.audit.models import minimise
from tacita.mechanisms.rounded import Grid
from tacita.synthesis.features import FeatureMap, Moments
from tacita.synthesis.networks import Generator, draw_latent, make_generator
from tacita.training.step import noisy_mean, one_thread
from tacita.training.whole import filled, shrunk, steady, whole_mean

if TYPE_CHECKING:
    from tacita._check import Counts

DEFAULTS: dict[str, dict[str, Any]] = {  # of the fit, by kind of data
    "images": {"steps": 0, "batch_size": 500, "learning_rate": 1e-3},
    "small images": {"steps": 200, "batch_size": 500, "learning_rate": 1e-3},
    "table": {"steps": 2000, "batch_size": 1000, "learning_rate": 3e-3},
}
FEATURES: dict[str, dict[str, Any]] = {  # of `Moments`
    "images": {"kept": 12, "share": 0.3, "length": 0.22},
    "small images": {"kept": 8, "share": 0.5, "length": 0.3},
    "table": {"share": 0.3, "length": 1e-3},
}

COUNT_SHARE = 0.02  # of a contribution's squared length, for the constant that counts the records of a class
RADIUS = 1.0 - 1e-5  # the longest contribution: what is left covers round-off in the sum, for up to 10⁶ records
BATCH = 64  # records whose features are computed at once; what stays in the cache is quickest

GRAIN = 0.15  # standard deviation of the white noise on generated images

_KEPT_EDGE = 0.3  # of the noise's edge; a class's differences from the average are kept above it


@dataclass(frozen=True, eq=False)
class Embedding:
    """A noisy sum of features; what is done with it costs nothing more.

    Attributes:
        sums: (classes, 1 + d) float64: for each class the constant, then the features.
        noise_multiplier: Standard deviation of the noise on each number; the sum's sensitivity is 1.
        count_weight: What one record adds to the constant of its class.
    """

    sums: Tensor
    noise_multiplier: float
    count_weight: float

    @property
    def counts(self) -> Tensor:
        """The noisy number of records of each class; at least the noise in it, so that it can be divided by."""
        return (self.sums[:, 0] / self.count_weight).clamp_min(max(1.0, self.noise_multiplier / self.count_weight))

    @property
    def proportions(self) -> Tensor:
        """Noisy shares of the classes, adding up to one."""
        return self.counts / self.counts.sum()

    @property
    def means(self) -> Tensor:
        """Noisy mean features of each class, (classes, d)."""
        return self.sums[:, 1:] / (math.sqrt(1.0 - self.count_weight**2) * self.counts[:, None])

    @property
    def errors(self) -> Tensor:
        """The standard deviation of the noise in `means`, one number for each class."""
        return self.noise_multiplier / (math.sqrt(1.0 - self.count_weight**2) * self.counts)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return it as named tensors, for a checkpoint."""
        settings = torch.tensor([self.noise_multiplier, self.count_weight], dtype=torch.float64)
        return {"sums": self.sums, "settings": settings}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Embedding:
        """Take back what `to_tensors` gave."""
        noise, weight = tensors["settings"].tolist()
        return cls(tensors["sums"], noise, weight)


def contributions(inputs: Tensor, features: FeatureMap, *, count_weight: float = math.sqrt(COUNT_SHARE)) -> Tensor:
    """Return what each record adds to the block of its class: (count_weight, √(1 - count_weight²) φ), clipped.

    Args:
        inputs: Records, (n, …).
        features: φ. Rows longer than one are scaled down.
        count_weight: The constant, in (0, 1).

    Returns:
        (n, 1 + d) float64.

    Guarantee:
        Every row is at most one long, whatever the record and whatever φ. A record whose features are not all finite,
        or too large to be squared, gives a row of zeros.
    """
    with torch.no_grad():
        found = features(inputs.double()).double()
    length = found.norm(dim=1, keepdim=True)
    good = length.isfinite()
    found = torch.where(good, found, 0.0)  # a copy: it may be the caller's own record
    factor = RADIUS * math.sqrt(1.0 - count_weight**2) / torch.where(good, length, 1.0).clamp_min(1.0)
    return torch.cat([RADIUS * count_weight * good, factor * found], 1)


def contribution_norms(inputs: Tensor, features: FeatureMap) -> Tensor:
    """Return the length of what each record adds, (n,) float64 in [0, 1]: its own sensitivity."""
    return torch.cat([contributions(part, features).norm(dim=1) for part in torch.split(inputs, BATCH)])


def embedding_sum(
    inputs: Tensor, labels: Tensor, classes: int, features: FeatureMap, *, persons: Counts | None = None
) -> Tensor:
    """Add up contributions, class by class. The result is not private: it is for `add_noise`.

    Args:
        inputs: Records, (n, …).
        labels: (n,) whole numbers; a record whose label is not in [0, classes) adds nothing.
        classes: How many classes there are; public.
        features: A public feature map.
        persons: Whose each record is, as whole numbers; None if one record is one person. A person adds the mean of
            what their records would add.

    Returns:
        (classes, 1 + d) float64.

    Guarantee:
        Adding or removing any one record, or any one person with all records, changes the result by at most 1 in
        Euclidean length. Proof: a mean is no longer than the longest of its vectors; and features depend on their own
        record alone, so the other records' rows stay the same; the record's row is at most 1 - 10⁻⁵ long
        and is added to one block. One record more shifts the others between batches, so all sums are rounded anew.
        Batches are summed by themselves, and a total of n records is then rounded n / 64 times by at most n 2⁻⁵³: for
        10⁶ records by less than 2·10⁻⁶ in all, in either of the two worlds. That is within the 10⁻⁵ left.
    """
    if len(inputs) != len(labels):
        raise ValueError(f"There must be one label for each record, got {len(labels)} for {len(inputs)}.")
    _check.count("classes", classes)
    shares = _shares(persons, len(inputs))
    width = contributions(inputs.new_zeros(1, *inputs.shape[1:]), features).shape[1]
    total = torch.zeros(classes, width, dtype=torch.float64)
    for part, named, share in zip(*(torch.split(whole, BATCH) for whole in (inputs, labels, shares)), strict=True):
        known = (named >= 0) & (named < classes)
        rows = share[known, None] * contributions(part[known], features)
        total += torch.zeros_like(total).index_add_(0, named[known].long(), rows)
    return total


def _shares(persons: Counts | None, records: int) -> Tensor:
    """Return by what each record's contribution is multiplied: one over the number of its person's records."""
    if persons is None:
        return torch.ones(records, dtype=torch.float64)
    if len(persons) != records:
        raise ValueError(f"There must be one person for each record, got {len(persons)} for {records}.")
    _, places, counts = np.unique(persons, return_inverse=True, return_counts=True)
    return torch.from_numpy(1.0 / counts[places.reshape(-1)])


def whole_embedding_sum(inputs: Tensor, labels: Tensor, classes: int, features: FeatureMap, *, grid: Grid) -> Tensor:
    """Add up contributions, rounded towards zero to whole steps of a grid; for `add_whole_noise`.

    Args:
        inputs: Records, (n, …).
        labels: (n,) whole numbers; a record whose label is not in [0, classes) adds nothing.
        classes: How many classes there are; public.
        features: A public feature map.
        grid: For a sensitivity of 1.

    Returns:
        (classes, 1 + d) int64, in steps.

    Guarantee:
        Adding or removing any one record changes the result by whole numbers z with Σ z² <= 1 / step², and by nothing
        else: sums are exact, and features are computed in blocks of one shape on one thread, of one record where a
        row's bits depended on places or neighbours for made-up records.
    """
    if len(inputs) != len(labels):
        raise ValueError(f"There must be one label for each record, got {len(labels)} for {len(inputs)}.")
    with one_thread():
        trial = torch.from_numpy(np.random.default_rng(0).normal(size=(BATCH, *inputs.shape[1:])))
        size = BATCH if steady(lambda some: contributions(some, features), trial) else 1
        total = torch.zeros(_check.count("classes", classes), contributions(trial[:1], features).shape[1]).long()
        for part, named in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
            rows = torch.div(contributions(filled(part, size), features)[: len(part)], grid.step).trunc_()
            shrunk([rows], torch.ones(len(part), dtype=torch.float64), grid)
            known = (named >= 0) & (named < classes)
            own = torch.zeros(total.shape, dtype=torch.float64).index_add_(0, named[known].long(), rows[known])
            total += own.long()
    return total


def add_whole_noise(total: Tensor, *, noise_multiplier: float, grid: Grid, rng: np.random.Generator) -> Embedding:
    """Return a sum in whole steps with a rounded Gaussian on every number of it, drawn exactly.

    Args:
        total: From `whole_embedding_sum`.
        noise_multiplier: Standard deviation of the noise, at least 1/32.
        grid: The same.
        rng: Where the noise comes from. Whoever knows its seed can take the noise off again.

    Returns:
        The noisy sum, which may be published: whole steps of the grid.

    Guarantee:
        A post-processing of one Gaussian mechanism of sensitivity 1 under adding or removing a record.
    """
    sigma = _check.in_range("noise_multiplier", noise_multiplier, 1e-3, 1e6)
    noisy = whole_mean({"sum": total}, grid=grid, divisor=1.0, rng=rng)["sum"]
    return Embedding(noisy, sigma, RADIUS * math.sqrt(COUNT_SHARE))


def add_noise(total: Tensor, *, noise_multiplier: float, rng: np.random.Generator) -> Embedding:
    """Return a sum with independent Gaussian noise on every number of it.

    Args:
        total: From `embedding_sum`.
        noise_multiplier: Standard deviation of the noise, at least 10⁻³; 0 is not a release.
        rng: Where the noise comes from. Whoever knows its seed can take the noise off again.

    Returns:
        The noisy sum, which may be published.

    Guarantee:
        One Gaussian mechanism of sensitivity 1 under adding or removing a record, or a person. Nothing else depends on
        the data: the shape and the weights are public, and the sum is not divided by a number of records.
    """
    sigma = _check.in_range("noise_multiplier", noise_multiplier, 1e-3, 1e6)
    noisy = noisy_mean({"sum": total}, clip_norm=1.0, noise_multiplier=sigma, divisor=1.0, rng=rng)["sum"]
    return Embedding(noisy, sigma, RADIUS * math.sqrt(COUNT_SHARE))


def release_embedding(
    inputs: Tensor,
    labels: Tensor,
    classes: int,
    features: FeatureMap,
    *,
    noise_multiplier: float,
    rng: np.random.Generator,
    persons: Counts | None = None,
) -> Embedding:
    """Return the noisy sum of everybody's features: `embedding_sum`, then `add_noise`, with their guarantees.

    Args:
        inputs: Records, (n, …).
        labels: (n,) whole numbers.
        classes: How many classes there are; public.
        features: A public feature map.
        noise_multiplier: Standard deviation of the noise.
        rng: Where the noise comes from.
        persons: Whose each record is, where people have several.

    Returns:
        The noisy sum, which may be published.
    """
    total = embedding_sum(inputs, labels, classes, features, persons=persons)
    return add_noise(total, noise_multiplier=noise_multiplier, rng=rng)


class MomentGenerator(Generator):
    """Images whose coefficients have a class's released mean and covariance, cut off at 0 and 1, with some grain.

    The grain is white noise of a public size. It stands for the high frequencies, of which nothing is released; without
    it, a student learns to rely on their absence.
    """

    back: Tensor
    centre: Tensor

    def __init__(self, moments: Moments, classes: int) -> None:
        super().__init__()
        self.size, self.classes, self.shape = moments.size, classes, moments.shape
        self.latent = self.size + math.prod(self.shape)
        self.register_buffer("back", moments.back.float())
        self.register_buffer("centre", moments.centre.float())
        self.mean = nn.Parameter(torch.zeros(classes, self.size))
        self.factor = nn.Parameter(torch.eye(self.size).repeat(classes, 1, 1) / math.sqrt(self.size))

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return one image for every row of `z`."""
        if labels is None:
            raise ValueError(f"This generator makes records of {self.classes} classes: say which, by labels.")
        found = self.mean[labels]
        for label in range(self.classes):
            rows = (labels == label).nonzero()[:, 0]
            found = found.index_add(0, rows, z[rows, : self.size] @ self.factor[label])
        smooth = (self.centre + found @ self.back).clamp(0.0, 1.0)
        return (smooth + GRAIN * z[:, self.size :]).clamp(0.0, 1.0).reshape(-1, *self.shape)

    def take(self, embedding: Embedding, moments: Moments) -> None:
        """Set means and covariances to what a release says of them, less what is likely to be noise."""
        mean, covariance = class_moments(embedding, moments)
        values, vectors = torch.linalg.eigh(covariance)
        with torch.no_grad():
            self.mean.copy_(mean)
            self.factor.copy_(values.clamp_min(0.0).sqrt()[:, :, None] * vectors.mT)


def class_moments(embedding: Embedding, moments: Moments) -> tuple[Tensor, Tensor]:
    """Return means (classes, size) and covariances (classes, size, size) of the classes, cleaned of noise.

    A symmetric matrix of independent noise with standard deviation s off its diagonal has eigenvalues within 2s√size
    (Wigner's semicircle). The classes' average covariance keeps the eigenvalues above that; a class keeps those of
    its difference from the average that are above a part of it. What is negative is set to zero.
    """
    mean, second = moments.unpack(embedding.means)
    covariance = second - mean[:, :, None] * mean[:, None, :]
    shares = embedding.proportions
    edges = embedding.errors * math.sqrt(2.0 * moments.size / (1.0 - moments.share))
    average = _positive(_beyond((shares[:, None, None] * covariance).sum(0), (shares * edges).norm()))
    changes = [_beyond(own - average, _KEPT_EDGE * edge) for own, edge in zip(covariance, edges, strict=True)]
    return mean, torch.stack([_positive(average + change) for change in changes])


def _beyond(matrix: Tensor, edge: Tensor) -> Tensor:
    """Return a symmetric matrix with only those eigenvalues that are larger than `edge` in size."""
    values, vectors = torch.linalg.eigh(matrix)
    kept: Tensor = vectors * torch.where(values.abs() > edge, values, 0.0) @ vectors.mT
    return kept


def _positive(matrix: Tensor) -> Tensor:
    """Return a symmetric matrix with its negative eigenvalues set to zero."""
    values, vectors = torch.linalg.eigh(matrix)
    kept: Tensor = vectors * values.clamp_min(0.0) @ vectors.mT
    return kept


def fit_generator(
    generator: Generator,
    embedding: Embedding,
    features: FeatureMap,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
    progress: Progress = quiet,
) -> list[float]:
    """Fit a generator to a release, in place; post-processing.

    A `MomentGenerator` is first set to the released moments. Then Adam minimises, over the classes' mean features m
    of what is generated, the sum of |m - released mean|². Each batch gives an unbiased estimate, the product of two
    independent halves' differences; a square of one batch's would reward sameness. It is deterministic, given `rng` and
    the generator's weights; an interrupted fit starts again.

    Args:
        generator: A network from latent numbers and labels to records.
        embedding: The release.
        features: The map that it was made with.
        steps: How many steps of Adam; 0 for what the moments alone give.
        batch_size: Records generated for each step, shared out evenly between the classes.
        learning_rate: Of Adam; it falls to zero along a half cosine.
        rng: Where the latent numbers come from.
        progress: Called after each step.

    Returns:
        The estimates, one for each step.
    """
    _check.count("steps", steps, low=0)
    if isinstance(generator, MomentGenerator) and isinstance(features, Moments):
        generator.take(embedding, features)
    classes, target = len(embedding.sums), embedding.means.float()
    half = max(1, _check.count("batch_size", batch_size) // (2 * classes))
    labels = torch.arange(classes).repeat_interleave(2 * half)
    draws = torch.Generator().manual_seed(int(rng.integers(2**62)))
    optimizer = torch.optim.Adam(generator.parameters(), lr=learning_rate, betas=(0.5, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    losses = []

    def loss() -> Tensor:
        made = generator(draw_latent(generator, len(labels), draws=draws), labels)
        first, second = _averages(features, made, 2 * classes).reshape(classes, 2, -1).unbind(1)
        estimate = ((first - target) * (second - target)).sum()
        losses.append(float(estimate.detach()))
        return estimate

    for step in minimise(optimizer, loss, steps):
        schedule.step()
        progress(step, steps, "fitting the generator")
    return losses


def _averages(features: FeatureMap, made: Tensor, groups: int) -> Tensor:
    """Return the mean features of so many equal groups of neighbouring records."""
    if isinstance(features, Moments):
        return features.averages(made, groups)
    return features(made).reshape(groups, len(made) // groups, -1).mean(1)


def new_generator(features: Moments, classes: int, blocks: Sequence[int]) -> Generator:
    """Return the untrained generator that is fitted to a release by these features.

    Args:
        features: The public features.
        classes: How many classes there are.
        blocks: For tables: how many features each column has.

    Returns:
        For images, one that follows from the moments in closed form; for tables, a network.
    """
    if len(features.shape) == 1:
        return make_generator(features.shape, classes, blocks=blocks)
    return MomentGenerator(features, classes)
