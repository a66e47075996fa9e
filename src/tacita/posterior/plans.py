"""What will be done to a few whole numbers, and what is proved about it: planned from public facts, then drawn once."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _codec
from tacita._check import PrivacyError
from tacita.assumptions import assume
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.ledger import Ledger, is_there
from tacita.mechanisms.finite import ROUND_OFF
from tacita.posterior import samplers
from tacita.posterior.enumeration import states
from tacita.posterior.mechanisms.protocol import people_refusal
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.mechanisms.finite import FiniteCurve
    from tacita.posterior.mechanisms import Mechanism, Statistic
    from tacita.posterior.noise import Noise


_ROUND_OFF = 1e-13  # of epsilon, relatively, and of delta
_POINTS = (24, 160)  # of a certificate's curve: fewer for large tables
_ENTRIES = 2**26  # of tables, looked at for a curve


@dataclass(frozen=True)
class Certificate:
    """The exact privacy curve of what was released.

    Attributes:
        how: What it was computed from.
    """

    curve: FiniteCurve
    how: str

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that holds with this epsilon, rounded up."""
        return self.curve.delta(epsilon)

    def epsilon(self, delta: float = 0.0) -> float:
        """Return the smallest epsilon that holds with this delta, rounded up."""
        return self.curve.epsilon(delta)

    @cached_property
    def profile(self) -> Profile:
        """The curve at up to 160 epsilons, as what an attacker can do; between them it is rounded up."""
        pure = self.epsilon(0.0)
        last = pure if math.isfinite(pure) else self.epsilon(2.0 * ROUND_OFF)
        if last == 0.0:
            return Profile((0.0,), (self.delta(0.0),))
        if math.isinf(last):
            return Profile.of_pair(last, 0.0)
        points = int(np.clip(_ENTRIES // max(1, self.curve.rows.shape[1] * len(self.curve.pairs)), *_POINTS))
        at = np.asarray(last * np.linspace(0.0, 1.0, points) ** 1.5, dtype=np.float64)
        return Profile.of_curve(lambda grid: np.array([self.delta(float(eps)) for eps in grid]), at)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: how it was computed, and some points of the curve."""
        pure = self.epsilon(0.0)
        points = np.linspace(0.0, pure if math.isfinite(pure) else 10.0, 9).tolist()
        curve = [{"epsilon": epsilon, "delta": self.delta(epsilon)} for epsilon in points]
        return {"how": self.how, "pure_epsilon": _codec.to_plain(pure), "curve": curve}


@dataclass(frozen=True)
class Candidate:
    """A mechanism that was compared, and what it was judged by; smaller is better."""

    mechanism: Mechanism
    distance: float
    measure: str = "expected Hellinger distance"


@dataclass(frozen=True)
class ReleasePlan:
    """What will be done to the numbers, and what is proved about it. Made without them.

    Attributes:
        used: The mechanism, `best` replaced by what it chose.
        statistic: What is released.
        certificate: The exact privacy curve.
        noise: Independent noise on each number, or None for a table.
        table: For the exponential mechanism: a row of probabilities for each state.
        compared: What `best` chose from, the best first.
    """

    used: Mechanism
    statistic: Statistic
    certificate: Certificate
    noise: Noise | None = None
    table: Floats | None = None
    compared: tuple[Candidate, ...] = ()

    @property
    def source(self) -> Noise:
        """The noise of a plan that has no table."""
        if self.noise is None:
            raise RuntimeError("this plan has a table, not noise")
        return self.noise

    def prepare(self) -> None:
        """Make sure that the noise can be drawn. Call it before charging."""
        if self.noise is not None:
            self.noise.prepare()

    def draw(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return what leaves the process, for the true whole numbers. Charge before calling it."""
        if self.table is None:
            return self.source.draw(values)
        if self.statistic.n is not None and len(values) < self.statistic.cells:  # a table is over all cells
            values = (*values, self.statistic.n - sum(values))
        listed = states(len(values), int(sum(values)))
        row = int(np.flatnonzero((listed == np.array(values)).all(axis=1))[0])
        return tuple(int(count) for count in listed[samplers.pick(self.table[row])])

    @property
    def cost(self) -> dict[str, Any]:
        """What a ledger is charged: the curve, and costs at each order if they are tighter than (epsilon, delta)."""
        promised = self.guarantee()
        costs = self.noise.renyi_costs(self.statistic.step) if self.noise is not None else None
        known = {"pure": promised.epsilon, "delta": self.used.delta} if costs is None else {"costs": costs}
        return {**known, "curve": promised.profile}

    def guarantee(self) -> Guarantee:
        """Return what is promised: the certificate's figure, never more than what was asked for."""
        epsilon = max(SMALLEST_EPSILON, min(self.certificate.epsilon(self.used.delta), self.used.epsilon))
        rows = self.statistic.rows
        size = assume("public-size") if rows is None else assume("rows-capped", rows=rows)
        return Guarantee(
            kind="worst_case",
            epsilon=epsilon,
            delta=self.used.delta,
            method=self.certificate.how,
            neighbours="replace_one" if rows is None else "add_remove",
            unit="record" if rows is None else "person",
            sampling="none",
            mechanism=(("scale", self.noise.scale),) if self.noise else (),
            assumptions=(size, assume("drawn-once")),
            publishable=True,
            profile=self.certificate.profile & Profile.of_pair(epsilon, self.used.delta),
        )


def plan_release(mechanism: Mechanism, statistic: Statistic) -> ReleasePlan:
    """Return what a mechanism will do to a statistic, and what is proved about it. No data are needed.

    Args:
        mechanism: Its budget and options.
        statistic: What is released.

    Raises:
        PrivacyError: If the mechanism cannot release the statistic, with what to use instead; or if its own certificate
            does not keep its budget.

    Guarantee:
        The plan's certificate keeps the mechanism's (epsilon, delta), up to round-off.
    """
    if problem := mechanism.refusal(statistic) or people_refusal(mechanism, statistic):
        raise PrivacyError(f"{mechanism} cannot be used here: {problem}.")
    plan = mechanism.calibrated(statistic)
    if not plan.certificate.delta(mechanism.epsilon * (1.0 + _ROUND_OFF)) <= mechanism.delta + _ROUND_OFF:
        raise PrivacyError(f"{mechanism} does not keep its budget: its certificate says more. Correct its calibration.")
    return plan


def noise_plan(mechanism: Mechanism, statistic: Statistic, noise: Noise, how: str) -> ReleasePlan:
    """Return the plan of a mechanism that adds independent noise to each number.

    Args:
        mechanism: What chose the noise.
        statistic: What is released.
        noise: The noise.
        how: What its privacy curve was computed from.
    """
    curve = noise.curve(statistic.step, statistic.changed)
    return ReleasePlan(mechanism, statistic, Certificate(curve, how), noise)


def charge(
    ledger: Ledger | str | os.PathLike[str] | None,
    name: str,
    description: str,
    cost: dict[str, Any],
    *,
    neighbours: str = "replace_one",
    unit: str = "record",
) -> None:
    """Charge a ledger for a release, if there is one. Nothing may be drawn before this has returned.

    Args:
        ledger: A ledger for these neighbours, or its URL or file, which is created if it is missing; or None.
        name: What the release is called in the ledger.
        description: What it is, for people.
        cost: What `Ledger.release` takes: `pure` and `delta`, or `costs`.
        neighbours: What the cost is for.
        unit: Whom it is for.
    """
    if ledger is None:
        return
    if not isinstance(ledger, Ledger):
        found = is_there(ledger)
        with Ledger.open(ledger) if found else Ledger.create(ledger, neighbours=neighbours, unit=unit) as book:
            charge(book, name, description, cost, neighbours=neighbours, unit=unit)
        return
    ledger.release(name, **cost, description=description, neighbours=neighbours, unit=unit)


def scale_for(change: int, epsilon: float) -> float:
    """Return change / epsilon, rounded up, so that the noise's exact rational rate is at most epsilon / change."""
    scale = change / epsilon
    while Fraction(change) > Fraction(scale) * Fraction(repr(float(epsilon))):  # 0.1 is meant as a tenth
        scale = math.nextafter(scale, math.inf)
    return scale
