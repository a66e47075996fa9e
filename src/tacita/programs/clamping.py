"""Numbers on a public grid: what a column becomes once it is clamped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tacita import _check
from tacita.programs.errors import ProgramError

LARGEST_UNITS = 10**9  # so that a sum over 10**9 records stays within 64 bits


@dataclass(frozen=True)
class Clamped:
    """A number on the grid `step` times a whole number from `lowest` to `highest`. Made by `clamp` and `map`."""

    lowest: int
    highest: int
    step: Fraction

    @property
    def low(self) -> float:
        """The lower bound."""
        return float(self.lowest * self.step)

    @property
    def high(self) -> float:
        """The upper bound."""
        return float(self.highest * self.step)

    def __str__(self) -> str:
        return f"a number in [{self.low:g}, {self.high:g}] in steps of {float(self.step):g}"


def _fitting_step(low: float, high: float) -> float:
    """Return the largest power of ten that both bounds are multiples of, at most a fiftieth of the width."""
    if not -1e300 < low < high < 1e300:
        return 1.0  # refused by the caller
    power = math.floor(math.log10((high - low) / 50.0) + 1e-9)
    ends = [Fraction(repr(low)), Fraction(repr(high))]
    for down in range(20):
        step = Fraction(10) ** (power - down)
        if all((end / step).denominator == 1 for end in ends):
            return float(step)
    return float(Fraction(10) ** power)


def clamped(name: str, low: object, high: object, step: object) -> Clamped:
    """Return the grid that a column's values are clamped and rounded to.

    Args:
        name: The column.
        low: The lower bound.
        high: The upper bound.
        step: What both bounds are multiples of; None for a power of ten, at most a fiftieth of the width.

    Raises:
        ProgramError: If the bounds are not on the grid, not finite, in the wrong order or too far from zero.
    """
    bounds = {"low": _check.number("low", low), "high": _check.number("high", high)}
    bounds["step"] = _fitting_step(**bounds) if step is None else _check.number("step", step)
    if not all(abs(value) < 1e300 for value in bounds.values()) or not bounds["step"] > 0:
        listed = ", ".join(f"{name}={value:g}" for name, value in bounds.items())
        raise ProgramError("T006", f"bounds must be finite and the step positive, got {listed}")
    if not bounds["low"] < bounds["high"]:
        raise ProgramError("T006", f"low must be below high, got low={bounds['low']:g} and high={bounds['high']:g}")
    exact = {bound: Fraction(repr(value)) for bound, value in bounds.items()}
    units = {bound: exact[bound] / exact["step"] for bound in ("low", "high")}
    for bound, unit in units.items():
        if unit.denominator != 1:
            below = unit.numerator // unit.denominator
            near = [f"{float(count * exact['step']):g}" for count in (below, below + 1)]
            raise ProgramError(
                "T006",
                f"{bound}={bounds[bound]:g} of {name!r} is not a whole multiple of step={bounds['step']:g}",
                f"the nearest ones are {near[0]} and {near[1]}",
            )
        if abs(unit) > LARGEST_UNITS:
            raise ProgramError(
                "T006",
                f"{bound}={bounds[bound]:g} is more than {LARGEST_UNITS:g} steps of {bounds['step']:g} from zero",
                "take a larger step",
            )
    return Clamped(int(units["low"]), int(units["high"]), exact["step"])
