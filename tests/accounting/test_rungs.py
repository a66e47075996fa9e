"""Rungs: what they promise against adversaries that choose norms by what was put out, and how many stand where."""

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import norm

from tacita.accounting.levels import NORM_LEVELS, TOP
from tacita.accounting.losses import loss_at
from tacita.accounting.profiles import worst_profile
from tacita.accounting.rungs import ladder

STEPS, RATE, NOISE = 12, 0.3, 1.5
MECHANISM = {"sample_rate": RATE, "noise_multiplier": NOISE}
USED = np.arange(0, TOP + 1, 32)


def play(policy, paths, rng, *, with_record):
    """Return the loss of each path and the steps at each level, for levels chosen from the loss so far."""
    loss, counts = np.zeros(paths), np.zeros((paths, len(NORM_LEVELS)), dtype=np.int64)
    for step in range(STEPS):
        level = policy(step, loss, counts)
        counts[np.arange(paths), level] += 1
        ratio = NORM_LEVELS[level] / NOISE
        drawn = (rng.random(paths) < RATE) if with_record else np.zeros(paths, dtype=bool)
        noise = rng.standard_normal(paths) + np.where(drawn, ratio, 0.0)
        for value in np.unique(ratio[ratio > 0.0]):
            at = ratio == value
            loss[at] += loss_at(noise[at], sample_rate=RATE, ratio=float(value))
    return loss, counts


def excess(made, loss, counts, *, with_record):
    """Return each path's share of P(S) - Σ e^{ε_k} Q(S, R = k) for the worst S, or of the other direction."""
    epsilon = np.array([rung.epsilon for rung in made.rungs])[made.rung_of(counts)]
    return np.maximum(-np.expm1(epsilon - (loss if with_record else -loss)), 0.0)


def stop_once_sure(step, loss, counts):
    """Contribute fully until the loss stands above a rung, then nothing, so that the rung stays low."""
    return np.where(loss > 1.0, 0, TOP)


def switch(step, loss, counts):
    """The adversary of F19: half of the steps in full, then on in full, or on at a quarter, by what came out."""
    return np.where((step < STEPS // 2) | (loss < 0.5), TOP, TOP // 2)


@pytest.fixture(scope="module")
def made():
    return ladder(steps=STEPS, delta=0.05, **MECHANISM)


@pytest.mark.stat
@pytest.mark.parametrize("policy", [stop_once_sure, switch])
@pytest.mark.parametrize("with_record", [True, False])
def test_an_adversary_stays_below_delta(rng, made, policy, with_record):
    values = excess(made, *play(policy, 40_000, rng, with_record=with_record), with_record=with_record)
    assert values.mean() + 5 * values.std() / np.sqrt(len(values)) < 0.05


@pytest.mark.stat
def test_the_simulation_sees_the_whole_curve_of_a_record_at_the_clip_norm(rng, made):
    path = play(lambda step, loss, counts: np.full(len(loss), TOP), 40_000, rng, with_record=True)
    values = excess(made, *path, with_record=True)
    exact = worst_profile(**MECHANISM, steps=STEPS).delta(made.rungs[-1].epsilon)
    assert exact == pytest.approx(made.rungs[-1].delta, rel=0.01)
    assert abs(values.mean() - exact) < 5 * values.std() / np.sqrt(len(values))  # false alarm 6e-7


@pytest.mark.stat
@pytest.mark.parametrize("policies", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_adversaries_stay_below_delta(rng, made, policies):
    """Many policies of 20 paths: level by step and by whether the loss is above a random threshold."""
    paths = 20
    low, high = (rng.choice(USED, size=(policies, STEPS)).repeat(paths, axis=0) for _ in range(2))
    threshold = rng.normal(0.5, 1.0, policies).repeat(paths)

    def policy(step, loss, counts):
        return np.where(loss > threshold, high[:, step], low[:, step])

    loss, counts = play(policy, policies * paths, rng, with_record=True)
    values = excess(made, loss, counts, with_record=True)
    means = values.reshape(policies, paths).mean(1)
    spread = values.reshape(policies, paths).std(1) / np.sqrt(paths)
    assert np.all(means - 6 * spread <= 0.05)
    assert values.mean() < 0.05
    assert len(np.unique(made.rung_of(counts))) >= 3  # several rungs are in use


def absorbing_walk(*, rate, top, steps, width=0.005, span=40.0):
    """Return the grid and the exact laws of the loss (σ = 1) with the record: unstopped, and stopped once above `top`.

    Each step's loss is rounded to the grid and enumerated, so both walks are of the same finite mechanism.
    """
    grid = np.arange(-span, span + width / 2, width)
    low = round(np.log1p(-rate) / width)
    edges = (np.arange(low, span // 4 / width) - 0.5) * width  # losses are rounded to the nearest point of the grid
    inner = np.expm1(np.maximum(edges, np.log1p(-rate) + 1e-12)) / rate
    shift = np.log1p(np.maximum(inner, -1.0 + 1e-12)) + 0.5  # the noise at which the loss is at an edge
    below = (1 - rate) * norm.cdf(shift) + rate * norm.cdf(shift - 1.0)
    law, first = np.diff(np.append(below, 1.0)), low
    plain = np.zeros(len(grid))
    plain[len(grid) // 2] = 1.0
    stopped = plain.copy()
    for _ in range(steps):
        plain = step_of(plain, law, first)
        still = np.where(grid > top, 0.0, stopped)
        stopped = stopped - still + step_of(still, law, first)
    return grid, plain, stopped


def step_of(walk, law, first):
    moved = fftconvolve(walk, law)
    return np.maximum(moved[-first : len(walk) - first] if first <= 0 else moved[: len(walk)], 0.0)


def test_stopping_once_the_loss_is_large_raises_its_tail_but_no_hockey_stick():
    """A tail would promise too little; why rungs speak of the hockey stick. q = 0.1, σ = 1, 60 steps, ε = 4."""
    grid, plain, stopped = absorbing_walk(rate=0.1, top=4.0, steps=60)
    assert plain.sum() == pytest.approx(1.0, abs=1e-6)
    assert stopped.sum() == pytest.approx(1.0, abs=1e-6)
    above = grid > 4.0
    assert plain[above].sum() == pytest.approx(1.5e-3, rel=0.05)
    assert stopped[above].sum() == pytest.approx(2.0e-3, rel=0.05)
    exact = worst_profile(sample_rate=0.1, noise_multiplier=1.0, steps=60)
    assert stopped[above].sum() <= exact.tail(4.0)  # a tail that does hold for whatever is below the curve
    for epsilon in (0.5, 2.0, 4.0, 5.0):
        sticks = [(law * np.maximum(-np.expm1(epsilon - grid), 0.0)).sum() for law in (plain, stopped)]
        assert sticks[1] <= sticks[0] * (1.0 + 1e-4)
        assert sticks[0] == pytest.approx(exact.delta(epsilon), rel=0.01)  # the walk is that of the mechanism


def test_rungs_are_cheaper_the_lower_they_are_and_the_last_is_the_plans(made):
    epsilons = [rung.epsilon for rung in made.rungs]
    assert epsilons == sorted(epsilons)
    assert sum(rung.delta for rung in made.rungs) == pytest.approx(0.05)
    counts = np.zeros((3, len(NORM_LEVELS)), dtype=np.int64)
    counts[0, 0], counts[1, TOP], counts[2, TOP // 3] = STEPS, STEPS, STEPS
    assert made.rung_of(counts).tolist() == [0, 3, 0]
    assert made.counts_of(counts) == (2, 0, 0, 1)


@pytest.mark.stat
def test_shares_of_rungs_hold_as_often_as_they_say(rng, made):
    """2,000 panels of 200; a share above the true one happens at most gamma = 0.1 of the time."""
    law = np.array([0.6, 0.25, 0.1, 0.05])
    levels = np.zeros((4, len(NORM_LEVELS)), dtype=np.int64)
    for rung, steps in enumerate((0, 1, 2, 12)):
        levels[rung, TOP] = steps
    assert made.rung_of(levels).tolist() == [0, 1, 2, 3]
    truth = np.cumsum(law)
    failures = sum(
        np.any(np.array(made.shares(levels[rng.choice(4, 200, p=law)], gamma=0.1)) > truth + 1e-12) for _ in range(500)
    )
    assert failures <= 0.1 * 500 + 5 * np.sqrt(500 * 0.09)


@pytest.mark.parametrize("fractions", [(), (0.5,), (0.5, 0.25, 1.0), (0.5, 0.5, 1.0), (0.0, 1.0), (0.7, 1.0)])
def test_fractions_that_do_not_lead_to_the_plan_are_refused(fractions):
    with pytest.raises(ValueError, match="fraction"):
        ladder(steps=STEPS, delta=0.05, fractions=fractions, **MECHANISM)
