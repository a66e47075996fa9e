r"""What it costs to release the best of a random number of runs (Papernot & Steinke 2022, arXiv:2110.03620v2).

One run has the Rényi curve e(l) at orders l > 1: the larger of both directions, its score and its random choice of
settings included. K runs with fresh randomness are done on the same data, K being drawn from a law that was fixed
beforehand, and the best one is released by an order that is a function of its output and of public data. With γ and η
of the truncated negative binomial law (Theorem 2),

    e'(l) = e(l) + (1+η) min_{h ≥ 1} [(1 - 1/h) e(h) + ln(1/γ)/h] + ln(E K)/(l-1),

and with K ~ Poisson(μ) (Theorem 6), if one run is (ε_l, δ_l)-DP with e^ε_l ≤ 1 + 1/(l-1),

    e'(l) = e(l) + μ δ_l + ln(μ + e^-μ)/(l-1).

The theorem has ln(μ) there; e^-μ is for the chance of no run, which our derivation does not do without. K, the other
runs and their scores must stay secret, also from a clock. Both are derived in docs/explanation/theory/bounds.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import poisson

from tacita import _check, _codec
from tacita._check import PrivacyError
from tacita.accounting.conversion import delta_from_costs, epsilon_from_costs
from tacita.accounting.profiles import moments_profile, worst_profile
from tacita.accounting.worst import SampledSteps, renyi_divergences
from tacita.assumptions import Assumption
from tacita.composition import compose
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

RENYI_ORDERS: tuple[float, ...] = tuple(
    sorted({*(1.0 + k / 10 for k in range(1, 100)), *map(float, (*range(11, 65), 80, 96, 129, 192, 257, 512, 1024))})
)  # with λ + 1 for every λ at which ledgers keep costs
_LARGEST_LOG = 600.0  # of 1/γ and of γ^-η
_LARGEST_MEAN = 1e6
_REACH = 1e-12  # a curve goes on to the epsilon of this delta
_POINTS = 300


@dataclass(frozen=True)
class RenyiCurve(_codec.Checked):
    """Upper bounds on the Rényi divergences of a mechanism, in both directions.

    Attributes:
        orders: The orders l > 1, increasing.
        divergences: e(l); may be infinite.
        profile: The privacy curve, where a better one is known than the divergences prove.
    """

    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    profile: Profile | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (len(self.orders) == len(self.divergences) > 0 and np.all(np.diff([1.0, *self.orders]) > 0.0)):
            raise ValueError("A Rényi curve's orders must increase from above 1, with one divergence for each.")
        if not all(divergence >= 0.0 for divergence in self.divergences):
            raise ValueError("A Rényi curve's divergences must be at least 0.")

    @property
    def costs(self) -> dict[int, float]:
        """The log moments λ D_{λ+1} at whole λ, as a ledger charges them."""
        pairs = zip(self.orders, self.divergences, strict=True)
        return {int(order) - 1: (order - 1.0) * divergence for order, divergence in pairs if order == int(order)}

    def delta(self, epsilon: float) -> float:
        """Return δ(ε)."""
        moments = float(delta_from_costs(self._moments, self._exponents, epsilon=epsilon, notion="weak"))
        return moments if self.profile is None else min(moments, float(self.profile.delta(epsilon)))

    def epsilon(self, delta: float) -> float:
        """Return the ε that the divergences prove at δ (Canonne, Kamath & Steinke 2020); may be infinite."""
        return float(epsilon_from_costs(self._moments, self._exponents, delta=delta, notion="weak"))

    def proved(self) -> Profile:
        """Return the privacy curve that the divergences prove.

        Raises:
            PrivacyError: If none of them is finite.
        """
        reach = self.epsilon(_REACH)
        if math.isinf(reach):
            raise PrivacyError("No divergence of this curve is finite: it promises nothing.")
        largest = max(reach, SMALLEST_EPSILON)
        return moments_profile(self._moments, self._exponents, up_to=largest, points=_POINTS)

    def after(self, other: RenyiCurve) -> RenyiCurve:
        """Return the curve of both mechanisms on the same records, at the same orders; the second may see the first."""
        _require_same_orders(self, other)
        both = None
        if self.profile is not None and other.profile is not None:
            both = compose([(self.profile, 1), (other.profile, 1)])
        return RenyiCurve(self.orders, tuple(np.add(self.divergences, other.divergences).tolist()), both)

    def __or__(self, other: RenyiCurve) -> RenyiCurve:
        """Return the curve of whichever of both is larger: that of a public, or a random, choice between them."""
        _require_same_orders(self, other)
        largest = None
        if self.profile is not None and other.profile is not None:
            mine, theirs = self.profile, other.profile
            at = np.union1d(mine.epsilons, theirs.epsilons)
            largest = Profile.of_curve(lambda eps: np.maximum(mine.delta(eps), theirs.delta(eps)), at)
        return RenyiCurve(self.orders, tuple(np.maximum(self.divergences, other.divergences).tolist()), largest)

    @property
    def _exponents(self) -> tuple[float, ...]:
        return tuple(order - 1.0 for order in self.orders)

    @property
    def _moments(self) -> Floats:
        return np.asarray(np.array(self._exponents) * np.array(self.divergences))


def _require_same_orders(one: RenyiCurve, other: RenyiCurve) -> None:
    if one.orders != other.orders:
        raise ValueError("Rényi curves must be at the same orders.")


def steps_curve(
    *,
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    orders: Sequence[float] = RENYI_ORDERS,
    profiled: bool = True,
) -> RenyiCurve:
    """Return the Rényi curve of Poisson-sampled Gaussian steps, by dp-accounting, with their privacy curve.

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: σ in [0.01, 1e4].
        steps: How many, fixed beforehand.
        orders: At which orders.
        profiled: Whether the privacy curve is computed, too: the Poisson law makes use of it.

    Returns:
        The curve.
    """
    mechanism: dict[str, Any] = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier}
    found = renyi_divergences(orders, **mechanism, steps=steps) * (1.0 + 1e-9)
    curve = worst_profile(**mechanism, steps=steps) if profiled else None
    return RenyiCurve(tuple(orders), tuple(found.tolist()), curve)


def gaussian_curve(noise_multiplier: float, *, orders: Sequence[float] = RENYI_ORDERS) -> RenyiCurve:
    """Return the Rényi curve of one Gaussian release, such as that of a count with noise.

    Args:
        noise_multiplier: Noise standard deviation over the most that one record moves what is released.
        orders: At which orders.
    """
    sigma = _check.in_range("noise_multiplier", noise_multiplier, 1e-3, 1e6)
    divergences = tuple(order / (2.0 * sigma * sigma) for order in orders)
    return RenyiCurve(tuple(orders), divergences, Profile.gaussian(1.0 / sigma))


def largest_curve(curves: Sequence[RenyiCurve]) -> RenyiCurve:
    """Return the curve that covers a run with any of several settings, drawn at random or chosen in public."""
    if not curves:
        raise ValueError("curves must hold at least one curve.")
    return reduce(lambda one, other: one if one == other else one | other, dict.fromkeys(curves))


def trial_curve(
    mechanisms: Sequence[SampledSteps],
    *,
    score_noise: float | None = None,
    score_apart: bool = False,
    profiled: bool = True,
) -> RenyiCurve:
    """Return the Rényi curve of one run with any of several settings, and of its score.

    Args:
        mechanisms: (sample rate, noise multiplier, steps) of each setting.
        score_noise: Noise of a count that one record changes by at most 1; None for a public score.
        score_apart: Whether no counted record is ever trained on, which is decided for each record by itself. A record
            then moves either the run or its score, and the larger of both counts, not their sum.
        profiled: As in `steps_curve`.
    """
    curve = largest_curve(
        [
            steps_curve(sample_rate=rate, noise_multiplier=noise, steps=steps, profiled=profiled)
            for rate, noise, steps in dict.fromkeys(mechanisms)
        ]
    )
    if score_noise is None:
        return curve
    score = gaussian_curve(score_noise)
    return curve | score if score_apart else curve.after(score)


@dataclass(frozen=True)
class NegativeBinomial(_codec.Checked):
    """The truncated negative binomial law: at least one run, and a tail that falls like (1 - gamma)^k.

    Attributes:
        eta: Its shape, above -1: 0 is the logarithmic law, 1 the geometric one. The smaller, the cheaper at the same
            expected number, and the more that number varies.
        gamma: In (0, 1); the smaller, the more runs.

    Examples:
        >>> law = NegativeBinomial.expecting(10.0, eta=1.0)
        >>> round(law.gamma, 12), law.pmf(np.array([1, 2])).round(3).tolist()
        (0.1, [0.1, 0.09])
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1.0 < self.eta <= 100.0:
            raise ValueError(f"eta must be in (-1, 100], got {self.eta:g}.")
        log = -math.log(_check.probability("gamma", self.gamma))
        if not max(1.0, self.eta) * log <= _LARGEST_LOG:
            raise ValueError(f"gamma={self.gamma:g} is too small for eta={self.eta:g}: its chances underflow.")

    @classmethod
    def expecting(cls, mean: float, *, eta: float = 0.0) -> NegativeBinomial:
        """Return the law with this expected number of runs, above 1.

        Args:
            mean: The expected number.
            eta: The shape.
        """
        wanted = _check.in_range("mean", mean, 1.0 + 1e-6, _LARGEST_MEAN)
        low, high = -_LARGEST_LOG / max(1.0, _check.in_range("eta", eta, -1.0, 100.0)) * (1.0 - 1e-9), -1e-9

        def excess(log_gamma: float) -> float:
            return math.log(cls(eta, math.exp(log_gamma)).mean / wanted)

        if excess(low) < 0.0:
            raise ValueError(f"No law with eta={eta:g} expects {wanted:g} runs; use a larger eta.")
        return cls(eta, math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-14)))

    @property
    def mean(self) -> float:
        """The expected number of runs: η(1-γ) / (γ (1-γ^η)), and (1/γ - 1) / ln(1/γ) at η = 0."""
        shape = -self.eta / math.expm1(self.eta * math.log(self.gamma)) if self.eta else -1.0 / math.log(self.gamma)
        return (1.0 / self.gamma - 1.0) * shape

    @property
    def words(self) -> str:
        """The law, for people."""
        name = {0.0: "logarithmic", 1.0: "geometric"}.get(self.eta, f"negative binomial (eta {self.eta:g})")
        return f"{name}, {self.mean:.4g} expected"

    @property
    def _first(self) -> float:
        """The chance of a single run: (1-γ) η / (γ^-η - 1)."""
        log = -math.log(self.gamma)
        return (1.0 - self.gamma) * (self.eta / math.expm1(self.eta * log) if self.eta else 1.0 / log)

    def pmf(self, number: Counts) -> Floats:
        """Return the chance of each number of runs."""
        k = np.maximum(number, 1).astype(np.float64)
        growth = gammaln(k + self.eta) - gammaln(1.0 + self.eta) - gammaln(k + 1.0)
        found = self._first * np.exp((k - 1.0) * math.log1p(-self.gamma) + growth)
        return np.where(np.asarray(number) >= 1, found, 0.0)

    def draw(self, rng: np.random.Generator) -> int:
        """Return a number of runs, by inversion. It must stay secret."""
        left, number, chance = rng.random(), 1, self._first
        while left >= chance > 0.0:
            left -= chance
            chance *= (1.0 - self.gamma) * (number + self.eta) / (number + 1.0)
            number += 1
        return number

    def selected(self, one: RenyiCurve) -> RenyiCurve:
        """Return the Rényi curve of the best of that many runs (Theorem 2).

        Args:
            one: Of one run, its score and its random choice of settings included.
        """
        orders, divergences, log = np.array(one.orders), np.array(one.divergences), -math.log(self.gamma)
        again = min(log, float(((1.0 - 1.0 / orders) * divergences + log / orders).min()))  # h = 1 needs no divergence
        return _monotone(orders, divergences + (1.0 + self.eta) * again + math.log(self.mean) / (orders - 1.0))


@dataclass(frozen=True)
class Poisson(_codec.Checked):
    """The Poisson law: a number that varies little, and may be zero, in which case nothing is released.

    It is the cheapest for about three runs, and costs far more than the others for many.

    Attributes:
        mean: μ, the expected number of runs.
    """

    mean: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.in_range("mean", self.mean, 1e-6, _LARGEST_MEAN)

    @property
    def words(self) -> str:
        """The law, for people."""
        return f"Poisson, {self.mean:.4g} expected"

    def pmf(self, number: Counts) -> Floats:
        """Return the chance of each number of runs."""
        return np.asarray(poisson.pmf(number, self.mean))

    def draw(self, rng: np.random.Generator) -> int:
        """Return a number of runs, perhaps 0. It must stay secret."""
        return int(rng.poisson(self.mean))

    def selected(self, one: RenyiCurve) -> RenyiCurve:
        """Return the Rényi curve of the best of that many runs, or of a fixed answer if there are none (Theorem 6).

        Args:
            one: Of one run, its score and its random choice of settings included. Its privacy curve counts.
        """
        orders, divergences = np.array(one.orders), np.array(one.divergences)
        close = np.log1p(1.0 / (orders - 1.0)) * (1.0 - 1e-12)  # e^ε must be at most 1 + 1/(l-1)
        deltas = np.array([one.delta(float(epsilon)) for epsilon in close])
        number = math.log(self.mean + math.exp(-self.mean))
        return _monotone(orders, divergences + self.mean * deltas + number / (orders - 1.0))


Trials = NegativeBinomial | Poisson


def _monotone(orders: Floats, bounds: Floats) -> RenyiCurve:
    """Return the curve of bounds: divergences grow with the order, so every bound holds at the orders below, too."""
    best = np.minimum.accumulate(bounds[::-1])[::-1] * (1.0 + 1e-12) + 1e-12
    return RenyiCurve(tuple(orders.tolist()), tuple(best.tolist()))


def tuned_worst_case(
    best: RenyiCurve, *, delta: float, unit: str = "record", assumptions: Sequence[Assumption] = ()
) -> Guarantee:
    """Return the worst case of a tuning.

    Args:
        best: The Rényi curve of the best run, from `selected`.
        delta: δ in (0, 1).
        unit: What one neighbour step adds or removes.
        assumptions: What it rests on.

    Returns:
        The guarantee, with the privacy curve that the divergences prove.

    Guarantee:
        For every dataset and every one unit added or removed, if the number of runs, the other runs and their scores
        stay secret, and every run had fresh randomness and a curve of at most the one that `best` was made of.

    Examples:
        >>> one = steps_curve(sample_rate=0.01, noise_multiplier=1.0, steps=2000)
        >>> best = NegativeBinomial.expecting(10.0).selected(one)
        >>> round(one.epsilon(1e-5), 2), round(tuned_worst_case(best, delta=1e-5).epsilon, 2)
        (2.87, 4.69)
    """
    dlt = _check.probability("delta", delta)
    epsilon = max(best.epsilon(dlt), SMALLEST_EPSILON)
    return Guarantee(
        kind="worst_case",
        epsilon=epsilon,
        delta=dlt,
        method="rdp of the best of several runs",
        unit=unit,
        assumptions=tuple(assumptions),
        publishable=True,
        profile=best.proved() & Profile.of_pair(epsilon, dlt),
    )
