"""What every loader returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from tacita.data.schema import Schema

    Inputs = NDArray[np.float32]
    Targets = NDArray[np.int64] | NDArray[np.float32]
    Groups = Mapping[str, NDArray[np.str_]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Encoded records, and what may be said about them in public.

    Printing a Dataset shows neither a record nor how many there are.

    Attributes:
        name: The set's name, or the file's.
        inputs: float32. Images as (n, channels, height, width) in [0, 1]; tables as (n, features), each
            feature in [-1, 1].
        targets: int64 positions in `classes`; for regression float32 in [0, 1] (see `restore`).
        test_inputs: As `inputs`, held out; no records if there is no test file.
        test_targets: As `targets`.
        classes: The names of the classes; None means regression.
        feature_names: One per feature of a table; empty for images.
        groups: For the owner's tables: for each column, the value of each record ("(missing)" if it has none).
        test_groups: As `groups`.
        source: Where the records came from, for the run's record.
        nominal_size: The public size of `inputs`: documented or declared, never counted. None if not declared.
        terms: The licence.
        target_range: For regression, the public (low, high) that `targets` 0 and 1 stand for.
        schema: For tables, the public description that `decode` leads back to columns by.
        persons: Whose each record of `inputs` is, as a number; None if the schema names no column of ids.
        test_persons: The same for `test_inputs`; no person is in both.
    """

    name: str
    inputs: Inputs = field(repr=False)
    targets: Targets = field(repr=False)
    test_inputs: Inputs = field(repr=False)
    test_targets: Targets = field(repr=False)
    classes: tuple[str, ...] | None
    feature_names: tuple[str, ...] = field(default=(), repr=False)
    groups: Groups = field(default_factory=dict, repr=False)
    test_groups: Groups = field(default_factory=dict, repr=False)
    source: str
    nominal_size: int | None = None
    terms: str = ""
    target_range: tuple[float, float] | None = None
    schema: Schema | None = field(default=None, repr=False)
    persons: NDArray[np.int64] | None = field(default=None, repr=False)
    test_persons: NDArray[np.int64] | None = field(default=None, repr=False)

    def restore(self, values: Any) -> Any:
        """Return targets or predictions of a regression in the column's own units.

        Raises:
            ValueError: If this is a classification, whose targets are positions in `classes`.
        """
        if self.target_range is None:
            raise ValueError(f"{self.name} has classes, not a range to restore; use classes[target].")
        low, high = self.target_range
        return low + values * (high - low)
