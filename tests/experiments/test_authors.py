"""The authors' form of DP-SGD is what their notebooks do, done quicker."""

import math
from dataclasses import replace

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import nn
from torch.nn.functional import cross_entropy

from experiments.authors import coded

MECHANISM = replace(coded.CODED["mnist"], batch=12, updated=1.0, epochs=2)


def records(count):
    torch.manual_seed(0)
    return torch.randn(count, 5), torch.randint(0, 3, (count,))


def by_passing_over_the_batch(model, batch, clip_norm):
    """Return what the notebook takes a backward pass for each record for."""
    losses, rows = cross_entropy(model(batch[0]), batch[1], reduction="none"), []
    for j in range(coded.FOLLOWED):
        mean = losses[np.delete(range(len(losses)), j)].mean()
        found = torch.autograd.grad(mean, list(model.parameters()), retain_graph=True)
        row = torch.cat([part.flatten() for part in found])
        rows.append(row / max(1.0, float(row.norm()) / clip_norm))
    return torch.stack(rows).detach().numpy()


def test_gradients_without_one_record_are_those_of_the_notebook():
    batch = records(12)
    model = nn.Sequential(nn.Linear(5, 4), nn.SELU(), nn.Linear(4, 3))
    mean = coded.mean_gradient(model, batch)
    own = torch.cat(list(coded.record_gradients(model, (batch[0][:8], batch[1][:8]))))
    for clip_norm in (0.1, math.inf):
        found = coded.without_one(mean, own, replace(MECHANISM, clip_norm=clip_norm))
        expected = by_passing_over_the_batch(model, batch, clip_norm)
        np.testing.assert_allclose(pdist(found), pdist(expected), rtol=1e-4, atol=1e-7)


def test_passes_over_the_batch_do_the_same_where_records_are_mixed():
    batch, mechanism = records(12), replace(MECHANISM, clip_norm=0.1)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    expected = by_passing_over_the_batch(model, batch, 0.1)
    np.testing.assert_allclose(coded.by_passes(model, batch, mechanism), expected, rtol=1e-4, atol=1e-7)


def test_a_training_shows_every_step_and_changes_only_the_weights_that_were_drawn():
    data, model = records(30), nn.Linear(5, 3)
    seen = coded.train(model, MECHANISM, data, data, seed=0)
    assert (seen.distances.shape, seen.records.shape, seen.batches.shape) == ((4, 28), (4, 8), (4,))
    assert [epoch for epoch, _ in seen.accuracies] == [1, 2]
    before = [p.detach().clone() for p in model.parameters()]
    coded.train(model, replace(MECHANISM, updated=0.0), data, data, seed=0)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
