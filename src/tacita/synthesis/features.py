"""Public feature maps: formulas without one number fitted to data, so that computing them costs no privacy.

A feature map takes a batch of records (n, …) to (n, d). Each row depends on its own record alone, and can be
differentiated. Maps compute in the precision of what they are given.

* `Moments`: a record's leading coefficients and their products, of length at most one. The mean over many records is
  their mean and second moment.
* `fourier`: random Fourier features (Rahimi & Recht 2007), of length one; the mean over many records is the embedding
  that DP-MERF releases (Harder, Adamczewski & Park 2021, arXiv:2002.11603v5).
* `scattering`: a small convolutional network whose filters come from a formula (Mallat 2012; Bruna & Mallat 2013).
* `projected` shortens a map, `measuring_features` is what comparisons of sets use.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct
from torch import Tensor
from torch.nn import functional

from tacita import _check

FeatureMap = Callable[[Tensor], Tensor]
Shape = Sequence[int]
Matrix = NDArray[Any]

ANGLES = 8
CHANNELS = 1 + 2 * ANGLES + ANGLES**2  # of the scattering transform, orders 0, 1 and 2
WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
FREQUENCY = 0.75 * math.pi  # centre frequency of the finest wavelet, in radians per pixel
SLANT = 0.5  # envelope's width along the wave over its width across

_SMALL_SIDE, _LARGE_SIDE, _REDUCED_SIDE = 16, 32, 28
_TINY = 1e-8  # what is smaller is dropped from fixed matrices: numbers near the underflow make products slow
_SMOOTH = 1e-10  # added to squared moduli, whose roots have no slope at zero
_MEASURED = 64


class Moments:
    """Coefficients u of a record and their products: (b u, q u uᵀ), where b² + q² = 1 and |u| ≤ 1.

    For images, u holds the `kept` lowest frequencies along each side (discrete cosine transform) of the image less a
    faint blob in its middle. High frequencies are amplified by the square root of their number, since most pictures
    have more of the low ones. For tables u holds the features. Then u is scaled down to length one, or by `length` if
    it is shorter than that. The products' length is |u|² ≤ 1.

    Every number here is public: the blob says that a picture shows something in its middle.

    Attributes:
        shape: Of one record.
        size: How many coefficients there are.
        share: b², what of the squared length is given to the coefficients themselves.
    """

    BLOB_LEVEL, BLOB_WIDTH = 0.4, 0.25

    def __init__(self, shape: Shape, *, kept: int = 10, share: float = 0.3, length: float = 0.16) -> None:
        self.shape, self.share = tuple(shape), _check.probability("share", share)
        if len(self.shape) not in (1, 3):
            raise ValueError(f"shape must be (features,) or (channels, height, width), got {self.shape}.")
        self._length = _check.in_range("length", length, 1e-6, 1e6) * math.sqrt(math.prod(self.shape))
        if len(self.shape) == 3:
            into, back, self.centre = _cosines(self.shape, kept, self.BLOB_LEVEL, self.BLOB_WIDTH)
        else:
            into = back = torch.eye(self.shape[0], dtype=torch.float64)
            self.centre = torch.zeros(self.shape[0], dtype=torch.float64)
        self.size = into.shape[1]
        self.back = back * self._length
        self._into, self._middle = _in_precision(into), _in_precision(self.centre)

    def coefficients(self, inputs: Tensor) -> Tensor:
        """Return u, (n, size), rows of length at most one."""
        flat = inputs.flatten(1)
        found: Tensor = (flat - self._middle(flat.dtype)) @ self._into(flat.dtype)
        scaled: Tensor = found / found.norm(dim=1, keepdim=True).clamp_min(self._length)
        return scaled

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return (n, size + size²)."""
        u = self.coefficients(inputs)
        products = (u[:, :, None] * u[:, None, :]).flatten(1)
        return torch.cat([math.sqrt(self.share) * u, math.sqrt(1.0 - self.share) * products], 1)

    def averages(self, inputs: Tensor, groups: int) -> Tensor:
        """Return the mean features of so many equal groups of neighbouring records, without each record's products."""
        u = self.coefficients(inputs)
        u = u.reshape(groups, -1, self.size)
        second = (u.mT @ u / u.shape[1]).flatten(1)
        return torch.cat([math.sqrt(self.share) * u.mean(1), math.sqrt(1.0 - self.share) * second], 1)

    def unpack(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (k, size) and second moment (k, size, size) of u from mean features (k, d).

        Independent noise of one standard deviation s on the features is noise of s / q on the second moment's
        diagonal, and of s / (q√2) off it, where two numbers tell the same.
        """
        mean = means[:, : self.size] / math.sqrt(self.share)
        products = means[:, self.size :].reshape(-1, self.size, self.size) / math.sqrt(1.0 - self.share)
        return mean, (products + products.mT) / 2.0


def _cosines(shape: tuple[int, ...], kept: int, level: float, width: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrix from pixels to weighted frequencies, the one back, and the blob."""
    channels, *sides = shape
    rows, columns = (dct(np.eye(side), axis=0, norm="ortho")[: min(kept, side)] for side in sides)
    lowest = np.kron(rows, columns)
    index = np.hypot(np.arange(len(rows))[:, None], np.arange(len(columns))).ravel()
    weight = np.sqrt(1.0 + index)
    weight /= np.sqrt((weight**2).mean())
    bumps = (np.exp(-0.5 * ((np.arange(side) - (side - 1) / 2) / (width * side)) ** 2) for side in sides)
    blob = level * np.outer(*bumps).ravel()
    several = np.eye(channels)
    into, back = np.kron(several, (weight[:, None] * lowest).T), np.kron(several, lowest / weight[:, None])
    return torch.from_numpy(into), torch.from_numpy(back), torch.from_numpy(np.tile(blob, channels))


def fourier(shape: Shape, count: int, *, scale: float | Sequence[float], seed: int = 0) -> FeatureMap:
    """Return random Fourier features of Gaussian kernels, cosines and sines, of length one.

    Args:
        shape: Of one record; it is flattened.
        count: How many features, even.
        scale: The kernel's standard deviation, or several; each gets its share of the frequencies.
        seed: Of the frequencies; public.

    Returns:
        A map to (n, count) with rows of length one.
    """
    pairs = _check.count("count", count, low=2) // 2
    scales = np.resize(np.atleast_1d(np.asarray(scale, dtype=np.float64)), pairs)
    if not (scales > 0.0).all():
        raise ValueError(f"scale must be positive, got {scale}.")
    drawn = np.random.default_rng(seed).standard_normal((math.prod(shape), pairs)) / scales
    frequencies = _in_precision(torch.from_numpy(drawn))

    def features(inputs: Tensor) -> Tensor:
        angles = inputs.flatten(1) @ frequencies(inputs.dtype)
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(pairs)

    return features


def projected(features: FeatureMap, length: int, count: int, *, seed: int = 0) -> FeatureMap:
    """Return `count` coordinates of a map's `length` features, along random orthonormal directions fixed by `seed`.

    Args:
        features: The map to shorten.
        length: How many numbers it gives.
        count: How many directions are kept.
        seed: Of the directions; public.

    Returns:
        A map to (n, count).
    """
    _check.count("count", count, high=length, hint="There are no more directions.")
    draw = np.random.default_rng(seed).standard_normal((length, count))
    directions = _in_precision(torch.from_numpy(np.linalg.qr(draw)[0]))
    return lambda inputs: (found := features(inputs)) @ directions(found.dtype)


def measuring_features(shape: Shape) -> FeatureMap:
    """Return a map to few numbers, for comparing sets of records.

    For images, scattering coefficients averaged over the image's quarters, and 64 random directions of those; a
    table's features stay as they are.
    """
    if len(shape) == 1:
        return lambda inputs: inputs.flatten(1)
    coefficients, (sides, spacing) = scattering(shape), _places(shape)

    def pooled(inputs: Tensor) -> Tensor:
        maps = coefficients(inputs).reshape(len(inputs), -1, *_thinned(sides, spacing))
        return functional.adaptive_avg_pool2d(maps, 2).flatten(1)

    return projected(pooled, 4 * shape[0] * CHANNELS, _MEASURED)


def scattering(shape: Shape) -> FeatureMap:
    """Return the scattering transform of orders 0, 1 and 2 with two scales and eight angles.

    An image is averaged locally; filtered with oriented wavelets, its moduli averaged; and the finer moduli filtered
    once more. Edges are mirrored. Moduli are kept at every second pixel, the second ones at the averages' places. An
    image with a side above 32 is first averaged down to 28 by 28; colours are treated one by one.

    Args:
        shape: (channels, height, width).

    Returns:
        A map to (n, channels · 81 · places), places fastest: for each colour the local average, 8 fine and 8 coarse
        moduli, then 64 moduli of moduli by first and second angle. Places are 4 pixels apart from the image's corner,
        or 2 where a side is under 16.
    """
    if len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), got {tuple(shape)}.")
    sides, spacing = _places(shape)
    first = _in_precision(_filters(range(2), sides, 2))
    second = _in_precision(_filters(range(1), _thinned(sides, 2), spacing // 2))
    averages = {step: _in_precision(_averages(sides, spacing, step)) for step in {1, 2, spacing}}

    def features(inputs: Tensor) -> Tensor:
        images = inputs if tuple(inputs.shape[2:]) == sides else functional.adaptive_avg_pool2d(inputs, sides)
        flat, kind = images.flatten(0, 1).flatten(1), inputs.dtype
        fine_and_coarse = _modulus(flat @ first(kind), 2 * ANGLES)
        again = _modulus(fine_and_coarse[:, :ANGLES] @ second(kind), ANGLES).flatten(1, 2)
        maps = [flat[:, None] @ averages[1](kind), fine_and_coarse @ averages[2](kind), again @ averages[spacing](kind)]
        return torch.cat(maps, 1).reshape(len(inputs), -1)

    return features


def _places(shape: Shape) -> tuple[tuple[int, int], int]:
    """Return the sides that are analysed, and how far apart the averages are."""
    sides = (_REDUCED_SIDE, _REDUCED_SIDE) if max(shape[1:]) > _LARGE_SIDE else (shape[1], shape[2])
    return sides, 2 if min(sides) < _SMALL_SIDE else 4


def _modulus(found: Tensor, channels: int) -> Tensor:
    """Return moduli (…, channels, pixels) of real parts followed by imaginary ones; smooth at zero."""
    real, imaginary = found.reshape(*found.shape[:-1], 2, channels, -1).unbind(-3)
    return torch.sqrt(real.square() + imaginary.square() + _SMOOTH)


def _filters(scales: Sequence[int], sides: tuple[int, int], step: int) -> Tensor:
    """Return wavelets of all angles as one matrix (pixels, 2 · channels · thinned pixels): real, then imaginary."""
    angles = [math.pi * turn / ANGLES for turn in range(ANGLES)]
    found = np.stack([_filtering(wavelet(scale, angle), sides, step) for scale in scales for angle in angles])
    both = np.concatenate([found.real, found.imag])
    both[np.abs(both) < _TINY] = 0.0
    return torch.from_numpy(both.reshape(-1, both.shape[-1]).T.copy())


def wavelet(scale: int, angle: float) -> Matrix:
    """Return a Morlet wavelet on a square of pixels: a wave under an elongated Gaussian, less its mean."""
    width = WIDTH * 2**scale
    reach = math.ceil(3.0 * width / SLANT)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-0.5 * (along**2 + (SLANT * across) ** 2) / width**2)
    envelope /= envelope.sum()
    wave: Matrix = envelope * np.exp(1j * FREQUENCY / 2**scale * along)
    wave -= wave.sum() * envelope
    return wave


def _filtering(kernel: Matrix, sides: tuple[int, int], step: int) -> Matrix:
    """Return correlation with a kernel, at every `step`-th pixel, as a matrix (thinned pixels, pixels)."""
    reach = len(kernel) // 2
    rows, columns = (_mirrored(side, reach, step) for side in sides)
    matrix: Matrix = np.einsum("okx,kl,ply->opxy", rows, kernel, columns, optimize=True)
    return matrix.reshape(len(rows) * len(columns), -1)


def _mirrored(side: int, reach: int, step: int) -> Matrix:
    """Return ones where a window's position meets a pixel, (windows, positions, pixels), edges mirrored."""
    mirrored = np.pad(np.arange(side), reach, mode="reflect")
    ones: Matrix = np.eye(side)[np.lib.stride_tricks.sliding_window_view(mirrored, 2 * reach + 1)[::step]]
    return ones


def _averages(sides: tuple[int, int], spacing: int, step: int) -> Tensor:
    """Return the matrix (pixels, places) that averages a map sampled every `step` pixels under Gaussian windows."""
    windows = []
    for side in sides:
        distance = np.arange(0, side, step)[:, None] - np.arange(0, side, spacing)
        weight = np.exp(-0.5 * (distance / (0.4 * spacing)) ** 2)
        weight[weight < _TINY] = 0.0
        windows.append(weight / weight.sum(0))
    matrix = np.kron(*windows)
    matrix[matrix < _TINY] = 0.0
    return torch.from_numpy(matrix)


def _thinned(sides: tuple[int, int], step: int) -> tuple[int, int]:
    return -(-sides[0] // step), -(-sides[1] // step)


def _in_precision(matrix: Tensor) -> Callable[[torch.dtype], Tensor]:
    """Return a fixed matrix in whatever precision is asked for, made once each."""
    return functools.cache(matrix.to)
