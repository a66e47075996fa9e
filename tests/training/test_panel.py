"""Followed records: when they are measured, and what is charged in between."""

import numpy as np
import pytest

from tacita.training import label_of_run
from tacita.training.panel import Panel
from tests.training.trainings import again, start, train


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
    resumed, _ = again(tmp_path / "run", blobs)
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
