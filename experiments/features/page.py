"""Write docs/explanation/results/features.md from results.jsonl and choices.jsonl.

    python -m experiments.features.page

A test compares the committed page with what this script makes of the committed results. `TABLES` serves other pages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean

from experiments import rows as measured
from experiments.rows import Row, Rows
from experiments.tables import percents, table, up

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "explanation" / "results" / "features.md"
TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
PERCENTS = ("50.0", "75.0", "90.0", "95.0")

PUBLISHED = {  # dataset, epsilon: what others report at delta = 1e-5
    ("fashion-mnist", 3.0): "89.7% (linear on scattering, Tramèr & Boneh 2021)",
    ("cifar10", 1.0): "72.3% (prior from random processes, DP-RandP 2023)",
    ("cifar10", 3.0): "67.0% (linear on scattering), 69.3% (CNN on scattering), 59.2% (CNN; Tramèr & Boneh 2021)",
    ("cifar10", 8.0): "81.4% (wide residual network, De et al. 2022)",
}


def runs(found: Rows) -> dict[str, list[Row]]:
    """Return the rows of each run, one a seed, by dataset, epsilon and clip norm."""
    grouped: dict[str, list[Row]] = {}
    for name, row in found.items():
        grouped.setdefault(name.rsplit(" seed ", 1)[0], []).append(row)
    order = list(TITLES)
    return dict(sorted(grouped.items(), key=lambda run: (order.index(run[1][0]["dataset"]), *_numbers(run[1][0]))))


def _numbers(row: Row) -> tuple[float, float]:
    return row["epsilon"], row["clip_norm"]


def _title(rows: list[Row]) -> str:
    return f"{TITLES[rows[0]['dataset']]} at {rows[0]['epsilon']:g}, C = {rows[0]['clip_norm']:g}"


def results(found: Rows) -> str:
    """Return ours beside the published."""
    head = ["data", "worst case ε", "C", "test accuracy", "seeds", "published at this ε"]
    head += ["half of the records", "90%", "CPU minutes"]
    lines = [
        [
            TITLES[rows[0]["dataset"]],
            up(max(row["worst"] for row in rows)),
            f"{rows[0]['clip_norm']:g}",
            f"**{percents((row['accuracy'] for row in rows), 2)}**",
            str(len(rows)),
            PUBLISHED.get((rows[0]["dataset"], rows[0]["epsilon"]), "–"),
            *(up(max(row["percentiles"][percent] for row in rows)) for percent in ("50.0", "90.0")),
            f"{rows[0]['feature_minutes']:.1f} + {mean(row['cpu_minutes'] for row in rows):.1f}",
        ]
        for rows in runs(found).values()
    ]
    return table(head, lines)


def certified(found: Rows) -> str:
    """Return what is certified for shares of the population, and what an attacker can do."""
    head = ["run", "", "anyone", "half of the people", "3 in 4", "90%", "95%"]
    lines = []
    for rows in runs(found).values():
        if any(row["shares"] is None for row in rows):
            continue
        shares = [max(row["shares"][p] for row in rows) for p in PERCENTS]
        attacks = [max(row["attack_success"]["shares"][p] for row in rows) for p in PERCENTS]
        anyone = max(row["attack_success"]["anyone"] for row in rows)
        lines.append([_title(rows), "epsilon at most", up(max(row["worst"] for row in rows)), *map(up, shares)])
        lines.append(["", "right at most, of 100", *(up(100.0 * s, 1) for s in (anyone, *attacks))])
    return table(head, lines)


def settings(found: Rows) -> str:
    """Return the settings of each run."""
    head = ["run", "learning rate", "steps", "everybody measured every", "noise multiplier", "features"]
    lines = [
        [
            _title(rows),
            f"{rows[0]['learning_rate']:g}",
            str(rows[0]["steps"]),
            f"{rows[0]['every']} steps",
            f"{rows[0]['noise_multiplier']:.3f}",
            f"{rows[0]['features']:,}",
        ]
        for rows in runs(found).values()
    ]
    return table(head, lines)


def choices(chosen: Rows) -> str:
    """Return the settings that were compared on held-out training images."""
    head = ["run", "clip norm", "learning rate", "steps", "held-out accuracy", "of averaged iterates"]
    lines = [
        [
            _run(row["run"]),
            *(f"{row[word]:g}" for word in ("clip_norm", "learning_rate", "steps")),
            *(f"{row[word]:.2f}%" for word in ("accuracy", "averaged")),
        ]
        for row in chosen.values()
    ]
    return table(head, lines)


def _run(name: str) -> str:
    dataset, epsilon = name.split()[:2]
    return f"{TITLES[dataset]} at {epsilon}"


def sentence(found: Rows, dataset: str) -> str:
    """Return accuracies and worst cases of a dataset, for use in a sentence."""
    kept = [rows for rows in runs(found).values() if rows[0]["dataset"] == dataset]
    best = {rows[0]["epsilon"]: rows for rows in sorted(kept, key=_accuracy)}
    return ", ".join(f"{_accuracy(rows):.1f}% at {epsilon:g}" for epsilon, rows in sorted(best.items()))


def _accuracy(rows: list[Row]) -> float:
    return mean(row["accuracy"] for row in rows)


TABLES: dict[str, Callable[[], str]] = {
    "public features": lambda: results(measured.load("features")),
    "public features certified": lambda: certified(measured.load("features")),
    **{
        f"public features {dataset}": lambda dataset=dataset: sentence(measured.load("features"), dataset)
        for dataset in TITLES
    },
}


def page(found: Rows, chosen: Rows, template: str) -> str:
    """Fill the template."""
    parts = {"results": results(found), "certified": certified(found), "settings": settings(found)}
    parts["choices"] = choices(chosen)
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def figures() -> None:
    """Write the page of this experiment; it has tables alone."""
    found, chosen = measured.load("features"), measured.load("features", "choices.jsonl")
    PAGE.write_text(page(found, chosen, (HERE / "page.md").read_text()))


if __name__ == "__main__":
    figures()
