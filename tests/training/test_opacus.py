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


def epoch(engine, loader):
    model, optimizer, _ = engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_less_noise_than_at_the_start_is_refused(engine):
    """As schedulers of Opacus lower it: the accountant would go on with the first one, and understate epsilon."""
    _, optimizer, loader = engine
    accountant = follow(optimizer, sample_rate=0.1, steps=20)
    optimizer.noise_multiplier *= 0.9
    with pytest.raises(PrivacyError, match=r"less noise than at the start: 0\.9 in the place of 1"):
        epoch(engine, loader)
    assert accountant.taken == 0


def test_a_batch_in_several_pieces_is_one_step(engine):
    """As BatchMemoryManager cuts it."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    _, optimizer, loader = engine
    accountant = follow(optimizer, sample_rate=0.1, steps=10)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer) as pieces:
        epoch(engine, pieces)
    assert accountant.taken == 10


def test_an_adaptive_clip_norm_is_refused(engine):
    model, _, _ = engine
    for parameter in model.parameters():
        parameter.summed_grad = None
    settings = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "unclipped_num_std": 5.0}
    optimizer = opacus.optimizers.AdaClipDPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        max_clipbound=1.0,
        min_clipbound=0.1,
        expected_batch_size=30,
        **settings,
    )
    with pytest.raises(PrivacyError, match="how many records were clipped"):
        follow(optimizer, sample_rate=0.1, steps=20)
