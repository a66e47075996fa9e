"""The certificate's chance of a miss, by repetition."""

import math

import numpy as np
import pytest

from tacita.estimators import conformal_miss


@pytest.mark.stat
@pytest.mark.parametrize(("m", "tolerated"), [(9, 0), (50, 2)])
def test_conformal_miss_bounds_issued_and_passed(m, tolerated, rng):
    """Any exchangeable spending: the certificate is issued and the new record passed at most this often."""
    repeats, bound = 40_000, conformal_miss(m, tolerated=tolerated)
    spending = rng.random((repeats, m + 1)) + rng.random((repeats, 1))  # dependent but exchangeable
    passed = spending > 1.6
    issued = passed[:, :m].sum(axis=1) <= tolerated
    assert np.mean(issued & passed[:, m]) <= bound + 4 * math.sqrt(bound / repeats)


def test_conformal_tolerance_must_be_smaller_than_the_panel():
    with pytest.raises(ValueError, match="tolerated"):
        conformal_miss(5, tolerated=5)
