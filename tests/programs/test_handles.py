"""A handle shows nothing, and no operation gets at a value."""

import math
import operator

import numpy as np
import pytest

from tacita.programs import (
    Bool,
    Category,
    Program,
    ProgramError,
    Real,
    geometric,
)


def four_columns(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


def test_describing_a_handle_is_safe():
    p = four_columns()
    assert repr([p.column("age"), p.where(sex=["M", "F"])]) == (
        "[<private: the column 'age'>, <private: the part where sex=F/M>]"
    )
    released = p.release(p.column("smoker").count(), geometric(epsilon=1))
    assert repr(released) == "<released: 'released', known when the program runs>"
    assert len({released, p.column("age"), p.column("age")}) == 3


FUNCTIONS = [bool, str, bytes, list, len, iter, next, reversed, sorted, float, int, complex, round, abs, open]


FUNCTIONS += [math.floor, math.ceil, math.trunc, math.sqrt, np.asarray, np.exp]


FUNCTIONS += [operator.neg, operator.pos, operator.invert, operator.not_, operator.index]


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]


BINARY += [operator.matmul, operator.and_, operator.or_, operator.xor, divmod, max]


BINARY += [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


OPERATIONS = [
    lambda h: np.float64(2) * h,
    lambda h: np.ones(2) < h,
    lambda h: 1 in h,
    lambda h: h[0],
    lambda h: h[1:],
    lambda h: f"{h:>10}",
    lambda h: f"{h}",
    lambda h: "%s" % h,  # noqa: UP031
    lambda h: "%d" % h,  # noqa: UP031
    lambda h: sum([h]),
    lambda h: [1, 2][h],
    lambda h: h.value,
    lambda h: h.values,
    lambda h: h.numpy(),
    lambda h: h.tolist(),
    *(lambda h, f=f: f(h) for f in FUNCTIONS),
    *(lambda h, f=f: f(h, 1) for f in BINARY),
    *(lambda h, f=f: f(2.5, h) for f in BINARY),
]


@pytest.mark.parametrize("kind", ["column", "part", "query", "released", "derived"])
def test_no_operation_gets_at_a_value(kind):
    p = Program(schema={"smoker": Bool(), "age": Real(), "job": Category(3)}, n=10, epsilon=9)
    query = p.column("smoker").count()
    released = p.release(query, geometric(epsilon=1))
    handles = {
        "column": p.column("age").clamp(0, 1, step=1),
        "part": p.where(smoker=True),
        "query": query,
        "released": released,
        "derived": p.derive(abs, released),
    }
    codes = ("T021",) if kind in ("released", "derived") else ("T015", "T016", "T017", "T018", "T019", "T020")
    for operation in OPERATIONS:
        with pytest.raises(ProgramError) as refusal:
            operation(handles[kind])
        assert refusal.value.span.file == __file__
        assert refusal.value.code in codes
