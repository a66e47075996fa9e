"""Charges as Gaussian distances: what they dominate, how they add up adaptively, and what the budget's curve is."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from tacita._check import PrivacyError
from tacita.accounting.profiles import worst_profile
from tacita.ledger import DECLARED, BudgetExceeded, Ledger
from tacita.ledger.totals import FAILING, FLOOR, Totals, cap_profile, distance_units, floor_for
from tacita.profile import Profile


def exact_delta(epsilon, mu):
    """δ(ε) of one Gaussian release, in 40 digits."""
    with mpmath.workdps(40):
        eps, m = mpmath.mpf(float(epsilon)), mpmath.mpf(float(mu))
        return float(mpmath.ncdf(m / 2 - eps / m) - mpmath.exp(eps) * mpmath.ncdf(-m / 2 - eps / m))


def distance(curve, **options):
    squared, fails = distance_units(curve, **options)
    return math.sqrt(squared / 2**40), fails / 2**80


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 2000), (0.25, 2.0, 60), (0.1, 1.0, 5)])
def test_a_plan_is_dominated_by_its_distance_and_its_chance_to_fail(rate, noise, steps):
    """By dp-accounting's own, finer, loss distribution."""
    mu, fails = distance(worst_profile(sample_rate=rate, noise_multiplier=noise, steps=steps))
    single = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=1e-3, sampling_prob=rate
    )
    together = single.self_compose(steps)
    for epsilon in np.linspace(0.0, 12.0, 61):
        allowed = fails + (1.0 - fails) * exact_delta(epsilon, mu)
        optimistic = together.get_delta_for_epsilon(float(epsilon)) - 2e-4 * max(allowed, 1e-12)
        assert optimistic <= allowed * (1.0 + 5e-3) + 1e-12
    assert mu < 1.05 * worst_profile(sample_rate=rate, noise_multiplier=noise, steps=steps).mu(floor=FLOOR)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_a_pure_release_has_the_distance_that_covers_a_coin(epsilon):
    """ε-privacy is μ-Gaussian with Φ(μ/2) = e^ε / (1 + e^ε) (Dong, Roth & Su 2022, Proposition 1 and its proof)."""
    mu, fails = distance(Profile.of_pair(epsilon, 0.0))
    assert mu <= 2.0 * norm.ppf(math.exp(epsilon) / (1.0 + math.exp(epsilon))) * (1 + 1e-3)
    for at in np.linspace(0.0, epsilon, 25):
        coin = (math.exp(epsilon) - math.exp(at)) / (1.0 + math.exp(epsilon))
        assert coin <= fails + (1.0 - fails) * exact_delta(at, mu) + 1e-12


def test_what_a_curve_leaves_over_is_a_chance_to_fail():
    mu, fails = distance(Profile.of_pair(0.5, 1e-6), delta=1e-7)
    assert 1.1e-6 < fails < 2e-6
    assert mu < 1.0
    assert distance_units(None) == (math.inf, 0)
    assert distance_units(Profile.of_pair(math.inf, 0.0)) == (math.inf, 0)
    assert distance_units(Profile.of_pair(3.0, 0.9)) == (math.inf, 0)  # it would fail more often than always
    assert floor_for((1.0, 1e-9), 0.5) == pytest.approx(5e-14)  # of a tenth of the half
    assert floor_for(None, 0.5) == floor_for((1.0, 1e-3), 1.0) == FLOOR


def test_equal_gaussian_releases_add_up_by_their_squares():
    with Ledger.create(":memory:", epsilon=3.0, delta=1e-5, gaussian_share=1.0) as ledger:
        for number in range(9):
            ledger.release(f"{number}", costs={}, curve=Profile.gaussian(0.2), description="")
        epsilon = ledger.spent().epsilon
    one = distance(Profile.gaussian(0.2))[0]
    assert exact_delta(epsilon, 0.6) <= 1e-5
    assert exact_delta(epsilon * 0.99, 3.0 * one) > 1e-5


def test_a_declared_plan_is_one_charge_of_its_whole_curve():
    plan = {"sample_rate": 0.01, "noise_multiplier": 1.0, "steps": 2000}
    costs = dict.fromkeys(DECLARED, math.inf)
    with Ledger.create(":memory:", epsilon=5.35, delta=1e-5) as ledger:
        for run in ("a", "b", "c"):
            ledger.open_run(run, mechanism=plan, seed_fingerprint=None, seeded=False, curve=worst_profile(**plan))
        assert ledger.spent() is None  # opening is free
        for run in ("a", "b", "c"):
            ledger.charge(run, first=0, steps=1, costs=costs)
            spent = ledger.spent().epsilon
            ledger.charge(run, first=1, steps=1999, costs=costs)  # already paid for
            assert ledger.spent().epsilon == spent
        assert 4.65 < spent < 5.35  # by PLD 4.64, if planned; 5.79 by moments alone
        assert 4.65 < ledger.planned_epsilon(1e-5) < spent
        ledger.open_run("d", mechanism=plan, seed_fingerprint=None, seeded=False)
        with pytest.raises(BudgetExceeded):
            ledger.charge("d", first=0, steps=1, costs=costs)  # no curve, no moments


def test_charges_without_a_curve_leave_the_moments():
    costs = {order: order * (order + 1) / 200 for order in DECLARED}
    with Ledger.create(":memory:", epsilon=2.0, delta=1e-5) as ledger:
        ledger.release("a", costs=costs, curve=Profile.gaussian(0.1), description="")
        by_distance = ledger.spent().epsilon
        ledger.release("b", costs=costs, description="")
        assert by_distance < 0.5 < ledger.spent().epsilon < 2.0
        assert ledger.spent().profile is None


def test_an_adversary_who_chooses_by_what_it_saw_stays_within_the_budget():
    """Two stages, by integration: a Gaussian release, then one of two mechanisms chosen by its outcome.

    High outcomes are followed by as large a Gaussian release as the distances grant, low ones by randomised response
    without a curve, as large as the moments grant. The accounts are used on different paths, which their union covers.
    """
    epsilon, delta, first = 1.0, 0.02, 0.2
    grid, step = np.linspace(-9.0, 9.0, 6001, retstep=True)
    with_it, without = norm.pdf(grid, first) * step, norm.pdf(grid) * step
    loss = first * grid - first**2 / 2.0
    gaussian = _largest(epsilon, delta, first, lambda x: {"costs": {}, "curve": Profile.gaussian(x)})
    coin = _largest(epsilon, delta, first, lambda x: {"costs": _coin(x)})
    assert gaussian > 0.1
    assert coin > 0.05
    worst = 0.0
    for turn in np.linspace(-3.0, 3.0, 25):
        high = grid > turn
        after = np.where(high, _gaussian_gain(epsilon - loss, gaussian), _coin_gain(epsilon - loss, coin))
        worst = max(worst, float((with_it * after).sum()))
        swapped = np.where(high, _coin_gain(epsilon - loss, coin), _gaussian_gain(epsilon - loss, gaussian))
        worst = max(worst, float((with_it * swapped).sum()))
    assert 0.3 * delta < worst <= delta
    assert without.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.2, 1e-3)])
def test_distances_and_failures_cannot_be_traded_by_what_was_seen(epsilon, delta):
    """A Gaussian release, then the largest further one, or the likeliest failure, whichever gains more at the outcome.

    If what the distances leave of delta were for failures, this would reach 1.80 and 1.42 times delta.
    """
    first = math.sqrt(0.8) * _largest_distance(epsilon, delta)
    options = {"gaussian_share": 1.0, "high": 2.0}
    further = _largest(epsilon, delta, first, lambda x: {"costs": {}, "curve": Profile.gaussian(x)}, **options)
    options["high"] = delta
    fails = _largest(epsilon, delta, first, lambda f: {"costs": {}, "curve": Profile.of_pair(0.0, f)}, **options)
    grid, step = np.linspace(-12.0, 12.0 + first, 20001, retstep=True)
    left = epsilon - first * grid + first**2 / 2.0
    gain = np.maximum(_gaussian_gain(left, further), fails + (1.0 - fails) * np.maximum(-np.expm1(left), 0.0))
    total = float((norm.pdf(grid, first) * gain).sum() * step)
    assert 0.8 * delta < total <= delta


def _largest(epsilon, delta, first, release, *, gaussian_share=0.5, high=4.0):
    """Return the largest parameter that the ledger grants after a Gaussian release at distance `first`."""
    low = 0.0
    opening = {"costs": {order: order * (order + 1) * first**2 / 2 for order in DECLARED}}
    for _ in range(30):
        middle = (low + high) / 2
        with Ledger.create(":memory:", epsilon=epsilon, delta=delta, gaussian_share=gaussian_share) as ledger:
            ledger.release("first", **opening, curve=Profile.gaussian(first), description="")
            try:
                ledger.release("second", **release(middle), description="")
                low = middle
            except BudgetExceeded:
                high = middle
    return low


def _coin(strength):
    p = math.exp(strength) / (1 + math.exp(strength))
    return {
        order: math.log(p ** (order + 1) * (1 - p) ** -order + (1 - p) ** (order + 1) * p**-order) for order in DECLARED
    }


def _gaussian_gain(left, mu):
    """H_{e^left}(N(mu, 1) || N(0, 1)) for any real `left`."""
    return norm.cdf(mu / 2 - left / mu) - np.exp(left) * norm.cdf(-mu / 2 - left / mu)


def _coin_gain(left, strength):
    p = math.exp(strength) / (1 + math.exp(strength))
    return np.maximum(p - np.exp(left) * (1 - p), 0.0) + np.maximum((1 - p) - np.exp(left) * p, 0.0)


@pytest.mark.parametrize("budget", [(1.0, 1e-5), (8.0, 1e-3), (0.05, 1e-8)])
def test_the_curve_of_a_budget_covers_the_largest_distance_with_the_likeliest_failure(budget):
    epsilon, delta = budget
    curve = cap_profile(budget, 1.0)
    assert cap_profile(budget, 0.5) == Profile.of_pair(*budget)
    assert curve.epsilon(delta) <= epsilon * (1.0 + 1e-9)
    fails = FAILING * delta
    squared = round(_largest_distance(epsilon, delta - fails) ** 2 * 2**40) - 1
    totals = Totals(squared=squared, fails=int(fails * 2**80))
    assert totals.epsilon(delta, gaussian_share=1.0) <= epsilon * (1.0 + 1e-6)
    assert Totals(squared=squared, fails=totals.fails + 2).epsilon(delta, gaussian_share=1.0) == math.inf
    assert Totals(squared=round(squared * 1.001), fails=0).epsilon(delta, gaussian_share=1.0) > epsilon
    for at in np.linspace(0.0, 2.0 * epsilon, 17):
        assert exact_delta(at, math.sqrt(squared / 2**40)) + fails <= curve.delta(float(at)) * (1.0 + 1e-9)
    assert curve.attack_success() < Profile.of_pair(*budget).attack_success() - 0.1 * math.tanh(epsilon / 2)


def _largest_distance(epsilon, delta):
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle == 0.0 or exact_delta(epsilon, middle) <= delta else (low, middle)
    return low


@pytest.mark.parametrize("other", [{"neighbours": "replace_one"}, {"unit": "client"}])
def test_a_curve_for_another_relation_or_unit_is_refused(other):
    """Its first charge would add the distance of a smaller change than the ledger protects."""
    run = {"mechanism": {"steps": 1}, "seed_fingerprint": None, "seeded": False, "curve": Profile.gaussian(0.1)}
    with Ledger.create(":memory:", **other) as ledger:
        with pytest.raises(PrivacyError, match="This ledger"):
            ledger.open_run("a", **run)
        ledger.open_run("a", **run, **other)


def test_a_share_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="gaussian_share"):
        Ledger.create(tmp_path / "a.sqlite", gaussian_share=1.5)
