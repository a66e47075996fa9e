"""The grid of a clamped column."""

import numpy as np
import pytest

import tacita.cli  # noqa: F401
from tacita.programs import (
    Program,
    Real,
    geometric,
)
from tests.programs.surveys import N, census


@pytest.mark.parametrize(
    ("low", "high", "step"), [(0, 100, 1), (0, 1, 0.01), (20, 100, 1), (0.5, 99, 0.1), (-5, 5, 0.1), (0, 3000, 10)]
)
def test_the_step_fits_the_bounds(low, high, step):
    assert float(census().column("age").clamp(low, high).domain.step) == step


def test_small_ranges_are_not_rounded_away():
    values = np.random.default_rng(0).beta(3, 7, N)
    p = Program(schema={"x": Real()}, n=N, epsilon=1000)
    p.release(p.column("x").clamp(0, 1).mean(), geometric(epsilon=100), name="mean")
    p.release(p.column("x").clamp(0, 1, step=1).histogram(), geometric(epsilon=100), name="cells")
    results = p.run({"x": values})
    assert results["mean"].value == pytest.approx(values.mean(), abs=0.002)
    assert results["cells"].values == pytest.approx(np.histogram(values, bins=10, range=(0, 1))[0], abs=2)
    assert results["cells"].labels[3] == "0.3 to 0.4"
