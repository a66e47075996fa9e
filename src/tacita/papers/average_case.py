"""The thesis's two summaries of its average-case measure (Triastcyn 2020, sections 3.5 and 4.4.1). No bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student_t

if TYPE_CHECKING:
    from tacita._check import Floats


def chebyshev_mu(values: Floats, *, gamma: float) -> float:
    """Return mu of Eq. 3.3 for single values: a share of at most gamma would exceed it.

    It takes the sample's mean and upper variance for the population's, so it is no bound.
    """
    mean = float(values.mean())
    upper = math.sqrt(float((np.maximum(values - mean, 0.0) ** 2).mean()))
    return mean + upper / math.sqrt(gamma)


def student_mu(values: Floats, *, gamma: float) -> float:
    """Return mu of Eq. 4.2 for the mean of the values: model-based (Prop. 1), for gamma below 0.5."""
    m = len(values)
    return float(values.mean()) + float(student_t.isf(gamma, m - 1)) / math.sqrt(m - 1) * float(values.std())
