"""Trainings for the tests of this folder."""

import os

import torch
from torch import nn

from tacita.training import PrivateTraining

FALSE_ALARM = 1e-6


THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"  # set by `make test-all`
loss_fn = nn.functional.cross_entropy


def train(data, model=None, *, lr=0.1, optimizer=None, **settings):
    model = model if model is not None else nn.Linear(4, 2)
    optimizer = optimizer if optimizer is not None else torch.optim.SGD(model.parameters(), lr=lr)
    sizes = {"batch_size": 30, **({} if "sample_rate" in settings else {"nominal_size": 300})}
    settings = {**sizes, "steps": 10, "noise_multiplier": 1.0, "panel": 16, **settings}
    return PrivateTraining(model, loss_fn, data, optimizer=optimizer, **settings)


def start(where, blobs, **settings):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    settings = {"run_dir": where, "optimizer": optimizer, "steps": 40, **settings}
    return train(blobs, model, **settings), model


def again(where, blobs, **settings):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return PrivateTraining.resume(where, model, loss_fn, blobs, optimizer=optimizer, **settings), model
