"""Followed records: when they are measured, what is charged in between, and how they are kept."""

import numpy as np
import pytest
import torch

from tacita import BayesianAccountant, PrivacyError
from tacita.training import label_of_run
from tacita.training.panel import Panel
from tests.training.trainings import again as resumed_training
from tests.training.trainings import start, train


def test_followed_records_are_measured_at_random_steps(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, steps=80, panel=20, panel_rate=0.5, seed=1)
    for step in private.steps(curve=False):
        if step.number == 31:
            break
    seen = private._stepper.state.panels["training"].counts().sum(1)
    assert len(set(seen.tolist())) > 1  # each by its own coins
    assert 0 < seen.min() < seen.max() < 31
    before = private.accountants["training"].counts
    assert (before.sum(1) == 31).all()
    assert np.array_equal(private.accountants["training"].counts, before)  # looking changes nothing
    resumed, _ = resumed_training(tmp_path / "run", blobs)
    assert np.array_equal(resumed.accountants["training"].counts, before)
    resumed.run()
    assert (resumed.accountants["training"].counts.sum(1) == 80).all()
    label = resumed.label()
    assert label == label_of_run(tmp_path / "run")
    assert "measured-at-random" in {a.code for a in label.readings.typical[0].assumptions}
    assert "random steps" not in label.public().html()


def test_a_lost_step_is_at_the_bound_also_where_steps_are_skipped(blobs):
    private = train(blobs, steps=40, panel=8, panel_rate=0.5)
    for _ in range(10):
        private.advance()
    private._stepper.state.lose(5)
    counts = private.accountants["training"].counts
    assert (counts.sum(1) == 15).all()
    assert (counts[:, -1] >= 5).all()


def test_checkpoints_from_before_there_were_rates_measured_every_step(blobs):
    private = train(blobs, panel=8).run()
    tensors, plain = private._stepper.state.panels["training"].state()
    old = {name: value for name, value in plain.items() if name not in ("rate", "steps")}
    panel = Panel.restore(tensors, old, budget=None)
    assert panel.rate == 1.0
    assert np.array_equal(panel.account(1e-5).counts, private.accountants["training"].counts)


def test_a_rate_is_refused_where_bounds_hold_at_every_step(blobs):
    with pytest.raises(ValueError, match="panel_rate"):
        train(blobs, individual_every=2, panel_rate=0.5)
    with pytest.raises(ValueError, match="panel_rate"):
        train(blobs, panel_rate=0.0)


def measured(steps):
    panel = Panel(np.arange(5), BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, steps=steps))
    panel.measure(np.array([0.0, 0.1, 0.5, 1.0, 3.0]), period=steps // 2)
    for _ in range(steps // 2):
        panel.tick()
    return panel


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.int64])  # earlier checkpoints held int32
def test_a_checkpoint_of_any_whole_numbers_is_read_alike(kind):
    panel = measured(400)
    tensors, document = panel.state()
    assert tensors["counts"].dtype == torch.int16
    again = Panel.restore({**tensors, "counts": tensors["counts"].to(kind)}, document, budget=None)
    assert again.counts().dtype == np.int16
    assert np.array_equal(again.counts(), panel.counts())
    assert np.array_equal(again.account(1e-5).epsilons(delta=1e-5), panel.account(1e-5).epsilons(delta=1e-5))


def test_a_checkpoint_whose_steps_do_not_add_up_is_refused():
    tensors, document = measured(400).state()
    for wrong in (tensors["counts"].to(torch.int8), tensors["counts"] // 2, tensors["counts"].float()):
        with pytest.raises(PrivacyError, match="state is damaged"):
            Panel.restore({**tensors, "counts": wrong}, document, budget=None)


def test_a_checkpoint_before_the_first_step_is_small_and_read():
    panel = Panel(np.arange(5), BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, steps=400))
    tensors, document = panel.state()
    assert tensors["counts"].dtype == torch.int8
    assert Panel.restore(tensors, document, budget=None).account(1e-5).taken == 0
