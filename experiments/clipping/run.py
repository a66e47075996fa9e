"""Which rule needs no clip norm to be chosen: normalised gradients, or a private running quantile of their norms?

    python -m experiments.clipping.run                       # every row that is missing
    python -m experiments.clipping.run "cnn sgd 0.5 *"       # some: model, optimiser, learning rate, rule
    python -m experiments.clipping.run --quick               # small sizes, into quick.jsonl
    python -m experiments.clipping.run --table               # what docs/how-to/train.md shows

MNIST, epsilon 2 at delta = 1e-5, batches of 512, 400 steps, trained on 50,000 of the training images; accuracy is that
on the other 10,000, and the test set is not touched. Rules: `auto` is `clip_norm="auto"`, g / (|g| + 0.01) (Bu et al.,
2023, arXiv:2206.07136); a number is a fixed clip norm; `quantile` lets the clip norm C follow the median of the sampled
norms by a geometric update from a noisy count (Andrew et al., 2021, arXiv:1905.03871), and `quantile / C` divides its
gradients by C. All have the same privacy: the count's cost is taken out of the gradient's noise.

The quantile is not part of Tacita, because of what this shows: as a model fits most records, their norms fall towards
zero, C falls with them, and what is left to learn is clipped away. A test compares the guide with the rows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments import rows as measured
from experiments.rows import Jobs, Rows, main
from experiments.tables import table
from tacita.accounting import noise_within
from tacita.data import load
from tacita.features import GradientHistograms
from tacita.training import clipped_sum, poisson_sample
from tacita.training.plan import SOFTENING
from tacita.training.recipes import default_model
from tacita.training.records import record_loss
from tacita.training.step import noisy_mean

EPSILON, DELTA = 2.0, 1e-5
TRAINED = 50_000
RULES: tuple[str | float, ...] = ("auto", "quantile", "quantile / C", 0.01, 0.1, 1.0, 10.0)
RATES = {
    ("cnn", "sgd"): (0.125, 0.5, 2.0),
    ("cnn", "adam"): (5e-4, 2e-3),
    ("histograms", "sgd"): (2.0, 8.0),
}
MODELS = {"cnn": "small CNN", "histograms": "linear on gradient histograms"}


@dataclass(frozen=True)
class Setting:
    """One training."""

    model: str
    optimizer: str
    learning_rate: float
    rule: str | float
    steps: int = 400
    batch_size: int = 512
    size: int = TRAINED


@cache
def split(model: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images, or their features, and digits: those to train on, and those to compare by."""
    mnist = load("mnist")
    x, y = torch.from_numpy(mnist.inputs), torch.from_numpy(mnist.targets)
    if model == "histograms":
        features = GradientHistograms((1, 28, 28))
        with torch.no_grad():
            x = torch.cat([features(part) for part in x.split(2000)])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    inside, outside = order[:TRAINED], order[TRAINED:]
    return (x[inside], y[inside]), (x[outside], y[outside])


def model_of(name: str, features: int) -> nn.Module:
    """Return the model as it begins."""
    torch.manual_seed(0)
    if name == "cnn":
        return default_model((1, 28, 28), 10)
    model = nn.Linear(features, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


class Quantile:
    """A clip norm that follows the median of the sampled records' norms.

    A record adds (g / C, b - 1/2), where b says whether its norm is at most C. With noise s on the sum of the first
    part and t on that of the second, the pair is one Gaussian release whose noise multiplier is that of
    1 / s² + 1 / (2 t)²: the two parts are shifted by at most 1 and 1/2.
    """

    def __init__(self, noise_multiplier: float, batch_size: int) -> None:
        self.clip_norm, self.batch_size = 1.0, batch_size
        self.count_noise = max(batch_size / 20, 5 * noise_multiplier)
        self.noise = (noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5

    def follow(self, norms: Tensor, rng: np.random.Generator) -> None:
        """Move the clip norm by the noisy share of the records within it."""
        count = float(((norms < self.clip_norm * (1 - 2e-6)).double() - 0.5).sum())
        share = 0.5 + (count + self.count_noise * rng.standard_normal()) / self.batch_size
        self.clip_norm *= float(np.exp(-0.2 * (share - 0.5)))


def row(setting: Setting) -> dict[str, Any]:
    """Train one model and return how often it is right."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    (x, y), (x_out, y_out) = split(setting.model)
    model, rate = model_of(setting.model, x[0].numel()), setting.batch_size / setting.size
    noise = noise_within((EPSILON, DELTA), sample_rate=rate, steps=setting.steps)
    loss, kinds = record_loss(model, nn.functional.cross_entropy), {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    options = {"momentum": 0.9} if setting.optimizer == "sgd" else {}
    optimizer = kinds[setting.optimizer](model.parameters(), lr=setting.learning_rate, **options)
    running = Quantile(noise, setting.batch_size) if str(setting.rule).startswith("quantile") else None
    fixed, clip_norms = setting.rule if isinstance(setting.rule, float) else 1.0, []
    for _ in range(setting.steps):
        sample = poisson_sample(setting.size, rate, rng=rng)
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        c = fixed if running is None else running.clip_norm
        clip_norms.append(c)
        found = clipped_sum(
            loss,
            parameters,
            (x[sample], y[sample]),
            torch.full((len(sample),), c, dtype=torch.float64),
            softening=SOFTENING if setting.rule == "auto" else None,
            rng=rng,
        )
        multiplier = noise if running is None else running.noise
        how = {"clip_norm": c, "noise_multiplier": multiplier, "divisor": setting.batch_size}
        gradients = noisy_mean(found.sums, **how, rng=rng)
        if running is not None:
            running.follow(found.norms, rng)
        for name, p in model.named_parameters():
            p.grad = gradients[name] / (c if setting.rule == "quantile / C" else 1.0)
        optimizer.step()
    with torch.no_grad():
        right = [(model(a).argmax(1) == b).sum() for a, b in zip(x_out.split(2000), y_out.split(2000), strict=True)]
    return {
        "seeds": [0],
        "settings": "compared here, on training images held out; not paid for",
        "accuracy": round(100.0 * float(sum(right)) / len(y_out), 2),
        "last_clip_norm": round(clip_norms[-1], 4),
        "noise_multiplier": noise,
    }


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    small: dict[str, Any] = {"steps": 4, "batch_size": 32, "size": 1000} if quick else {}
    return {
        f"{model} {optimizer} {rate:g} {rule}": partial(row, replace(Setting(model, optimizer, rate, rule), **small))
        for (model, optimizer), rates in RATES.items()
        for rate in rates[: 1 if quick else None]
        for rule in RULES
    }


def accuracies(found: Rows) -> str:
    """Return a table of accuracies by rule."""
    lines = []
    for (model, optimizer), rates in RATES.items():
        for rate in rates:
            names = [f"{model} {optimizer} {rate:g} {rule}" for rule in RULES]
            cells = [f"{found[name]['accuracy']:.1f}%" if name in found else "–" for name in names]
            lines.append([f"{MODELS[model]}, {optimizer}", f"{rate:g}", *cells])
    head = ["model", "learning rate", *(f"C = {rule:g}" if isinstance(rule, float) else rule for rule in RULES)]
    return table([word.replace("auto", "`auto`") for word in head], lines)


if __name__ == "__main__":
    if "--table" in sys.argv:
        print(accuracies(measured.load("clipping")))
    else:
        main("clipping", rows)
