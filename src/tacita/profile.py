r"""A statement's whole privacy curve, and what an attacker can do with what it allows.

One pair (ε, δ) is one point of a curve. With P the run with a person and Q the run without,

    δ(ε) = max{ H_{e^ε}(P ‖ Q), H_{e^ε}(Q ‖ P) },   H_t(P ‖ Q) = sup_S P(S) - t Q(S),

and every figure here is a function of that curve. A `Profile` holds upper bounds on δ(ε) at some ε, so that every
figure errs to the safe side. Between two of them it takes the chord in e^ε, in which δ is convex; beyond the last one,
the last value. On such a curve the optima below are attained at the points themselves, so no grid error is left.
The derivations are in docs/explanation/theory/profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check, _codec, _search

if TYPE_CHECKING:
    from tacita._check import Floats

_LARGEST_MU = 1e6
_MU_CELLS = 2000


@dataclass(frozen=True)
class Profile(_codec.Checked):
    """Upper bounds δ(ε) on how well any test tells a run with a person from one without.

    Attributes:
        epsilons: Increasing, the first one 0.
        deltas: The bound at each of them, in [0, 1], not increasing.

    Raises:
        ValueError: If they are not such lists.

    Guarantee:
        Where the deltas bound the mechanism's curve in both directions, every figure bounds what any attack achieves
        that sees the release, with any side knowledge and computing power.

    Examples:
        >>> curve = Profile.of_pair(1.0, 0.0)
        >>> round(curve.attack_success(), 4)  # e / (1 + e)
        0.7311
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(type(part) is tuple and set(map(type, part)) <= {float} for part in (self.epsilons, self.deltas)):
            super().__post_init__()  # number by number, which is slow
        eps, dlt = self._epsilons, self._deltas
        if not (len(eps) == len(dlt) > 0 and eps[0] == 0.0 and np.isfinite(eps).all() and np.all(np.diff(eps) > 0.0)):
            raise ValueError("A profile's epsilons must increase from 0, with one delta for each.")
        if not (np.all((dlt >= 0.0) & (dlt <= 1.0)) and np.all(np.diff(dlt) <= 0.0)):
            raise ValueError("A profile's deltas must be in [0, 1] and must not increase.")

    def __repr__(self) -> str:
        return f"<Profile: {len(self.epsilons)} points, from delta {self.deltas[0]:.4g} to {self.deltas[-1]:.4g}>"

    @classmethod
    def of_curve(cls, curve: Callable[[Floats], Floats], epsilons: Floats) -> Profile:
        """Return the profile of a curve at the given epsilons.

        Args:
            curve: From epsilons to upper bounds on δ there.
            epsilons: Increasing from 0.
        """
        deltas = np.minimum.accumulate(np.clip(curve(epsilons), 0.0, 1.0))
        return cls(tuple(epsilons.tolist()), tuple(deltas.tolist()))

    @classmethod
    def of_pair(cls, epsilon: float, delta: float) -> Profile:
        """Return what one pair (ε, δ) says about every other: the curve of the worst mechanism that satisfies it.

        δ(ε') = δ + (1 - δ) (e^ε - e^ε') / (e^ε + 1) below ε (randomised response); nothing if epsilon is infinite.

        Examples:
            >>> Profile.of_pair(float("inf"), 0.1).attack_success()
            1.0
        """
        eps, dlt = _check.in_range("epsilon", epsilon, 0.0, math.inf), _check.in_range("delta", delta, 0.0, 1.0)
        if math.isinf(eps):
            return cls((0.0,), (1.0,))
        even = min(1.0, dlt + (1.0 - dlt) * math.tanh(eps / 2.0))
        return cls((0.0,), (dlt,)) if eps == 0.0 else cls((0.0, eps), (even, dlt))

    @classmethod
    def gaussian(cls, mu: float, *, points: int = 512) -> Profile:
        """Return the profile of a Gaussian release whose mean moves by at most `mu` standard deviations.

        Args:
            mu: The distance; μ-Gaussian differential privacy (Dong, Roth & Su 2022).
            points: Of the curve. More are tighter between them: at 512 an epsilon is at most 0.01% too large.

        Examples:
            >>> round(Profile.gaussian(1.0).attack_success(), 4)  # Φ(1/2)
            0.6915
        """
        from tacita.mechanisms.gaussian import gaussian_delta  # scipy, which `tacita check` does without

        size = _check.in_range("mu", mu, 0.0, _LARGEST_MU)
        if size == 0.0:
            return cls((0.0,), (0.0,))
        last = size * size / 2.0 + 20.0 * size  # δ there is below 1e-88
        grid = last * np.linspace(0.0, 1.0, points) ** 1.5
        return cls.of_curve(lambda eps: gaussian_delta(eps, distance=size), grid)

    def __and__(self, other: Profile) -> Profile:
        """Return the smaller of two bounds on the same curve, at the points of both."""
        at = np.union1d(self._epsilons, other._epsilons)
        return Profile.of_curve(lambda eps: np.minimum(self.delta(eps), other.delta(eps)), at)

    def thinned(self, points: int = 400) -> Profile:
        """Return the curve with at most so many of its points; chords across those left out still bound it."""
        if len(self.epsilons) <= points:
            return self
        fall = -np.diff(np.log(np.maximum(self._deltas, 1e-30)))
        way = np.concatenate(
            [[0.0], np.cumsum(fall / max(fall.sum(), 1e-300) + np.diff(self._epsilons) / self.epsilons[-1])]
        )
        kept = np.unique(np.searchsorted(way, np.linspace(0.0, way[-1], points)).clip(0, len(way) - 1))
        return Profile(tuple(self._epsilons[kept].tolist()), tuple(self._deltas[kept].tolist()))

    def raised(self, delta: float, *, up_to: float) -> Profile:
        """Return the curve of a mechanism that fails otherwise with a probability that adds `delta` up to an epsilon.

        Args:
            delta: What is added to every δ(ε) with ε ≤ `up_to`.
            up_to: Beyond it nothing is known but that δ falls.
        """
        at = np.append(self._epsilons[self._epsilons < up_to], up_to)
        return Profile.of_curve(lambda eps: self.delta(eps) + delta, at)

    @cached_property
    def _epsilons(self) -> Floats:
        return np.array(self.epsilons, dtype=np.float64)

    @cached_property
    def _deltas(self) -> Floats:
        return np.array(self.deltas, dtype=np.float64)

    def delta(self, epsilon: Any) -> Any:
        """Return δ(ε), for one ε or an array of them."""
        at = np.asarray(epsilon, dtype=np.float64)
        if not np.all(at >= 0.0):
            raise ValueError("epsilon must be at least 0.")
        found = chord(np.atleast_1d(at), self._epsilons, self._deltas[None])[0]
        return float(found[0]) if at.ndim == 0 else found

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε with δ(ε) ≤ delta; infinite if the curve does not reach it."""
        dlt = _check.in_range("delta", delta, 0.0, 1.0)
        return float(inverse_chord(dlt, self._epsilons, self._deltas[None])[0])

    def attack_success(self, prior: float = 0.5) -> float:
        """Return how often the best attack is right about whether a person's record was used.

        Args:
            prior: How likely it was before the release. At 1/2, guessing is right half of the time.

        Returns:
            max(p, 1-p) + min(p, 1-p) δ(|ln((1-p)/p)|).
        """
        p = _check.probability("prior", prior)
        less, more = sorted((p, 1.0 - p))
        return min(1.0, more + less * float(self.delta(math.log(more / less))))

    def tpr(self, fpr: float) -> float:
        """Return the largest share of members that a test finds which wrongly accuses a share `fpr` of others.

        1 - f(a) with f(a) = max_ε max{1 - δ(ε) - e^ε a, e^-ε (1 - δ(ε) - a), 0} (Dong, Roth & Su 2022).
        """
        rate = _check.in_range("fpr", fpr, 0.0, 1.0)
        return 1.0 - float(most_missed(rate, self._epsilons, self._deltas[None])[0])

    def secret_guess(self, baseline: float) -> float:
        """Return how often a secret of a person is guessed from the release.

        Args:
            baseline: How often the best guess is right that sees the same release *made without the person* and
                knows everything else that the attacker knows.

        Guarantee:
            For every secret and every attack (Balle, Cherubin & Hayes 2022). What the release teaches about
            everybody, such as people who share the secret, belongs to the baseline.
        """
        return self.tpr(_check.in_range("baseline", baseline, 0.0, 1.0))

    def tradeoff(self, points: int = 200) -> tuple[Floats, Floats]:
        """Return false-positive rates from 1e-5 to 1, evenly spaced on a log scale, and `tpr` at each."""
        rates = np.geomspace(1e-5, 1.0, _check.count("points", points, low=2))
        return rates, np.array([self.tpr(float(rate)) for rate in rates])

    def tail(self, epsilon: float) -> float:
        """Return how likely an outcome is after which an attacker is surer than ε allows.

        After any other outcome, an attacker who gave it even odds believes that the person was there with at most
        1 / (1 + e^-ε). This is not δ(ε), which is smaller:
        Pr[loss > ε] ≤ min over ε' < ε of δ(ε') / (1 - e^(ε'-ε)).
        """
        eps = _check.in_range("epsilon", epsilon, 0.0, math.inf)
        below = self._epsilons < eps
        if not below.any():
            return 1.0
        return min(1.0, float((self._deltas[below] / -np.expm1(self._epsilons[below] - eps)).min()))

    def sure(self, delta: float) -> float:
        """Return the smallest ε with tail(ε) ≤ delta, rounded up; infinite if there is none."""
        goal = _check.probability("delta", delta)
        if not self._deltas[-1] < goal:
            return math.inf
        start = self.epsilon(goal)
        enough = max(start, self.epsilons[-1]) + 1.0
        while self.tail(enough) > goal:
            enough *= 2.0
        return _search.boundary(lambda eps: self.tail(eps) <= goal, fails=start, at=enough, rtol=1e-6, xtol=1e-9)

    def mu(self, *, floor: float) -> float:
        """Return a μ such that δ(ε) ≤ G_μ(ε) + floor everywhere, G_μ being the curve of a Gaussian at distance μ.

        So any test finds at most Φ(Φ⁻¹(fpr) + μ) + floor of the members. Without a floor there may be no useful μ:
        the far tail of a sampled mechanism is that of all its steps.

        Args:
            floor: How much the curve may exceed the Gaussian one; print it with μ.

        Returns:
            The smallest such μ, rounded up; infinite if the curve does not fall to the floor, or μ would pass 1e6.
        """
        from tacita.mechanisms.gaussian import gaussian_delta

        spare = _check.probability("floor", floor)
        end = self.epsilon(spare)
        if end == 0.0 or math.isinf(end):
            return end
        cells = np.union1d(np.linspace(0.0, end, _MU_CELLS), self._epsilons[self._epsilons < end])
        left, right = self.delta(cells[:-1]), cells[1:]  # δ falls and so does G_μ: compared across the cell

        def covers(mu: float) -> bool:
            return bool(np.all(left <= gaussian_delta(right, distance=mu) * (1.0 - 1e-12) + spare))

        found = _search.boundary(covers, fails=1e-9, at=_LARGEST_MU, rtol=1e-6, geometric=True)
        return found if found < _LARGEST_MU else math.inf  # the largest was not tried


def most_missed(fpr: float, epsilons: Floats, deltas: Floats) -> Floats:
    """Return, for each curve, the share of members that every test misses at a false-positive rate: f of `Profile.tpr`.

    Args:
        fpr: The false-positive rate.
        epsilons: Where the curves are known, shape (points,), increasing from 0.
        deltas: The curves there, shape (curves, points).

    Returns:
        Shape (curves,). A lower bound wherever `deltas` are upper ones.
    """
    factor = np.exp(np.minimum(epsilons, 700.0))
    missed = np.maximum(1.0 - factor * fpr - deltas, (1.0 - fpr - deltas) / factor)
    return np.asarray(np.maximum(missed.max(axis=1), 0.0))


def chord(at: Floats, epsilons: Floats, deltas: Floats) -> Floats:
    """Return curves between their points, by the chord in e^ε; beyond the last point its value holds.

    Args:
        at: The epsilons wanted, shape (E,).
        epsilons: Where the curves are known, shape (points,), increasing from 0.
        deltas: The curves there, shape (curves, points).

    Returns:
        Shape (curves, E). An upper bound wherever `deltas` are: δ is convex in e^ε.
    """
    if len(epsilons) == 1:
        return np.repeat(deltas, len(at), axis=1)
    eps = np.clip(at, 0.0, epsilons[-1])
    right = np.clip(np.searchsorted(epsilons, eps, side="left"), 1, len(epsilons) - 1)
    low, high = epsilons[right - 1], epsilons[right]
    weight = np.exp(eps - high) * np.expm1(low - eps) / np.expm1(low - high)
    return np.asarray((1.0 - weight) * deltas[:, right - 1] + weight * deltas[:, right])


def inverse_chord(delta: float, epsilons: Floats, deltas: Floats) -> Floats:
    """Return, for each curve, the smallest ε at which the chord is at most delta; infinite if it never is.

    Args:
        delta: The value to reach.
        epsilons: As in `chord`.
        deltas: As in `chord`, not increasing.
    """
    reached = deltas <= delta
    right = reached.argmax(axis=1)
    rows = np.arange(len(right))
    left = np.maximum(right - 1, 0)
    above, below = deltas[rows, left], deltas[rows, right]
    low, high = epsilons[left], epsilons[right]
    share = np.divide(above - delta, above - below, out=np.ones_like(above), where=above > below)
    with np.errstate(divide="ignore"):
        eps = low + np.logaddexp(np.log1p(-share), np.log(share) + high - low)
    return np.asarray(np.where(reached.any(axis=1), np.where(right == 0, epsilons[0], eps), np.inf))
