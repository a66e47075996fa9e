"""Features that no data went into: each image on its own, and useful for a private linear model."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tacita import PrivateTraining
from tacita.features import GradientHistograms, strokes


@pytest.fixture(scope="module")
def features():
    return GradientHistograms((1, 8, 8))


def test_strokes_are_images_and_depend_on_their_generator_alone():
    first, again, other = (strokes(20, height=8, width=10, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.shape == (20, 8, 10)
    assert first.min() >= 0.0
    assert 0.9 < first.max() <= 1.0
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_vertical_edge_falls_into_the_first_direction(features):
    image = torch.zeros(1, 1, 8, 8)
    image[..., 4:] = 1.0
    found = features.histograms(image).reshape(9, 8, 8)[:, 2:6, 4]
    assert found[0].min() > 0.05
    assert found[1:8].abs().max() < 1e-6


def test_each_image_has_its_own_features(features):
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    changed = images.clone()
    changed[3] = 0.0
    others = [0, 1, 2, 4, 5]
    torch.testing.assert_close(features(images)[others], features(changed)[others], rtol=0.0, atol=0.0)
    assert torch.isfinite(features(changed)).all()


def test_histograms_have_length_one_and_typical_features_the_scale_asked_for(features):
    drawn = strokes(300, height=8, width=8, rng=np.random.default_rng(5))
    images = torch.from_numpy(drawn).float()[:, None]
    torch.testing.assert_close(features.histograms(images).norm(dim=1), torch.ones(300))
    assert features(images).norm(dim=1).median() == pytest.approx(2.0, rel=0.05)


def test_they_are_built_alike_every_time(features):
    torch.testing.assert_close(GradientHistograms((1, 8, 8)).basis, features.basis)


def test_a_private_model_learns_on_them(features):
    x = torch.from_numpy(strokes(60, height=8, width=8, rng=np.random.default_rng(2))).float()[:, None]
    model = nn.Sequential(features, nn.Linear(features.features, 2))
    private = PrivateTraining(
        model,
        functional.cross_entropy,
        (x, (x.mean((1, 2, 3)) > x.mean()).long()),
        batch_size=30,
        nominal_size=60,
        steps=3,
        noise_multiplier=1.0,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        panel=0,
        seed=1,
    )
    before = model[1].weight.detach().clone()
    private.run()
    assert not torch.equal(model[1].weight, before)
    torch.testing.assert_close(features.basis, GradientHistograms((1, 8, 8)).basis)


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (1, 2, 8)])
def test_shapes_that_are_no_grey_images_are_refused(shape):
    with pytest.raises(ValueError, match="shape must be"):
        GradientHistograms(shape)


def test_a_window_without_a_middle_is_refused():
    with pytest.raises(ValueError, match="window must be odd"):
        GradientHistograms((1, 8, 8), window=2)
