"""Faults of images, recognised from samples alone: how many samples look turned, mirrored, inverted or cropped.

A trusted release is copied with each fault. For each class a linear judge learns, on half of the trusted images, to
tell the copies apart; its answers for the other half are known. The answers for a new release are then a mixture of
the known ones, and the weights of the mixture are the shares of samples with each fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor
from torch.nn import functional

from tacita.synthesis.description import thinned
from tacita.synthesis.neighbours import nearest
from tacita.synthesis.students import Labelled

if TYPE_CHECKING:
    from tacita._check import Floats

Change = Callable[[Tensor], Tensor]

SIDE = 14  # pixels: larger images are averaged down to this before they are compared
MOST = 300  # images of a class that are compared
FEWEST = 30  # trusted images of a class in each half; smaller classes are compared together
REPEATS = 400  # of the bootstrap
FAR = 0.99  # of the trusted images are nearer to another one than this distance
_SHRINKAGE = 0.2  # of the judge's covariance: more numbers in an image than images would not do


@dataclass(frozen=True)
class Fault:
    """A fault that images can have: its kind, its words, and how to make it."""

    kind: str
    words: str
    make: Change


@dataclass(frozen=True, kw_only=True)
class FaultShares:
    """What a release looks like beside a trusted one.

    Attributes:
        shares: How many of the images have each fault.
        by_chance: The largest share that any fault gets in a release without faults, but for the chance given.
        unlike: The share of images that are like no trusted image, with a fault or without.
    """

    shares: tuple[tuple[Fault, float], ...]
    by_chance: float
    unlike: float


def fault_shares(
    samples: Labelled, reference: Labelled, *, chance: float, rng: np.random.Generator
) -> FaultShares | None:
    """Return how many images of a release have each fault, judged by a trusted release.

    Args:
        samples: Images and labels of the release.
        reference: Images of the same shape and labels of a release that is trusted.
        chance: How often `by_chance` may be exceeded by a release that was drawn like the trusted one.
        rng: Where the halves and the bootstrap come from.

    Returns:
        The shares; None if there are too few trusted images to judge by.
    """
    faults = possible_faults(reference[0])
    judged = _judge_classes(samples, reference, [lambda x: x, *(fault.make for fault in faults)], rng)
    if not judged:
        return None
    total = sum(len(some.seen) for some in judged)
    weights = [len(some.seen) / total for some in judged]  # classes are as common as among the samples
    known = sum(weight * some.known.mean(1) for weight, some in zip(weights, judged, strict=True))
    seen = sum(weight * some.seen.mean(0) for weight, some in zip(weights, judged, strict=True))
    shares = _mixture(known, seen)[1 : len(faults) + 1].tolist()
    return FaultShares(
        shares=tuple(zip(faults, shares, strict=True)),
        by_chance=float(np.quantile(_by_chance(judged, weights, len(faults), rng), 1.0 - chance)),
        unlike=sum(some.unlike for some in judged) / total,
    )


def possible_faults(images: Tensor) -> list[Fault]:
    """Return the faults that images of this shape can have."""
    blank = float(images.nan_to_num()[:, :, 0].median())
    faults = [
        Fault("rotated", "turned upside down", lambda x: x.flip(2, 3)),
        Fault("mirrored", "mirrored left to right", lambda x: x.flip(3)),
        Fault("mirrored", "mirrored top to bottom", lambda x: x.flip(2)),
        Fault("inverted", "inverted, dark and light swapped", lambda x: 1.0 - x),
        Fault("cropped", "cropped and enlarged", _enlarged),
        Fault("cropped", "blank in their left third", _blanked(3, False, blank)),
        Fault("cropped", "blank in their right third", _blanked(3, True, blank)),
        Fault("cropped", "blank in their upper third", _blanked(2, False, blank)),
        Fault("cropped", "blank in their lower third", _blanked(2, True, blank)),
    ]
    if images.shape[2] == images.shape[3]:
        faults += [
            Fault("rotated", "turned by 90° anticlockwise", lambda x: torch.rot90(x, 1, (2, 3))),
            Fault("rotated", "turned by 90° clockwise", lambda x: torch.rot90(x, 3, (2, 3))),
            Fault("mirrored", "mirrored along the diagonal, rows and columns swapped", lambda x: x.transpose(2, 3)),
        ]
    return faults


def small(images: Tensor) -> Floats:
    """Return images as rows of numbers, averaged down to at most `SIDE` pixels a side."""
    sides = min(SIDE, images.shape[2]), min(SIDE, images.shape[3])
    rows = functional.adaptive_avg_pool2d(images.nan_to_num().clamp(0.0, 1.0), sides).flatten(1)
    return rows.double().numpy()


def fit_judge(sets: list[Floats]) -> Callable[[Floats], Floats]:
    """Return a function from images to the chance that each was drawn from each of the sets."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    even = np.full(len(sets), 1.0 / len(sets))
    judge: Any = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=_SHRINKAGE, priors=even)
    judge.fit(np.concatenate(sets), np.repeat(np.arange(len(sets)), [len(rows) for rows in sets]))
    return lambda rows: np.asarray(judge.predict_proba(rows), dtype=np.float64).reshape(len(rows), len(sets))


def _blanked(axis: int, far: bool, value: float) -> Change:
    def make(x: Tensor) -> Tensor:
        made, third = x.clone(), round(x.shape[axis] / 3)
        made.narrow(axis, x.shape[axis] - third if far else 0, third).fill_(value)
        return made

    return make


def _enlarged(x: Tensor) -> Tensor:
    high, wide = x.shape[2:]
    top, left = round(high / 6), round(wide / 6)
    middle = x[:, :, top : high - top, left : wide - left]
    return functional.interpolate(middle, size=(high, wide), mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class _Judged:
    """The answers of a class's judge, and how many samples are like nothing it knows.

    `known[f, i]` is the answer for the trusted image i with fault f, `seen[j]` that for the sample j.
    """

    known: Floats
    seen: Floats
    unlike: int


def _judge_classes(
    samples: Labelled, reference: Labelled, makes: list[Change], rng: np.random.Generator
) -> list[_Judged]:
    """Let a judge for each class, fitted on half of the trusted images, tell the faults apart in the others.

    Classes that are too small to be judged alone are judged together.
    """
    order = torch.from_numpy(rng.permutation(len(reference[0])))
    trusted, labels = reference[0][order], reference[1][order]
    large = torch.bincount(labels, minlength=int(samples[1].max()) + 1) >= 2 * FEWEST
    judged = []
    for group in (*large.nonzero(), (~large).nonzero()[:, 0]):
        inside = torch.isin(labels, group)
        new = thinned(samples[0][torch.isin(samples[1], group)], MOST)
        if int(inside.sum()) >= 2 * FEWEST and len(new):
            judged.append(_judge_class(trusted[inside][: 2 * MOST], trusted[~inside][: 2 * MOST], small(new), makes))
    return judged


def _judge_class(trusted: Tensor, others: Tensor, new: Floats, makes: list[Change]) -> _Judged:
    """Judge one class.

    The last answer is for images of other classes, so that mixed-up labels do not pass for a fault of the images.
    """
    halves = trusted.chunk(2)
    sets = [[small(make(half)) for make in makes] for half in halves]
    if len(others) > 1:
        for rows, half, other in zip(sets, halves, (others[::2], others[1::2]), strict=True):
            rows.append(small(other[torch.arange(len(half)) % len(other)]))
    judge = fit_judge(sets[0])
    far = np.quantile(nearest(sets[1][0], sets[0][0], 1)[0], FAR)
    unlike = int((nearest(new, np.concatenate(sets[0]), 1)[0] > far).sum())
    return _Judged(np.stack([judge(rows) for rows in sets[1]]), judge(new), unlike)


def _mixture(known: Floats, seen: Floats) -> Floats:
    """Return the weights, at least 0 and adding up to 1, with which the known answers come nearest to the seen ones."""
    heavy = 1e3  # so that they add up to 1
    weights, _ = optimize.nnls(np.vstack([known.T, np.full((1, len(known)), heavy)]), np.append(seen, heavy))
    return np.asarray(weights, dtype=np.float64)


def _by_chance(judged: list[_Judged], weights: list[float], faults: int, rng: np.random.Generator) -> list[float]:
    """Return the largest share that any fault gets in releases drawn like the trusted one, again and again."""
    answers = len(judged[0].seen[0])
    known, seen = np.zeros((REPEATS, answers, answers)), np.zeros((REPEATS, answers))
    for some, weight in zip(judged, weights, strict=True):
        count = some.known.shape[1]
        even = np.full(count, 1.0 / count)
        drawn, again = (rng.multinomial(n, even, REPEATS) / n for n in (count, len(some.seen)))
        known += weight * np.tensordot(drawn, some.known, (1, 1))
        seen += weight * (again @ some.known[0])
    return [float(_mixture(*pair)[1 : faults + 1].max()) for pair in zip(known, seen, strict=True)]
