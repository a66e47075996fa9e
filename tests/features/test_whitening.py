"""Half-whitening by synthetic images: against a singular value decomposition, and without any data."""

import numpy as np
import pytest
import torch

from tacita.features import Mirrored, Whitened, silhouettes
from tacita.features.priors import PRIORS, drawn

SHAPE = (1, 6, 5)


def flat(images):
    return images.flatten(1) + 0.1


def squares(images):
    return images.square().flatten(1)[:, :7] + 0.1


@pytest.fixture(scope="module")
def features():
    return Whitened(flat, squares, prior="silhouettes", shape=SHAPE, directions=10)


def test_it_is_what_a_singular_value_decomposition_says(features):
    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def joined(images):
        return np.concatenate([unit(part(images).double().numpy()) for part in (flat, squares)], 1)

    sample = joined(drawn("silhouettes", SHAPE, 40))
    mean = sample.mean(0)
    _, spread, axes = np.linalg.svd(sample - mean, full_matrices=False)
    scale = np.append(np.sqrt(spread[10] / spread[:10]), np.ones(len(axes) - 10))
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)) + 0.01
    centred = joined(images) - mean
    inside = centred @ axes.T
    expected = unit(centred + (inside * (scale - 1)) @ axes)
    np.testing.assert_allclose(features(images).numpy(), expected, atol=1e-4)


def test_blocks_are_the_same_features_in_the_precision_asked_for(features):
    images = torch.rand(300, *SHAPE, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(features.blocks(images), features(images))
    half = features.blocks(images, torch.float16)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), features(images), rtol=1e-3, atol=1e-3)


def test_each_image_has_its_own_features_of_length_one(features):
    images = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(2))
    changed = images.clone()
    changed[3] = 0.0
    others = [0, 1, 2, 4]
    torch.testing.assert_close(features(images)[others], features(changed)[others], rtol=0.0, atol=1e-6)
    torch.testing.assert_close(features(changed).norm(dim=1), torch.ones(5))


def test_it_is_built_alike_every_time(features):
    again = Whitened(flat, squares, prior="silhouettes", shape=SHAPE, directions=10)
    torch.testing.assert_close(again.mean, features.mean, rtol=0.0, atol=0.0)
    torch.testing.assert_close(again.shrink, features.shrink, rtol=0.0, atol=0.0)


def test_mirror_images_have_the_same_features():
    images = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(3))
    mirrored = Mirrored(flat)
    torch.testing.assert_close(mirrored(images), mirrored(images.flip(-1)))
    torch.testing.assert_close(mirrored(images), (flat(images) + flat(images.flip(-1))) / 2)
    assert not torch.equal(flat(images), mirrored(images))


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_prior_gives_images_of_the_shape_asked_for(prior, channels):
    images = drawn(prior, (channels, 9, 12), 8)
    assert images.shape == (8, channels, 9, 12)
    assert images.min() >= 0.0
    assert images.max() <= 1.0
    assert (images.flatten(1).std(1) > 1e-3).float().mean() > 0.7
    assert torch.equal(images, drawn(prior, (channels, 9, 12), 8))


def test_silhouettes_are_dark_around_a_shape_and_depend_on_their_generator_alone():
    first, again, other = (silhouettes(60, height=20, width=16, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first[:, 8:12, 7:9].mean() > 5 * first[:, :2, :2].mean()


def test_an_unknown_prior_and_no_map_are_refused():
    with pytest.raises(ValueError, match="prior must be"):
        Whitened(flat, prior="photographs", shape=SHAPE, directions=2)
    with pytest.raises(ValueError, match="at least one map"):
        Whitened(prior="strokes", shape=SHAPE)
    with pytest.raises(ValueError, match="shape must be"):
        drawn("strokes", (2, 8, 8), 1)
