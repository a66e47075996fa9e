"""From a recipe to a release: one owner, one label, what is resumed and what is kept."""

import json
from dataclasses import replace

import pytest

from tacita.label import Label
from tacita.ledger import Ledger
from tacita.synthesis import quality
from tacita.synthesis.jobs import restart, start
from tacita.synthesis.recipes import prepare
from tests.synthesis.short_runs import UNMEASURED, recipe, run


def test_public_label_and_released_files_are_there_and_the_folder_is_the_owners(embedding_run):
    folder, label = embedding_run
    assert Label.from_dict(json.loads((folder / "guarantee.json").read_text())) == label
    for name in ("label.html", "label-owner.html", "inspect.html", "run.json"):
        assert (folder / name).is_file()
    assert folder.stat().st_mode & 0o077 == 0
    assert "1437" not in (folder / "label.html").read_text()


def test_b1_the_public_label_is_the_same_without_one_record(tmp_path, monkeypatch):
    pages = []
    for name in ("with", "without"):
        task = prepare(recipe(epsilon=2.0))
        if name == "without":
            fewer = tuple(t[1:] for t in task.train)
            monkeypatch.setattr("tacita.synthesis.jobs.prepare", lambda r, f=fewer, t=task: _with_train(t, f))
        run(tmp_path / name, epsilon=2.0)
        pages.append((tmp_path / name / "label.html").read_bytes())
    assert pages[0] == pages[1]


def _with_train(task, train):
    return replace(task, train=train)


def test_a_budget_that_is_used_up_refuses_before_anything_is_released(tmp_path):
    with Ledger.create(tmp_path / "shared.sqlite", epsilon=3.0, delta=1e-5):
        pass
    run(tmp_path / "first", epsilon=2.0, ledger=str(tmp_path / "shared.sqlite"))
    with pytest.raises(ValueError, match="budget"):
        run(tmp_path / "second", epsilon=2.0, seed=2, ledger=str(tmp_path / "shared.sqlite"))
    assert not (tmp_path / "second" / "released").exists()


def test_a_release_that_was_refused_cannot_be_had_from_another_place(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Ledger.create(tmp_path / "a" / "shared.sqlite", epsilon=0.01, delta=1e-5):
        pass
    monkeypatch.chdir(tmp_path / "a")
    with pytest.raises(ValueError, match="budget"):
        run(tmp_path / "run", epsilon=5.0, ledger="shared.sqlite")
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(ValueError, match="budget"):
        restart(tmp_path / "run").run(quality=False)
    assert not (tmp_path / "b" / "shared.sqlite").exists()


def test_too_few_records_to_measure_end_with_the_same_label_and_a_line_without_their_number(tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "measure_utility", lambda *_, **__: None)  # slow, and it measures nine records too
    told, pages = [], []
    for held in (9, 10):
        task = prepare(recipe(epsilon=2.0))
        few = replace(task, train=tuple(t[:99] for t in task.train), held=tuple(t[:held] for t in task.held))
        monkeypatch.setattr("tacita.synthesis.jobs.prepare", lambda _, t=few: t)
        folder = tmp_path / str(held)
        job = start(recipe(epsilon=2.0), folder)
        label = job.run(lambda step, _, doing: told.append(doing), quality=held == 9)
        assert not (folder / "quality.html").exists()
        assert label == Label.from_dict(json.loads((folder / "guarantee.json").read_text()))
        pages.append((folder / "label.html").read_bytes())
    assert pages[0] == pages[1]
    assert sum(said.startswith(UNMEASURED) for said in told) == 1
    why = (tmp_path / "9" / "quality.txt").read_text()
    assert "held_out must hold at least 10 records" in why
    assert "9" not in why
