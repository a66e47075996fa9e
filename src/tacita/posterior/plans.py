"""What will be done to a few whole numbers, and what is proved about it: made from public things, then drawn once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.levels import ORDERS
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.ledger import Ledger
from tacita.posterior import finite, noise
from tacita.posterior.scores import states

if TYPE_CHECKING:
    from tacita._check import Counts, Floats
    from tacita.mechanisms.finite import FiniteCurve
    from tacita.posterior.mechanisms import Request
    from tacita.posterior.models import Dirichlet

_TAIL = 45.0  # noise beyond this many scales has a chance below 1e-19


@dataclass(frozen=True)
class Noise:
    """Independent exact noise on whole numbers: `geometric`, `laplace` (rounded) or `gaussian`, with its scale."""

    kind: str
    scale: float

    def draw(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the values with noise."""
        return _SAMPLERS[self.kind](values, self.scale)

    def log_chance(self, gaps: Counts) -> Floats:
        """Return the log probability of noise of these sizes."""
        size = np.abs(gaps).astype(np.float64)
        if self.kind == "geometric":
            return -size / self.scale + math.log(math.tanh(0.5 / self.scale))
        if self.kind == "gaussian":
            return -0.5 * (size / self.scale) ** 2 - math.log(self.scale * math.sqrt(2.0 * math.pi))
        away = -(size - 0.5) / self.scale + math.log(-0.5 * math.expm1(-1.0 / self.scale))
        return np.where(size == 0, math.log(-math.expm1(-0.5 / self.scale)), away)

    @property
    def reach(self) -> int:
        """How far noise practically goes."""
        return math.ceil((14.0 if self.kind == "gaussian" else _TAIL) * self.scale) + 1

    @property
    def sd(self) -> float:
        """The standard deviation."""
        decay, odds = math.exp(-1.0 / self.scale), -math.expm1(-1.0 / self.scale)
        if self.kind == "geometric":
            return math.sqrt(2.0 * decay) / odds
        if self.kind == "laplace":
            return math.sqrt(math.exp(0.5 / self.scale) * decay * (1.0 + decay)) / odds
        gaps, chances = self._gaussian()
        return float(math.sqrt(2.0 * chances @ gaps**2))

    def half_width(self, level: float) -> int:
        """Return the smallest whole number that noise stays within with at least this probability."""
        outside = 1.0 - _check.probability("level", level)
        if self.kind == "geometric":  # it is beyond w with probability 2 e^{-(w+1)/scale} / (1 + e^{-1/scale})
            return max(0, math.ceil(-self.scale * math.log(outside * (1.0 + math.exp(-1.0 / self.scale)) / 2.0) - 1.0))
        if self.kind == "laplace":
            return max(0, math.ceil(-self.scale * math.log(outside) - 0.5))
        gaps, chances = self._gaussian()
        inside = 2.0 * np.cumsum(chances) - chances[0]
        return int(gaps[np.searchsorted(inside, level)])

    def _gaussian(self) -> tuple[Floats, Floats]:
        """Return the sizes from 0 on, and the probability of each sign of them."""
        gaps = np.arange(self.reach + 1, dtype=np.float64)
        chances = np.exp(-0.5 * (gaps / self.scale) ** 2)
        return gaps, chances / (2.0 * chances.sum() - chances[0])


_SAMPLERS: dict[str, Callable[[Sequence[int], float], tuple[int, ...]]] = {
    "geometric": noise.discrete_laplace,
    "laplace": noise.rounded_laplace,
    "gaussian": noise.discrete_gaussian,
}


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: how it was computed, and some points of the curve."""
        pure = self.epsilon(0.0)
        top = pure if math.isfinite(pure) else 10.0
        points = [{"epsilon": top * i / 8, "delta": self.delta(top * i / 8)} for i in range(9)]
        return {"how": self.how, "pure_epsilon": pure if math.isfinite(pure) else "infinity", "curve": points}


@dataclass(frozen=True)
class Candidate:
    """A mechanism that was compared, and what it was judged by: smaller is better."""

    mechanism: Request
    distance: float
    measure: str = "expected Hellinger distance"


@dataclass(frozen=True)
class Plan:
    """What will be done to the data, and what is proved about it. Made without them.

    Attributes:
        used: The mechanism, `best` replaced by what it chose.
        certificate: The exact privacy curve.
        noise: Independent noise on each number, or None for a table.
        table: For the exponential mechanism: a row of probabilities for each state.
        step: By how much a record changes a number.
        compared: What `best` chose among, the nearest first.
    """

    used: Request
    certificate: Certificate
    noise: Noise | None = None
    table: Floats | None = None
    step: int = 1
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
            noise.prepare(self.noise.kind, self.noise.scale)

    def guarantee(self) -> Guarantee:
        """Return what is promised: the certificate's figure, never more than what was asked for."""
        proved = self.certificate.epsilon(self.used.delta)
        return Guarantee(
            kind="worst_case",
            epsilon=max(SMALLEST_EPSILON, min(proved, self.used.epsilon)),
            delta=self.used.delta,
            method=self.certificate.how,
            neighbours="replace_one",
            sampling="none",
            mechanism=(("scale", self.noise.scale),) if self.noise else (),
            assumptions=("the number of records is public", "the noise is drawn once and not repeated"),
            publishable=True,
        )


def cells_plan(request: Request, prior: Dirichlet | None, cells: int, n: int | None) -> Plan:
    """Plan the release of a histogram's cells.

    Args:
        request: The mechanism asked for.
        prior: The prior, if a posterior is wanted; needed by mechanisms over posteriors.
        cells: The number of cells.
        n: The public number of records, or None in a part of private size.
    """
    if request.name == "best":
        return _best_plan(request, prior, cells, n)
    moves = 1 if cells == 2 and n is not None else 2
    if request.name == "exponential":
        if prior is None or n is None:
            raise PrivacyError(
                f"{request} chooses among posteriors of a public number of records; use geometric noise."
            )
        rows, curve = _table(request, prior, n)
        return Plan(request, Certificate(curve, f"enumeration of all {len(rows)} posteriors"), table=rows)
    if request.name == "laplace":
        return _laplace_plan(request, moves)
    if request.name == "gaussian" and moves == 2:
        raise PrivacyError(f"{request} is for one number: a record's move changes two cells. Use geometric noise.")
    return number_plan(request, 1) if moves == 1 else _two_cells_plan(request)


def number_plan(request: Request, step: int) -> Plan:
    """Plan the release of one whole number that a record changes by at most `step`."""
    if request.name == "gaussian":
        sd = finite.gaussian_sd(request.epsilon, request.delta, step)
        curve = finite.gaussian_curve(sd, step)
        return Plan(
            request, Certificate(curve, "exact curve of the discrete Gaussian"), Noise("gaussian", sd), step=step
        )
    used = replace(request, name="geometric", delta=0.0)
    scale = _scale(step, used.epsilon)
    curve = finite.geometric_curve(1.0 / scale, step)
    return Plan(used, Certificate(curve, "exact curve of geometric noise"), Noise("geometric", scale), step=step)


def draw(plan: Plan, values: Sequence[int]) -> tuple[int, ...]:
    """Return what leaves the process, for the true whole numbers. Charge before calling it."""
    if plan.table is None:
        return plan.source.draw(values)
    listed = states(len(values), int(sum(values)))
    row = int(np.flatnonzero((listed == np.array(values)).all(axis=1))[0])
    return tuple(int(count) for count in listed[noise.pick(plan.table[row])])


def sum_plan(request: Request, step: int) -> Plan:
    """Plan the release of a sum; `best` takes the noise with the smaller standard deviation."""
    if request.name != "best":
        return number_plan(request, step)
    options = [number_plan(replace(request, name="geometric", delta=0.0), step)]
    if request.delta > 0.0:
        with suppress(PrivacyError):  # too wide to be certified
            options.append(number_plan(replace(request, name="gaussian"), step))
    options.sort(key=lambda plan: plan.source.sd)
    compared = tuple(Candidate(plan.used, plan.source.sd, "standard deviation in steps") for plan in options)
    return replace(options[0], compared=compared)


def charge(ledger: Ledger | str | os.PathLike[str] | None, plan: Plan, name: str, description: str) -> None:
    """Charge a ledger for what a plan releases, if there is one. Nothing may be drawn before this has returned."""
    plan.prepare()
    if ledger is None:
        return
    if not isinstance(ledger, Ledger):
        with ledger_at(ledger) as opened:
            return charge(opened, plan, name, description)
    text = f"{description}, {plan.used}"
    if plan.noise is not None and plan.noise.kind == "gaussian":
        rate = 0.5 * (plan.step / plan.noise.scale) ** 2 * (1.0 + 1e-12)
        costs = {order: rate * order * (order + 1) for order in ORDERS}
        ledger.release(name, costs=costs, description=text, neighbours="replace_one")
    else:
        ledger.release(
            name, pure=plan.guarantee().epsilon, delta=plan.used.delta, description=text, neighbours="replace_one"
        )


def ledger_at(file: str | os.PathLike[str]) -> Ledger:
    """Open a ledger, or make one for releases where one record may be replaced."""
    return Ledger.open(file) if os.path.exists(file) else Ledger.create(file, neighbours="replace_one")


def _best_plan(request: Request, prior: Dirichlet | None, cells: int, n: int | None) -> Plan:
    from tacita.posterior.choice import compare

    compared = () if prior is None or n is None else compare(request, prior, n)
    chosen = compared[0].mechanism if compared else replace(request, name="geometric", delta=0.0)
    return replace(cells_plan(chosen, prior, cells, n), compared=compared)


def _laplace_plan(request: Request, moves: int) -> Plan:
    if moves == 2 and request.sensitivity == "histogram":
        raise PrivacyError(
            f"{request} takes one count to say everything, which holds for two categories of a public number of "
            "records: here a record's move changes two cells. Use sensitivity='naive'."
        )
    scale = _scale(2 if request.sensitivity == "naive" else 1, request.epsilon)
    curve = finite.laplace_curve(scale, cells=moves)
    return Plan(request, Certificate(curve, "exact curve of rounded Laplace noise"), Noise("laplace", scale))


def _two_cells_plan(request: Request) -> Plan:
    used = replace(request, name="geometric", delta=0.0)
    scale = _scale(2, used.epsilon)
    curve = finite.geometric_curve(1.0 / scale, cells=2)
    how = "exact curve of geometric noise on two cells"
    return Plan(used, Certificate(curve, how), Noise("geometric", scale))


def _scale(step: int, epsilon: float) -> float:
    """Return step / epsilon, rounded up, so that the noise's exact rational rate is at most epsilon / step."""
    scale = step / epsilon
    while Fraction(step) > Fraction(scale) * _decimal(epsilon):
        scale = math.nextafter(scale, math.inf)
    return scale


def _decimal(x: float) -> Fraction:
    """Return the decimal number that a float is written as: 0.1 is a tenth."""
    return Fraction(repr(float(x)))


@lru_cache(maxsize=4)
def _table(request: Request, prior: Dirichlet, n: int) -> tuple[Floats, FiniteCurve]:
    return finite.exponential_table(request, prior, n)
