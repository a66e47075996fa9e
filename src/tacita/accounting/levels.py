"""The grid that norms are rounded up to, and what a step at each level costs.

A record's history is kept as whole numbers: how many steps it spent at each level. Costs at any order,
privacy-loss curves, percentiles and filters are all functions of those counts, so the accountant's state
is exact, small, and independent of the orders or epsilons asked for later.

Cost grows with the norm, so rounding up never understates. Level k is (k / 256)²: spacing 0.8% at the clip
bound, 1.7% at a fifth of it, and on average half of that is lost.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita.mechanisms import sampled_gaussian_cost

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_FINENESS = 256
NORM_LEVELS: Floats = (np.arange(_FINENESS + 1) / _FINENESS) ** 2
TOP = _FINENESS

# λ in the papers' numbering; α = λ + 1. Declared once, so that minimising over them has a known price.
ORDERS: tuple[int, ...] = tuple(sorted({*range(1, 65), *(int(64 * 2 ** (i / 8)) for i in range(1, 57))}))


def level_of(norms: Floats) -> Counts:
    """Return the index of the smallest level that is at least each norm (norms in [0, 1])."""
    index = np.ceil(np.sqrt(norms) * _FINENESS).astype(np.int64)
    np.clip(index, 0, TOP, out=index)
    index += NORM_LEVELS[index] < norms  # the square root may round down across a level
    return np.asarray(index)


@lru_cache(maxsize=32)
def cost_table(sample_rate: float, noise_multiplier: float, orders: tuple[int, ...]) -> Floats:
    """Return the cost of one step at every level, shape (orders, levels).

    Args:
        sample_rate: q.
        noise_multiplier: σ.
        orders: Values of λ.

    Returns:
        The table, read-only.
    """
    ratios = NORM_LEVELS / noise_multiplier
    table = np.stack([sampled_gaussian_cost(order, sample_rate=sample_rate, ratio=ratios) for order in orders])
    table.setflags(write=False)
    return table
