"""The size of a release, against brute force, mpmath and the thesis's example."""

import math
from itertools import count

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacita.guarantee import outlier_probability
from tacita.synthesis.outliers import ASSUMPTION, LARGEST, release_size


def chance_of(share, size):
    """1 - (1 - share)^size with 450 digits, from the float as it is."""
    with mpmath.workdps(450):
        return 1 - (1 - mpmath.mpf(share)) ** size


def test_the_example_of_the_thesis():
    kept = {"epsilon": 1.0, "delta": 1e-8, "threshold": 1e-5}
    for size, told in ((1000, 0.632), (100, 0.095)):
        exact = float(chance_of(0.001, size))
        assert round(exact, 3) == told
        below, above = (release_size(chance=exact * factor, **kept).size for factor in (1 - 1e-9, 1 + 1e-9))
        assert (below, above) == (size - 1, size)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 1 / 3, 0.1, 0.02])
@pytest.mark.parametrize("chance", [0.001, 0.02, 0.1, 0.5, 0.75, 0.999])
def test_equals_counting_up_with_exact_arithmetic(share, chance):
    told = release_size(chance=chance, epsilon=1.0, delta=share / 2, threshold=0.5)
    assert told.share == share
    brute = next(n for n in count() if chance_of(share, n + 1) > mpmath.mpf(chance))
    assert told.size == brute


@given(
    delta=st.floats(1e-300, 0.9999),
    threshold=st.floats(1e-100, 1.0),
    chance=st.floats(1e-100, 1.0, exclude_max=True),
)
def test_the_size_is_allowed_and_one_more_is_not(delta, threshold, chance):
    told = release_size(chance=chance, epsilon=1.0, delta=delta, threshold=threshold)
    wanted = mpmath.mpf(chance)
    if told.share < 1.0:
        assert chance_of(told.share, told.size) <= wanted
        assert told.capped or chance_of(told.share, told.size + 1) > wanted
    else:
        assert told.size == 0
    assert 0.0 <= told.reached <= chance * (1 + 1e-9)
    assert math.isclose(told.reached, float(chance_of(told.share, told.size)), rel_tol=1e-9, abs_tol=1e-300)
    assert told.sentence.endswith(ASSUMPTION)


def test_ties_count():
    kept = {"epsilon": 1.0, "delta": 0.25, "threshold": 0.5}
    assert [release_size(chance=chance, **kept).size for chance in (0.5, 0.75, 0.875)] == [1, 2, 3]
    assert release_size(chance=math.nextafter(0.75, 0.0), **kept).size == 1


def test_no_sample_and_no_limit():
    nothing = release_size(chance=0.01, epsilon=2.0, delta=1e-5, threshold=1e-5)
    assert (nothing.size, nothing.share, nothing.reached) == (0, 1.0, 0.0)
    assert "Not even one sample" in nothing.sentence
    endless = release_size(chance=0.01, epsilon=2.0, delta=1e-30, threshold=0.1)
    assert (endless.size, endless.capped) == (LARGEST, True)
    assert "1,000,000,000 samples and more" in endless.sentence


def test_smaller_sets_for_more_caution():
    sizes = [release_size(chance=p, epsilon=1.0, delta=1e-8, threshold=1e-5).size for p in (0.01, 0.1, 0.5)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3
    sizes = [release_size(chance=0.1, epsilon=1.0, delta=1e-8, threshold=t).size for t in (1e-6, 1e-5, 1e-4)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3


@pytest.mark.stat
def test_the_chance_is_what_happens_when_samples_follow_the_population(rng):
    """20,000 sets: a binomial interval of 5 standard errors, false alarms below 1e-6; and half as many are rarer."""
    told = release_size(chance=0.3, epsilon=1.0, delta=1e-4, threshold=1e-2)
    hit = (rng.random((20_000, told.size)) < told.share).any(1)
    error = math.sqrt(told.reached * (1 - told.reached) / len(hit))
    assert abs(hit.mean() - told.reached) < 5 * error
    assert outlier_probability(told.share, size=told.size // 2) < told.reached - 5 * error


def test_the_words_carry_the_numbers():
    told = release_size(chance=0.1, epsilon=1.0, delta=1e-8, threshold=1e-5)
    for words in ("0.1% of the population", "epsilon 1 ", "0.00001", "105 samples", "at most 10%", "not a guarantee"):
        assert words in told.sentence
    plain = told.to_dict()
    assert plain["size"] == 105
    assert plain["assumption"] == ASSUMPTION
    one = release_size(chance=0.5, epsilon=math.inf, delta=0.25, threshold=0.5)
    assert "Up to 1 sample can" in one.sentence
    assert "epsilon infinite" in one.sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chance", 0.0),
        ("chance", 1.0),
        ("chance", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("threshold", 0.0),
        ("threshold", 1.1),
        ("threshold", np.nan),
        ("epsilon", -1.0),
    ],
)
def test_bad_numbers_are_named(name, value):
    kept = {"chance": 0.1, "epsilon": 1.0, "delta": 1e-8, "threshold": 1e-5}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        release_size(**(kept | {name: value}))
