"""Followed records: measured at public times, held to a level, charged for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import spearmanr

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS, BayesianAccountant, affordable, level_of
from tacita.accounting.filters import Budget
from tacita.accounting.state import whole_numbers
from tacita.accounting.unmeasured import Sampled, measuring_rate
from tacita.assumptions import Assumption, assume
from tacita.training.plan import Plan

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_FALSE_ALARMS = 0.01  # of the test for ordered data
_FEWEST = 8  # followed, so that the test can find something
_TOO_LOW = 1e-3  # of delta: how often a record's own figure may be too low where some steps were not measured
_TOO_LOW_OF_SHARES = 0.05  # the same for shares, which pay for it by a slightly higher rank
_TOP = len(NORM_LEVELS) - 1


class Panel:
    """Records that are followed through a run: which, their levels now, and their accounts.

    A level is a function of the record and of the parameters at the time of measuring, which are released:
    nothing else enters, and it holds until the next measurement. With a budget a record that cannot pay for
    its level is held to the highest one it can pay for, or sits out, in silence.

    With a rate below 1 each record is measured at a step by a coin of its own, for that step alone; what it may have
    spent in the other steps is bounded when an account is asked for.

    Args:
        indices: Which records are followed.
        accountant: Their accounts; of no step where the rate is below 1.
        budget: What each may spend.
        rate: The chance with which a record is measured at a step.
    """

    def __init__(
        self, indices: Counts, accountant: BayesianAccountant, *, budget: Budget | None = None, rate: float = 1.0
    ) -> None:
        self.indices, self.budget, self.rate = indices, budget, rate
        self._accountant = accountant
        self.levels: Counts = np.full(len(indices), _TOP, dtype=np.int64)
        self.pending = 0
        self.mean_norms: Floats = np.zeros(len(indices))
        self.measured = 0
        self.places: Counts = np.arange(len(indices))  # of those measured last
        self._seen, self._steps = np.zeros((len(indices) if rate < 1.0 else 0, len(NORM_LEVELS)), dtype=np.int64), 0

    def draw(self, rng: np.random.Generator) -> Counts:
        """Return which records are measured before the next step: those whose coins say so."""
        self.places = np.flatnonzero(rng.random(len(self.indices)) < self.rate)
        self.levels = np.zeros(len(self.places), dtype=np.int64)
        return self.indices[self.places]

    def measure(self, norms: Floats, *, period: int) -> None:
        """Set the levels for the next `period` steps from norms of contributions, over the clip norm."""
        self.settle()
        clipped = np.minimum(norms, 1.0)
        self.measured += 1
        times = self.measured if self.rate == 1.0 else 1 + self._seen[self.places].sum(1)
        self.mean_norms[self.places] += (clipped - self.mean_norms[self.places]) / times
        wanted = level_of(clipped)
        if self.budget is not None:
            wanted = affordable(
                self.budget,
                self.counts(),
                wanted,
                steps=period,
                sample_rate=self._accountant.sample_rate,
                noise_multiplier=self._accountant.noise_multiplier,
            )
        self.levels = wanted

    def tick(self) -> None:
        """Note that a step was taken at the current levels."""
        if self.rate == 1.0:
            self.pending += 1
            return
        self._seen[self.places, self.levels] += 1
        self._steps += 1
        self.places = np.empty(0, dtype=np.int64)

    def settle(self) -> None:
        """Charge the steps taken since the last measurement."""
        if self.pending:
            self._accountant.step(NORM_LEVELS[self.levels], steps=self.pending)
            self.pending = 0

    def lose(self, steps: int) -> None:
        """Charge steps of which nothing is known any more, at the clip bound."""
        self.settle()
        if steps and self.rate == 1.0:
            self._accountant.step(np.ones(len(self.indices)), steps=steps)
        elif steps:
            self._seen[:, _TOP] += steps  # as if measured: a crash may have come because records were
            self._steps += steps

    def account(self, delta: float) -> BayesianAccountant:
        """Return the records' account of all steps taken.

        Args:
            delta: Of the figures that are wanted. A record's own are too low with a thousandth of it at most, over the
                steps at which it was measured; never if that was at every step.
        """
        return self._account(delta * _TOO_LOW)

    def account_for_shares(self) -> BayesianAccountant:
        """Return the account for shares of the population, which allow for records whose figures are too low."""
        return self._account(_TOO_LOW_OF_SHARES)

    def _account(self, failure: float) -> BayesianAccountant:
        self.settle()
        if self.rate == 1.0:
            return self._accountant
        return self._accountant.completed(self._seen, Sampled(self._steps, self.rate, failure))

    def counts(self) -> Counts:
        """Return the (records, levels) matrix of steps that were measured, or are charged at the clip bound."""
        if self.rate < 1.0:
            return self._seen
        if self._accountant.taken == 0:
            return np.zeros((len(self.indices), len(NORM_LEVELS)), dtype=np.int8)
        return self._accountant.counts

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
        accountant = self._accountant.state_without_panel()
        return tensors, {"accountant": accountant, "measured": self.measured, "rate": self.rate, "steps": self._steps}

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
        rate = float(document.get("rate", 1.0))  # checkpoints of earlier versions measured every step
        panel = cls(tensors["indices"].numpy(), BayesianAccountant.from_state(state), budget=budget, rate=rate)
        panel.levels, panel.mean_norms = tensors["levels"].numpy(), tensors["mean_norms"].numpy()
        panel.measured = int(document["measured"])
        if rate < 1.0:
            panel._seen, panel._steps = (
                whole_numbers(tensors["counts"].numpy(), panel._seen.shape),
                int(document["steps"]),
            )
            if (panel._seen.sum(1) > panel._steps).any():
                raise PrivacyError("The checkpoint is damaged: records were measured in more steps than were taken.")
        return panel


def new_panels(
    plan: Plan, parts: Mapping[str, Sized], size: int, *, rng: np.random.Generator, rate: float | None = None
) -> dict[str, Panel]:
    """Return who is followed: everybody where every record has its own bound, else `size` records of each part.

    Args:
        plan: The mechanism.
        parts: Training and held-out records, or persons.
        size: How many of each; 0 follows nobody.
        rng: Who is drawn.
        rate: The chance with which they are measured at a step; None for `measuring_rate`. With bounds or a
            certificate, which hold at every step, all of them are measured as the plan says.
    """
    panels: dict[str, Panel] = {}
    if plan.individual_every is not None or plan.certificate is not None:
        if rate not in (None, 1.0):
            raise ValueError("panel_rate is for panels without individual bounds or a certificate: leave it out.")
        rate = 1.0
    elif rate is None:
        rate = measuring_rate(plan.steps, plan.batch_size, size * len(parts))
    else:
        _check.in_range("panel_rate", rate, 1e-3, 1.0)
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
        panels[name] = Panel(everyone, accountant, budget=plan.record_budget, rate=rate)
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
