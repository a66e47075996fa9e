"""Moments of samples in which equal values are counted instead of repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


def sample_size(estimator: str, weights: Counts) -> int:
    """Return the number of records; refuse fewer than two."""
    m = int(weights.sum())
    if m < 2:
        raise ValueError(f"estimator {estimator!r} needs at least 2 records, got {m}.")
    return m


def mean_and_variance(values: Floats, weights: Counts) -> tuple[Floats, Floats]:
    """Return the weighted mean and the variance with divisor m."""
    m = weights.sum()
    mean = values @ weights / m
    return mean, (values - mean[..., None]) ** 2 @ weights / m
