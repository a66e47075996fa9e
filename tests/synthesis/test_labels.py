"""The label of a run: what the files must agree on."""

import shutil

import numpy as np
import pytest

from tacita.ledger import Ledger
from tacita.synthesis.labels import label_of_run
from tests.synthesis.short_runs import edit, run


def test_label_of_a_run_at_another_delta(embedding_run):
    folder, label = embedding_run
    other = label_of_run(folder, delta=1e-7)
    assert other.worst.epsilon > label.worst.epsilon
    assert np.isclose(other.worst.delta, 1e-7)


def test_a_label_without_attacks_names_the_command_that_makes_them(embedding_run):
    _, label = embedding_run
    assert "tacita synthesise --resume RUN" in str(label)
    assert "tacita audit" not in str(label)


def test_a_ledger_put_in_the_place_of_another_is_refused(tmp_path):
    run(tmp_path / "run", epsilon=2.0)
    (tmp_path / "run" / "ledger.sqlite").unlink()
    with Ledger.create(tmp_path / "run" / "ledger.sqlite"):
        pass
    with pytest.raises(ValueError, match="ledger"):
        label_of_run(tmp_path / "run")


def test_a_generator_is_not_taken_for_another(tmp_path):
    run(tmp_path / "run", generator="wgan-gp", steps=6)
    edit(tmp_path / "run", "run.json", generator="papers-wgan", plan__clip_norm=1.0, plan__noise_multiplier=20.0)
    with pytest.raises(ValueError, match="another generator"):
        label_of_run(tmp_path / "run")


def test_a_moved_run_can_still_be_labelled(gan_run, tmp_path):
    folder, label = gan_run
    shutil.copytree(folder, tmp_path / "moved")
    assert dict(label.mechanism)["Ledger"] == "the run's own"
    hidden = folder.parent / "hidden"
    folder.rename(hidden)
    try:
        assert label_of_run(tmp_path / "moved").worst == label.worst
    finally:
        hidden.rename(folder)
