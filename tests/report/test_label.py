"""The label's data: what is refused, what survives a round trip, and what `public()` leaves out."""

import copy
import json
import math
from dataclasses import replace

import pytest

from tacita import PrivacyError
from tacita.label import GroupRow, Label, Readings


def endless(label):
    return replace(
        label,
        worst=replace(label.worst, epsilon=math.inf),
        curve=((1, 0.5), (2, math.inf)),
        readings=replace(
            label.readings,
            percentiles=((50.0, 0.5), (100.0, math.inf)),
            groups=(replace(label.readings.groups[0], largest=math.inf),),
            curve=((3, math.inf),),
        ),
    )


def test_a_label_survives_json(make_label):
    for label in (make_label("a"), make_label("b").public(), endless(make_label("c"))):
        text = json.dumps(label.to_dict(), allow_nan=False)
        assert Label.from_dict(json.loads(text)) == label


def places(data, path=()):
    """Yield the path of every value in nested plain data."""
    yield path
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in children:
        yield from places(value, (*path, key))


def damaged(data, path, value):
    if not path:
        return value
    result = copy.deepcopy(data)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


COMPUTED = ("sentence", "attack_success", "state", "answers", "text")


def test_a_value_of_the_wrong_type_is_refused_wherever_it_stands(make_label):
    data = make_label("x").to_dict()
    data["curve"], data["readings"]["curve"] = data["curve"][:1], data["readings"]["curve"][:1]
    charts = [finding["chart"] for finding in data["readings"]["audit"] if finding["chart"]]
    for line in (line for chart in charts for line in chart["series"]):
        line["points"] = line["points"][:1]
    paths = [path for path in places(data) if path[-1:] not in {(name,) for name in COMPUTED}]
    assert len(paths) > 200
    for path in paths:
        value = data
        for key in path:
            value = value[key]
        wrong = 5 if isinstance(value, str) or value is None else "wrong"
        with pytest.raises(ValueError, match=r"damaged|Not a privacy label"):
            Label.from_dict(damaged(data, path, wrong))


def test_missing_fields_and_unknown_versions_are_refused(make_label):
    data = make_label("x").to_dict()
    for name in data:
        with pytest.raises(ValueError, match=r"damaged|Not a privacy label"):
            Label.from_dict({key: value for key, value in data.items() if key != name})
    for name in data["readings"]:
        own = {key: value for key, value in data["readings"].items() if key != name}
        with pytest.raises(ValueError, match="damaged"):
            Label.from_dict(data | {"readings": own})
    with pytest.raises(ValueError, match="schema 4"):
        Label.from_dict(data | {"schema": 1})


@pytest.mark.parametrize("value", ["nan", math.nan, -1.0, "0.5", True])
def test_what_is_no_epsilon_is_refused_without_being_quoted(make_label, value):
    data = make_label("x").to_dict()
    data["readings"]["percentiles"][0][1] = value
    with pytest.raises(ValueError, match=r"percentiles? .*must be a number") as caught:
        Label.from_dict(data)
    assert repr(value) not in str(caught.value)


def test_a_reading_cannot_pass_for_a_public_figure(make_label, make_guarantee):
    label = make_label("x")
    with pytest.raises(PrivacyError, match="publishable"):
        replace(label, comparisons=(make_guarantee("x", publishable=False),))
    with pytest.raises(PrivacyError, match="headline must be a worst_case"):
        replace(label, worst=make_guarantee("x", kind="bayesian"))
    data = label.to_dict()
    data["worst"]["publishable"] = False
    with pytest.raises(ValueError, match="publishable"):
        Label.from_dict(data)


def test_texts_must_be_texts(make_label):
    label = make_label("x")
    for changes in (
        {"title": 5},
        {"declared": "one sentence"},
        {"mechanism": (("steps", 2000),)},
        {"worst": "epsilon"},
    ):
        with pytest.raises(TypeError):
            replace(label, **changes)
    with pytest.raises(TypeError, match="whole number"):
        GroupRow(column="a", value="b", records=1.5, median=0.1, p90=0.2, largest=0.3)
    with pytest.raises(ValueError, match="percentages"):
        Readings(percentiles=((101.0, 0.5),))


def test_public_keeps_nothing_of_the_readings_unless_named(make_label):
    label = make_label("x")
    label = replace(label, included=(), readings=replace(label.readings, metrics=(("accuracy", "95%"), ("loss", "1"))))
    assert label.public().readings is None
    assert label.public().included == ()
    assert label.public(["accuracy", "accuracy"]).included == (("accuracy", "95%"),)
    with pytest.raises(ValueError, match="include='recall' is not a metric of this run; there is: 'accuracy', 'loss'"):
        label.public(["recall"])
    with pytest.raises(ValueError, match="none were recorded"):
        label.public().public(["accuracy"])


def test_a_figure_that_is_no_bound_is_never_the_headline(make_label, make_guarantee):
    label = make_label("x")
    comparison = make_guarantee("x", publishable=False, is_bound=False)
    with pytest.raises(PrivacyError, match="publishable"):
        replace(label, worst=comparison)
    with pytest.raises(PrivacyError, match="publishable"):
        replace(label, comparisons=(comparison,))


def test_a_label_and_what_attacks_found_are_one_line_each(make_label):
    label = make_label("A title")
    assert repr(label).startswith(f"<Label {label.title!r}, for the owner: <Guarantee: worst_case: epsilon ")
    assert repr(label.public()).startswith(f"<Label {label.title!r}, public: ")
    for finding in label.readings.audit:
        assert repr(finding) == f"<Finding {finding.key!r}, {finding.state}: {finding.sentence}>"
