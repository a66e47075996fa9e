"""Model inversion: what can be rebuilt from models trained with and without privacy.

    python experiments/inversion/run.py digits docs/assets/inversion-digits.png
    python experiments/inversion/run.py faces /tmp/faces.png --epsilon 8
    python experiments/inversion/run.py faces /tmp/faces.png --epsilon 1

Digits: half of the training images for the attacked models, half for the recogniser. Faces (Olivetti, 40 people): seven
photos of each person for the models, the other three for the recogniser. The models' accuracy is measured on the
recogniser's part, the recogniser's on theirs. The attacked models are softmax regressions; faces are averaged to 32x32,
and brightness and contrast of each are evened out. The plain model takes the same steps as the private one, without
clipping and noise. One JSON line goes to the standard output, the picture to the given path; the picture of the faces
shows people who took part, so keep it to yourself. The settings were chosen by looking at the accuracy, which is not
accounted for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita.audit import inversion, recogniser
from tacita.data import load
from tacita.training import PrivateTraining

DELTA = {"digits": 1e-4, "faces": 1e-3}
STEPS, LEARNING_RATE = 100, 1.0


class Evened(nn.Module):
    """Images made smaller, with average 0 and norm 4 each: nothing of one record enters another."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        """Return rows."""
        rows = functional.avg_pool2d(images, self.factor).flatten(1)
        rows = rows - rows.mean(dim=1, keepdim=True)
        return 4.0 * rows / (rows.norm(dim=1, keepdim=True) + 1e-3)


def softmax_regression(front: nn.Module, features: int, classes: int) -> nn.Module:
    """Return a softmax regression that starts at zero."""
    linear = nn.Linear(features, classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(front, linear)


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[str, ...]]:
    """Return the attacked models' records, the recogniser's, and the classes."""
    data = load("digits")
    x, y = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    half = len(y) // 2
    return (x[:half], y[:half]), (x[half:], y[half:]), data.classes or ()


def faces() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[str, ...]]:
    """Return the same for the Olivetti faces."""
    data = load("olivetti")
    x = torch.cat([torch.from_numpy(data.inputs), torch.from_numpy(data.test_inputs)])
    y = torch.cat([torch.from_numpy(data.targets), torch.from_numpy(data.test_targets)])
    photos = x[torch.argsort(y, stable=True)].view(40, 10, *x.shape[1:])
    order = torch.from_numpy(np.random.default_rng(0).permuted(np.tile(np.arange(10), (40, 1)), axis=1))
    photos = photos[torch.arange(40)[:, None], order]

    def part(first: int, last: int) -> tuple[Tensor, Tensor]:
        return photos[:, first:last].flatten(0, 1), torch.arange(40).repeat_interleave(last - first)

    return part(0, 7), part(7, 10), data.classes or ()


def train(model: nn.Module, records: tuple[Tensor, Tensor]) -> nn.Module:
    """Train without privacy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(records[0]), records[1]).backward()
        optimizer.step()
    return model


def train_privately(model: nn.Module, records: tuple[Tensor, Tensor], epsilon: float, delta: float) -> nn.Module:
    """Train privately: every record in every step, which is best for so few."""
    PrivateTraining(
        model,
        functional.cross_entropy,
        records,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        sample_rate=1.0,
        steps=STEPS,
        target=(epsilon, delta),
        batch_size=len(records[1]),
        panel=0,
        seed=0,
    ).run()
    return model


def accuracy(model: nn.Module, records: tuple[Tensor, Tensor]) -> float:
    """Return the share of records that the model gets right."""
    with torch.no_grad():
        return float((model(records[0]).argmax(1) == records[1]).float().mean())


def main() -> None:
    """Run one experiment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=("digits", "faces"))
    parser.add_argument("picture", type=Path, help="where the picture goes; a picture of faces shows real people")
    parser.add_argument("--epsilon", type=float, default=1.0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    attacked, other, classes = digits() if chosen.data == "digits" else faces()
    front, features = (nn.Flatten(), 64) if chosen.data == "digits" else (Evened(2), 1024)
    plain = train(softmax_regression(front, features, len(classes)), attacked)
    private = softmax_regression(front, features, len(classes))
    train_privately(private, attacked, chosen.epsilon, DELTA[chosen.data])
    judge = recogniser(*other, rng=np.random.default_rng(1))
    targets = torch.stack([attacked[0][attacked[1] == c].mean(0) for c in range(len(classes))])
    found = inversion(
        private,
        plain,
        targets,
        judge,
        classes,
        private_accuracy=accuracy(private, other),
        plain_accuracy=accuracy(plain, other),
        rng=np.random.default_rng(2),
    )
    chosen.picture.write_bytes(found.png())
    row = {"data": chosen.data, "epsilon": chosen.epsilon, "delta": DELTA[chosen.data]}
    print(json.dumps({**row, "recogniser_accuracy": accuracy(judge, attacked), **found.to_dict()}))


if __name__ == "__main__":
    main()
