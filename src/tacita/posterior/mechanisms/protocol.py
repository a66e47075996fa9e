"""What a mechanism is, and what it may know before it is used: plain descriptions, with no arithmetic in them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

from tacita import _check

if TYPE_CHECKING:
    from tacita.posterior.models import Dirichlet
    from tacita.posterior.plans import ReleasePlan

LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-12


@dataclass(frozen=True)
class Statistic:
    """The public facts about some whole numbers that are to be released.

    Attributes:
        cells: How many cells a histogram has; 1 for a single number.
        n: The public number of records; None in a part, whose size is private.
        step: By how much replacing one record changes a single number.
        summed: Whether a single number is a sum of values, not a count of records.
        prior: The prior over the cells' shares, if the posterior is wanted.
    """

    cells: int = 1
    n: int | None = None
    step: int = 1
    summed: bool = False
    prior: Dirichlet | None = None

    @property
    def numbers(self) -> int:
        """How many whole numbers are released: the first of two cells determines the other if n is public."""
        return 1 if self.cells == 2 and self.n is not None else self.cells

    @property
    def changed(self) -> int:
        """How many of the numbers one record can change: two if it moves from one cell to another."""
        return min(self.numbers, 2)


@runtime_checkable
class Mechanism(Protocol):
    """A way to release whole numbers within (epsilon, delta), for replacing one record.

    An implementation is a frozen dataclass whose fields are its options, in one file, and one entry of `MECHANISMS`.
    It loads numerical libraries in `calibrated` only, so that programs are checked without them.
    """

    name: ClassVar[str]
    epsilon: float
    delta: float

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Self:
        """Return the mechanism with its default options, within a budget."""

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Return what `best` may choose from: this mechanism with options worth comparing. None by default.

        Args:
            epsilon: The privacy loss they may have.
            delta: Their failure probability.
            statistic: What is released; those that refuse it are left out afterwards.
        """
        return ()

    def refusal(self, statistic: Statistic) -> str:
        """Return why a statistic cannot be released and what to use instead; empty, the default, if it can be."""
        return ""

    def is_proportional(self, statistic: Statistic) -> bool:
        """Return whether half the change costs half the epsilon, and no delta is spent; False by default."""
        return False

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return the noise that hides one record, and its certificate. Call `plan_release`, which checks first."""

    def __str__(self) -> str:
        options = [f"epsilon={_short(self.epsilon)}", f"delta={_short(self.delta)}" if self.delta else ""]
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        options += [f"{name}={getattr(self, name)!r}" for name in names if name not in ("epsilon", "delta")]
        return f"{self.name}({', '.join(option for option in options if option)})"


def checked_epsilon(epsilon: object) -> float:
    """Return an epsilon that a mechanism can be calibrated to."""
    return _check.in_range("epsilon", epsilon, 1e-4, LARGEST_EPSILON)


def checked_delta(delta: object) -> float:
    """Return a delta that a mechanism can be calibrated to; 0 is allowed."""
    checked = _check.in_range("delta", delta, 0.0, 0.5)
    if 0.0 < checked < SMALLEST_DELTA:
        raise ValueError(
            f"delta must be 0 or at least {SMALLEST_DELTA:g}, got {checked:g}: smaller values are lost in round-off."
        )
    return checked


def _short(x: float) -> str:
    """Return a number with few digits, unless that would be another number."""
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)
