"""Well-typed programs: what they release, what it is called, what it costs; and how the command shows it."""

import importlib
import subprocess
import sys

import pytest

import tacita.cli
import tacita.programs
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


def test_check_loads_no_numerical_library(survey):
    code = (
        "import sys\nfrom tacita.cli import app\n"
        "app(['check', 'survey.py'], standalone_mode=False)\n"
        "print([m for m in ('scipy', 'torch', 'pyro', 'opendp', 'dp_accounting', 'matplotlib', 'numpy', 'rich')"
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
    code += "assert not {'numpy', 'scipy', 'opendp'} & set(sys.modules)\nprint(Program)"
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
