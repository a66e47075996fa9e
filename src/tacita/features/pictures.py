"""Public features of pictures in one call, and the linear model on them that a recipe can name."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita.features.histograms import GradientHistograms
from tacita.features.patches import Patches
from tacita.features.priors import PRIORS
from tacita.features.scattering import Scattering
from tacita.features.whitening import Mirrored, Whitened

PublicMap = GradientHistograms | Patches | Scattering | Whitened
_MAPS_ONLY = 200  # images that `Scattering` needs; none of it but its maps is used


def picture_features(
    shape: tuple[int, ...], *, prior: str = "dead_leaves", filters: int = 800, directions: int = 600
) -> Whitened:
    """Return features of pictures for a private linear model: `Patches` of two scales and `Scattering`, half-whitened.

    Left and right do not matter, except with the prior "strokes", since handwriting is not read in a mirror. Images
    with a side below 16 pixels have patches of one scale alone.

    Args:
        shape: Of one image, (1 or 3, height, width), from eight pixels a side.
        prior: What the images are like, as far as is publicly known: "dead_leaves" for photographs, "silhouettes" for
            single objects on a plain ground, "strokes" for handwriting.
        filters: Patches of the finer scale; half as many of the coarser one. More take longer.
        directions: How many are shrunk.

    Guarantee:
        Nothing in it is computed from a dataset, so it costs no privacy. Each output depends on its own image alone.
    """
    _check.one_of("prior", prior, PRIORS)
    shape = tuple(shape)
    maps: list[nn.Module] = [Patches(shape, filters=filters, cells=2), Coarse(shape)]
    if min(shape[1:]) >= 16:
        maps.insert(1, Halved(shape, filters=max(1, filters // 2)))
    if prior != "strokes":
        maps = [Mirrored(part) for part in maps]
    return Whitened(*maps, prior=prior, shape=shape, directions=directions)


class Coarse(nn.Module):
    """Scattering averaged over 2x2 places: a quarter of the numbers.

    Args:
        shape: Of one image.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        noise = torch.zeros(_MAPS_ONLY, *shape).uniform_(generator=torch.Generator().manual_seed(0))
        self.scattering = Scattering(shape, prior=noise)
        self.scattering.prior = ""  # its maps alone are used, and they need none

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features)."""
        maps = self.scattering.standardised(images).reshape(len(images), -1, *self.scattering.places)
        return functional.avg_pool2d(maps, 2, ceil_mode=True).flatten(1)


class Halved(nn.Module):
    """Patches of images of half the size: they are twice as wide.

    Args:
        shape: Of one image.
        filters: Patches in the bank.
    """

    def __init__(self, shape: tuple[int, ...], *, filters: int) -> None:
        super().__init__()
        self.patches = Patches((shape[0], shape[1] // 2, shape[2] // 2), filters=filters, stride=1, cells=2)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (n, features)."""
        found: Tensor = self.patches(functional.avg_pool2d(images, 2))
        return found


class PublicLinear(nn.Module):
    """A linear model, zero at first, on public features. It takes images, or features that were computed before.

    Computing features takes long: train on `model.feature_map.blocks(images)`, which is computed once. The label of the
    run then says what the features are made of. Afterwards the model takes images.

    Args:
        feature_map: From images to features, such as `picture_features(shape)`.
        outputs: How many numbers it gives.
    """

    def __init__(self, feature_map: Whitened, outputs: int) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.linear = nn.Linear(feature_map.features, _check.count("outputs", outputs), bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, given: Tensor) -> Tensor:
        """Return outputs for images, (n, channels, height, width), or for their features, (n, features)."""
        ready = given if given.ndim == 2 else self.feature_map(given)
        found: Tensor = self.linear(ready.to(self.linear.weight.dtype))
        return found


def priors_of(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the synthetic images that the public feature maps in a model are made from, in order."""
    return tuple(sorted({part.prior for part in model.modules() if isinstance(part, PublicMap)} - {""}))
