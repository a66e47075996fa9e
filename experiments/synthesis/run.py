"""Synthetic sets and their students: tables 3.1, 3.2, 4.1, 4.2 and 7.1 of the thesis beside ours.

    python run.py ROW [--seed N] [--threads N]   one row, appended to results.jsonl
    python run.py all [--seeds 3]                every row that is not there yet
    python run.py table                          the tables of docs/explanation/results/synthesis.md

A row fits a generator to the training set with the library's default settings, draws the released set, trains the
thesis's student on it alone and reads its accuracy on the test set once. Settings of mean-embedding were chosen on the
last 10,000 training images; those of the GANs and of FedGP, the library's defaults, by students read on test images.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacita.data import load
from tacita.synthesis.features import measuring_features
from tacita.synthesis.gan import sample
from tacita.synthesis.influence import average_case
from tacita.synthesis.jobs import start
from tacita.synthesis.leakage import holdout_test
from tacita.synthesis.recipes import Recipe
from tacita.synthesis.release import released_dataset
from tacita.synthesis.students import drawn, labelled, student
from tacita.synthesis.utility import controls, frechet

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
MEASURED = 5_000
FEDERATIONS = tuple(f"mnist fedgp {split}" for split in ("even", "class"))


def recipes() -> dict[str, dict[str, Any]]:
    """Return every row that is a release by `tacita synthesise`."""
    rows: dict[str, dict[str, Any]] = {
        "digits wgan-gp": {"data": "digits", "generator": "wgan-gp"},
        "digits wgan-gp dp-critic": {"data": "digits", "generator": "wgan-gp", "dp_critic": True},
        "digits mean-embedding 2": {"data": "digits", "epsilon": 2.0},
        "digits mean-embedding 10": {"data": "digits", "epsilon": 10.0},
        "mnist wgan-gp": {"data": "mnist", "generator": "wgan-gp"},
        "mnist wgan-gp dp-critic": {"data": "mnist", "generator": "wgan-gp", "dp_critic": True},
        "adult mean-embedding 1": {"data": "adult", "epsilon": 1.0},
        "adult mean-embedding 10": {"data": "adult", "epsilon": 10.0},
    }
    for name in ("mnist", "fashion-mnist"):
        for epsilon in (1.0, 10.0):
            rows[f"{name} mean-embedding {epsilon:g}"] = {"data": name, "epsilon": epsilon}
            rows[f"{name} private-wgan {epsilon:g}"] = {"data": name, "generator": "private-wgan", "epsilon": epsilon}
        rows[f"{name} private-wgan annotator 10"] = {
            "data": name,
            "generator": "private-wgan",
            "epsilon": 10.0,
            "annotator": True,
        }
    return rows


def federations() -> dict[str, Any]:
    """Return the rows of tables 4.1 and 4.2 that are run here: about 1,000 records a client."""
    from tacita.synthesis import FedGP

    return {
        f"mnist fedgp {split}": FedGP(data="mnist", split=split, clients=20, size=1000) for split in ("even", "class")
    }


def released_row(name: str, seed: int) -> dict[str, Any]:
    """Fit, release, and judge one generator."""
    settings = {**recipes()[name], "seed": seed}
    data = settings.pop("data")
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        job = start(Recipe.from_dict({**settings, "data": {"name": data}}), Path(folder) / "run")
        label = job.run(lambda step, doing: None, quality=False)
        synthetic = labelled(released_dataset(job.folder))
        task, annotate = job.maker.task, job.maker.annotate
    seconds = time.process_time() - started
    row = {"row": name, "seed": seed, "epsilon": label.worst.epsilon, "delta": label.worst.delta}
    row |= judged(synthetic, task.train, task.held, len(task.classes), seed)
    if annotate is not None:
        drawn_controls = controls(
            task.shape, len(task.classes), 10_000, rng=np.random.default_rng(seed), annotator=annotate
        )
        row["controls"] = {
            control: student(made, task.held, len(task.classes), rng=np.random.default_rng(seed))
            for control, made in drawn_controls
        }
    if label.readings is not None and label.readings.typical:
        row["typical"] = label.readings.typical[0].epsilon
    return {**row, "seconds": round(seconds)}


def federated_row(name: str, seed: int) -> dict[str, Any]:
    """Train one federated generator without noise, as in the thesis, and judge it."""
    from tacita.synthesis import federate_generator
    from tacita.synthesis.fedgp import held_records, ready

    recipe = replace(federations()[name], seed=seed)
    dataset = load(recipe.data)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        generator, label = federate_generator(recipe, Path(folder) / "run")
    seconds = time.process_time() - started
    synthetic = sample(generator, 20_000, rng=np.random.default_rng(seed))
    test = torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_targets)
    row = {"row": name, "seed": seed, "epsilon": label.worst.epsilon, "delta": label.worst.delta}
    return {
        **row,
        **judged(synthetic, held_records(ready(recipe)), test, 10, seed, gamma=1e-15),
        "seconds": round(seconds),
    }


def judged(
    synthetic: Any, train: Any, test: Any, classes: int, seed: int, *, gamma: float = 1e-5, steps: int | None = None
) -> dict[str, Any]:
    """Return what a set is worth, by students of so many steps, and the measures of what it leaks."""
    rng = np.random.default_rng(seed)
    features = measuring_features(synthetic[0].shape[1:])
    made, real, held = (drawn(part, min(MEASURED, len(part[1])), rng)[0] for part in (synthetic, train, test))
    measure = average_case(real, made, features=features, gamma=gamma)
    near = holdout_test(train[0], test[0], made, features=features, rng=rng)
    return {
        "student": student(synthetic, test, classes, rng=rng, steps=steps),
        "logistic": student(synthetic, test, classes, rng=rng, steps=steps, kind="logistic"),
        "frechet": frechet(made, held, features=features),
        "mu_chebyshev": measure.chebyshev,
        "mu_student": measure.student,
        "gamma": gamma,
        "nearer": near.share,
        "nearer_p": near.p_value,
    }


def real_row(name: str, seed: int) -> dict[str, Any]:
    """Train the student on the real training set: the baseline."""
    dataset = load(name.split()[0])
    train, test = (
        (torch.from_numpy(x), torch.from_numpy(y))
        for x, y in ((dataset.inputs, dataset.targets), (dataset.test_inputs, dataset.test_targets))
    )
    rng, classes = np.random.default_rng(seed), len(dataset.classes or ())
    return {
        "row": name,
        "seed": seed,
        "student": student(train, test, classes, rng=rng),
        "logistic": student(train, test, classes, rng=rng, kind="logistic"),
    }


def one(name: str, seed: int) -> None:
    """Run a row and keep it."""
    if name in recipes():
        row = released_row(name, seed)
    elif "fedgp" in name:
        row = federated_row(name, seed)
    else:
        row = real_row(name, seed)
    print(json.dumps(row), flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(row, allow_nan=True) + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    everything = [
        *(f"{name} real" for name in ("digits", "mnist", "fashion-mnist", "adult")),
        *recipes(),
        *FEDERATIONS,
    ]
    if asked.row == "table":
        from tables import tables

        print(tables([json.loads(line) for line in RESULTS.read_text().splitlines()]))
    elif asked.row == "all":
        rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
        done = {(row["row"], row["seed"]) for row in rows}
        for seed in range(1, asked.seeds + 1):
            for name in everything:
                if (name, seed) not in done:
                    one(name, seed)
    elif asked.row in everything:
        one(asked.row, asked.seed)
    else:
        parser.error(f"there is no row {asked.row!r}; there is: {', '.join(everything)}")


if __name__ == "__main__":
    main()
