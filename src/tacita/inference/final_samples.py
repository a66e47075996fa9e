r"""What it costs to release r samples from the final variational posterior, and nothing else.

Training adds no noise. It takes the data D and its own randomness ω to parameters θ(D, ω), and r points are drawn
from q_θ. Over ω, the outcome has the mixture law M(D) = E_ω q_θ(D,ω)^{⊗r}. With
H(P‖Q) = sup_S P(S) - e^ε Q(S) the hockey-stick divergence at ε, and any coupling of ω and ω',

    H(M(D) ‖ M(D∖x)) ≤ E H(q_θ(D,ω)^{⊗r} ‖ q_θ(D∖x,ω')^{⊗r}),

because H is jointly convex: for every set S the left side's P(S) - e^ε Q(S) is the expectation of the pairs' own, and
each of those is at most its supremum. The coupling is free, so both trainings use the same randomness, which brings
the pairs closest. Each pair's own H is bounded by its Rényi divergences, r D_α (a product of r equal laws), turned
into δ by the sharpest order. Averaged over x as well, this is the weak Bayesian notion for the law of x. So each pair
becomes one number at each ε, and `band_mean` bounds their mean over all pairs that could have been drawn, with what is
unseen charged the worst of the box, or 1 without one. If every record was left out once, nothing is unseen.

A run fixes one ω before the data are seen, with coins for each record, so D∖x leaves all other coins as they are.
Given that ω the outcome is q_θ(D,ω)^{⊗r}, and all of this holds for it too: ω may be known, and the samples' own
randomness is the only secret.

What follows is a bound for the samples alone. θ, the ELBO and the step at which training stopped are not private.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import delta_from_costs, epsilon_from_costs
from tacita.accounting.profiles import moments_profile
from tacita.assumptions import assume
from tacita.estimators import band_mean, unseen_mass
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.mechanisms.diagonal import Gaussians, renyi_divergences
from tacita.mechanisms.gaussian import smallest_epsilon
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Floats

ORDERS = tuple(float(lam) for lam in np.geomspace(1e-3, 1e6, 145))  # λ = α - 1, fixed: 16 a decade lose below 0.3%
_SHARE = 1 / 20  # of delta, for the band
_MARGIN = 1e-6  # by which a box is widened, for parameters that were held to it in single precision
_LARGEST = 1e30  # of a box: draws are kept in single precision


@dataclass(frozen=True, kw_only=True)
class Box:
    """What every variational parameter is held to, declared before the data were seen.

    Attributes:
        bound: Means lie in [-bound, bound]; one number, or one for each coordinate.
        low: Scales are at least this; likewise.
        high: Scales are at most this; likewise.
        dimension: Number of coordinates.
    """

    bound: Any
    low: Any
    high: Any
    dimension: int

    def __post_init__(self) -> None:
        d = _check.count("dimension", self.dimension)
        for name in ("bound", "low", "high"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape not in ((), (d,)) or not (np.abs(values) < _LARGEST).all():
                raise ValueError(
                    f"{name} must be a number below {_LARGEST:g}, or {d} of them, got shape {values.shape}."
                )
            object.__setattr__(self, name, tuple(np.broadcast_to(values, (d,)).tolist()))
        if not (min(self.bound) >= 0.0 and min(self.low) > 0.0 and np.all(np.less_equal(self.low, self.high))):
            raise ValueError("A box needs bound >= 0 and 0 < low <= high in every coordinate.")

    def extremes(self) -> tuple[Gaussians, Gaussians]:
        """Return the two Gaussians of the box that are farthest apart: wide at the top, narrow at the bottom."""
        means = np.atleast_2d(self.bound) * (1.0 + _MARGIN)
        wide, narrow = np.atleast_2d(self.high) * (1.0 + _MARGIN), np.atleast_2d(self.low) / (1.0 + _MARGIN)
        return Gaussians(means, wide), Gaussians(-means, narrow)

    def holds(self, points: Gaussians) -> bool:
        """Return whether all of them lie in the box, up to the millionth of each side by which `extremes` widens it."""
        top, bottom = self.extremes()
        if points.means.shape[1] != self.dimension:
            raise ValueError(f"The box has {self.dimension} coordinates, the Gaussians {points.means.shape[1]}.")
        means, scales = points.means, points.scales
        inside = (np.abs(means) <= top.means) & (bottom.scales <= scales) & (scales <= top.scales)
        return bool(inside.all())

    def project(self, means: Floats, scales: Floats) -> Gaussians:
        """Return the Gaussians with every mean and scale moved into the box, no further than needed.

        What is not finite becomes a mean of zero and the lowest scale: a training that diverged lies in the box too,
        since whether it diverges may depend on one record.
        """
        middle, narrow = np.where(np.isfinite(means), means, 0.0), np.where(np.isfinite(scales), scales, self.low)
        return Gaussians(np.clip(middle, np.negative(self.bound), self.bound), np.clip(narrow, self.low, self.high))

    def __str__(self) -> str:
        bound, low, high = max(self.bound), min(self.low), max(self.high)
        each = all(len(set(side)) == 1 for side in (self.bound, self.low, self.high))
        scales = f"standard deviations of {low:g}" if low == high else f"standard deviations from {low:g} to {high:g}"
        return f"means within {bound:g} of zero, {scales}" + ("" if each else ", and for some unknowns less")


def worst_divergences(orders: Sequence[float] | Floats, box: Box) -> Floats:
    """Return the largest D_α of any two Gaussians in a box, in either direction; shape (E,).

    In each coordinate D_α(1‖2) rises with |m_1 - m_2|, and for given means it is largest at s_1 = high, s_2 = low:
    that makes 1 - λx and s_2²(1 - λx) least; and of two laws with one mean the wide one diverges more from the narrow
    one than the other way round. So the largest value is reached at `Box.extremes`, and nothing is lost. It is
    infinite where (high/low)² ≥ α/(α - 1) in some coordinate.

    Examples:
        >>> box = Box(bound=0.5, low=1.0, high=1.2, dimension=1)
        >>> worst_divergences([2.0, 4.0], box).round(3).tolist()
        [1.893, inf]
    """
    return np.asarray(renyi_divergences(orders, *box.extremes())[:, 0])


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

    Without a box it is infinite unless delta exceeds the unseen mass, about ln(2/gamma)/m, or every record is replayed.

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
    """
    total = _check.probability("delta", delta)
    failure = 0.0 if complete else total * _SHARE if gamma is None else _check.probability("gamma", gamma)
    if failure >= total:
        raise PrivacyError(f"gamma={failure:g} reaches delta={total:g}; pass a smaller one or leave it out.")
    costs = pair_costs(with_record, without, samples=samples)
    if box is not None and not (box.holds(with_record) and box.holds(without)):
        raise PrivacyError("A posterior lies outside the declared box: the training must hold every parameter to it.")
    worst = box_guarantee(box, samples=samples, delta=total)
    most = box_costs(box, samples=samples)

    def bound(epsilon: float) -> float:
        cap = float(delta_from_costs(most, ORDERS, epsilon=epsilon, notion="weak"))
        return float(band_mean(pair_deltas(costs, epsilon=epsilon)[None], worst=np.array([cap]), gamma=failure)[0])

    observed = smallest_epsilon(lambda eps: float(pair_deltas(costs, epsilon=eps).mean()), total)
    epsilon = observed if complete else smallest_epsilon(bound, total - failure)
    typical = _bayesian(epsilon, worst, pairs=costs.shape[1], gamma=failure)
    return FinalSamplesCost(worst_case=worst, bayesian=typical, observed=observed)


def box_guarantee(box: Box | None, *, samples: int, delta: float) -> Guarantee:
    """Return the worst case of releasing `samples` points, from the declared box alone; infinite without one.

    It needs no data, so it can be had before training.

    Args:
        box: What every parameter is held to.
        samples: How many points are released, all from one posterior.
        delta: The failure probability.

    Returns:
        The guarantee, which may be published.

    Guarantee:
        Of the samples alone, for any data and any record, as long as every posterior is held to the box.

    Examples:
        >>> box_guarantee(Box(bound=0.5, low=1.0, high=1.0, dimension=1), samples=1, delta=1e-5).epsilon < 5
        True
        >>> box_guarantee(None, samples=1, delta=1e-5).epsilon
        inf
    """
    total, r = _check.probability("delta", delta), _check.count("samples", samples)
    epsilon, mechanism, assumed, profile = np.inf, [("samples", float(r))], "no-box", None
    if box is not None:
        costs = box_costs(box, samples=r)
        epsilon = max(SMALLEST_EPSILON, float(epsilon_from_costs(costs, ORDERS, delta=total, notion="weak")))
        if math.isfinite(epsilon):
            profile = moments_profile(costs, ORDERS, up_to=4.0 * epsilon) & Profile.of_pair(epsilon, total)
        mechanism += [("box_bound", max(box.bound)), ("box_low", min(box.low))]
        mechanism += [("box_high", max(box.high)), ("dimension", float(box.dimension))]
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
        profile=profile,
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

    Args:
        with_record: Posteriors with the record.
        without: Their partners without it, row by row.
        samples: r, how many points are released.

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


def _bayesian(epsilon: float, worst: Guarantee, *, pairs: int, gamma: float) -> Guarantee:
    if gamma:
        unseen = f"{unseen_mass(pairs, gamma=gamma):.2g}"
        seen = [assume("independent-replays"), assume("unseen-charged", pairs=pairs, unseen=unseen)]
    else:
        seen = [assume("every-record-replayed")]
    return Guarantee(
        kind="bayesian",
        epsilon=max(min(epsilon, worst.epsilon), SMALLEST_EPSILON),
        delta=worst.delta,
        method="worst-case cap" if epsilon >= worst.epsilon else "moments",
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
