"""The estimator for two costs: its anchor, its mixture, its refusal."""

import math

import numpy as np
import pytest

from tacita.estimators import binary, binary_share


def test_binary_anchor_of_the_thesis():
    assert binary_share(0, 100, gamma=0.99**101) == pytest.approx(0.01, rel=1e-12)


def test_binary_mixes_two_costs_and_falls_back_to_the_worst_case():
    worst = np.array(5.0)
    share = binary_share(3, 7, gamma=0.01)
    two = binary(np.array([0.0, 2.0]), weights=np.array([7, 3]), gamma=0.01, worst=worst)
    assert float(two) == pytest.approx(math.log(share * math.exp(2.0) + 1 - share))
    unseen = binary_share(0, 10, gamma=0.01)
    one = binary(np.array([0.5]), weights=np.array([10]), gamma=0.01, worst=worst)
    assert float(one) == pytest.approx(math.log(unseen * math.exp(5.0) + (1 - unseen) * math.exp(0.5)))
    at_worst = binary(np.array([5.0]), weights=np.array([10]), gamma=0.01, worst=worst)
    assert float(at_worst) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="at most two"):
        binary(np.array([0.0, 1.0, 2.0]), weights=np.array([1, 1, 1]), gamma=0.01, worst=worst)
