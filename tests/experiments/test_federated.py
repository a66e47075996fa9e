"""The page on federations is what its script makes of the committed results; settings are what choices say."""

from experiments import rows
from experiments.federated_mnist import choose, page, settings
from experiments.papers.page import page as filled


def test_the_committed_page_is_made_of_the_committed_results():
    made = filled(page.TEXT.read_text(), ("federated_mnist",))
    assert made == page.PAGE.read_text(), "run `python -m experiments.federated_mnist.page`"


def test_the_best_candidate_is_taken_and_the_first_where_nothing_was_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "HERE", tmp_path)
    (tmp_path / settings.FOLDER).mkdir()
    name = "table 6.2 cnn 100 2"
    _, (first, second) = settings.tables()[name]
    assert settings.chosen(name).clip == first["clip"]
    for changes, accuracy in ((first, 80.0), (second, 90.0)):
        rows.append(settings.FOLDER, {"row": settings.candidate(name, changes), "accuracy": accuracy}, settings.CHOICES)
    assert settings.chosen(name).clip == second["clip"]
    assert settings.chosen("table 6.2 cnn 100 8").clip == second["clip"]  # the larger epsilon takes the same


def test_candidates_are_scored_on_training_images_only(monkeypatch, tmp_path):
    seen = {}

    def started(setting, seed, *, choosing):
        seen[setting.clip] = choosing
        return None, None, None

    monkeypatch.setattr(rows, "HERE", tmp_path)
    (tmp_path / settings.FOLDER).mkdir()
    monkeypatch.setattr(choose, "started", started)
    monkeypatch.setattr(choose, "trained", lambda made, data: [(1, 50.0)])
    choose.main(["table 6.2 cnn 100 2"])
    assert seen
    assert all(seen.values())
    assert len(rows.load(settings.FOLDER, settings.CHOICES)) == len(seen)
