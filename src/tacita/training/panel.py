"""Followed records: measured at public times, held to a level, charged for every step."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import spearmanr

from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS, BayesianAccountant, affordable, level_of
from tacita.accounting.filters import Budget
from tacita.accounting.state import panel_state
from tacita.training.plan import Plan
from tacita.training.records import Records

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_TOP = len(NORM_LEVELS) - 1


class Panel:
    """Records that are followed through a run: which, their levels now, and their accounts.

    A level is a function of the record and of the parameters at the time of measuring, which are released:
    nothing else enters, and it holds until the next measurement. With a budget a record that cannot pay for
    its level is held to the highest one it can pay for, or sits out, in silence.
    """

    def __init__(
        self, records: Records | None, indices: Counts, accountant: BayesianAccountant, *, budget: Budget | None = None
    ) -> None:
        self.records, self.indices, self.accountant, self.budget = records, indices, accountant, budget
        self.levels: Counts = np.full(len(indices), _TOP, dtype=np.int64)
        self.pending = 0
        self.mean_norms: Floats = np.zeros(len(indices))
        self.measured = 0

    def measure(self, norms: Floats, *, period: int) -> None:
        """Set the levels for the next `period` steps from norms over the clip norm."""
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

    def bounds(self, positions: Counts) -> Floats:
        """Return what the records at these positions of the panel may contribute, over the clip norm."""
        return np.asarray(NORM_LEVELS[self.levels[positions]])

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

    def with_lost(self, steps: int) -> Panel:
        """Return a copy that has lost so many steps; this one stays as it is."""
        made = copy.copy(self)
        made.accountant = copy.deepcopy(self.accountant)
        made.lose(steps)
        return made

    def counts(self) -> Counts:
        """Return the (records, levels) matrix of steps charged."""
        if self.accountant.taken == 0:
            return np.zeros((len(self.indices), len(NORM_LEVELS)), dtype=np.int64)
        return self.accountant.counts

    def drift(self) -> float:
        """Return the p-value of a rank test of the norms by position: small if records are ordered."""
        if len(self.indices) < 8 or np.ptp(self.mean_norms) == 0.0:
            return 1.0
        return float(spearmanr(np.arange(len(self.indices)), self.mean_norms).pvalue)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint."""
        self.settle()
        state = self.accountant.state_dict()
        state.pop("panel", None)
        tensors = {
            "indices": torch.from_numpy(self.indices.astype(np.int64)),
            "counts": torch.from_numpy(self.counts().astype(np.int32)),
            "levels": torch.from_numpy(self.levels.astype(np.int64)),
            "mean_norms": torch.from_numpy(self.mean_norms),
        }
        return tensors, {"accountant": state, "measured": self.measured}

    @classmethod
    def restore(cls, records: Records | None, tensors: Any, document: Any, *, budget: Budget | None) -> Panel:
        """Rebuild a panel from a checkpoint; what does not add up is refused."""
        counts = tensors["counts"].numpy().astype(np.int64)
        state = dict(document["accountant"])
        if state["taken"]:
            state["panel"] = panel_state(counts)
        accountant = BayesianAccountant.from_state(state)
        indices = tensors["indices"].numpy()
        if records is not None and len(indices) and (indices.min() < 0 or indices.max() >= len(records)):
            raise PrivacyError("The checkpoint follows records that this dataset does not have: is it another dataset?")
        panel = cls(records, indices, accountant, budget=budget)
        panel.levels = tensors["levels"].numpy()
        panel.mean_norms = tensors["mean_norms"].numpy()
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
        panels[name] = Panel(records, everyone, accountant, budget=plan.record_budget)
    return panels


def restored_panel(plan: Plan, parts: Mapping[str, Records], name: str, tensors: Any, document: Any) -> Panel:
    """Return a panel of a checkpoint, with the records that it follows."""
    if name not in parts:
        raise PrivacyError("This run follows held-out records: pass the same holdout=… to resume it.")
    return Panel.restore(parts[name], tensors, document, budget=plan.record_budget)
