"""Faults of images: their shares are estimated, and each is what its words say."""

import numpy as np
import pytest
import torch

from tacita.synthesis.faults import fault_shares, possible_faults
from tests.synthesis.releases import halves, released, some


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6])
def test_the_share_of_faulty_images_is_estimated(rng, share):
    before, after = halves(rng)
    turned = some(lambda x: torch.rot90(x, 1, (2, 3)), share)(*after, rng)
    judged = fault_shares(released(turned, rng, ""), released(before, rng, ""), chance=0.01, rng=rng)
    shares = {fault.words: found for fault, found in judged.shares}
    assert shares.pop("turned by 90° anticlockwise") == pytest.approx(share, abs=0.06)
    assert max(shares.values()) < 0.06
    assert judged.by_chance < 0.06
    assert judged.unlike < 0.2


def test_every_fault_changes_images_as_its_words_say():
    x = torch.arange(36.0).reshape(1, 1, 6, 6) / 36.0
    made = {fault.words: fault.make(x)[0, 0] for fault in possible_faults(x)}
    grid = x[0, 0].numpy()
    assert np.array_equal(made["turned by 90° anticlockwise"], np.rot90(grid))
    assert np.array_equal(made["turned by 90° clockwise"], np.rot90(grid, -1))
    assert np.array_equal(made["turned upside down"], np.rot90(grid, 2))
    assert np.array_equal(made["mirrored left to right"], np.fliplr(grid))
    assert np.array_equal(made["mirrored top to bottom"], np.flipud(grid))
    assert np.array_equal(made["mirrored along the diagonal, rows and columns swapped"], grid.T)
    assert np.allclose(made["inverted, dark and light swapped"], 1.0 - grid)
    background = float(np.sort(grid[0])[2])  # torch's median of six is the third
    for words, gone in {"left": np.s_[:, :2], "right": np.s_[:, 4:], "upper": np.s_[:2], "lower": np.s_[4:]}.items():
        expected = grid.copy()
        expected[gone] = background
        assert np.array_equal(made[f"blank in their {words} third"], expected)
    assert made["cropped and enlarged"].shape == (6, 6)
    assert grid[1, 1] <= float(made["cropped and enlarged"].min())
    assert "turned by 90° clockwise" not in [fault.words for fault in possible_faults(torch.zeros(1, 1, 4, 6))]


def test_too_few_trusted_images_give_no_verdict_on_faults(rng):
    before, after = halves(rng)
    few = before[0][:40], before[1][:40]
    assert fault_shares(after, few, chance=0.01, rng=rng) is None
    small = before[0][:200], before[1][:200]  # no class is large enough alone, all together are
    turned = some(lambda x: 1.0 - x, 0.5)(*after, rng)
    judged = dict(fault_shares(turned, small, chance=0.01, rng=rng).shares)
    assert {fault.words: share for fault, share in judged.items()}["inverted, dark and light swapped"] > 0.4
