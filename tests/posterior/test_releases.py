"""Exact noise, noise-aware posteriors, the choice of a mechanism, and the one call that does it all."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from tacita._check import PrivacyError
from tacita.ledger import BudgetExceeded, Ledger
from tacita.posterior import samplers
from tacita.posterior.choice import compare, expected_distance
from tacita.posterior.mechanisms import Statistic, best, exponential, gaussian, geometric, laplace
from tacita.posterior.mixtures import BetaMixture, NormalMixture, Shares
from tacita.posterior.models import beta, dirichlet, normal
from tacita.posterior.noise import GaussianNoise, GeometricNoise, LaplaceNoise
from tacita.posterior.noise_aware import Grid, cells_posterior, total_posterior
from tacita.posterior.plans import plan_release
from tacita.posterior.releases import _counts, _records, release

FALSE_ALARM = 1e-6  # of each statistical test here; noise is drawn by the operating system and cannot be seeded


def cells_plan(mechanism, prior, cells, n):
    return plan_release(mechanism, Statistic(cells, n, prior=prior))


def posterior_of(prior, n):
    return Statistic(prior.cells, n, prior=prior)


def compared(mechanism, statistic):
    return compare(mechanism.options(statistic), statistic)


def number_plan(mechanism, step):
    return plan_release(mechanism, Statistic(step=step))


def sum_plan(mechanism, step):
    return plan_release(mechanism, Statistic(step=step, summed=True))


def fits(draws, chance, reach):
    """A chi-squared test of draws against the probabilities of -reach..reach, the ends taking all beyond."""
    clipped = np.clip(draws, -reach, reach)
    seen = np.bincount(clipped + reach, minlength=2 * reach + 1)
    wanted = np.array([chance(z) for z in range(-reach, reach + 1)])
    wanted[0] = wanted[-1] = (1 - wanted[1:-1].sum()) / 2
    return stats.chisquare(seen, len(draws) * wanted / wanted.sum()).pvalue


@pytest.mark.stat
@pytest.mark.parametrize("kind", [GeometricNoise, LaplaceNoise, GaussianNoise])
def test_f1_noise_is_what_it_is_said_to_be(kind):
    scale, size = 1.7, 4000 if kind is LaplaceNoise else 40_000
    source = kind(scale)
    draws = np.array(source.draw([0] * size))
    chance = {
        GeometricNoise: lambda z: math.tanh(0.5 / scale) * math.exp(-abs(z) / scale),
        LaplaceNoise: lambda z: stats.laplace(scale=scale).cdf(z + 0.5) - stats.laplace(scale=scale).cdf(z - 0.5),
        GaussianNoise: lambda z: math.exp(-(z**2) / (2 * scale**2)),
    }[kind]
    total = sum(chance(z) for z in range(-200, 201))
    assert fits(draws, lambda z: chance(z) / total, 4) > FALSE_ALARM
    assert fits(draws + np.arange(size) % 2, lambda z: chance(z) / total, 4) < FALSE_ALARM  # it can fail
    gaps = np.arange(-200, 201)
    assert np.exp(source.log_chance(gaps)) == pytest.approx([chance(z) / total for z in gaps], rel=1e-6)
    assert source.sd == pytest.approx(math.sqrt(sum(chance(z) / total * z * z for z in gaps)), rel=1e-6)
    inside = sum(chance(z) / total for z in gaps if abs(z) <= source.half_width(0.95))
    assert source.tail(np.arange(5)) == pytest.approx(
        [sum(chance(z) / total for z in range(k, 201)) for k in range(5)], rel=1e-6
    )
    assert inside >= 0.95 > inside - 2 * chance(source.half_width(0.95)) / total


@pytest.mark.stat
def test_f1_a_row_is_drawn_from_exactly():
    row = np.array([0.5, 0.25, 1e-300, 0.125, 0.125, 0.0])
    seen = np.bincount([samplers.pick(row) for _ in range(8000)], minlength=6)
    assert seen[2] == seen[5] == 0
    assert stats.chisquare(seen[[0, 1, 3, 4]], 8000 * row[[0, 1, 3, 4]]).pvalue > FALSE_ALARM
    assert samplers.pick(np.array([0.0, 5e-324, 0.0])) == 1


def test_scales_are_rounded_up():
    """The exact rational rate of the noise is never above the decimal epsilon that was asked for."""
    from fractions import Fraction

    for epsilon in np.round(np.random.default_rng(0).uniform(0.01, 3, 200), 3):
        scale = number_plan(geometric(epsilon=epsilon), 3).source.scale
        assert Fraction(3) / Fraction(scale) <= Fraction(repr(float(epsilon)))


def share_by_integration(prior, n, output, log_chance):
    """The posterior density of the share on a grid, straight from Bayes' rule."""
    shares = np.linspace(0.0005, 0.9995, 1000)
    counts = np.arange(n + 1)
    seen = np.exp(log_chance(output - counts))
    density = stats.beta(*prior.alphas).pdf(shares) * (stats.binom.pmf(counts[None, :], n, shares[:, None]) @ seen)
    return shares, density / (density.sum() * 0.001)


@pytest.mark.parametrize("alphas", [(1, 1), (2, 5), (30, 3)])
@pytest.mark.parametrize(("n", "output"), [(6, 2), (6, -3), (40, 25), (40, 47)])
def test_noise_aware_posterior_is_bayes_rule(alphas, n, output):
    for request in (geometric(epsilon=0.4), laplace(epsilon=0.9), gaussian(epsilon=0.5, delta=1e-4)):
        prior = beta(*alphas)
        plan = cells_plan(request, prior, 2, n)
        made = cells_posterior(plan, prior, (output,), n, n)
        shares, density = share_by_integration(prior, n, output, plan.source.log_chance)
        assert made.pdf(shares) == pytest.approx(density, rel=2e-3, abs=2e-3)
        assert made.mean == pytest.approx((shares * density).sum() * 0.001, abs=2e-3)
        low, high = made.interval(0.9)
        assert made.cdf(np.array([low, high])) == pytest.approx([0.05, 0.95], abs=1e-9)


def test_noise_aware_posterior_of_a_table():
    prior, n = beta(1, 2), 9
    plan = cells_plan(exponential(epsilon=1.0, delta=1e-4), prior, 2, n)
    made = cells_posterior(plan, prior, (4, 5), n, n)
    chances = stats.betabinom.pmf(np.arange(n + 1), n, 1, 2) * plan.table[:, 4]
    expected = (chances * (1 + np.arange(n + 1)) / (3 + n)).sum() / chances.sum()
    assert made.mean == pytest.approx(expected, rel=1e-9)


def brute_shares(alphas, output, source, sizes):
    """Every vector of counts with its weight: Dirichlet-multinomial given the size, times the noise's chance."""
    most = max(sizes)
    counts, weights = [], []
    for vector in itertools.product(range(most + 1), repeat=len(alphas)):
        if sum(vector) in sizes:
            chance = stats.dirichlet_multinomial.pmf(vector, alphas, sum(vector)) if sum(vector) else 1.0
            counts.append(vector)
            weights.append(chance * math.exp(source.log_chance(np.array(output) - np.array(vector)).sum()))
    weights = np.array(weights) / sum(weights)
    return np.array(counts), weights


@pytest.mark.parametrize("alphas", [(1, 1, 1), (0.3, 2, 7)])
@pytest.mark.parametrize("output", [(3, 5, 2), (-2, 14, 1)])
@pytest.mark.parametrize("public", [True, False])
def test_noise_aware_shares_equal_enumeration(alphas, output, public):
    """With a public size, and in a part where every size up to `most` is possible."""
    prior, most = dirichlet(*alphas), 10
    plan = cells_plan(geometric(epsilon=0.6), prior, 3, most if public else None)
    made = cells_posterior(plan, prior, output, most if public else None, most)
    counts, weights = brute_shares(alphas, output, plan.source, [most] if public else range(most + 1))
    sizes = counts.sum(axis=1, keepdims=True)
    means = (np.array(alphas) + counts) / (sum(alphas) + sizes)
    assert made.mean == pytest.approx(weights @ means, abs=2e-3)
    assert made.sd**2 == pytest.approx(
        weights @ (means * (1 - means) / (sum(alphas) + sizes + 1) + means**2) - (weights @ means) ** 2, abs=1e-3
    )
    draws = made.sample(4000, rng=0)
    assert draws.sum(axis=1) == pytest.approx(1.0)
    assert draws.mean(axis=0) == pytest.approx(made.mean, abs=5 * made.sd.max() / math.sqrt(4000))
    assert made.interval(0.5).shape == (3, 2)
    assert made.pdf(0.2, category=1) > 0.0


@pytest.mark.stat
@pytest.mark.parametrize(("size", "share"), [(9, 0.11), (200, 0.3)])
def test_intervals_cover_in_parts_of_private_size(size, share):
    """At a fixed share, which the prior does not promise: at least 85% of 150, five standard errors below 95%."""
    rng = np.random.default_rng(size)
    prior, hits = beta(1, 1), 0
    plan = cells_plan(geometric(epsilon=0.5), prior, 2, None)
    for _ in range(150):
        true = rng.binomial(size, share)
        made = cells_posterior(plan, prior, plan.source.draw([true, size - true]), None, 30_000)
        hits += 0.025 <= float(made.cdf(share)) <= 0.975
    assert hits / 150 >= 0.85


def test_densities_of_tiny_parts_are_finite():
    prior = beta(1, 1)
    plan = cells_plan(geometric(epsilon=0.5), prior, 2, None)
    made = cells_posterior(plan, prior, (12, -3), None, 30_000)
    assert np.isfinite(made.pdf(np.array([0.0, 0.5, 1.0]))).all()


def test_large_tables_of_cells_are_quick_enough_to_use():
    prior = dirichlet(*[1.0] * 15)
    counts = np.arange(15) * 400 + 10
    plan = cells_plan(geometric(epsilon=0.1), prior, 15, int(counts.sum()))
    made = cells_posterior(plan, prior, counts + 3, int(counts.sum()), int(counts.sum()))
    assert made.mean == pytest.approx(counts / counts.sum(), abs=0.002)


def test_very_many_records():
    prior, n = beta(1, 1), 10**8
    plan = cells_plan(geometric(epsilon=0.01), prior, 2, n)
    made = cells_posterior(plan, prior, (n // 3,), n, n)
    assert made.mean == pytest.approx(1 / 3, abs=1e-7)
    assert made.sd == pytest.approx(math.sqrt(2 / 9 / n), rel=0.02)


@pytest.mark.stat
@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.8])
@pytest.mark.parametrize("n", [20, 100, 1000])
def test_noise_aware_intervals_cover(n, epsilon):
    """Over repetitions with shares drawn from the prior: 93 to 97% of 3000, seven standard errors wide."""
    rng = np.random.default_rng(n)
    prior, repetitions = beta(1, 1), 3000
    plan = cells_plan(geometric(epsilon=epsilon), prior, 2, n)
    shares = rng.beta(1, 1, repetitions)
    outputs = plan.source.draw(rng.binomial(n, shares).tolist())
    posteriors = {z: cells_posterior(plan, prior, (z,), n, n) for z in set(outputs)}
    below = np.array([float(posteriors[z].cdf(t)) for z, t in zip(outputs, shares, strict=True)])
    assert 0.93 <= np.mean((below >= 0.025) & (below <= 0.975)) <= 0.97


@pytest.mark.stat
def test_intervals_that_ignore_the_noise_do_not_cover():
    rng = np.random.default_rng(0)
    n, repetitions = 1000, 2000
    shares = rng.beta(1, 1, repetitions)
    outputs = np.clip(samplers.discrete_laplace(rng.binomial(n, shares).tolist(), 1 / 0.05), 0, n)
    below = stats.beta(1 + outputs, 1 + n - outputs).cdf(shares)
    assert np.mean((below >= 0.025) & (below <= 0.975)) < 0.75


@pytest.mark.parametrize("request_", [geometric(epsilon=0.7), gaussian(epsilon=0.7, delta=1e-4)])
def test_normal_posterior_is_bayes_rule(request_):
    model, n, grid = normal(3.0, 2.0, record_sd=1.5), 12, Grid(0, 100, 0.1, 0.0)
    plan = number_plan(request_, 100)
    made = total_posterior(plan, model, 410, n, grid)
    totals = np.arange(-150 * n, 250 * n + 1)
    seen = np.exp(plan.source.log_chance(410 - totals))

    def unnormalised(mean):
        return stats.norm(3, 2).pdf(mean) * (stats.norm.pdf(totals * 0.1, n * mean, math.sqrt(n) * 1.5) @ seen)

    points = np.linspace(-6, 12, 1801)
    density = np.array([unnormalised(p) for p in points])
    density /= density.sum() * 0.01
    assert made.pdf(points) == pytest.approx(density, rel=0.01, abs=2e-3)
    assert made.mean == pytest.approx((points * density).sum() * 0.01, abs=0.01)
    assert made.cdf(made.quantile(0.3)) == pytest.approx(0.3, abs=1e-6)
    assert made.sample(4000, rng=1).mean() == pytest.approx(made.mean, abs=5 * made.sd / 60)


@pytest.mark.stat
def test_normal_intervals_cover():
    rng = np.random.default_rng(3)
    model, n, grid = normal(50.0, 15.0, record_sd=10.0), 200, Grid(0, 100, 1.0, 0.0)
    plan, hits = number_plan(geometric(epsilon=0.2), 100), 0
    for _ in range(1500):
        mean = rng.normal(50, 15)
        if 25 < mean < 75:  # so that clamping does not matter
            total = int(np.rint(rng.normal(mean, 10, n)).sum())
            below = float(total_posterior(plan, model, plan.source.draw([total])[0], n, grid).cdf(mean))
            hits += 0.025 <= below <= 0.975
        else:
            hits += 0.95
    assert 0.93 <= hits / 1500 <= 0.97


def test_mixtures_agree_with_scipy():
    one = BetaMixture(np.array([1.0]), np.array([2.5]), np.array([4.0]))
    same = stats.beta(2.5, 4.0)
    x = np.array([-0.5, 0.0, 0.1, 0.6, 1.0, 2.0])
    assert one.pdf(x) == pytest.approx(same.pdf(x))
    assert one.cdf(x) == pytest.approx(same.cdf(x))
    assert (one.mean, one.sd) == pytest.approx((same.mean(), same.std()))
    assert one.interval(0.8) == pytest.approx(same.interval(0.8))
    two = NormalMixture(np.array([0.25, 0.75]), np.array([-1.0, 2.0]), np.array([0.5, 1.0]))
    assert quad(lambda t: float(two.pdf(t)), -10, 10)[0] == pytest.approx(1.0)
    assert two.cdf(0.3) == pytest.approx(0.25 * stats.norm.cdf(2.6) + 0.75 * stats.norm.cdf(-1.7))
    assert two.quantile(0.5) == pytest.approx(quad(lambda t: 1.0, 0, two.quantile(0.5))[0])


def test_best_chooses_the_nearest_and_says_over_what():
    made = release(beta(1, 1), counts=(30, 70), epsilon=0.5, delta=1e-6)
    assert made.mechanism == geometric(epsilon=0.5)
    assert [c.distance for c in made.compared] == sorted(c.distance for c in made.compared)
    assert {c.mechanism.name for c in made.compared} == {"geometric", "laplace", "exponential"}
    assert len(made.compared) == 5
    assert "chosen over" in str(made)
    assert "exponential(epsilon=0.5, delta=1e-06, sensitivity='smooth'" in str(made)


def test_expected_distance_is_that_of_simulated_releases():
    prior, n = beta(1, 1), 25
    rng = np.random.default_rng(0)
    plan = cells_plan(geometric(epsilon=0.5), prior, 2, n)
    from tacita.posterior.scores import distances

    gaps, total = distances(prior, n, "hellinger"), 0.0
    for _ in range(3000):
        k = rng.binomial(n, rng.beta(1, 1))
        z = k + rng.geometric(1 - math.exp(-0.5)) - rng.geometric(1 - math.exp(-0.5))
        weights = np.exp(plan.source.log_chance(z - np.arange(n + 1)))
        total += gaps[k, int((weights @ gaps).argmin())]
    assert expected_distance(geometric(epsilon=0.5), posterior_of(prior, n)) == pytest.approx(total / 3000, rel=0.05)


def test_no_mechanism_beats_geometric_noise_at_the_same_pure_epsilon():
    """Ghosh, Roughgarden & Sundararajan 2009: it is optimal for counts, whatever the prior and the loss."""
    for alphas, n, epsilon in [((1, 1), 10, 0.3), ((0.1, 3), 30, 1.0), ((5, 5), 60, 0.1)]:
        nearest = compared(best(epsilon=epsilon), posterior_of(beta(*alphas), n))[0]
        assert nearest.mechanism == geometric(epsilon=epsilon)


def test_three_categories_and_larger_tables_are_compared_or_not():
    few = compared(best(epsilon=0.5), posterior_of(dirichlet(1, 1, 1), 12))
    assert few[0].mechanism == geometric(epsilon=0.5)
    assert len(few) == 3
    assert compared(best(epsilon=0.5), posterior_of(dirichlet(1, 1, 1), 500)) == ()
    assert cells_plan(best(epsilon=0.5), dirichlet(1, 1, 1), 3, 500).used == geometric(epsilon=0.5)


def test_best_takes_the_narrower_noise_for_sums():
    assert sum_plan(best(epsilon=0.5, delta=1e-6), 50).used == geometric(epsilon=0.5)
    assert sum_plan(best(epsilon=0.2, delta=0.1), 50).used.name == "gaussian"


@pytest.mark.parametrize(
    "mechanism",
    ["best", "geometric", "laplace", geometric(epsilon=0.5), laplace(epsilon=0.5, sensitivity="histogram")]
    + [exponential(epsilon=0.5, delta=1e-6, score=s) for s in ("hellinger", "kl", "total_variation")]
    + [exponential(epsilon=0.5, sensitivity="global"), gaussian(epsilon=0.5, delta=1e-6)],
    ids=str,
)
def test_every_mechanism_by_name(mechanism):
    budget = {"epsilon": 0.5} if isinstance(mechanism, str) else {}
    made = release(beta(1, 1), counts=(60, 140), mechanism=mechanism, **budget)
    assert made.guarantee.epsilon <= 0.5
    assert made.guarantee.neighbours == "replace_one"
    assert made.guarantee.publishable
    assert 0.0 < made.posterior.mean < 1.0
    assert made.certificate.delta(made.guarantee.epsilon) <= made.guarantee.delta + 1e-13
    document = made.to_dict()
    assert document["guarantee"]["epsilon"] == made.guarantee.epsilon
    assert len(document["interval_95"]) == 1


def test_from_a_column():
    truth = np.array([True] * 400 + [False] * 600)
    made = release(beta(1, 1), column=truth, epsilon=5.0)
    assert made.posterior.mean == pytest.approx(0.4, abs=0.03)
    shares = release(dirichlet(1, 1, 1), column=[0] * 100 + [2] * 900, epsilon=5.0).posterior
    assert isinstance(shares, Shares)
    assert shares.mean == pytest.approx([0.1, 0.0, 0.9], abs=0.02)
    ages = np.random.default_rng(0).normal(40, 10, 2000)
    made = release(normal(50, 30, record_sd=10), column=ages, clamp=(0, 100), epsilon=2.0)
    assert made.posterior.mean == pytest.approx(40, abs=1.5)
    odd = release(normal(50, 30, record_sd=10), column=[np.nan, np.inf, -np.inf, 5.0], clamp=(0, 10), epsilon=50.0)
    assert odd.output[0] == pytest.approx(1500, abs=500)


@pytest.mark.parametrize("odd", ["?", b"?", None, object()], ids=["text", "bytes", "none", "object"])
@pytest.mark.parametrize("form", [list, np.array])
def test_f3_one_odd_cell_changes_no_other(form, odd):
    """NumPy makes texts of all cells where one is a text: "True" is still true."""
    column = form([True] * 59 + [odd] + [False] * 40)
    assert release(beta(1, 1), column=column, epsilon=50.0).output[0] == pytest.approx(59, abs=1)
    column = form([2] * 59 + [odd] + [1] * 40)
    assert release(dirichlet(1, 1, 1), column=column, epsilon=50.0).output == pytest.approx((1, 40, 59), abs=2)


def test_two_categories_as_a_dirichlet():
    made = release(dirichlet(1, 1), counts=(300, 700), epsilon=3.0)
    assert made.posterior.mean == pytest.approx([0.3, 0.7], abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": (1, 2)}, "epsilon is needed"),
        ({"counts": (1, 2), "column": [1], "epsilon": 1}, "either counts or column"),
        ({"epsilon": 1}, "either counts or column"),
        ({"counts": (1, 2, 3), "epsilon": 1}, "each of 2 categories"),
        ({"counts": (1, -2), "epsilon": 1}, "counts must be"),
        ({"counts": (0, 0), "epsilon": 1}, "at least one record"),
        ({"column": [], "epsilon": 1}, "at least one record"),
        ({"column": 3, "epsilon": 1}, "such as a list"),
        ({"column": "yes", "epsilon": 1}, "such as a list"),
        ({"column": np.zeros((2, 2)), "epsilon": 1}, "one column"),
        ({"column": np.zeros(2, dtype="datetime64[s]"), "epsilon": 1}, "one column of numbers"),
        ({"counts": (1, 2), "epsilon": 0}, "epsilon must be"),
        ({"counts": (1, 2), "epsilon": 1, "mechanism": "magic"}, "mechanism must be one of"),
        ({"counts": (1, 2), "epsilon": 1, "mechanism": geometric(epsilon=1)}, "leave them out"),
        ({"counts": (1, 2), "epsilon": 1, "clamp": (0, 1)}, "for a normal model"),
        ({"counts": (1, 2), "epsilon": 1, "mechanism": "exponential"}, "needs delta > 0"),
    ],
)
def test_bad_input_says_what_to_do(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        release(beta(1, 1), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": (1, 2), "epsilon": 1}, "needs column"),
        ({"column": [1.0], "epsilon": 1}, "needs clamp"),
        ({"column": [1.0], "epsilon": 1, "clamp": (3, 1)}, "low < high"),
        ({"column": np.array([[1.0]]), "epsilon": 1, "clamp": (0, 1)}, "one column"),
        ({"column": [1.0], "epsilon": 1, "clamp": (0, 1), "mechanism": "laplace"}, "for the counts"),
        ({"column": [1.0], "epsilon": 1, "clamp": (0, 1), "step": 5}, "step must be"),
    ],
)
def test_bad_input_for_a_normal_model(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        release(normal(0, 1, record_sd=1), **arguments)


def test_a_model_that_is_none_is_refused():
    with pytest.raises(TypeError, match="beta, dirichlet or normal"):
        release("beta", counts=(1, 2), epsilon=1)
    for bad in (
        lambda: beta(0, 1),
        lambda: dirichlet(1),
        lambda: normal(0, 0, record_sd=1),
        lambda: beta(float("nan"), 1),
    ):
        with pytest.raises(ValueError, match=r"must be|at least two"):
            bad()


def test_the_ledger_is_charged_before_anything_is_drawn(tmp_path, monkeypatch):
    file = tmp_path / "budget.sqlite"
    Ledger.create(file, neighbours="replace_one", epsilon=1.0, delta=1e-5).close()
    release(beta(1, 1), counts=(3, 7), epsilon=0.6, ledger=file, name="first")
    monkeypatch.setattr(samplers, "discrete_laplace", lambda *_: pytest.fail("drawn although the budget is spent"))
    with pytest.raises(BudgetExceeded):
        release(beta(1, 1), counts=(3, 7), epsilon=0.6, ledger=file, name="second")
    with Ledger.open(file) as ledger:
        assert ledger.spent().epsilon == 0.6


@pytest.mark.parametrize(
    ("request_", "most"), [(gaussian(epsilon=0.5, delta=1e-6), 0.75), (exponential(epsilon=0.5, delta=1e-7), 0.5)]
)
def test_other_mechanisms_are_charged_too(tmp_path, request_, most):
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        release(beta(1, 1), counts=(30, 70), mechanism=request_, ledger=ledger)
        assert 0.25 < ledger.spent(1e-5).epsilon <= most


def test_a_ledger_for_another_relation_is_refused(tmp_path):
    with Ledger.create(":memory:") as ledger, pytest.raises(PrivacyError, match="add_remove"):
        release(beta(1, 1), counts=(3, 7), epsilon=0.6, ledger=ledger)


@pytest.mark.parametrize(
    ("model", "noisy", "epsilon", "n"),
    [(normal(80, 0.1, record_sd=1), 20.0, 1.0, 1000), (normal(50.0123, 0.001, record_sd=0.01), 50.0, 0.01, 100)],
)
def test_strong_normal_priors_are_not_cut_off(model, noisy, epsilon, n):
    """Against the sum over every possible total."""
    grid, plan = Grid(0, 1000, 0.1), number_plan(geometric(epsilon=epsilon), 1000)
    total = round(noisy * n / grid.step)
    made = total_posterior(plan, model, total, n, grid)
    totals = np.arange(-3000 * n, 4000 * n + 1)
    variance = model.record_sd**2 + grid.step**2 / 12
    logs = plan.source.log_chance(total - totals)
    logs += stats.norm.logpdf(totals * grid.step, n * model.mean, math.sqrt(n**2 * model.sd**2 + n * variance))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    precision = 1 / model.sd**2 + n / variance
    means = (model.mean / model.sd**2 + totals * grid.step / variance) / precision
    mean = weights @ means
    assert made.mean == pytest.approx(mean, abs=0.02 * model.sd)
    assert made.sd == pytest.approx(math.sqrt(1 / precision + weights @ (means - mean) ** 2), rel=0.02)


@pytest.mark.parametrize(
    ("alphas", "epsilon", "output", "most"),
    [
        ((1000, 1), 2.0, (10, 100), 400),
        ((500, 1, 1), 2.0, (3, 20, 14), 60),
        ((2, 3), 1.0, (60, 40), 50),
        ((1, 1), 1.0, (-9, -7), 30),
    ],
)
def test_strong_priors_and_binding_sizes_in_parts(alphas, epsilon, output, most):
    """Against the sum over every vector of counts."""
    prior = dirichlet(*alphas)
    plan = cells_plan(geometric(epsilon=epsilon), prior, len(alphas), None)
    made = cells_posterior(plan, prior, output, None, most)
    from scipy.special import gammaln

    axes = np.meshgrid(*[np.arange(most + 1)] * len(alphas), indexing="ij")
    counts = np.stack(axes, axis=-1).reshape(-1, len(alphas))
    counts = counts[counts.sum(axis=1) <= most]
    sizes, a = counts.sum(axis=1), np.array(alphas)
    logs = (gammaln(a + counts) - gammaln(counts + 1)).sum(axis=1) + gammaln(sizes + 1) - gammaln(a.sum() + sizes)
    logs += plan.source.log_chance(np.array(output) - counts).sum(axis=1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    shares = (a[0] + counts[:, 0]) / (a.sum() + sizes)
    mean = weights @ shares
    sd = math.sqrt(weights @ (shares * (1 - shares) / (a.sum() + sizes + 1) + (shares - mean) ** 2))
    assert made.marginals[0].mean == pytest.approx(mean, abs=0.1 * sd)
    assert made.marginals[0].sd == pytest.approx(sd, rel=0.1)


@pytest.mark.parametrize("weight", [1e-6, 1e3, 1e6])
def test_extreme_priors_do_not_underflow(weight):
    made = release(dirichlet(weight, weight, weight), counts=(100, 200, 300), mechanism=geometric(epsilon=0.1))
    assert made.posterior.mean.sum() == pytest.approx(1.0, abs=1e-6)
    assert made.posterior.interval(0.9).shape == (3, 2)
    assert np.isfinite(made.posterior.sample(5, rng=0)).all()


def test_many_categories():
    prior = dirichlet(*[1.0] * 300)
    made = cells_posterior(cells_plan(geometric(epsilon=1), prior, 300, 3000), prior, [10] * 300, 3000, 3000)
    assert made.mean == pytest.approx(1 / 300, abs=1e-4)


def test_wide_noise_needs_no_memory():
    """Closed forms: noise of a hundred million steps has its standard deviation and its interval at once."""
    plan = number_plan(geometric(epsilon=0.01), 1_000_000)
    assert plan.source.sd == pytest.approx(math.sqrt(2) * 1e8, rel=1e-6)
    assert plan.source.half_width(0.95) == pytest.approx(1e8 * math.log(20), rel=1e-6)
    made = release(normal(0, 1, record_sd=1), column=[0.5] * 10, clamp=(0, 1), epsilon=1e-3)
    assert (made.posterior.mean, made.posterior.sd) == pytest.approx((0.0, 1.0), abs=0.15)  # hardly more than the prior


def test_sums_too_wide_for_gaussian_noise_get_geometric_noise():
    assert sum_plan(best(epsilon=0.5, delta=1e-6), 200_000).used == geometric(epsilon=0.5)


@pytest.mark.parametrize("numbers", [{"sd": 1e200}, {"sd": 1e-200}, {"record_sd": 1e-200}, {"mean": 1e100}])
def test_numbers_beyond_arithmetic_are_refused(numbers):
    with pytest.raises(ValueError, match="must be in"):
        normal(**{"mean": 0, "sd": 1, "record_sd": 1, **numbers})
    with pytest.raises(ValueError, match="clamp must be"):
        release(normal(0, 1, record_sd=1), column=[1.0], clamp=(-1e100, 1e100), epsilon=1)


class Raises:
    """A record that cannot be read."""

    def __init__(self, raised):
        self.raised = raised

    def __float__(self):
        raise self.raised


ODD = [
    *(None, "secret", [1.0, 2.0], [], {}, b"secret", 2, -1, 0.5, 10**400, 1j, float("nan")),
    *(Raises(ValueError("secret")), Raises(KeyboardInterrupt()), Raises(SystemExit(3)), Raises(MemoryError())),
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_f24_an_odd_record_of_a_column_counts_as_the_fallback_and_changes_no_other(odd):
    column = [1] * 10 + [odd] + [0] * 5
    assert _counts(beta(1, 1), None, column) == (10, 6)
    assert sum(_counts(dirichlet(1, 1, 1), None, column)) == 16
    assert _counts(dirichlet(1, 1, 1), None, column)[1] == 10
    assert release(beta(1, 1), column=column, epsilon=5.0).n == 16
    array = np.empty(16, dtype=object)
    array[:] = column
    assert _counts(beta(1, 1), None, array) == (10, 6)


@pytest.mark.parametrize("odd", [odd for odd in ODD if not isinstance(odd, int | float)])
def test_f24_an_odd_record_of_a_normal_model_counts_as_the_lower_bound(odd):
    records = _records([7.0, odd, "3"])
    assert records[[0, 2]].tolist() == [7.0, 3.0]
    assert np.isnan(records[1])
    release(normal(0, 1, record_sd=1), column=[7.0, odd], clamp=(0, 10), epsilon=1)


def test_f24_a_record_that_a_column_cannot_give_counts_as_the_fallback():
    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, place):
            if place == 1:
                raise OSError("/secret/path")
            return 1

    assert _counts(beta(1, 1), None, Lazy()) == (2, 1)


def test_posteriors_that_cannot_be_told_apart_are_released_all_the_same():
    made = release(beta(1e6, 1e6), counts=(1, 0), mechanism=exponential(epsilon=1, delta=1e-6, score="lecam"))
    assert made.guarantee.epsilon <= 1.0


def test_what_is_printed_is_not_rounded_down():
    assert "0.12345649" in str(geometric(epsilon=0.12345649))
    assert str(geometric(epsilon=0.5)) == "geometric(epsilon=0.5)"


def test_a_step_divides_the_bounds():
    with pytest.raises(ValueError, match="step must divide"):
        release(normal(5, 5, record_sd=1), column=[10.0] * 20, clamp=(0, 10), step=6, epsilon=1)
    with pytest.raises(ValueError, match="counts must have"):
        release(beta(1, 1), counts=370, epsilon=1)


def test_posteriors_are_short_at_the_prompt():
    made = release(dirichlet(1, 1, 1), counts=(10, 20, 30), epsilon=5)
    assert max(len(repr(made)), len(repr(made.posterior)), len(repr(made.posterior.marginals[0]))) < 200
