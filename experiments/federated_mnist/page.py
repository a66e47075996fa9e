"""Tables and figures of chapter 6, and docs/explanation/results/federated.md.

    python -m experiments.federated_mnist.page

The text is in `page.md`, with {{name}} where a table goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments import rows as measured
from experiments.federated_mnist.run import SEEDS
from experiments.federated_mnist.settings import CHOICES, EPSILONS, FOLDER, alike, candidate, tables
from experiments.papers.page import DOCS, draw, page
from experiments.rows import Row, Rows
from experiments.tables import bound, cost, percents, table, up

PAGE = DOCS / "explanation" / "results" / "federated.md"
TEXT = Path(__file__).parent / "page.md"

# Triastcyn 2020, tables 6.1 to 6.4: accuracy in percent without privacy, by DP, and by BDP.
PAPER = {
    ("6.1", 100): (97, 78, 88),
    ("6.1", 1000): (98, 95, 96),
    ("6.1", 10_000): (99, 96, 97),
    ("6.2", 100): (97, 86, 92),
    ("6.2", 1000): (98, 97, 97),
    ("6.2", 10_000): (99, 97, 98),
    ("6.3", 100): (70, 60, 65),
}
PAPER_JOINT = {"iid": (97, 15, 74), "shards": (97, 12, 62)}
NAMES = {"iid": "i.i.d.", "shards": "shards"}
MODELS = {"features": "linear, public features", "cnn": "CNN", "linear": "linear, pixels"}


def seeds_of(rows: Rows, name: str) -> list[Row]:
    """Return the measured seeds of a setting."""
    return [rows[one] for one in (f"{name} seed {seed}" for seed in SEEDS) if one in rows]


def accuracy(rows: Rows, name: str) -> str:
    """Return the mean accuracy of a setting, with the range and the number of its seeds."""
    found = seeds_of(rows, name)
    if not found:
        return "not measured"
    few = "" if len(found) == len(SEEDS) else f" ({len(found)} of {len(SEEDS)} seeds)"
    return percents(row["accuracy"] for row in found) + few


def claims(number: str, clients: int) -> dict[float | None, str]:
    """Return what the thesis has for a size, by epsilon."""
    plain, dp, bdp = PAPER[number, clients]
    epsilons = EPSILONS.get((number, clients), (8.0, 2.1))
    return {None: f"{plain}%", epsilons[0]: f"{dp}%, DP", epsilons[1]: f"{bdp}%, BDP"}


def lines_of(rows: Rows, number: str) -> Iterator[tuple[str, Row, list[Row], str]]:
    """Yield name, first row, all seeds and the thesis's claim, for the measured settings of a table."""
    for name, (start, _) in tables().items():
        found = seeds_of(rows, name)
        if name.startswith(f"table {number} ") and found:
            yield name, found[0], found, claims(number, start.clients)[start.epsilon]


def clients_table(rows: Rows, number: str) -> str:
    """Return table 6.1, 6.2 or 6.3."""
    head = ["clients", "δ", "ε, worst case", "thesis at this ε", "model", "accuracy"]
    head += ["`band`, Hölder", "their own figure of our run (no bound)", "half of the clients"]
    lines = []
    for name, row, _, theirs in lines_of(rows, number):
        delta = f"1e-{len(str(round(1 / row['delta']))) - 1}"
        worst = "not private" if row["epsilon"] is None else f"**{up(row['worst_pld'])}**"
        cells = [
            f"{row['clients']:,}",
            delta,
            worst,
            theirs,
            MODELS.get(row["model"], row["model"]),
            f"**{accuracy(rows, name)}**",
        ]
        if "band" in row:
            cells += [f"{up(row['band'])}, {up(row['hoelder_bernstein'])}", f"{row['not_a_bound_product']:.2f}"]
            cells += [up(row["own_percentiles"]["50"])]
        else:
            cells += ["–", "–", "–"]
        lines.append(cells)
    return table(head, lines)


def same_noise_table(rows: Rows) -> str:
    """Return two federations with the same noise, whose C differs."""
    head = ["C", "noise, σC", "accuracy", "worst case", "norm / C", "their own figure (no bound)"]
    lines = []
    for name in ("same noise 8", "table 6.2 features 100 2"):
        for row in seeds_of(rows, name)[:1]:
            noise = row["noise_multiplier"] * row["clip"]
            cells = [f"{row['clip']:.2g}", f"{noise:.2f}", accuracy(rows, name), f"**{up(row['worst_pld'])}**"]
            lines.append([*cells, f"{row['mean_norm']:.2f}", f"{row['not_a_bound_product']:.2f}"])
    return table(head, lines)


def joint_table(rows: Rows) -> str:
    """Return table 6.4."""
    head = ["data", "thesis: not private, DP, BDP", "accuracy", "client, worst case at 1e-3"]
    head += ["… their product (no bound)", "image, worst case at 1e-5"]
    lines = []
    for split in ("iid", "shards"):
        name = f"table 6.4 features 100 {split}"
        for row in seeds_of(rows, name)[:1]:
            theirs = "{}%, {}%, {}%".format(*PAPER_JOINT[split])
            product = row["not_a_bound_product"]
            cells = [f"MNIST, {NAMES[split]}", theirs, f"**{accuracy(rows, name)}**", f"**{up(row['worst_pld'])}**"]
            lines.append([*cells, "–" if product is None else f"{product:.2f}", f"**{up(row['record_worst'], 3)}**"])
    return table(head, lines)


SCHEMES = {
    "none": "not private",
    "client": "clients only",
    "joint": "clients and images, joint",
    "split": "clients and images, split",
}


def rounds_table(rows: Rows) -> str:
    """Return the curves of figure 6.2 at some rounds."""
    shown = (10, 20, 40, 60, 100)
    head = ["data", "noise for", "client, worst case at 1e-5", "image, worst case at 1e-5"]
    head += [f"round {number}" for number in shown]
    lines = []
    for split in ("iid", "shards"):
        for scheme, title in SCHEMES.items():
            found = seeds_of(rows, f"figure 6.2 {split} {scheme}")
            if not found:
                continue
            worst = [up(found[0][key]) if key in found[0] else "–" for key in ("worst_pld", "record_worst")]
            curves = [dict(map(tuple, row["curve"])) for row in found]
            marks = [percents(curve[number] for curve in curves) if number in curves[0] else "–" for number in shown]
            lines.append([NAMES[split], title, *worst, *marks])
    return table(head, lines) if lines else "Not measured yet; `make papers` does."


GROWTH = {
    "parallel_worst": "parallel, worst case",
    "sequential_worst": "sequential, worst case",
    "not_a_bound_parallel": "thesis, parallel (no bound)",
    "not_a_bound_sequential": "thesis, sequential (no bound)",
}


def growth_rows(rows: Rows) -> Iterator[tuple[str, int, list[Row]]]:
    """Yield split, clients and points of figure 6.1's first seed."""
    for split in ("iid", "shards"):
        for clients in (100, 1000):
            for row in seeds_of(rows, f"figure 6.1 {split} {clients}")[:1]:
                yield split, clients, row["points"]


def growth_table(rows: Rows) -> str:
    """Return figure 6.1 after 40 and after all rounds."""
    lines = []
    for split, clients, points in growth_rows(rows):
        for point in points:
            if point["round"] in (40, 300):
                sound = [bound(point[key]) for key in list(GROWTH)[:2]]
                theirs = [f"{point[key]:.3g}" for key in list(GROWTH)[2:]]
                lines.append([NAMES[split], f"{clients:,}", str(point["round"]), *sound, *theirs])
    return table(["data", "clients", "rounds", *GROWTH.values()], lines)


def settings_table(rows: Rows) -> str:
    """Return how the models were trained, and against how many candidates."""
    head = ["row", "model", "chance of a client", "rounds", "C", "σ", "server's rate", "compared", "CPU minutes"]
    choices, lines = measured.load(FOLDER, CHOICES), []
    for name, (_, candidates) in tables().items():
        for row in seeds_of(rows, name)[:1]:
            model = MODELS.get(row["model"], row["model"]) + (
                f" ({row['directions']})" if row["model"] == "features" else ""
            )
            number = sum(candidate(alike(name), changes) in choices for changes in candidates)
            noise = f"{row['noise_multiplier']:.3g}" if "noise_multiplier" in row else "–"
            cells = [name, model, f"{row['rate']:g}", str(row["rounds"]), f"{row['clip']:g}", noise]
            cells += [f"{row['learning_rate']:g}", str(number) if number else "–", f"{row['cpu_minutes']:.1f}"]
            lines.append(cells)
    return table(head, lines)


def choices_table() -> str:
    """Return what was compared, and how it scored on held-out training images."""
    found = measured.load(FOLDER, CHOICES)
    lines = []
    for name, (_, candidates) in tables().items():
        scores = [
            (changes, found[candidate(name, changes)]["accuracy"])
            for changes in candidates
            if candidate(name, changes) in found
        ]
        if scores:
            text = "; ".join(f"C {c['clip']:g}, rate {c['learning_rate']:g}: {score:.1f}%" for c, score in scores)
            lines.append([name, text])
    return table(["row", "candidates, and accuracy on the held-out sixth"], lines)


def rounds_picture(rows: Rows) -> str:
    """Return figure 6.2 as a picture, once it is measured."""
    there = any(name.startswith("figure 6.2") for name in rows)
    return "![Accuracy over rounds](../assets/papers-figure-6.2.svg)" if there else ""


def _tables() -> dict[str, Callable[[], str]]:
    made: dict[str, Callable[[Rows], str]] = {
        "table 6.1": lambda rows: clients_table(rows, "6.1"),
        "table 6.2": lambda rows: clients_table(rows, "6.2"),
        "table 6.3": lambda rows: clients_table(rows, "6.3"),
        "table 6.4": joint_table,
        "figure 6.1": growth_table,
        "figure 6.2": rounds_table,
    }
    parts: dict[str, Callable[[], str]] = {"federated choices": choices_table}
    for name, make in made.items():
        parts[name] = lambda make=make: make(measured.load(FOLDER))
        parts[f"cost {name}"] = lambda name=name: cost(measured.load(FOLDER), name)
    parts["same noise"] = lambda: same_noise_table(measured.load(FOLDER))
    parts["federated settings"] = lambda: settings_table(measured.load(FOLDER))
    parts["picture 6.2"] = lambda: rounds_picture(measured.load(FOLDER))
    parts["cost federated"] = lambda: cost(measured.load(FOLDER))
    parts["cost choices"] = lambda: cost(measured.load(FOLDER, CHOICES))
    for name in tables():
        parts[f"accuracy {name}"] = lambda name=name: accuracy(measured.load(FOLDER), name)
    return parts


TABLES = _tables()


def figures() -> None:
    """Draw figures 6.1 and 6.2."""
    rows = measured.load(FOLDER)
    splits = list(NAMES)
    growing = list(growth_rows(rows))
    colors = ("#2b2b2b", "#1f6f8b", "#b3403a", "#e0a040")

    def over_rounds(i: int, axis: Any) -> None:
        for split, clients, points in growing:
            if split != splits[i]:
                continue
            for (key, title), color in zip(GROWTH.items(), colors, strict=True):
                style = {"color": color, "ls": "-" if clients == 100 else "--", "lw": 1.6}
                values = [point[key] for point in points]
                axis.plot([p["round"] for p in points], values, label=title if clients == 100 else None, **style)
        axis.set(xscale="log", yscale="log", title=f"MNIST, {NAMES[splits[i]]}", xlabel="round (dashed: 1,000 clients)")

    def accuracies(i: int, axis: Any) -> None:
        for (scheme, title), color in zip(SCHEMES.items(), ("#8a8a8a", "#1f6f8b", "#5a8f69", "#b3403a"), strict=True):
            for row in seeds_of(rows, f"figure 6.2 {splits[i]} {scheme}")[:1]:
                axis.plot(*zip(*row["curve"], strict=True), color=color, lw=1.6, label=title)
        axis.set(title=f"MNIST, {NAMES[splits[i]]}, {1000:,} clients", xlabel="round", ylim=(0, 100))

    if growing:
        draw("figure-6.1", (1, 2), over_rounds)
    if any(name.startswith("figure 6.2") for name in rows):
        draw("figure-6.2", (1, 2), accuracies, ylabel="test accuracy in percent")


if __name__ == "__main__":
    PAGE.write_text(page(TEXT.read_text(), (FOLDER,)))
    figures()
