"""Well-typed programs: what they release, what it is called, what it costs; and how the command shows it."""

import contextlib
import io
import json
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import pytest

import tacita.programs
from tacita.cli import main
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
from tacita.programs.loading import load

SURVEY = """\
from tacita.programs import Program, Bool, Category, Real, beta, dirichlet, geometric, best
p = Program(schema=dict(smoker=Bool(), job=Category(3), age=Real()), n=1000, epsilon=1.5, delta=0.0)
smoking = p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
jobs    = p.release(p.column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=0.5))
age     = p.release(p.column("age").clamp(0, 100, step=1).mean(), geometric(epsilon=0.5))
"""


def program(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


def tacita_check(*arguments, cwd):
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["tacita", "check", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return SimpleNamespace(returncode=end.value.code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.fixture
def survey(tmp_path):
    (tmp_path / "survey.py").write_text(SURVEY)
    return tmp_path


def test_check_shows_every_release_and_the_budget(survey):
    result = tacita_check("survey.py", cwd=survey)
    assert result.returncode == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "survey.py: 1000 records, of which one may be replaced by another"
    rows = [line.split("  ") for line in lines[3:6]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["smoking", "posterior of 'smoker', beta(1, 1)", "L1 1", "geometric(epsilon=0.5)", "epsilon 0.5"],
        ["jobs", "posterior of 'job', dirichlet(1, 1, 1)", "L1 2", "best(epsilon=0.5)", "epsilon 0.5"],
        ["age", "mean of 'age'", "L1 100", "geometric(epsilon=0.5)", "epsilon 0.5"],
    ]
    assert "total: epsilon 1.5 of 1.5" in lines


def test_check_prints_one_json_document(survey):
    (survey / "survey.py").write_text(SURVEY + "print('hello')\nok = p.derive(lambda a: a, age)\n")
    result = tacita_check("survey.py", "--json", cwd=survey)
    document = json.loads(result.stdout)
    assert result.returncode == 0
    assert document["ok"]
    assert document["total"] == {"epsilon": 1.5, "delta": 0.0}
    assert [release["name"] for release in document["releases"]] == ["smoking", "jobs", "age"]
    assert document["releases"][2]["sensitivity"] == {"metric": "l1", "stay": 100, "cross": 0}
    assert document["derived"] == [{"name": "ok", "from": ["age"]}]
    assert result.stderr == "hello\n"


@pytest.mark.parametrize("name", ["nothing.py", "."])
def test_a_missing_file_is_one_line_and_code_2(survey, name):
    result = tacita_check(name, cwd=survey)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert name in result.stderr


def test_check_loads_no_numerical_library(survey):
    code = (
        "import sys\nfrom tacita.cli import app\n"
        "app(['check', 'survey.py'], standalone_mode=False)\n"
        "print([m for m in ('scipy', 'torch', 'pyro', 'opendp', 'dp_accounting', 'matplotlib', 'numpy', 'rich')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=survey)
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_program_may_import_its_neighbours_and_runs_no_main_block(tmp_path):
    (tmp_path / "neighbour_of_a_program.py").write_text("EPSILON = 0.25\n")
    (tmp_path / "main.py").write_text(
        "from neighbour_of_a_program import EPSILON\n"
        "from tacita.programs import *\n"
        "p = Program(schema=dict(smoker=Bool()), n=10, epsilon=1)\n"
        "smokers = p.release(p.column('smoker').count(), geometric(epsilon=EPSILON))\n"
        "if __name__ == '__main__':\n    open('nowhere.csv')\n"
    )
    before = list(sys.path)
    assert load(tmp_path / "main.py").check().epsilon == Fraction(1, 4)
    assert sys.path == before


def test_a_program_may_define_dataclasses(tmp_path):
    (tmp_path / "classes.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n" + SURVEY + "\n"
        "@dataclass\nclass Row:\n    age: float\n"
    )
    assert load(tmp_path / "classes.py").check().epsilon == Fraction(3, 2)


def test_mapped_columns_are_named_after_their_function():
    p = program()
    assert p.column("age").map(abs, low=0, high=9, step=1).sum().label == "sum of 'abs(age)'"
    part = p.where(p.column("age").map(lambda age: age > 3, to=Bool()), sex="F")
    assert part.count().label == "count of records where map(age)=True, sex=F"


def test_every_public_name_resolves_lazily():
    for name in tacita.programs.__all__:
        assert getattr(tacita.programs, name) is not None
    assert "Program" in dir(tacita.programs)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tacita.programs.nothing


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
    query = make(program())
    assert (query.numbers, query.sensitivity.stay, query.sensitivity.cross) == (numbers, stay, cross)


@pytest.mark.parametrize(
    ("make", "request_", "stay", "cross"),
    [
        (lambda p: p.where(job="a").count(), geometric(epsilon=1), (0, 0), (1, 0)),
        (lambda p: p.where(job="a").column("job").histogram(), geometric(epsilon=1), (1, 0), (0.5, 0)),
        (lambda p: p.where(job="a").column("age").clamp(20, 100).sum(), geometric(epsilon=1), (0.8, 0), (1, 0)),
        (lambda p: p.where(job="a").column("age").clamp(20, 100).sum(), best(epsilon=1), (0.8, 0), (1, 0)),
        (
            lambda p: p.where(job="a").column("age").clamp(20, 100).sum(),
            best(epsilon=1, delta=0.01),
            (1, 0.01),
            (1, 0.01),
        ),
        (lambda p: p.where(job="a").count(), gaussian(epsilon=1, delta=0.01), (0, 0), (1, 0.01)),
        (lambda p: p.where(job="a").count(), best(epsilon=1, delta=0.01), (0, 0), (1, 0)),
        (lambda p: p.column("age").clamp(0, 3, step=1).mean(), gaussian(epsilon=2, delta=0.02), (2, 0.02), (0, 0)),
        (lambda p: p.column("smoker").posterior(beta(1, 1)), laplace(epsilon=0.5), (0.5, 0), (0, 0)),
    ],
)
def test_the_larger_change_costs_the_whole_budget(make, request_, stay, cross):
    p = program()
    charge = p.release(make(p), request_).charge
    costs = [(cost.epsilon, cost.delta) for cost in (charge.stay, charge.cross)]
    assert costs == [tuple(Fraction(str(x)) for x in pair) for pair in (stay, cross)]


def test_results_are_named_after_their_variables():
    p = program()
    smokers = p.release(p.column("smoker").count(), geometric(epsilon=0.1))
    typed: object = p.release(
        p.column("smoker").count(),
        geometric(epsilon=0.1),
    )
    p.release(p.column("smoker").count(), geometric(epsilon=0.1), name="given")
    parts = [p.release(part.count(), geometric(epsilon=0.1)) for part in p.partition("sex").values()]
    for _ in range(2):
        again = p.release(p.column("smoker").count(), geometric(epsilon=0.1))
    double = p.derive(lambda count: 2 * count, smokers)
    p.derive(lambda a, b: a + b, smokers, double)
    assert [result.name for result in p.releases] == [
        "smokers",
        "typed",
        "given",
        "count of records where sex=F",
        "count of records where sex=M",
        "count of 'smoker'",
        "count of 'smoker' (2)",
    ]
    assert [result.name for result in p.derived] == ["double", "from smokers, double"]
    assert [result.name for result in p.derived[1].inputs] == ["smokers", "double"]
    assert parts[0] is p.releases[3]
    assert typed is p.releases[1]
    assert again is p.releases[6]


def test_names_are_found_after_letters_of_several_bytes(tmp_path):
    (tmp_path / "names.py").write_text(
        "from tacita.programs import *\np = Program(schema=dict(grün=Bool()), n=9, epsilon=1)\n"
        "'äöü'; größe = p.release(p.column('grün').count(), geometric(epsilon=0.5))\n"
    )
    assert [release.name for release in load(tmp_path / "names.py").releases] == ["größe"]


def test_a_tenth_three_times_fits_into_three_tenths():
    p = program(epsilon=0.3)
    for _ in range(3):
        p.release(p.column("smoker").count(), geometric(epsilon=0.1))
    assert p.check().epsilon == Fraction(3, 10)
    p.release(p.column("smoker").count(), geometric(epsilon=1e-4))
    with pytest.raises(ProgramError, match="T012"):
        p.check()


def test_a_partition_is_a_mapping_over_public_labels():
    p = program()
    assert list(p.partition("job")) == ["a", "b", "c"]
    assert list(p.partition("smoker")) == [True, False]
    assert [label for label, _ in p.where(sex="F").partition("job").items()] == ["a", "b", "c"]
    assert len(p.partition(p.column("age").map(lambda a: a > 3, to=Bool()))) == 2
    assert repr(p.partition("job")["a"].count()) == "<private: the count of records where job=a>"


def test_describing_a_handle_is_safe():
    p = program()
    assert repr([p.column("age"), p.where(sex=["M", "F"])]) == (
        "[<private: the column 'age'>, <private: the part where sex=F/M>]"
    )
    released = p.release(p.column("smoker").count(), geometric(epsilon=1))
    assert repr(released) == "<released: 'released', known when the program runs>"
    assert len({released, p.column("age"), p.column("age")}) == 3


def test_labels_of_cells():
    p = program()
    assert p.column("job").histogram().labels == ("a", "b", "c")
    assert p.column("smoker").histogram().labels == (True, False)
    assert p.column("age").clamp(0, 100, 5).histogram(bins=4).labels == ("0 to 25", "25 to 50", "50 to 75", "75 to 100")
    assert p.column("age").clamp(0, 100, 5).sum().labels == ()
    assert p.column("age").clamp(0, 100, 5).sum().unit == 5
    assert p.column("age").clamp(0, 100, 5).histogram(bins=4).unit == 1


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
    p = program(n=50)
    p.release(make(p), request_)
    assert p.check().epsilon == 1
