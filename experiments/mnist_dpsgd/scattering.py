"""Scattering features of 28x28 grey images, with scribbles as the prior: public, without a single fitted number."""

from __future__ import annotations

import torch

from tacita.features import Scattering

SIDE = 28


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


def features(images: torch.Tensor, batch: int = 256) -> torch.Tensor:
    """Return fixed features of images (n, 1, 28, 28), a batch at a time: each record on its own, at no privacy cost."""
    prior = torch.cat([strokes(250, seed) for seed in range(8)])[:, None]
    fixed = Scattering((1, SIDE, SIDE), prior=prior)
    with torch.no_grad():
        return torch.cat([fixed(part) for part in images.split(batch)])
