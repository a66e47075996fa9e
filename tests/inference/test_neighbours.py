"""Nothing that a fit shows to the public depends on one record, nor on how many there are."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from tacita.inference import fit


def model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("people", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("method", ["gradients", pytest.param("final-samples", marks=pytest.mark.slow)])
def test_b1_public_pages_of_fits_are_identical_for_neighbours(method, tmp_path):
    data = torch.from_numpy(np.random.default_rng(0).normal(1.0, 1.0, 61)).float()
    options = {"noise_multiplier": 4.0, "steps": 3, "panel": 10}
    if method == "final-samples":
        options = {"method": method, "samples": 3, "steps": 3, "panel": 4}
    pages = set()
    for size in (59, 61):
        run = tmp_path / str(size)
        label = fit(model, data[:size], name="a fit", sample_rate=0.2, run_dir=run, **options).label()
        pages.add((run / "label.html").read_bytes() + str(label.public().to_dict()).encode())
    assert len(pages) == 1
