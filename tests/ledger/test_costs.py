"""What is added up, and the rule that grants: rounded up, as dp-accounting has it, safe against adaptive choices."""

import math
from fractions import Fraction
from functools import cache

import dp_accounting
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import norm

from tacita._check import PrivacyError
from tacita.accounting import ORDERS
from tacita.ledger import DECLARED, BudgetExceeded, Ledger, pure_costs, replace_one_costs
from tacita.ledger.costs import SHARES, cost_units, delta_units, total_epsilon
from tacita.mechanisms import sampled_gaussian_cost

costs = st.floats(0.0, 1e15, allow_subnormal=True)


def gaussian(sigma, steps=1):
    """λ D_{λ+1} of full-batch Gaussian steps."""
    return {order: steps * order * (order + 1) / (2 * sigma**2) for order in DECLARED}


def sampled(rate, noise, steps, orders=DECLARED):
    """λ D_{λ+1} of Poisson-sampled Gaussian steps."""
    ratio = np.array([1.0 / noise])
    return {order: steps * float(sampled_gaussian_cost(order, sample_rate=rate, ratio=ratio)[0]) for order in orders}


def test_the_declared_orders_are_orders():
    assert set(DECLARED) <= set(ORDERS)
    assert list(DECLARED) == sorted(set(DECLARED))


@given(st.lists(costs, min_size=len(DECLARED), max_size=len(DECLARED)))
def test_whole_costs_are_never_below_the_real_ones(values):
    for units, cost in zip(cost_units(values), values, strict=True):
        assert 0 <= Fraction(units, 2**40) - Fraction(cost) < Fraction(1, 2**40)


@given(st.floats(0.0, 1.0))
def test_whole_deltas_are_never_below_the_real_ones(delta):
    assert Fraction(delta_units(delta), 2**80) >= Fraction(delta)


def test_costs_may_come_at_the_declared_orders_or_at_all():
    by_order = sampled(0.01, 1.0, 100, ORDERS)
    whole = cost_units(by_order)
    assert whole == cost_units(np.array(list(by_order.values()))) == cost_units([by_order[order] for order in DECLARED])
    with pytest.raises(ValueError, match="one entry for each"):
        cost_units([1.0, 2.0])


@pytest.mark.parametrize("bad", [math.nan, -1e-300, -math.inf])
def test_a_cost_that_is_no_cost_is_refused(bad):
    with pytest.raises(PrivacyError, match="A cost must be at least 0"):
        cost_units({7: bad})


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.01, 1.0, 2000), (0.1, 2.0, 300), (1.0, 20.0, 50), (0.02, 0.7, 100)]
)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_the_total_is_dp_accountings_at_the_same_orders_and_share(rate, noise, steps, delta):
    event = dp_accounting.GaussianDpEvent(noise)
    oracle = dp_accounting.rdp.RdpAccountant(orders=[order + 1 for order in DECLARED])
    oracle.compose(event if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, event), steps)
    got = total_epsilon(cost_units(sampled(rate, noise, steps)), 0, delta=delta)
    assert got == pytest.approx(oracle.get_epsilon(delta / SHARES), rel=1e-9)


@given(
    st.lists(st.integers(0, 2**60), min_size=13, max_size=13), st.lists(st.integers(0, 2**60), min_size=13, max_size=13)
)
def test_more_cost_is_never_less_epsilon(totals, more):
    both = [a + b for a, b in zip(totals, more, strict=True)]
    assert total_epsilon(both, 0, delta=1e-5) >= total_epsilon(totals, 0, delta=1e-5)


@given(st.lists(st.floats(1e-4, 30.0), max_size=30), st.floats(0.1, 10.0), st.floats(1e-9, 1e-2))
def test_grants_never_exceed_the_budget_and_refusals_are_not_early(sizes, epsilon, delta):
    total = Fraction(0)
    with Ledger.create(":memory:", epsilon=epsilon, delta=delta, gaussian_share=0.0) as ledger:
        for size in sizes:
            ahead = {order: (total + Fraction(size)) * order for order in DECLARED}
            need = min(
                (float(cost) - order * math.log1p(1 / order) - math.log1p(order) - math.log(delta / 14)) / order
                for order, cost in ahead.items()
            )
            try:
                ledger.release("x", costs={order: size * order for order in DECLARED}, description="")
                assert need <= epsilon + 1e-9
                total += Fraction(size)
                assert ledger.spent().epsilon <= epsilon
            except BudgetExceeded:
                assert need >= epsilon - 1e-9


def response(strength):
    """Randomised response: its outcomes as (Q, loss), and its costs."""
    p = math.exp(strength) / (1 + math.exp(strength))
    log_moments = {
        order: math.log(p ** (order + 1) * (1 - p) ** -order + (1 - p) ** (order + 1) * p**-order) for order in DECLARED
    }
    return ((1 - p, strength), (p, -strength)), log_moments


def best_adaptive_delta(epsilon, delta, leak, within):
    """Return the largest P(E) - e^ε Q(E) over all strategies that look at every outcome before choosing what is next.

    Exact dynamic programming. A strategy may stop, ask with either strength, or take a release that gives everything
    away with probability `leak` and nothing otherwise; each only while `within(totals, deltas)`.
    """
    weak, strong = response(0.25), response(0.5)
    priced = [np.array(cost_units(costs), dtype=object) for _, costs in (weak, strong)]

    @cache
    def granted(counts):
        return within(list(counts[0] * priced[0] + counts[1] * priced[1]), counts[2] * delta_units(leak))

    @cache
    def gain(quarters, counts):  # over Q, with the loss so far in quarters
        ratio = math.exp(quarters / 4) * (1 - leak) ** counts[2]
        best = max(0.0, ratio - math.exp(epsilon))
        for index, (outcomes, _) in enumerate((weak, strong)):
            ahead = tuple(c + (i == index) for i, c in enumerate(counts))
            if granted(ahead):
                best = max(best, sum(q * gain(quarters + round(4 * loss), ahead) for q, loss in outcomes))
        ahead = (*counts[:2], counts[2] + 1)
        if granted(ahead):
            best = max(best, leak * ratio + gain(quarters, ahead))
        return best

    return gain(0, (0, 0, 0))


@pytest.mark.parametrize(("epsilon", "delta", "leak"), [(2.0, 0.05, 0.001), (4.0, 0.02, 0.0007), (1.0, 0.3, 0.02)])
def test_the_best_adaptive_adversary_stays_within_the_budget(epsilon, delta, leak):
    def within(totals, deltas):
        return total_epsilon(totals, deltas, delta=delta) <= epsilon

    assert 0.02 * delta < best_adaptive_delta(epsilon, delta, leak, within) <= delta


def test_the_adversary_beats_a_rule_that_gives_the_orders_what_the_deltas_leave():
    epsilon, delta = 4.0, 0.02

    def within(totals, deltas):
        left = delta - deltas / 2**80
        return left > 0 and total_epsilon(totals, 0, delta=left * SHARES / (SHARES - 1)) <= epsilon

    assert best_adaptive_delta(epsilon, delta, 0.0007, within) > 1.01 * delta


@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_f8_replacing_one_record_is_covered_by_the_conversion(sigma):
    """Sampled Gaussian with the record's two versions at opposite ends of the clip ball, by integration."""
    rate = 0.3
    known = sampled(rate, sigma, 1, ORDERS)
    converted = replace_one_costs(known)
    for order in (1, 2, 3, 5):
        exact = renyi_moment(order, rate, sigma)
        assert exact <= converted[order]
        assert converted[order] == pytest.approx(3 * order * known[2 * order + 1] / (2 * order + 1))
    assert converted[ORDERS[-1]] == math.inf
    assert all(value > known[order] for order, value in converted.items())


def renyi_moment(order, rate, sigma):
    x = np.linspace(-30.0, 30.0, 200_001)

    def log_density(at):
        return np.logaddexp(math.log1p(-rate) + norm.logpdf(x, 0, sigma), math.log(rate) + norm.logpdf(x, at, sigma))

    return math.log(trapezoid(np.exp((order + 1) * log_density(1.0) - order * log_density(-1.0)), x))


def test_f8_the_conversion_uses_the_next_order_known():
    assert replace_one_costs({4: 0.8})[1] == pytest.approx(3 * 0.8 / 4)
    assert replace_one_costs({4: math.inf, 9: 0.9})[1] == pytest.approx(0.3)
    assert replace_one_costs({2: 0.8})[1] == math.inf


def test_an_order_that_is_infinite_once_helps_no_more():
    with Ledger.create(":memory:", epsilon=10.0, delta=1e-5) as ledger:
        ledger.release("x", costs=gaussian(3.0) | {7: math.inf}, description="")
        finite = ledger.spent().epsilon
        ledger.release("y", costs={7: 0.0, 11: 0.0}, description="nothing known at other orders")
        assert finite < ledger.spent().epsilon < math.inf
        assert ledger.rows()[-2].body["costs"][DECLARED.index(7)] == "inf"
        with pytest.raises(BudgetExceeded, match="epsilon inf"):
            ledger.release("z", costs={7: 0.0}, description="")


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0])
def test_pure_costs_are_those_of_a_coin(epsilon):
    """Against mpmath, and never below what any two-output mechanism with that epsilon has."""
    mp = mpmath.mp.clone()
    mp.dps = 200
    heads = 1 / (1 + mp.exp(-epsilon))
    for order, cost in pure_costs(epsilon).items():
        exact = mp.log(heads ** (order + 1) * (1 - heads) ** -order + (1 - heads) ** (order + 1) * heads**-order)
        assert exact <= cost <= exact + 1e-9 * (1 + exact)
    rng = np.random.default_rng(0)
    for q in rng.random(50):
        p = min(q * math.exp(epsilon), 1 - (1 - q) * math.exp(-epsilon))
        cost = math.log(p**4 * q**-3 + (1 - p) ** 4 * (1 - q) ** -3)
        assert cost <= pure_costs(epsilon)[3] + 1e-12


def test_pure_releases_also_add_up_plainly():
    with Ledger.create(":memory:", neighbours="replace_one", epsilon=0.3, delta=1e-5) as ledger:
        for name in "abc":
            ledger.release(name, pure=0.1, description="", neighbours="replace_one")
        assert ledger.spent().epsilon == 0.3
        with pytest.raises(BudgetExceeded):
            ledger.release("d", pure=1e-6, description="", neighbours="replace_one")


def test_many_pure_releases_cost_less_than_their_sum():
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        for name in range(400):
            ledger.release(str(name), pure=0.02, description="", neighbours="replace_one")
        assert ledger.spent(1e-5).epsilon < 3.0  # the sum is 8


def test_a_release_that_is_not_pure_ends_the_plain_sum():
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        ledger.release("a", pure=0.1, description="", neighbours="replace_one")
        ledger.release(
            "b",
            costs={order: order * (order + 1) * 1e-4 for order in DECLARED},
            description="",
            neighbours="replace_one",
        )
        assert ledger.spent(1e-5).epsilon > 0.1
        with pytest.raises(TypeError, match="pure epsilon"):
            ledger.release("c", description="", neighbours="replace_one")
