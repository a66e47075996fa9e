import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.fft import dctn
from scipy.ndimage import correlate

from tacita.synthesis import features as F

SMALL = (1, 8, 8)


def images(n, shape=SMALL, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((n, *shape)))


def gabor(scale, angle):
    """A Morlet wavelet written out pixel by pixel."""
    width, reach = 0.8 * 2**scale, math.ceil(6 * 0.8 * 2**scale)
    pixels = range(-reach, reach + 1)
    envelope, wave = (np.zeros((2 * reach + 1, 2 * reach + 1), dtype=complex) for _ in range(2))
    for i, y in enumerate(pixels):
        for j, x in enumerate(pixels):
            a = x * math.cos(angle) + y * math.sin(angle)
            b = -x * math.sin(angle) + y * math.cos(angle)
            envelope[i, j] = math.exp(-(a * a + b * b / 4) / (2 * width * width))
            wave[i, j] = envelope[i, j] * np.exp(1j * 0.75 * math.pi * a / 2**scale)
    return (wave - envelope * wave.sum() / envelope.sum()) / envelope.sum()


def moduli(image, scale, step):
    """Filter with scipy, edges mirrored, and keep every `step`-th pixel."""
    maps = []
    for turn in range(8):
        kernel = gabor(scale, math.pi * turn / 8)
        found = correlate(image, kernel.real, mode="mirror") + 1j * correlate(image, kernel.imag, mode="mirror")
        maps.append(np.abs(found)[::step, ::step])
    return maps


def window(image, sides, spacing, step):
    """Average under Gaussian windows, place by place."""
    found = []
    for top in range(0, sides[0], spacing):
        for left in range(0, sides[1], spacing):
            y, x = np.mgrid[0 : sides[0] : step, 0 : sides[1] : step]
            weight = np.exp(-((y - top) ** 2 + (x - left) ** 2) / (2 * (0.4 * spacing) ** 2))
            found.append((weight * image).sum() / weight.sum())
    return found


@pytest.mark.parametrize(("sides", "spacing"), [((8, 8), 2), ((16, 20), 4)])
def test_scattering_is_filtering_written_out(sides, spacing):
    image = images(1, (1, *sides))
    raw = image[0, 0].numpy()
    fine, coarse = moduli(raw, 0, 2), moduli(raw, 1, 2)
    expected = window(raw, sides, spacing, 1)
    expected += [v for m in fine + coarse for v in window(m, sides, spacing, 2)]
    for m in fine:
        expected += [v for again in moduli(m, 0, spacing // 2) for v in window(again, sides, spacing, spacing)]
    found = F.scattering((1, *sides))(image)[0].numpy()
    assert found.shape == (81 * (sides[0] // spacing) * (sides[1] // spacing),)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_scattering_of_other_shapes():
    assert F.scattering((1, 28, 28))(images(2, (1, 28, 28))).shape == (2, 81 * 49)
    assert F.scattering((1, 64, 64))(images(2, (1, 64, 64))).shape == (2, 81 * 49)
    colour = images(2, (3, 8, 8))
    grey = F.scattering(SMALL)
    parts = torch.cat([grey(colour[:, i : i + 1]) for i in range(3)], 1)
    torch.testing.assert_close(F.scattering((3, 8, 8))(colour), parts)
    with pytest.raises(ValueError, match="channels, height, width"):
        F.scattering((8, 8))


def test_scattering_has_a_slope_everywhere():
    blank = torch.zeros(1, *SMALL, requires_grad=True)
    F.scattering(SMALL)(blank).sum().backward()
    assert blank.grad.isfinite().all()


def test_moments_of_images_are_weighted_cosines():
    moments, image = F.Moments(SMALL, kept=3, share=0.3, length=1e-6), images(2)
    middle = np.exp(-0.5 * ((np.arange(8) - 3.5) / 2) ** 2)
    weight = np.sqrt(1 + np.hypot(*np.mgrid[:3, :3]))
    weight /= np.sqrt((weight**2).mean())
    for u, raw in zip(moments.coefficients(image).numpy(), image[:, 0].numpy(), strict=True):
        expected = (weight * dctn(raw - 0.4 * np.outer(middle, middle), norm="ortho")[:3, :3]).ravel()
        np.testing.assert_allclose(u, expected / np.linalg.norm(expected), atol=1e-12)


def test_moments_of_all_frequencies_can_be_turned_back():
    moments, image = F.Moments(SMALL, kept=8, length=100.0), images(3)
    back = moments.centre + moments.coefficients(image) @ moments.back
    torch.testing.assert_close(back.reshape(3, *SMALL), image)


@pytest.mark.parametrize("shape", [(5,), (2, 8, 8)])
def test_moments_unpack_to_mean_and_second_moment(shape):
    moments, records = F.Moments(shape, kept=3), images(20, shape)
    u = moments.coefficients(records)
    mean, second = moments.unpack(moments(records).mean(0, keepdim=True))
    torch.testing.assert_close(mean[0], u.mean(0))
    torch.testing.assert_close(second[0], u.T @ u / 20)
    apart = torch.stack([moments(records[:10]).mean(0), moments(records[10:]).mean(0)])
    torch.testing.assert_close(moments.averages(records, 2), apart)


def test_noise_on_the_second_moment_is_as_large_as_said():
    moments = F.Moments((30,), share=0.3)
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 30 + 900)))
    _, second = moments.unpack(noise)
    off = second[:, *torch.triu_indices(30, 30, 1)]
    assert float(second.diagonal(dim1=1, dim2=2).std()) == pytest.approx(1 / math.sqrt(0.7), rel=0.15)
    assert float(off.std()) == pytest.approx(1 / math.sqrt(1.4), rel=0.04)


anything = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(deadline=None, max_examples=30)
@given(arrays(np.float32, (3, *SMALL), elements=anything))
def test_moments_are_at_most_one_long(pixels):
    assert (F.Moments(SMALL)(torch.from_numpy(pixels).double()).norm(dim=1) <= 1 + 1e-12).all()


@settings(deadline=None, max_examples=30)
@given(arrays(np.float32, (3, 4), elements=st.floats(-1e3, 1e3, width=32)))
def test_fourier_features_are_one_long(rows):
    found = F.fourier((4,), 50, scale=2.0)(torch.from_numpy(rows).double())
    assert found.shape == (3, 50)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_fourier_features_approach_the_gaussian_kernel():
    records = images(6, (4,))
    found = F.fourier((4,), 40_000, scale=[0.7, 2.0])(records)
    squares = torch.cdist(records, records).square()
    kernel = (torch.exp(-squares / (2 * 0.7**2)) + torch.exp(-squares / (2 * 2.0**2))) / 2
    torch.testing.assert_close(found @ found.T, kernel, atol=0.03, rtol=0.0)


def test_fourier_features_are_the_same_every_time():
    records = images(3, (4,))
    made = [F.fourier((4,), 10, scale=1.0, seed=seed)(records) for seed in (0, 0, 1)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_projections_are_orthonormal():
    found = F.projected(lambda records: records, 6, 6)(torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(found.T @ found, torch.eye(6, dtype=torch.float64))
    with pytest.raises(ValueError, match="no more directions"):
        F.projected(lambda records: records, 6, 7)


@pytest.mark.parametrize("shape", [SMALL, (1, 28, 28), (3, 28, 28), (1, 64, 64)])
def test_measuring_features_are_few(shape):
    found = F.measuring_features(shape)(images(2, shape).float())
    assert found.shape == (2, 64)
    assert found.dtype == torch.float32
    assert float((found[0] - found[1]).norm()) > 0.0


def test_measuring_features_of_tables_are_the_table():
    table = images(3, (4,))
    assert torch.equal(F.measuring_features((4,))(table), table)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="shape must be"):
        F.Moments((8, 8))
    with pytest.raises(ValueError, match="scale must be positive"):
        F.fourier((4,), 10, scale=0.0)
