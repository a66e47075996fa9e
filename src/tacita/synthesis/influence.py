"""The average-case measure of a synthetic set: how far it would move if one record's share of it were taken out.

A measure, not a guarantee (Triastcyn 2020, sections 3.5 and 4.4.1). What it cannot see is shown in
docs/explanation/theory/average-case.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tacita import _check
from tacita.papers import chebyshev_mu, student_mu
from tacita.synthesis.neighbours import Features, check_records, feature_vectors, nearest

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_CELLS = 1 << 24  # records times synthetic points in one block of work: 16 MB


@dataclass(frozen=True, eq=False, kw_only=True)
class AverageCase:
    """The average-case measure of one synthetic set. It was computed from the records: it is for their owner.

    Attributes:
        values: For each record that was tried, the estimated divergence KL(S || S without its k nearest points).
        mean: Their mean.
        std: Their standard deviation (1/m).
        chebyshev: mu of Eq. 3.3 of the thesis, for the values: a share of at most gamma exceeds it, if the moments
            were the population's. They are estimates, so it is no bound.
        student: mu of Eq. 4.2 of the thesis, for the mean of the values: model-based (Prop. 1).
        gamma: The probability left to both.
        k: How many synthetic points stand for a record.
        m: How many records were tried.
        n: How many synthetic points there are.
        dimension: The length of a feature vector.
        copies: How many synthetic points have an exact copy among the others.
    """

    values: Floats = field(repr=False)
    mean: float
    std: float
    chebyshev: float
    student: float
    gamma: float
    k: int
    m: int
    n: int
    dimension: int
    copies: int

    @property
    def sentence(self) -> str:
        """The result in plain words, with what it cannot see."""
        parts = [
            f"Taking out the {self.k} synthetic point{'s' if self.k > 1 else ''} nearest to a record moves the set by "
            f"{self.mean:.3g} on average (a KL divergence; {self.m:,} records, {self.n:,} synthetic points, "
            f"{self.dimension} features); at gamma = {self.gamma:g}, mu = {self.chebyshev:.3g} for a record "
            f"(Chebyshev) and mu = {self.student:.3g} for the mean (Student).",
            "This is a measure, not a guarantee. It cannot see memorisation: copies of the training set score like an "
            "ideal generator. It takes a generator that has collapsed for a more private one. It moves a hundredfold "
            "with the feature space, so compare it in one space only.",
        ]
        if self.copies:
            parts.append(
                f"{self.copies:,} synthetic points are copies of others; their distance of zero counts as the smallest "
                "positive one, so that the figure stays finite."
            )
        return " ".join(parts)

    def __str__(self) -> str:
        return self.sentence


def average_case(
    real: Tensor,
    synthetic: Tensor,
    *,
    features: Features | None = None,
    k: int | None = None,
    gamma: float = 1e-5,
) -> AverageCase:
    r"""Measure how much a synthetic set S of n points leans on single records (Triastcyn 2020, section 3.5.2).

    For a record i, S^-i is S without the k points nearest to it. With d features, r(x) the distance from a point x of
    S to the nearest other point of S, and s(x) to the nearest other point of S^-i,

        D_i = (d/n) Σ_{x ∈ S} log(s(x)/r(x)) + log((n-k)/(n-1)),

    the estimator of `knn_kl` for KL(S || S^-i), with x itself left out of both searches. A distance of zero, between
    copies, counts as the smallest positive one between two points of S. Of equally near points the earlier is taken.

    Args:
        real: The records, at least two.
        synthetic: The synthetic set, at least k + 2 points.
        features: A public feature map, for distances that mean something. None takes the numbers as they are.
        k: How many points stand for a record; None takes the ratio of the sizes, rounded, and at least 1.
        gamma: The probability left to the two bounds, below 0.5.

    Returns:
        The measure. Its values are exact: no distance is left out or approximated.

    Raises:
        ValueError: If an argument is out of range, or the features are not finite.

    Guarantee:
        None. It depends on the synthetic set and the feature space, and not on how the generator was trained.

    Examples:
        >>> import torch
        >>> draw = torch.Generator().manual_seed(0)
        >>> found = average_case(torch.rand(50, 2, generator=draw), torch.rand(100, 2, generator=draw))
        >>> found.k, found.m, found.mean < found.student < found.chebyshev
        (2, 50, True)
    """
    if not _check.probability("gamma", gamma) < 0.5:
        raise ValueError(f"gamma must be below 0.5, got {gamma:g}.")
    check_records("real", real)
    check_records("synthetic", synthetic, least=3)
    taken = max(1, round(len(synthetic) / len(real))) if k is None else k
    count = _check.count("k", taken, high=len(synthetic) - 2, hint="At least two synthetic points must be left.")
    points = feature_vectors("synthetic", synthetic, features)
    tried = feature_vectors("real", real, features, like=points)
    gaps, neighbours = nearest(points, points, count + 1, same=True)
    logs = _log_floored(gaps, points)
    removed = nearest(tried, points, count)[1]
    n, d = points.shape
    values = d / n * _total_rises(removed, neighbours, logs - logs[:, :1]) + math.log((n - count) / (n - 1))
    copies = int((gaps[:, 0] == 0.0).sum())
    return _summary(values, gamma=float(gamma), k=count, n=n, dimension=d, copies=copies)


def knn_kl(first: Tensor, second: Tensor) -> float:
    r"""Return the one-nearest-neighbour estimate of KL(P || Q) from samples of both (Pérez-Cruz 2008, Eq. 14).

        (d/n) Σ_{x ∈ first} log(s(x)/r(x)) + log(m/(n-1)),

    with r(x) the distance from x to the nearest other point of `first` (n points) and s(x) to the nearest point of
    `second` (m points). A distance of zero counts as the smallest positive distance between two points of either.

    It converges as both samples grow, and slowly in high dimension: between unit Gaussians with KL = 2, at
    n = m = 2000, it is 2% too low at d = 1, 22% too low at d = 8 and 41% too low at d = 64 (means of 20 draws).

    Args:
        first: (n, d), from P, at least two points.
        second: (m, d), from Q, at least two points.

    Returns:
        The estimate, in nats. It can be negative.

    Examples:
        >>> import torch
        >>> draw = torch.Generator().manual_seed(0)
        >>> p, q = torch.randn(2000, 1, generator=draw), torch.randn(2000, 1, generator=draw) + 2.0
        >>> abs(knn_kl(p, q) - 2.0) < 0.1
        True
    """
    left = feature_vectors("first", first)
    right = feature_vectors("second", second, like=left)
    gaps = np.hstack([nearest(left, left, 1, same=True)[0], nearest(left, right, 1)[0]])
    own, other = _log_floored(gaps, np.concatenate([left, right])).T
    return float(left.shape[1] * np.mean(other - own)) + math.log(len(right) / (len(left) - 1))


def _total_rises(removed: Counts, neighbours: Counts, rises: Floats) -> Floats:
    """Return, for each record, the sum over the points of S of log s(x) - log r(x).

    Only a point whose nearest neighbour was removed has s(x) > r(x). It walks down its list of k + 1 neighbours to the
    first that is left; there is one, as only k were removed.

    Args:
        removed: (m, k) points taken out for each record.
        neighbours: (n, k + 1) nearest other points of each point.
        rises: (n, k + 1) log distance to each, less that to the first.
    """
    totals = np.empty(len(removed))
    step = max(1, _CELLS // len(neighbours))
    for start in range(0, len(removed), step):
        block = removed[start : start + step]
        gone = np.zeros((len(block), len(neighbours)), dtype=np.bool_)
        gone[np.arange(len(block))[:, None], block] = True
        record, point = np.nonzero(gone[:, neighbours[:, 0]])
        rank = np.zeros(len(point), dtype=np.int64)
        walking = np.arange(len(point))
        while len(walking):
            rank[walking] += 1
            walking = walking[gone[record[walking], neighbours[point[walking], rank[walking]]]]
        totals[start : start + step] = np.bincount(record, rises[point, rank], minlength=len(block))
    return totals


def _log_floored(gaps: Floats, points: Floats) -> Floats:
    """Return log distances, zero counted as the smallest positive distance between two of the points."""
    if gaps.all():
        return np.log(gaps)
    different = np.unique(points, axis=0)
    between = nearest(different, different, 1, same=True)[0] if len(different) > 1 else gaps
    positive = between[between > 0.0]
    return np.log(np.maximum(gaps, positive.min() if len(positive) else 1.0))


def _summary(values: Floats, *, gamma: float, k: int, n: int, dimension: int, copies: int) -> AverageCase:
    return AverageCase(
        values=values,
        mean=float(values.mean()),
        std=float(values.std()),
        chebyshev=chebyshev_mu(values, gamma=gamma),
        student=student_mu(values, gamma=gamma),
        gamma=gamma,
        k=k,
        m=len(values),
        n=n,
        dimension=dimension,
        copies=copies,
    )
