"""Summaries of the thesis's average-case measure (Triastcyn 2020, sections 3.5 and 4.4.1).

The two that its tables use are no bounds; the sample form of Chebyshev's inequality, which it mentions, is one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student_t

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats


def chebyshev_mu(values: Floats, *, gamma: float) -> float:
    """Return mu of Eq. 3.3 for single values: a share of at most gamma would exceed it.

    It takes the sample's mean and upper variance for the population's, so it is no bound.
    """
    mean = float(values.mean())
    upper = math.sqrt(float((np.maximum(values - mean, 0.0) ** 2).mean()))
    return mean + upper / math.sqrt(gamma)


def sample_chebyshev_mu(values: Floats, *, gamma: float) -> float:
    r"""Return what a further value exceeds with probability at most gamma: Chebyshev's inequality from a sample.

    The thesis points to it for few samples (section 3.5.2; Saw, Yang & Mo 1984). Among m + 1 exchangeable values with
    mean M and Σ (x - M)² = V, fewer than 1/c have (x - M)² > cV. In terms of the mean and the standard deviation s
    (divisor m - 1) of the other m, with J = ⌊γ (m + 1)⌋, this says

        Pr[x > mean + k s] ≤ J / (m + 1)   for   k² = (m² - 1) / m / ((J + 1) m / (m + 1) - 1).

    Args:
        values: At least two.
        gamma: In (0, 1). Below 1 / (m + 1) no sample of this size says anything.

    Returns:
        mean + k s; infinite if gamma is below 1 / (m + 1).

    Raises:
        ValueError: If there are fewer than two values.

    Guarantee:
        For exchangeable values of any law, with the probability over the sample and the further value.

    Examples:
        >>> sample_chebyshev_mu(np.arange(10.0), gamma=1e-5)
        inf
    """
    m = len(values)
    if m < 2:
        raise ValueError(f"values must hold at least 2 numbers, got {m}.")
    allowed = math.floor(_check.probability("gamma", gamma) * (m + 1))
    if allowed < 1:
        return math.inf
    k = math.sqrt((m * m - 1) / m / ((allowed + 1) * m / (m + 1) - 1))
    return float(values.mean()) + k * float(values.std(ddof=1))


def student_mu(values: Floats, *, gamma: float) -> float:
    """Return mu of Eq. 4.2 for the mean of the values: model-based (Prop. 1), for gamma below 0.5."""
    m = len(values)
    return float(values.mean()) + float(student_t.isf(gamma, m - 1)) / math.sqrt(m - 1) * float(values.std())
