"""Spans, and the variables that results are assigned to."""

from tacita.programs import (
    Bool,
    Category,
    Program,
    Real,
    geometric,
)
from tacita.programs.loading import load
from tacita.programs.source import Span


def four_columns(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


def test_results_are_named_after_their_variables():
    p = four_columns()
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


def test_spans_hold_what_lies_in_them():
    outer = Span("a", 2, 4, 5, 1)
    assert outer.holds(Span("a", 2, 4, 2, 9))
    assert outer.holds(outer)
    assert not outer.holds(Span("b", 3, 0, 3, 1))
    assert not outer.holds(Span("a", 2, 3, 2, 9))
    assert not outer.holds(Span("a", 5, 0, 5, 2))
