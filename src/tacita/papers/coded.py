"""The ICML paper's accountant as its authors coded it (github.com/AlekseiTriastcyn/bayesian-differential-privacy).

It differs from what the paper prints in three places. It takes the left side of Theorem 3 alone, not max{L, R}
(`tacita.papers.printed_figure`). It has the factors T and 1/T of the thesis's eq. 5.45, which eq. 14 of the ICML paper
lacks. And it takes one failure γ off delta for every step, though not for every order that it tries.

The papers' figures come from that code. This module computes the same to one part in a million, which is tested against
values that the code itself computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.conversion import epsilon_from_costs
from tacita.assumptions import Assumption, assume
from tacita.estimators import student
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.mechanisms import sampled_gaussian_cost

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tacita._check import Floats

CODED_ORDERS = (2, 4, 8, 16, 32)  # λ, as in the code's experiments on MNIST
CODED_GAMMA = 1e-16  # the code's default; the thesis's text says 1e-15


def coded_costs(
    distances: ArrayLike,
    *,
    sample_rate: float,
    stddev: float,
    power: int,
    orders: Sequence[int] = CODED_ORDERS,
    gamma: float = CODED_GAMMA,
) -> Floats:
    """Return what the authors' code adds up for one step: (1/T) log(M + t S) of the sample's exp(T a_λ).

    a_λ is the left side of Theorem 3, M and S are the mean and the standard deviation over the sample, t is Student's
    quantile at 1 - γ as floating point rounds it.

    Args:
        distances: Shape (m,), at least two: how far apart the noiseless outputs are with and without each sampled
            record. Not limited: this is also the papers' regime without clipping.
        sample_rate: q.
        stddev: The noise's standard deviation, in the unit of the distances.
        power: T. The number of all steps for Hölder's inequality (Theorem 1); 1 for the product of the steps'
            expectations, which is no bound.
        orders: The λ.
        gamma: γ, the nominal failure probability of one estimate.

    Returns:
        Shape (orders,).

    Raises:
        ValueError: If an argument is out of range, or there are fewer than two distances.

    Guarantee:
        None of its own: model-based where the distances are those of records drawn from the population, and the code's
        experiments take distances between pairs of records instead, which is another relation.

    Examples:
        >>> costs = coded_costs([0.1, 0.2, 1.0], sample_rate=0.01, stddev=1.0, power=100, orders=(1, 8))
        >>> bool(costs[1] > costs[0] > 0.0)
        True
    """
    scale = _check.in_range("stddev", stddev, 1e-12, 1e12)
    times = _check.count("power", power)
    ratios = np.asarray(distances, dtype=np.float64) / scale
    if ratios.ndim != 1:
        raise ValueError(f"distances must have shape (m,), got {ratios.shape}.")
    costs = np.stack([sampled_gaussian_cost(order, sample_rate=sample_rate, ratio=ratios) for order in orders])
    rounded = 1.0 - (1.0 - _check.probability("gamma", gamma))  # the code asks for the quantile at 1 - gamma
    ones = np.ones(len(ratios), dtype=np.int64)
    return student(times * costs, weights=ones, gamma=rounded, worst=np.full(len(costs), np.inf)) / times


def coded_epsilons(
    costs: ArrayLike, *, delta: float, orders: Sequence[int] = CODED_ORDERS, gamma: float = CODED_GAMMA
) -> Floats:
    """Return the ε of the authors' code after each step: min over λ of (Σ cost - log(δ - failures)) / λ.

    Args:
        costs: Shape (steps, orders), from `coded_costs`.
        delta: The total δ.
        orders: The λ of the costs.
        gamma: γ; every step takes one off delta.

    Returns:
        Shape (steps,).

    Raises:
        ValueError: If the costs have another shape.
        PrivacyError: If the estimates' failures reach delta.
    """
    total, each = _check.probability("delta", delta), _check.probability("gamma", gamma)
    summed = np.cumsum(np.asarray(costs, dtype=np.float64), axis=0)
    if summed.ndim != 2 or summed.shape[1] != len(orders):
        raise ValueError(f"costs must have shape (steps, {len(orders)}), got {summed.shape}.")
    spare = total + np.expm1(np.arange(1, len(summed) + 1) * np.log1p(-each))
    if not spare[-1] > 0.0:
        raise PrivacyError(f"gamma={each:g} over {len(summed)} steps reaches delta={total:g}; pass a smaller gamma.")
    steps = zip(summed, spare, strict=True)
    return np.array([float(epsilon_from_costs(row, orders, delta=rest, notion="strong")) for row, rest in steps])


def coded_figure(
    norms: ArrayLike,
    *,
    sample_rate: float,
    noise_multiplier: float,
    delta: float,
    orders: Sequence[int] = CODED_ORDERS,
    gamma: float = CODED_GAMMA,
) -> Guarantee:
    """Return the figure of the authors' code for clipped contributions.

    Args:
        norms: Shape (steps, m): at each step the clipped contributions of m records as fractions of the clip norm.
        sample_rate: q.
        noise_multiplier: σ; noise standard deviation over the clip norm.
        delta: The total δ.
        orders: The λ to choose from.
        gamma: γ.

    Returns:
        The figure, with `is_bound=False`: it rests on a model, and the choice of λ is not paid for.

    Raises:
        ValueError: If a norm is not in [0, 1], or another argument is out of range.
    """
    values = _check.norms("norms", norms, dimensions=(2,))
    return _figure(values, sample_rate, ("noise_multiplier", noise_multiplier), delta, orders, gamma, ())


def unclipped_figure(
    distances: ArrayLike,
    *,
    sample_rate: float,
    stddev: float,
    delta: float,
    orders: Sequence[int] = CODED_ORDERS,
    gamma: float = CODED_GAMMA,
) -> Guarantee:
    """Return the figure of the authors' code for contributions that nothing limits, the papers' second regime.

    The worst case of such a mechanism is infinite, and so is every distribution-free figure: what the sample did not
    show may have any size. The accountant of this library therefore refuses it.

    Args:
        distances: Shape (steps, m): at each step the sizes of m records' contributions, in any unit.
        sample_rate: q.
        stddev: The noise's standard deviation, in the same unit.
        delta: The total δ.
        orders: The λ to choose from.
        gamma: γ.

    Returns:
        The figure, with `is_bound=False` and the warning that the worst case is infinite.

    Raises:
        ValueError: If an argument is out of range.
    """
    values = np.asarray(distances, dtype=np.float64)
    return _figure(values, sample_rate, ("stddev", stddev), delta, orders, gamma, (assume("unclipped"),))


def _figure(
    distances: Floats,
    sample_rate: float,
    noise: tuple[str, float],
    delta: float,
    orders: Sequence[int],
    gamma: float,
    warnings: tuple[Assumption, ...],
) -> Guarantee:
    if distances.ndim != 2:
        raise ValueError(f"distances must have shape (steps, m), got {distances.shape}.")
    steps = len(distances)
    costs = [
        coded_costs(row, sample_rate=sample_rate, stddev=noise[1], power=steps, orders=orders, gamma=gamma)
        for row in distances
    ]
    epsilon = coded_epsilons(costs, delta=delta, orders=orders, gamma=gamma)[-1]
    failures = -float(np.expm1(steps * np.log1p(-gamma)))
    return Guarantee(
        kind="bayesian",
        epsilon=max(float(epsilon), SMALLEST_EPSILON),
        delta=delta,
        method="moments, as coded",
        scope="reading",
        notion="strong",
        estimator="student",
        composition="hoelder",
        model="model-based",
        delta_split=(("estimator", failures), ("tail", delta - failures)),
        mechanism=(("sample_rate", float(sample_rate)), (noise[0], float(noise[1])), ("steps", float(steps))),
        assumptions=(assume("representative"), assume("observed-norms"), *warnings),
        is_bound=False,
    )
