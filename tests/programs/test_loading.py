"""A file is executed without data, and holds one program."""

import sys
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from tacita.cli.app import app
from tacita.programs.loading import load
from tests.programs.surveys import SMOKERS, check, marked

SURVEY = """\
from tacita.programs import Program, Bool, Category, Real, beta, dirichlet, geometric, best
p = Program(schema=dict(smoker=Bool(), job=Category(3), age=Real()), n=1000, epsilon=1.5, delta=0.0)
smoking = p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
jobs    = p.release(p.column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=0.5))
age     = p.release(p.column("age").clamp(0, 100, step=1).mean(), geometric(epsilon=0.5))
"""


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


def command(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_no_thread_reads_data_while_a_program_is_checked(folder):
    (folder / "survey.py").write_text(
        SMOKERS + "import threading\nfound = []\n"
        "def attempt():\n    try: found.append(p.run('people.csv'))\n"
        "    except Exception as error: found.append(error)\n"
        "thread = threading.Thread(target=attempt); thread.start(); thread.join()\n"
        "assert 'T026' in str(found[0])\n"
    )
    assert command("check", "survey.py").exit_code == 0


HEAD = """\
from tacita.programs import *
p = Program(schema=dict(smoker=Bool(), job=Category("a", "b", "c"), age=Real()), n=1000, epsilon=1, delta=1e-6)
smoker, job, age = p.column("smoker"), p.column("job"), p.column("age")
"""  # so a body starts at line 4


@pytest.mark.parametrize("source", ["", "x = 1\n", "from tacita.programs import *\nprograms = []\n"])
def test_a_file_without_a_program(source, tmp_path):
    result = check(source, tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error[T023]")


def test_an_error_in_an_imported_file_is_shown_there(tmp_path):
    (tmp_path / "part_of_a_program.py").write_text("def double(column):\n    return column * 2\n")
    result = check("from part_of_a_program import double\n" + HEAD + "x = double(age)\n", tmp_path)
    assert "part_of_a_program.py:2:12" in result.stderr
    assert marked(result.stderr) == "column * 2"
    assert "::: bad.py:4:" in result.stderr
