"""Guides against torch's own distributions; what they converge to, with and without noise, against closed forms."""

import copy
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, LowRankMultivariateNormal, Normal
from torch.func import jacrev

from tacita.inference.descent import MIN_SIGNAL_TO_NOISE, estimate_errors, variational
from tacita.inference.guides import GUIDES, Guide, GuideKind, Langevin, Variational
from tacita.inference.request import Settings


@pytest.fixture(autouse=True)
def _double(double):
    pass


def a_guide(rank, size=4):
    guide = Guide(torch.linspace(-1.0, 2.0, size), scale=0.3, rank=rank)
    with torch.no_grad():
        guide.log_scale += torch.linspace(-0.5, 0.7, size)
        if rank:
            guide.factor += torch.linspace(0.1, 0.9, size * rank).reshape(size, rank)
    return guide


def as_torch(guide):
    if guide.rank:
        return LowRankMultivariateNormal(guide.location, guide.scale[:, None] * guide.factor, guide.scale.square())
    return Independent(Normal(guide.location, guide.scale), 1)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_guide_is_the_gaussian_that_it_says(rank):
    guide = a_guide(rank)
    theirs = as_torch(guide)
    exact = theirs.covariance_matrix if rank else torch.diag(guide.scale.square())
    assert torch.allclose(guide.covariance(), exact, rtol=1e-12)
    entropy = guide.entropy().item() + 2.0 * math.log(2.0 * math.pi * math.e)
    assert entropy == pytest.approx(theirs.entropy().item(), rel=1e-12)
    noise = torch.randn(guide.noise_shape)
    root = jacrev(guide.draw)(noise)
    assert torch.allclose(root @ root.T, exact, rtol=1e-12)
    assert torch.equal(guide.draw(torch.zeros(guide.noise_shape)), guide.location)
    assert torch.allclose(guide.variances(), exact.diagonal(), rtol=1e-12)
    many = torch.randn(3, 5, *guide.noise_shape)
    assert torch.allclose(guide.draw(many)[2, 4], guide.draw(many[2, 4]))


@pytest.mark.parametrize("name", [*GUIDES, "toy"])
def test_every_guide_of_the_table_can_be_fitted(name, monkeypatch):
    monkeypatch.setitem(GUIDES, "toy", GuideKind(lambda size: 2, "A toy."))
    start, settings = torch.zeros(17), Settings(guide=name, steps=3)
    separated = SimpleNamespace(log_prior=prior)
    optimizer = variational(nn.Parameter(start.clone()), separated, settings, 0)
    assert optimizer.guide.rank == GUIDES[name].rank(17) == {"diagonal": 0, "low-rank": 4, "toy": 2}[name]
    assert GUIDES[name].diagonal == (optimizer.guide.rank == 0)
    assert GUIDES[name].note.endswith(".")
    take(optimizer, lambda z: -z.square().sum())
    assert optimizer.fitted().covariance().shape == (17, 17)


def test_an_unknown_guide_is_refused():
    with pytest.raises(ValueError, match="guide must be one of"):
        Settings(guide="full")


def test_the_directions_of_a_low_rank_guide_start_apart():
    low_rank = Guide(torch.zeros(17), scale=0.1, rank=4)
    sizes = torch.linalg.svdvals(low_rank.factor)
    assert sizes.min() > 0.9 * sizes.max()
    assert low_rank.covariance().diagonal().sqrt().max() < 0.12


# One step's gradients.


def quadratic(precision, centre):
    def log_density(z):
        away = z - centre
        return -0.5 * away @ precision @ away

    return log_density


PRECISION = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, -0.5], [0.0, -0.5, 4.0]], dtype=torch.float64)
CENTRE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def take(optimizer, log_likelihood, noise=0.0, rng=None):
    """One step along the exact gradient of a likelihood at the point, scaled as a sampled sum is, plus noise."""
    at = optimizer.point.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-log_likelihood(at), at)
    if noise:
        gradient = gradient + noise * torch.from_numpy(rng.standard_normal(len(at)))
    optimizer.point.grad = optimizer.sample_rate * gradient
    optimizer.step()


def prior(z):
    return -0.5 * z @ z


def fitting(rank=0, *, steps=400, size=3, learning_rate=0.1, seed=0, scale=0.3, floor=1e-6, log_prior=prior):
    point = nn.Parameter(torch.zeros(size))
    guide = Guide(torch.zeros(size), scale=scale, rank=rank, floor=floor)
    return Variational(point, guide, log_prior, sample_rate=0.2, steps=steps, learning_rate=learning_rate, seed=seed)


@pytest.mark.parametrize("rank", [0, 2])
def test_one_points_gradients_average_to_those_of_the_exact_evidence_bound(rank):
    """For a quadratic density the bound is known: its value at the location, a trace, and the entropy."""
    log_likelihood = quadratic(PRECISION, CENTRE)
    optimizer = fitting(rank)
    with torch.no_grad():
        for (_, p), (_, made) in zip(
            optimizer.guide.named_parameters(), a_guide(rank, 3).named_parameters(), strict=True
        ):
            p.copy_(made)
    exact = copy.deepcopy(optimizer.guide)
    root = exact.scale[:, None] * torch.cat([torch.eye(3), *([exact.factor] if rank else [])], 1)
    covariance = root @ root.T
    hessian = PRECISION + torch.eye(3)
    bound = log_likelihood(exact.location) + prior(exact.location) - 0.5 * torch.trace(hessian @ covariance)
    (-bound - as_torch(exact).entropy()).backward()
    optimizer.adam.step = lambda: None  # only its gradients are wanted
    sums = {name: torch.zeros_like(p) for name, p in exact.named_parameters()}
    (size,) = optimizer.guide.noise_shape
    corners = math.sqrt(size) * torch.eye(size)  # with their opposites, exact for polynomials of degree three
    for noise in torch.cat([corners, -corners]):
        with torch.no_grad():
            optimizer._noise = noise
            optimizer.point.copy_(optimizer.guide.draw(noise))
        take(optimizer, log_likelihood)
        for name, p in optimizer.guide.named_parameters():
            sums[name] += p.grad / (2 * size)
    for name, p in exact.named_parameters():
        assert torch.allclose(sums[name], p.grad, rtol=1e-9)


def test_the_public_part_of_the_evidence_bound_is_prior_and_entropy():
    optimizer = fitting()
    at, entropy = optimizer.point.detach().clone(), optimizer.guide.entropy().item()
    take(optimizer, quadratic(PRECISION, CENTRE))
    assert optimizer.public == pytest.approx(prior(at).item() + entropy)


def test_a_step_without_a_gradient_is_refused():
    with pytest.raises(ValueError, match="no gradient"):
        fitting().step()


# What fits converge to without noise.


def test_independent_unknowns_converge_to_their_exact_posterior():
    precision = torch.diag(torch.tensor([4.0, 25.0, 100.0]))
    optimizer = fitting(steps=1500, learning_rate=0.05)
    for _ in range(1500):
        take(optimizer, quadratic(precision, CENTRE))
    guide = optimizer.fitted()
    exact = precision.diagonal() + 1.0
    sd = exact.rsqrt()
    assert ((guide.location - precision.diagonal() * CENTRE / exact).abs() < 0.1 * sd).all()
    assert torch.allclose(guide.scale, sd, rtol=0.05)
    assert optimizer.averaged == 750


@pytest.mark.slow
def test_a_low_rank_guide_finds_the_dependence_that_a_diagonal_one_misses():
    direction = torch.tensor([1.0, 1.0, 0.0]) / math.sqrt(2.0)
    covariance = 0.02 * torch.eye(3) + 0.3 * torch.outer(direction, direction)
    log_density = quadratic(torch.linalg.inv(covariance), CENTRE)
    fitted = {}
    for rank in (0, 1):
        optimizer = fitting(rank, steps=1500, learning_rate=0.1, log_prior=lambda z: 0.0 * z.sum())
        for _ in range(1500):
            take(optimizer, log_density)
        fitted[rank] = optimizer.fitted()
        assert torch.allclose(fitted[rank].location, CENTRE, atol=0.05)
    assert torch.allclose(fitted[1].covariance(), covariance, atol=0.03)
    assert fitted[0].scale[0] < 0.6 * covariance[0, 0].sqrt()  # mean-field is too narrow, and its note says so
    assert fitted[0].scale[0] == pytest.approx(float(torch.linalg.inv(covariance)[0, 0].rsqrt()), rel=0.05)


def test_a_scale_at_its_floor_can_grow_again():
    optimizer = fitting(steps=600, scale=0.01, floor=0.1, size=1)
    assert optimizer.guide.scale.item() == pytest.approx(0.1, rel=1e-4)
    for _ in range(600):
        take(optimizer, lambda z: -0.5 * 3.0 * z.square().sum())
    assert optimizer.fitted().scale.item() == pytest.approx(0.5, rel=0.1)


def test_a_scale_never_goes_below_its_floor():
    optimizer = fitting(steps=200, floor=0.1, size=1)
    for _ in range(200):
        take(optimizer, lambda z: -0.5 * 1e4 * z.square().sum())
        assert optimizer.guide.scale.item() >= 0.1
    assert optimizer.fitted().scale.item() == pytest.approx(0.1, rel=1e-3)


def test_the_learning_rate_falls_to_a_tenth():
    optimizer = fitting(steps=10)
    rates = []
    for _ in range(10):
        take(optimizer, quadratic(PRECISION, CENTRE))
        rates.append(optimizer.adam.param_groups[0]["lr"])
    assert rates[0] == 0.1
    assert all(a > b for a, b in itertools.pairwise(rates))
    assert 0.01 < rates[-1] < 0.02


def test_before_the_second_half_the_newest_guide_is_what_there_is():
    optimizer = fitting(steps=10)
    take(optimizer, quadratic(PRECISION, CENTRE))
    assert torch.equal(optimizer.fitted().location, optimizer.guide.location)
    assert not any(p.requires_grad for p in optimizer.fitted().parameters())


# The correction for the noise of a private fit.


def noisy_fit(curvature, noise, steps=500, size=200, learning_rate=0.05):
    """Fit the mean of a Gaussian under noise, `size` times at once: how far off it is, the guide, and its errors."""
    exact, rng = torch.linspace(-1.0, 1.0, size), np.random.default_rng(4)
    optimizer = fitting(
        steps=steps, size=size, learning_rate=learning_rate, scale=0.1, log_prior=lambda z: 0.0 * z.sum()
    )
    for _ in range(steps):
        sampling = math.sqrt(curvature)  # that records are sampled, all of them here, once more than needed
        take(optimizer, lambda z: -0.5 * curvature * (z - exact).square().sum(), math.hypot(noise, sampling), rng)
    optimizer.sample_rate = 1.0
    return (optimizer.fitted().location - exact).numpy(), optimizer.fitted(), estimate_errors(optimizer, noise)


def covered(errors, variance, curvature):
    """How often 95% intervals around fitted means hold draws of the true posterior."""
    truth = np.random.default_rng(5).standard_normal((200, len(errors))) / math.sqrt(curvature)
    return np.mean(np.abs(truth - errors) < 1.96 * np.sqrt(variance.diagonal().numpy()))


QUICK = [(400.0, 400.0, 0.92), (12.0, 60.0, 0.86)]  # curvature, noise, least coverage
OTHERS = [(60.0, 15.0, 0.92), (60.0, 80.0, 0.92), (400.0, 100.0, 0.92), (4000.0, 1300.0, 0.92), (60.0, 150.0, 0.86)]


@pytest.mark.stat
@pytest.mark.parametrize(
    ("curvature", "noise", "least"), [*QUICK, *(pytest.param(*some, marks=pytest.mark.slow) for some in OTHERS)]
)
def test_intervals_include_the_noise_and_cover_unless_there_is_a_warning(curvature, noise, least):
    errors, guide, found = noisy_fit(curvature, noise)
    bare, widened = (covered(errors, v, curvature) for v in (guide.covariance(), found.widened(guide)))
    assert widened > max(bare, least)
    assert widened > 0.92 or any(words in found.warning(guide) for words in ("1.3 times too narrow", "do not rely"))
    if (curvature, noise, least) in QUICK:
        assert bare < 0.84  # what would be stated without it


def test_little_noise_is_no_cause_for_a_warning_and_a_fit_that_stopped_halfway_is():
    _, guide, found = noisy_fit(60.0, 15.0, size=20)
    assert found.warning(guide) == ""
    errors, guide, found = noisy_fit(60.0, 15.0, size=20, steps=30, learning_rate=0.01)
    assert np.abs(errors).max() > 0.5  # half of the way to 1 is missing
    assert "had not converged" in found.warning(guide)


@pytest.mark.stat
@pytest.mark.parametrize(("noise", "learning_rate"), [(2000.0, 0.3), (2000.0, 0.05), (100.0, 0.3)])
def test_a_posterior_whose_width_the_noise_hides_is_warned_of(noise, learning_rate):
    """Fits of one unknown each: those whose interval misses by far are told so."""
    for seed in range(5):
        rng = np.random.default_rng(100 + seed)
        optimizer = fitting(
            steps=100, size=1, learning_rate=learning_rate, scale=0.1, log_prior=lambda z: 0.0 * z.sum()
        )
        for _ in range(100):
            take(optimizer, lambda z: -0.5 * 20.0 * (z - 1.0).square().sum(), noise, rng)
        optimizer.sample_rate = 1.0
        assert "do not rely" in estimate_errors(optimizer, noise).warning(optimizer.fitted())


@pytest.mark.stat
@pytest.mark.parametrize(("learning_rate", "steps"), [(0.3, 100), (0.05, 100), (0.05, 500)])
def test_noise_alone_is_seldom_taken_for_curvature(learning_rate, steps):
    """Although points follow the noise, so that the slope has the law of Dickey & Fuller and not Student's."""
    flat = {"steps": steps, "size": 2000, "learning_rate": learning_rate, "log_prior": lambda z: 0.0 * z.sum()}
    optimizer, rng = fitting(**flat), np.random.default_rng(7)
    for _ in range(steps):
        take(optimizer, lambda z: 0.0 * z.sum(), 2000.0, rng)
    z_score = optimizer.curvature_z_score(2000.0).numpy()
    assert np.mean(z_score > MIN_SIGNAL_TO_NOISE) < 0.006  # 0.003 expected; 2.4 standard errors, with a fixed seed
    assert 0.5 < np.median(z_score) < 2.0
    optimizer = fitting(**flat)
    for _ in range(steps):
        take(optimizer, lambda z: -0.5 * 60.0 * (z - 1.0).square().sum(), 6.0, rng)
    assert float(optimizer.curvature_z_score(6.0).min()) > MIN_SIGNAL_TO_NOISE


@pytest.mark.stat
def test_a_guide_with_directions_is_widened_by_what_such_fits_err():
    """With little noise the error is what averaging theory says: S N S / T (Polyak & Juditsky 1992)."""
    direction = torch.tensor([1.0, 1.0, 0.0]) / math.sqrt(2.0)
    covariance = 0.02 * torch.eye(3) + 0.1 * torch.outer(direction, direction)
    optimizer, rng = (
        fitting(1, steps=400, learning_rate=0.05, log_prior=lambda z: 0.0 * z.sum()),
        np.random.default_rng(0),
    )
    for _ in range(400):
        take(optimizer, quadratic(torch.linalg.inv(covariance), CENTRE), 10.0, rng)
    optimizer.sample_rate = 1.0
    guide = optimizer.fitted()
    found = estimate_errors(optimizer, 10.0)
    theory = (100.0 * guide.covariance() @ guide.covariance() + guide.covariance()) / optimizer.averaged
    assert ((found.square.diagonal() / theory.diagonal()).log().abs() < math.log(1.7)).all()
    assert (found.widened(guide).diagonal() > guide.variances()).all()


# Langevin dynamics.


@pytest.mark.stat
def test_langevin_dynamics_has_the_stationary_variance_of_its_step_size():
    """On a quadratic with curvature h the discretised chain is exact: variance 1 / (h (1 - eta h / 4)).

    500 independent chains, so a variance is off by 20% less than once in a thousand times.
    """
    curvature, noise, rng = 50.0, 10.0, np.random.default_rng(0)
    point = nn.Parameter(torch.zeros(500))
    chain = Langevin(point, lambda z: 0.0 * z.sum(), sample_rate=0.3, steps=200, keep=5)
    chain.start(200, noise=noise)
    assert chain.step_size == pytest.approx((2 * 0.3 / noise) ** 2)
    for _ in range(200):
        point.grad = 0.3 * curvature * (point.detach() - 1.0) + noise * torch.from_numpy(rng.standard_normal(500))
        chain.step()
    stationary = 1.0 / (curvature * (1.0 - chain.step_size * curvature / 4.0))
    assert float(chain.kept[-1].var()) == pytest.approx(stationary, rel=0.2)
    assert float(chain.kept[-1].mean()) == pytest.approx(1.0, abs=0.04)


def test_langevin_keeps_evenly_spaced_points_of_the_second_half():
    point = nn.Parameter(torch.zeros(1))
    chain = Langevin(point, lambda z: 0.0 * z.sum(), sample_rate=1.0, steps=20, keep=5)
    chain.start(20, noise=2.0)  # a step size of one: each step moves by half the gradient
    for _ in range(20):
        point.grad = torch.tensor([-2.0])
        chain.step()
    assert chain.kept.flatten().tolist() == [12.0, 14.0, 16.0, 18.0, 20.0]


# Going on from a checkpoint.


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("stop", [3, 14])
def test_a_resumed_fit_equals_an_uninterrupted_one_with_the_same_noise(rank, stop):
    def run(optimizer, first, last):
        for k in range(first, last):
            take(optimizer, quadratic(PRECISION, CENTRE), 5.0, np.random.default_rng(k))

    whole, first, second = (fitting(rank, steps=20, seed=seed) for seed in (0, 0, 7))
    run(whole, 0, 20)
    run(first, 0, stop)
    saved = copy.deepcopy(first.state_dict())
    run(first, stop, 20)  # a state that is taken does not change afterwards
    second.load_state_dict(saved)
    second.random = np.random.default_rng(0)
    for _ in range(stop + 1):  # the points drawn so far
        second._normal(second.guide.noise_shape)
    run(second, stop, 20)
    for name, value in whole.fitted().state_dict().items():
        assert torch.equal(second.fitted().state_dict()[name], value)
        assert torch.equal(first.fitted().state_dict()[name], value)
    assert torch.equal(second.point, whole.point)
    assert (second.taken, second.averaged) == (20, 10)


def test_a_resumed_chain_equals_an_uninterrupted_one():
    def chain():
        made = Langevin(nn.Parameter(torch.zeros(3)), prior, sample_rate=0.2, steps=20, keep=4)
        made.start(20, noise=3.0)
        return made

    def run(optimizer, first, last):
        for k in range(first, last):
            take(optimizer, quadratic(PRECISION, CENTRE), 5.0, np.random.default_rng(k))

    whole, first, second = chain(), chain(), chain()
    run(whole, 0, 20)
    run(first, 0, 14)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        second.point.copy_(first.point)  # the point is the model's parameter, and in the model's checkpoint
    run(second, 14, 20)
    assert torch.equal(second.kept, whole.kept)
    assert len(whole.kept) == 4
