"""Rungs of a training: declared with the plan, kept with the run, counted for the owner."""

import json

import pytest
import torch

from tacita._check import PrivacyError
from tacita.accounting import token_profile
from tacita.accounting.rungs import FRACTIONS
from tacita.label import Label
from tacita.training import Plan
from tacita.training.labels import label_of_run
from tacita.training.rungs import ladder_of
from tests.training.trainings import again, start, train

TERMS = {"steps": 10, "batch_size": 30, "nominal_size": 300, "noise_multiplier": 1.0}


def test_individual_bounds_bring_rungs_and_nothing_else_does():
    assert Plan.declare(**TERMS).rungs == ()
    assert Plan.declare(**TERMS, individual_every=2).rungs == FRACTIONS
    assert Plan.declare(**TERMS, individual_every=2, rungs=()).rungs == ()
    assert Plan.declare(**TERMS, individual_every=2, rungs=[0.25, 1]).rungs == (0.25, 1.0)
    with pytest.raises(ValueError, match="rungs needs individual_every"):
        Plan.declare(**TERMS, rungs=(0.5, 1.0))
    with pytest.raises(ValueError, match="rungs must be fractions that increase"):
        Plan.declare(**TERMS, individual_every=2, rungs=(0.5, 0.25, 1.0))


def test_a_plan_keeps_its_rungs_and_one_without_reads_as_before():
    plan = Plan.declare(**TERMS, individual_every=2)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert "rungs" in plan.frozen()
    assert "rungs" not in Plan.declare(**TERMS).to_dict()
    with pytest.raises(PrivacyError, match="damaged"):
        Plan.from_dict({**plan.to_dict(), "rungs": [0.9, 1.0]})


def test_rungs_cost_the_figure_for_anyone_nothing_and_a_record_budget_bounds_them():
    plain, with_rungs = (Plan.declare(**TERMS, individual_every=2, rungs=rungs) for rungs in ((), FRACTIONS))
    assert plain.headline(10, 1e-5).epsilon == with_rungs.headline(10, 1e-5).epsilon
    rungs = ladder_of(with_rungs, 1e-5).rungs
    assert sum(rung.delta for rung in rungs) == pytest.approx(1e-5)
    budget = token_profile({1.0: 0.2, 0.25: 0.8}, steps=10)
    held = Plan.declare(**TERMS, individual_every=2, record_budget=budget)
    most = budget.epsilon(1e-5 / 4, sample_rate=0.1, noise_multiplier=1.0)
    assert ladder_of(held, 1e-5).rungs[-1].epsilon == pytest.approx(most)
    assert not ladder_of(plain, 1e-5).rungs


def test_the_owner_sees_exact_counts_and_the_public_the_declared_rungs(blobs):
    x, y = blobs
    far = x.clone()
    far[:7] *= 100.0  # large gradients all along
    private = train((far, y), individual_every=2, holdout=(x, y), lr=0.01, clip_norm=4.0).run()
    label = private.label()
    counts = private.accountants["training"].counts
    found = ladder_of(private.plan, 1e-5).rung_of(counts)
    assert label.readings.rung_counts == tuple(int((found == k).sum()) for k in range(4))
    assert sum(label.readings.rung_counts) == 300
    assert len({k for k, n in enumerate(label.readings.rung_counts) if n}) >= 2
    assert list(label.readings.rung_shares) == sorted(label.readings.rung_shares)
    assert [fraction for fraction, _ in label.ladder] == list(FRACTIONS)
    assert any(check.code == "rungs" for check in label.checks)
    assert Label.from_dict(json.loads(json.dumps(label.to_dict()))) == label
    for shown in (str(label), label.html()):
        assert "a person who ended on a rung" in shown
        assert "counted exactly" in shown
    for shown in (str(label.public()), label.public().html()):
        assert "a person who ended on a rung" in shown
        assert "counted exactly" not in shown
        assert "Training records" not in shown
    with pytest.raises(ValueError, match="one entry for each rung"):
        Label.from_dict({**label.to_dict(), "ladder": []})


def test_a_label_without_rungs_does_not_speak_of_them(blobs):
    label = train(blobs, individual_every=5, rungs=()).run().label()
    assert (label.ladder, label.readings.rung_counts) == ((), ())
    assert "rung" not in str(label).lower()


def test_b1_public_pages_with_rungs_are_identical_for_neighbours(blobs, tmp_path):
    """One record less, or one more with a gradient beyond all others: other counts, the same public bytes."""
    x, y = blobs
    more = (torch.cat([x, 1000.0 * x[:1]]), torch.cat([y, 1 - y[:1]]))
    pages, texts, counts = set(), set(), set()
    for i, data in enumerate([(x, y), (x[1:], y[1:]), more]):
        private = train(data, run_dir=tmp_path / str(i), name="a run", steps=6, individual_every=2, clip_norm=2.0)
        label = private.run().label()
        pages.add((tmp_path / str(i) / "label.html").read_bytes())
        texts.add(json.dumps(label.public().to_dict()) + str(label.public()))
        counts.add(label.readings.rung_counts)
    assert len(pages) == len(texts) == 1
    assert len(counts) > 1
    assert b"ended on a rung" in next(iter(pages))


def test_a_resumed_run_has_the_same_rungs(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, steps=20, individual_every=2, rungs=(0.25, 1.0))
    for step in private:
        if step.number == 8:
            break
    resumed, _ = again(tmp_path / "run", blobs)
    assert resumed.plan == private.plan
    resumed.run()
    counts = ladder_of(resumed.plan, 1e-5).counts_of(resumed.accountants["training"].counts)
    assert label_of_run(tmp_path / "run").readings.rung_counts == counts
    assert sum(counts) == 300
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    document["plan"]["rungs"] = [0.5, 1.0]
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    with pytest.raises(PrivacyError):  # not the ones that the ledger froze
        label_of_run(tmp_path / "run")
