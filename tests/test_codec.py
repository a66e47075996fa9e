"""Dataclasses to JSON and back: what is refused, and that no refused value is quoted."""

import json
import math
from dataclasses import dataclass
from typing import Literal

import pytest

from tacita import _codec


@dataclass(frozen=True)
class Inner:
    name: str
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    inner: Inner
    maybe: Inner | None = None
    several: tuple[Inner, ...] = ()
    size: float = 1.0
    on: bool = False


FULL = Outer("a", Inner("x", ((1, math.inf),)), Inner("y"), (Inner("z"), Inner("w")), 0.5, True)


def test_a_round_trip_keeps_everything():
    text = json.dumps(_codec.to_plain(FULL), allow_nan=False)
    assert _codec.from_plain(Outer, json.loads(text)) == FULL


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kind",), "secret-42"),
        (("inner",), None),
        (("inner", "name"), 42),
        (("inner", "points"), "42"),
        (("inner", "points"), [[1.5, 2.0]]),
        (("inner", "points"), [[1, True]]),
        (("inner", "points"), [[1]]),
        (("several",), {"name": "42"}),
        (("size",), math.nan),
        (("size",), "42"),
        (("on",), 1),
        (("extra",), 42),
    ],
)
def test_what_does_not_fit_is_refused_without_being_quoted(path, value):
    data = json.loads(json.dumps(_codec.to_plain(FULL)))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=r"must be|has no field|shorter") as caught:
        _codec.from_plain(Outer, data)
    assert "42" not in str(caught.value)


def test_missing_fields_are_refused():
    data = _codec.to_plain(FULL)
    for name in data:
        with pytest.raises(ValueError, match=f"lacks the field '{name}'"):
            _codec.from_plain(Outer, {key: part for key, part in data.items() if key != name})
