"""The papers' accounting of variational inference: each step as if nothing had happened before it. No bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.accounting import epsilon_from_costs
from tacita.assumptions import assume
from tacita.estimators import student
from tacita.guarantee import SMALLEST_EPSILON, Guarantee

if TYPE_CHECKING:
    from tacita._check import Floats

ONE_STEP_ORDERS = (*range(1, 17), 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)  # λ
_SHARE = 1 / 100  # of delta, for all estimates together


def one_step_figure(
    costs: Sequence[Floats], *, delta: float, orders: Sequence[int] = ONE_STEP_ORDERS, sample_rate: float = 1.0
) -> Guarantee:
    """Return the papers' figure for variational inference: the sum over steps of what each step alone costs.

    NOT A BOUND. Thesis 5.5.3 takes θ before the step to be the same with and without the record. From the second step
    on it is not, and the shifts add up: releasing a point at each of 100 steps of a Gaussian mean's fit, it says 0.15
    (0.1 if its steps were composed exactly) where the truth is 8.9. Kept so that the papers' numbers can be set beside
    ours.

    Args:
        costs: For each step, shape (orders, m): `mechanisms.subsampled_gaussian_costs` of its m pairs.
        delta: The total failure probability.
        orders: The λ of the costs.
        sample_rate: q of the steps, to be shown.

    Returns:
        The figure, with `is_bound=False`.

    Raises:
        ValueError: If the costs have another shape.
    """
    total = _check.probability("delta", delta)
    steps = np.stack(list(costs))
    if steps.ndim != 3 or steps.shape[1] != len(orders):
        raise ValueError(f"costs must have shape (steps, {len(orders)}, m), got {steps.shape}.")
    uses = steps.shape[0] * steps.shape[1]
    gamma = total * _SHARE / uses
    finite = np.asarray(np.isfinite(steps).all(axis=-1))
    estimate = student(
        np.where(finite[..., None], steps, 0.0),
        weights=np.ones(steps.shape[2], dtype=np.int64),
        gamma=gamma,
        worst=np.full(steps.shape[:2], np.inf),
    )
    summed = np.where(finite, estimate, np.inf).sum(axis=0)
    spare = total - uses * gamma
    return Guarantee(
        kind="bayesian",
        epsilon=max(float(epsilon_from_costs(summed, orders, delta=spare, notion="strong")), SMALLEST_EPSILON),
        delta=total,
        method="moments, one step at a time",
        sampling="poisson" if sample_rate < 1.0 else "none",
        scope="reading",
        notion="strong",
        estimator="student",
        composition="independent",
        model="model-based",
        delta_split=(("estimator", uses * gamma), ("tail", spare)),
        mechanism=(("sample_rate", float(sample_rate)), ("steps", float(len(steps)))),
        assumptions=(assume("one-step"), assume("gaussian-draws")),
        is_bound=False,
    )
