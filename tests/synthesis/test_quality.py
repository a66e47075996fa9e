"""The quality page, for the owner alone."""

from functools import partial

from tacita.synthesis import quality
from tests.synthesis.short_runs import run


def test_quality_is_measured_and_shown_to_the_owner_only(tmp_path, monkeypatch):
    quick = partial(quality.measure_utility, steps=5, sizes=(100, 200), learning_rates=(0.01, 0.1))
    monkeypatch.setattr(quality, "measure_utility", quick)
    label = run(tmp_path / "run", measure=True, epsilon=8.0, samples=300)
    names = [name for name, _ in label.readings.metrics]
    assert names[0] == "accuracy of a student"
    assert label.readings.audit[0].key == "membership"
    page = (tmp_path / "run" / "quality.html").read_text()
    assert "For the data" in page
    for word in ("Control: uniform noise", "not a guarantee", "nearer to", "Fréchet"):
        assert word in page
    assert "student" not in (tmp_path / "run" / "label.html").read_text()


def test_where_the_worst_case_leaves_no_outlier_any_number_may_be_released(embedding_run):
    _, label = embedding_run
    far = quality.outlier_control(lambda delta: 2.7)
    assert quality._how_many(far, label).startswith("As many as you like")
    near = quality.outlier_control(lambda delta: 1.5)
    assert quality._how_many(near, label) == near.sentence
