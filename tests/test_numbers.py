"""What is printed never understates an upper bound, nor overstates a lower one."""

from hypothesis import given
from hypothesis import strategies as st

import tacita
from tacita import _numbers as numbers


def test_printed_epsilons_are_rounded_up():
    assert numbers.round_up_text(2.58301) == "2.584"
    assert numbers.round_up_text(0.00123401) == "0.001235"
    assert numbers.round_up_text(2.583) == "2.583"
    assert numbers.success_text(0.929811) == "93%"
    assert numbers.success_text(0.7212) == "72.2%"
    assert numbers.success_text(0.004612) == "0.47%"
    assert numbers.percent_text(0.7212) == "72.1%"  # measured: to the nearest


def test_every_figure_is_rounded_to_the_safe_side(rng):
    for epsilon in (*rng.uniform(0.0, 12.0, 200), 0.0, 40.0):
        success = tacita.attack_success(epsilon, 1e-5)
        assert float(numbers.odds_text(success).split()[0]) / 100 >= success - 1e-9
        assert float(numbers.success_text(success)[:-1]) / 100 >= success - 1e-9
        assert float(numbers.epsilon_text(epsilon)) >= epsilon - 1e-9
    for delta in 10.0 ** rng.uniform(-12, -1, 200):
        assert 1.0 / int(numbers.chance_text(delta)[5:].replace(",", "")) >= delta * (1 - 1e-9)
        assert float(numbers.delta_text(delta)) >= delta * (1 - 1e-9)


@given(st.floats(0.0, 50.0), st.floats(0.0, 50.0))
def test_bounds_are_rounded_to_the_safe_side_and_never_hide_a_broken_claim(lower, upper):
    low, high = map(float, numbers.bound_texts(lower, upper))
    assert low <= lower + 1e-11
    assert high >= upper - 1e-11
    if lower <= upper:
        assert low <= high
        assert lower - low <= 1.1e-3 * lower + 1e-290
        assert high - upper <= 1.1e-3 * upper + 1e-290
    elif lower > upper + 1e-7 * max(1.0, upper):
        assert low > high


def test_intervals_are_rounded_outwards():
    assert numbers.range_text(0.12349, 0.56701) == "0.123 to 0.568"
    assert numbers.range_text(0.25, 0.5, places=2) == "0.25 to 0.50"
    assert numbers.percent_range_text(0.12349, 0.56701) == "12.3% to 56.8%"
    assert numbers.percent_range_text(0.12, 0.57, places=0) == "12% to 57%"
