"""Fixed wavelet-scattering features for 28x28 grey images: public, without a single fitted number.

A scattering transform (Mallat 2012; Bruna & Mallat 2013) filters an image with oriented band-pass wavelets, takes
moduli, filters again, and averages locally. It is a small convolutional network whose filters come from a formula, so
computing it costs no privacy: the features of a record depend on that record alone.

With `SCALES` = 2 and `ANGLES` = 8 an image gives 1 + 16 + 64 = 81 maps of 7x7. The maps are then standardised within
each record over groups of channels, as Tramèr & Boneh (2021, "Differentially private learning needs better features")
do. About half of what remains is common to all drawings in the middle of an empty frame, and a few directions hold
most of the rest; both eat up the clip norm. So synthetic scribbles (`strokes`, drawn by formula) serve as public data:
their mean is taken off, and the directions in which they vary most are shrunk. The 3969 numbers are then scaled to unit
length, so that for a linear model the gradient's norm depends on the prediction alone.

Channel order: the local average; first order by scale, then angle; second order (fine scale, then coarse) by first
angle, then second angle.
"""

from __future__ import annotations

import functools
import math

import torch

SIDE = 28
SCALES = 2
ANGLES = 8
STRIDE = 2**SCALES
PAD = STRIDE  # mirrored pixels on each side
GRID = SIDE + 2 * PAD
CELLS = SIDE // STRIDE
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
FEATURES = CHANNELS * CELLS**2
GROUPS = 9
DIRECTIONS = 100  # leading directions of the synthetic scribbles that are shrunk

_WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
_FREQUENCY = 0.75 * math.pi  # centre frequency of the finest wavelet, in radians per pixel
_SLANT = 4.0 / ANGLES  # envelope's width along the wave over its width across


def _bump(centre: tuple[float, float], angle: float, width: float) -> torch.Tensor:
    """Return the Fourier transform of a rotated, elongated, modulated Gaussian sampled on the grid.

    In space it is exp(i⟨centre, u⟩) · exp(-(a² + s²b²) / 2width²) with unit integral of the envelope, where a and b are
    u's coordinates along and across `angle` and s is `_SLANT`. Sampling in space repeats the spectrum with period 2π,
    so neighbouring periods are added up.
    """
    omega = 2 * math.pi * torch.fft.fftfreq(GRID, dtype=torch.float64)
    total = torch.zeros(GRID, GRID, dtype=torch.float64)
    for k in range(-2, 3):
        for m in range(-2, 3):
            wy = (omega + 2 * math.pi * k - centre[0])[:, None]
            wx = (omega + 2 * math.pi * m - centre[1])[None, :]
            along = wx * math.cos(angle) + wy * math.sin(angle)
            across = wy * math.cos(angle) - wx * math.sin(angle)
            total += torch.exp(-0.5 * width**2 * (along**2 + (across / _SLANT) ** 2))
    return total


def _morlet(scale: int, angle: float) -> torch.Tensor:
    """Return a Morlet wavelet's (real) Fourier transform: a bump off centre, less one at 0 so that its mean is 0."""
    width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    wave = _bump((frequency * math.sin(angle), frequency * math.cos(angle)), angle, width)
    envelope = _bump((0.0, 0.0), angle, width)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


@functools.cache
def wavelets() -> torch.Tensor:
    """Return all wavelets' Fourier transforms.

    Returns:
        Real tensor (SCALES, ANGLES, GRID, GRID), frequencies in FFT order. Angles are multiples of π / ANGLES; the
        other half turn would repeat them, since moduli of real images do not change when a frequency changes its sign.
    """
    filters = [[_morlet(j, math.pi * t / ANGLES) for t in range(ANGLES)] for j in range(SCALES)]
    return torch.stack([torch.stack(row) for row in filters]).float()


@functools.cache
def averaging(step: int) -> torch.Tensor:
    """Return the matrix that averages one axis of a map with a Gaussian window and keeps every STRIDE-th pixel.

    Args:
        step: Spacing of the map's samples, in pixels; 1 or a power of 2 up to STRIDE.

    Returns:
        (CELLS, GRID / step), rows summing to 1. Cells are centred on the image's pixels 0, STRIDE, 2·STRIDE and so on.
    """
    centre = PAD + STRIDE * torch.arange(CELLS, dtype=torch.float64)
    position = step * torch.arange(GRID // step, dtype=torch.float64)
    weight = torch.exp(-0.5 * ((position[None, :] - centre[:, None]) / (_WIDTH * 2 ** (SCALES - 1))) ** 2)
    return (weight / weight.sum(1, keepdim=True)).float()


def _average(maps: torch.Tensor) -> torch.Tensor:
    """Average maps (..., side, side) locally down to (..., CELLS, CELLS)."""
    window = averaging(GRID // maps.shape[-1])
    return window @ maps @ window.T


def _modulus(spectrum: torch.Tensor, filters: torch.Tensor, step: int) -> torch.Tensor:
    """Filter in the Fourier domain, keep every `step`-th pixel, and take the modulus.

    Args:
        spectrum: (..., GRID, GRID).
        filters: (ANGLES, GRID, GRID).
        step: Spacing to keep. Dropping pixels folds the spectrum onto itself: done before the inverse transform.

    Returns:
        (..., ANGLES, GRID / step, GRID / step).
    """
    product = spectrum[..., None, :, :] * filters
    if step > 1:
        side = GRID // step
        product = product.unflatten(-1, (step, side)).mean(-2).unflatten(-2, (step, side)).mean(-3)
    return torch.fft.ifft2(product).abs()


def scattering(images: torch.Tensor) -> torch.Tensor:
    """Return the scattering coefficients of orders 0, 1 and 2.

    Args:
        images: (n, SIDE, SIDE) grey values in [0, 1].

    Returns:
        (n, CHANNELS, CELLS, CELLS), float32.
    """
    padded = torch.nn.functional.pad(images.float()[:, None], (PAD,) * 4, mode="reflect")[:, 0]
    bank = wavelets()
    spectrum = torch.fft.fft2(padded)
    first = [_modulus(spectrum, bank[j], 2**j) for j in range(SCALES)]
    maps = [_average(padded)[:, None], *(_average(u) for u in first)]
    for j, fine in enumerate(first[:-1]):
        if j > 0:
            raise NotImplementedError("second order from a thinned map: SCALES above 2")
        again = torch.fft.fft2(fine)
        maps += [_average(_modulus(again, bank[k], 2**k)).flatten(1, 2) for k in range(j + 1, SCALES)]
    return torch.cat(maps, dim=1)


def standardise(maps: torch.Tensor, groups: int = GROUPS) -> torch.Tensor:
    """Standardise each record's maps within groups of channels, flatten them, and scale to unit length.

    Args:
        maps: (n, CHANNELS, CELLS, CELLS).
        groups: Number of groups of neighbouring channels; a divisor of CHANNELS.

    Returns:
        (n, FEATURES) with rows of length 1 (a blank image gives a row of zeros).
    """
    flat = torch.nn.functional.group_norm(maps, groups).flatten(1)
    return torch.nn.functional.normalize(flat, dim=1, eps=1e-6)


def strokes(n: int, seed: int = 0) -> torch.Tensor:
    """Draw synthetic scribbles: two joined quadratic Bézier curves, three pixels thick, in the middle of the frame.

    They use no data; only that a hand-drawn sign stands upright in the middle of its frame, which is public.

    Args:
        n: Number of images.
        seed: Of the control points.

    Returns:
        (n, SIDE, SIDE) grey values in [0, 1].
    """
    uniform = torch.rand(n, 5, 2, generator=torch.Generator().manual_seed(seed))
    control = uniform * torch.tensor([19.0, 12.0]) + torch.tensor([4.5, 8.0])  # row, column: higher than wide
    t = torch.linspace(0, 1, 40)
    basis = torch.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], dim=1)
    points = torch.cat([basis @ control[:, :3], basis @ control[:, 2:]], dim=1)
    pixels = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).float()
    distance = torch.cdist(pixels, points).amin(2)
    return torch.sigmoid(3 * (1.5 - distance)).view(n, SIDE, SIDE)


@functools.cache
def reference() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return public constants computed from 2000 synthetic scribbles.

    A direction with variance v is shrunk by (w / v)^(1/4), where w is the variance of the first direction left alone:
    half of the way, in logarithms, to equal variances. (Going further was worse on held-out training records.)

    Returns:
        The scribbles' mean feature (FEATURES,), their leading directions (DIRECTIONS, FEATURES), orthonormal, and the
        factors (DIRECTIONS,), at most 1.
    """
    sample = torch.cat([standardise(scattering(strokes(250, seed))) for seed in range(8)])
    mean = sample.mean(0)
    _, singular, directions = torch.linalg.svd(sample - mean, full_matrices=False)
    shrink = (singular[DIRECTIONS] / singular[:DIRECTIONS]).sqrt()  # variances are squares of singular values
    return mean, directions[:DIRECTIONS], shrink


def embed(maps: torch.Tensor) -> torch.Tensor:
    """Turn scattering maps into features: standardise, centre, shrink the leading directions, scale to unit length.

    Args:
        maps: (n, CHANNELS, CELLS, CELLS).

    Returns:
        (n, FEATURES), rows of length 1.
    """
    mean, directions, shrink = reference()
    centred = standardise(maps) - mean
    shrunk = centred + ((centred @ directions.T) * (shrink - 1)) @ directions
    return torch.nn.functional.normalize(shrunk, dim=1)


def features(images: torch.Tensor, batch: int = 256) -> torch.Tensor:
    """Return fixed features of images, each record on its own: no statistic of the data enters, so no privacy is spent.

    Args:
        images: (n, 28, 28); integers are read as 0 to 255, floating point as 0 to 1.
        batch: Images transformed at a time; bounds memory, does not change the result beyond round-off.

    Returns:
        (n, FEATURES) float32, rows of length 1.

    Raises:
        ValueError: If the images are not (n, 28, 28).
    """
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"images must be (n, {SIDE}, {SIDE}), not {tuple(images.shape)}")
    result = torch.empty(len(images), FEATURES)
    with torch.no_grad():
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            grey = part.float() if part.is_floating_point() else part.float() / 255
            result[start : start + batch] = embed(scattering(grey))
    return result
