r"""A distribution-free upper bound on a mean, from order statistics: the default estimator.

Let X_(1) ≤ ... ≤ X_(m) be i.i.d. in [0, w]. For a rank r counted from the top, the chance of exceeding
X_(m-r) is at most a Beta(r+1, m-r) variable in distribution (exactly one if X is continuous), so

    Pr[ X > X_(m-r) ] ≤ p_r := the (1 - γ_r) quantile of Beta(r+1, m-r)     except with probability γ_r.

With the ranks and the γ_r fixed beforehand as functions of m and γ, all hold together except with
probability γ = Σ γ_r. Each slab of mass between two such bounds is then placed at its upper end, and the
mass above the largest value seen at the worst case w. No assumption on the law of X enters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainccinv

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_RANKS = 32
_DECAY = 0.85


def band_steps(m: int, *, gamma: float) -> tuple[Counts, Floats]:
    """Return the ranks from the top and, for each, an upper bound on the mass above that value.

    Half of gamma goes to the largest value, which decides the unseen mass; the rest to ranks spaced
    geometrically, more to those near the top, where most of the bound comes from. All of it depends on m
    and gamma only, so it is fixed before any value is seen.

    Args:
        m: The number of followed records.
        gamma: The probability with which any of the bounds may fail.

    Returns:
        The ranks, and an upper bound on the population's share above the value at each rank.
    """
    m = _check.count("m", m)
    gamma = _check.probability("gamma", gamma)
    lower = np.unique(np.geomspace(1, m - 1, _RANKS).astype(np.int64)) if m > 1 else np.empty(0, np.int64)
    weights = np.concatenate([[1.0], _DECAY ** np.arange(len(lower))])
    weights[1:] /= max(1.0, weights[1:].sum())
    ranks = np.concatenate([[0], lower]).astype(np.int64)
    shares = gamma * weights / weights.sum()
    masses = betainccinv(ranks + 1.0, m - ranks, shares)
    return ranks, np.minimum(np.maximum.accumulate(masses) * (1.0 + 1e-12), 1.0)


def unseen_mass(m: int, *, gamma: float) -> float:
    """Return the population share that may lie above everything seen: about ln(2/gamma) / m.

    Examples:
        >>> round(unseen_mass(512, gamma=1e-6), 4)
        0.0279
    """
    return float(band_steps(m, gamma=gamma)[1][0])


def band_mean(values: Floats, *, worst: Floats, gamma: float, weights: Counts | None = None) -> Floats:
    """Return an upper bound on the population mean of each row.

    Args:
        values: Shape (E, m); row e holds one number for each of the m followed records. Rows may be
            different readings of the same records; each row's bound holds on its own.
        worst: Shape (E,); the largest value any record of the population could have.
        gamma: The probability with which a row's bound may fail.
        weights: Shape (m,); how many records have each value. None counts each once.

    Returns:
        Shape (E,).

    Guarantee:
        For i.i.d. records of any law on [0, worst], Pr[mean > bound] ≤ gamma.
    """
    if weights is not None:
        values = np.repeat(values, weights, axis=1)
    ranks, masses = band_steps(values.shape[1], gamma=gamma)
    ordered = np.sort(values, axis=1)
    uppers = np.minimum(ordered[:, values.shape[1] - 1 - ranks], worst[:, None])
    tops = np.concatenate([worst[:, None], uppers], axis=1)
    slabs = np.diff(np.concatenate([[0.0], masses, [1.0]]))
    return np.asarray(tops @ slabs)
