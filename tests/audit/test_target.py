"""What an audit takes from a run: it can be made again, and followed records are compared fairly."""

import numpy as np
import pytest
import torch
from torch import nn

from tacita import BayesianAccountant
from tacita.audit.target import _record_epsilons
from tacita.data import load
from tacita.training import PrivateTraining

DELTA = 1e-5
loss_fn = nn.functional.cross_entropy


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return torch.from_numpy(data.inputs), torch.from_numpy(data.targets)


def test_equal_records_get_equal_epsilons_inside_and_outside():
    accountants = {}
    for name, norms in (("training", np.ones(64)), ("held-out", np.append(np.ones(63), 0.9))):
        accountants[name] = BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0)
        accountants[name].step(norms, steps=20)
    inside, outside = _record_epsilons(accountants, DELTA)
    assert set(inside) == set(outside[:63])


def test_a_run_is_made_again_as_it_began(digits):
    x, y = digits
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    first = model[1].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 / (1 + step))
    private = PrivateTraining(
        model, loss_fn, (x[:200], y[:200]), optimizer=optimizer, scheduler=scheduler, sample_rate=0.1, batch_size=20,
        steps=5, noise_multiplier=1.0, panel=0,
    )  # fmt: skip
    begun = optimizer.param_groups[0]["lr"]
    private.run()
    again, fresh, schedule = private.remake()
    assert torch.equal(again[1].weight, first)
    assert not torch.equal(model[1].weight, first)
    assert fresh.param_groups[0]["lr"] == begun != optimizer.param_groups[0]["lr"]
    assert not fresh.state
    assert schedule.last_epoch == 0
    assert schedule.optimizer is fresh
