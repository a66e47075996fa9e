"""A module seen as its loss on a whole record."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from tacita._check import PrivacyError
from tacita.training.adapters import as_loss, steps_in_epoch


def squares(module, batch):
    return module(batch["x"]).square().sum()


def test_a_module_and_its_loss_share_parameters_names_and_what_stands_in_for_them():
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))
    module[2].weight = nn.Parameter(module[0].weight.detach().T.contiguous())
    seen, x = as_loss(module, squares), torch.randn(1, 3)
    assert list(seen.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(seen.parameters(), module.parameters(), strict=True))
    zeros = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    assert functional_call(seen, zeros, kwargs={"x": x}) == 0.0
    assert seen(x=x) == module(x).square().sum() != 0.0  # all as it was


def test_hooks_of_the_module_run_once():
    module, runs = nn.Linear(3, 1), []
    module.register_forward_hook(lambda *_: runs.append(1))
    as_loss(module, squares)(x=torch.ones(1, 3))
    assert runs == [1]


def test_a_copy_has_parameters_and_a_loss_of_its_own():
    module = nn.Linear(3, 1)
    seen, x = as_loss(module, squares), torch.randn(1, 3)
    made, before = copy.deepcopy(seen), seen(x=x).item()
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert seen(x=x).item() == 0.0
    assert made(x=x).item() == before
    zeros = {name: torch.zeros_like(p) for name, p in made.named_parameters()}
    assert functional_call(made, zeros, kwargs={"x": x}) == 0.0


def test_layers_that_mix_records_are_refused_also_where_they_are_the_module():
    with pytest.raises(PrivacyError, match="BatchNorm1d at 'the top'"):
        as_loss(nn.BatchNorm1d(3), squares)


def test_an_epoch_takes_as_many_records_as_there_are_nominally():
    assert [steps_in_epoch(rate) for rate in (1.0, 0.5, 30 / 100, 0.1, 1 / 3)] == [1, 2, 4, 10, 3]
