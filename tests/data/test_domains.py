"""The schema language: what a column may hold, and how cells are read by it."""

import math

import pytest

from tacita.data import Bool, Category, Real


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Bool(true="x", false=["y", "X"]), ValueError, "both true and false"),
        (lambda: Bool(true=[]), TypeError, "true must be a spelling"),
        (lambda: Category("a", "a"), ValueError, "different labels, got 1"),
        (lambda: Category(["a", "b"]), TypeError, "labels one by one"),
        (lambda: Category(1), ValueError, r"got Category\(1\)"),
        (lambda: Real(0), ValueError, "both bounds, finite, or none"),
        (lambda: Real(0, float("inf")), ValueError, "both bounds, finite, or none"),
        (lambda: Real(3, 3), ValueError, "low must be below high, got low=3, high=3"),
        (lambda: Real("0", 1), TypeError, "low must be a number"),
        (lambda: Real(0, 1, scale="root"), ValueError, "scale must be one of"),
        (lambda: Real(0, 1.5, whole=True), ValueError, "low and a high that are whole"),
        (lambda: Category("a", "b", other="c"), ValueError, "other='c' must be one of its labels"),
    ],
)
def test_domains_say_what_they_need(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("domain", "cell", "value"),
    [
        (Bool(), "YES ", 0),
        (Bool(), False, 1),
        (Bool(), 1, 0),
        (Bool(), "maybe", None),
        (Category("a", "b"), " b", 1),
        (Category("a", "b"), "c", None),
        (Category(3), 2, 2),
        (Real(), "1e3", 1000.0),
        (Real(), "1_000", None),
        (Real(0, 1), "nan", None),
        (Real(0, 1), 7, 7.0),
    ],
)
def test_a_cell_is_a_position_or_a_number_or_nothing(domain, cell, value):
    assert domain.read(cell) == value


def test_fallbacks_and_texts():
    assert (Bool().fallback, Category("a", "b", other="b").fallback) == (1, 1)
    assert math.isnan(Real().fallback)
    assert [str(d) for d in (Bool(), Category(3), Real())] == ["a truth value", "one of 3 categories", "a real number"]
    assert str(Real(0, 5)) == "a real number in [0, 5]"
    assert (Real(0, 5).bounds, Real().bounds) == ((0.0, 5.0), None)
