"""The authors' accountant: what their own code computes, to one part in a million."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tacita import BayesianAccountant, PrivacyError
from tacita.accounting import NORM_LEVELS, ORDERS, level_of
from tacita.papers import coded_costs, coded_epsilons, coded_figure, unclipped_figure

THEIRS = json.loads(Path(__file__).with_name("authors_accountant.json").read_text())
RTOL = THEIRS["rtol"]


def mechanism(case):
    return {"sample_rate": case["sample_rate"], "stddev": case["stddev"]}


def options(case):
    return {"orders": case["orders"], "gamma": case["gamma"]}


@pytest.mark.parametrize("case", THEIRS["cases"], ids=lambda case: f"{case['steps']}-{case['stddev']:g}")
def test_costs_and_epsilons_are_those_of_the_authors_code(case):
    costs = coded_costs(case["distances"], **mechanism(case), power=case["steps"], **options(case))
    np.testing.assert_allclose(costs, case["cost_per_step"], rtol=RTOL)
    for delta, epsilon in case["epsilon"].items():
        ours = coded_epsilons([costs] * case["steps"], delta=float(delta), **options(case))[-1]
        assert ours == pytest.approx(epsilon, rel=RTOL)


@pytest.mark.parametrize("case", THEIRS["paths"], ids=lambda case: "clipped" if case["clipped"] else "unclipped")
def test_a_run_with_other_records_at_every_step(case):
    costs = [coded_costs(row, **mechanism(case), power=6, **options(case)) for row in case["distances"]]
    np.testing.assert_allclose(coded_epsilons(costs, delta=1e-5, **options(case)), case["epsilon"], rtol=RTOL)
    if case["clipped"]:
        figure = coded_figure(
            case["distances"], sample_rate=0.01, noise_multiplier=case["stddev"], delta=1e-5, **options(case)
        )
        assert not any(a.code == "unclipped" for a in figure.assumptions)
        assert figure.noise_multiplier == case["stddev"]
    else:
        figure = unclipped_figure(case["distances"], **mechanism(case), delta=1e-5, **options(case))
        assert "the worst case is infinite" in str(figure)
    assert figure.epsilon == pytest.approx(case["epsilon"][-1], rel=RTOL)
    assert (figure.is_bound, figure.publishable, figure.composition) == (False, False, "hoelder")
    assert sum(value for _, value in figure.delta_split) == pytest.approx(1e-5, rel=1e-12)


def test_the_code_is_hoelder_and_student_of_the_ordinary_accountant():
    case, orders = THEIRS["cases"][4], ORDERS[:96]  # γ = 2⁻⁵⁰: 1 - γ is not rounded
    norms = NORM_LEVELS[level_of(np.array(case["distances"]))]
    costs = coded_costs(norms, **mechanism(case), power=100, orders=orders, gamma=2**-50)
    accountant = BayesianAccountant(sample_rate=0.01, noise_multiplier=2.0, composition="hoelder", steps=100)
    accountant.step(norms, steps=100)
    ours = accountant.guarantee(delta=1e-5, estimator="student", gamma=2**-50)
    theirs = coded_epsilons([costs] * 100, delta=1e-5, orders=orders, gamma=2**-50)[-1]
    assert ours.epsilon == pytest.approx(theirs, rel=RTOL)
    assert theirs < 0.95 * case["epsilon"]["1e-05"]  # the code's few orders


def test_the_power_of_one_is_the_product_and_lies_below_the_truth_of_its_own_sample():
    def cost(r, q=0.01):  # order 8, by the sum itself
        weights = [math.comb(9, k) * q**k * (1 - q) ** (9 - k) for k in range(10)]
        return math.log(sum(weight * math.exp((k * k - k) * r * r / 2) for k, weight in enumerate(weights)))

    distances, settings = np.repeat([0.1, 1.0], [4500, 500]), {"sample_rate": 0.01, "stddev": 1.0, "orders": (8,)}
    truth = math.log(0.9 * math.exp(2000 * cost(0.1)) + 0.1 * math.exp(2000 * cost(1.0))) / 2000
    assert coded_costs(distances, **settings, power=2000) >= truth
    assert coded_costs(distances, **settings, power=1) < 0.5 * truth


def test_what_does_not_fit_is_refused():
    mechanism = {"sample_rate": 0.01, "delta": 1e-5}
    with pytest.raises(ValueError, match=r"norms must be in \[0, 1\]"):
        coded_figure([[0.1, 1.2]], noise_multiplier=1.0, **mechanism)
    with pytest.raises(ValueError, match=r"shape \(steps, m\)"):
        unclipped_figure([0.1, 1.2], stddev=1.0, **mechanism)
    with pytest.raises(ValueError, match=r"shape \(m,\)"):
        coded_costs([[0.1, 1.2]], sample_rate=0.01, stddev=1.0, power=1)
    with pytest.raises(ValueError, match="at least 2 records"):
        coded_costs([0.1], sample_rate=0.01, stddev=1.0, power=1)
    with pytest.raises(ValueError, match=r"shape \(steps, 5\)"):
        coded_epsilons([[0.1, 1.2]], delta=1e-5)
    with pytest.raises(PrivacyError, match="reaches delta"):
        coded_epsilons(np.zeros((200, 5)), delta=1e-5, gamma=1e-7)
