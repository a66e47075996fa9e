"""Gaussian noise on a public grid, sampled exactly: what decides is whole numbers, or proved inequalities.

A normal variable is drawn by rejection from a staircase above exp(-x²/2), as a real number of which further binary
digits are drawn whenever a decision needs them, and then scaled and rounded. The proof is in the documentation
(theory/noise).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacita import _check
from tacita._check import PrivacyError

if TYPE_CHECKING:
    from tacita._check import Counts

LARGEST_SCALE = 2**21  # so that scale times a place stays below 2^63
_LEAST_NOISE = 1 / 32  # a contribution then has at most 2^26 steps, and sums of its squares are exact in float64
_FINE = 20  # a step is 2^-20 to 2^-21 of the noise's standard deviation
_WIDTH = 128  # strips in one unit of x
_STRIPS = 5 * _WIDTH  # they reach up to x = 5; beyond it is the tail
_SLOTS = 2**16  # of equal probability; a strip is proposed as often as it has slots
_HEIGHT = 404  # slots for a strip of height 1
_PLACE, _UNIT = 32, 39  # at first x is known as (strip 2^32 + place) / 2^39, and less than one more
_COIN = 15  # binary digits of the coin that are drawn at first
_SLACK = 2.0**-30  # more than digits not drawn yet and the rounding of ten operations can change
_WORDS = 2**14  # drawn at once: few enough to stay in the processor's cache
_DIGITS = 32  # drawn at once where more are needed


@dataclass(frozen=True)
class Grid:
    """The public grid that contributions, noise and sums are on; it follows from clip norm and noise alone.

    Attributes:
        step: g, a power of two: multiplying by it, or dividing, is exact.
        scale: The standard deviation of the noise in steps: a whole number, and no less than what was declared.
    """

    step: float
    scale: int

    @classmethod
    def of(cls, clip_norm: float, noise_multiplier: float) -> Grid:
        """Return the grid for noise of standard deviation noise_multiplier * clip_norm.

        Args:
            clip_norm: The largest norm of a contribution.
            noise_multiplier: At least 2^-5.

        Raises:
            PrivacyError: If there is too little noise for whole numbers of 53 digits.
        """
        if not noise_multiplier >= _LEAST_NOISE:
            raise PrivacyError(f"Exact noise needs a noise_multiplier of at least 1/32, got {noise_multiplier:g}.")
        spread = Fraction(clip_norm) * Fraction(noise_multiplier)
        power = spread.numerator.bit_length() - spread.denominator.bit_length() - 1
        power += Fraction(2) ** (power + 1) <= spread
        step = Fraction(2) ** (power - _FINE)
        return cls(float(step), math.ceil(spread / step))

    def most(self, bound: float) -> int:
        """Return the largest sum of squares, in steps, of a contribution whose norm is within a bound."""
        return math.floor((Fraction(bound) / Fraction(self.step)) ** 2)


class _Staircase(NamedTuple):
    """What is proposed, for each slot or each strip; the strip after the last one stands for the tail."""

    places: Any  # of slots: the strip, at its place among the digits of x
    sure: Any  # of slots: a coin below this is accepted wherever in its strip x is
    slots: Any  # of strips: how many there are
    chances: Any  # of strips: the chance of acceptance at the left end, a float within 2^-50 of it


def rounded_gaussian(count: int, *, scale: int, rng: np.random.Generator) -> Counts:
    """Return independent draws of round(scale Z), Z standard normal.

    Args:
        count: How many.
        scale: The standard deviation before rounding, a whole number up to 2^21.
        rng: Where the bits come from. Its words are taken to be independent and uniform.

    Returns:
        (count,) int64.

    Guarantee:
        The law is exact: P(n) = Φ((n + ½)/scale) - Φ((n - ½)/scale) for every whole n (docs: theory/noise). The time
        that it takes depends on the draws, and on nothing else.

    Examples:
        >>> draws = rounded_gaussian(1000, scale=10, rng=np.random.default_rng(0))
        >>> draws.dtype, bool(9 < draws.std() < 11)
        (dtype('int64'), True)
    """
    _check.count("count", count, low=0)
    _check.count("scale", scale, high=LARGEST_SCALE)
    found, have = np.empty(count, dtype=np.int64), 0
    while have < count:
        missing = count - have
        some = _accepted(min(_WORDS, missing + missing // 64 + 16), scale, rng)[:missing]
        found[have : have + len(some)] = some
        have += len(some)
    return found


def _accepted(size: int, scale: int, rng: np.random.Generator) -> Counts:
    """Return what is accepted of so many proposals, in their order.

    A word has 16 digits for the slot, 15 of the coin, one for the sign, and 32 of the place in the strip.
    """
    stairs = _staircase()
    words = rng.integers(2**64 - 1, size=size, dtype=np.uint64, endpoint=True)
    slot = (words >> np.uint64(48)).view(np.int64)
    coin = (words >> np.uint64(33)).astype(np.uint16) & np.uint16(2**_COIN - 1)
    accepted = coin < stairs.sure[slot]
    x = stairs.places[slot] | words.astype(np.uint32)
    low = x * np.uint64(scale) + np.uint64(1 << (_UNIT - 1))
    high = low + np.uint64(scale)
    found = (low >> np.uint64(_UNIT)).view(np.int64)
    known = found == (high >> np.uint64(_UNIT)).view(np.int64)  # whatever the further digits of x are
    open_ = np.flatnonzero(~accepted)
    coins = coin[open_].astype(np.int64) << _DIGITS | rng.integers(2**_DIGITS, size=len(open_))
    under, unsure = _compared(x[open_], coins)
    accepted[open_] = under
    for j in np.flatnonzero(unsure).tolist():
        i = open_[j]
        number = _decided(int(x[i]), int(coins[j]), scale, rng)
        if number is not None:
            accepted[i], found[i], known[i] = True, number, True
    for i in np.flatnonzero(accepted & ~known).tolist():
        found[i] = _rounded(int(x[i]), _UNIT, scale, rng)
    found *= 1 - 2 * (words >> np.uint64(32) & np.uint64(1)).view(np.int64)
    kept: Counts = found[accepted]
    return kept


def _compared(x: Any, coins: Any) -> tuple[Any, Any]:
    """Return which coins are surely below the chance of acceptance at x, and of which that is unsure.

    With L the left end of the strip and d = (x² - L²)/2 in [0, 2^-4), exp(-d) is between the sums of its series up to
    the third and the second power.
    """
    stairs = _staircase()
    strip, place = (x >> np.uint64(_PLACE)).view(np.int64), (x & np.uint64(2**_PLACE - 1)).astype(np.float64)
    chance, u, coin = stairs.chances[strip], place * 2.0**-_PLACE, coins * 2.0 ** -(_COIN + _DIGITS)
    d = u * (2.0 * strip + u) / (2.0 * _WIDTH**2)
    most = chance * (1.0 - d + d * d / 2.0)
    under = coin < most - chance * (d * d * d / 6.0) - _SLACK
    return under, ~under & ~(coin > most + _SLACK)  # the tail's chance is not a number, and all is unsure


def _decided(x: int, coin: int, scale: int, rng: np.random.Generator) -> int | None:
    """Return what a proposal comes to, by exact arithmetic; None if it is rejected."""
    strip, digits = x >> _PLACE, _UNIT
    if strip < _STRIPS:
        factor = (_HEIGHT, int(_staircase().slots[strip]))
    else:  # the tail has one slot: half of it for the first unit, a quarter for the second, and so on
        units = 0
        while rng.integers(2):
            units += 1
        x, digits = x - (strip << _PLACE) + ((_STRIPS // _WIDTH + units) << _PLACE), _PLACE
        factor = (_HEIGHT * _WIDTH << (units + 1), 1)
    more = _COIN + _DIGITS
    while True:  # is the coin below factor exp(-x²/2)?
        least, most = _exp_bounds((x + 1) ** 2, 2 << 2 * digits, more)[0], _exp_bounds(x**2, 2 << 2 * digits, more)[1]
        if (coin + 1) * factor[1] <= factor[0] * least:
            return _rounded(x, digits, scale, rng)
        if coin * factor[1] >= factor[0] * most:
            return None
        x, digits = x << _DIGITS | int(rng.integers(2**_DIGITS)), digits + _DIGITS
        coin, more = coin << _DIGITS | int(rng.integers(2**_DIGITS)), more + _DIGITS


def _rounded(x: int, digits: int, scale: int, rng: np.random.Generator) -> int:
    """Return round(scale X) for an X of which so many binary digits are known; the others are drawn as needed."""
    while True:
        low = (scale * x << 1) + (1 << digits)
        number = low >> (digits + 1)
        if number == (low + (scale << 1)) >> (digits + 1):
            return number
        x, digits = x << _DIGITS | int(rng.integers(2**_DIGITS)), digits + _DIGITS


def _exp_bounds(numerator: int, denominator: int, digits: int) -> tuple[int, int]:
    """Return whole numbers below and above 2^digits exp(-numerator / denominator), for a quotient that is not negative.

    With h halvings y = quotient / 2^h is at most 1/2. The terms of the series of exp(y) are rounded down, or up, and
    what follows a term is at most as much again. Then 1 / exp(y) is squared h times, rounded down, or up.
    """
    halvings = max(0, (numerator // denominator + 1).bit_length() + 1)
    places = digits + halvings + 16
    one = 1 << places
    low_y = (numerator << places) // (denominator << halvings)
    high_y = low_y + 1
    low, high, low_term, high_term, k = one, one, one, one, 0
    while high_term > 1:
        k += 1
        low_term = low_term * low_y // (k * one)
        high_term = -(-high_term * high_y // (k * one))
        low, high = low + low_term, high + high_term
    high += high_term
    low, high = one * one // high, -(-one * one // low)
    for _ in range(halvings):
        low, high = low * low >> places, -(-high * high >> places)
    return low >> (places - digits), -(-high >> (places - digits))


@lru_cache(maxsize=1)
def _staircase() -> _Staircase:
    """Return the proposal: strip b has at least _HEIGHT exp(-(b/128)²/2) slots, and what is left goes to the first."""
    bounds = [_exp_bounds(b * b, 2 * _WIDTH**2, 64) for b in range(_STRIPS + 1)]
    slots = np.array([-(-_HEIGHT * high >> 64) for _, high in bounds[:-1]] + [1])
    slots[: _SLOTS - slots.sum()] += 1
    strips = np.repeat(np.arange(_STRIPS + 1), slots)
    sure = [(_HEIGHT * least << _COIN) // (int(n) << 64) for (least, _), n in zip(bounds[1:], slots[:-1], strict=True)]
    chances = [_HEIGHT * least / 2**64 / int(n) for (least, _), n in zip(bounds[:-1], slots[:-1], strict=True)]
    return _Staircase(
        places=strips.astype(np.uint64) << np.uint64(_PLACE),
        sure=np.array([*sure, 0], dtype=np.uint16)[strips],
        slots=slots,
        chances=np.array([*chances, np.nan]),
    )
