"""A privacy curve and its figures, against closed forms, enumeration of optimal tests, and dp-accounting."""

import itertools
import json
import math
from pathlib import Path

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import norm

from tacita import _codec
from tacita.accounting.curves import worst_curve
from tacita.accounting.losses import loss_at
from tacita.accounting.profiles import worst_profile
from tacita.accounting.targets import Target
from tacita.mechanisms import gaussian_delta
from tacita.profile import Profile


def exact_profile(p, q):
    """Return the curve of two finite laws; each direction has its corners in e^ε at the values of the loss."""
    at = np.unique(np.concatenate([np.linspace(0.0, 8.0, 2000), np.abs(np.log(p / q))]))
    return Profile.of_curve(lambda eps: np.array([divergence(p, q, e) for e in eps]), at)


def divergence(p, q, epsilon):
    sides = (np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in ((p, q), (q, p)))
    return max(sides)


def best_tpr(p, q, fpr):
    """Return the power of the best randomised test, as a linear program."""
    return -linprog(-p, A_ub=[q], b_ub=[fpr], bounds=(0.0, 1.0)).fun


def laws(seed, size=5):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(size, 0.6)), rng.dirichlet(np.full(size, 0.6))


@pytest.fixture(scope="module")
def sampled():
    """The curve of 2,000 sampled Gaussian steps, from dp-accounting on a fine grid."""
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    pld = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    pld.compose(dp_accounting.SelfComposedDpEvent(event, 2000))
    return Profile.of_curve(lambda eps: np.array([pld.get_delta(float(e)) for e in eps]), np.linspace(0.0, 6.0, 400))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 40.0])
def test_a_gaussian_release_has_its_closed_forms(mu):
    curve = Profile.gaussian(mu)
    assert curve.attack_success() == pytest.approx(norm.cdf(mu / 2), abs=1e-9)
    for fpr in (1e-4, 0.01, 0.3):
        exact = norm.cdf(norm.ppf(fpr) + mu)
        assert exact - 1e-12 <= curve.tpr(fpr) <= exact * (1 + 3e-4)
    assert mu * (1 - 1e-3) <= curve.mu(floor=1e-9) <= mu * 1.01 or mu == 40.0


@pytest.mark.parametrize("seed", range(12))
def test_figures_bound_the_best_tests_of_two_finite_laws(seed):
    p, q = laws(seed)
    curve = exact_profile(p, q)
    for prior in (0.02, 0.3, 0.5, 0.8):
        best = np.maximum(prior * p, (1 - prior) * q).sum()
        swapped = np.maximum(prior * q, (1 - prior) * p).sum()
        assert max(best, swapped) - 1e-12 <= curve.attack_success(prior) <= max(best, swapped) + 1e-5
    for fpr in (1e-3, 0.05, 0.4):
        assert curve.tpr(fpr) >= max(best_tpr(p, q, fpr), best_tpr(q, p, fpr)) - 1e-9
    for epsilon in (0.1, 0.7, 2.0):
        true = max((a[np.log(a / b) > epsilon]).sum() for a, b in ((p, q), (q, p)))
        assert curve.tail(epsilon) >= true - 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_a_symmetric_trade_off_is_met_by_the_best_test(seed):
    half = np.sort(np.random.default_rng(seed).dirichlet(np.ones(3)))
    p = np.concatenate([0.7 * half, 0.3 * half[::-1]])
    q = p[::-1]
    curve = exact_profile(p, q)
    for fpr in (1e-3, 0.02, 0.2, 0.5):
        assert curve.tpr(fpr) == pytest.approx(best_tpr(p, q, fpr), abs=1e-9)


def test_a_secret_is_guessed_no_better_than_by_the_best_of_all_guessers():
    rng, worst = np.random.default_rng(3), 0.0
    for _ in range(20):
        without = rng.dirichlet(np.ones(4))
        with_secret = [rng.dirichlet(np.ones(4)) for _ in range(3)]
        prior = rng.dirichlet(np.ones(3))
        curve = Profile((0.0,), (1.0,))
        pairs = [exact_profile(law, without) for law in with_secret]
        at = np.unique(np.concatenate([pair.epsilons for pair in pairs]))
        curve = Profile.of_curve(lambda eps, pairs=pairs: np.max([pair.delta(eps) for pair in pairs], axis=0), at)
        for guess in itertools.product(range(3), repeat=4):
            chosen = np.eye(3)[list(guess)]  # outcome -> secret
            blind = float(prior @ (without @ chosen))
            informed = float(sum(prior[z] * with_secret[z] @ chosen[:, z] for z in range(3)))
            assert informed <= curve.secret_guess(blind) + 1e-12
            worst = max(worst, informed - blind)
    assert worst > 0.1  # the release does help here


def test_one_pair_says_what_randomised_response_does():
    epsilon, delta = 1.3, 0.02
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    p = np.array([delta, 0.0, (1 - delta) * keep, (1 - delta) * (1 - keep)])
    curve = Profile.of_pair(epsilon, delta)
    for eps in (0.0, 0.4, 1.0, 1.3, 2.0):
        assert curve.delta(eps) == pytest.approx(divergence(p, p[[1, 0, 3, 2]], eps), abs=1e-12)
    assert curve.attack_success() == pytest.approx((math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))
    assert Profile.of_pair(math.inf, 0.0).tpr(0.001) == 1.0


def test_the_standard_example_has_the_published_figures(sampled):
    """q = 0.01, σ = 1, 2,000 steps: one pair says 93%, the curve 61.3%."""
    one_pair = Profile.of_pair(sampled.epsilon(1e-5), 1e-5)
    assert one_pair.attack_success() == pytest.approx(0.93, abs=0.003)
    assert sampled.attack_success() == pytest.approx(0.613, abs=5e-4)
    assert sampled.tpr(0.001) == pytest.approx(0.0066, abs=1e-4)
    assert sampled.tpr(0.01) == pytest.approx(0.042, abs=5e-4)
    assert sampled.secret_guess(0.1) == pytest.approx(0.24, abs=5e-3)
    assert sampled.sure(1e-5) == pytest.approx(3.05, abs=0.01)
    assert sampled.mu(floor=1e-5) == pytest.approx(0.617, abs=0.003)


def test_our_own_curve_is_never_below_that_of_dp_accounting(sampled):
    group = worst_curve(2000, sample_rate=0.01, noise_multiplier=1.0).groups[0]
    ours = Profile(tuple(group.epsilons.tolist()), tuple(group.deltas[0].tolist()))
    assert sampled.attack_success() - 1e-6 <= ours.attack_success() <= sampled.attack_success() + 1e-4
    for fpr in (1e-4, 1e-3, 0.01, 0.1):
        assert sampled.tpr(fpr) * (1 - 1e-4) <= ours.tpr(fpr) <= sampled.tpr(fpr) * 1.005


def test_the_best_attack_on_a_sampled_step_reaches_the_bound():
    """One step at rate 0.3: the likelihood-ratio test, counted on 400,000 draws, against the curve."""
    rng, rate, shift, draws = np.random.default_rng(0), 0.3, 2.0, 400_000
    without = rng.standard_normal(draws)
    inside = rng.standard_normal(draws) + shift * (rng.random(draws) < rate)
    cut = shift / 2.0  # where the two densities of the mixture cross
    counted = 0.5 * ((without <= cut).mean() + (inside > cut).mean())
    group = worst_curve(1, sample_rate=rate, noise_multiplier=1 / shift).groups[0]
    bound = Profile(tuple(group.epsilons.tolist()), tuple(group.deltas[0].tolist())).attack_success()
    assert abs(counted - bound) < 5 * 0.5 / math.sqrt(draws)  # five standard errors: 6e-7


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_every_figure_of_a_gaussian_release_is_the_exact_one_from_above(mu):
    """Against the optimal test, N(mu, 1) or N(0, 1), in 40 digits; nothing here goes through a curve but the tails."""
    curve = Profile.gaussian(mu)

    def delta(eps):
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)

    def close(found, exact, room):
        assert float(exact) * (1 - 1e-12) <= found <= float(exact) + room

    with mp.workdps(40):
        for prior in (0.01, 0.3, 0.5, 0.9):
            cut = mp.log((1 - mp.mpf(prior)) / prior) / mu  # where the posterior odds are even
            close(
                curve.attack_success(prior), prior * mp.ncdf(mu / 2 - cut) + (1 - prior) * mp.ncdf(mu / 2 + cut), 1e-5
            )
        for fpr in (1e-3, 0.01, 0.2, 0.7):
            found = mp.ncdf(mp.sqrt(2) * mp.erfinv(2 * mp.mpf(fpr) - 1) + mu)
            close(curve.tpr(fpr), found, 3e-5)
            close(curve.secret_guess(fpr), found, 3e-5)
        for eps in (0.0, 0.3 * mu, 2.0 * mu):
            close(curve.delta(eps), delta(eps), 1e-3 * delta(eps))
            assert curve.delta(curve.epsilon(float(delta(eps)))) <= float(delta(eps)) * (1 + 1e-9)
            close(curve.epsilon(float(delta(eps))), mp.mpf(eps), 1e-3 * mu)
        for eps in (mu, 4.0 * mu):
            loss_above = mp.ncdf(mu / 2 - eps / mu)  # the loss is N(mu²/2, mu²)
            least = min(delta(eps * k / 2000) / (1 - mp.exp(eps * k / 2000 - eps)) for k in range(0, 2000, 5))
            assert loss_above <= least
            close(curve.tail(eps), least * (1 - 1e-3), 3e-3 * least)
            assert curve.tail(curve.sure(float(least))) <= float(least)
            assert curve.sure(float(least)) <= eps * (1 + 1e-2)
    rates, found = curve.tradeoff(50)
    np.testing.assert_allclose(found, norm.cdf(norm.ppf(rates) + mu), rtol=1e-3)


REFERENCES = json.loads((Path(__file__).parent / "reference" / "riskcal.json").read_text())["values"]


@pytest.mark.parametrize("figure", ["attack_success", "tpr"])
def test_sampled_steps_have_the_figures_of_riskcal_from_above(figure):
    """Its trade-off curves come from the loss distribution itself, not from deltas."""
    for reference in REFERENCES:
        given = dict(reference["inputs"])
        if given.pop("figure") == figure:
            at = given.pop("prior" if figure == "attack_success" else "fpr")
            found = getattr(worst_profile(**given), figure)(at)
            assert reference["value"] - 1e-8 <= found <= reference["value"] + 3e-4


def test_riskcal_finds_the_same_noise():
    for reference in REFERENCES:
        given = dict(reference["inputs"])
        figure = given.pop("figure").removeprefix("noise for ")
        if "target" in given:
            target = Target.of({figure: given.pop("target")})
            noise = reference["value"]
            assert target.met(worst_profile(noise_multiplier=noise * 1.002, **given))
            assert not target.met(worst_profile(noise_multiplier=noise * 0.999, **given))


@pytest.mark.stat
def test_no_attack_on_sampled_steps_beats_the_figures_and_the_best_one_reaches_them(rng):
    """The likelihood ratio of 20 steps, counted on 300,000 runs of each kind; five standard errors, 3e-7 each."""
    rate, noise, steps, runs = 0.1, 1.2, 20, 300_000

    def losses(inside):
        out = np.zeros(runs)
        for _ in range(steps):
            shift = inside * (rng.random(runs) < rate) / noise
            out += loss_at(rng.standard_normal(runs) + shift, sample_rate=rate, ratio=1 / noise)
        return out

    present, absent = losses(1.0), losses(0.0)
    curve, error = worst_profile(sample_rate=rate, noise_multiplier=noise, steps=steps), 5 * 0.5 / math.sqrt(runs)
    for prior in (0.3, 0.45, 0.5, 0.55, 0.8):
        cut = math.log((1 - prior) / prior)
        counted = prior * np.mean(present > cut) + (1 - prior) * np.mean(absent <= cut)
        assert counted <= curve.attack_success(prior) + error
        if prior <= 0.5:  # beyond, the other direction counts, in which this mechanism gives away less
            assert counted >= curve.attack_success(prior) - error - 1e-3
    for fpr in (0.001, 0.01, 0.1):
        cut = np.quantile(absent, 1 - fpr)
        most = fpr + 5 * math.sqrt(fpr / runs)  # what the rate itself may be
        assert np.mean(present > cut) <= curve.tpr(most) + error
        assert np.mean(present > cut) >= curve.tpr(fpr) - 2 * error - 0.1 * curve.tpr(fpr)
    for eps in (0.5, 1.0, 2.0):
        assert np.mean(present > eps) <= curve.tail(eps) + 5 * math.sqrt(curve.tail(eps) / runs)


@given(mu=st.floats(0.01, 8.0), delta=st.floats(1e-12, 0.5))
def test_delta_and_epsilon_are_inverse(mu, delta):
    curve = Profile.gaussian(mu, points=128)
    epsilon = curve.epsilon(delta)
    assert curve.delta(epsilon) <= delta * (1 + 1e-9)
    assert epsilon == 0.0 or curve.delta(epsilon * (1 - 1e-6)) >= delta * (1 - 1e-4)


@given(mu=st.floats(0.01, 6.0), floor=st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_mu_covers_the_whole_curve_up_to_its_floor(mu, floor):
    curve = Profile.gaussian(mu, points=64) & Profile.of_pair(2 * mu, 0.2)
    found = curve.mu(floor=floor)
    eps = np.linspace(0.0, curve.epsilons[-1], 997)
    assert math.isinf(found) or np.all(
        curve.delta(eps) <= gaussian_delta(eps, distance=max(found, 1e-9)) + floor + 1e-15
    )


def test_a_curve_that_no_distance_covers_has_none():
    assert Profile((0.0, 1e13, 1.1e13), (1.0, 0.9, 0.0)).mu(floor=1e-9) == math.inf  # G at 1e6 is 0 from 1e12 on


def test_the_smaller_of_two_bounds_still_bounds_the_curve():
    coarse, fine = Profile.gaussian(1.0, points=20), Profile.gaussian(1.0, points=33)
    both, eps = coarse & fine, np.linspace(0.0, 8.0, 300)
    assert np.all(both.delta(eps) >= gaussian_delta(eps, distance=1.0))
    assert np.all(both.delta(eps) <= np.minimum(coarse.delta(eps), fine.delta(eps)) * (1 + 1e-12))


def test_a_profile_survives_json():
    curve = Profile.gaussian(0.7, points=16)
    assert _codec.from_plain(Profile, json.loads(json.dumps(_codec.to_plain(curve)))) == curve


@pytest.mark.parametrize(
    ("epsilons", "deltas"),
    [
        ((), ()),
        ((0.1, 1.0), (0.5, 0.1)),
        ((0.0, 1.0, 1.0), (0.5, 0.1, 0.1)),
        ((0.0, 1.0), (0.1, 0.5)),
        ((0.0, 1.0), (1.5, 0.5)),
        ((0.0, 1.0), (0.5, -0.1)),
        ((0.0, math.nan), (0.5, 0.1)),
        ((0.0, math.inf), (0.5, 0.1)),
        ((0.0,), (0.5, 0.1)),
    ],
)
def test_a_list_that_is_no_curve_is_refused(epsilons, deltas):
    with pytest.raises(ValueError, match="profile"):
        Profile(epsilons, deltas)


def test_figures_of_nonsense_are_refused():
    curve = Profile.gaussian(1.0)
    for call in (lambda: curve.delta(-1.0), lambda: curve.attack_success(1.0), lambda: curve.tpr(math.nan)):
        with pytest.raises(ValueError, match=r"must be|not"):
            call()
