"""Followed records: measured at public times, held to a level, charged for every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import spearmanr

from tacita.accounting import NORM_LEVELS, BayesianAccountant, affordable, level_of
from tacita.accounting.filters import Budget
from tacita.assumptions import Assumption, assume
from tacita.training.plan import Plan
from tacita.training.records import Records

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_FALSE_ALARMS = 0.01  # of the test for ordered data
_FEWEST = 8  # followed, so that the test can find something


class Panel:
    """Records that are followed through a run: which, their levels now, and their accounts.

    A level is a function of the record and of the parameters at the time of measuring, which are released:
    nothing else enters, and it holds until the next measurement. With a budget a record that cannot pay for
    its level is held to the highest one it can pay for, or sits out, in silence.

    Args:
        indices: Which records are followed.
        accountant: Their accounts.
        budget: What each may spend.
    """

    def __init__(self, indices: Counts, accountant: BayesianAccountant, *, budget: Budget | None = None) -> None:
        self.indices, self.accountant, self.budget = indices, accountant, budget
        self.levels: Counts = np.full(len(indices), len(NORM_LEVELS) - 1, dtype=np.int64)
        self.pending = 0
        self.mean_norms: Floats = np.zeros(len(indices))
        self.measured = 0

    def measure(self, norms: Floats, *, period: int) -> None:
        """Set the levels for the next `period` steps from norms of contributions, over the clip norm."""
        self.settle()
        clipped = np.minimum(norms, 1.0)
        self.measured += 1
        self.mean_norms += (clipped - self.mean_norms) / self.measured
        wanted = level_of(clipped)
        if self.budget is not None:
            wanted = affordable(
                self.budget,
                self.counts(),
                wanted,
                steps=period,
                sample_rate=self.accountant.sample_rate,
                noise_multiplier=self.accountant.noise_multiplier,
            )
        self.levels = wanted

    def tick(self) -> None:
        """Note that a step was taken at the current levels."""
        self.pending += 1

    def settle(self) -> None:
        """Charge the steps taken since the last measurement."""
        if self.pending:
            self.accountant.step(NORM_LEVELS[self.levels], steps=self.pending)
            self.pending = 0

    def lose(self, steps: int) -> None:
        """Charge steps of which nothing is known any more, at the clip bound."""
        self.settle()
        if steps:
            self.accountant.step(np.ones(len(self.indices)), steps=steps)

    def counts(self) -> Counts:
        """Return the (records, levels) matrix of steps charged."""
        if self.accountant.taken == 0:
            return np.zeros((len(self.indices), len(NORM_LEVELS)), dtype=np.int8)
        return self.accountant.counts

    def ordered(self) -> bool:
        """Return whether the norms change along the order of those followed, by a rank test."""
        if np.ptp(self.mean_norms) == 0.0:
            return False
        return float(spearmanr(np.arange(len(self.indices)), self.mean_norms).pvalue) < _FALSE_ALARMS

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint."""
        self.settle()
        tensors = {
            "indices": torch.from_numpy(self.indices.astype(np.int64)),
            "counts": torch.from_numpy(self.counts()),
            "levels": torch.from_numpy(self.levels.astype(np.int64)),
            "mean_norms": torch.from_numpy(self.mean_norms),
        }
        return tensors, {"accountant": self.accountant.state_without_panel(), "measured": self.measured}

    @classmethod
    def restore(cls, tensors: Any, document: Any, *, budget: Budget | None) -> Panel:
        """Rebuild a panel from a checkpoint; what does not add up is refused.

        Args:
            tensors: What `state` returned first.
            document: What it returned second.
            budget: What each record may spend.
        """
        state = dict(document["accountant"])
        if state["taken"]:
            state["panel"] = tensors["counts"].numpy()
        panel = cls(tensors["indices"].numpy(), BayesianAccountant.from_state(state), budget=budget)
        panel.levels, panel.mean_norms = tensors["levels"].numpy(), tensors["mean_norms"].numpy()
        panel.measured = int(document["measured"])
        return panel


def new_panels(plan: Plan, parts: Mapping[str, Records], size: int, *, rng: np.random.Generator) -> dict[str, Panel]:
    """Return who is followed: everybody where every record has its own bound, else `size` records of each part.

    Args:
        plan: The mechanism.
        parts: Training and held-out records.
        size: How many of each; 0 follows nobody.
        rng: Who is drawn.
    """
    panels = {}
    for name, records in parts.items():
        if size == 0 and plan.individual_every is None:
            continue
        everyone = np.arange(len(records))
        if plan.individual_every is None and size < len(records):
            everyone = np.sort(rng.choice(everyone, size, replace=False))
        accountant = BayesianAccountant(
            sample_rate=plan.sample_rate,
            noise_multiplier=plan.noise_multiplier,
            steps=plan.steps,
            budget=plan.certificate,
            tolerated=plan.tolerated,
        )
        panels[name] = Panel(everyone, accountant, budget=plan.record_budget)
    return panels


def order_checks(panels: Mapping[str, Panel], *, ordered: str, unordered: str) -> tuple[Assumption, ...]:
    """Return what a rank test says of the order of each panel that is large enough for one.

    Args:
        panels: By name.
        ordered: The code where norms change along the order.
        unordered: The code where they do not.
    """
    tested = {name: panel for name, panel in panels.items() if len(panel.indices) >= _FEWEST}
    return tuple(assume(ordered if panel.ordered() else unordered, panel=name) for name, panel in tested.items())
