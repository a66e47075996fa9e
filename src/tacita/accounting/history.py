"""What was observed of records, step by step: the part of an accountant that is saved.

Norms are kept as counts at norm levels, so the state is exact and small, and serves any order or epsilon later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.levels import NORM_LEVELS
from tacita.accounting.spectra import products
from tacita.accounting.state import count_type, panel_from, panel_state, whole_numbers

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

COMPOSITIONS = ("panel", "hoelder")


class Sample(NamedTuple):
    """Records whose costs are estimated together.

    Their estimate e counts as repeat · e / root: Hölder's inequality takes the T-th root of a power T.

    Attributes:
        costs: From a cost table (orders, levels) to the records' costs (orders, n).
        weights: Shape (n,); how many records have each cost.
        steps: How many steps each cost covers.
        repeat: How often the estimate counts.
        root: The root to take.
    """

    costs: Callable[[Floats], Floats]
    weights: Counts
    steps: int
    repeat: int = 1
    root: int = 1


class History:
    """The norm levels at which records spent their steps.

    Args:
        composition: `panel` if the same records are followed all along, `hoelder` if every step has fresh ones.
        planned: The planned number of steps, or None.
        static: Whether each record's level is declared to stay the same.

    Raises:
        ValueError: If the arguments do not go together.
    """

    def __init__(self, composition: str, planned: int | None, *, static: bool) -> None:
        self.composition = _check.one_of("composition", composition, COMPOSITIONS)
        self.planned = None if planned is None else _check.count("steps", planned)
        self.static = static
        if static and composition != "panel":
            raise ValueError("levels='static' is about followed records: use composition='panel'.")
        if composition == "hoelder" and planned is None:
            raise ValueError("composition 'hoelder' needs steps=T, fixed before the first step.")
        self.taken = 0
        self.counts: Counts | None = None  # (records, levels), for a panel
        self.histograms: list[tuple[int, Counts]] = []  # (steps, records at each level), otherwise

    def charge(self, index: Counts, repeat: int) -> None:
        """Add `repeat` steps of records at the levels `index`.

        Raises:
            PrivacyError: If there are more steps than planned, or a static level changes; nothing is charged.
            ValueError: If a panel's number of records changes; nothing is charged.
        """
        if self.planned is not None and self.taken + repeat > self.planned:
            raise PrivacyError(
                f"The plan covers {self.planned} steps but this would be step {self.taken + repeat}, so epsilon "
                f"would be understated. Plan with steps={self.taken + repeat} before the first step."
            )
        if self.composition != "panel":
            self.histograms.append((repeat, np.bincount(index, minlength=len(NORM_LEVELS))))
            self.taken += repeat
            return
        if self.counts is None:
            self.counts = np.zeros((len(index), len(NORM_LEVELS)), dtype=self._count_type(repeat))
        elif self.static and not np.array_equal(index, self.counts.argmax(axis=1)):
            raise PrivacyError(
                "The norms changed although levels='static' was declared. Use levels='observed' for a reading."
            )
        if len(index) != len(self.counts):
            raise ValueError(
                f"norms must hold the same {len(self.counts)} records at every step, got {len(index)}; "
                "for fresh records each step use composition='hoelder'."
            )
        self.counts = self.counts.astype(self._count_type(self.taken + repeat), copy=False)  # before it can overflow
        self.counts[np.arange(len(index)), index] += repeat
        self.taken += repeat

    def _count_type(self, taken: int) -> np.dtype[Any]:
        """Return a type that holds every count now, and up to the planned end if there is a plan."""
        return count_type(max(taken, self.planned or 0))

    @property
    def panel(self) -> Counts:
        """How many steps each followed record spent at each level."""
        if self.counts is None:
            raise PrivacyError(
                f"composition {self.composition!r} follows no records through the run; this needs composition='panel'."
            )
        return self.counts

    def samples(self) -> list[Sample]:
        """Return what is estimated: the panel's total costs at once, or each step's costs to the power of all steps."""
        if self.composition == "panel":
            counts = self.panel
            ones = np.ones(len(counts), dtype=np.int64)
            return [Sample(lambda table: products(counts, table.T).T, ones, self.taken)]
        return fresh_samples(self.histograms, power=self.planned or 1)

    def state(self) -> dict[str, Any]:
        """Return the steps and the counts as plain data."""
        panel = {} if self.counts is None else {"panel": panel_state(self.counts)}
        return {**self.state_without_panel(), **panel}

    def state_without_panel(self) -> dict[str, Any]:
        """Return the steps and the histograms as plain data; a panel's counts are kept as a matrix elsewhere."""
        histograms = [[repeat, histogram.tolist()] for repeat, histogram in self.histograms]
        return {"taken": self.taken, "histograms": histograms}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take in what `state` wrote; refuse counts and steps that do not add up."""
        self.taken = _check.count("taken", state["taken"], low=0)
        self.counts = panel_from(state.get("panel"), self.taken, dtype=self._count_type(self.taken))
        self.histograms = [
            (_check.count("steps", repeat), whole_numbers(histogram, (len(NORM_LEVELS),)))
            for repeat, histogram in state["histograms"]
        ]
        if self.planned is not None and self.taken > self.planned:
            raise PrivacyError("state is damaged: more steps taken than planned.")
        if self.counts is not None and (self.counts.sum(axis=1) != self.taken).any():
            raise PrivacyError("state is damaged: a record's steps do not add up to the steps taken.")
        if self.histograms and sum(repeat for repeat, _ in self.histograms) != self.taken:
            raise PrivacyError("state is damaged: the histograms do not add up to the steps taken.")
        if self.static and self.counts is not None and (np.count_nonzero(self.counts, axis=1) != 1).any():
            raise PrivacyError("state is damaged: a record moved between levels declared static.")
        if self.histograms and (self.counts is not None or not all(h.sum() for _, h in self.histograms)):
            raise PrivacyError("state is damaged: its histograms hold no records, or it has a panel too.")
        if self.taken and (self.counts is None) == (self.composition == "panel"):
            raise PrivacyError("state is damaged: it holds no records for its composition.")


def fresh_samples(histograms: list[tuple[int, Counts]], *, power: int) -> list[Sample]:
    """Return one sample for each histogram of fresh records.

    Args:
        histograms: (steps, records at each level).
        power: T for Hölder's inequality over T steps. 1 multiplies the steps' expectations as if they were
            independent, which is no bound.
    """

    def sample(repeat: int, histogram: Counts) -> Sample:
        seen = np.flatnonzero(histogram)
        return Sample(lambda table: power * table[:, seen], histogram[seen], power, repeat, power)

    return [sample(repeat, histogram) for repeat, histogram in histograms]
