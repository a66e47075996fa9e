"""Histograms of gradient directions (Dalal & Triggs 2005), centred and scaled by what random strokes look like."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita.features.strokes import strokes

_STROKES = 3000
_SEED = 1  # of the strokes; public, like everything here
_TINY = 1e-6


class GradientHistograms(nn.Module):
    """Features of grey images for a private linear model, from a formula and from random strokes.

    Around every pixel: how much the image changes in each of several directions, and how much ink there is, averaged
    over a window; the square root of that, scaled to length one. From this the mean of random strokes is subtracted,
    and of the directions in which random strokes vary the leading ones are kept, damped by the square root of their
    spread. Fewer useless directions and lengths that are alike make up for much of the noise of a private model.

    Args:
        shape: Of one image, (1, height, width).
        bins: Directions.
        window: Side of the averaging window, in pixels; odd.
        stride: Distance between windows, in pixels.
        directions: How many are kept.
        scale: The length of typical features.

    Guarantee:
        Nothing in it is computed from a dataset, so it costs no privacy. Each output depends on its own image alone.
    """

    prior = "strokes"
    mean: Tensor
    basis: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        bins: int = 8,
        window: int = 3,
        stride: int = 1,
        directions: int = 100,
        scale: float = 2.0,
    ) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] != 1 or min(shape[1:]) < 4:
            raise ValueError(f"shape must be (1, height, width) with at least four pixels a side, got {tuple(shape)}.")
        self.bins, self.window, self.stride = (
            _check.count(name, value) for name, value in (("bins", bins), ("window", window), ("stride", stride))
        )
        if self.window % 2 == 0:
            raise ValueError(f"window must be odd, got {self.window}.")
        _check.in_range("scale", scale, 1e-3, 1e3)
        drawn = strokes(_STROKES, height=shape[1], width=shape[2], rng=np.random.default_rng(_SEED))
        sample = self.histograms(torch.from_numpy(drawn).float()[:, None]).double()
        mean = sample.mean(0)
        _, spread, axes = torch.linalg.svd(sample - mean, full_matrices=False)
        kept = min(_check.count("directions", directions), int((spread > 1e-4 * spread[0]).sum()))
        damped = axes[:kept].T * (spread[0] / spread[:kept]).sqrt()
        typical = ((sample - mean) @ damped).norm(dim=1).median()
        self.register_buffer("mean", mean.float())
        self.register_buffer("basis", (damped * (scale / typical)).float())
        self.features = kept

    def histograms(self, images: Tensor) -> Tensor:
        """Return the histograms around every window, flat, of length one; (n, …)."""
        padded = functional.pad(images, (1, 1, 1, 1))
        across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) / 2.0
        down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) / 2.0
        change = (across.square() + down.square()).sqrt()
        angle = torch.atan2(down, across) * (self.bins / (2.0 * math.pi))
        centres = torch.arange(self.bins, device=images.device, dtype=images.dtype)[None, :, None, None]
        apart = torch.remainder(angle - centres + self.bins / 2.0, self.bins) - self.bins / 2.0
        shares = (1.0 - apart.abs()).clamp_min(0.0)  # split between the two nearest directions
        maps = torch.cat([change * shares, images], 1)
        pooled = functional.avg_pool2d(maps, self.window, stride=self.stride, padding=self.window // 2)
        flat = pooled.clamp_min(0.0).sqrt().flatten(1)
        return functional.normalize(flat, eps=_TINY)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features)."""
        found: Tensor = (self.histograms(images) - self.mean) @ self.basis
        return found
