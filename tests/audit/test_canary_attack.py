"""Canary audits: their statistics against oracles, no false alarm on correct steps, every planted bug found."""

import json
import math
import os
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, norm
from torch import nn

from tacita import worst_case
from tacita.accounting import TokenBudget, token_profile
from tacita.audit import CanaryModel, Replay, canaries
from tacita.audit.canary_attack import canary_finding
from tacita.audit.replay import left_out
from tacita.audit.tally import CONFIDENCES, CanaryAudit
from tacita.training import PrivateTraining
from tacita.training.plan import Plan

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
DELTA = 1e-5
SHAPES = [(4, 1, 3, 3), (4,), (5, 16), (5,)]


def plan_for(noise, rate=0.1, steps=20, **others):
    return Plan.declare(
        stops=(),
        nominal_size=None,
        sample_rate=rate,
        steps=steps,
        clip_norm=2.0,
        noise_multiplier=noise,
        target=None,
        budget=None,
        batch_size=100,
        delta=DELTA,
        individual_every=others.pop("individual_every", None),
        record_budget=others.pop("record_budget", None),
        certificate=None,
        tolerated=0,
    )


def audit(plan, seed, count=20_000, **others):
    replay = Replay(plan, SHAPES, seed=2 * seed, count=count)
    return canaries(
        replay,
        sample_rate=plan.sample_rate,
        noise_multiplier=plan.noise_multiplier,
        steps=plan.steps,
        delta=DELTA,
        epsilon=plan.worst(plan.steps, DELTA).epsilon,
        count=count,
        parts=replay.parts,
        seed=seed,
        **others,
    )


def gaussian(sigma, rate=1.0, seed=0, factor=1.0):
    """A Poisson-sampled Gaussian step function in numpy, with its noise times a factor."""
    rng = np.random.default_rng(seed)

    def step(present):
        there = present & (rng.random(len(present)) < rate)
        return there + factor * sigma * rng.standard_normal(len(present))

    return step


# The statistics.


@pytest.mark.stat
def test_guesses_are_right_as_often_as_the_claim_allows():
    """Several steps, 200,000 canaries: within five standard errors of the allowed share, which is tight."""
    found = canaries(
        gaussian(1.1, 0.2, seed=1), sample_rate=0.2, noise_multiplier=1.1, steps=8, delta=DELTA, count=200_000, seed=3
    )
    assert abs(found.right / found.canaries - found.allowed) < 5 * 0.5 / math.sqrt(found.canaries)


def test_lower_bound_is_the_epsilon_of_just_so_much_noise():
    """At q = 1 everything has a closed form: the limit on the share gives σ, and σ gives epsilon."""
    found = canaries(gaussian(1.5, seed=4), sample_rate=1.0, noise_multiplier=1.5, steps=1, delta=DELTA, seed=5)
    share = next(p for p in np.linspace(0.5, 1, 20_001) if binom.sf(found.right - 1, found.canaries, p) > 1 - 0.9995)
    sigma = 1 / (2 * norm.ppf(share))
    assert found.lower[0.9995] == pytest.approx(
        worst_case(sample_rate=1.0, noise_multiplier=sigma, steps=1, delta=DELTA).epsilon, rel=5e-3
    )
    assert found.lower[0.9995] < found.lower[0.95] <= found.epsilon


def test_assumption_free_bound_is_below_the_other():
    found = canaries(gaussian(0.8, seed=6), sample_rate=1.0, noise_multiplier=0.8, steps=1, delta=DELTA, seed=7)
    for confidence in CONFIDENCES:
        assert 0.2 * found.epsilon < found.free[confidence] < found.lower[confidence]


def test_a_mechanism_that_ignores_the_data_proves_nothing():
    rng = np.random.default_rng(8)
    found = canaries(
        lambda present: rng.standard_normal(len(present)),
        sample_rate=1.0,
        noise_multiplier=1.0,
        steps=3,
        delta=DELTA,
        seed=9,
    )
    assert found.lower[0.9995] < 0.1 * found.epsilon
    assert found.verdict == "not refuted"


def test_a_claim_below_the_truth_is_broken_although_the_mechanism_is_as_declared():
    """An accountant's bug: the steps are right and the epsilon is not."""
    found = canaries(
        gaussian(1.0, seed=10), sample_rate=1.0, noise_multiplier=1.0, steps=1, delta=DELTA, epsilon=3.0, seed=11
    )
    assert found.verdict == "claim broken"
    assert found.lower[0.9995] > 3.0


def test_noise_that_stops_halfway_is_found():
    rng, taken = np.random.default_rng(14), []

    def step(present):
        taken.append(1)
        there = present & (rng.random(len(present)) < 0.1)
        return there + (len(taken) <= 10) * rng.standard_normal(len(present))

    found = canaries(step, sample_rate=0.1, noise_multiplier=1.0, steps=20, delta=DELTA, count=5000, seed=15)
    assert found.verdict == "claim broken"


# The shipped step.


@pytest.mark.stat
@pytest.mark.parametrize(("noise", "rate", "steps"), [(3.73, 1.0, 1), (0.8, 0.1, 20), (0.6, 1.0, 1)])
def test_a1_never_above_the_claim(noise, rate, steps):
    """A false alarm has probability 0.0005; the experiment of docs/explanation/audit.md has 200 seeds a row."""
    plan = plan_for(noise, rate, steps)
    for seed in range(200 if THOROUGH else 3):
        found = audit(plan, seed, count=2000)
        assert not found.broken
        assert found.lower[0.9995] <= found.epsilon


@pytest.mark.parametrize(("noise", "epsilon", "least"), [(3.73, 1.0, 0.75), (1.08, 4.0, 0.9)])
def test_a2_the_bound_is_tight(noise, epsilon, least):
    found = audit(plan_for(noise, 1.0, 1), 21, count=50_000)
    assert found.epsilon == pytest.approx(epsilon, rel=0.01)
    assert least * found.epsilon < found.lower[0.9995] <= found.epsilon


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param("noise x 0.5", marks=pytest.mark.slow),
        pytest.param("noise x 0.8", marks=pytest.mark.slow),
        pytest.param("noise x 0.9", marks=pytest.mark.slow),
        pytest.param("clip at 2C", marks=pytest.mark.slow),
        "clip at 1.1C",
        "sample rate 2q",
        "no noise on biases",
        pytest.param("noise not scaled by C", marks=pytest.mark.slow),
    ],
)
def test_a3_planted_bug_is_found(bugs, bug):
    with bugs.planted(bug):
        found = audit(plan_for(0.65), 31)
    assert found.verdict == "claim broken"
    assert found.part == (1 if bug == "no noise on biases" else found.part)
    assert found.lower[0.9995] > found.epsilon


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param("noise x 0.5", marks=pytest.mark.slow),
        pytest.param("noise x 0.8", marks=pytest.mark.slow),
        "noise x 0.9",
        pytest.param("clip at 2C", marks=pytest.mark.slow),
        pytest.param("clip at 1.1C", marks=pytest.mark.slow),
        pytest.param("clip forgotten, 1 in 100", marks=pytest.mark.slow),
        pytest.param("no noise on biases", marks=pytest.mark.slow),
        pytest.param("noise not scaled by C", marks=pytest.mark.slow),
        "no noise on 1 coordinate in 1,000",
        pytest.param("one noise for all rows", marks=pytest.mark.slow),
        pytest.param("uniform noise", marks=pytest.mark.slow),
        pytest.param("sample rate 2q", marks=pytest.mark.slow),
        "every batch used twice",
        pytest.param("shuffled batches", marks=pytest.mark.slow),
        pytest.param("noise used twice", marks=pytest.mark.slow),
        pytest.param("noise used again after 7 steps", marks=pytest.mark.slow),
        "noise in opposite pairs",
    ],
)
def test_a7_planted_bug_is_found_at_a_claim_of_one(bugs, bug):
    with bugs.planted(bug):
        found = audit(plan_for(2.1), 32, count=40_000)  # a fifth of what 20 steps get by default
    assert 0.9 < found.epsilon < 1.1
    assert found.verdict == "claim broken"


def test_a3_nothing_is_found_without_a_bug():
    assert audit(plan_for(0.65), 31).verdict == "not refuted"


def quiet_training(steps):
    """Records without a gradient: what a step leaves is its noise."""
    model = nn.Linear(400, 1, bias=False)
    records = (torch.zeros(500, 400), torch.zeros(500))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return PrivateTraining(
        model,
        lambda out, _: out.sum(),
        records,
        optimizer=optimizer,
        sample_rate=0.1,
        batch_size=50,
        steps=steps,
        noise_multiplier=1.0,
        panel=0,
        seed=3,
    )


@pytest.mark.parametrize("bug", [None, "noise used twice"])
def test_f6_finds_planted_reuse(bugs, bug):
    """The correlation between steps shows it (F6)."""
    with bugs.planted(bug) if bug else nullcontext():
        private, noise = quiet_training(20), []
        while private.advance():
            noise.append(private.model.weight.grad.flatten().clone())
    stacked = torch.stack(noise)
    correlation = float((stacked[1:] * stacked[:-1]).sum() / stacked.square().sum())
    assert (abs(correlation) > 5 / math.sqrt(19 * 400)) == (bug is not None)


@pytest.mark.parametrize("bug", [None, "shuffled batches"])
def test_f7_finds_planted_shuffling(bugs, bug):
    """Batches of one size are not independent coins: the variance of their sizes says so (F7), at p < 1e-6."""
    with bugs.planted(bug) if bug else nullcontext():
        private, sizes = quiet_training(100), []
        taken = private.mechanism.records.marked
        private.mechanism.records.marked = lambda places, **rng: (
            sizes.append(len(places)),
            taken(places, **rng),
        )[1]
        while private.advance():
            pass
    spread = np.sum((np.array(sizes) - 50) ** 2) / (500 * 0.1 * 0.9)
    assert (2 * min(chi2.cdf(spread, 100), chi2.sf(spread, 100)) < 1e-6) == (bug is not None)


def test_individual_bounds_and_record_budgets_are_replayed():
    plan = plan_for(1.0, individual_every=4)
    plain = audit(plan, 41, count=10_000)
    assert 0.8 * plain.epsilon < plain.lower[0.95] <= plain.epsilon
    held_back = token_profile({1.0: 0.2, 0.05: 0.8}, steps=20)
    assert isinstance(held_back, TokenBudget)
    filtered = plan_for(1.0, individual_every=4, record_budget=held_back)
    found = audit(filtered, 42, count=10_000)
    assert found.epsilon < 0.7 * plan.worst(20, DELTA).epsilon  # four steps of twenty
    assert not found.broken
    assert found.lower[0.95] > 0.4 * found.epsilon


def test_canaries_sit_in_the_models_own_tensors():
    replay = Replay(plan_for(0.8), SHAPES, count=5000)
    assert set(replay.parts) == {1, 2, 4}
    assert all((replay.parts == rank).sum() >= 900 for rank in (1, 2, 4))
    small = Replay(plan_for(0.8), [(3,)], count=1500)
    assert (small.parts == 1).sum() >= 900
    large = Replay(plan_for(0.8), [(300, 300), (300,)], count=1500)
    assert large.count == 1500
    assert left_out([(300, 300), (300,)]) == 1


def test_it_ends_early_with_the_claim_of_the_steps_taken():
    asked = []
    found = audit(plan_for(0.8), 51, count=3000, stop=lambda: asked.append(1) or len(asked) >= 5)
    assert found.steps == 5
    plan = plan_for(0.8)
    assert found.epsilon == pytest.approx(plan.worst(5, DELTA).epsilon)


# Opacus.


def opacus_step(count, rate, sigma, clip, *, noise=1.0, loose=1.0):
    """Opacus' own sampler, gradients, clipping and noise; `noise` and `loose` plant bugs in its optimiser."""
    opacus = pytest.importorskip("opacus")
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer

    room = CanaryModel(count)
    model = opacus.GradSampleModule(room)
    optimizer = DPOptimizer(
        torch.optim.SGD(room.parameters(), lr=0.0),
        noise_multiplier=noise * sigma,
        max_grad_norm=clip,
        expected_batch_size=100,
    )
    loader = None

    def step(present):
        nonlocal loader
        if loader is None:
            where = torch.from_numpy(np.flatnonzero(present))
            loader = DPDataLoader(torch.utils.data.TensorDataset(where), sample_rate=rate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks and of empty batches
            (drawn,) = next(iter(loader))
            optimizer.zero_grad()
            (10 * clip * model(drawn).mean()).backward()  # Opacus undoes the mean
            optimizer.max_grad_norm = loose * clip
            optimizer.clip_and_accumulate()
            optimizer.max_grad_norm = clip
            optimizer.add_noise()
            optimizer.scale_grad()
        return room.gradient()[:count] * 100 / clip

    return step


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [({}, "not refuted"), ({"noise": 0.8}, "claim broken"), ({"loose": 1.25}, "claim broken")],
)
def test_opacus_can_be_audited(planted, verdict):
    step = opacus_step(10_000, 0.1, 0.9, 0.5, **planted)
    found = canaries(step, sample_rate=0.1, noise_multiplier=0.9, steps=10, delta=DELTA, count=10_000, seed=61)
    assert found.verdict == verdict
    assert found.lower[0.9995] > 0.75 * found.epsilon


# Plain data and words.


def test_an_audit_survives_json():
    found = canaries(gaussian(1.0), sample_rate=1.0, noise_multiplier=1.0, steps=1, delta=DELTA, count=1000, seed=1)
    again = CanaryAudit.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    text = str(found)
    assert "not refuted" in text
    assert "99.95% confidence" in text
    assert "95.00% confidence" in text
    statement = found.guarantee()
    assert statement.kind == "empirical_lower"
    assert statement.epsilon == found.lower[0.9995]
    assert not statement.publishable


def test_finding_says_who_is_covered_by_which_sentence():
    worst = canaries(gaussian(0.7), sample_rate=1.0, noise_multiplier=0.7, steps=1, delta=DELTA, seed=1)
    fields = {**worst.to_dict(), "who": "A record like those trained on", "epsilon": 1.0}
    typical = CanaryAudit.from_dict({**fields, "lower": {"0.95": 0.5, "0.9995": 0.4}})
    told = canary_finding([worst, typical], steps=16)
    assert told.state == "not-refuted"
    assert "only the worst case covers it" in told.sentence
    assert [bound.upper for bound in told.bounds] == [worst.epsilon, 1.0]
    broken = canaries(gaussian(0.7, factor=0.5), sample_rate=1.0, noise_multiplier=0.7, steps=1, delta=DELTA, seed=1)
    told = canary_finding([broken], steps=16)
    assert told.state == "warning"
    assert told.sentence.startswith("Claim broken")
    assert "do not use this label" in told.sentence


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (np.zeros(3), "one number for each of 100 canaries"),
        (np.full(100, np.nan), "not finite"),
        ((np.zeros(100), 1.5), r"in \[0, 1\]"),
    ],
)
def test_wrong_step_functions(returned, words):
    with pytest.raises(ValueError, match=words):
        canaries(lambda _: returned, sample_rate=1.0, noise_multiplier=1.0, steps=1, delta=DELTA, count=100)


def test_canary_model_has_a_weight_for_each():
    model = CanaryModel(10)
    where = torch.arange(10)
    model(where[[2, 7]]).sum().backward()
    assert np.flatnonzero(model.gradient()).tolist() == [2, 7]
    assert isinstance(model.layer, nn.Linear)
