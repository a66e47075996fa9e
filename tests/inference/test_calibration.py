"""Coverage by simulation: right where the answer is known, told on the label, and for the owner alone."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from tacita import runs
from tacita.inference import coverage, fit
from tacita.inference.calibration import Coverage, _responses, _simulated, _stretch
from tacita.inference.fitting import label_of_run
from tacita.inference.labels import OWNER
from tacita.inference.separation import separate


def line(x, y):
    slope = pyro.sample("slope", dist.Normal(0.0, 3.0))
    offset = pyro.sample("offset", dist.Normal(0.0, 3.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(slope * x + offset, 1.0), obs=y)


def records(size=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, generator=generator) * 2 - 1
    return x, 1.5 * x + 0.5 + torch.randn(size, generator=generator)


FIT = {"steps": 60, "sample_rate": 0.5, "learning_rate": 0.2, "clip_norm": 4.0, "seed": 1}


def test_responses_are_simulated_at_the_truth_and_covariates_stay(rng):
    x, y = records(4000)
    made = separate(line, (x, y))
    assert _responses(made, (x, y)) == {"y": 1}
    truth = {"slope": torch.tensor(-2.0), "offset": torch.tensor(3.0)}
    same, fresh = _simulated(made, (x, y), truth, {"y": 1}, 7)
    assert torch.equal(same, x)
    slope, offset = np.polyfit(x.numpy(), fresh.numpy(), 1)
    assert (slope, offset) == (pytest.approx(-2.0, abs=0.1), pytest.approx(3.0, abs=0.06))
    assert np.std((fresh - (-2.0 * x + 3.0)).numpy()) == pytest.approx(1.0, abs=0.05)
    assert not torch.equal(fresh, _simulated(made, (x, y), truth, {"y": 1}, 8)[1])


@pytest.mark.slow
@pytest.mark.stat
def test_a_fit_whose_intervals_are_right_is_found_so_and_narrow_ones_are_told():
    x, y = records()
    result = fit(line, {"x": x, "y": y}, method="plain", **FIT)
    found = coverage(result, {"x": x, "y": y}, worlds=20, seed=2)
    assert found.share > 0.85
    assert not found.short
    narrow = Coverage(level=0.95, share=0.7, error=0.02, widen=1.9, sites=(("slope", 0.7),), worlds=40)
    assert narrow.short
    assert "stretch them by a factor of 1.90" in str(narrow)
    assert "slope: 70%" in str(narrow)


def test_what_was_found_is_on_the_owners_label_and_not_on_the_public_page(tmp_path):
    x, y = records(60)
    result = fit(line, (x, y), noise_multiplier=3.0, panel=0, run_dir=tmp_path / "run", **{**FIT, "steps": 10})
    before = (tmp_path / "run" / "label.html").read_text()
    found = coverage(result, (x, y), worlds=2, seed=3)
    kept = runs.read_json(tmp_path / "run", OWNER)["coverage"]
    assert kept["share"] == found.share
    label = label_of_run(tmp_path / "run")
    assert any("In simulations, 95% intervals contained" in check.text for check in label.readings.checks)
    assert (tmp_path / "run" / "label.html").read_text() == before
    assert "In simulations" in (tmp_path / "run" / "label-owner.html").read_text()
    runs.write_json(tmp_path / "run", OWNER, {"coverage": {**kept, "share": 0.6, "error": 0.01, "widen": 2.5}})
    (check,) = (c for c in label_of_run(tmp_path / "run").readings.checks if "In simulations" in c.text)
    assert check.state == "warning"
    assert "too narrow by a factor of 2.50" in check.text


@pytest.mark.parametrize(("clip", "least"), [(0.05, 0.9), (1e3, 0.0)])
def test_the_owner_is_told_how_many_records_were_clipped(clip, least, tmp_path):
    few = {**FIT, "steps": 12, "clip_norm": clip}
    result = fit(line, records(60), noise_multiplier=1.0, panel=0, run_dir=tmp_path / "run", **few)
    assert runs.read_json(tmp_path / "run", OWNER)["clipped"] >= least
    told = [check for check in result.label().readings.checks if "were clipped" in check.text]
    assert [check.state for check in told] == ["warning"] * (least > 0)
    assert label_of_run(tmp_path / "run") == result.label()


def shifted(x, y):
    slope = pyro.sample("slope", dist.Normal(0.0, 3.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(slope * x, 1.0), obs=y - 0.5)


def test_what_cannot_be_simulated_is_refused():
    data = records(40)
    result = fit(shifted, data, method="plain", **FIT)
    with pytest.raises(ValueError, match="'y' observes something other than"):
        coverage(result, data)
    result = fit(line, data, method="plain", **FIT)
    for worlds in (0, 1, 2.5):
        with pytest.raises(ValueError, match="worlds must be"):
            coverage(result, data, worlds=worlds)
    with pytest.raises(ValueError, match="level must be"):
        coverage(result, data, level=1.5)
    assert math.isinf(result.guarantee.epsilon)


def test_numbers_that_cannot_vary_and_derived_ones_count_for_nothing():
    def model(x):
        root = pyro.sample("root", dist.LKJCholesky(2, 1.0))
        pyro.deterministic("twice", 2 * root)
        with pyro.plate("records", len(x)):
            pyro.sample("x", dist.MultivariateNormal(torch.zeros(2), scale_tril=root), obs=x)

    x = torch.randn(60, 2)
    result = fit(model, x, noise_multiplier=0.1, panel=0, **{**FIT, "steps": 20})
    far = {"root": torch.tensor([[1.0, 0.0], [0.9999, math.sqrt(1 - 0.9999**2)]])}
    stretch = _stretch(result, far, 0.95)
    assert stretch.isnan().sum() == 2
    assert (stretch > 1.0).sum() == 2
    assert 0.0 <= coverage(result, x, worlds=2, seed=1).share <= 1.0
