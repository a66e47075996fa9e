"""Settings in groups: what single keywords reach, and which plans are accepted."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tacita.training import Books, Follow, Plan, PrivateTraining
from tests.training.trainings import loss_fn

SIZES = {"batch_size": 30, "nominal_size": 300, "steps": 4, "noise_multiplier": 1.0}


def train(data, **settings):
    model = nn.Linear(4, 2)
    return PrivateTraining(model, loss_fn, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **settings)


def test_groups_say_the_same_as_single_keywords(blobs):
    flat = train(blobs, **SIZES, panel=8, seed=3, name="the same").run().label()
    grouped = train(
        blobs, plan=Plan.declare(**SIZES), follow=Follow(panel=8), books=Books(seed=3, name="the same")
    ).run()
    assert grouped.label().public() == flat.public()


@pytest.mark.parametrize(
    "plan",
    [
        replace(Plan.declare(**SIZES), stops=((2, 1.0), (4, 1.0))),  # twice delta
        Plan(clip_norm=1.0, noise_multiplier=float("nan"), sample_rate=0.1, steps=4, batch_size=30.0),
        Plan(clip_norm=1.0, noise_multiplier=1.0, sample_rate=0.1, steps=4, batch_size=30.0),  # where is 0.1 from?
    ],
)
def test_a_plan_that_was_not_declared_is_refused(blobs, plan):
    with pytest.raises(ValueError, match=r"Plan\.declare"):
        train(blobs, plan=plan)


def test_a_setting_is_given_once(blobs):
    with pytest.raises(TypeError, match="not both"):
        train(blobs, plan=Plan.declare(**SIZES), steps=5)
    with pytest.raises(TypeError, match="not both"):
        train(blobs, **SIZES, follow=Follow(), panel=3)
    with pytest.raises(TypeError, match="must be a Books"):
        train(blobs, **SIZES, books="run")
