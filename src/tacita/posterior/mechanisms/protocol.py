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
        n: The public number of records; None in a part, whose size is private, and where people come and go.
        step: By how much replacing one record changes a single number; where people come and go, by how much a person
            changes all numbers together.
        summed: Whether a single number is a sum of values, not a count of records.
        prior: The prior over the cells' shares, if the posterior is wanted.
        rows: How many records of a person count, where people come and go; None where one record is replaced.
    """

    cells: int = 1
    n: int | None = None
    step: int = 1
    summed: bool = False
    prior: Dirichlet | None = None
    rows: int | None = None

    @property
    def numbers(self) -> int:
        """How many whole numbers are released: the first of two cells determines the other if n is public."""
        return 1 if self.cells == 2 and self.n is not None else self.cells

    @property
    def changed(self) -> int:
        """How many of the numbers one record can change: two if it moves from one cell to another.

        One, if people come and go: a change of `step` is seen best where it is all in one number (`GeometricNoise`).
        """
        return 1 if self.rows is not None else min(self.numbers, 2)


@runtime_checkable
class Mechanism(Protocol):
    """A way to release whole numbers within (epsilon, delta), for replacing one record.

    An implementation is a frozen dataclass whose fields are its options, in one file, and one entry of `MECHANISMS`.
    It loads numerical libraries in `calibrated` only, so that programs are checked without them.
    """

    name: ClassVar[str]
    for_people: ClassVar[bool] = False  # whether the noise is scaled to `Statistic.step` where people come and go
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = _check.in_range("epsilon", self.epsilon, 1e-4, LARGEST_EPSILON)
        delta = _check.in_range("delta", self.delta, 0.0, 0.5)
        if 0.0 < delta < SMALLEST_DELTA:
            raise ValueError(
                f"delta must be 0 or at least {SMALLEST_DELTA:g}, got {delta:g}: smaller values are lost in round-off."
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Self:
        """Return the mechanism with its default options, within a budget, of which it takes what it can use."""
        budget = {"epsilon": epsilon, "delta": delta}
        return cls(**{f.name: budget[f.name] for f in fields(cls) if f.init and f.name in budget})  # type: ignore[arg-type]

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
        options = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        shown = [f"{name}={_short(value)}" for name, value in options.items() if name != "delta" or value]
        return f"{self.name}({', '.join(shown)})"


def people_refusal(mechanism: Mechanism, statistic: Statistic) -> str:
    """Return why a mechanism cannot hide a person with several rows; empty if it can, or need not."""
    if statistic.rows is None or mechanism.for_people:
        return ""
    return f"{mechanism.name} hides one record, not a person with up to {statistic.rows}: use geometric or gaussian"


def _short(value: object) -> str:
    """Return an option; a number with few digits, unless that would be another number."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
