"""One release, charged once, kept, and never repeated."""

import dataclasses

import numpy as np
import pytest
import torch

from tacita import runs
from tacita._progress import quiet
from tacita.accounting import gaussian_release
from tacita.ledger import Ledger
from tacita.synthesis.jobs import restart, start
from tacita.synthesis.labels import label_of_run
from tests.synthesis.short_runs import edit, recipe, run


def test_the_embedding_is_one_gaussian_release_within_its_target(embedding_run):
    folder, label = embedding_run
    noise = runs.read_json(folder, "run.json")["plan"]["noise_multiplier"]
    assert label.worst.epsilon == gaussian_release(noise_multiplier=noise, delta=1e-5).epsilon <= 2.0
    assert label.worst.publishable
    assert label.readings.typical[0].epsilon <= label.worst.epsilon


def test_the_release_is_charged_once(embedding_run):
    folder, _ = embedding_run
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        (name,) = ledger.runs()
        assert ledger.charged(name) == 1


def test_a_charged_release_that_was_lost_is_not_repeated(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None), tmp_path / "run")
    maker = job.maker
    maker._keep = lambda step: (_ for _ in ()).throw(OSError("no space left"))
    with pytest.raises(OSError, match="no space"):
        maker.run(quiet)
    with pytest.raises(ValueError, match="in use"):  # L13: one owner of a run folder
        restart(tmp_path / "run")
    del job  # the process has died
    with pytest.raises(ValueError, match="charged, and lost"):
        restart(tmp_path / "run").run(quality=False)


def test_a_killed_fit_is_begun_again_from_the_kept_release(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None), tmp_path / "run")
    job.maker._release(quiet)
    sums = job.maker._released.sums.clone()
    del job  # the process was killed
    again = restart(tmp_path / "run")
    assert torch.equal(again.maker._released.sums, sums)
    assert again.run(quality=False).worst.epsilon <= 2.0


def test_a_deleted_ledger_is_not_made_anew(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None), tmp_path / "run")
    job.maker._keep = lambda step: (_ for _ in ()).throw(OSError("no space left"))
    with pytest.raises(OSError, match="no space"):
        job.maker.run(quiet)
    (tmp_path / "run" / "ledger.sqlite").unlink()
    with pytest.raises((OSError, ValueError), match=r"ledger"):
        restart(tmp_path / "run").run(quality=False)


def test_another_runs_id_and_plan_are_refused(tmp_path):
    shared = str(tmp_path / "shared.sqlite")
    run(tmp_path / "dear", epsilon=8.0, ledger=shared)
    run(tmp_path / "cheap", epsilon=0.1, ledger=shared, seed=5)
    other = runs.read_json(tmp_path / "cheap", "run.json")
    edit(tmp_path / "dear", "run.json", id=other["id"], plan=other["plan"])
    with pytest.raises(ValueError, match="another run"):
        label_of_run(tmp_path / "dear")


def test_an_exact_release_is_on_the_grid_and_its_label_says_so(tmp_path, embedding_run):
    job = start(recipe(epsilon=2.0, seed=None, noise="exact"), tmp_path / "run")
    job.maker._release(quiet)
    steps = job.maker._released.sums / job.maker.plan.grid.step
    assert torch.equal(steps, steps.round())
    label, (_, plain) = label_of_run(tmp_path / "run"), embedding_run
    assert label.worst.epsilon == plain.worst.epsilon
    assert not any("loating" in line for line in label.not_hardened)
    assert {"exact-gaussian", "whole-numbers", "others-still"} <= {a.code for a in label.worst.assumptions}


def test_exact_noise_is_for_the_mean_embedding():
    with pytest.raises(ValueError, match="noise is for mean-embedding"):
        recipe(generator="private-wgan", epsilon=2.0, noise="exact")
    with pytest.raises(ValueError, match="1/32"):
        start(recipe(noise_multiplier=0.02, epsilon=None, noise="exact"), "nowhere")


def test_exact_noise_is_refused_where_a_person_has_several_records(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None, noise="exact"), tmp_path / "run")
    several = np.zeros(len(job.maker.task.train[0]), dtype=np.int64)
    job.maker.task = dataclasses.replace(job.maker.task, persons=(several, several))
    for call in (job.maker._begin, job.maker._summed):
        with pytest.raises(ValueError, match="one record is one person"):
            call()
