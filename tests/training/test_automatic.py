"""Automatic clipping: normalised gradients, their sensitivity, their accounts, and who refuses them."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import tacita
from tacita.accounting import NORM_LEVELS, token_profile
from tacita.audit import canaries
from tacita.audit.replay import Replay
from tacita.federated import federation_plan
from tacita.inference.request import Settings
from tacita.synthesis.recipes import Recipe as Synthesis
from tacita.training import PrivateTraining, clipped_sum
from tacita.training.gradients import clip_factors
from tacita.training.labels import label_of_run
from tacita.training.plan import SOFTENING, Plan
from tacita.training.recipes import Recipe
from tests.training.trainings import THOROUGH, again, start, train

DECLARED = {"noise_multiplier": 1.0, "batch_size": 30, "nominal_size": 300, "steps": 10}


def product(parameters, record):
    """Return a loss whose gradient is the record."""
    return (parameters["w"] * record).sum()


def summed(x, bounds=None):
    limits = torch.ones(len(x), dtype=torch.float64) if bounds is None else bounds
    found = clipped_sum(product, {"w": torch.zeros(x.shape[1])}, x, limits, softening=SOFTENING)
    return found.sums["w"].double(), found.norms


def test_f20_a_record_more_or_less_moves_the_sum_by_less_than_one():
    """Gradients of norm 1e-8 to 1e8: neighbours differ by g / (|g| + r), which is computed in float64 apart."""
    torch.manual_seed(0)
    for _ in range(1000 if THOROUGH else 100):
        x = torch.randn(4, 6) * 10.0 ** torch.empty(4, 1).uniform_(-8, 8)
        moved = summed(x)[0] - summed(x[1:])[0]
        one = x[0].double()
        wanted = one / (one.norm() + SOFTENING)
        assert float(moved.norm()) <= 1.0 + 1e-6
        torch.testing.assert_close(moved, wanted, rtol=0, atol=2e-6)


def test_f2_norms_reported_are_those_that_contribute():
    torch.manual_seed(1)
    x = torch.randn(200, 50) * 10.0 ** torch.empty(200, 1).uniform_(-6, 6)
    bounds = torch.rand(200, dtype=torch.float64)
    for i in range(200 if THOROUGH else 50):
        total, norms = summed(x[i : i + 1], bounds[i : i + 1])
        length = float(x[i].double().norm())
        wanted = min(float(bounds[i]), length / (length + SOFTENING))
        assert float(total.norm()) <= wanted * (1 + 1e-6)
        assert float(norms) == pytest.approx(float(total.norm()), rel=1e-6)
        assert float(total.norm()) == pytest.approx(wanted, rel=5e-6)


@pytest.mark.parametrize("norm", [0.0, 1e-310, 1e-30, 1e17, 1e19, float("inf"), float("nan")])
def test_f9_f10_factors_are_finite_and_zero_where_nothing_may_enter(norm):
    factor = float(clip_factors(torch.tensor([norm], dtype=torch.float64), torch.ones(1, dtype=torch.float64), 0.01))
    assert 0.0 <= factor <= 100.0
    assert factor * norm <= 1.0 if norm < 1e18 else factor == 0.0


def test_f16_the_rule_is_declared_and_plans_without_it_are_as_before():
    plan = Plan.declare(clip_norm="auto", **DECLARED)
    assert (plan.clip_norm, plan.softening, plan.clipping) == (1.0, 0.01, "auto")
    assert plan.frozen()["softening"] == 0.01
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    fixed = Plan.declare(clip_norm=1.0, **DECLARED)
    assert "softening" not in fixed.to_dict()
    assert fixed.frozen() != plan.frozen()
    assert plan.worst(10, 1e-5).epsilon == fixed.worst(10, 1e-5).epsilon
    with pytest.raises(TypeError, match="clip_norm must be a number"):
        Plan.declare(clip_norm="automatic", **DECLARED)


def test_levels_are_those_of_contributions(blobs):
    """Not of gradients over a clip norm: g / (|g| + r), rounded up."""
    private = train(blobs, individual_every=1, clip_norm="auto", steps=3, lr=5.0)
    norms = private.mechanism.norms("training", np.arange(300), rng=np.random.default_rng(0))
    private.advance()
    wanted, held = norms / (norms + 0.01), private.bounds
    assert (held >= wanted).all()
    assert (held - wanted).max() < 0.01
    assert private.plan.contributions(norms) == pytest.approx(wanted)


def test_a_record_budget_is_kept(blobs):
    declared = token_profile({1.0: 0.3, 0.25: 0.7}, steps=20)
    private = train(blobs, individual_every=4, steps=20, clip_norm="auto", record_budget=declared).run()
    counts = private.accountants["training"].counts
    assert declared.within(counts, sample_rate=0.1, noise_multiplier=1.0).all()
    assert (counts @ NORM_LEVELS).max() < 20 * 0.6


def test_a_run_is_labelled_with_its_rule_and_goes_on_with_it(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, clip_norm="auto", panel=8)
    for step in private:
        assert max(step.norms) <= 1.0
        if step.number == 7:
            break
    resumed, _ = again(tmp_path / "run", blobs)
    assert resumed.plan == private.plan
    resumed.run()
    resumed.label()
    label = label_of_run(tmp_path / "run")
    assert dict(label.mechanism)["Clip norm"] == "automatic: every gradient g is scaled to g / (|g| + 0.01)"
    assert any("No clip norm was chosen" in line for line in label.declared)
    assert label.worst.epsilon == tacita.worst_case(sample_rate=0.1, noise_multiplier=1.0, steps=40, delta=1e-5).epsilon


@pytest.mark.parametrize(("claimed", "verdict"), [(0.8, "not refuted"), (1.2, "claim broken")])
def test_canaries_are_as_long_as_the_rule_allows(claimed, verdict):
    plan = Plan.declare(**{**DECLARED, "noise_multiplier": 0.8}, clip_norm="auto")
    replay = Replay(plan, [(3, 4), (4,)], count=3000, seed=1)
    settings = {"sample_rate": 0.1, "noise_multiplier": claimed, "steps": 10, "delta": 1e-5}
    found = canaries(replay, **settings, count=3000, parts=replay.parts, seed=2)
    assert found.verdict == verdict


def test_a_recipe_may_leave_the_clip_norm_out():
    table = {"data": {"name": "digits"}, "epsilon": 1.0}
    assert Recipe.from_dict({**table, "clip_norm": "auto"}).clip_norm == "auto"
    assert Recipe.from_dict({**table, "clip_norm": 0.5}).clip_norm == 0.5


def test_the_rule_learns(blobs):
    model = nn.Linear(4, 2)
    private = train(blobs, model, clip_norm="auto", steps=60, lr=0.5, noise_multiplier=0.5, panel=0).run()
    assert isinstance(private, PrivateTraining)
    x, y = blobs
    assert float((model(x).argmax(1) == y).float().mean()) > 0.8


def test_where_normalising_would_change_the_result_it_is_refused():
    critic = {"data": {"name": "digits"}, "generator": "private-wgan", "epsilon": 1.0}
    refusals = {
        "a federation": lambda: federation_plan(
            level="client", clients=4, client_rate=1.0, rounds=3, clip_norm="auto", noise_multiplier=1.0
        ),
        "a posterior": lambda: Settings(clip_norm="auto"),
        "a critic": lambda: Synthesis.from_dict({**critic, "clip_norm": "auto"}),
    }
    for refused in refusals.values():
        with pytest.raises(ValueError, match="Normalising shifts averages"):
            refused()
