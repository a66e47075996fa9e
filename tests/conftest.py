"""Shared fixtures. Randomness comes from the `rng` fixture, fixed unless `--seed` says otherwise."""

import os

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("quick", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the rng fixture")


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))
