"""Wavelet scattering (Mallat 2012; Bruna & Mallat 2013): a convolutional network whose filters come from a formula."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita.features.priors import drawn
from tacita.features.whitening import leading

ANGLES = 8
STRIDE = 4  # pixels between places; two scales, 1 and 2 pixels
CHANNELS = 1 + 2 * ANGLES + ANGLES**2  # maps of one colour: orders 0, 1 and 2
GROUPS = 9  # of neighbouring maps of one colour, standardised together
DIRECTIONS = 100  # leading directions of the prior that are shrunk

_WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
_FREQUENCY = 0.75 * math.pi  # centre frequency of the finest wavelet, in radians per pixel
_SLANT = 0.5  # envelope's width along the wave over its width across
_PRIOR = 2000  # images that are drawn where none are given
_BATCH = 32
_SMOOTH = 1e-20  # added to squared moduli, whose roots have no slope at zero


class Scattering(nn.Module):
    """Features of grey or colour images for a private linear model, from a formula and from public random images.

    An image is averaged locally; filtered with oriented wavelets of two scales, its moduli averaged; and the finer
    moduli are filtered once more. Each colour gives 81 maps, with a place every four pixels. Maps are standardised
    within each image over groups of neighbouring maps, as Tramèr & Boneh (2021) do. About half of what remains is
    common to all images of a kind, and a few directions hold most of the rest; both eat up the clip norm. So public
    random images serve as a prior: their mean is taken off, and the directions in which they vary most are shrunk, half
    of the way (in logarithms) to equal variances. Then each image's features are scaled to length one, so that for a
    linear model the norm of a gradient depends on the prediction alone.

    Computing them takes long; where the images stay the same, do it once:
    `torch.cat([features(part) for part in images.split(32)])`.

    Args:
        shape: Of one image, (1 or 3, height, width), from eight pixels a side.
        prior: Public images of that shape, at least 200, values in [0, 1], to which nobody's data contributed. None
            draws `strokes` for grey images and `dead_leaves` for colours.

    Raises:
        ValueError: If the shape is another, or the prior's.

    Guarantee:
        Nothing in it is computed from a dataset, unless the prior is, so it costs no privacy. Each output depends on
        its own image alone.
    """

    first: Tensor
    second: Tensor
    mean: Tensor
    directions: Tensor
    shrink: Tensor

    def __init__(self, shape: tuple[int, ...], *, prior: Tensor | None = None) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 8:
            raise ValueError(
                f"shape must be (1 or 3, height, width) with at least eight pixels a side, got {tuple(shape)}."
            )
        self.shape = tuple(shape)
        self.grid = tuple(side + 2 * STRIDE + side % 2 for side in shape[1:])  # mirrored edges, an even side
        self.places = tuple(-(-side // STRIDE) for side in shape[1:])
        self.features = shape[0] * CHANNELS * math.prod(self.places)
        for scale, name in enumerate(("first", "second")):
            bank = [_morlet(self.grid, scale, math.pi * turn / ANGLES) for turn in range(ANGLES)]
            self.register_buffer(name, torch.stack(bank).float())
        for step in (1, 2):
            for axis in (0, 1):
                self.register_buffer(f"window_{step}_{axis}", self._window(axis, step))
        default = "strokes" if shape[0] == 1 else "dead_leaves"
        self.prior = default if prior is None else "given"
        images = drawn(default, self.shape, _PRIOR) if prior is None else prior.float()
        if tuple(images.shape[1:]) != self.shape or len(images) < 2 * DIRECTIONS:
            raise ValueError(
                f"prior must hold at least {2 * DIRECTIONS} images of shape {self.shape}, got {tuple(images.shape)}."
            )
        with torch.no_grad():
            sample = torch.cat([self.standardised(part) for part in torch.split(images, _BATCH)])
        mean = sample.mean(0)
        spread, directions = leading(sample - mean, DIRECTIONS)
        self.register_buffer("mean", mean)
        self.register_buffer("directions", directions)
        self.register_buffer("shrink", (spread[-1] / spread[:-1]).sqrt())  # variances are squares of the spread

    def maps(self, images: Tensor) -> Tensor:
        """Return the scattering coefficients, (n, channels · 81, rows, columns).

        For each colour the local average; first order by scale, then angle; second order by first angle, then second.
        """
        flat = images.flatten(0, 1)[:, None]
        below, right = (side - size - STRIDE for side, size in zip(self.grid, self.shape[1:], strict=True))
        padded = functional.pad(flat, (STRIDE, right, STRIDE, below), mode="reflect")[:, 0]
        spectrum = torch.fft.fft2(padded)
        fine, coarse = _modulus(spectrum, self.first, 1), _modulus(spectrum, self.second, 2)
        again = _modulus(torch.fft.fft2(fine), self.second, 2).flatten(1, 2)
        averages = [self._average(padded[:, None], 1), self._average(fine, 1)]
        averages += [self._average(coarse, 2), self._average(again, 2)]
        return torch.cat(averages, 1).reshape(len(images), -1, *self.places)

    def standardised(self, images: Tensor) -> Tensor:
        """Return the maps, standardised within each image and scaled to length one, (n, features)."""
        flat = functional.group_norm(self.maps(images), self.shape[0] * GROUPS).flatten(1)
        return functional.normalize(flat, dim=1, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features), rows of length one."""
        centred = self.standardised(images) - self.mean
        shrunk = centred + ((centred @ self.directions.T) * (self.shrink - 1)) @ self.directions
        return functional.normalize(shrunk, dim=1)

    def _average(self, maps: Tensor, step: int) -> Tensor:
        rows, columns = (getattr(self, f"window_{step}_{axis}") for axis in (0, 1))
        found: Tensor = rows @ maps @ columns.T
        return found

    def _window(self, axis: int, step: int) -> Tensor:
        """Return the matrix that averages an axis of a map, sampled every `step` pixels, around every place."""
        centre = STRIDE + STRIDE * torch.arange(self.places[axis], dtype=torch.float64)
        position = step * torch.arange(self.grid[axis] // step, dtype=torch.float64)
        weight = torch.exp(-0.5 * ((position[None, :] - centre[:, None]) / (2.0 * _WIDTH)) ** 2)
        return (weight / weight.sum(1, keepdim=True)).float()


def _bump(grid: tuple[int, ...], centre: tuple[float, float], angle: float, width: float) -> Tensor:
    """Return the Fourier transform of a rotated, elongated, modulated Gaussian sampled on the grid.

    In space it is exp(i⟨centre, u⟩) · exp(-(a² + s²b²) / 2width²) with unit integral of the envelope, a and b being u's
    coordinates along and across `angle` and s the slant. Sampling in space repeats the spectrum with period 2π, so
    neighbouring periods are added up.
    """
    down, across = (2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64) for side in grid)
    total = torch.zeros(*grid, dtype=torch.float64)
    for k in range(-2, 3):
        for m in range(-2, 3):
            wy = (down + 2 * math.pi * k - centre[0])[:, None]
            wx = (across + 2 * math.pi * m - centre[1])[None, :]
            along = wx * math.cos(angle) + wy * math.sin(angle)
            beside = wy * math.cos(angle) - wx * math.sin(angle)
            total += torch.exp(-0.5 * width**2 * (along**2 + (beside / _SLANT) ** 2))
    return total


def _morlet(grid: tuple[int, ...], scale: int, angle: float) -> Tensor:
    """Return a Morlet wavelet's (real) Fourier transform: a bump off centre, less one at 0 so that its mean is 0."""
    width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    wave = _bump(grid, (frequency * math.sin(angle), frequency * math.cos(angle)), angle, width)
    envelope = _bump(grid, (0.0, 0.0), angle, width)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def _modulus(spectrum: Tensor, filters: Tensor, step: int) -> Tensor:
    """Filter in the Fourier domain, keep every `step`-th pixel, and take the modulus; (…, angles, rows, columns)."""
    rows, columns = (side // step for side in spectrum.shape[-2:])
    blocks = [
        (..., slice(top, top + rows), slice(left, left + columns))
        for top in range(0, step * rows, rows)
        for left in range(0, step * columns, columns)
    ]
    # Dropping pixels folds the spectrum onto itself. Block by block takes a quarter of the time of a mean over axes.
    shares = (filters / step**2).to(spectrum.dtype)
    product = spectrum[blocks[0]][..., None, :, :] * shares[blocks[0]]
    for block in blocks[1:]:
        product.addcmul_(spectrum[block][..., None, :, :], shares[block])
    found = torch.fft.ifft2(product)
    return torch.sqrt(found.real.square() + found.imag.square() + _SMOOTH)
