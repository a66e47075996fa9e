"""A generator without a guarantee says so."""

import math

import pytest

from tests.synthesis.short_runs import run


@pytest.mark.parametrize("dp_critic", [False, True])
def test_a_plain_gan_promises_nothing(tmp_path, dp_critic):
    label = run(tmp_path / "run", generator="wgan-gp", steps=6, dp_critic=dp_critic)
    assert math.isinf(label.worst.epsilon)
    assert "Nothing is promised" in str(label)
    assert any("regulariser" in text for text in label.declared) == dp_critic
