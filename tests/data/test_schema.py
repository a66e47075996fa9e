"""A schema is checked as a whole: one line for every mistake, the closest right word beside a wrong one."""

import tomllib

import pytest

from tacita.data import Schema

PEOPLE = """
target = "income"
missing = "zero"
groups = ["job"]
nominal_size = 1000
[columns.age]
type = "real"
low = 0
high = 100
[columns.job]
type = "category"
values = ["clerk", "nurse", "other"]
[columns.smoker]
type = "bool"
[columns.income]
type = "real"
low = 0
high = 1e6
"""


def mistakes(table):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the lines are checked by the caller
        Schema.from_dict(table)
    return str(caught.value).splitlines()


def people(**changes):
    table = tomllib.loads(PEOPLE)
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = table
        for parent in parents:
            place = place[parent]
        place[key] = value
    return table


def test_a_schema_keeps_the_order_of_its_columns():
    schema = Schema.from_dict(tomllib.loads(PEOPLE))
    assert schema.feature_names == ("age", "job=clerk", "job=nurse", "job=other", "smoker")
    assert schema.target_range == (0.0, 1e6)
    assert (schema.missing, schema.nominal_size) == ("zero", 1000)
    assert schema.groups == ("job",)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tagret": "x"}, "unknown key 'tagret', the closest is 'target'."),
        ({"zzz": 1}, "unknown key 'zzz'; the keys are 'missing', 'nominal_size', 'target'"),
        ({"columns__age__hihg": 1}, "columns.age: unknown key 'hihg', the closest is 'high'."),
        ({"columns__job__low": 1}, "columns.job: unknown key 'low'; the keys are 'type', 'values'."),
        ({"columns__age__type": "reel"}, "type must be one of 'real', 'category', 'bool'; got 'reel', the closest is"),
        ({"columns__age": {}}, "columns.age: type must be one of 'real', 'category', 'bool'; it is missing."),
        ({"columns__age": 3}, "columns.age: type must be one of"),
        ({"columns__age__low": 100}, "columns.age: low must be below high, got low=100, high=100."),
        ({"columns__age__low": float("nan")}, "columns.age: low must be a finite number known beforehand"),
        ({"columns__age__high": 10**400}, "columns.age: high must be a finite number"),
        ({"columns__age__high": True}, "columns.age: high must be a finite number"),
        ({"columns__age": {"type": "real", "low": 0}}, "columns.age: high must be a finite number known beforehand"),
        ({"columns__age__scale": "root"}, "columns.age: scale must be one of 'linear', 'log', got 'root'."),
        ({"columns__income__scale": "log"}, "columns.income: scale must be 'linear' for the target"),
        ({"columns__job__values": []}, "columns.job: Category needs 2 to 10000 different labels, got 0."),
        ({"columns__job__values": ["a", "b", "a"]}, "columns.job: Category needs 2 to 10000 different labels, got 2."),
        ({"columns__job__values": ["a", ""]}, "columns.job: Category takes labels one by one"),
        ({"columns__job__values": ["a", 1.5]}, "columns.job: Category takes labels one by one"),
        ({"columns__job__values": "a"}, "columns.job: values must list the values, got 'a'."),
        ({"columns__ x": {"type": "bool"}}, "columns. x: a column's name must not be empty"),
        ({"columns": {}}, "columns is missing"),
        ({"columns": {"income": {"type": "bool"}}, "groups": []}, "columns holds only the target"),
        ({"target": "incom"}, "target must be one of the columns; got 'incom', the closest is 'income'."),
        ({"target": None}, "target must be one of the columns; it is missing."),
        (
            {"target": "job", "columns__job__values": ["a"]},
            "columns.job: Category needs 2 to 10000",
        ),
        ({"missing": "mean"}, "missing must be one of 'zero', 'drop', 'error', got 'mean'."),
        ({"groups": "job"}, "groups must list columns, each once, got 'job'."),
        ({"groups": ["job", "job"]}, "groups must list columns, each once"),
        ({"groups": ["jobs"]}, "groups must list columns, got 'jobs', the closest is 'job'."),
        ({"groups": ["age"]}, "groups must list category or bool columns; 'age' is real."),
        ({"nominal_size": 0}, "nominal_size must be a whole number of at least 1, got 0."),
        ({"nominal_size": True}, "nominal_size must be a whole number"),
        ({"columns__age__whole": "yes"}, "columns.age: whole must be true or false"),
    ],
)
def test_each_mistake_has_its_line(changes, line):
    (found,) = mistakes(people(**changes))
    assert line in found


def test_all_mistakes_are_told_at_once():
    table = people(tagret="x", missing="mean", columns__age__low=200, columns__job__values=[])
    assert len(mistakes(table)) == 4  # of four parts


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ({"inputs": {"low": 0, "high": 255, "shape": [2]}}, ["inputs and targets must both be tables"]),
        (
            {"inputs": {"low": 1, "high": 0, "shape": [0], "depth": 1}, "targets": {"classes": ["a"], "low": 1}},
            [
                "inputs: unknown key 'depth'",
                "targets: unknown key 'low'",
            ],
        ),
        ({"inputs": {"low": 0, "high": 1, "shape": [2]}, "targets": {"low": 0}}, ["targets: high must be a finite"]),
        (
            {"inputs": {"low": 0, "high": 1, "shape": [2]}, "targets": {"low": 0, "high": 1}, "groups": []},
            ["unknown key 'groups'"],
        ),
    ],
)
def test_array_schemas_are_checked_too(table, lines):
    found = mistakes(table)
    assert len(found) == len(lines)
    assert all(line in text for line, text in zip(lines, found, strict=True))


def test_a_schema_is_a_table():
    with pytest.raises(TypeError, match="table of keys, got list"):
        Schema.from_dict([])


@pytest.mark.parametrize(
    "table",
    [
        tomllib.loads(PEOPLE),
        people(missing="drop", columns__age__scale="log", columns__age__whole=True),
        {"inputs": {"low": 0, "high": 255, "shape": [1, 2]}, "targets": {"classes": ["a", "b"]}, "nominal_size": 9},
        {"inputs": {"low": 0, "high": 1, "shape": [3]}, "targets": {"low": -1, "high": 4}},
    ],
)
def test_a_schema_is_read_back_from_what_it_writes(table):
    schema = Schema.from_dict(table)
    assert Schema.from_dict(schema.to_dict()) == schema
