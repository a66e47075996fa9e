"""Released results for people."""

import numpy as np
import pytest

import tacita.cli  # noqa: F401
from tacita.programs import (
    Bool,
    Category,
    Program,
    Real,
    dirichlet,
    geometric,
    normal,
)

N = 400


def people(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return {
        "smoker": rng.random(n) < 0.3,
        "job": np.array(["a", "b", "c"])[rng.integers(3, size=n)],
        "age": np.clip(rng.normal(40, 15, n), 0, 100),
    }


def census(epsilon=1000.0, delta=0.01):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real()}
    return Program(schema=schema, n=N, epsilon=epsilon, delta=delta)


SMOKERS = """
from tacita.programs import *
p = Program(schema=dict(smoker=Bool(), job=Category("a", "b", "c"), age=Real()), n=400, epsilon=1.5)
smoking = p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
jobs = p.release(p.column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=0.5))
age = p.release(p.column("age").clamp(0, 100).mean(), geometric(epsilon=0.5))
ratio = p.derive(lambda s, a: s.posterior.mean / a.value, smoking, age)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "survey.py").write_text(SMOKERS)
    columns = people()
    lines = ["age,smoker,job"] + [f"{a:.1f},{s},{j}" for s, j, a in zip(*columns.values(), strict=True)]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_figure_is_the_same_every_time(folder):
    from tacita.programs.show import write_figure

    p = census()
    p.release(p.column("job").posterior(dirichlet(1, 1, 1)), geometric(epsilon=1), name="jobs")
    p.release(p.column("age").clamp(0, 100).posterior(normal(50, 30, record_sd=15)), geometric(epsilon=1), name="age")
    results = p.run(people())
    for name in ("a.svg", "b.svg"):
        write_figure(folder / name, results)
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()
    assert (folder / "a.svg").read_text().count("<svg") == 1
