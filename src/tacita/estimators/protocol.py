"""What an estimator is: an upper bound on a population's mean from a sample of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


class UpperMean(Protocol):
    """Bound the population mean of each row of a sample from above.

    Rows are readings of the same records; each row's bound holds on its own. For `averages="moments"` the values and
    the result are logarithms of what is averaged.
    """

    def __call__(self, values: Floats, /, *, weights: Counts, gamma: float, worst: Floats) -> Floats:
        """Return the bounds, shape (...).

        Args:
            values: Shape (..., n).
            weights: Shape (n,); how many records have each value.
            gamma: The probability with which a row's bound may fail.
            worst: Shape (...); the largest value that a record can have.
        """


@dataclass(frozen=True)
class Estimator:
    """One entry of the table of estimators.

    Attributes:
        bound: The bound itself.
        averages: `deltas`, each record's own δ(ε), or `moments`, the exponentials of each record's costs.
        model: `distribution-free`, or `model-based` if the bound rests on a model of the population.
    """

    bound: UpperMean
    averages: Literal["deltas", "moments"]
    model: Literal["distribution-free", "model-based"]
