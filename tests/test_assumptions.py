"""Assumptions are told apart by code; their sentences may be changed without changing what a program does."""

import pytest

from tacita import assumptions
from tacita.assumptions import Assumption, assume, declare


def test_every_code_has_a_sentence_and_somebody_who_answers():
    for code, (state, answers, text) in assumptions._KNOWN.items():
        assert state in ("holds", "open", "warning")
        assert (answers == "software") == (state == "holds")
        assert text
        assert not text.endswith(".")
        assert code == code.lower()


def test_json_keeps_code_and_values_and_computes_the_rest_again():
    found = assume("end-declared", reason="the {machine} was needed")
    data = found.to_dict() | {"text": "something else", "state": "holds"}
    assert Assumption.from_dict(data) == found
    assert Assumption.from_dict(data).state == "open"
    assert "the {machine} was needed" in found.text


@pytest.mark.parametrize(
    "data", [{"code": "no-such-code"}, "sampling", {"code": "end-declared"}, {"code": "certificate", "values": 3}]
)
def test_unknown_codes_and_missing_values_are_refused(data):
    with pytest.raises(ValueError, match="assumption"):
        Assumption.from_dict(data)


def test_an_extension_declares_its_own_once():
    code = declare("toy-assumption", "A toy of {size} holds", state="holds", answers="software")
    assert assume(code, size=3).text == "A toy of 3 holds"
    assert declare(code, "A toy of {size} holds", state="holds", answers="software") == code
    with pytest.raises(ValueError, match="says something else"):
        declare(code, "Nothing holds")
    del assumptions._KNOWN[code]
