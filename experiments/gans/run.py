"""The thesis's GANs as published: tables 3.1 and 7.1, figures 3.2, 3.3 and 7.2 to 7.5, section 7.5.3.

    python -m experiments.gans.run                  # every row that results.jsonl does not hold; 90 minutes on one core
    python -m experiments.gans.run --quick          # a few steps of everything, into quick.jsonl
    python -m experiments.gans.run "table 7.1 *"    # some rows, by pattern

A row is one generator: trained on the training set, its samples judged by students on the test set at the end. The
thesis trains for hundreds of epochs; how many steps fit here is said in each row. Nothing was chosen by a result:
the learning rate, the critic's steps, the clip norm and the noise are the thesis's, sizes fit one core.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor

from experiments.gans.published import BATCH, LAYER_NOISE, Labelled, images, training
from experiments.rows import Jobs, Row, main
from experiments.synthesis.run import judged
from tacita.accounting import participation_bound
from tacita.data import Dataset, load
from tacita.guarantee import Guarantee
from tacita.papers import coded_costs, coded_epsilons
from tacita.synthesis import Recipe, alarms, controls, frechet, measuring_features, released_dataset
from tacita.synthesis.gan import WganTraining, tags_of
from tacita.synthesis.jobs import start
from tacita.synthesis.pages import grid_png
from tacita.synthesis.students import (
    drawn,
    labelled,
    learning_curve,
    predict,
    student,
    train_student,
    validation_curves,
)
from tacita.training import PrivateTraining
from tacita.training.recipes import default_model

AS_PUBLISHED = "the thesis's, where it names them; channels and steps by what fits one core; nothing was tuned"
DEFAULTS = "the library's defaults, as in experiments/synthesis"
CLIP_NORM, NOISE, DELTA = 0.5, {"mnist": 0.01, "fashion-mnist": 0.02}, 1e-10  # section 7.5.1; noise over the clip norm
EPOCHS = 400  # of section 7.5.1
TURNED = 0.5  # of the images in figure 7.3: the thesis says "some"
COMPARED = 2_000  # records of a Fréchet distance
SIZES = (100, 1_000, 10_000)


def sets(name: str, quick: bool) -> tuple[Dataset, Labelled, Labelled]:
    """Return a data set, its training records and its test records; few of them for a quick run."""
    data = load(name)
    if quick:
        few, some = slice(600), slice(300)
        data = replace(
            data,
            **{part: getattr(data, part)[few] for part in ("inputs", "targets")},
            **{part: getattr(data, part)[some] for part in ("test_inputs", "test_targets")},
        )
    return data, labelled(data), (torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets))


def picture(made: Labelled) -> str:
    """Return a few samples of each class as a PNG, in base64."""
    return base64.b64encode(grid_png(made[0], columns=6, labels=made[1], cell=28)).decode()


def measured(made: Labelled, train: Labelled, test: Labelled, seed: int, *, steps: int | None, learn: bool) -> Row:
    """Return what a released set is worth: students of so many steps, measures, curves, and a picture."""
    classes, rng = int(test[1].max()) + 1, np.random.default_rng(seed)
    inputs, labels = drawn(made, len(made[1]), rng)
    held = len(labels) // 6
    parts = (inputs[held:], labels[held:]), test, (inputs[:held], labels[:held])
    losses = validation_curves(*parts, classes, rng=rng, steps=steps)
    row = {
        **judged(made, train, test, classes, seed, steps=steps),
        "validation": {**vars(losses), "pearson": losses.pearson},
        "selection": losses.selection,
        "regret": losses.regret,
        "picture": picture(made),
    }
    if learn:
        sizes = [size for size in SIZES if size <= min(len(labels), len(train[1]))]
        row["learning"] = vars(learning_curve(made, test, classes, sizes, real=train, rng=rng, steps=steps))
    return row


def frechet_on_the_way(run: WganTraining, test: Labelled, seed: int, every: int) -> Row:
    """Train, and return after every so many steps the Fréchet distance from test images, and a short student."""
    features = measuring_features(test[0].shape[1:])
    held = features(drawn(test, min(COMPARED, len(test[1])), np.random.default_rng(seed))[0])
    found: Row = {"steps": [], "frechet": [], "student": []}
    for step in run:
        if step % every == 0:
            found["steps"].append(step)
            made = images(run.game.generator, len(held), seed=seed)
            found["frechet"].append(frechet(features(made[0]), held))
            found["student"].append(student(made, test, 10, rng=np.random.default_rng(seed), steps=100))
            print(step, found["frechet"][-1], found["student"][-1], flush=True)
    return found


def chapter_3(name: str, seed: int, steps: int, *, quick: bool, **critic: Any) -> Row:
    """Return table 3.1: the conditional WGAN-GP of section 3.6.2, by how its critic takes labels and noise."""
    _, train, test = sets(name, quick)
    run = training(train, seed=seed, steps=steps, classes=10, layers=4, **critic)
    curve = frechet_on_the_way(run, test, seed, max(1, steps // 2) if quick else 1500)
    made, fit = images(run.game.generator, len(train[1]), seed=seed), 5 if quick else None
    row = {
        "seeds": [seed],
        "settings": AS_PUBLISHED,
        "steps": steps,
        "epochs": steps * BATCH / len(train[1]),
        "curve": curve,
        **measured(made, train, test, seed, steps=fit, learn=False),
    }
    run.game.settle()
    smooth = images(run.game.generator, len(train[1]), seed=seed)
    return {**row, "averaged": judged(smooth, train, test, 10, seed, steps=fit)}


def turned(train: Labelled, seed: int) -> Labelled:
    """Return the records with some of the images rotated by 90 degrees: the bug of figure 7.3."""
    chosen = torch.from_numpy(np.random.default_rng(seed).random(len(train[1])) < TURNED)
    return torch.where(chosen[:, None, None, None], torch.rot90(train[0], 1, (2, 3)), train[0]), train[1]


def annotator(train: Labelled, seed: int, *, quick: bool) -> Callable[[Tensor], Tensor]:
    """Return a classifier trained with DP-SGD at a worst case of (1, 1e-5)."""
    torch.manual_seed(seed)
    model, size = default_model(tuple(train[0].shape[1:]), 10), len(train[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    plan = {"batch_size": min(512, size // 4), "steps": 3 if quick else 200, "target": (1.0, 1e-5), "panel": 0}
    private = PrivateTraining(
        model, torch.nn.functional.cross_entropy, train, optimizer=optimizer, nominal_size=size, seed=seed, **plan
    )
    for _ in private:
        pass
    return partial(predict, model)


def leave_one_out(run: WganTraining, train: Labelled, rng: np.random.Generator) -> np.ndarray:
    """Return how far apart clipped batch gradients are that lack one record each, as the authors measure it."""
    rows = torch.from_numpy(rng.permutation(len(train[1]))[:BATCH])
    inputs, weights = 2.0 * train[0][rows] - 1.0, list(run.game.critic.parameters())
    losses = run.game(inputs, train[1][rows], tags_of(inputs))
    each = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
    flat = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in each]).double()
    without = (flat.sum(0) - flat) / (BATCH - 1)
    clipped = without / (without.norm(dim=1, keepdim=True) / CLIP_NORM).clamp_min(1.0)
    return pdist(clipped.numpy())


def accounts(distances: list[np.ndarray], *, size: int, noise: float, steps: int) -> Row:
    """Return the authors' figure, from distances of some steps that stand for all, beside the true worst case."""
    rate = BATCH / size
    some = [coded_costs(d, sample_rate=rate, stddev=noise * CLIP_NORM, power=steps) for d in distances]
    each = np.repeat(np.mean(some, axis=0)[None], steps, axis=0)
    worst = participation_bound(sample_rate=rate, noise_multiplier=noise / 2.0, steps=steps, delta=DELTA)
    record = participation_bound(sample_rate=rate, noise_multiplier=noise, steps=steps, delta=DELTA)
    theirs = float(coded_epsilons(each, delta=DELTA)[-1])
    return {"steps": steps, "coded": theirs, "worst": worst.epsilon, "clipped_by_record": record.epsilon}


def chapter_7(name: str, seed: int, steps: int, *, clipped: bool, bug: bool = False, quick: bool = False) -> Row:
    """Return table 7.1: the unconditional GAN of section 7.5.1, whose images a private classifier labels."""
    _, train, test = sets(name, quick)
    train, noise = turned(train, seed) if bug else train, NOISE[name]
    mechanism = {"clip_norm": CLIP_NORM, "noise_multiplier": noise}
    run = training(train, seed=seed, steps=steps, classes=0, layers=3, clipped=clipped, **mechanism)
    rng, every, distances = np.random.default_rng(seed), max(1, steps // (2 if quick else 10)), []
    for step in run:
        if step % every == 0:
            distances.append(leave_one_out(run, train, rng))
    annotate, fit = annotator(train, seed, quick=quick), 5 if quick else None
    made = images(run.game.generator, len(train[1]), seed=seed, annotate=annotate)
    row = {"seeds": [seed], "settings": AS_PUBLISHED, "steps": steps, "epochs": steps * BATCH / len(train[1])}
    row["annotator"] = float((annotate(test[0]) == test[1]).double().mean())
    whole = max(1, round(EPOCHS * len(train[1]) / BATCH))
    row["distances"] = [[float(d.min()), float(np.median(d)), float(d.max())] for d in distances]
    row["accounts"] = [accounts(distances, size=len(train[1]), noise=noise, steps=t) for t in (steps, whole)]
    if bug:
        seen = look_turned(made[0], test, seed, steps=fit)
        return {**row, "picture": picture(made), "turned": TURNED, "look_turned": seen}
    row |= measured(made, train, test, seed, steps=fit, learn=clipped)
    blank = controls(tuple(test[0].shape[1:]), 10, 10_000, rng=np.random.default_rng(seed), annotator=annotate)
    row["controls"] = {
        control: student(some, test, 10, rng=np.random.default_rng(seed), steps=fit) for control, some in blank
    }
    return row


def look_turned(made: Tensor, test: Labelled, seed: int, *, steps: int | None) -> float:
    """Return the share of images that a classifier of upright and rotated real images takes for rotated."""
    both = torch.cat([test[0], torch.rot90(test[0], 1, (2, 3))]), torch.arange(2).repeat_interleave(len(test[1]))
    judge = train_student(both, 2, rng=np.random.default_rng(seed), steps=steps)
    return float(predict(judge, made).double().mean())


def released(train: Labelled, test: Labelled, name: str, seed: int, **settings: Any) -> tuple[Dataset, Guarantee]:
    """Return a set that the library releases of these training records, and its worst case."""
    with tempfile.TemporaryDirectory() as folder:
        files = {part: str(Path(folder) / f"{part}.npz") for part in ("file", "test")}
        for file, (inputs, labels) in zip(files.values(), (train, test), strict=True):
            np.savez(file, inputs=inputs.mul(255.0).round().to(torch.uint8).numpy(), targets=labels.numpy())
        data = {
            **files,
            "nominal_size": len(train[1]),
            "inputs": {"low": 0, "high": 255, "shape": list(train[0].shape[1:])},
            "targets": {"classes": list(load(name).classes or ())},
        }
        job = start(Recipe.from_dict({"data": data, "seed": seed, **settings}), Path(folder) / "run")
        label = job.run(quality=False)
        return released_dataset(job.folder), label.worst


def by_library(name: str, seed: int, settings: Row, *, quick: bool) -> Row:
    """Return a release with the library's default settings."""
    _, train, test = sets(name, quick)
    made, worst = released(train, test, name, seed, **settings)
    fit = 5 if quick else None
    found = measured(labelled(made), train, test, seed, steps=fit, learn="epsilon" in settings)
    return {"seeds": [seed], "settings": DEFAULTS, "epsilon": worst.epsilon, "delta": worst.delta, **found}


def alarms_of_library(name: str, seed: int, settings: Row, *, quick: bool) -> Row:
    """Return figure 7.3 with sound releases of correct and of altered images, and the alarms that each raises."""
    _, train, test = sets(name, quick)
    correct, again = (released(train, test, name, seed + more, **settings)[0] for more in (0, 1))
    altered, worst = released(turned(train, seed), test, name, seed, **settings)
    row: Row = {"seeds": [seed], "settings": DEFAULTS, "epsilon": worst.epsilon, "delta": worst.delta, "turned": TURNED}
    for key, made in (("correct", again), ("altered", altered)):
        row[key] = {
            "picture": picture(labelled(made)),
            "look_turned": look_turned(labelled(made)[0], test, seed, steps=5 if quick else None),
            "alarms": [alarm.text for alarm in alarms(made, reference=correct)],
        }
    return row


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    named: dict[str, Callable[[], Row]] = {}
    long, short, noisy = (20, 20, 20) if quick else (15_000, 6_000, 8_000)
    private: Row = {"epsilon": 10.0, "steps": 5} if quick else {"epsilon": 1.0}
    plain: Row = {"generator": "wgan-gp", **({"steps": 5} if quick else {})}
    for seed in (1,):
        third = partial(chapter_3, "mnist", seed, quick=quick)
        named[f"table 3.1 mnist seed {seed}"] = partial(third, short, appended=True)
        named[f"table 3.1 mnist dp-critic seed {seed}"] = partial(third, short, appended=True, layer_noise=LAYER_NOISE)
        named[f"table 3.1 mnist direction seed {seed}"] = partial(third, long)
        for name in NOISE:
            named[f"table 7.1 {name} wgan seed {seed}"] = partial(
                chapter_7, name, seed, noisy, clipped=True, quick=quick
            )
            named[f"table 7.1 {name} mean-embedding seed {seed}"] = partial(
                by_library, name, seed, private, quick=quick
            )
        seventh = partial(chapter_7, "mnist", seed, noisy, quick=quick)
        named[f"table 7.1 mnist wgan-gp seed {seed}"] = partial(seventh, clipped=False)
        named[f"section 7.5.3 fashion-mnist wgan-gp seed {seed}"] = partial(
            by_library, "fashion-mnist", seed, plain, quick=quick
        )
        named[f"figure 7.3 mnist wgan seed {seed}"] = partial(seventh, clipped=True, bug=True)
        named[f"figure 7.3 mnist mean-embedding seed {seed}"] = partial(
            alarms_of_library, "mnist", seed, private, quick=quick
        )
    return named


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("gans", rows)
