"""MNIST tuned within one total epsilon, beside settings chosen by hand that nobody paid for.

    python -m experiments.tuning.run                     # every row that is missing
    python -m experiments.tuning.run "tuned 0.75 *"      # some: the kind of row, epsilon, and its number or setting
    python -m experiments.tuning.run --quick             # small sizes, into quick.jsonl
    python -m experiments.tuning.run --table             # what docs/how-to/tune.md shows

The model is the linear one on wavelet scattering of `experiments/mnist_dpsgd`, whose rows were tuned by hand. 50,000 of
the training images are trained on; the score is how many of the other 10,000 are classified correctly, with noise,
which is paid for. A `tuned` row is a whole `tacita.training.tune`, with the least noise that keeps it to the epsilon;
`alone` is one training of one setting, of those with the fewer steps, with all of the epsilon: what a setting that
was not chosen gets. Trials are never seeded, so rows cannot be repeated to the digit; an interrupted tuning goes on
from its folder under `runs/`. (How long a row took tells how many trials there were. MNIST is public.)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments import rows as measured
from experiments.mnist_dpsgd.run import accuracy, scattered
from experiments.rows import Jobs, Rows, main
from experiments.tables import table
from tacita.accounting import NegativeBinomial, noise_within
from tacita.accounting.tuned_noise import tuned_noise_multipliers
from tacita.data import load
from tacita.training import PrivateTraining, tune

DELTA = 1e-5
SPACE = {"learning_rate": [3.0, 10.0, 30.0, 90.0], "clip_norm": [0.1, 1.0], "steps": [100, 300]}
EXPECTED = 8.0  # trials, by the logarithmic law
SCORE_NOISE = 15.0
TUNINGS = 1
BY_HAND = {0.75: "linear-0.75", 2.0: "linear-2"}
Settings = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much of MNIST is used, and how."""

    trained: int = 50_000
    counted: int = 10_000
    batch_size: int = 4096
    steps: float = 1.0  # share of the steps of the space

    @property
    def settings(self) -> list[Settings]:
        """The settings of the space."""
        made = [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
        return [{**settings, "steps": max(2, int(self.steps * settings["steps"]))} for settings in made]

    @cached_property
    def records(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Features and digits: to train on, to count, and of the test set."""
        mnist, size = load("mnist"), self.trained + self.counted
        x, x_test = (torch.from_numpy(images) for images in (mnist.inputs[:size], mnist.test_inputs[: self.counted]))
        y, y_test = torch.from_numpy(mnist.targets[:size]), torch.from_numpy(mnist.test_targets[: self.counted])
        x, x_test = scattered(x, "train"), scattered(x_test, "test")
        order = torch.from_numpy(np.random.default_rng(0).permutation(size))
        inside, outside = order[: self.trained], order[self.trained :]
        return (x[inside], y[inside]), (x[outside], y[outside]), (x_test, y_test)


def training(sizes: Sizes, noise: float, settings: Settings, run_dir: Path | None) -> PrivateTraining:
    """Return a training of one setting."""
    records, _, _ = sizes.records
    model = nn.Linear(records[0].shape[1], 10, bias=False)
    nn.init.zeros_(model.weight)
    return PrivateTraining(
        model,
        nn.functional.cross_entropy,
        records,
        optimizer=torch.optim.SGD(model.parameters(), lr=settings["learning_rate"], momentum=0.9),
        batch_size=sizes.batch_size,
        nominal_size=sizes.trained,
        steps=settings["steps"],
        clip_norm=settings["clip_norm"],
        noise_multiplier=noise,
        panel=0,
        run_dir=run_dir,
        delta=DELTA,
        name="Handwritten digits (MNIST)",
    )


def alone(sizes: Sizes, epsilon: float, settings: Settings) -> dict[str, Any]:
    """Train one setting with all of the epsilon."""
    torch.set_num_threads(1)
    rate = sizes.batch_size / sizes.trained
    noise = noise_within((epsilon, DELTA), sample_rate=rate, steps=settings["steps"])
    private = training(sizes, noise, settings, None)
    for _ in private.steps(curve=False):
        pass
    right = round(100 * accuracy(private.model, *sizes.records[2]), 2)
    return {"seeds": [], "settings": "not chosen", **settings, "accuracy": right, "noise_multiplier": noise}


def tuned(sizes: Sizes, epsilon: float, number: int) -> dict[str, Any]:
    """Tune within the epsilon, and return what is measured of the best model."""
    torch.set_num_threads(1)
    law, settings = NegativeBinomial.expecting(EXPECTED), sizes.settings
    rate, score = sizes.batch_size / sizes.trained, {"score_noise": SCORE_NOISE, "score_apart": True}
    sampled = [(rate, one["steps"]) for one in settings]
    noises = tuned_noise_multipliers(law, sampled, target=(epsilon, DELTA), **score)
    space = [{**one, "noise_multiplier": noise} for one, noise in zip(settings, noises, strict=True)]
    _, (x, y), test = sizes.records
    best = tune(
        lambda one, run_dir: training(sizes, one["noise_multiplier"], one, run_dir),
        space,
        trials=law,
        score=lambda model: right_answers(model, x, y),
        delta=DELTA,
        folder=f"runs/mnist-tuned-{epsilon:g}-{sizes.trained}-{number}",
        target=(epsilon, DELTA),
        **score,
    )
    if best is None:
        raise RuntimeError("this law draws at least one run")
    right = round(100 * accuracy(best.model, *test), 2)
    chosen = "within the epsilon, by a private count on 10,000 training images held out for that"
    return {"seeds": [], "settings": chosen, **best.settings, "accuracy": right, "worst": best.label.worst.epsilon}


def right_answers(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return how many records are classified correctly, each by itself: one record changes it by at most 1."""
    with torch.no_grad():
        return sum(int(model(one[None]).argmax() == answer) for one, answer in zip(x, y, strict=True))


def accuracies(found: Rows, by_hand: Rows) -> str:
    """Return the table of the guide.

    Args:
        found: The rows of this experiment.
        by_hand: The rows of `experiments/mnist_dpsgd`.
    """

    def cell(rows: Rows, start: str) -> str:
        right = [row["accuracy"] for name, row in rows.items() if name.startswith(start)]
        if not right:
            return "–"
        low, high = f"{min(right):.2f}", f"{max(right):.2f}"
        several = f", {len(right)} of them" if len(right) > 1 else ""
        return f"{low}%" if low == high else f"{low} to {high}%{several}"

    lines = [
        ["by hand, the choice not paid for", *(cell(by_hand, f"{name} ") for name in BY_HAND.values())],
        ["tuned, the choice within epsilon", *(cell(found, f"tuned {epsilon:g} ") for epsilon in BY_HAND)],
        ["each setting of 100 steps, alone", *(cell(found, f"alone {epsilon:g} ") for epsilon in BY_HAND)],
    ]
    return table(["settings", *(f"epsilon {epsilon:g}" for epsilon in BY_HAND)], lines)


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    sizes = Sizes(600, 200, 64, 0.05) if quick else Sizes()
    whole = {
        f"tuned {epsilon:g} {number}": partial(tuned, sizes, epsilon, number)
        for number in range(1 if quick else TUNINGS)
        for epsilon in BY_HAND
    }
    single = {
        f"alone {epsilon:g} {one['learning_rate']:g} {one['clip_norm']:g} {one['steps']}": partial(
            alone, sizes, epsilon, one
        )
        for epsilon in list(BY_HAND)[:1]
        for one in sizes.settings[:: 8 if quick else 2]
    }
    return {**whole, **single}


if __name__ == "__main__":
    if "--table" in sys.argv:
        print(accuracies(measured.load("tuning"), measured.load("mnist_dpsgd")))
    else:
        main("tuning", rows)
