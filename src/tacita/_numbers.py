"""How numbers are printed: once for everybody, and rounded to the safe side.

An upper bound is never shown smaller than it is, a lower bound never larger. Epsilons, and mu, have four significant
digits; shares are percentages with one decimal, or two below 1%; measured ones are rounded to the nearest.
"""

from __future__ import annotations

import math
from decimal import Decimal

_TINY = 1e-290  # below it the powers of ten that rounding needs are no numbers


def round_up_text(x: float, *, up: bool = True) -> str:
    """Format to four significant digits, rounded up (or, for lower bounds, down).

    Examples:
        >>> round_up_text(2.58341), round_up_text(2.58341, up=False)
        ('2.584', '2.583')
    """
    if x == 0.0 or math.isinf(x):
        return f"{x:g}"
    if abs(x) < _TINY:
        return f"{_TINY:g}" if up else "0"
    return f"{_rounded(x, 3 - math.floor(math.log10(abs(x))), up=up):.4g}"


def _rounded(x: float, places: int, *, up: bool) -> float:
    """Return `x` rounded to the safe side; what is a rounding error away from a shorter number becomes that number."""
    scale = 10.0**places
    return (math.ceil(x * scale - 1e-9) if up else math.floor(x * scale + 1e-9)) / scale


def factor_text(epsilon: float) -> str:
    """Format the factor e^ε by which probabilities may change, rounded up.

    Examples:
        >>> factor_text(1.0), factor_text(30.0)
        ('2.719', 'e^30')
    """
    return round_up_text(math.exp(epsilon)) if epsilon < 20 else f"e^{round_up_text(epsilon)}"


def percent_text(share: float) -> str:
    """Format a measured share as a percentage: one decimal, to the nearest; for an upper bound, see `success_text`.

    Examples:
        >>> percent_text(0.88079708), percent_text(0.5)
        ('88.1%', '50.0%')
    """
    return f"{share:.1%}"


def range_text(low: float, high: float, *, places: int = 3) -> str:
    """Format an interval, its ends rounded outwards.

    Examples:
        >>> range_text(0.51239, 0.634)
        '0.512 to 0.634'
    """
    return f"{_rounded(low, places, up=False):.{places}f} to {_rounded(high, places, up=True):.{places}f}"


def percent_range_text(low: float, high: float, *, places: int = 1) -> str:
    """Format an interval of shares as percentages, its ends rounded outwards.

    Examples:
        >>> percent_range_text(0.51239, 0.634), percent_range_text(0.51239, 0.634, places=0)
        ('51.2% to 63.4%', '51% to 64%')
    """
    return range_text(100.0 * low, 100.0 * high, places=places).replace(" to ", "% to ") + "%"


def epsilon_text(epsilon: float) -> str:
    """Format an epsilon, rounded up."""
    return "infinite" if math.isinf(epsilon) else round_up_text(epsilon)


def bound_texts(lower: float, upper: float) -> tuple[str, str]:
    """Format a lower bound, rounded down, and an upper bound, rounded up, with four significant digits.

    More are shown where they are needed to see that the lower one is larger.

    Examples:
        >>> bound_texts(2.71889, 3.0), bound_texts(0.5, math.inf)
        (('2.718', '3'), ('0.5', 'infinite'))
        >>> bound_texts(3.00041, 3.0)
        ('3.0004', '3')
    """
    texts = round_up_text(lower, up=False), epsilon_text(upper)
    for places in range(3, 9):
        if lower <= upper or float(texts[0]) > float(texts[1]):
            break
        texts = f"{_rounded(lower, places, up=False):.12g}", f"{_rounded(upper, places, up=True):.12g}"
    return texts


def delta_text(delta: float) -> str:
    """Format a delta, rounded up, without an exponent where that can be read.

    Examples:
        >>> delta_text(1e-5), delta_text(2.5e-9), delta_text(0.0)
        ('0.00001', '2.5e-9', '0')
    """
    text = round_up_text(delta)
    return f"{Decimal(text):f}" if delta == 0.0 or delta >= 1e-6 else text.replace("e-0", "e-")


def chance_text(delta: float) -> str:
    """Say a small probability as one in so many, rounded to the larger chance.

    Examples:
        >>> chance_text(1e-5), chance_text(3e-5)
        ('1 in 100,000', '1 in 33,333')
    """
    return "no chance at all" if delta == 0.0 else f"1 in {math.floor(1.0 / delta + 1e-9):,}"


def success_text(success: float) -> str:
    """Format an upper bound on a share as a percentage, rounded up.

    It has one decimal, two below 1%, and more where one would read as certainty.

    Examples:
        >>> success_text(0.7342), success_text(0.00281), success_text(0.99991), success_text(1.0)
        ('73.5%', '0.29%', '99.991%', '100%')
    """
    places = 4 if success < 0.01 else 3
    coarse = _rounded(success, places, up=True)
    return f"{100.0 * (coarse if coarse < 1.0 else _rounded(success, 5, up=True)):.5g}%"


def odds_text(success: float) -> str:
    """Say an upper bound on a success rate as so many times in 100, with the digits of `success_text`.

    Examples:
        >>> odds_text(0.5501), odds_text(0.99991)
        ('55.1 times in 100', '99.991 times in 100')
    """
    return f"{success_text(success)[:-1]} times in 100"


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tick_text(value: float) -> str:
    """Format a round number so that it fits beside an axis.

    Examples:
        >>> [tick_text(value) for value in (0.25, -2.0, 15_000.0, 2e6, 1e-4, 2.5e12)]
        ['0.25', '−2', '15,000', '2M', '10⁻⁴', '2.5·10¹²']
    """
    sign, size = "−" if value < 0.0 else "", abs(value)
    if size == 0.0 or 1e-3 <= size < 1e6:
        return f"{sign}{size:,g}"
    if size < 1e9 and size >= 1e6:
        return f"{sign}{size / 1e6:g}M"
    mantissa, power = f"{size:.3e}".split("e")
    tens = "10" + str(int(power)).translate(_SUPERSCRIPT)
    return sign + (tens if float(mantissa) == 1.0 else f"{float(mantissa):g}·{tens}")
