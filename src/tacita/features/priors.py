"""Synthetic images by name: what maps are centred and scaled by in place of data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita.features.dead_leaves import dead_leaves
from tacita.features.silhouettes import silhouettes
from tacita.features.strokes import strokes

PRIORS = ("dead_leaves", "silhouettes", "strokes")
_SEED = 1  # public, like everything here


def drawn(prior: str, shape: tuple[int, ...], count: int) -> Tensor:
    """Return synthetic images, the same at every call.

    Args:
        prior: "dead_leaves" for photographs, "silhouettes" for single objects, "strokes" for handwriting.
        shape: Of one image, (1 or 3, height, width). Grey leaves are the mean of their colours, and coloured
            silhouettes and strokes are grey.
        count: How many.

    Returns:
        Shape (count, *shape), values in [0, 1].

    Guarantee:
        Nobody's data contributed: the images come from a formula and a public seed.
    """
    _check.one_of("prior", prior, PRIORS)
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"shape must be (1 or 3, height, width), got {tuple(shape)}.")
    channels, height, width = shape
    rng = np.random.default_rng(_SEED)
    if prior == "dead_leaves":
        colours = dead_leaves(count, height=height, width=width, rng=rng)
        return torch.from_numpy(colours if channels == 3 else colours.mean(1, keepdims=True)).float()
    draw = silhouettes if prior == "silhouettes" else strokes
    grey = torch.from_numpy(draw(count, height=height, width=width, rng=rng)).float()
    return grey[:, None].repeat(1, channels, 1, 1)
