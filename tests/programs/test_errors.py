"""Ill-typed programs: each is refused without data, with its code, its line, and carets under the very expression."""

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

from tacita.programs import Program, ProgramError, Real
from tacita.programs.errors import CODES
from tests.programs.surveys import check, marked

HEAD = """\
from tacita.programs import *
p = Program(schema=dict(smoker=Bool(), job=Category("a", "b", "c"), age=Real()), n=1000, epsilon=1, delta=1e-6)
smoker, job, age = p.column("smoker"), p.column("job"), p.column("age")
"""  # so a body starts at line 4


BAD = {
    # body, code, line, what the carets are under (None: all that is right of the assignment)
    "unknown column": ('x = p.column("agee").clamp(0, 1, step=1)', "T001", 4, 'p.column("agee")'),
    "unknown column in a condition": ("x = p.where(jobs='a')", "T001", 4, "p.where(jobs='a')"),
    "unknown category": ("x = p.where(job=['a', 'z'])", "T002", 4, "p.where(job=['a', 'z'])"),
    "unknown label of a partition": ("x = p.partition('job')['z']", "T002", 4, "p.partition('job')['z']"),
    "no truth value": ("x = p.where(smoker='maybe')", "T002", 4, "p.where(smoker='maybe')"),
    "condition on a real": ("x = p.where(age=3)", "T003", 4, "p.where(age=3)"),
    "partition of a real": ("x = p.partition('age')", "T003", 4, "p.partition('age')"),
    "a category as a truth": ("x = p.where(job)", "T003", 4, "p.where(job)"),
    "a number as a condition": ("x = p.where(age.map(abs, low=0, high=9, step=1))", "T003", 4, None),
    "unbounded sum": (
        'total = p.release(p.column("age").sum(), geometric(epsilon=0.5))',
        "T004",
        4,
        'p.column("age").sum()',
    ),
    "unbounded mean": ("x = age.mean()", "T004", 4, "age.mean()"),
    "histogram of a real": ("x = age.histogram(bins=3)", "T005", 4, "age.histogram(bins=3)"),
    "posterior of a real": ("x = age.posterior(normal(0, 1, record_sd=1))", "T005", 4, None),
    "noise on a real": ("x = p.release(age, geometric(epsilon=1))", "T005", 4, "p.release(age, geometric(epsilon=1))"),
    "unbounded map": ("x = age.map(abs)", "T005", 4, "age.map(abs)"),
    "half a bound": ("x = age.map(abs, low=3)", "T005", 4, "age.map(abs, low=3)"),
    "bounds the wrong way": ("x = age.clamp(3, 2)", "T006", 4, "age.clamp(3, 2)"),
    "a bound beside the grid": ("x = age.clamp(0, 1, step=0.3)", "T006", 4, "age.clamp(0, 1, step=0.3)"),
    "an infinite bound": ("x = age.clamp(0, float('inf'))", "T006", 4, "age.clamp(0, float('inf'))"),
    "no step": ("x = age.clamp(0, 1, step=0)", "T006", 4, "age.clamp(0, 1, step=0)"),
    "too fine a grid": ("x = age.clamp(0, 1, step=1e-12)", "T006", 4, "age.clamp(0, 1, step=1e-12)"),
    "beta for three": ("x = job.posterior(beta(1, 1))", "T007", 4, "job.posterior(beta(1, 1))"),
    "normal for truth": ("x = smoker.posterior(normal(0, 1, record_sd=1))", "T007", 4, None),
    "beta for numbers": ("x = age.clamp(0, 1, step=1).posterior(beta(1, 1))", "T007", 4, None),
    "a model uncalled": ("x = smoker.posterior(beta)", "T008", 4, "smoker.posterior(beta)"),
    "a number as a model": ("x = smoker.posterior(3)", "T008", 4, "smoker.posterior(3)"),
    "mean in a part": (
        "x = p.where(job='a').column('age').clamp(0, 9, step=1).mean()",
        "T009",
        4,
        "p.where(job='a').column('age').clamp(0, 9, step=1).mean()",
    ),
    "normal in a part": (
        "part = p.where(job='a').column('age').clamp(0, 9, step=1)\nx = part.posterior(normal(0, 1, record_sd=1))",
        "T009",
        5,
        "part.posterior(normal(0, 1, record_sd=1))",
    ),
    "rows": ("x = p.release(job, geometric(epsilon=1))", "T010", 4, "p.release(job, geometric(epsilon=1))"),
    "a part": ("x = p.release(p.where(job='a'), geometric(epsilon=1))", "T010", 4, None),
    "released twice": (
        "x = p.release(smoker.count(), geometric(epsilon=0.1))\ny = p.release(x, geometric(epsilon=0.1))",
        "T010",
        5,
        "p.release(x, geometric(epsilon=0.1))",
    ),
    "derived from a private value": ("x = p.derive(abs, smoker.count())", "T010", 4, "p.derive(abs, smoker.count())"),
    "gaussian on cells": ("x = p.release(job.histogram(), gaussian(epsilon=1, delta=1e-7))", "T011", 4, None),
    "laplace on a sum": ("x = p.release(age.clamp(0, 9, step=1).sum(), laplace(epsilon=1))", "T011", 4, None),
    "exponential in a part": (
        "q = p.where(job='a').column('smoker').posterior(beta(1, 1))\n"
        "x = p.release(q, exponential(epsilon=1, delta=1e-7))",
        "T011",
        5,
        "p.release(q, exponential(epsilon=1, delta=1e-7))",
    ),
    "two-cell sensitivity": (
        "q = job.posterior(dirichlet(1, 1, 1))\nx = p.release(q, laplace(epsilon=1, sensitivity='histogram'))",
        "T011",
        5,
        "p.release(q, laplace(epsilon=1, sensitivity='histogram'))",
    ),
    "two-cell score": (
        "q = job.posterior(dirichlet(1, 1, 1))\nx = p.release(q, exponential(epsilon=1, delta=1e-7, score='lecam'))",
        "T011",
        5,
        "p.release(q, exponential(epsilon=1, delta=1e-7, score='lecam'))",
    ),
    "over budget": (
        "a = p.release(smoker.count(), geometric(epsilon=0.75))\nb = p.release(job.histogram(), best(epsilon=0.5))",
        "T012",
        5,
        "p.release(job.histogram(), best(epsilon=0.5))",
    ),
    "over the delta": (
        "a = p.release(smoker.count(), gaussian(epsilon=0.5, delta=1e-5))",
        "T012",
        4,
        "p.release(smoker.count(), gaussian(epsilon=0.5, delta=1e-5))",
    ),
    "another program's query": (
        "def other():\n    return Program(schema=dict(x=Bool()), n=9, epsilon=9).column('x').count()\n"
        "y = p.release(other(), geometric(epsilon=1))",
        "T013",
        6,
        "p.release(other(), geometric(epsilon=1))",
    ),
    "another program's result": (
        "def other():\n    q = Program(schema=dict(x=Bool()), n=9, epsilon=9)\n"
        "    return q.release(q.column('x').count(), geometric(epsilon=1))\n"
        "y = p.derive(abs, other())",
        "T013",
        7,
        "p.derive(abs, other())",
    ),
    "another program's column": (
        "def other():\n    return Program(schema=dict(x=Bool()), n=9, epsilon=9).column('x')\ny = p.partition(other())",
        "T013",
        6,
        "p.partition(other())",
    ),
    "a name twice": (
        "p.release(smoker.count(), geometric(epsilon=0.1), name='x')\n"
        "p.release(smoker.count(), geometric(epsilon=0.1), name='x')",
        "T014",
        5,
        "p.release(smoker.count(), geometric(epsilon=0.1), name='x')",
    ),
    "if": ("if smoker.count():\n    pass", "T015", 4, "smoker.count()"),
    "while": ("while age:\n    pass", "T015", 4, "age"),
    "and": ("x = smoker and job", "T015", 4, "smoker and job"),
    "elif": ("if False:\n    pass\nelif job:\n    pass", "T015", 6, "job"),
    "if else": ("x = [1 if smoker else 2]", "T015", 4, "smoker"),
    "assert": ("assert age, 'none'", "T015", 4, "age"),
    "a filter": ("x = [y for y in (1, 2) if age]", "T015", 4, None),
    "greater": ("x = [1, age.clamp(0, 9, step=1).mean() > 3]", "T016", 4, "age.clamp(0, 9, step=1).mean() > 3"),
    "equal": ("x = 3 == smoker.count()", "T016", 4, "3 == smoker.count()"),
    "a private condition": ("x = p.where(job=job)", "T016", 4, "p.where(job=job)"),
    "print": ("print(smoker.count())", "T017", 4, "print(smoker.count())"),
    "format": ("x = 'it is {}'.format(age)", "T017", 4, "'it is {}'.format(age)"),
    "f-string": ("x = f'{age}'", "T017", 4, None),
    "for": ("for x in age:\n    pass", "T018", 4, "age"),
    "a comprehension": ("x = [y for y in age]", "T018", 4, None),
    "unpacking": ("x, y = age", "T018", 4, "x, y"),
    "len": ("x = len(p.where(job='a'))", "T018", 4, "len(p.where(job='a'))"),
    "in": ("x = 3 in age", "T018", 4, "3 in age"),
    "index": ("x = 1 + age[0]", "T018", 4, "age[0]"),
    "float": ("x = float(smoker.count())", "T019", 4, "float(smoker.count())"),
    "arithmetic": ("x = 1 - smoker.count() / 2", "T019", 4, "smoker.count() / 2"),
    "rounding": ("x = round(age)", "T019", 4, "round(age)"),
    "sum()": ("x = sum([age, age])", "T019", 4, "sum([age, age])"),
    "math": ("import math\nx = math.exp(age)", "T019", 5, "math.exp(age)"),
    "range": ("x = range(smoker.count())", "T019", 4, "range(smoker.count())"),
    "a private epsilon": ("x = geometric(epsilon=smoker.count())", "T019", 4, "geometric(epsilon=smoker.count())"),
    "value": ("x = smoker.count().value", "T020", 4, "smoker.count().value"),
    "misspelt method": ("x = age.clmap(0, 1)", "T020", 4, "age.clmap"),
    "a result too early": (
        "x = p.release(smoker.count(), geometric(epsilon=1))\nif x > 3:\n    pass",
        "T021",
        5,
        "x > 3",
    ),
    "a result printed": ("x = p.release(smoker.count(), geometric(epsilon=1))\nprint(x)", "T021", 5, "print(x)"),
    "a result's mean": ("x = p.release(smoker.count(), geometric(epsilon=1))\ny = x.mean", "T021", 5, "x.mean"),
    "sum of categories": ("x = job.sum()", "T022", 4, "job.sum()"),
    "count of numbers": ("x = age.count()", "T022", 4, "age.count()"),
    "clamped truth": ("x = smoker.clamp(0, 1, step=1)", "T022", 4, "smoker.clamp(0, 1, step=1)"),
    "several programs": ("q = Program(schema=dict(x=Bool()), n=9, epsilon=9)", "T024", 4, None),
    "nothing released": ("x = smoker.count()", "T025", 2, None),
    "data": ("p.run('nowhere.csv')", "T026", 4, "p.run('nowhere.csv')"),
    "an error before the data": ("x = age.sum()\np.run('nowhere.csv')", "T004", 4, "age.sum()"),
    "a bad epsilon": ("x = geometric(epsilon=-1)", "T027", 4, "geometric(epsilon=-1)"),
    "local sensitivity": ("x = exponential(epsilon=1, sensitivity='local')", "T027", 4, None),
    "a mechanism uncalled": ("x = p.release(smoker.count(), geometric)", "T027", 4, None),
    "a map that is no function": (
        "x = age.map(3, low=0, high=1, step=1)",
        "T027",
        4,
        "age.map(3, low=0, high=1, step=1)",
    ),
    "a name as a condition": ("x = p.where('job')", "T027", 4, "p.where('job')"),
    "a derivation that is no function": ("x = p.derive(3)", "T027", 4, "p.derive(3)"),
    "a derivation of a number": ("x = p.derive(abs, 3)", "T027", 4, "p.derive(abs, 3)"),
    "a number as a name": ("x = p.release(smoker.count(), geometric(epsilon=1), name=3)", "T027", 4, None),
    "a number released": ("x = p.release(3, geometric(epsilon=1))", "T027", 4, "p.release(3, geometric(epsilon=1))"),
    "no condition": ("x = p.where()", "T027", 4, "p.where()"),
    "bins for categories": ("x = job.histogram(bins=3)", "T027", 4, "job.histogram(bins=3)"),
    "one bin": ("x = age.clamp(0, 9).histogram(bins=1)", "T027", 4, "age.clamp(0, 9).histogram(bins=1)"),
    "a function that fails on a label": ("x = job.map({'a': 1}.__getitem__, low=0, high=9)", "T029", 4, None),
    "a function that returns a handle": ("x = job.map(lambda v: smoker, to=Bool())", "T029", 4, None),
    "a function that returns a handle now and then": (
        "x = age.map(lambda v: smoker if v == 40 else 1, low=0, high=1)",
        "T029",
        4,
        "age.map(lambda v: smoker if v == 40 else 1, low=0, high=1)",
    ),
    "a function that returns a result": (
        "y = p.release(smoker.count(), geometric(epsilon=0.1))\nz = age.map(lambda v: y, low=0, high=1)",
        "T029",
        5,
        None,
    ),
    "a function that is returned, not called": ("x = job.map(lambda v: v.isdigit, to=Bool())", "T029", 4, None),
    "a word for a truth value": ("x = job.map(lambda v: 'no', to=Bool())", "T029", 4, None),
    "a function that returns no number": ("x = job.map(lambda v: v, low=0, high=1)", "T029", 4, None),
    "a function that counts its calls": (
        "seen = []\nx = smoker.map(lambda v: seen.append(v) or len(seen) % 2, low=-1, high=1)",
        "T030",
        5,
        "smoker.map(lambda v: seen.append(v) or len(seen) % 2, low=-1, high=1)",
    ),
    "a function that remembers the call before": (
        "last = [0.0]\nx = age.map(lambda v: (last[0], last.__setitem__(0, v))[0], low=0, high=9)",
        "T030",
        5,
        None,
    ),
    "a function that fails the second time": (
        "left = [1.0, 2.0, 3.0]\nx = job.map(lambda v: left.pop(), low=0, high=9)",
        "T030",
        5,
        None,
    ),
    "a derivation of too few results": (
        "y = p.release(smoker.count(), geometric(epsilon=0.1))\nz = p.derive(lambda a, b: a, y)",
        "T027",
        5,
        "p.derive(lambda a, b: a, y)",
    ),
    "one category": ("x = Category('a')", "T027", 4, "Category('a')"),
    "a function that always fails": (
        "x = age.map(lambda v: v >= limit, to=Bool())",
        "T029",
        4,
        "age.map(lambda v: v >= limit, to=Bool())",
    ),
    "a handle inside map": ("x = age.map(lambda v: v >= smoker, to=Bool())", "T016", 4, "v >= smoker"),
    "a result inside derive": (
        "y = p.release(smoker.count(), geometric(epsilon=0.1))\nz = p.derive(lambda: y.value)",
        "T021",
        5,
        "p.derive(lambda: y.value)",
    ),
    "too many posteriors": (
        "x = p.release(job.posterior(dirichlet(1, 1, 1)), exponential(epsilon=0.1, delta=1e-7))",
        "T011",
        4,
        None,
    ),
    "an unnamed error": ("x = undefined + 1", "T028", 4, "undefined"),
    "a syntax error": ("x = = 1", "T028", 4, "="),
    "a wrong call": ("x = geometric(0.5)", "T028", 4, "geometric(0.5)"),
    "the end": ("raise SystemExit('enough')", "T028", 4, "raise SystemExit('enough')"),
}


@pytest.mark.parametrize(("body", "code", "line", "carets"), BAD.values(), ids=BAD)
def test_an_ill_typed_program_is_refused(body, code, line, carets, tmp_path):
    result = check(HEAD + body + "\n", tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    first, place = result.stderr.splitlines()[:2]
    assert first.startswith(f"error[{code}]: ")
    assert re.fullmatch(rf" +--> bad\.py:{line}:\d+", place)
    whole = (HEAD + body).splitlines()[line - 1].split(" = ", 1)[-1]
    assert marked(result.stderr) == (carets or whole)
    assert list(tmp_path.iterdir()) == [tmp_path / "bad.py"]


def test_every_code_has_an_ill_typed_program():
    assert {code for _, code, _, _ in BAD.values()} | {"T023"} == set(CODES)


def test_the_rendering_is_exact(tmp_path):
    result = check(
        "from tacita.programs import *\n"
        "p = Program(schema=dict(age=Real()), n=10, epsilon=1)\n"
        'age = p.column("age")\n\n'
        "total = p.release(age.sum(), geometric(epsilon=0.5))\n",
        tmp_path,
        name="survey.py",
    )
    assert result.stderr == (
        "error[T004]: the sum of 'age' has no bound, so no noise can hide one record\n"
        "  --> survey.py:5:19\n"
        "   |\n"
        " 5 | total = p.release(age.sum(), geometric(epsilon=0.5))\n"
        "   |                   ^^^^^^^^^\n"
        "   |\n"
        ' 3 | age = p.column("age")\n'
        "   |       --------------- the handle was made here\n"
        "   |\n"
        '   = help: clamp it, to bounds known without the data: p.column("age").clamp(0, 100).sum()\n'
    )


def test_the_budget_error_points_at_every_release(tmp_path):
    result = check(
        HEAD + "a = p.release(smoker.count(), geometric(epsilon=0.5))\n"
        "b = {k: p.release(v.count(), geometric(epsilon=0.25)) for k, v in p.partition('job').items()}\n"
        "c = p.release(\n    job.histogram(),\n    geometric(epsilon=0.3),\n)\n",
        tmp_path,
    )
    assert "cost epsilon 1.3 together, more than the budget of 1\n" in result.stderr
    assert marked(result.stderr) == "p.release(\njob.histogram(),\ngeometric(epsilon=0.3),\n)"
    assert marked(result.stderr, "-").splitlines() == [
        "p.release(smoker.count(), geometric(epsilon=0.5))",
        "p.release(v.count(), geometric(epsilon=0.25))",
    ]
    for words in (
        "| )\n   | ^ costs epsilon 0.3\n",
        "costs epsilon 0.5",
        "3 releases, each costs epsilon up to 0.25",
        "multiply every epsilon by 0.7692",
    ):
        assert words in result.stderr
    assert "which is what the others leave" not in result.stderr  # nothing is left


def test_what_the_budget_error_proposes_fits(tmp_path):
    body = (
        "a = p.release(smoker.count(), geometric(epsilon={}))\nb = p.release(job.histogram(), geometric(epsilon={}))\n"
    )
    said = check(HEAD + body.format(0.7, 0.6), tmp_path).stderr
    factor = float(re.search(r"multiply every epsilon by (\S+)", said)[1])
    left = float(re.search(r"give 'b' epsilon=([\d.]+)", said)[1])
    assert factor == pytest.approx(1 / 1.3, rel=1e-3)
    assert left == 0.3
    assert check(HEAD + body.format(0.7 * factor, 0.6 * factor), tmp_path).returncode == 0
    assert check(HEAD + body.format(0.7, left), tmp_path).returncode == 0
    assert check(HEAD + body.format(0.7, left + 1e-3), tmp_path).returncode == 1


def test_a_program_without_delta_says_how_to_get_one(tmp_path):
    source = HEAD.replace(", delta=1e-6", "") + "x = p.release(smoker.count(), gaussian(epsilon=1, delta=1e-6))\n"
    said = check(source, tmp_path).stderr
    assert "cost delta 1e-06 together, more than the budget of 0\n" in said
    assert "= help: give the program a delta, such as Program(..., delta=1e-6)" in said


def test_long_calls_are_shown_in_part(tmp_path):
    body = "x = age.clamp(\n" + "    # a comment\n" * 9 + "    3, 2)\n"
    said = check(HEAD + body, tmp_path).stderr
    assert said.count("# a comment") == 5
    assert said.rstrip().endswith("| …")


def test_carets_of_calls_over_several_lines(tmp_path):
    body = "x = [\n    age\n    .clamp(\n        3,\n        2,\n    ),\n]\n"
    result = check(HEAD + body, tmp_path)
    assert result.stderr.startswith("error[T006]")
    assert marked(result.stderr) == "clamp(\n3,\n2,\n)"


def test_carets_after_wide_letters_and_tabs(tmp_path):
    result = check(HEAD + "if True:\n\t'äöü 日本'; x = age.mean()\n", tmp_path)
    source, marks = result.stderr.splitlines()[3:5]
    width = sum(2 if letter in "日本" else 1 for letter in source[: source.index("age")])
    assert marks.index("^") == width
    assert marks.count("^") == len("age.mean()")
    assert "bad.py:5:16" in result.stderr


def test_json_holds_code_message_spans_and_help(tmp_path):
    result = check(HEAD + "x = age.mean()\n", tmp_path, "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 1
    assert result.stderr == ""
    assert document["ok"] is False
    error = document["error"]
    assert (error["code"], error["title"]) == ("T004", CODES["T004"])
    assert error["message"].startswith("the mean of 'age'")
    assert "clamp" in error["help"]
    primary, secondary = error["spans"]
    place = {"file": "bad.py", "line": 4, "column": 5, "end_line": 4, "end_column": 15, "label": "", "primary": True}
    assert primary == place
    assert secondary["label"] == "the handle was made here"


HELP = {
    'x = p.column("agee")': "did you mean 'age'?",
    'x = p.column("salary")': "there are: 'smoker', 'job', 'age'",
    "x = p.where(job='d')": "there are: 'a', 'b', 'c'",
    "x = age.clmap(0, 1)": "did you mean 'clamp'?",
    "x = age.clamp(0, 1, step=0.3)": "the nearest ones are 0.9 and 1.2",
    "x = job.posterior(beta(1, 1))": "use dirichlet(1, 1, 1)",
    "x = age.clamp(0, 1, step=1).posterior(beta(1, 1))": "use normal(0, 10, record_sd=1)",
    "x = p.where(job='a').column('age').clamp(0, 9).mean()": "release .sum() of the column and .count() of the part",
    "if age:\n    pass": "p.where(...)",
}


@pytest.mark.parametrize(("body", "help_"), HELP.items())
def test_the_way_out(body, help_, tmp_path):
    assert help_ in check(HEAD + body + "\n", tmp_path).stderr.split("= help: ")[1]


def test_errors_are_privacy_errors_that_survive_pickling_and_copying():
    p = Program(schema={"age": Real()}, n=10, epsilon=9)
    with pytest.raises(ValueError, match=r"error\[T004\]") as refusal:
        p.column("age").sum()
    again = pickle.loads(pickle.dumps(refusal.value))
    assert str(again) == str(refusal.value)
    assert again.code == "T004"
    assert copy.copy(p.column("age")).name == "age"


def test_errors_without_source_are_shown_too():
    names = {"Program": Program, "Real": Real}
    with pytest.raises(ProgramError) as refusal:
        exec("p = Program(schema={'age': Real()}, n=1, epsilon=1)\np.column('age').sum()", names)
    assert str(refusal.value).startswith("error[T004]")
    assert refusal.value.span.line == 2
    assert refusal.value.span.text == ""


def test_the_documentation_shows_every_code_as_it_is(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
    head = re.search(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    sections = re.findall(r"^## (T\d+) (.*?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert {code: title for code, title, _ in sections} == CODES
    for code, _, text in sections:
        example, shown = re.search(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE).groups()
        said = check(example if code == "T023" else head + example, tmp_path, name="survey.py").stderr
        assert said == shown
