"""Every mechanism of the table keeps to the protocol, and a new one needs one class and one entry."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from tacita._check import PrivacyError
from tacita.ledger import Ledger
from tacita.mechanisms.finite import FiniteCurve
from tacita.posterior import beta, dirichlet, normal, release
from tacita.posterior.enumeration import _SCORES, neighbours
from tacita.posterior.mechanisms import MECHANISMS, Mechanism, Statistic, best
from tacita.posterior.mechanisms._exponential import SCORES
from tacita.posterior.noise import NOISES, GeometricNoise, Noise
from tacita.posterior.plans import Certificate, ReleasePlan, plan_release
from tacita.programs import Bool, Program, Real

BUDGET = {"epsilon": 0.7, "delta": 1e-4}
STATISTICS = {
    "a count": Statistic(n=40),
    "a sum": Statistic(n=40, step=25, summed=True),
    "two cells": Statistic(2, 40),
    "cells of a part": Statistic(4),
    "a share": Statistic(2, 40, prior=beta(1, 2)),
    "shares": Statistic(3, 9, prior=dirichlet(1, 1, 1)),
    "shares of a part": Statistic(2, prior=beta(1, 1)),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("case", STATISTICS)
def test_every_mechanism_keeps_to_the_protocol(name, case):
    mechanism, statistic = MECHANISMS[name].within(**BUDGET), STATISTICS[case]
    assert isinstance(mechanism, Mechanism)
    assert mechanism.name == name
    assert (mechanism.epsilon, hash(mechanism)) == (BUDGET["epsilon"], hash(MECHANISMS[name].within(**BUDGET)))
    assert str(mechanism).startswith(f"{name}(epsilon=0.7")
    if mechanism.refusal(statistic):
        with pytest.raises(PrivacyError, match=r"cannot be used here: .*: use "):
            plan_release(mechanism, statistic)
        return
    plan = plan_release(mechanism, statistic)
    assert (plan.noise is None) != (plan.table is None)
    assert plan.certificate.delta(mechanism.epsilon) <= mechanism.delta + 1e-13
    assert plan.guarantee().epsilon <= mechanism.epsilon
    if mechanism.is_proportional(statistic):
        assert plan.used.delta == 0.0
        assert plan.certificate.epsilon(0.0) <= mechanism.epsilon + 1e-12
    plan.prepare()
    numbers = (20,) if statistic.numbers == 1 and plan.table is None else (3,) * statistic.cells
    if plan.table is not None:
        numbers = (statistic.n - statistic.cells + 1, *[1] * (statistic.cells - 1))
    drawn = plan.draw(numbers)
    assert len(drawn) == len(numbers)
    assert all(isinstance(number, int) for number in drawn)


@pytest.mark.parametrize("kind", NOISES)
def test_every_noise_is_a_distribution_on_counts_with_its_exact_curve(kind):
    check_noise(NOISES[kind](2.3))


def check_noise(noise):
    rows = noise.clipped_rows(60)
    assert rows.sum(axis=1) == pytest.approx(1.0)
    chances = np.exp(noise.log_chance(np.arange(-noise.reach, noise.reach + 1)))
    assert chances.sum() == pytest.approx(1.0)
    assert math.sqrt(chances @ np.arange(-noise.reach, noise.reach + 1) ** 2) == pytest.approx(noise.sd)
    assert float(noise.tail(np.array(noise.reach + 1))) < 1e-15
    assert rows[30, 31] == pytest.approx(chances[noise.reach + 1])
    assert rows[59, 60] == pytest.approx(chances[noise.reach + 1 :].sum())
    assert 2.0 * float(noise.tail(np.array(noise.half_width(0.9) + 1))) <= 0.1
    for epsilon in (0.0, 0.2, 0.43):
        enumerated = FiniteCurve(rows, neighbours(2, 60)).delta(epsilon)
        assert noise.curve(1).delta(epsilon) == pytest.approx(enumerated, abs=1e-12)
    noise.prepare()
    assert len(noise.draw((1, 2))) == 2


def test_every_score_has_its_distance():
    assert set(SCORES) == set(_SCORES)


@dataclass(frozen=True)
class CoinNoise(Noise):
    """Randomised response on whole numbers: -1 or 1, each with probability `scale`, else nothing."""

    scale: float

    reach: ClassVar[int] = 1

    @property
    def sd(self):
        return math.sqrt(2.0 * self.scale)

    def prepare(self):
        pass

    def draw(self, values):
        return tuple(value + 1 for value in values)

    def log_chance(self, gaps):
        with np.errstate(divide="ignore"):
            return np.log(np.select([gaps == 0, np.abs(gaps) == 1], [1.0 - 2.0 * self.scale, self.scale], 0.0))

    def tail(self, sizes):
        return np.select([sizes == 0, sizes == 1], [1.0 - self.scale, self.scale], 0.0)

    def curve(self, step, cells=1):
        return FiniteCurve(self.clipped_rows(3)[1:3], np.array([[0, 1]]))


def test_a_toy_noise_is_one_class_and_one_entry(monkeypatch):
    monkeypatch.setitem(NOISES, "coin", CoinNoise)
    check_noise(NOISES["coin"](0.25))


@dataclass(frozen=True)
class Coin(Mechanism):
    """A toy: all that a new mechanism is."""

    name: ClassVar[str] = "coin"
    epsilon: float
    delta: float = 0.0

    @classmethod
    def within(cls, epsilon, delta):
        return cls(epsilon)

    @classmethod
    def candidates(cls, epsilon, delta, statistic):
        return (cls(epsilon),)

    def refusal(self, statistic):
        return "" if statistic.numbers == 1 else "coins are for one number: use geometric"

    def is_proportional(self, statistic):
        return False

    def calibrated(self, statistic):
        curve = GeometricNoise(statistic.step / self.epsilon).curve(statistic.step)  # a toy's claim; nothing checks it
        return ReleasePlan(self, statistic, Certificate(curve, "a toy"), CoinNoise(0.25))


def test_a_toy_mechanism_is_one_class_and_one_entry(monkeypatch):
    monkeypatch.setitem(MECHANISMS, "coin", Coin)
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        made = release(beta(1, 1), counts=(6, 14), epsilon=0.5, mechanism="coin", ledger=ledger)
        assert (made.output, made.mechanism, made.guarantee.epsilon) == ((7,), Coin(0.5), 0.5)
        assert "coin(epsilon=0.5)" in ledger.releases()[0]["description"]
    assert release(normal(0, 1, record_sd=1), column=[1.0, 0.0], clamp=(0, 1), mechanism=Coin(0.5)).output == (1001,)
    with pytest.raises(PrivacyError, match="coins are for one number"):
        release(dirichlet(1, 1, 1), counts=(1, 2, 3), mechanism=Coin(0.5))
    assert plan_release(best(epsilon=0.5), Statistic(n=20, step=9, summed=True)).used == Coin(0.5)  # the narrowest
    assert not best(epsilon=0.5).is_proportional(Statistic(n=20, step=9, summed=True))


@dataclass(frozen=True)
class Wrong(Coin):
    """A toy whose noise is half as wide as its budget needs."""

    def calibrated(self, statistic):
        return Coin(2 * self.epsilon).calibrated(statistic)


def test_a_mechanism_whose_certificate_breaks_its_budget_is_refused():
    with pytest.raises(PrivacyError, match="does not keep its budget"):
        release(beta(1, 1), counts=(6, 14), mechanism=Wrong(0.5))


def test_a_toy_mechanism_runs_in_a_program():
    p = Program(schema={"smoker": Bool(), "age": Real()}, n=2, epsilon=1.0)
    p.release(p.column("smoker").count(), Coin(0.5), name="smokers")
    p.release(p.column("age").clamp(0, 90, step=1).mean(), Coin(0.25), name="age")
    assert p.check().epsilon == 0.75
    results = p.run({"smoker": [True, False], "age": [20, 40]})
    assert (results["smokers"].value, results["age"].value) == (2.0, 30.5)
