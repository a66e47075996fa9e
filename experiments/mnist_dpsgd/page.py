"""Write docs/explanation/results/mnist.md from results.jsonl.

    python -m experiments.mnist_dpsgd.page

A test compares the committed page with what this script makes of the committed results.
"""

from __future__ import annotations

from pathlib import Path

from experiments import rows as measured
from experiments.rows import Row, Rows
from experiments.tables import percents, table, up

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "explanation" / "results" / "mnist.md"
TITLES = {
    "cnn": "small CNN, 26,010 parameters",
    "linear-0.75": "linear on wavelet scattering",
    "linear-2": "linear on wavelet scattering",
    "filter": "linear, record budget, less noise",
    "filter-longer": "linear, record budget, more steps",
}
CERTIFIED = {"cnn": "small CNN", "linear-2": "linear at 2"}
PERCENTS = ("50.0", "75.0", "90.0", "95.0")


def runs(found: Rows, name: str) -> list[Row]:
    """Return the runs of a setting."""
    return [row for key, row in found.items() if key.split(" ")[0] == name]


def accuracy(found: Rows, name: str) -> str:
    """Return a setting's accuracy: the mean of its runs, and their range; a dash if there is none."""
    some = runs(found, name)
    return percents((row["accuracy"] for row in some), 2) if some else "–"


def largest(some: list[Row], *keys: str) -> str:
    """Return the largest of the runs' figures under a key, or a key in a key, rounded up; a dash if there is none."""
    values = []
    for row in some:
        value = row
        for key in keys:
            value = value[key]
        values.append(value)
    return up(max(values)) if values else "–"


def results(found: Rows) -> str:
    """Return accuracy and epsilons of every setting."""
    head = ["run", "test accuracy", "runs", "worst case", "typical (`band`)", "the papers' `student`"]
    head += ["half of the records", "90%", "99%", "99.9%"]
    lines = []
    for name, title in TITLES.items():
        some = runs(found, name)
        figures = [largest(some, key) for key in ("worst", "band", "student")]
        own = [largest(some, "percentiles", percent) for percent in ("50.0", "90.0", "99.0", "99.9")]
        lines.append([title, f"**{accuracy(found, name)}**", str(len(some)), *figures, *own])
    return table(head, lines)


def certified(found: Rows) -> str:
    """Return what is certified for shares of the population, and what an attacker can do."""
    head = ["run", "", "anyone", "half of the people", "3 in 4", "90%", "95%"]
    lines = []
    for name, title in CERTIFIED.items():
        some = [row for row in runs(found, name) if row["shares"]]
        if some:
            shares = [largest(some, "shares", percent) for percent in PERCENTS]
            attacks = [max(row["attack_success"]["shares"][percent] for row in some) for percent in PERCENTS]
            anyone = max(row["attack_success"]["anyone"] for row in some)
            lines.append([title, "epsilon at most", largest(some, "worst"), *shares])
            lines.append(["", "right at most, of 100", *(up(100.0 * s, 1) for s in (anyone, *attacks))])
    return table(head, lines)


def page(found: Rows, template: str) -> str:
    """Fill the template."""
    parts = {
        "results": results(found),
        "certified": certified(found),
        "half at 0.75": largest(runs(found, "linear-0.75"), "percentiles", "50.0"),
        "nine in ten at 2": largest([row for row in runs(found, "linear-2") if row["shares"]], "shares", "90.0"),
        **{f"accuracy of {name}": accuracy(found, name) for name in ("filter", "linear-0.75")},
    }
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def figures() -> None:
    """Write the page of this experiment; it has tables alone."""
    PAGE.write_text(page(measured.load("mnist_dpsgd"), (HERE / "page.md").read_text()))


if __name__ == "__main__":
    figures()
