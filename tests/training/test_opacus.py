"""The adapter for Opacus, against a loop over records and in a real Opacus run."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

opacus = pytest.importorskip("opacus")

from tacita._check import PrivacyError  # noqa: E402
from tacita.training.opacus import batch_norms, follow  # noqa: E402


@pytest.fixture
def engine(blobs):
    x, y = blobs
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=0.5
        )


def test_norms_are_those_of_single_records(engine, blobs):
    model, optimizer, _ = engine
    x, y = blobs[0][:6], blobs[1][:6]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.functional.cross_entropy(model(x), y).backward()
    expected = []
    for i in range(6):
        plain = nn.Linear(4, 2)
        plain.load_state_dict(model._module.state_dict())
        nn.functional.cross_entropy(plain(x[i : i + 1]), y[i : i + 1]).backward()
        expected.append(torch.cat([p.grad.flatten() for p in plain.parameters()]).norm().item() / 0.5)
    np.testing.assert_allclose(batch_norms(optimizer), np.minimum(expected, 1.0), rtol=1e-5)
    optimizer.zero_grad()
    with pytest.raises(PrivacyError, match=r"after loss\.backward"):
        batch_norms(optimizer)


def test_an_opacus_run_is_followed(engine):
    model, optimizer, loader = engine
    accountant = follow(optimizer, sample_rate=0.1, steps=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    assert accountant.taken == 20
    reading = accountant.guarantee(delta=1e-5, estimator="student")
    assert (reading.composition, reading.scope, reading.publishable) == ("hoelder", "reading", False)
    assert accountant.worst_case(delta=1e-5).epsilon > 0
