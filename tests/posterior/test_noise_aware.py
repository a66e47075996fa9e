"""Posteriors that take the noise into account: against integration, enumeration and repetition."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tacita.posterior import samplers
from tacita.posterior.mechanisms import Statistic, exponential, gaussian, geometric, laplace
from tacita.posterior.models import beta, dirichlet, normal
from tacita.posterior.noise_aware import Grid, cells_posterior, total_posterior
from tacita.posterior.plans import plan_release
from tacita.posterior.releases import release


def cells_plan(mechanism, prior, cells, n):
    return plan_release(mechanism, Statistic(cells, n, prior=prior))


def number_plan(mechanism, step):
    return plan_release(mechanism, Statistic(step=step))


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
    draws = made.sample(4000, rng=np.random.default_rng(0))
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
    outputs = np.clip(samplers.sampler("laplace", 1 / 0.05)(rng.binomial(n, shares)), 0, n)
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
        return stats.norm.pdf(mean, 3, 2) * (stats.norm.pdf(totals * 0.1, n * mean, math.sqrt(n) * 1.5) @ seen)

    points = np.linspace(-6, 12, 181)
    density = np.array([unnormalised(p) for p in points])
    density /= density.sum() * 0.1
    assert made.pdf(points) == pytest.approx(density, rel=0.01, abs=2e-3)
    assert made.mean == pytest.approx((points * density).sum() * 0.1, abs=0.01)
    assert made.cdf(made.quantile(0.3)) == pytest.approx(0.3, abs=1e-6)
    assert made.sample(4000, rng=np.random.default_rng(1)).mean() == pytest.approx(made.mean, abs=5 * made.sd / 60)


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
    assert np.isfinite(made.posterior.sample(5, rng=np.random.default_rng(0))).all()


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
