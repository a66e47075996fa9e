"""The accountant end to end: soundness, anchors, refusals."""

import json
import math
import os

import hypothesis.strategies as st
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from scipy.optimize import brentq
from scipy.stats import binom, norm

from tacita import BayesianAccountant, PrivacyError, moments_budget, token_budget, worst_case
from tacita.accounting import NORM_LEVELS, ORDERS, epsilon_from_costs, record_curves
from tacita.accounting.history import fresh_samples
from tacita.accounting.levels import TOP, cost_table, level_of
from tacita.accounting.population import population_costs
from tacita.estimators import ESTIMATORS, Estimator
from tacita.mechanisms import gaussian_delta
from tacita.papers import product_figure
from tacita.profile import Profile

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MECHANISM = {"sample_rate": 0.01, "noise_multiplier": 1.0}


def followed(norms, repeats, /, **options):
    accountant = BayesianAccountant(**{**MECHANISM, **options})
    accountant.step(np.asarray(norms, dtype=float), steps=repeats)
    return accountant


def log_normal(m, rng):
    return np.minimum(rng.lognormal(np.log(0.2), 0.5, size=m), 1.0)


@pytest.fixture
def plain_mean(monkeypatch):
    """Replace the estimator by the sample's own mean, so that only the composition is under test."""

    def mean(costs, *, weights, gamma, worst):
        top = costs.max(axis=-1)
        return top + np.log(np.exp(costs - top[..., None]) @ weights / weights.sum())

    monkeypatch.setitem(ESTIMATORS, "student", Estimator(mean, averages="moments", model="model-based"))


def costs_of(samples, orders):
    return population_costs(ESTIMATORS["student"], samples, cost_table(0.01, 1.0, orders), gamma=1e-9)


def population_costs_of(accountant, orders):
    return costs_of(accountant.history.samples(), orders)


# Right: every bound against an exact value.


@pytest.mark.parametrize("composition", ["panel", "hoelder", "independent"])
def test_at_the_clip_bound_every_composition_is_the_moments_accountant(composition):
    accountant = BayesianAccountant(
        **MECHANISM, composition="panel" if composition == "panel" else "hoelder", steps=500
    )
    accountant.step(np.ones(20), steps=500)
    ask = product_figure if composition == "independent" else BayesianAccountant.guarantee
    g = ask(accountant, delta=1e-5, estimator="student", gamma=1e-15)
    spare = 1e-5 - len(ORDERS) * 1e-15
    exact = min((500 * float(a) - math.log(spare)) / order for order, a in zip(ORDERS, at_the_bound(), strict=True))
    assert g.epsilon == pytest.approx(exact, rel=1e-9)


def at_the_bound():
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant(orders=[o + 1 for o in ORDERS])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)))
    return [order * rdp for order, rdp in zip(ORDERS, accountant.rdp, strict=True)]


@pytest.mark.parametrize(("steps", "published"), [(1_000, 0.974), (10_000, 1.106)])
def test_published_moments_accountant_values(steps, published):
    """q = 64/60000, σ = 1, δ = 1e-5, C = 1, by the papers' conversion."""
    costs = steps * cost_table(64 / 60000, 1.0, ORDERS)[:, TOP]
    assert float(epsilon_from_costs(costs, ORDERS, delta=1e-5, notion="strong")) == pytest.approx(published, abs=5e-4)
    accountant = followed(np.ones(50), steps, sample_rate=64 / 60000)
    assert accountant.guarantee(delta=1e-5, estimator="student").epsilon == pytest.approx(published, abs=2e-3)


def exact_cost(order, rate, ratio):
    q, r, n = mp.mpf(rate), mp.mpf(ratio), order + 1
    return mp.log(
        mp.fsum(mp.binomial(n, k) * q**k * (1 - q) ** (n - k) * mp.exp((k * k - k) * r * r / 2) for k in range(n + 1))
    )


@pytest.mark.usefixtures("plain_mean")
@pytest.mark.parametrize("order", [1, 4, 8])
def test_b9_compositions_bound_two_point_populations_and_the_naive_swap_does_not(order):
    """One record in ten is at the bound in every step, the others at a tenth: norms stay alike."""
    mp.mp.dps = 30
    steps, m = 300, 1000
    norms = np.where(np.arange(m) < m // 10, 1.0, 0.1)
    high, low = exact_cost(order, 0.01, 1.0), exact_cost(order, 0.01, 0.1)
    exact = float(mp.log(mp.mpf("0.1") * mp.exp(steps * high) + mp.mpf("0.9") * mp.exp(steps * low)))
    found = {}
    for composition in ("panel", "hoelder"):
        accountant = BayesianAccountant(**MECHANISM, composition=composition, steps=steps)
        for _ in range(steps):
            accountant.step(norms)
        found[composition] = float(population_costs_of(accountant, (order,))[0])
    found["independent"] = float(costs_of(fresh_samples(accountant.history.histograms, power=1), (order,))[0])
    assert found["panel"] >= exact * (1 - 1e-9)
    assert found["panel"] <= exact * 1.02
    assert found["hoelder"] >= found["panel"] * (1 - 1e-9)
    if order == 8:
        assert found["independent"] < 0.5 * exact


@pytest.mark.usefixtures("plain_mean")
def test_hoelder_is_above_panel_when_norms_move():
    """Records take turns at the bound; Hölder pays for it, following them does not."""
    steps, m = 40, 40
    panel = BayesianAccountant(**MECHANISM)
    hoelder = BayesianAccountant(**MECHANISM, composition="hoelder", steps=steps)
    for t in range(steps):
        norms = np.where(np.arange(m) == t, 1.0, 0.05)
        panel.step(norms)
        hoelder.step(norms)
    orders = (2, 8, 32)
    exact = [
        float((steps - 1) * exact_cost(o, 0.01, 0.05) + exact_cost(o, 0.01, 1.0)) for o in orders
    ]  # every record has the same total
    by_panel, by_hoelder = population_costs_of(panel, orders), population_costs_of(hoelder, orders)
    assert (by_panel >= np.array(exact) * (1 - 1e-9)).all()
    assert (by_panel <= by_hoelder * (1 + 1e-12)).all()
    assert by_hoelder[-1] > 1.5 * by_panel[-1]


@pytest.mark.usefixtures("plain_mean")
@pytest.mark.parametrize("order", [2, 8])
def test_compositions_bound_a_log_normal_population(order):
    mp.mp.dps = 20
    m, steps = 4000, 200
    upper_quantiles = np.minimum(np.exp(np.log(0.2) + 0.5 * norm.ppf(np.minimum(np.arange(1, m + 1) / m, 1))), 1.0)

    def density(z):
        return mp.npdf(z) * mp.exp(steps * exact_cost(order, 0.01, mp.mpf("0.2") * mp.exp(z / 2)))

    top = 2 * math.log(5)  # where the norm reaches 1
    exact = mp.log(
        mp.quad(density, [-8, -2, 0, 2, top]) + (1 - mp.ncdf(top)) * mp.exp(steps * exact_cost(order, 0.01, 1))
    )
    panel = followed(upper_quantiles, steps)
    hoelder = followed(upper_quantiles, steps, composition="hoelder", steps=steps)
    assert float(exact) <= population_costs_of(panel, (order,))[0] <= float(exact) * 1.05
    assert population_costs_of(panel, (order,))[0] <= population_costs_of(hoelder, (order,))[0] * (1 + 1e-12)


def true_epsilon(delta, steps):
    """The population's own ε for log-normal norms, from below: quantiles rounded down, PLD otherwise as is."""
    m = 20_000
    lower = np.minimum(np.exp(np.log(0.2) + 0.5 * norm.ppf(np.arange(m) / m)), 1.0)
    index = np.maximum(level_of(lower) - 1, 0)
    counts = np.zeros((m, len(NORM_LEVELS)), dtype=np.int64)
    counts[np.arange(m), index] = steps
    curves = record_curves(counts, **MECHANISM)
    grid = np.linspace(0.1, 2.5, 241)
    return float(grid[np.flatnonzero(curves.delta(grid).mean(axis=1) <= delta)[0] - 1])


@pytest.mark.slow
@pytest.mark.stat
def test_band_certifies_at_least_the_populations_own_epsilon(rng):
    """At gamma = 1e-6 a miss in 40 draws would be a 4e-5 event."""
    truth = true_epsilon(1e-5, 2000)
    for m in (50, 400, 3000):
        for _ in range(8):
            assert followed(log_normal(m, rng), 2000).guarantee(delta=1e-5, gamma=1e-6).epsilon >= truth


# Tight: the figures of the standard example.


@pytest.mark.parametrize(("m", "expected"), [(100, 2.4), (1000, 2.0), (10_000, 1.65)])
def test_band_is_tight_on_the_standard_example(m, expected, rng):
    accountant = followed(log_normal(m, rng), 2000, levels="static")
    g = accountant.guarantee(delta=1e-5, gamma=1e-15)
    assert g.epsilon <= 1.03 * expected
    assert g.scope == "guarantee"
    mass, floor = accountant.floor(delta=1e-5, gamma=1e-15)
    assert mass == pytest.approx(math.log(2e15) / m, rel=0.25)
    assert floor <= g.epsilon * 1.002  # two routes to the same worst case
    by_moments = accountant.guarantee(delta=1e-5, gamma=1e-15, method="moments")
    assert g.epsilon <= by_moments.epsilon


@pytest.fixture(scope="module")
def standard():
    """The standard example: 1,000 people whose norms are log-normal, with a fifth of the clip norm as the median."""
    return followed(log_normal(1000, np.random.default_rng(0)), 2000, levels="static")


def test_shares_of_the_standard_example(standard):
    """Half of the people below 0.35 and nine in ten below 0.75, where the mean is ruled by whom nobody saw."""
    shares, worst = standard.shares(delta=1e-5, gamma=1e-6), worst_case(**MECHANISM, steps=2000, delta=1e-5)
    assert shares[50] <= 0.35
    assert shares[90] <= 0.75
    ranks = {p: next(r for r in range(1, 1002) if binom.sf(r - 1, 1000, p / 100) <= 1e-6 / 5) for p in shares}
    assert ranks == {50: 581, 75: 818, 90: 946, 95: 982, 99: 1001}
    norms = np.sort(log_normal(1000, np.random.default_rng(0)))
    for percent in (50, 90):
        one = pld.from_gaussian_mechanism(1.0, sensitivity=norms[ranks[percent] - 1], sampling_prob=0.01)
        own = one.self_compose(2000).get_epsilon_for_delta(1e-5)
        assert own * (1 - 1e-3) <= shares[percent] <= own * 1.02  # norms are rounded up to a level
    assert shares[99] == worst.epsilon
    typical = standard.guarantee(delta=1e-5, gamma=1e-6)
    assert shares[90] < typical.epsilon < worst.epsilon
    assert worst.attack_success == pytest.approx(0.613, abs=1e-3)
    assert typical.attack_success == pytest.approx(0.526, abs=2e-3)
    assert np.median(standard.successes()) == pytest.approx(0.518, abs=1e-3)


def test_one_threshold_for_everybody_beats_the_average_of_records_bounds(standard):
    """At 0.1% false positives: 0.143% on average over records' own bounds, 0.196% found with one threshold."""
    curves = standard._panel_curves()
    average = np.mean([curves.profile(record).tpr(0.001) for record in range(0, 1000, 5)])
    population = Profile.of_curve(lambda eps: curves.delta(eps).mean(axis=1), np.linspace(0.0, 2.6, 400))
    assert average == pytest.approx(0.00143, rel=0.03)
    assert 0.00196 <= population.tpr(0.001) <= 1.07 * 0.00196
    assert standard.guarantee(delta=1e-5, gamma=1e-6).curve.tpr(0.001) >= population.tpr(0.001)


@pytest.mark.parametrize("fpr", [0.001, 0.01])
def test_the_population_curve_bounds_an_attack_with_one_threshold_and_averages_do_not(fpr):
    """Closed form: 40 records in 1,000 move the release by three standard deviations, the others by a twelfth."""
    levels = np.full(1000, 16 / 256) ** 2  # the steps of the norm grid, so that nothing is rounded
    levels[:40] = (96 / 256) ** 2
    distances, sigma = levels * 21.0, 1 / 21.0
    accountant = BayesianAccountant(sample_rate=1.0, noise_multiplier=sigma, levels="static")
    accountant.step(levels)

    def accused(cut, shift):
        """Of all, those whose log likelihood ratio is above one cut; it is N(± distance²/2, distance²)."""
        return float(norm.sf((cut - shift * distances**2 / 2) / distances).mean())

    cut = brentq(lambda cut: accused(cut, -1.0) - fpr, 0.0, 20.0, xtol=1e-12)
    found, average = accused(cut, 1.0), float(norm.cdf(norm.ppf(fpr) + distances).mean())
    assert found > 1.1 * average  # the bound by averages is broken
    population = Profile.of_curve(
        lambda eps: gaussian_delta(eps[:, None], distance=distances[None]).mean(axis=1), np.linspace(0.0, 40.0, 4000)
    )
    assert found * (1 - 1e-9) <= population.tpr(fpr) <= found * 1.01
    assert accountant.guarantee(delta=1e-4).curve.tpr(fpr) >= found


@pytest.mark.slow
def test_moving_norms_by_pld_are_tighter_than_by_moments(rng):
    accountant = BayesianAccountant(**MECHANISM)
    base = log_normal(400, rng)
    for _ in range(200):
        accountant.step(np.minimum(base * rng.lognormal(0.0, 0.3, 400), 1.0), steps=10)
    by_pld, by_moments = (accountant.guarantee(delta=1e-5, method=way) for way in ("pld", "moments"))
    assert by_pld.scope == by_moments.scope == "reading"
    assert by_pld.epsilon < by_moments.epsilon


# Calm: what is refused, and what is said.


def test_scope_estimator_and_split_are_stated(rng):
    norms = log_normal(300, rng)
    reading = followed(norms, 100).guarantee(delta=1e-5)
    assert (reading.kind, reading.scope, reading.estimator, reading.notion) == ("bayesian", "reading", "band", "weak")
    assert not reading.publishable
    assert dict(reading.delta_split) == {"band": pytest.approx(5e-7), "expected": pytest.approx(9.5e-6)}
    student = followed(norms, 100).guarantee(delta=1e-5, estimator="student", gamma=1e-15)
    assert (student.notion, student.model, student.method) == ("strong", "model-based", "moments")
    assert dict(student.delta_split)["estimator"] == pytest.approx(1e-15 * len(ORDERS))
    weak = followed(norms, 100).guarantee(delta=1e-5, estimator="student", notion="weak")
    assert weak.epsilon < student.epsilon


def test_weak_figures_never_exceed_the_worst_case(rng):
    for norms in (np.ones(30), log_normal(5, rng), np.zeros(5)):
        accountant = followed(norms, 300)
        worst = accountant.worst_case(delta=1e-5).epsilon
        for options in ({}, {"method": "moments"}, {"estimator": "bernstein", "notion": "weak"}):
            g = accountant.guarantee(delta=1e-5, **options)
            assert 0 < g.epsilon <= worst
            assert math.isfinite(g.epsilon)


def test_strong_band_by_moments_is_above_the_weak_one(rng):
    accountant = followed(log_normal(2000, rng), 500)
    strong = accountant.guarantee(delta=1e-5, method="moments", notion="strong")
    assert strong.epsilon >= accountant.guarantee(delta=1e-5, method="moments").epsilon
    with pytest.raises(PrivacyError, match="method='moments'"):
        accountant.guarantee(delta=1e-5, notion="strong")


def test_b7_gammas_are_counted_once_for_every_estimate(rng):
    accountant = BayesianAccountant(**MECHANISM, composition="hoelder", steps=100)
    for _ in range(100):
        accountant.step(log_normal(50, rng))
    with pytest.raises(PrivacyError, match=f"counts {100 * len(ORDERS)} times"):
        accountant.guarantee(delta=1e-5, estimator="student", gamma=1e-9)
    g = accountant.guarantee(delta=1e-5, estimator="student", gamma=1e-15)
    assert dict(g.delta_split)["estimator"] == pytest.approx(100 * len(ORDERS) * 1e-15)
    with pytest.raises(PrivacyError, match="reaches delta"):
        followed(np.ones(10), 5).guarantee(delta=1e-8, gamma=1e-8)


def test_b8_running_past_the_plan_raises_and_stopping_early_is_fine():
    accountant = BayesianAccountant(**MECHANISM, composition="hoelder", steps=10)
    accountant.step(np.full(20, 0.2), steps=7)
    early = accountant.guarantee(delta=1e-5, estimator="student").epsilon
    accountant.step(np.full(20, 0.2), steps=3)
    assert accountant.guarantee(delta=1e-5, estimator="student").epsilon >= early
    with pytest.raises(PrivacyError, match="The plan covers 10 steps but this would be step 11"):
        accountant.step(np.full(20, 0.2))
    assert accountant.taken == 10


def test_static_norms_must_not_move():
    accountant = followed(np.full(5, 0.3), 2, levels="static")
    accountant.step(np.full(5, 0.3))
    with pytest.raises(PrivacyError, match="declared"):
        accountant.step(np.full(5, 0.6))


def test_a_panel_keeps_its_records():
    accountant = followed(np.full(5, 0.3), 1)
    with pytest.raises(ValueError, match="same 5 records"):
        accountant.step(np.full(6, 0.3))
    assert accountant.taken == 1


@pytest.mark.parametrize(
    ("norms", "error", "message"),
    [
        ([math.nan, 0.1], ValueError, "finite"),
        ([-0.1], ValueError, "non-negative"),
        ([1.1], ValueError, "fractions of the clip norm"),
        ([], ValueError, "at least one record"),
        ([[0.1, 0.2]], ValueError, r"shape \(m,\)"),
        (["a"], TypeError, "array of real numbers"),
        ([1j], TypeError, "array of real numbers"),
        (None, TypeError, "array of real numbers"),
    ],
)
def test_bad_norms_are_refused_and_nothing_is_charged(norms, error, message):
    accountant = BayesianAccountant(**MECHANISM)
    with pytest.raises(error, match=message):
        accountant.step(norms)
    assert accountant.taken == 0
    with pytest.raises(PrivacyError, match="No step was charged"):
        accountant.guarantee(delta=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"composition": "naive"}, "composition must be one of"),
        ({"composition": "hoelder"}, "needs steps=T"),
        ({"sample_rate": 2.0}, "not a probability"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"levels": "fixed"}, "levels must be one of"),
        ({"formula": "papers"}, r"tacita\.papers\.printed_figure"),
        ({"composition": "independent"}, r"tacita\.papers\.product_figure"),
        ({"formulas": 1}, "takes no argument 'formulas'"),
        ({"steps": 0}, "steps"),
        ({"tolerated": -1}, "tolerated"),
        ({"budget": 3.0}, "budget must be"),
        ({"levels": "static", "composition": "hoelder", "steps": 5}, "composition='panel'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BayesianAccountant(**{**MECHANISM, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, "delta must be in"),
        ({"delta": math.nan}, "delta must be in"),
        ({"estimator": "mean"}, "estimator must be one of"),
        ({"gamma": 0.0}, "gamma must be in"),
        ({"notion": "medium"}, "notion must be one of"),
        ({"method": "fft"}, "method must be one of"),
        ({"estimator": "student", "method": "pld"}, "goes with 'band'"),
        ({"estimator": "conformal"}, "needs a budget"),
    ],
)
def test_bad_questions_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        followed(np.full(5, 0.3), 2).guarantee(**{"delta": 1e-5, **options})


def test_only_a_panel_has_curves():
    accountant = followed(np.full(5, 0.3), 2, composition="hoelder", steps=2)
    for call in (accountant.percentiles, accountant.floor, accountant.guarantee):
        with pytest.raises(PrivacyError, match="composition='panel'"):
            call(delta=1e-5)


def test_binary_norms_have_the_binary_estimator():
    norms = np.where(np.arange(100) < 3, 1.0, 0.0)
    g = followed(norms, 500).guarantee(delta=1e-5, estimator="binary", gamma=1e-9)
    assert 0 < g.epsilon < followed(norms, 500).guarantee(delta=1e-5, estimator="bernstein").epsilon
    with pytest.raises(ValueError, match="at most two"):
        followed([0.1, 0.5, 0.9], 5).guarantee(delta=1e-5, estimator="binary")


# The conformal certificate.


def test_conformal_certificate_and_its_refusals(rng):
    budget = moments_budget(steps=100, **MECHANISM)
    options = {"budget": budget, "tolerated": 1}
    issued = followed(np.full(999, 0.9), 100, **options).guarantee(delta=0.01, estimator="conformal")
    assert (issued.scope, issued.publishable, issued.notion) == ("guarantee", True, "strong")
    assert dict(issued.delta_split) == {"conformal": pytest.approx(0.002), "tail": pytest.approx(0.008)}
    assert issued.epsilon == pytest.approx(budget.epsilon(0.008, notion="strong", **MECHANISM))
    over = np.full(999, 0.9)
    over[:2] = 1.0
    broken = BayesianAccountant(**MECHANISM, **options)
    broken.step(over, steps=101)
    with pytest.raises(PrivacyError, match="No certificate"):
        broken.guarantee(delta=0.01, estimator="conformal")
    with pytest.raises(PrivacyError, match="delta must be above"):
        followed(np.full(999, 0.9), 100, **options).guarantee(delta=0.002, estimator="conformal")


def test_conformal_by_tokens_is_weak():
    g = followed(np.full(99, 0.5), 50, budget=token_budget({0.5: 50})).guarantee(delta=0.02, estimator="conformal")
    assert (g.notion, g.method) == ("weak", "pld")
    with pytest.raises(PrivacyError, match="weak"):
        followed(np.full(99, 0.5), 50, budget=token_budget({0.5: 50})).guarantee(
            delta=0.02, estimator="conformal", notion="strong"
        )


# Readings and state.


def test_percentiles_are_the_records_own_epsilons():
    norms = np.linspace(0.01, 1.0, 200)
    accountant = followed(norms, 300)
    found = accountant.percentiles(delta=1e-5)
    assert list(found) == [50, 75, 90, 95, 99]
    assert list(found.values()) == sorted(found.values())
    assert found[50] == pytest.approx(accountant._panel_curves().epsilon(1e-5)[99], rel=1e-12)
    assert accountant.percentiles(delta=1e-5, percents=[100])[100] <= accountant.worst_case(delta=1e-5).epsilon
    assert accountant.percentiles(delta=1e-5, percents=[0])[0] > 0
    with pytest.raises(ValueError, match="a percentage"):
        accountant.percentiles(delta=1e-5, percents=[101])


def test_delta_and_guarantee_agree(rng):
    accountant = followed(log_normal(1000, rng), 1000)
    g = accountant.guarantee(delta=1e-5, gamma=1e-7)
    assert accountant.delta(epsilon=g.epsilon, gamma=1e-7) == pytest.approx(1e-5, rel=1e-2)
    assert accountant.delta(epsilon=0.0) <= 1.0
    assert accountant.delta(epsilon=1e4) < 1e-10  # the worst case caps it, gamma or not
    with pytest.raises(ValueError, match="epsilon"):
        accountant.delta(epsilon=-1.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"levels": "static"},
        {"budget": moments_budget(steps=5, **MECHANISM), "tolerated": 2},
        {"budget": token_budget({1.0: 7})},
        {"composition": "hoelder", "steps": 9},
    ],
)
def test_state_survives_json(options, rng):
    accountant = BayesianAccountant(**{**MECHANISM, **options})
    accountant.step(np.full(200, 0.3), steps=3)
    restored = BayesianAccountant.from_state(json.loads(json.dumps(accountant.state_dict())))
    for one in (accountant, restored):
        one.step(np.full(200, 0.3), steps=2)
    estimator = "student" if "composition" in options else "band"
    assert restored.guarantee(delta=1e-4, estimator=estimator) == accountant.guarantee(delta=1e-4, estimator=estimator)
    assert restored.budget == accountant.budget


TWO_LEVELS = {"record": [0, 0, 1, 2, 3], "level": [5, 6, 5, 5, 5], "steps": [3, 3, 6, 6, 6]}
OVERFLOWING = {"record": [0, 0, 1, 2, 3], "level": [256, 0, 5, 5, 5], "steps": [2**63 - 1, 7, 6, 6, 6]}
REPEATED = {"record": [0, 0, 1, 2, 3], "level": [5, 5, 5, 5, 5], "steps": [3, 3, 6, 6, 6]}


def damaged(change):
    state = json.loads(json.dumps(followed(np.full(4, 0.5), 6).state_dict()))
    change(state)
    return state


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(schema=1),
        lambda s: s.update(formula="exact"),
        lambda s: s.update(surprise=1),
        lambda s: s.update(schema=True),
        lambda s: s.update(histograms=[[6, [1] * 257]]),
        lambda s: s.update(composition="hoelder", steps=6, panel=None, histograms=[[6, [0] * 257]]),
        lambda s: s.update(histograms=[[1, 2, 3]]),
        lambda s: s.update(taken=3),
        lambda s: s.update(steps=2),
        lambda s: s.pop("panel"),
        lambda s: s.pop("sample_rate"),
        lambda s: s["panel"].update(steps=[1, 6, 6, 6]),
        lambda s: s["panel"].update(steps=[-6, 6, 6, 6]),
        lambda s: s["panel"].update(level=[999] * 4),
        lambda s: s["panel"].update(records=5),
        lambda s: s.update(histograms=[[5, [1]]]),
        lambda s: s.update(histograms=7),
        lambda s: s.update(levels="static", panel={**s["panel"], **TWO_LEVELS}),
        lambda s: s.update(panel={**s["panel"], **OVERFLOWING}),
        lambda s: s.update(panel={**s["panel"], **REPEATED}),
        lambda s: s.update(composition="hoelder", steps=6, panel=None, histograms=[[6, [1] * 300]]),
        lambda s: s.update(composition="hoelder", steps=6, panel=None, histograms=[[6, [[1]]]]),
    ],
)
def test_a_damaged_state_is_refused(change):
    with pytest.raises((PrivacyError, ValueError)):
        BayesianAccountant.from_state(damaged(change))


def test_a_state_must_be_a_mapping():
    with pytest.raises(PrivacyError, match="state_dict"):
        BayesianAccountant.from_state([1, 2])


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=12), st.sampled_from([1, 7, 60, 400]), st.floats(1e-8, 1e-2))
@settings(max_examples=1000 if THOROUGH else 20)
def test_any_panel_gives_a_positive_finite_epsilon_below_the_worst_case(norms, steps, delta):
    accountant = followed(norms, steps)
    g = accountant.guarantee(delta=delta)
    assert 0 < g.epsilon <= worst_case(steps=steps, delta=delta, **MECHANISM).epsilon
    assert g.delta == delta
    assert sum(value for _, value in g.delta_split) == pytest.approx(delta)


@given(st.permutations([0.05, 0.2, 0.5, 1.0, 0.0]))
@settings(max_examples=100 if THOROUGH else 10)
def test_order_of_records_does_not_matter(norms):
    here = followed(norms, 50).guarantee(delta=1e-4).epsilon
    there = followed(sorted(norms), 50).guarantee(delta=1e-4).epsilon
    assert here == pytest.approx(there, rel=1e-12)


def test_questions_before_the_first_step_are_refused():
    accountant = BayesianAccountant(**MECHANISM)
    for call in (accountant.floor, accountant.percentiles, accountant.guarantee, accountant.worst_case):
        with pytest.raises(PrivacyError, match="No step was charged"):
            call(delta=1e-5)
    with pytest.raises(PrivacyError, match="No step was charged"):
        accountant.delta(epsilon=1.0)
    assert repr(followed([0.1], 3)).endswith("3 steps charged")


def test_the_certificate_names_its_terms():
    g = followed(np.full(99, 0.5), 50, budget=token_budget({0.5: 50})).guarantee(delta=0.02, estimator="conformal")
    assert "99 records were followed, and 0 of them were allowed" in str(g)
    assert "issued and" in str(g)


def test_float32_round_off_is_explained():
    with pytest.raises(ValueError, match=r"got 1\.00000012; .*numpy\.minimum"):
        BayesianAccountant(**MECHANISM).step(np.array([1.0000001], dtype=np.float32))


def test_larger_norms_never_cost_less(rng):
    norms = log_normal(200, rng)
    small = followed(0.8 * norms, 300).guarantee(delta=1e-5).epsilon
    assert followed(norms, 300).guarantee(delta=1e-5).epsilon >= small * (1 - 1e-3)


def test_losses_in_the_thousands_are_not_understated():
    accountant = followed(np.ones(1000), 1, sample_rate=1e-3, noise_multiplier=0.02, levels="static")
    assert accountant.guarantee(delta=1e-5).epsilon > 1358
    assert accountant.delta(epsilon=1000.0) > 1e-5
    assert accountant.delta(epsilon=2e6) < 1e-9


def test_small_costs_are_followed_to_high_orders():
    """The best order for tiny norms is in the thousands; a list that ends at 32 would lose several-fold."""
    accountant = followed(np.full(50, 0.002), 1000)
    g = accountant.guarantee(delta=1e-5, estimator="student")
    assert g.epsilon < math.log(1e5) / ORDERS[95]
    assert g.epsilon < 0.1 * math.log(1e5) / 32


@pytest.mark.parametrize(("planned", "kind"), [(127, np.int8), (128, np.int16), (40_000, np.int32)])
def test_counts_are_kept_in_the_smallest_type_that_holds_the_plan(planned, kind):
    accountant = BayesianAccountant(**MECHANISM, steps=planned)
    accountant.step(np.array([0.3, 1.0]), steps=planned)
    assert accountant.counts.dtype == kind
    assert accountant.counts.max(axis=1).tolist() == [planned, planned]


def test_counts_without_a_plan_never_overflow():
    accountant = BayesianAccountant(**MECHANISM)
    for _ in range(3):
        accountant.step(np.array([0.3, 1.0]), steps=127)
    accountant.step(np.array([1.0, 0.3]), steps=40_000)
    assert accountant.counts.sum(axis=1).tolist() == [40_381, 40_381]
    assert accountant.counts.min() == 0
    again = BayesianAccountant.from_state(accountant.state_dict())
    assert np.array_equal(again.counts, accountant.counts)


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64])
def test_a_panel_is_read_as_a_matrix_of_any_type_and_refused_if_it_does_not_add_up(kind):
    accountant = BayesianAccountant(**MECHANISM, steps=300)
    accountant.step(np.array([0.3, 1.0]), steps=200)
    state, counts = accountant.state_without_panel(), accountant.counts.astype(kind)
    assert BayesianAccountant.from_state({**state, "panel": counts}).epsilons(delta=1e-5) == pytest.approx(
        accountant.epsilons(delta=1e-5), rel=0.0
    )
    for wrong in (counts[:, :-1], counts - 1, counts.astype(float), counts // 2, 2 * counts, counts[:0], counts[0]):
        with pytest.raises(PrivacyError, match="state is damaged"):
            BayesianAccountant.from_state({**state, "panel": wrong})
