"""Feature maps put together, and centred and scaled by synthetic images instead of data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita.features.priors import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    Map = Callable[[Tensor], Tensor]

_BATCH = 8  # larger batches take up to twice as long each: their numbers do not stay in the processor's cache
_ROWS = 512  # features whitened at once: many, because the directions are read from memory each time
_PER_DIRECTION = 4  # synthetic images for each direction, so that its spread is known


class Mirrored(nn.Module):
    """The mean of the features of an image and of its mirror image, so that left and right do not matter.

    Args:
        feature_map: From images to features, (n, features).
    """

    def __init__(self, feature_map: Map) -> None:
        super().__init__()
        self.feature_map = feature_map

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features)."""
        return (self.feature_map(images) + self.feature_map(images.flip(-1))) / 2.0


class Whitened(nn.Module):
    """Features of images for a private linear model: one or more maps side by side, half-whitened by synthetic images.

    Each map's features are scaled to length one, and put side by side. From these the mean of synthetic images is
    taken off, and the directions in which those vary most are shrunk, half of the way (in logarithms) to equal
    variances. Then each image's features are scaled to length one, so that for a linear model the norm of a gradient
    depends on the prediction alone. What all images of a kind have in common would otherwise eat up the clip norm.

    Computing them takes long; where the images stay the same, do it once, with `features.blocks(images)`.

    Args:
        maps: From images to features, (n, features), such as `Patches(shape)` and `Scattering(shape).standardised`.
        prior: "dead_leaves", "silhouettes" or "strokes": the synthetic images.
        shape: Of one image, (1 or 3, height, width).
        directions: How many are shrunk; four synthetic images are drawn for each.

    Raises:
        ValueError: If an argument is out of range.

    Guarantee:
        Nothing in it is computed from a dataset, unless a map is, so it costs no privacy. Each output depends on its
        own image alone.
    """

    mean: Tensor
    directions: Tensor
    shrink: Tensor

    def __init__(self, *maps: Map, prior: str, shape: tuple[int, ...], directions: int = 1000) -> None:
        super().__init__()
        if not maps:
            raise ValueError("Give at least one map.")
        kept, self.prior = _check.count("directions", directions), prior
        self.maps = maps
        self.parts = nn.ModuleList([part for part in maps if isinstance(part, nn.Module)])
        images = drawn(prior, tuple(shape), _PER_DIRECTION * kept)
        sample = _in_blocks(self.joined, images)
        mean = sample.mean(0)
        spread, axes = leading(sample.sub_(mean), min(kept, sample.shape[1] - 1))
        self.register_buffer("mean", mean)
        self.register_buffer("directions", axes)
        self.register_buffer("shrink", (spread[-1] / spread[:-1]).sqrt())
        self.features = len(mean)

    def joined(self, images: Tensor) -> Tensor:
        """Return all maps' features side by side, each map's of length one; (n, features)."""
        return torch.cat([functional.normalize(part(images), dim=1, eps=1e-6) for part in self.maps], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features), rows of length one."""
        return self._scaled(self.joined(images))

    def _scaled(self, joined: Tensor) -> Tensor:
        centred = joined - self.mean
        shrunk = centred + ((centred @ self.directions.T) * (self.shrink - 1)) @ self.directions
        return functional.normalize(shrunk, dim=1)

    def blocks(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the features of many images, computed block by block without gradients.

        Args:
            images: Shape (n, channels, height, width).
            dtype: Of the result; `torch.float16` halves the memory.
        """
        found = torch.empty(len(images), self.features, dtype=dtype)
        for start in range(0, len(images), _ROWS):
            part = slice(start, start + _ROWS)
            found[part] = self._scaled(_in_blocks(self.joined, images[part]))
        return found


def leading(centred: Tensor, directions: int) -> tuple[Tensor, Tensor]:
    """Return the largest singular values, one more than directions, and the directions, by the Gram matrix."""
    values, vectors = torch.linalg.eigh((centred @ centred.T).double())
    spread = values.flip(0)[: directions + 1].clamp_min(1e-12).sqrt().float()
    left = vectors.flip(1)[:, :directions].float()
    return spread, (left.T @ centred) / spread[:-1, None]


def _in_blocks(feature_map: Map, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([feature_map(part) for part in torch.split(images, _BATCH)])
