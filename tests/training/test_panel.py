"""Followed records in a checkpoint."""

import numpy as np
import pytest
import torch

from tacita import BayesianAccountant, PrivacyError
from tacita.training.panel import Panel


def measured(steps):
    panel = Panel(np.arange(5), BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, steps=steps))
    panel.measure(np.array([0.0, 0.1, 0.5, 1.0, 3.0]), period=steps // 2)
    for _ in range(steps // 2):
        panel.tick()
    return panel


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.int64])  # earlier checkpoints held int32
def test_a_checkpoint_of_any_whole_numbers_is_read_alike(kind):
    panel = measured(400)
    tensors, document = panel.state()
    assert tensors["counts"].dtype == torch.int16
    again = Panel.restore({**tensors, "counts": tensors["counts"].to(kind)}, document, budget=None)
    assert again.counts().dtype == np.int16
    assert np.array_equal(again.counts(), panel.counts())
    assert np.array_equal(again.accountant.epsilons(delta=1e-5), panel.accountant.epsilons(delta=1e-5))


def test_a_checkpoint_whose_steps_do_not_add_up_is_refused():
    tensors, document = measured(400).state()
    for wrong in (tensors["counts"].to(torch.int8), tensors["counts"] // 2, tensors["counts"].float()):
        with pytest.raises(PrivacyError, match="state is damaged"):
            Panel.restore({**tensors, "counts": wrong}, document, budget=None)


def test_a_checkpoint_before_the_first_step_is_small_and_read():
    panel = Panel(np.arange(5), BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, steps=400))
    tensors, document = panel.state()
    assert tensors["counts"].dtype == torch.int8
    assert Panel.restore(tensors, document, budget=None).accountant.taken == 0
