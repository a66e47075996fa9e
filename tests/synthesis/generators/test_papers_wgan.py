"""The thesis's clipping, with its true worst case."""

import pytest

from tacita.synthesis.jobs import restart
from tacita.synthesis.labels import label_of_run
from tests.synthesis.short_runs import edit, run


def test_the_papers_mode_prints_its_true_worst_case(tmp_path):
    label = run(tmp_path / "run", generator="papers-wgan", steps=6)
    assert label.worst.epsilon > 1e4
    assert dict(label.mechanism)["Sensitivity"].startswith("2C")


def test_a_papers_label_is_that_of_what_was_run(tmp_path):
    run(tmp_path / "run", generator="papers-wgan", steps=6)
    edit(tmp_path / "run", "run.json", plan__noise_multiplier=20.0)
    with pytest.raises(ValueError, match="not the one"):
        label_of_run(tmp_path / "run")
    edit(tmp_path / "run", "run.json", recipe__noise_multiplier=20.0)
    with pytest.raises(ValueError, match="not the one"):
        restart(tmp_path / "run")
