"""The best of a random number of runs, against dp-accounting and against mechanisms small enough to sum up."""

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from scipy.stats import chisquare, norm

from tacita.accounting.tuning import (
    RENYI_ORDERS,
    NegativeBinomial,
    Poisson,
    RenyiCurve,
    gaussian_curve,
    largest_curve,
    steps_curve,
    tuned_worst_case,
)
from tacita.accounting.worst import worst_case
from tacita.ledger import DECLARED
from tacita.profile import Profile

FALSE_ALARM = 1e-6
LAWS = [
    NegativeBinomial.expecting(1.5),
    NegativeBinomial.expecting(10.0),
    NegativeBinomial.expecting(10.0, eta=1.0),
    NegativeBinomial.expecting(4.0, eta=-0.5),
    NegativeBinomial.expecting(6.0, eta=3.0),
    Poisson(0.2),
    Poisson(1.0),
    Poisson(8.0),
]
MANY = np.arange(20_000)


def names(law):
    return law.words


@pytest.mark.parametrize("law", LAWS, ids=names)
def test_the_chances_add_up_to_one_and_to_the_mean(law):
    chances = law.pmf(MANY)
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    assert chances @ MANY == pytest.approx(law.mean, rel=1e-6)
    assert (chances[0] > 0.0) == isinstance(law, Poisson)


@pytest.mark.stat
@pytest.mark.parametrize("law", LAWS, ids=names)
def test_numbers_of_trials_are_drawn_with_their_chances(law, rng):
    drawn = np.minimum([law.draw(rng) for _ in range(20_000)], 30)
    chances = np.append(law.pmf(np.arange(30)), 1.0 - law.pmf(np.arange(30)).sum())
    kept = chances * len(drawn) > 5.0
    seen = np.bincount(drawn, minlength=31)

    def pvalue(expected):
        expected = np.append(expected[kept], max(expected[~kept].sum(), 1e-300))
        return chisquare(np.append(seen[kept], seen[~kept].sum()), expected / expected.sum() * len(drawn)).pvalue

    assert pvalue(chances) > FALSE_ALARM
    assert pvalue(np.append(0.0, chances[:-1]) * 0.2 + chances * 0.8) < FALSE_ALARM  # it can fail


@pytest.mark.parametrize("mean", [1.0001, 2.0, 30.0, 1e4])
@pytest.mark.parametrize("eta", [-0.5, 0.0, 1e-9, 1.0, 20.0])
def test_a_law_expects_what_it_was_asked_for(mean, eta):
    assert NegativeBinomial.expecting(mean, eta=eta).mean == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
    ("eta", "gamma"), [(-1.0, 0.5), (math.nan, 0.5), (0.0, 0.0), (0.0, 1.0), (0.0, math.nan), (100.0, 1e-9)]
)
def test_parameters_outside_of_the_theorem_are_refused(eta, gamma):
    with pytest.raises(ValueError, match=r"eta|gamma"):
        NegativeBinomial(eta, gamma)


@pytest.mark.parametrize("mean", [0.0, -1.0, math.nan, math.inf])
def test_a_mean_that_is_none_is_refused(mean):
    with pytest.raises(ValueError, match="mean"):
        Poisson(mean)
    with pytest.raises(ValueError, match="mean"):
        NegativeBinomial.expecting(mean)


def test_orders_cover_those_of_a_ledger():
    assert {order + 1 for order in DECLARED} <= set(RENYI_ORDERS)
    assert set(DECLARED) <= set(steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=5).costs)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 2000), (1.0, 8.0, 10)])
@pytest.mark.parametrize("mean", [1.2, 10.0, 100.0])
@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, math.inf])
def test_costs_are_those_of_dp_accounting(rate, noise, steps, mean, shape):
    """Of the Poisson law, theirs takes δ from the moments, as ours does without a curve, and leaves out "no run"."""
    inner = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    event = dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(inner, steps), mean, shape)
    theirs = dp_accounting.rdp.RdpAccountant([1.0 + 1e-7, *RENYI_ORDERS])  # the first stands for h = 1
    theirs.compose(event)
    one = steps_curve(sample_rate=rate, noise_multiplier=noise, steps=steps)
    law = Poisson(mean) if math.isinf(shape) else NegativeBinomial.expecting(mean, eta=shape)
    found = law.selected(replace(one, profile=None))
    assert law.selected(one).epsilon(1e-5) <= found.epsilon(1e-5)
    if math.isinf(shape):
        no_run = np.log1p(math.exp(-mean) / mean) / (np.array(RENYI_ORDERS) - 1.0)
        with_it = RenyiCurve(RENYI_ORDERS, tuple((theirs.rdp[1:] + no_run).tolist()))
        assert theirs.get_epsilon(1e-5) <= found.epsilon(1e-5)
        assert found.epsilon(1e-5) == pytest.approx(with_it.epsilon(1e-5), rel=1e-3)
    else:
        np.testing.assert_allclose(found.divergences, theirs.rdp[1:], rtol=1e-5)
        assert found.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-5)


def best_of(chances, law):
    """The law of the best of K draws of outputs that are sorted by their score; the last entry is no draw at all."""
    after = np.cumsum(chances)
    weights = law.pmf(MANY[:2000])
    powers = np.array([weights @ rank ** MANY[:2000] for rank in np.minimum(np.append(0.0, after), 1.0)])
    return np.append(np.diff(powers), weights[0])


def renyi(p, q, order):
    some = (p > 0.0) | (q > 0.0)
    with np.errstate(divide="ignore"):
        logs = order * np.log(p[some]) + (1.0 - order) * np.log(q[some])
    return float(np.logaddexp.reduce(logs) / (order - 1.0))


def both_ways(p, q, order):
    return max(renyi(p, q, order), renyi(q, p, order))


def curve_of(p, q, orders=(1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 64.0)):
    return RenyiCurve(orders, tuple(max(0.0, both_ways(p, q, order)) for order in orders))


def mechanisms():
    """Randomised responses, a rare tell-tale output with the best score, and random laws."""
    rng = np.random.default_rng(5)
    for epsilon in (0.1, 1.0, 3.0):
        p = np.array([1.0, math.exp(epsilon)]) / (1.0 + math.exp(epsilon))
        yield p, p[::-1]
        yield p[::-1], p
    yield np.array([0.999, 0.001]), np.array([0.99999, 0.00001])
    yield np.array([0.3, 0.699, 0.001]), np.array([0.3001, 0.69985, 0.00005])
    for size in (3, 10):
        for spread in (0.05, 1.0):
            p = rng.dirichlet(np.ones(size))
            q = p * np.exp(spread * rng.normal(size=size))
            yield p, q / q.sum()


@pytest.mark.parametrize("law", LAWS, ids=names)
def test_no_small_mechanism_costs_more(law):
    """Exact divergences of the best of K, in both directions, for every score that orders the outputs as listed."""
    closest = math.inf
    for p, q in mechanisms():
        one = curve_of(p, q)
        bound = law.selected(one)
        for order, allowed in zip(bound.orders, bound.divergences, strict=True):
            exact = both_ways(best_of(p, law), best_of(q, law), order)
            assert exact <= allowed + 1e-9, (p, q, order)
            closest = min(closest, allowed - exact)
    assert closest < 1.0  # not just anything


def with_ties(chances, groups, law):
    """The law of the best of K draws where outputs of a group have the same score, and the first one is kept."""
    sizes = np.array([chances[groups == group].sum() for group in range(groups[-1] + 1)])
    return np.append((best_of(sizes, law)[:-1] / sizes)[groups] * chances, law.pmf(np.array([0])))


def hockey_stick(p, q, epsilon):
    return max(float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum()) for one, other in ((p, q), (q, p)))


def test_no_random_mechanism_costs_more_with_its_exact_curve_and_equal_scores(rng):
    """The exact privacy curve lowers the Poisson law's bound; the profile that is proved is compared as well."""
    closest = 0.0
    for _ in range(100):
        size = int(rng.integers(2, 9))
        p = np.maximum(rng.dirichlet(np.full(size, rng.choice([0.1, 1.0]))), 1e-6)
        q = p * np.exp(rng.choice([0.01, 0.3, 2.0]) * rng.normal(size=size))
        p, q = p / p.sum(), q / q.sum()
        groups = np.append(0, np.cumsum(rng.integers(0, 2, size=size - 1)))
        shaped = NegativeBinomial(float(rng.uniform(-0.9, 4.0)), float(rng.uniform(0.05, 0.98)))
        law = shaped if rng.random() < 0.5 else Poisson(float(10.0 ** rng.uniform(-2.0, 1.5)))
        exact = Profile.of_curve(
            lambda at, p=p, q=q: np.array([hockey_stick(p, q, e) for e in at]), np.linspace(0, 8, 99)
        )
        found = law.selected(replace(curve_of(p, q), profile=exact))
        best = with_ties(p, groups, law), with_ties(q, groups, law)
        for order, allowed in zip(found.orders, found.divergences, strict=True):
            assert both_ways(*best, order) <= allowed + 1e-8, (law, order)
            closest = max(closest, both_ways(*best, order) / allowed)
        for epsilon in (0.0, 0.5, 2.0):
            assert hockey_stick(*best, epsilon) <= found.proved().delta(epsilon) + 1e-8
    assert closest > 0.9


def test_without_paying_small_mechanisms_pass_the_claim_of_one_run():
    p, q = np.array([0.999, 0.001]), np.array([0.99999, 0.00001])
    one, law = curve_of(p, q), NegativeBinomial.expecting(10.0)
    exact = both_ways(best_of(p, law), best_of(q, law), 2.0)
    assert exact > 5.0 * one.divergences[one.orders.index(2.0)]
    assert exact <= law.selected(one).divergences[one.orders.index(2.0)]


def test_below_one_expected_run_the_logarithm_of_the_theorem_would_be_negative():
    one = curve_of(*(np.array([0.5, 0.5]), np.array([0.501, 0.499])))
    law = Poisson(0.25)
    for order, divergence in zip(one.orders, law.selected(one).divergences, strict=True):
        assert divergence > 0.0
        if order < 4.0:
            assert one.divergences[0] + law.mean + math.log(law.mean) / (order - 1.0) < 0.0


@pytest.mark.parametrize("law", [NegativeBinomial.expecting(10.0), Poisson(10.0)], ids=names)
def test_the_best_of_ten_is_above_the_claim_of_one_run_and_below_ours(law):
    """An attacker who sees the largest of ten Gaussian outputs: δ at the epsilon of one run, by integration."""
    sigma, delta = 2.0, 1e-5
    z = np.linspace(-40.0, 40.0, 400_001)
    ranks = [norm.cdf(z, shift / sigma) for shift in (0.0, 1.0)]
    if isinstance(law, Poisson):
        distributions = [np.exp(law.mean * (rank - 1.0)) for rank in ranks]
    else:
        distributions = [np.log1p(-(1.0 - law.gamma) * rank) / math.log(law.gamma) for rank in ranks]
    without, present = (np.append(np.diff(found), found[0]) for found in distributions)

    def exact(epsilon):
        ways = (present - math.exp(epsilon) * without, without - math.exp(epsilon) * present)
        return max(float(np.maximum(way, 0.0).sum()) for way in ways)

    one = gaussian_curve(sigma)
    naive = worst_case(sample_rate=1.0, noise_multiplier=sigma, steps=1, delta=delta).epsilon
    assert exact(naive) > 2.0 * delta
    ours = tuned_worst_case(law.selected(one), delta=delta)
    for epsilon in (0.0, 0.5, 1.0, 2.0, ours.epsilon):
        assert exact(epsilon) <= ours.curve.delta(epsilon)


def slope(law, u):
    """The derivative of the law's generating function."""
    if isinstance(law, Poisson):
        return law.mean * np.exp(law.mean * (u - 1.0))
    return law.mean * (law.gamma / (1.0 - (1.0 - law.gamma) * u)) ** (1.0 + law.eta)


@pytest.mark.parametrize("law", [LAWS[1], LAWS[2], Poisson(3.0)], ids=names)
def test_the_most_telling_of_several_composed_runs_is_above_the_naive_claim_and_below_ours(law):
    """Two sampled steps are integrated in both dimensions; the released run is the one with the largest ratio."""
    rate, noise, width, delta = 0.2, 1.0, 0.02, 1e-3
    y = np.arange(-9.0, 13.0, width)
    one = norm.pdf(y, 0.0, noise) * width, ((1 - rate) * norm.pdf(y) + rate * norm.pdf(y, 1.0)) * width
    without, present = (np.outer(part, part).ravel() for part in one)
    order = np.argsort(present / without)
    best = [p[order] * slope(law, np.cumsum(p[order]) - p[order] / 2.0) for p in (without, present)]
    none = float(law.pmf(np.array([0]))[0])
    assert [part.sum() + none for part in best] == pytest.approx([1.0, 1.0], abs=1e-4)

    def exact(epsilon):
        return max(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in (best, best[::-1]))

    naive = worst_case(sample_rate=rate, noise_multiplier=noise, steps=2, delta=delta).epsilon
    assert exact(naive) > 1.5 * delta
    found = law.selected(steps_curve(sample_rate=rate, noise_multiplier=noise, steps=2))
    ours = tuned_worst_case(found, delta=delta)
    for epsilon in (0.0, naive, 1.0, ours.epsilon):
        assert exact(epsilon) <= ours.curve.delta(epsilon) + 1e-9
    for at in (1.5, 2.0, 3.0, 5.0):
        allowed = found.divergences[found.orders.index(at)]
        assert both_ways(*(np.append(part, none) for part in best), at) <= allowed * (1.0 + 1e-3)


@pytest.mark.parametrize(
    ("mean", "logarithmic", "geometric", "poisson"),
    [(3, 4.04, 4.46, 3.57), (10, 4.70, 5.46, 4.97), (100, 5.65, 6.95, 17.7)],
)
def test_the_table_of_the_guide(mean, logarithmic, geometric, poisson):
    """Rounded up; those of the negative binomial laws are dp-accounting's, see above."""
    one = steps_curve(sample_rate=0.01, noise_multiplier=1.0, steps=2000)
    for law, expected in (
        (NegativeBinomial.expecting(mean), logarithmic),
        (NegativeBinomial.expecting(mean, eta=1.0), geometric),
        (Poisson(mean), poisson),
    ):
        found = tuned_worst_case(law.selected(one), delta=1e-5).epsilon
        assert expected * 0.996 - 0.01 <= found <= expected


def test_a_choice_of_settings_costs_what_the_worst_of_them_costs():
    curves = [steps_curve(sample_rate=0.1, noise_multiplier=noise, steps=50) for noise in (1.0, 2.0, 1.0)]
    found = largest_curve(curves)
    assert found.divergences == curves[0].divergences
    assert all(found.profile.delta(e) >= c.profile.delta(e) for c in curves for e in (0.0, 1.0, 4.0))
    crossing = largest_curve([RenyiCurve((2.0, 3.0), (1.0, 4.0)), RenyiCurve((2.0, 3.0), (2.0, 3.0))])
    assert crossing.divergences == (2.0, 4.0)
    with pytest.raises(ValueError, match="same orders"):
        _ = curves[0] | RenyiCurve((2.0,), (1.0,))


def test_a_private_score_is_added():
    one, score = steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=50), gaussian_curve(20.0)
    both = one.after(score)
    at = RENYI_ORDERS.index(8.0)
    assert both.divergences[at] == pytest.approx(one.divergences[at] + 8.0 / (2.0 * 400.0))
    assert both.profile.delta(1.0) > one.profile.delta(1.0)


def test_a_curve_that_is_none_is_refused():
    for orders, divergences in (((1.0,), (0.1,)), ((2.0, 2.0), (0.1, 0.1)), ((2.0,), (-0.1,)), ((), ())):
        with pytest.raises(ValueError, match="Rényi curve"):
            RenyiCurve(orders, divergences)
    with pytest.raises(ValueError, match="promises nothing"):
        RenyiCurve((2.0,), (math.inf,)).proved()
