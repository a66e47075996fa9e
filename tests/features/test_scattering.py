"""Scattering features: filtering written out, each image on its own, any size, grey or colour."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate

from tacita.features import Scattering, dead_leaves

SHAPES = [(1, 8, 8), (1, 9, 14), (3, 11, 8)]


def public(shape, count=200):
    """A prior that is quick to draw."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def features(request):
    return Scattering(request.param, prior=public(request.param))


def images(features, count=4):
    return torch.rand(count, *features.shape, generator=torch.Generator().manual_seed(0))


def gabor(scale, angle):
    """A Morlet wavelet written out pixel by pixel, its envelope with unit integral."""
    width, reach = 0.8 * 2**scale, math.ceil(14 * 0.8 * 2**scale)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    a, b = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-(a**2 + b**2 / 4) / (2 * width**2)) / (2 * math.pi * width**2 * 2)
    wave = envelope * np.exp(1j * 0.75 * math.pi * a / 2**scale)
    return wave - envelope * wave.sum() / envelope.sum()


def moduli(padded, scale, step):
    """Filter around a torus with scipy, all angles, and keep every `step`-th pixel."""
    found = []
    for turn in range(8):
        kernel = gabor(scale, math.pi * turn / 8)[::-1, ::-1]
        parts = [correlate(padded, part, mode="wrap") for part in (kernel.real, kernel.imag)]
        found.append(np.hypot(*parts)[::step, ::step])
    return found


def average(padded, features, step):
    """Average under Gaussian windows, place by place."""
    y, x = (step * np.arange(size) for size in padded.shape)
    windows = [
        [np.exp(-0.5 * ((at - 4 - 4 * place) / 1.6) ** 2) for place in range(count)]
        for at, count in zip((y, x), features.places, strict=True)
    ]
    rows, columns = (np.array([w / w.sum() for w in side]) for side in windows)
    return rows @ padded @ columns.T


def test_maps_are_filtering_written_out(features):
    image = images(features, 2)
    raw = image[1, -1].double().numpy()  # the last colour's maps come last
    padded = np.pad(raw, [(4, 4 + size % 2) for size in raw.shape], mode="reflect")
    fine, coarse = moduli(padded, 0, 1), moduli(padded, 1, 2)
    expected = [average(padded, features, 1), *(average(m, features, 1) for m in fine)]
    expected += [average(m, features, 2) for m in coarse]
    expected += [average(again, features, 2) for m in fine for again in moduli(m, 1, 2)]
    np.testing.assert_allclose(features.maps(image)[1, -81:].numpy(), np.stack(expected), atol=2e-5)


def test_rows_have_length_one_and_depend_on_their_own_image(features):
    first = images(features, 6)
    changed = first.clone()
    changed[3] = 0.5
    others = [0, 1, 2, 4, 5]
    torch.testing.assert_close(features(first)[others], features(changed)[others], rtol=0.0, atol=1e-6)
    found = features(changed)
    assert found.shape == (6, features.features)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(6))


def test_the_leading_directions_of_the_prior_are_shrunk_half_of_the_way():
    prior = public((1, 8, 8), 300)
    features = Scattering((1, 8, 8), prior=prior)
    sample = features.standardised(prior).double()
    _, spread, axes = torch.linalg.svd(sample - sample.mean(0), full_matrices=False)
    torch.testing.assert_close(features.shrink.double(), (spread[100] / spread[:100]).sqrt(), rtol=1e-3, atol=0.0)
    along = (features.directions[:10].double() @ axes[:10].T).abs()
    torch.testing.assert_close(along.diagonal(), torch.ones(10, dtype=torch.float64), rtol=1e-3, atol=0.0)


def test_a_blank_image_has_finite_features_and_a_slope(features):
    blank = torch.zeros(1, *features.shape, requires_grad=True)
    features.maps(blank).sum().backward()
    assert blank.grad.isfinite().all()
    assert features(torch.zeros(1, *features.shape)).isfinite().all()


def test_other_shapes_and_small_priors_are_refused():
    for shape in ((8, 8), (2, 8, 8), (1, 7, 8)):
        with pytest.raises(ValueError, match="shape must be"):
            Scattering(shape)
    with pytest.raises(ValueError, match="prior must hold at least 200 images"):
        Scattering((1, 8, 8), prior=public((1, 8, 8), 199))
    with pytest.raises(ValueError, match="prior must hold"):
        Scattering((1, 8, 8), prior=public((1, 8, 9)))


def test_dead_leaves_are_images_and_depend_on_their_generator_alone():
    first, again, other = (dead_leaves(20, height=24, width=20, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.shape == (20, 3, 24, 20)
    assert first.min() >= 0.0
    assert first.max() <= 1.0
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    # Leaves: neighbouring pixels are mostly of one colour, and pictures are not blank.
    same = (np.diff(first, axis=3) == 0).all(axis=1)
    assert 0.4 < same.mean() < 0.95
    assert (first.std(axis=(2, 3)).max(axis=1) > 0.01).mean() > 0.8


def test_the_default_priors_are_drawn(monkeypatch):
    monkeypatch.setattr("tacita.features.scattering._PRIOR", 200)
    assert Scattering((1, 8, 8)).features == 81 * 4
    assert Scattering((3, 8, 8)).features == 3 * 81 * 4
