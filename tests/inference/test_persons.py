"""Fits whose unit is the person: each contributes the sum of their records' log likelihoods."""

import numpy as np
import pytest
import torch

from tacita._check import PrivacyError
from tacita.inference import coverage, fit, resume
from tacita.inference.fitting import label_of_run
from tests.inference.test_fitting import charged, middle, numbers, quick

PEOPLE = 60
COUNTS = np.where(np.arange(PEOPLE) < 20, 9, 2)  # a third come often
IDS = np.repeat(np.arange(PEOPLE), COUNTS)
Y = torch.from_numpy(np.where(IDS < 20, 2.0, -1.0) + 0.3 * np.random.default_rng(0).normal(size=len(IDS))).float()


def people(**options):
    given = {"person": IDS, "records_per_person": 9, "sample_rate": 0.5, "clip_norm": 30.0}
    return quick(middle, Y, **{**given, **options})


def test_the_posterior_is_that_of_all_records_and_not_of_peoples_means():
    result = people(records_per_person=3, steps=100, noise_multiplier=0.3, initial_scale=0.1, learning_rate=0.1)
    exact, of_means = float(Y.mean()), 1.0 * 2 / 6 - 1.0 * 4 / 6
    (row,) = result.summary()
    assert abs(exact - of_means) > 0.8
    assert row.mean == pytest.approx(exact, abs=0.3)


def test_everything_is_said_of_people(tmp_path):
    held = {"holdout": numbers(40), "holdout_person": np.arange(1000, 1020).repeat(2), "panel": 30}
    result = people(run_dir=tmp_path / "run", **held)
    label = label_of_run(tmp_path / "run")
    assert {g.unit for g in (label.worst, *label.readings.typical)} == {"person"}
    assert "ids-are-people" in {a.code for a in label.worst.assumptions}
    assert any("independent given the unknowns" in note for note in result.notes)
    shown = dict(label.mechanism)
    assert "at most 9" in shown["Records in a person's contribution"]
    assert "the sum is clipped" in shown["Records in a person's contribution"]
    assert str(PEOPLE) not in label.public().__str__()
    assert charged(tmp_path / "run" / "ledger.sqlite") == 20
    with pytest.raises(ValueError, match="pass person="):
        resume(tmp_path / "run", middle, Y)
    with pytest.raises(ValueError, match="protects people"):
        coverage(result, Y, worlds=2)


@pytest.mark.parametrize("method", ["final-samples", "plain"])
def test_methods_that_protect_no_person_refuse_ids(method):
    with pytest.raises(ValueError, match=f"does not go with method='{method}'"):
        fit(middle, Y, method=method, person=IDS, sample_rate=0.5)


def test_ids_must_fit():
    with pytest.raises(ValueError, match="needs records_per_person"):
        people(records_per_person=None)
    with pytest.raises(ValueError, match="pass person="):
        people(person=None)
    with pytest.raises(PrivacyError, match="both the training and the held-out"):
        people(holdout=numbers(2), holdout_person=[3, 1000], panel=2)
