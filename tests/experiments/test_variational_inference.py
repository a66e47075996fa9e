"""Figure 5.8's own fits do what their pages say."""

import math

import numpy as np
import pytest
import torch

from experiments import rows
from experiments.variational_inference import clipped_guide, page
from experiments.variational_inference.samples import Sampled, mean_epsilon
from tacita.accounting import gaussian_release


def logistic(records=120, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(records, 3, generator=rng) * 2 - 1
    y = (x[:, 0] + 0.3 * torch.randn(records, generator=rng) > 0).float()
    return torch.cat([x, torch.ones(records, 1)], dim=1), y


def sampled(**changes):
    given = {"steps": 30, "sample_rate": 0.3, "clip_norm": 0.5, "prior": 3.0, "square": 4.0, "size": 120}
    return Sampled(**{**given, "dimension": 4, "seed": 1, **changes}).within(2.0, 1e-5)


def test_replays_are_trainings_without_the_record():
    (x, y), fit = logistic(), sampled()
    moved, (full, _) = fit.moved(x, y), fit.train(x, y)
    for record in (0, 57, 119):
        without = x.clone()
        without[record] = 0.0  # contributes nothing
        assert moved[record] == pytest.approx(float((fit.train(without, y)[0] - full).norm()), rel=1e-3)


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 5.0])
def test_no_record_moves_the_means_by_more_than_its_participations(clip_norm):
    x, y = logistic()
    x[:60], y[:60] = torch.sign(x[:60]), 1.0 - y[:60]  # at the edge of the public bounds, and wrong
    fit = sampled(clip_norm=clip_norm)
    times = torch.bincount(torch.cat([batch for _, batch in fit.public]), minlength=fit.size).numpy()
    assert (fit.moved(x, y) <= times * fit.unit * (1 + 1e-4) + 1e-7).all()


def test_the_scale_is_that_of_the_worst_case():
    fit = sampled()
    most = np.bincount(np.concatenate([batch.numpy() for _, batch in fit.public])).max()
    distance = math.sqrt(fit.draws) * most * fit.unit / fit.scale
    assert gaussian_release(noise_multiplier=1 / distance, delta=1e-5).epsilon == pytest.approx(2.0, abs=1e-3)
    moved = np.full(5, most * fit.unit)
    assert mean_epsilon(moved, scale=fit.scale, draws=fit.draws, delta=1e-5) == pytest.approx(2.0, abs=1e-3)


def test_dpvi_moves_as_adam_does_where_noise_is_next_to_nothing():
    x, y = logistic(4000)
    given = {"prior": 3.0, "steps": 4, "clip_norm": 3.0, "learning_rate": 0.1, "seed": 3}
    fit = clipped_guide.fit(x[:, :3], y, epsilon=30.0, delta=1e-5, sample_rate=1.0, deltas=(1e-5,), **given)
    model, rng = clipped_guide.GuideLoss(4, prior=3.0, size=4000), np.random.default_rng(3)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    ends = []
    for step in range(4):
        model.noise.copy_(torch.from_numpy(rng.standard_normal(4)))
        optimizer.param_groups[0]["lr"] = 0.1 * (0.55 + 0.45 * math.cos(math.pi * step / 4))
        optimizer.zero_grad()
        model(x[:, :3], y).backward()
        optimizer.step()
        ends.append((model.location.detach().clone(), model.log_scale.detach().clone()))
    assert torch.allclose(fit.location, (ends[2][0] + ends[3][0]) / 2, atol=0.03)
    assert torch.allclose(fit.scale.log(), (ends[2][1] + ends[3][1]) / 2, atol=0.06)
    assert fit.worst <= 30.0
    assert set(fit.papers) == {"bdp 1e-05", "dp"}


def test_tables_can_be_made_while_rows_are_missing(monkeypatch):
    monkeypatch.setattr(rows, "load", lambda folder: {})
    assert all(isinstance(make(), str) for make in page.TABLES.values())


def test_the_table_of_results_is_that_of_the_committed_rows():
    assert page.results_page(page.PAGE.read_text()) == page.PAGE.read_text()
