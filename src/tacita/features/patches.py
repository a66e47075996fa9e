"""Random patch features (Coates & Ng 2011): how alike each patch of an image is to patches of synthetic images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita.features.priors import drawn

_IMAGES = 1000  # dead leaves from which patches are cut
_PATCHES = 40_000  # patches that decide on the whitening
_SEED = 2  # of the choice of patches; public, like everything here
_FAINT = 1e-3  # added to a patch's variance: fainter patches are not blown up
_RIDGE = 0.1  # added to the eigenvalues of the patches' covariance, whose mean is about 1
_THRESHOLD = 0.5


class Patches(nn.Module):
    """Features of grey or colour images for a private linear model, from patches of synthetic images.

    Every patch of an image is standardised (mean 0, variance 1 unless it is faint), whitened, and compared with a
    bank of whitened patches, by inner products. What exceeds a threshold, and what falls short of its negative, is
    averaged over the cells of a coarse grid; of that the square root is taken. The whitening and the bank come from
    `dead_leaves`, whose edges lie as in photographs.

    Args:
        shape: Of one image, (1 or 3, height, width).
        filters: Patches in the bank.
        size: Side of a patch, in pixels.
        stride: Distance between patches, in pixels.
        cells: Of the grid, along each side.

    Raises:
        ValueError: If an argument is out of range, or the image holds fewer patches than cells along a side.

    Guarantee:
        Nothing in it is computed from a dataset, so it costs no privacy. Each output depends on its own image alone.
    """

    prior = "dead_leaves"
    bank: Tensor
    shift: Tensor

    def __init__(
        self, shape: tuple[int, ...], *, filters: int = 1200, size: int = 6, stride: int = 2, cells: int = 2
    ) -> None:
        super().__init__()
        kept, self.size = _check.count("filters", filters), _check.count("size", size, low=2)
        self.stride, self.cells = _check.count("stride", stride), _check.count("cells", cells)
        images = drawn("dead_leaves", tuple(shape), _IMAGES)
        places = (min(shape[1:]) - self.size) // self.stride + 1
        if places < self.cells:
            raise ValueError(f"Images of shape {tuple(shape)} hold too few patches of {size} pixels for {cells} cells.")
        patches = _cut(images, self.size)
        whitening, mean = _whitening(patches)
        contrasted = patches[patches.norm(dim=1) > 0.5 * patches.shape[1] ** 0.5][:kept]
        units = functional.normalize((contrasted - mean) @ whitening, dim=1)
        kernels = units @ whitening
        bank = kernels - kernels.mean(1, keepdim=True)  # patches have mean 0, so this changes no inner product
        self.register_buffer("bank", bank.reshape(-1, shape[0], self.size, self.size))
        self.register_buffer("shift", kernels @ mean)
        self.features = 2 * len(bank) * self.cells**2

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features): for each side of the threshold, filter and cell."""
        pixels = images.mean(1, keepdim=True), images.square().mean(1, keepdim=True)
        first, second = (functional.avg_pool2d(maps, self.size, self.stride) for maps in pixels)
        spread = ((second - first.square()).clamp_min(0.0) + _FAINT).sqrt()
        found = functional.conv2d(images, self.bank, stride=self.stride) / spread - self.shift[:, None, None]
        sides = (functional.relu(found - _THRESHOLD), functional.relu(-found - _THRESHOLD))
        pooled = [functional.adaptive_avg_pool2d(side, self.cells).flatten(1) for side in sides]
        return torch.cat(pooled, 1).sqrt()


def _cut(images: Tensor, size: int) -> Tensor:
    """Return standardised patches at random places of random images, (patches, pixels of all colours)."""
    rng = np.random.default_rng(_SEED)
    count, _, height, width = images.shape
    which, top, left = (rng.integers(high, size=_PATCHES) for high in (count, height - size + 1, width - size + 1))
    windows = images.unfold(2, size, 1).unfold(3, size, 1)
    patches = windows[which, :, top, left].flatten(1)
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + _FAINT).sqrt()


def _whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Return the symmetric matrix that makes the patches' covariance the identity, up to a ridge, and their mean."""
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T).double())
    whitening = (vectors * (values.clamp_min(0.0) + _RIDGE).rsqrt()) @ vectors.T
    return whitening.float(), mean
