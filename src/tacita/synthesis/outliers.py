"""How many samples may be released: the chance that one of them is a record the guarantee protects less.

A Bayesian guarantee holds on average over the population, so a small share of it, the privacy outliers, is protected
less than the rest. Few samples hold few outliers (Triastcyn 2020, section 7.4.2).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from decimal import Decimal, localcontext
from typing import Any

from tacita import _check
from tacita._numbers import delta_text, epsilon_text, round_up_text, success_text
from tacita.guarantee import outlier_probability, share_above

LARGEST = 10**9  # samples; a larger answer is given as this one
SMALLEST = 1e-100  # what is still distinguished from 0
ASSUMPTION = (
    "It assumes that the generator's samples follow the population. That cannot be proved: a generator that "
    "collapsed or that memorised records makes outliers more common than this figure says. A heuristic, not a "
    "guarantee."
)
_DIGITS = 400  # 1 - share must not round to 1 for the smallest float


@dataclass(frozen=True, kw_only=True)
class OutlierControl:
    """How many samples to release at most, and what that rests on.

    Every number is public if `epsilon`, `delta`, `threshold` and `chance` were chosen without looking at the data.

    Attributes:
        size: The most samples to release; 0 if even one is too many.
        capped: Whether more than `LARGEST` would do.
        chance: The chance of at least one privacy outlier that was allowed.
        reached: The chance at this size, at most `chance`; 0 for no samples.
        share: The largest share of the population that are privacy outliers.
        epsilon: Of the Bayesian guarantee.
        delta: Of the Bayesian guarantee.
        threshold: A record is an outlier if its own delta, at this epsilon, is at least this.
    """

    size: int
    capped: bool
    chance: float
    reached: float
    share: float
    epsilon: float
    delta: float
    threshold: float

    @property
    def sentence(self) -> str:
        """The result in plain words, with what it assumes."""
        own = f"own delta at epsilon {epsilon_text(self.epsilon)} is {delta_text(self.threshold)} or more"
        share = f"At most {_percent(self.share)} of the population are privacy outliers, records whose {own}."
        asked = f"a chance of at most {_percent(self.chance)} that a privacy outlier is among them"
        if self.size == 0:
            return f"{share} Not even one sample can be released with {asked}. {ASSUMPTION}"
        many = "1 sample" if self.size == 1 else f"{self.size:,} samples"
        return f"{share} Up to {many}{' and more' if self.capped else ''} can be released with {asked}. {ASSUMPTION}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"assumption": ASSUMPTION}


def release_size(*, chance: float, epsilon: float, delta: float, threshold: float) -> OutlierControl:
    """Return how many samples may be released so that a privacy outlier among them stays improbable.

    The largest n with 1 - (1 - share)^n <= chance, where share = min(1, delta / threshold) is Markov's bound on the
    population whose own delta reaches the threshold.

    Args:
        chance: The allowed chance of at least one privacy outlier, in [1e-100, 1).
        epsilon: Of the Bayesian guarantee; infinite is allowed and shows in the sentence.
        delta: Of the Bayesian guarantee, in (0, 1).
        threshold: What makes an outlier, in [1e-100, 1]: its own delta at this epsilon reaches the threshold.

    Returns:
        The size and what it rests on. The size is exact for the share as a float, ties included on the safe side.

    Raises:
        ValueError: If an argument is out of range or NaN.

    Guarantee:
        None of its own: the bound on the share is the Bayesian guarantee's, but it speaks of samples of a generator
        only as far as those follow the population.

    References:
        Triastcyn, Data-Aware Privacy-Preserving Machine Learning, EPFL 2020, section 7.4.2.

    Examples:
        >>> found = release_size(chance=0.1, epsilon=1.0, delta=1e-8, threshold=1e-5)
        >>> found.size, round(found.reached, 4)
        (105, 0.0997)
    """
    allowed = _check.probability("chance", chance)
    _check.in_range("chance", chance, SMALLEST, 1.0)
    eps = _check.in_range("epsilon", epsilon, 0.0, math.inf)
    share = share_above(delta, threshold=_check.in_range("threshold", threshold, SMALLEST, 1.0))
    size = _largest_size(share, allowed)
    return OutlierControl(
        size=size,
        capped=size == LARGEST,
        chance=allowed,
        reached=outlier_probability(share, size=size) if size else 0.0,
        share=share,
        epsilon=eps,
        delta=float(delta),
        threshold=float(threshold),
    )


def _largest_size(share: float, chance: float) -> int:
    """Return the largest n up to LARGEST with (1 - share)^n >= 1 - chance."""
    with localcontext() as context:
        context.prec = _DIGITS
        clean, wanted = 1 - Decimal(share), 1 - Decimal(chance)
        return bisect_left(range(1, LARGEST + 1), True, key=lambda size: clean**size < wanted)


def _percent(share: float) -> str:
    """Return a share as a percentage, rounded up; a tiny one keeps its digits."""
    return success_text(share) if share >= 1e-4 else f"{round_up_text(100.0 * max(share, SMALLEST))}%"
