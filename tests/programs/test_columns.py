"""Columns, parts and the models of posteriors."""

import pytest

from tacita.programs import (
    Bool,
    Category,
    Program,
    ProgramError,
    Real,
    beta,
    dirichlet,
    geometric,
)
from tests.programs.surveys import N, census, check, marked, people


def four_columns(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


def test_mapped_columns_are_named_after_their_function():
    p = four_columns()
    assert p.column("age").map(abs, low=0, high=9, step=1).sum().label == "sum of 'abs(age)'"
    part = p.where(p.column("age").map(lambda age: age > 3, to=Bool()), sex="F")
    assert part.count().label == "count of records where map(age)=True, sex=F"


def test_a_partition_is_a_mapping_over_public_labels():
    p = four_columns()
    assert list(p.partition("job")) == ["a", "b", "c"]
    assert list(p.partition("smoker")) == [True, False]
    assert [label for label, _ in p.where(sex="F").partition("job").items()] == ["a", "b", "c"]
    assert len(p.partition(p.column("age").map(lambda a: a > 3, to=Bool()))) == 2
    assert repr(p.partition("job")["a"].count()) == "<private: the count of records where job=a>"


def test_a_pyro_model_is_released_like_the_model_it_is():
    pyro = pytest.importorskip("pyro")
    from pyro import distributions as dist

    def model(data):
        share = pyro.sample("share", dist.Beta(2.0, 5.0))
        with pyro.plate("people", len(data)):
            pyro.sample("smoker", dist.Bernoulli(share), obs=data)

    p = census()
    p.release(p.column("smoker").posterior(model), geometric(epsilon=50), name="x")
    made = p.run(people())["x"]
    assert made.model == beta(2, 5)
    assert made.posterior.mean == pytest.approx((people()["smoker"].sum() + 2) / (N + 7), abs=0.01)


def test_pyro_categories_are_counted_from_nought():
    pyro = pytest.importorskip("pyro")
    import torch
    from pyro import distributions as dist

    def bernoulli(data):
        share = pyro.sample("share", dist.Beta(2.0, 5.0))
        with pyro.plate("people", len(data)):
            pyro.sample("x", dist.Bernoulli(share), obs=data)

    def categorical(data):
        shares = pyro.sample("shares", dist.Dirichlet(torch.tensor([2.0, 5.0])))
        with pyro.plate("people", len(data)):
            pyro.sample("x", dist.Categorical(shares), obs=data)

    p = Program(schema={"truth": Bool(), "two": Category("a", "b")}, n=10, epsilon=1)
    assert p.column("truth").posterior(bernoulli).model == beta(2, 5)
    assert p.column("two").posterior(categorical).model == dirichlet(2, 5)
    for column, model in (("truth", categorical), ("two", bernoulli)):
        with pytest.raises(ProgramError, match="T007"):
            p.column(column).posterior(model)


PYRO = """\
import pyro
import pyro.distributions as dist
from tacita.programs import *
p = Program(schema=dict(smoker=Bool()), n=1000, epsilon=1)
def survey(data):
    share = pyro.sample("share", dist.{prior})
    with pyro.plate("people", len(data)):
        pyro.sample("smokes", dist.Bernoulli(share), obs=data)
smoking = p.release(p.column("smoker").posterior(survey), geometric(epsilon=0.5))
"""


def test_pyro_models_are_read_or_refused_with_the_reason(tmp_path):
    pytest.importorskip("pyro")
    assert "posterior of 'smoker', beta(2, 3)" in check(PYRO.format(prior="Beta(2.0, 3.0)"), tmp_path).stdout
    said = check(PYRO.format(prior="Uniform(0.0, 1.0)"), tmp_path).stderr
    assert said.startswith("error[T008]: survey cannot be used: ")
    assert "Uniform" in said.splitlines()[0]
    assert marked(said) == 'p.column("smoker").posterior(survey)'
