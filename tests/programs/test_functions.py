"""Functions that a program applies to records."""

import numpy as np
import pytest

from tacita.programs import Bool, Category, Program, Real
from tacita.programs.tables import exact_numbers, read

SCHEMA = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real()}


def program(n=3, **schema):
    return Program(schema=schema or SCHEMA, n=n, epsilon=100)


def test_maps_are_forced_into_what_they_declare():
    p = program(3)
    table = read(p, {"smoker": [1, 0, 1], "job": list("abc"), "age": [30, float("nan"), 70]})

    def fails(value):
        if value != 1.0:  # one of the values that are tried beforehand
            raise SystemExit(value)
        return 1

    def senseless(value):
        return 10**400 if value == 30 else "nonsense" if value == 70 else value

    def first_only(value):  # it does not begin before it was tried
        if changes:
            changes.append(value)
        return len(changes) <= 2

    age, job, smoker = p.column("age"), p.column("job"), p.column("smoker")
    asked = {
        "bounded above": (age.map(lambda v: v**9, low=0, high=10, step=1).sum(), (20,)),
        "infinite": (age.map(lambda v: float("inf"), low=0, high=10, step=1).sum(), (30,)),
        "exceptions": (age.map(fails, low=-3, high=10, step=1).sum(), (-9,)),
        "exceptions in labels": (age.map(fails, to=Category("x", "y", "z", other="z")).histogram(), (0, 0, 3)),
        "nonsense and huge": (age.map(senseless, low=2, high=10, step=1).sum(), (6,)),
        "labels are seen": (job.map(lambda v: v == "b", to=Bool()).count(), (1,)),
        "truth is seen": (smoker.map(lambda v: 5 if v is True else 1, low=0, high=9, step=1).sum(), (11,)),
        "unknown labels": (job.map(lambda v: v + v, to=Category("aa", "bb")).histogram(), (2,)),
        "clamped numbers are seen": (age.clamp(0, 50, step=50).map(lambda v: v, low=0, high=100).sum(), (100,)),
        "clamped again": (age.clamp(0, 100).clamp(40, 60, step=20).sum(), (2 + 2 + 3,)),
        "mapped again": (age.map(lambda v: v + 1, low=0, high=99).map(lambda v: -v, low=-99, high=0).sum(), (-102,)),
    }
    for name, (query, expected) in asked.items():
        assert exact_numbers(query, table) == expected, name
    changes = []
    parts = p.partition(age.map(first_only, to=Bool()))
    changes.append(None)
    found = [exact_numbers(part.count(), table) for part in parts.values()]
    assert found == [(1,), (2,)]  # one value a record, although the function would change its mind


def test_a_clamp_after_a_map_calls_the_function_once():
    p = program(4, x=Real())
    table = read(p, {"x": [1.0, 2.0, 3.0, 4.0]})
    mapped = p.column("x").map(lambda v: v * 10, low=0, high=100)
    assert exact_numbers(mapped.clamp(0, 90).sum(), table) == (100,)
    assert exact_numbers(mapped.clamp(0, 90).map(lambda v: v + 1, low=0, high=100).sum(), table) == (104,)


def test_warnings_of_a_map_are_not_shown(recwarn):
    import warnings

    p = program(3, x=Real())
    warnings.simplefilter("always")

    def talks(value):
        if value < 0:
            warnings.warn("negative", stacklevel=1)
            return np.log(value)
        return value

    mapped = p.column("x").map(talks, low=0, high=9, step=1)
    recwarn.clear()
    assert exact_numbers(mapped.sum(), read(p, {"x": [1.0, -1.0, 2.0]})) == (3,)
    assert not recwarn.list


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, RecursionError])
def test_whatever_a_function_raises_on_a_record_counts_as_the_lower_bound(raised):
    p = program(3, x=Real())

    def fails(value):
        if value == 31337.25:
            raise raised(value)
        return value

    mapped = p.column("x").map(fails, low=0, high=9, step=1)
    assert exact_numbers(mapped.sum(), read(p, {"x": [4.0, 31337.25, 3.0]})) == (7,)


def test_records_of_few_possible_values_look_up_what_the_function_said_before_there_were_data():
    p = program(4)
    calls = []
    ages = p.column("age").clamp(0, 100, step=10)
    mapped = [column.map(lambda v: calls.append(v) or 1.0, low=0, high=1, step=1) for column in (p.column("job"), ages)]
    calls.clear()
    table = read(p, {"smoker": [1, 0, 1, 1], "job": list("abca"), "age": [30, float("nan"), 70.1, 1e9]})
    assert [exact_numbers(column.sum(), table) for column in mapped] == [(4,), (4,)]
    assert calls == []
