"""Does the thesis's mu follow what happens when a record is left out? Figure 3.5, and section 3.5.2's retraining.

Two kinds of generators can be fitted again without a record in no time, and have a density, so that the effect of the
record is exact up to the sampling of one average: a kernel estimate, which repeats its records with noise, and the mean
embedding, whose classes are Gaussians. Pixels are cut off at 0 and 1 after the last noise; the effect is that on the
distribution before the cut, which is at least as large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from experiments.inversion.releases import drawn, wgan
from experiments.inversion.subjects import Labelled, Subject, attack, digits, packed, train
from experiments.rows import Row
from tacita.accounting import calibrate_gaussian
from tacita.synthesis import average_case, fit_generator, generator_membership, knn_kl, measuring_features
from tacita.synthesis.embedding import FEATURES, GRAIN, MomentGenerator, add_noise, contributions, embedding_sum
from tacita.synthesis.features import Moments
from tacita.synthesis.networks import Generator

Floats = NDArray[np.float64]

TIMES = 10  # synthetic pictures for each record: the thesis's k
PER_KERNEL = 50  # pictures that a kernel's average is taken over
REFITTED = 300  # records that a mean embedding is fitted without
BANDWIDTHS = (0.02, 0.05, 0.1, 0.2, 0.4)
EPSILONS = (1.0, 3.0, 10.0, 100.0, 1000.0)
LAYER_NOISES = (0.0, 0.5, 1.5, 4.0)
GAMMA = 1e-5
SETTINGS = "the library's defaults or fixed beforehand"


class Release(Protocol):
    """What the pictures are replaced by."""

    def draw(self, count: int, seed: int) -> Labelled:
        """Return so many pictures and their classes."""

    def effects(self, records: NDArray[np.int64]) -> Floats | None:
        """Return KL(with everybody || without the record), exactly, for some records; None if nobody can."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """Records drawn at random, with Gaussian noise on every pixel."""

    inputs: Tensor
    labels: Tensor
    width: float

    def draw(self, count: int, seed: int) -> Labelled:
        """Return noisy records."""
        draws = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(self.labels), (count,), generator=draws)
        some = self.inputs[rows]
        return (some + self.width * torch.randn(some.shape, generator=draws)).clamp(0.0, 1.0), self.labels[rows]

    def effects(self, records: NDArray[np.int64]) -> Floats:
        """Return the mean of log p / p without i, over as many pictures of each kernel; it is zero in other classes."""
        draws, n = torch.Generator().manual_seed(0), len(self.labels)
        found = torch.zeros(n, dtype=torch.float64)
        for label in range(int(self.labels.max()) + 1):
            own = (self.labels == label).nonzero()[:, 0]
            centres = self.inputs[own].flatten(1).double()
            shape = (PER_KERNEL * len(own), centres.shape[1])
            noise = self.width * torch.randn(shape, generator=draws, dtype=torch.float64)
            logs = -torch.cdist(centres.repeat(PER_KERNEL, 1) + noise, centres).square() / (2.0 * self.width**2)
            found[own] = _left_out(logs).sum(0) / (PER_KERNEL * n) + np.log1p(-1.0 / n)
        return found.numpy()[records]


def _left_out(logs: Tensor) -> Tensor:
    """Return log Σ_j e^(l_j) - log Σ_{j≠i} e^(l_j) for every column i."""
    total = logs.logsumexp(1, keepdim=True)
    weight = (logs - total).exp()
    found = -torch.log1p(-weight.clamp_max(0.5))
    best = logs.argmax(1, keepdim=True)  # where a weight may be nearly one, the others are added up without it
    others = logs.scatter(1, best, -torch.inf).logsumexp(1, keepdim=True)
    return found.scatter(1, best, total - others)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """The classes' Gaussians that a noisy mean embedding gives; refits meet the same noise."""

    inputs: Tensor
    labels: Tensor
    noise_multiplier: float
    seed: int

    @cached_property
    def features(self) -> Moments:
        """The public features."""
        return Moments(self.inputs.shape[1:], **FEATURES["small images"])

    @cached_property
    def total(self) -> Tensor:
        """Everybody's features, added up."""
        return embedding_sum(self.inputs, self.labels, 10, self.features)

    def fitted(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes' means (10, pixels) and covariances."""
        rng, made = np.random.default_rng(self.seed), MomentGenerator(self.features, 10)
        kept = add_noise(total, noise_multiplier=self.noise_multiplier, rng=rng)
        fit_generator(made, kept, self.features, steps=0, batch_size=20, learning_rate=1e-3, rng=rng)
        with torch.no_grad():
            spread = made.factor.double() @ made.back.double()
            covariance = spread.mT @ spread + GRAIN**2 * torch.eye(spread.shape[2])
            return made.centre.double() + made.mean.double() @ made.back.double(), covariance

    def draw(self, count: int, seed: int) -> Labelled:
        """Return pictures of every class alike."""
        mean, covariance = self.fitted(self.total)
        draws = torch.Generator().manual_seed(seed)
        labels = torch.randint(10, (count,), generator=draws)
        z = torch.randn(count, mean.shape[1], 1, generator=draws, dtype=torch.float64)
        made = mean[labels] + (torch.linalg.cholesky(covariance)[labels] @ z)[:, :, 0]
        return made.clamp(0.0, 1.0).float().reshape(-1, *self.inputs.shape[1:]), labels

    def effects(self, records: NDArray[np.int64]) -> Floats:
        """Return the divergence between Gaussians, a tenth for each class."""
        whole, found = self.fitted(self.total), []
        for record in records:
            total = self.total.clone()
            total[self.labels[record]] -= contributions(self.inputs[record : record + 1], self.features)[0]
            found.append(float(_gaussian_kl(*whole, *self.fitted(total)).mean()))
        return np.array(found)


def _gaussian_kl(mean: Tensor, covariance: Tensor, other_mean: Tensor, other: Tensor) -> Tensor:
    root = torch.linalg.cholesky(other)
    inside = torch.linalg.solve_triangular(root, torch.linalg.cholesky(covariance), upper=False)
    apart = torch.linalg.solve_triangular(root, (other_mean - mean)[:, :, None], upper=False)
    logs = inside.diagonal(dim1=1, dim2=2).log().sum(1)
    return (inside.square().sum((1, 2)) + apart.square().sum((1, 2)) - mean.shape[1]) / 2.0 - logs


@dataclass(frozen=True, eq=False)
class Gan:
    """A Wasserstein GAN, with noise in the critic or without."""

    subject: Subject
    layer_noise: float
    seed: int
    steps: int | None = None

    @cached_property
    def generator(self) -> Generator:
        """The trained network."""
        return wgan(self.subject, self.seed, layer_noise=self.layer_noise, steps=self.steps)

    def draw(self, count: int, seed: int) -> Labelled:
        """Return pictures."""
        return drawn(self.generator, count, seed)

    def effects(self, records: NDArray[np.int64]) -> None:
        """Return nothing: a GAN has no density."""


def kernels(subject: Subject, seed: int, *, width: float, quick: bool) -> Release:
    """Return a kernel estimate."""
    return Kernels(*subject.attacked, width)


def gaussians(subject: Subject, seed: int, *, epsilon: float, quick: bool) -> Release:
    """Return a mean embedding whose release has this worst case for a record."""
    return Gaussians(*subject.attacked, calibrate_gaussian(epsilon=epsilon, delta=subject.delta).noise_multiplier, seed)


def gan(subject: Subject, seed: int, *, layer_noise: float, quick: bool) -> Release:
    """Return a GAN."""
    return Gan(subject, layer_noise, seed, steps=3 if quick else None)


LEVELS: dict[str, Callable[..., Release]] = {
    **{f"kernels {width:g}": partial(kernels, width=width) for width in BANDWIDTHS},
    **{f"mean-embedding {epsilon:g}": partial(gaussians, epsilon=epsilon) for epsilon in EPSILONS},
    **{f"wgan-gp {noise:g}": partial(gan, layer_noise=noise) for noise in LAYER_NOISES},
}
_digits = cache(digits)


def level_row(name: str, seed: int, *, quick: bool) -> Row:
    """Measure mu, students, the attack and, where there is one, the exact effect of records, for one release."""
    torch.set_num_threads(1)
    subject = _digits()
    release = LEVELS[name](subject, seed, quick=quick)
    inputs, labels = subject.attacked
    made, again = (release.draw(300 if quick else TIMES * len(labels), 100 * seed + i) for i in range(2))
    pixels, repeated = (average_case(inputs, part[0], gamma=GAMMA) for part in (made, again))
    wavelets = average_case(inputs, made[0], features=measuring_features(subject.shape), gamma=GAMMA)
    student = train(subject.model("small", seed), made, seed=seed, steps=5 if quick else 600)
    attacked, pictures = attack(subject, student, seed, steps=5 if quick else 100)
    member = generator_membership(made[0], inputs, subject.other[0], rng=np.random.default_rng(seed))
    row: Row = {
        "seeds": [seed],
        "settings": SETTINGS,
        "mu": {"pixels": pixels.chebyshev, "wavelets": wavelets.chebyshev},
        "mu_mean": {"pixels": pixels.student, "wavelets": wavelets.student},
        "heuristic": pixels.mean,
        "again": ranks(pixels.values, repeated.values, seed),
        "membership": member.auc,
        "student": attacked,
        "pictures": packed(pictures),
    }
    records = np.random.default_rng(seed).permutation(len(labels))[: 20 if quick else REFITTED]
    effects = release.effects(records)
    if effects is not None:
        row["exact"] = {"mean": effects.mean(), "median": float(np.median(effects)), "largest": effects.max()}
        row["ranks"] = {
            "pixels": ranks(pixels.values[records], effects, seed),
            "wavelets": ranks(wavelets.values[records], effects, seed),
        }
    return row


def ranks(first: Floats, second: Floats, seed: int) -> dict[str, float]:
    """Return Spearman's rank correlation over records, with a 95% bootstrap interval."""
    rng = np.random.default_rng(seed)
    draws = [rng.integers(len(first), size=len(first)) for _ in range(500)]
    low, high = np.nanquantile([spearmanr(first[rows], second[rows]).statistic for rows in draws], [0.025, 0.975])
    return {"found": float(spearmanr(first, second).statistic), "low": float(low), "high": float(high)}


def refit_row(seed: int, *, quick: bool) -> Row:
    """Train a GAN again without a record, and again with another seed: which moves the release further?"""
    torch.set_num_threads(1)
    subject, steps, count = _digits(), 3 if quick else None, 300 if quick else 5000
    inputs, labels = subject.attacked

    def made(subject: Subject, seed: int) -> Tensor:
        return drawn(wgan(subject, seed, steps=steps), count, seed)[0].flatten(1)

    whole = made(subject, seed)
    values = average_case(inputs, whole.reshape(-1, *subject.shape)).values
    records = np.argsort(values)[[-1, -2, -3, len(values) // 2, len(values) // 4][: 1 if quick else 5]]
    found: dict[str, Any] = {"records": [], "seeds": []}
    for record in records:
        kept = torch.arange(len(labels)) != int(record)
        without = Subject(
            subject.name, (inputs[kept], labels[kept]), subject.other, subject.classes, subject.front, subject.delta
        )
        moved = knn_kl(whole, made(without, seed))
        found["records"].append({"moved": moved, "heuristic": float(values[record])})
    for other in range(1, 2 if quick else 4):
        found["seeds"].append(knn_kl(whole, made(subject, seed + 10 * other)))
    found["same"] = knn_kl(whole, drawn(wgan(subject, seed, steps=steps), count, seed + 1)[0].flatten(1))
    return {"seeds": [seed], "settings": SETTINGS, **found}


def rows(seed: int, *, quick: bool) -> dict[str, Callable[[], Row]]:
    """Return what measures each row of figure 3.5 for a seed."""
    names = [name for name in LEVELS if not quick or name.split()[1] in ("0.1", "10", "0.5")]
    jobs: dict[str, Callable[[], Row]] = {
        f"figure 3.5 {name} seed {seed}": partial(level_row, name, seed, quick=quick) for name in names
    }
    return jobs | {f"figure 3.5 refits seed {seed}": partial(refit_row, seed, quick=quick)} if seed == 1 else jobs
