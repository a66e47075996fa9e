"""Settings of the GANs, compared on held-back training records: no test record is read.

    python choose.py ROW [--seed N] [--threads N]   every candidate of a row of run.py, appended to choices.jsonl
    python choose.py table                          the table of docs/explanation/results/synthesis.md

A candidate is the library's default with one setting changed. Its generator is fitted to the training set without the
last sixth, and its student is judged on that sixth.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run import recipes

from tacita import runs
from tacita.synthesis.gan import sample
from tacita.synthesis.generators import GENERATORS
from tacita.synthesis.recipes import Recipe, prepare
from tacita.synthesis.students import student

CHOICES = Path(__file__).parent / "choices.jsonl"
CANDIDATES: dict[str, tuple[dict[str, Any], ...]] = {
    "digits wgan-gp": (
        {},
        {"learning_rate": 1e-3},
        {"learning_rate": 4e-3},
        {"critic_steps": 5},
        {"width": 16},
        {"batch_size": 128},
    ),
    "mnist private-wgan 10": ({}, {"learning_rate": 2e-3}, {"critic_steps": 4}, {"clip_norm": 0.3}),
}


def candidate(name: str, changed: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fit one candidate without the held-back records, and judge its student on them."""
    settings = {**recipes()[name], **changed, "seed": seed}
    task = prepare(Recipe.from_dict({**settings, "data": {"name": settings.pop("data")}}))
    inputs, labels = task.train
    kept = len(labels) - len(labels) // 6
    task = replace(task, train=(inputs[:kept], labels[:kept]), held=(inputs[kept:], labels[kept:]))
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        maker = GENERATORS[task.recipe.generator](task, runs.Run.create(Path(folder) / "run").folder, resume=False)
        maker.run(lambda step, doing: None)
        made = sample(maker.generator, task.samples, rng=rng, shares=maker.shares, annotate=maker.annotate)
    return {"row": name, "seed": seed, "changed": changed, "student": student(made, task.held, 10, rng=rng)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return candidates beside each other."""
    lines = ["| row | changed | student, held-back training records | runs |", "|---|---|---|---|"]
    for name, candidates in CANDIDATES.items():
        for changed in candidates:
            found = [row["student"] for row in rows if (row["row"], row["changed"]) == (name, changed)]
            words = ", ".join(f"{key} {value:g}" for key, value in changed.items()) or "nothing: the default"
            spread = f" ({min(found):.1%}–{max(found):.1%})" if len(found) > 1 else ""
            lines += [f"| {name} | {words} | {np.mean(found):.1%}{spread} | {len(found)} |"] if found else []
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=[*CANDIDATES, "table"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.row == "table":
        print(table([json.loads(line) for line in CHOICES.read_text().splitlines()]))
        return
    for changed in CANDIDATES[asked.row]:
        row = candidate(asked.row, changed, asked.seed)
        print(json.dumps(row), flush=True)
        with CHOICES.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
