"""Figures as a label prints them, rounded to the safe side.

An upper bound is never shown smaller than it is, a lower bound never larger.
"""

from __future__ import annotations

import math
from decimal import Decimal

from tacita.guarantee import percent_text, round_up_text


def epsilon_text(epsilon: float) -> str:
    """Format an epsilon, rounded up."""
    return "infinite" if math.isinf(epsilon) else round_up_text(epsilon)


def column_text(epsilon: float) -> str:
    """Format an epsilon for a column of them: three decimals, rounded up.

    Examples:
        >>> column_text(0.31801), column_text(2.0)
        ('0.319', '2.000')
    """
    return epsilon_text(epsilon) if epsilon >= 1000.0 else f"{math.ceil(epsilon * 1000.0 - 1e-9) / 1000.0:.3f}"


def bound_texts(lower: float, upper: float) -> tuple[str, str]:
    """Format a lower bound, rounded down, and an upper bound, rounded up, with three decimals.

    More decimals are shown where they are needed to see that the lower one is larger.

    Examples:
        >>> bound_texts(2.71889, 3.0), bound_texts(0.5, math.inf)
        (('2.718', '3.000'), ('0.500', 'infinite'))
        >>> bound_texts(3.00041, 3.0)
        ('3.0004', '3.0000')
    """
    for places in range(3, 9):
        low, high = _down(lower, places), _up(upper, places)
        if lower <= upper or low > high:
            break
    return f"{low:,.{places}f}", f"{high:,.{places}f}" if math.isfinite(high) else "infinite"


def _down(x: float, places: int) -> float:
    return math.floor(x * 10**places + 1e-9) / 10**places if x < 1e9 else x


def _up(x: float, places: int) -> float:
    return math.ceil(x * 10**places - 1e-9) / 10**places if x < 1e9 else x


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


def times(success: float) -> tuple[int, int]:
    """Return (right, tries): a success rate as whole numbers, rounded up, with as few tries as tell it from certainty.

    Examples:
        >>> times(0.7342), times(0.9933), times(1.0)
        ((74, 100), (994, 1000), (100, 100))
    """
    for tries in (100, 1000, 10_000, 100_000):
        right = math.ceil(success * tries - 1e-9)
        if right < tries:
            return right, tries
    return 100, 100


def success_text(success: float) -> str:
    """Format a success rate as a percentage with one decimal, or with more where that would read as certainty.

    Examples:
        >>> success_text(0.7342), success_text(0.99991), success_text(1.0)
        ('73.5%', '99.991%', '100%')
    """
    coarse = math.ceil(success * 1000.0 - 1e-9) / 1000.0
    return percent_text(coarse if coarse < 1.0 else success)


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
