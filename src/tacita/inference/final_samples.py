r"""What it costs to release r samples from the final variational posterior, and nothing else.

Training adds no noise. It takes the data D and its own randomness ω to parameters θ(D, ω), and r points are drawn
from q_θ. Over ω, the outcome has the mixture law M(D) = E_ω q_θ(D,ω)^{⊗r}. With
H(P‖Q) = sup_S P(S) - e^ε Q(S) the hockey-stick divergence at ε, and any coupling of ω and ω',

    H(M(D) ‖ M(D∖x)) ≤ E H(q_θ(D,ω)^{⊗r} ‖ q_θ(D∖x,ω')^{⊗r}),

because H is jointly convex: for every set S the left side's P(S) - e^ε Q(S) is the expectation of the pairs' own, and
each of those is at most its supremum. The coupling is free, so both trainings use the same randomness, which brings
the pairs closest. Each pair's own H is bounded by its Rényi divergences, r D_α (a product of r equal laws), turned
into δ by the sharpest order. Averaged over x as well, this is the weak Bayesian notion for the law of x.

A run fixes one ω before the data are seen, with coins for each record, so D∖x leaves all other coins as they are.
Given that ω the outcome is q_θ(D,ω)^{⊗r}, and all of this holds for it too: ω may be known, and the samples' own
randomness is the only secret.

What follows is a bound for the samples alone. θ, the ELBO and the step at which training stopped are not private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import delta_from_costs, epsilon_from_costs
from tacita.assumptions import assume
from tacita.estimators import band_mean, unseen_mass
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.inference.divergences import Box, Gaussians, renyi_divergences, worst_divergences
from tacita.mechanisms.gaussian import smallest_epsilon

if TYPE_CHECKING:
    from tacita._check import Floats

ORDERS = tuple(float(lam) for lam in np.geomspace(1e-3, 1e6, 145))  # λ = α - 1, fixed: 16 a decade lose below 0.3%

_SHARE = 1 / 20  # of delta, for the band


@dataclass(frozen=True, kw_only=True)
class FinalSamplesCost:
    """What the final samples cost.

    Attributes:
        worst_case: For any record and any data, from the box alone; infinite without one.
        bayesian: For a record of this dataset, from the replayed pairs; never above the worst case.
        observed: NOT A BOUND, and for the data's owner: the epsilon at which the mean over the replayed pairs alone
            reaches delta, as if no other pair could cost more than those seen.
    """

    worst_case: Guarantee
    bayesian: Guarantee
    observed: float


def final_samples_cost(
    with_record: Gaussians,
    without: Gaussians,
    *,
    samples: int,
    delta: float,
    box: Box | None = None,
    gamma: float | None = None,
    complete: bool = False,
) -> FinalSamplesCost:
    """Return what releasing `samples` points of the final posterior costs, from replayed leave-one-out pairs.

    Each pair becomes one number at each ε, an upper bound on its own δ(ε) in the worse direction. `band` bounds their
    mean over all pairs that could have been drawn, with what is unseen charged the worst of the box, or 1 without one.
    So without a box the figure is infinite unless delta is above the unseen mass, about ln(2/gamma)/m. If every record
    was left out once, nothing is unseen: the mean is exact, and finite without a box.

    Args:
        with_record: m posteriors, each trained on all the data.
        without: m posteriors, each trained without one record, from the same randomness as its partner.
        samples: r, how many points are released, all from one posterior.
        delta: The total failure probability, the band's included.
        box: What the training held every parameter to.
        gamma: How often the band may be too low; part of delta. None takes a twentieth.
        complete: Whether the pairs are all records of the dataset, each left out once.

    Returns:
        The worst case, the Bayesian figure, and the owner's reading.

    Raises:
        ValueError: If the pairs do not match, or an argument is out of range.
        PrivacyError: If a posterior lies outside the box, or gamma reaches delta.

    Guarantee:
        Over the draw of the pairs, except with probability gamma, E_x δ_x(epsilon) ≤ delta - gamma in both
        directions, for x uniform over the dataset's records. With `complete` gamma is 0 and nothing is left to chance.

    Examples:
        >>> with_record = Gaussians(np.full((200, 2), 0.01), np.full((200, 2), 0.2))
        >>> without = Gaussians(np.zeros((200, 2)), np.full((200, 2), 0.2))
        >>> box = Box(bound=0.5, low=0.19, high=0.2, dimension=2)
        >>> cost = final_samples_cost(with_record, without, samples=1, delta=1e-5, box=box)
        >>> cost.observed < cost.bayesian.epsilon < cost.worst_case.epsilon
        True
        >>> final_samples_cost(with_record, without, samples=1, delta=1e-5).bayesian.epsilon
        inf
        >>> final_samples_cost(with_record, without, samples=1, delta=1e-5, complete=True).bayesian.epsilon < 0.3
        True
    """
    total = _check.probability("delta", delta)
    failure = 0.0 if complete else _failure(total, gamma)
    costs = pair_costs(with_record, without, samples=samples)
    if box is not None and not (box.holds(with_record) and box.holds(without)):
        raise PrivacyError("A posterior lies outside the declared box: the training must hold every parameter to it.")
    worst = box_guarantee(box, samples=samples, delta=total)
    most = box_costs(box, samples=samples)

    def bound(epsilon: float) -> float:
        cap = float(delta_from_costs(most, ORDERS, epsilon=epsilon, notion="weak"))
        values = pair_deltas(costs, epsilon=epsilon)
        return float(band_mean(values[None], worst=np.array([cap]), gamma=failure)[0])

    observed = smallest_epsilon(lambda eps: float(pair_deltas(costs, epsilon=eps).mean()), total)
    return FinalSamplesCost(
        worst_case=worst,
        bayesian=_bayesian(
            observed if complete else smallest_epsilon(bound, total - failure),
            worst,
            pairs=costs.shape[1],
            gamma=failure,
        ),
        observed=observed,
    )


def box_guarantee(box: Box | None, *, samples: int, delta: float) -> Guarantee:
    """Return the worst case of releasing `samples` points, from the declared box alone; infinite without one.

    It needs no data, so it can be had before training.

    Examples:
        >>> box_guarantee(Box(bound=0.5, low=1.0, high=1.0, dimension=1), samples=1, delta=1e-5).epsilon < 5
        True
        >>> box_guarantee(None, samples=1, delta=1e-5).epsilon
        inf
    """
    total, r = _check.probability("delta", delta), _check.count("samples", samples)
    epsilon, mechanism, assumed = np.inf, [("samples", float(r))], "no-box"
    if box is not None:
        epsilon = float(epsilon_from_costs(box_costs(box, samples=r), ORDERS, delta=total, notion="weak"))
        mechanism += [("box_bound", float(np.max(box.bound))), ("box_low", float(np.min(box.low)))]
        mechanism += [("box_high", float(np.max(box.high))), ("dimension", float(box.dimension))]
        assumed = "box"
    return Guarantee(
        kind="worst_case",
        epsilon=max(epsilon, SMALLEST_EPSILON),
        delta=total,
        method="moments",
        sampling="none",
        mechanism=tuple(mechanism),
        assumptions=(assume(assumed), assume("gaussian-draws"), assume("samples-alone")),
        publishable=True,
    )


def box_costs(box: Box | None, *, samples: int, orders: Sequence[float] = ORDERS) -> Floats:
    """Return λ r D_{λ+1} of the two posteriors of a box that are farthest apart; infinite without a box.

    Args:
        box: What every parameter is held to.
        samples: r, how many points are released.
        orders: The λ, such as those that a ledger adds up.
    """
    lams, r = np.array(orders, dtype=np.float64), _check.count("samples", samples)
    if box is None:
        return np.full(len(lams), np.inf)
    return np.asarray(r * lams * worst_divergences(1.0 + lams, box) * (1.0 + 1e-10))


def pair_epsilons(costs: Floats, *, delta: float) -> Floats:
    """Return the epsilon at which each pair's own δ(ε) is at most delta, in the worse direction; shape (m,)."""
    return np.asarray(epsilon_from_costs(costs, ORDERS, delta=delta, notion="weak").max(axis=0))


def pair_costs(with_record: Gaussians, without: Gaussians, *, samples: int) -> Floats:
    """Return λ r D_{λ+1} of each pair, for λ in ORDERS, infinite where it does not exist.

    Returns:
        Shape (2, m, orders): with the record against without it, and the other way round.
    """
    lams = np.array(ORDERS)
    r = _check.count("samples", samples)
    directions = ((with_record, without), (without, with_record))
    return np.stack([r * lams * renyi_divergences(1.0 + lams, *pair).T for pair in directions])


def pair_deltas(costs: Floats, *, epsilon: float) -> Floats:
    """Return a bound on each pair's own δ(ε), in the worse direction; shape (m,). It is 1 where no order exists.

    Args:
        costs: From `pair_costs`.
        epsilon: ε.
    """
    return np.asarray(delta_from_costs(costs, ORDERS, epsilon=epsilon, notion="weak").max(axis=0))


def _failure(delta: float, gamma: float | None) -> float:
    if gamma is None:
        return delta * _SHARE
    failure = _check.probability("gamma", gamma)
    if failure >= delta:
        raise PrivacyError(f"gamma={failure:g} reaches delta={delta:g}; pass a smaller one or leave it out.")
    return failure


def _bayesian(epsilon: float, worst: Guarantee, *, pairs: int, gamma: float) -> Guarantee:
    if gamma:
        unseen = f"{unseen_mass(pairs, gamma=gamma):.2g}"
        seen = [assume("independent-replays"), assume("unseen-charged", pairs=pairs, unseen=unseen)]
    else:
        seen = [assume("every-record-replayed")]
    capped = epsilon >= worst.epsilon
    return Guarantee(
        kind="bayesian",
        epsilon=max(min(epsilon, worst.epsilon), SMALLEST_EPSILON),
        delta=worst.delta,
        method="worst-case cap" if capped else "moments",
        sampling="none",
        scope="reading",
        notion="weak",
        estimator="band" if gamma else "every record",
        composition="replayed pairs",
        model="distribution-free",
        delta_split=(("band", gamma), ("expected", worst.delta - gamma)) if gamma else (),
        mechanism=(*worst.mechanism, ("pairs", float(pairs))),
        assumptions=(*worst.assumptions, assume("of-these-records"), *seen),
    )
