"""Well-typed programs: what they release, what it is called, what it costs; and what they do with data."""

import importlib
import json
import subprocess
import sys
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

import tacita.cli
import tacita.programs
from tacita.ledger import BudgetExceeded, Ledger
from tacita.posterior import samplers
from tacita.posterior.noise import GeometricNoise
from tacita.posterior.plans import plan_release
from tacita.posterior.releases import Release
from tacita.programs import (
    Bool,
    Category,
    Program,
    ProgramError,
    Real,
    best,
    beta,
    dirichlet,
    exponential,
    gaussian,
    geometric,
    laplace,
    normal,
)
from tacita.programs.results import Failed, Noisy
from tests.programs.surveys import N, census, people

SURVEY = """\
from tacita.programs import Program, Bool, Category, Real, beta, dirichlet, geometric, best
p = Program(schema=dict(smoker=Bool(), job=Category(3), age=Real()), n=1000, epsilon=1.5, delta=0.0)
smoking = p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
jobs    = p.release(p.column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=0.5))
age     = p.release(p.column("age").clamp(0, 100, step=1).mean(), geometric(epsilon=0.5))
"""


def four_columns(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


@pytest.fixture
def survey(tmp_path):
    (tmp_path / "survey.py").write_text(SURVEY)
    return tmp_path


def test_check_loads_nothing_heavy(survey):
    code = (
        "import sys\nfrom tacita.cli import app\n"
        "app(['check', 'survey.py'], standalone_mode=False)\n"
        "print([m for m in ('scipy', 'torch', 'pyro', 'opendp', 'dp_accounting', 'matplotlib', 'rich')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=survey)
    assert result.stdout.splitlines()[-1] == "[]"


def test_every_public_name_resolves_lazily():
    for name in tacita.programs.__all__:
        assert getattr(tacita.programs, name) is not None
    assert "Program" in dir(tacita.programs)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tacita.programs.nothing


@pytest.mark.parametrize(
    ("make", "request_"),
    [
        (lambda p: p.column("job").histogram(), geometric(epsilon=1)),
        (lambda p: p.where(sex="F").column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=1)),
        (lambda p: p.column("sex").histogram(), gaussian(epsilon=1, delta=0.01)),
        (lambda p: p.where(sex="F").count(), gaussian(epsilon=1, delta=0.01)),
        (
            lambda p: p.column("age").clamp(0, 9, step=1).posterior(normal(0, 1, record_sd=1)),
            gaussian(epsilon=1, delta=0.01),
        ),
        (lambda p: p.column("job").posterior(dirichlet(1, 1, 1)), laplace(epsilon=1)),
        (lambda p: p.column("smoker").posterior(beta(1, 1)), laplace(epsilon=1, sensitivity="histogram")),
        (lambda p: p.column("smoker").posterior(beta(1, 1)), exponential(epsilon=1, delta=0.01, score="lecam")),
        (lambda p: p.column("job").posterior(dirichlet(1, 1, 1)), exponential(epsilon=1, delta=0.01)),
    ],
)
def test_mechanisms_that_fit(make, request_):
    p = four_columns(n=50)
    p.release(make(p), request_)
    assert p.check().epsilon == 1


def test_importing_everything_a_program_needs_is_light():
    code = "import sys\nfrom tacita.programs import *\n"
    code += "assert not {'scipy', 'opendp'} & set(sys.modules)\nprint(Program)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout


@pytest.mark.parametrize("name", ["Bool", "Category", "Program", "ProgramError", "Real"])
def test_names_that_moved_are_refused_with_their_new_place(name):
    with pytest.raises(ImportError, match=f"from tacita.programs import {name}"):
        getattr(importlib.import_module("tacita.posterior"), name)


def test_the_guarantee_is_known_before_the_data_are():
    p = Program(schema={"smoker": Bool()}, n=2, epsilon=1)
    with pytest.raises(ProgramError, match="T025"):
        p.guarantee()
    p.release(p.column("smoker").count(), geometric(epsilon=0.1))
    p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.2))
    promised = p.guarantee()
    assert (promised.epsilon, promised.delta, promised.neighbours) == (0.3, 0.0, "replace_one")
    assert p.run({"smoker": [True, False]}).guarantee == promised


def every_query(p):
    """Every kind of query, of all records and of a part."""
    part, age = p.where(job="b"), p.column("age").clamp(0, 100)
    yield from (p.column("smoker").count(), p.column("smoker").histogram(), p.column("smoker").posterior(beta(1, 1)))
    yield from (p.column("job").histogram(), p.column("job").posterior(dirichlet(1, 1, 1)))
    yield from (age.sum(), age.mean(), age.histogram(bins=4), age.posterior(normal(50, 30, record_sd=15)))
    yield p.column("age").map(lambda a: a / 10, low=0, high=10, step=0.5).mean()
    yield from (part.count(), part.column("smoker").count(), part.column("smoker").histogram())
    yield from (part.column("smoker").posterior(beta(1, 1)), part.column("job").posterior(dirichlet(1, 1, 1)))
    yield from (part.column("age").clamp(20, 100).sum(), part.column("age").clamp(-5, 5, step=1).histogram(bins=3))


def test_noise_is_scaled_to_what_the_checker_charges():
    """The link between the checker and the mechanism: each cell's noise has scale sensitivity / epsilon, not less."""
    for make in (geometric, best, lambda epsilon: gaussian(epsilon=epsilon, delta=1e-3)):
        p = census()
        for query in every_query(p):
            if make not in (geometric, best) and query.statistic.numbers > 1:
                continue
            release = p.release(query, make(epsilon=0.7))
            plan = plan_release(release.mechanism, release.query.statistic)
            larger = query.sensitivity.larger
            if isinstance(plan.source, GeometricNoise):
                exact = Fraction(plan.source.scale) * Fraction(7, 10)
                assert larger <= exact <= larger * (1 + Fraction(1, 10**12)), query.label
            else:
                assert plan.certificate.delta(0.7) <= 1e-3
                assert plan.statistic.step == larger


def test_results_are_near_the_truth_when_epsilon_is_large():
    data, p = people(), census()
    for index, query in enumerate(every_query(p)):
        p.release(query, geometric(epsilon=50), name=str(index))
    results = p.run(data)
    smoker, job, age = data["smoker"], data["job"], data["age"]
    assert results["0"].value == pytest.approx(smoker.sum(), abs=2)
    assert results["1"].values == pytest.approx((smoker.sum(), (~smoker).sum()), abs=2)
    assert results["2"].posterior.mean == pytest.approx(smoker.mean(), abs=0.01)
    assert results["3"].values == pytest.approx([(job == v).sum() for v in "abc"], abs=3)
    assert results["3"].labels == ("a", "b", "c")
    assert results["4"].posterior.mean == pytest.approx([(job == v).mean() for v in "abc"], abs=0.02)
    assert results["5"].value == pytest.approx(np.rint(age).sum(), abs=60)
    assert results["6"].value == pytest.approx(np.rint(age).mean(), abs=0.2)
    assert results["7"].values == pytest.approx(np.histogram(np.rint(age), [0, 25, 50, 75, 101])[0], abs=3)
    assert results["8"].posterior.mean == pytest.approx(age.mean(), abs=0.5)
    assert results["9"].value == pytest.approx(age.mean() / 10, abs=0.1)
    there = job == "b"
    assert results["10"].value == pytest.approx(there.sum(), abs=2)
    assert results["11"].value == pytest.approx((smoker & there).sum(), abs=2)
    assert results["12"].values == pytest.approx(((smoker & there).sum(), (~smoker & there).sum()), abs=3)
    assert results["13"].posterior.mean == pytest.approx(smoker[there].mean(), abs=0.02)
    assert results["13"].n is None
    assert results["14"].posterior.mean == pytest.approx([0, 1, 0], abs=0.03)
    assert results["15"].value == pytest.approx(np.rint(np.clip(age[there], 20, 100)).sum(), abs=60)
    assert all(isinstance(value, Release | Noisy) for value in results.values())
    json.dumps(results.to_dict(), allow_nan=False)
    assert "smoker" not in str(results["5"])


@pytest.mark.parametrize(
    "mechanism",
    [
        best(epsilon=1, delta=1e-4),
        laplace(epsilon=1),
        exponential(epsilon=1, delta=1e-4),
        gaussian(epsilon=1, delta=1e-4),
    ],
    ids=str,
)
def test_every_mechanism_runs_in_a_program(mechanism):
    p = census()
    p.release(p.column("smoker").posterior(beta(1, 1)), mechanism, name="x")
    assert 0.1 < p.run(people())["x"].posterior.mean < 0.5


def test_intervals_of_noise_hold_the_number():
    p = census()
    for i in range(300):
        p.release(p.column("smoker").count(), geometric(epsilon=0.5), name=str(i))
    data = people()
    results, truth = p.run(data), int(data["smoker"].sum())
    inside = [low <= truth <= high for value in results.values() for low, high in value.interval(0.9)]
    assert np.mean(inside) > 0.8  # at least 0.9 but for chance: six standard errors


def test_the_whole_program_is_charged_once_and_before_anything_is_drawn(monkeypatch):
    p = census(epsilon=1.5, delta=0.0)
    for part in p.partition("job").values():
        p.release(part.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
    p.release(p.column("age").clamp(0, 100).mean(), geometric(epsilon=0.3))
    with Ledger.create(":memory:", neighbours="replace_one", epsilon=1.5, delta=1e-6) as ledger:
        results = p.run(people(), ledger=ledger)
        assert results.guarantee.epsilon == 0.8  # two parts at half of 0.5 each, and the mean
        assert ledger.spent().epsilon == 0.8
        refusal = mock.Mock(side_effect=AssertionError("drawn although the budget is spent"))
        monkeypatch.setattr(samplers, "sampler", lambda *_: refusal)
        with pytest.raises(BudgetExceeded):
            p.run(people(), ledger=ledger)
        assert len(ledger.releases()) == 1


def test_noise_that_cannot_be_drawn_costs_nothing(monkeypatch):
    p = census()
    p.release(p.column("smoker").count(), geometric(epsilon=0.123))
    monkeypatch.setitem(sys.modules, "opendp.measurements", None)
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        with pytest.raises(ImportError):
            p.run(people(), ledger=ledger)
        assert ledger.spent(1e-5) is None


def test_data_that_do_not_fit_cost_nothing(tmp_path):
    p = census()
    p.release(p.column("smoker").count(), geometric(epsilon=0.5))
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        with pytest.raises(ValueError, match="n=400"):
            p.run(people(n=399), ledger=ledger)
        with pytest.raises(ValueError, match="no column"):
            p.run({"smoker": [True] * N}, ledger=ledger)
        with pytest.raises(OSError, match=r"nowhere\.csv"):
            p.run(tmp_path / "nowhere.csv", ledger=ledger)
        assert ledger.spent(1e-5) is None


def test_what_is_derived_sees_results_and_its_failure_loses_nothing():
    p = census()
    smokers = p.release(p.column("smoker").count(), geometric(epsilon=50))
    double = p.derive(lambda count: 2 * count.value, smokers)
    broken = p.derive(lambda count: 1 / 0, smokers)
    later = p.derive(lambda value: value, broken)
    again = p.derive(lambda value: value + 1, double)
    results = p.run(people())
    assert results["double"] == 2 * results["smokers"].value
    assert results["again"] == results["double"] + 1
    assert results["broken"] == results["later"] == Failed("ZeroDivisionError: division by zero")
    assert "broken = failed: ZeroDivisionError" in str(results)
    assert {smokers.name, later.name, again.name} <= set(results)
    assert len(results) == 5


def test_what_ends_a_calculation_does_not_end_the_program():
    p = census()
    count = p.release(p.column("smoker").count(), geometric(epsilon=5))
    p.derive(lambda value: exit(), count, name="leaves")
    p.derive(lambda value: type("Odd", (), {"to_dict": lambda self: {(1, 2): 3}})(), count, name="odd")
    results = p.run(people())
    assert isinstance(results["leaves"], Failed)
    json.dumps(results.to_dict())
