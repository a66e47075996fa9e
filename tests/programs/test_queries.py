"""Every kind of query keeps to the protocol, and a new one needs one class and one entry."""

from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from tacita.posterior.plans import plan_release
from tacita.posterior.releases import Release
from tacita.programs import (
    Bool,
    Category,
    Program,
    Real,
    beta,
    dirichlet,
    geometric,
    normal,
)
from tacita.programs.queries import QUERIES, Count, Query
from tacita.programs.results import Noisy
from tacita.programs.tables import exact_numbers, read


def four_columns(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


SENSITIVITIES = [
    # query, numbers, stay, cross
    (lambda p: p.column("smoker").posterior(beta(1, 1)), 1, 1, 0),
    (lambda p: p.column("smoker").count(), 1, 1, 0),
    (lambda p: p.column("smoker").histogram(), 1, 1, 0),
    (lambda p: p.column("sex").histogram(), 1, 1, 0),
    (lambda p: p.column("sex").posterior(dirichlet(1, 1)), 1, 1, 0),
    (lambda p: p.column("job").histogram(), 3, 2, 0),
    (lambda p: p.column("job").posterior(dirichlet(1, 1, 1)), 3, 2, 0),
    (lambda p: p.column("age").clamp(20, 100).sum(), 1, 80, 0),
    (lambda p: p.column("age").clamp(-1, 1, step=0.1).mean(), 1, 20, 0),
    (lambda p: p.column("age").clamp(0, 100, 5).posterior(normal(40, 10, record_sd=15)), 1, 20, 0),
    (lambda p: p.column("age").clamp(0, 100).histogram(bins=2), 1, 1, 0),
    (lambda p: p.column("age").clamp(0, 100).histogram(bins=10), 10, 2, 0),
    (lambda p: p.column("age").map(abs, low=0, high=7, step=1).sum(), 1, 7, 0),
    (lambda p: p.column("age").map(bool, to=Bool()).count(), 1, 1, 0),
    (lambda p: p.column("age").map(str, to=Category(5)).histogram(), 5, 2, 0),
    (lambda p: p.where(job="a").count(), 1, 0, 1),
    (lambda p: p.where(job="a").column("smoker").count(), 1, 1, 1),
    (lambda p: p.where(job="a").column("smoker").posterior(beta(1, 1)), 2, 2, 1),
    (lambda p: p.where(smoker=True).where(sex=["F"]).column("job").histogram(), 3, 2, 1),
    (lambda p: p.where(job="a").column("age").clamp(20, 100).sum(), 1, 80, 100),
    (lambda p: p.where(job="a").column("age").clamp(-100, 100).sum(), 1, 200, 100),
    (lambda p: p.where(job="a").column("age").clamp(-100, -20).sum(), 1, 80, 100),
    (lambda p: p.partition("job")["b"].partition("smoker")[True].count(), 1, 0, 1),
]


@pytest.mark.parametrize(("make", "numbers", "stay", "cross"), SENSITIVITIES)
def test_sensitivities(make, numbers, stay, cross):
    query = make(four_columns())
    assert (query.statistic.numbers, query.sensitivity.stay, query.sensitivity.cross) == (numbers, stay, cross)


def test_labels_of_cells():
    p = four_columns()
    assert p.column("job").histogram().labels == ("a", "b", "c")
    assert p.column("smoker").histogram().labels == (True, False)
    assert p.column("age").clamp(0, 100, 5).histogram(bins=4).labels == ("0 to 25", "25 to 50", "50 to 75", "75 to 100")
    assert p.column("age").clamp(0, 100, 5).sum().labels == ()
    assert p.column("age").clamp(0, 100, 5).sum().unit == 5
    assert p.column("age").clamp(0, 100, 5).histogram(bins=4).unit == 1


N = 6


DATA = {
    "smoker": [True, True, False, False, False, True],
    "job": ["a", "b", "c", "a", "a", "c"],
    "age": [10, 20, 30, 40, 50, 60],
}


ASKED = {
    "count": lambda part: part.column("smoker").count(),
    "histogram": lambda part: part.column("job").histogram(),
    "sum": lambda part: part.column("age").clamp(0, 80, step=10).sum(),
    "mean": lambda part: part.column("age").clamp(0, 80, step=10).mean(),
    "posterior of shares": lambda part: part.column("smoker").posterior(beta(1, 1)),
    "posterior of a mean": lambda part: part.column("age").clamp(0, 80).posterior(normal(40, 10, record_sd=9)),
}


IN_PARTS = ("count", "histogram", "sum", "posterior of shares")


def program():
    return Program(schema={"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real()}, n=N, epsilon=9)


def worst_change(query, condition, stays):
    """The largest L1 change of the exact numbers over many random replacements of one record."""
    rng, worst = np.random.default_rng(0), 0
    values = {"smoker": [True, False], "job": ["a", "b", "c"], "age": [-50, 0, 10, 80, 200]}
    for _ in range(200):
        before = {name: [listed[i] for i in rng.integers(len(listed), size=N)] for name, listed in values.items()}
        after = {name: [*cells[1:], values[name][rng.integers(len(values[name]))]] for name, cells in before.items()}
        before = {name: [*cells[1:], cells[0]] for name, cells in before.items()}
        (name, value), *_ = condition.items()
        moves = (before[name][-1] == value) != (after[name][-1] == value)
        if query.conditions and moves == stays:
            continue
        one, other = (exact_numbers(query, read(query.program, data)) for data in (before, after))
        worst = max(worst, sum(abs(a - b) for a, b in zip(one, other, strict=True)))
    return worst


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("name", QUERIES)
def test_every_query_keeps_to_the_protocol(name, part):
    if part and name not in IN_PARTS:
        return
    p, condition = program(), {"smoker": True} if name == "histogram" else {"job": "a"}
    query = ASKED[name](p.where(**condition) if part else p)
    assert isinstance(query, Query)
    assert type(query) is QUERIES[name]
    assert query.label.startswith(query.name)
    numbers = exact_numbers(query, read(p, DATA))
    assert len(numbers) == query.statistic.numbers
    assert len(query.labels) in (0, query.statistic.cells)
    assert worst_change(query, condition, stays=True) == query.sensitivity.stay
    assert worst_change(query, condition, stays=False) == query.sensitivity.cross or not part
    if not part:
        assert query.sensitivity.cross == 0
    release = p.release(query, geometric(epsilon=1), name="it")
    result = query.result(plan_release(release.mechanism, release.query.statistic), numbers)
    assert isinstance(result, Release if query.model is not None else Noisy)
    assert (query.model is not None) == (query.name == "posterior")


def test_the_answers_without_noise():
    p = program()
    table = read(p, DATA)
    exact = {name: exact_numbers(ask(p), table) for name, ask in ASKED.items()}
    assert exact["count"] == (3,)
    assert exact["histogram"] == (3, 1, 2)
    assert (exact["sum"], ASKED["sum"](p).unit) == ((21,), Fraction(10))
    shares = p.column("job").posterior(dirichlet(1, 1, 1))
    assert exact_numbers(shares, table) == (3, 1, 2)
    assert shares.model == dirichlet(1, 1, 1)


class Pairs(Count):
    """A toy query: how many pairs of true records there are, at most one for each record."""

    name: ClassVar[str] = "pairs"

    def exact(self, table):
        return (super().exact(table)[0] // 2,)


def test_a_toy_query_is_one_class_and_one_entry(monkeypatch):
    monkeypatch.setitem(QUERIES, "pairs", Pairs)
    p = program()
    count = p.column("smoker").count()
    query = QUERIES["pairs"](p, (), count.span, count.column)
    assert isinstance(query, Query)
    release = p.release(query, geometric(epsilon=9), name="couples")
    assert release.query.label == "pairs of 'smoker'"
    assert p.check().epsilon == 9
    assert abs(p.run(DATA)["couples"].value - 1) < 9
