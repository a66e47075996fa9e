"""Programs and tables for the tests of this folder and of the commands."""

import contextlib
import io
import re
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from tacita.cli import main
from tacita.programs import Bool, Category, Program, Real

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


def write_survey(tmp_path):
    """Write a program and its table."""
    (tmp_path / "survey.py").write_text(SMOKERS)
    columns = people()
    lines = ["age,smoker,job"] + [f"{a:.1f},{s},{j}" for s, j, a in zip(*columns.values(), strict=True)]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def check(source, tmp_path, *options, name="bad.py"):
    (tmp_path / name).write_text(source)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(tmp_path),
        mock.patch.object(sys, "argv", ["tacita", "check", name, *options]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return SimpleNamespace(returncode=end.value.code, stdout=out.getvalue(), stderr=err.getvalue())


def marked(text, mark="^"):
    """Return the source that stands above marks."""
    pieces = []
    for above, below in zip(text.splitlines(), text.splitlines()[1:], strict=False):
        found = re.fullmatch(r" +\|( *)(\^+|-+)( .*)?", below)
        if found and found[2][0] == mark:
            start = below.index(found[2])
            pieces.append(above[start : start + len(found[2])])
    return "\n".join(pieces)
