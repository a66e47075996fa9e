"""The thesis's GANs: chapter 3's conditional one with a gradient penalty, chapter 7's unconditional one with noise.

Sections 3.6.2 and 7.5.1 give the layers, their activations and the sizes 64 and 4096. The channels of the
convolutions, the size of the latent vector and the shape of the 4096 numbers are not given; ours are small enough for
one core. Images are in [-1, 1] here, as behind a tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita.synthesis.gan import Game, Wgan, WganTraining, adam, sample
from tacita.synthesis.networks import Critic, Generator, NetworkGenerator

LATENT, FEATURES, BATCH, CRITIC_STEPS, LEARNING_RATE = 128, 64, 64, 5, 1e-4
LAYER_NOISE = 1.5  # of the DP critic
CHANNELS = (16, 32, 64, 128)  # of the critic's convolutions: four in chapter 3, the first three in chapter 7
WEIGHTS = 0.01  # to which Arjovsky et al. (2017) clip the critic's weights
AVERAGE = 0.999

Labelled = tuple[Tensor, Tensor]


class AppendingCritic(Critic):
    """A critic whose labels are appended to the input of the linear layer, as chapter 3 has it."""

    def __init__(self, body: nn.Module, size: int, classes: int, layer_noise: float) -> None:
        super().__init__(body, size + classes, 0, FEATURES, layer_noise)
        self.labels = classes

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return one number for every record."""
        if labels is None:
            raise ValueError("This critic judges records by their labels: pass them.")
        ones = functional.one_hot(labels, self.labels).to(inputs.dtype)
        vector = functional.selu(self.describe(torch.cat([self.body(inputs), ones], 1)))
        if self.layer_noise:
            length = vector.square().sum(1, keepdim=True).add(1e-12).sqrt()
            vector = vector / length.clamp_min(1.0)
            vector = vector + self.layer_noise * torch.randn(vector.shape, generator=self.draws)
        score: Tensor = self.score(vector)[:, 0]
        return score


def critic(classes: int, *, layers: int, appended: bool = False, layer_noise: float = 0.0, side: int = 28) -> Critic:
    """Return a critic of so many convolutions with SELU, a linear layer to 64 features and a linear one to a number.

    Args:
        classes: How many classes it knows; 0 for none.
        layers: Convolutions.
        appended: Whether labels are appended to the linear layer's input. Otherwise a label adds a direction of the
            features, as in the library.
        layer_noise: Of the DP critic; 0 for none.
        side: Of an image, in pixels.

    Returns:
        The critic, with random weights.
    """
    net, before = nn.Sequential(), 1
    for channels in CHANNELS[:layers]:
        net.extend([nn.Conv2d(before, channels, 4, 2, 1), nn.SELU()])
        before = channels
    net.append(nn.Flatten())
    with torch.no_grad():
        size = net(torch.zeros(1, 1, side, side)).shape[1]
    if appended:
        return AppendingCritic(net, size, classes, layer_noise)
    return Critic(net, size, classes, FEATURES, layer_noise)


def generator(classes: int, *, side: int = 28) -> Generator:
    """Return a linear layer to 4096, three deconvolutions to 32 by 32, max pooling down to the image, and tanh."""
    net = nn.Sequential(
        nn.Linear(LATENT + classes, 4096),
        nn.SELU(),
        nn.Unflatten(1, (256, 4, 4)),
        nn.ConvTranspose2d(256, 64, 4, 2, 1),
        nn.SELU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.SELU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1),
        nn.AdaptiveMaxPool2d(side),
        nn.Tanh(),
    )
    return NetworkGenerator(net, LATENT, classes)


def training(
    train: Labelled,
    *,
    seed: int,
    steps: int,
    classes: int,
    layers: int,
    appended: bool = False,
    layer_noise: float = 0.0,
    clipped: bool = False,
    **noise: Any,
) -> WganTraining:
    """Return a training that is ready to start.

    Args:
        train: Images in [0, 1] and labels.
        seed: Of everything.
        steps: Of the critic.
        classes: How many classes the generator knows; 0 for none.
        layers: Convolutions of the critic.
        appended: How the critic takes labels, as in `critic`.
        layer_noise: Of the DP critic; 0 for none.
        clipped: Whether the critic's weights are clipped (WGAN), instead of a gradient penalty (WGAN-GP).
        noise: `clip_norm` and `noise_multiplier` of the whole update, if it is noised.

    Returns:
        The training; iterating over it takes the steps.
    """
    torch.manual_seed(seed)
    judge = critic(classes, layers=layers, appended=appended, layer_noise=layer_noise)
    maker = generator(classes)
    pool = max(1, round(BATCH / max(1, classes)))
    options: dict[str, Any] = {"penalty": 0.0} if clipped else {}
    optimizer = adam(maker.parameters(), LEARNING_RATE)
    game = Game(judge, maker, optimizer, pool=pool, batch=BATCH, average=AVERAGE, **options)
    plan = Wgan(
        steps=steps,
        batch_size=BATCH,
        size=len(train[1]),
        critic_steps=CRITIC_STEPS,
        learning_rate=LEARNING_RATE,
        **noise,
    )
    made = WganTraining(plan, game, 2.0 * train[0] - 1.0, train[1], rng=np.random.default_rng(seed))
    if clipped:
        made.optimizer.register_step_post_hook(lambda *_: clip_weights(judge))
    return made


@torch.no_grad()
def clip_weights(judge: nn.Module) -> None:
    """Clip every weight."""
    for parameter in judge.parameters():
        parameter.clamp_(-WEIGHTS, WEIGHTS)


def images(maker: Generator, count: int, *, seed: int, annotate: Callable[[Tensor], Tensor] | None = None) -> Labelled:
    """Return labelled images in [0, 1]."""
    inputs, labels = sample(maker, count, rng=np.random.default_rng(seed))
    inputs = (inputs + 1.0) / 2.0
    return inputs, labels if annotate is None else torch.cat([annotate(part) for part in torch.split(inputs, 1024)])
