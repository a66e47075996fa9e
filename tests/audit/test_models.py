"""Evaluation mode is a matter of a moment."""

import torch
from torch import nn

from tacita.audit.models import minimise, outputs


def test_outputs_are_in_evaluation_mode_and_every_part_gets_its_mode_back():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9))
    model[0].eval()
    inputs = torch.rand(7, 3)
    found = outputs(model, inputs, batch_size=2)
    assert torch.equal(found, model[0](inputs))
    assert not found.requires_grad
    assert [part.training for part in model.modules()] == [True, False, True]


def test_steps_are_taken_one_by_one():
    value = nn.Parameter(torch.tensor(4.0))
    steps = minimise(torch.optim.SGD([value], lr=0.25), lambda: value.square(), 3)
    assert [(step, value.item()) for step in steps] == [(1, 2.0), (2, 1.0), (3, 0.5)]
