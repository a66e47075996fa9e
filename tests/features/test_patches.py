"""Patch features: written out patch by patch, each image on its own, grey or colour, any size."""

import numpy as np
import pytest
import torch

from tacita.features import Patches

SHAPES = [(1, 8, 8), (3, 11, 9)]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def features(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacita.features.patches._IMAGES", 60)
        return Patches(request.param, filters=7, size=4)


def images(features, count=3):
    channels = features.bank.shape[1]
    height, width = next(shape[1:] for shape in SHAPES if shape[0] == channels)
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))


def written_out(features, image):
    """Two sides, filters, cells: patch by patch in double precision."""
    bank, shift = features.bank.double().flatten(1).numpy(), features.shift.double().numpy()
    rows, columns = ((side - 4) // 2 + 1 for side in image.shape[1:])
    found = np.empty((len(bank), rows, columns))
    for i in range(rows):
        for j in range(columns):
            patch = image[:, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 1e-3)
            found[:, i, j] = bank @ patch - shift
    sides = np.stack([np.maximum(found - 0.5, 0.0), np.maximum(-found - 0.5, 0.0)])
    halves = [(slice(0, -(-n // 2)), slice(n // 2, n)) for n in (rows, columns)]  # cells may share a middle line
    pooled = [[sides[:, :, down, across].mean((2, 3)) for across in halves[1]] for down in halves[0]]
    return np.sqrt(np.array(pooled)).transpose(2, 3, 0, 1).ravel()


def test_features_are_those_written_out_patch_by_patch(features):
    given = images(features)
    found = features(given)
    assert found.shape == (3, features.features)
    assert features.features == 2 * 7 * 4
    for image, row in zip(given.double().numpy(), found.numpy(), strict=True):
        np.testing.assert_allclose(row, written_out(features, image), atol=2e-3)  # roots are steep at 0
        np.testing.assert_allclose(row**2, written_out(features, image) ** 2, atol=1e-5)


def test_the_bank_responds_most_to_its_own_patches_which_have_no_mean(features):
    assert features.bank.sum((1, 2, 3)).abs().max() < 1e-4
    assert features.bank.flatten(1).norm(dim=1).min() > 0.1


def test_each_image_has_its_own_features_and_a_blank_one_finite_ones(features):
    given = images(features, 5)
    changed = given.clone()
    changed[3] = 0.5
    others = [0, 1, 2, 4]
    torch.testing.assert_close(features(given)[others], features(changed)[others], rtol=0.0, atol=1e-6)
    assert features(changed).isfinite().all()


def test_contrast_does_not_matter_but_for_faint_images(features):
    given = images(features)
    torch.testing.assert_close(features(given), features(0.5 * given + 0.25), rtol=0.0, atol=0.1)


def test_they_are_built_alike_every_time(monkeypatch):
    monkeypatch.setattr("tacita.features.patches._IMAGES", 60)
    first, again = (Patches((1, 8, 8), filters=7, size=4) for _ in range(2))
    torch.testing.assert_close(first.bank, again.bank, rtol=0.0, atol=0.0)


def test_images_without_room_and_bad_numbers_are_refused(monkeypatch):
    monkeypatch.setattr("tacita.features.patches._IMAGES", 10)
    with pytest.raises(ValueError, match="too few patches of 6 pixels for 3 cells"):
        Patches((1, 8, 8), cells=3)
    with pytest.raises(ValueError, match="shape must be"):
        Patches((2, 8, 8))
    with pytest.raises(ValueError, match="filters must be"):
        Patches((1, 8, 8), filters=0)
