"""Write docs/explanation/results/features.md from results.jsonl and choices.jsonl.

    python experiments/features/page.py

A test compares the committed page with what this script makes of the committed results.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "explanation" / "results" / "features.md"
TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}

PUBLISHED = {  # dataset, epsilon: what others report at delta = 1e-5
    ("fashion-mnist", 3.0): "89.7% (linear on scattering, Tramèr & Boneh 2021)",
    ("cifar10", 1.0): "72.3% (prior from random processes, DP-RandP 2023)",
    ("cifar10", 3.0): "67.0% (linear on scattering), 69.3% (CNN on scattering), 59.2% (CNN; Tramèr & Boneh 2021)",
    ("cifar10", 8.0): "81.4% (wide residual network, De et al. 2022)",
}


def load(file: str) -> list[Row]:
    """Return the rows of a results file."""
    path = HERE / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def up(value: float, places: int = 2) -> str:
    """Return an upper bound, rounded up."""
    unit = 10.0**-places
    return f"{math.ceil(value / unit * (1.0 - 1e-12)) * unit:.{places}f}"


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def results(rows: list[Row]) -> str:
    """Return ours beside the published."""
    head = ["data", "worst case ε", "test accuracy", "published at this ε", "half of the records", "90%", "CPU minutes"]
    lines = [
        [
            TITLES[row["dataset"]],
            up(row["worst"]),
            f"**{row['accuracy']:.2f}%**",
            PUBLISHED.get((row["dataset"], row["epsilon"]), "–"),
            up(row["percentiles"]["50.0"]),
            up(row["percentiles"]["90.0"]),
            f"{row['cpu_minutes']['features']:.1f} + {row['cpu_minutes']['train']:.1f}",
        ]
        for row in rows
    ]
    return table(head, lines)


def certified(rows: list[Row]) -> str:
    """Return what is certified for shares of the population, and what an attacker can do."""
    percents = ("50.0", "75.0", "90.0", "95.0")
    head = ["run", "", "anyone", "half of the people", "3 in 4", "90%", "95%"]
    lines = []
    for row in rows:
        if row["shares"] is None:
            continue
        name = f"{TITLES[row['dataset']]} at {row['epsilon']:g}"
        success = row["attack_success"]
        lines.append([name, "epsilon at most", up(row["worst"]), *(up(row["shares"][p]) for p in percents)])
        attack = [success["anyone"], *(success["shares"][p] for p in percents)]
        lines.append(["", "right at most, of 100", *(up(100.0 * s, 1) for s in attack)])
    return table(head, lines)


def settings(rows: list[Row]) -> str:
    """Return the settings of each run."""
    head = ["run", "clip norm", "learning rate", "steps", "noise multiplier", "features"]
    lines = [
        [
            f"{TITLES[row['dataset']]} at {row['epsilon']:g}",
            f"{row['clip_norm']:g}",
            f"{row['learning_rate']:g}",
            str(row["steps"]),
            f"{row['noise_multiplier']:.3f}",
            f"{row['features']:,}",
        ]
        for row in rows
    ]
    return table(head, lines)


def choices(rows: list[Row]) -> str:
    """Return the settings that were compared on held-out training images."""
    head = ["run", "clip norm", "learning rate", "steps", "accuracy on held-out training images"]
    lines = [
        [r["run"], f"{r['clip_norm']:g}", f"{r['learning_rate']:g}", str(r["steps"]), f"{r['accuracy']:.2f}%"]
        for r in rows
    ]
    return table(head, lines)


def page(rows: list[Row], chosen: list[Row], template: str) -> str:
    """Fill the template."""
    rows = sorted(rows, key=lambda row: (list(TITLES).index(row["dataset"]), row["epsilon"]))
    parts = {"results": results(rows), "certified": certified(rows), "settings": settings(rows)}
    parts["choices"] = choices(chosen)
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(load("results.jsonl"), load("choices.jsonl"), (HERE / "page.md").read_text()))


if __name__ == "__main__":
    main()
