"""The bisection: next to the boundary, and never on the wrong side of it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tacita._search import boundary


@given(st.floats(0.01, 0.99), st.booleans(), st.booleans())
def test_what_is_returned_holds_and_is_next_to_the_boundary(edge, rising, geometric):
    ends = {"fails": 1e-3, "at": 1.0} if rising else {"fails": 1.0, "at": 1e-3}
    tried = []

    def holds(x):
        tried.append(x)
        return x >= edge if rising else x <= edge

    found = boundary(holds, **ends, rtol=1e-6, geometric=geometric)
    assert found >= edge if rising else found <= edge
    assert found == pytest.approx(edge, rel=1e-3 if not geometric and not rising else 1e-5)
    assert len(tried) < 40


def test_tolerances_of_zero_end_at_neighbouring_floats():
    assert boundary(lambda x: x >= 1.0, fails=0.0, at=2.0) == 1.0


def test_equal_ends_need_no_search():
    assert boundary(lambda x: False, fails=1.0, at=1.0) == 1.0
