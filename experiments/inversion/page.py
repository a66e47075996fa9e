"""Tables 3.3 and 4.3, figures 3.4 and 3.5, and their pictures, from what was measured."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from experiments import rows as measured
from experiments.inversion import active
from experiments.rows import Row, Rows
from experiments.tables import cost, digits, spread, table
from tacita.report.charts import styled
from tacita.report.plots import STYLE

DOCS = Path(__file__).parents[2] / "docs"

SOURCES = {
    "real": "real pictures",
    "dp 8": "real pictures, DP-SGD, ε = 8",
    "dp 0.9": "real pictures, DP-SGD, ε = 0.9",
    "wgan-gp": "WGAN-GP",
    "dp-critic": "WGAN-GP, DP critic (the thesis's)",
    "mean-embedding 10": "mean embedding, ε = 10",
    "mean-embedding 1": "mean embedding, ε = 1",
    "fedgp": "FedGP, 20 clients alike",
    "untrained": "nothing: an untrained student",
}
MISSING = "Not measured yet."
SHAPES = {"digits": (8, 8), "mnist": (28, 28)}
FAMILIES = {"kernels": ("#b3403a", "o"), "mean-embedding": ("#1f6f8b", "s"), "wgan-gp": ("#5a8f69", "^")}
FAMILY_NAMES = {
    "kernels": "records with noise of {}",
    "mean-embedding": "mean embedding, ε = {}",
    "wgan-gp": "WGAN-GP, critic's noise {}",
}


def load() -> Rows:
    """Return what was measured."""
    return measured.load("inversion")


def of_source(data: str, source: str) -> list[Row]:
    """Return the rows of one source, a seed each."""
    middle = f" {data} {source} seed "
    return [row for name, row in load().items() if middle in name]


def students_table(data: str, sources: Iterable[str]) -> str:
    """Return who is recognised in pictures rebuilt from students, and in the released pictures themselves."""
    classes = {"faces": 40}.get(data, 10)
    head = ["student of", "network: right", f"recognised of {classes}"]
    head += ["face detected"] if data == "faces" else []
    head += [
        "softmax regression: right",
        f"recognised of {classes}",
        "released pictures recognised, without any attack",
    ]
    lines = []
    for source in sources:
        found = of_source(data, source)
        if not found:
            continue
        cells = [SOURCES[source]]
        for kind in ("mlp", "softmax"):
            some = [row[kind] for row in found]
            cells += [share(one["accuracy"] for one in some), counts(one["recognised"] for one in some)]
            if data == "faces" and kind == "mlp":
                cells.append(share(one["detected"] for one in some))
        released = [row["released"] for row in found if "released" in row]
        cells.append(share(one["pictures"] for one in released) if released else "–")
        lines.append(cells)
    return table(head, lines) if lines else MISSING


def share(values: Iterable[float]) -> str:
    """Return the mean of several seeds' shares in percent, and their range."""
    found = [100.0 * value for value in values]
    low, high = f"{min(found):.0f}", f"{max(found):.0f}"
    return f"{mean(found):.0f}%" + (f" ({low}–{high})" if low != high else "")


def counts(values: Iterable[int]) -> str:
    """Return the median of several seeds' counts, and their range."""
    found = sorted(values)
    return f"{median(found):g}" + (f" ({found[0]}–{found[-1]})" if found[0] != found[-1] else "")


def levels() -> dict[str, list[Row]]:
    """Return the rows of figure 3.5 by setting, a seed each."""
    found: dict[str, list[Row]] = {}
    for name, row in load().items():
        if name.startswith("figure 3.5 ") and "refits" not in name:
            found.setdefault(name.removeprefix("figure 3.5 ").split(" seed ")[0], []).append(row)
    order = list(FAMILIES)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0].split()[0]), float(item[0].split()[1]))))


def levels_table() -> str:
    """Return mu, students, attacks and the exact effect of leaving a record out, by setting."""
    head = ["released", "μ of a record", "student right", "pictures recognised", "likeness", "membership AUC"]
    head += ["the heuristic's mean", "exact mean", "exact largest", "ranks of records: heuristic and exact"]
    head += ["heuristic and itself, drawn again"]
    lines = []
    for name, found in levels().items():
        family, level = name.split()
        cells = [
            FAMILY_NAMES[family].format(level),
            spread(row["mu"]["pixels"] for row in found),
            share(row["student"]["accuracy"] for row in found),
            share(row["student"]["pictures"] for row in found),
            spread(row["student"]["likeness"] for row in found),
            spread(row["membership"] for row in found),
            spread(row["heuristic"] for row in found),
        ]
        exact = [row["exact"] for row in found if "exact" in row]
        cells += [spread(one[key] for one in exact) if exact else "–" for key in ("mean", "largest")]
        cells.append(pooled(row["ranks"]["pixels"] for row in found) if exact else "–")
        lines.append([*cells, pooled(row["again"] for row in found)])
    return table(head, lines)


def pooled(found: Iterable[dict[str, float]]) -> str:
    """Return the mean of several seeds' correlations, with the widest end of their intervals on either side."""
    several = list(found)
    low, high = min(one["low"] for one in several), max(one["high"] for one in several)
    return f"{signed(mean(one['found'] for one in several))} ({signed(low)} to {signed(high)})"


def signed(value: float) -> str:
    """Return two decimals with a sign."""
    return f"{value:+.2f}".replace("-", "−")


MEASURES: dict[str, Callable[[Row], float | None]] = {
    "the student's accuracy": lambda row: row["student"]["accuracy"],
    "likeness of rebuilt pictures": lambda row: row["student"]["likeness"],
    "membership AUC": lambda row: row["membership"],
    "exact effect, mean over records": lambda row: row["exact"]["mean"] if "exact" in row else None,
    "exact effect, largest": lambda row: row["exact"]["largest"] if "exact" in row else None,
}
GROUPS: dict[str, tuple[str, ...]] = {
    "all settings": tuple(FAMILIES),
    "noisy records": ("kernels",),
    "mean embedding": ("mean-embedding",),
    "WGAN-GP": ("wgan-gp",),
}


def across_table() -> str:
    """Return rank correlations of mu with everything else across settings, with bootstrap intervals."""
    some = levels()
    lines = []
    for name, measure in MEASURES.items():
        cells = [name]
        for families in GROUPS.values():
            pairs = [
                (mean(row["mu"]["pixels"] for row in found), mean(measure(row) for row in found))  # type: ignore[arg-type, misc]
                for level, found in some.items()
                if level.split()[0] in families and measure(found[0]) is not None
            ]
            cells.append(across(np.array(pairs)))
        lines.append(cells)
    return table(["μ and …", *GROUPS], lines)


def across(pairs: Any) -> str:
    """Return a rank correlation of columns, and its bootstrap interval where there are at least eight pairs."""
    if len(pairs) < 4:
        return "–"
    if min(np.ptp(pairs, axis=0)) == 0.0:
        return "all alike"
    found = signed(spearmanr(*pairs.T).statistic)
    if len(pairs) < 8:
        return f"{found}, {len(pairs)} settings"
    rng = np.random.default_rng(0)
    draws = (pairs[rng.integers(len(pairs), size=len(pairs))] for _ in range(2000))
    values = [spearmanr(*draw.T).statistic for draw in draws if min(np.ptp(draw, axis=0)) > 0.0]
    low, high = np.quantile(values, [0.025, 0.975])
    return f"{found} ({signed(low)} to {signed(high)})"


def falls() -> str:
    """Return how mu and the exact effect fall from the least noise on records to the most."""
    ends = [found for name, found in levels().items() if name.startswith("kernels")]
    if len(ends) < 2:
        return "not measured yet"
    exact, mu = (
        mean(measure(row) for row in ends[0]) / mean(measure(row) for row in ends[-1])
        for measure in (lambda row: row["exact"]["mean"], lambda row: row["mu"]["pixels"])
    )
    return f"from the least noise to the most the exact effect falls {exact:.0f}-fold and μ {mu:.0f}-fold"


def refits_table() -> str:
    """Return how far a GAN's release moves without a record, and with another seed."""
    found = [row for name, row in load().items() if name.startswith("figure 3.5 refits")]
    lines = []
    for row in found:
        lines.append(["the same generator, other pictures", digits(row["same"]), ""])
        lines += [
            [f"trained without record {i}", digits(one["moved"]), digits(one["heuristic"])]
            for i, one in enumerate(row["records"], 1)
        ]
        lines += [[f"trained on all, other seed {i}", digits(moved), ""] for i, moved in enumerate(row["seeds"], 1)]
    head = ["compared with the first release", "estimated divergence", "the heuristic's value"]
    return table(head, lines) if lines else MISSING


def number(data: str, source: str, kind: str, key: str) -> str:
    """Return one number of the students' table, over seeds, for a sentence."""
    found = [row[kind][key] for row in of_source(data, source)]
    return counts(found) if key == "recognised" else share(found)


def mnist_pictures() -> str:
    """Return the place of MNIST's reconstructions, if there are any."""
    shown = "![MNIST digits rebuilt from each student](../assets/papers-figure-3.4-mnist.png)"
    return shown if any(" mnist " in name for name in load()) else ""


def sentence(data: str, source: str, what: str) -> str:
    """Return how much a student of a generator knows, and how much is rebuilt from it."""
    if not of_source(data, source):
        return f"{what}: not measured yet."
    of = {"faces": "40 people", "digits": "10 digits"}[data]
    network, linear = (
        f"{number(data, source, kind, 'recognised')} of {of} at an accuracy of {number(data, source, kind, 'accuracy')}"
        for kind in ("mlp", "softmax")
    )
    return f"{what}: {network} (softmax regression: {linear})."


def active_rows() -> dict[str, list[Row]]:
    """Return the rows of the active attack by setting, a seed each."""
    found: dict[str, list[Row]] = {}
    for name, row in load().items():
        if name.startswith("active "):
            found.setdefault(name.removeprefix("active ").split(" seed ")[0], []).append(row)
    return found


def active_table() -> str:
    """Return what the attacker's generator makes, by federation."""
    head = ["federation", "model right", "… for the digit", "attacker's pictures: taken for the digit by the model"]
    head += ["recognised by the judge", "likeness to a real one"]
    lines = [
        [
            active_label(name),
            *(share(row[key] for row in found) for key in ("accuracy", "knows", "taken", "recognised")),
            spread(row["likeness"] for row in found),
        ]
        for name, found in active_rows().items()
    ]
    return table(head, lines) if lines else MISSING


def active_share(name: str) -> str:
    """Return how many of the attacker's pictures the judge recognises, for a sentence."""
    found = active_rows().get(name)
    return share(row["recognised"] for row in found) if found else "not measured yet"


def active_real() -> str:
    """Return how alike real pictures of the digit are."""
    found = [row["a real one's"] for rows in active_rows().values() for row in rows]
    return spread(found) if found else "not measured yet"


def active_picture() -> str:
    """Return the place of the attacker's pictures, if there are any."""
    return "![What the attacker makes](../assets/papers-active.png)" if active_rows() else ""


def active_label(name: str) -> str:
    """Return a federation's name in the table and the picture."""
    return name.replace("epsilon", "a client's ε =")


def _tables() -> dict[str, Callable[[], str]]:
    models, made = ("real", "dp 8", "dp 0.9"), ("wgan-gp", "dp-critic", "mean-embedding 10", "mean-embedding 1")
    parts: dict[str, Callable[[], str]] = {
        "table 3.3": partial(students_table, "faces", (*models, *made, "untrained")),
        "figure 3.4 digits": partial(students_table, "digits", (*models, *made, "untrained")),
        "figure 3.4 mnist": partial(students_table, "mnist", (*models, *made, "untrained")),
        "mnist pictures": mnist_pictures,
        "table 4.3 faces": partial(students_table, "faces", ("real", "fedgp")),
        "table 4.3 digits": partial(students_table, "digits", ("real", "fedgp")),
        "active": active_table,
        "active real": active_real,
        "active picture": active_picture,
        "figure 3.5": levels_table,
        "figure 3.5 across": across_table,
        "figure 3.5 falls": falls,
        "figure 3.5 refits": refits_table,
    }
    for name in ("table 3.3", "figure 3.4", "table 4.3", "figure 3.5", "active", "audit"):
        parts[f"cost {name}"] = lambda name=name: cost(load(), name)
    for name in active.SETTINGS:
        parts[f"active: {name}"] = partial(active_share, name)
    for data in ("faces", "digits"):
        for source, text in SOURCES.items():
            parts[f"{data} {source}"] = partial(sentence, data, source, text)
    return parts


TABLES = _tables()


def figures() -> None:
    """Draw figures 3.4 and 3.5, and what an active attacker makes."""
    made = {active_label(name).replace(", ", ",\n", 1): rows[0]["pictures"] for name, rows in active_rows().items()}
    strips("active", made, SHAPES["mnist"])
    for data, shape in SHAPES.items():
        found = {SOURCES[source]: rows[0] for source in SOURCES if (rows := of_source(data, source))}
        pictures = {name.replace(", ", ",\n", 1): row["mlp pictures"] for name, row in found.items()}
        strips(f"figure-3.4-{data}", pictures, shape)
    some = levels()
    if some:
        draw_levels(some)
        strips(
            "figure-3.5-pictures", {level_label(name, rows): rows[0]["pictures"] for name, rows in some.items()}, (8, 8)
        )


def level_label(name: str, found: list[Row]) -> str:
    """Return what stands beside a setting's pictures."""
    family, level = name.split()
    mu = digits(mean(row["mu"]["pixels"] for row in found))
    return (
        FAMILY_NAMES[family].format(level) + f"\nμ = {mu}, right {share(row['student']['accuracy'] for row in found)}"
    )


def strips(name: str, pictures: dict[str, str], shape: tuple[int, int]) -> None:
    """Draw what is rebuilt from students, a row of classes for each of several students."""
    if not pictures:
        return
    with styled(**STYLE):
        figure = Figure(figsize=(7.6, 0.62 * len(pictures)))
        figure.subplots_adjust(left=0.27, right=0.995, bottom=0.01, top=0.99, hspace=0.08)
        axes = figure.subplots(len(pictures), 1, squeeze=False)[:, 0]
        for axis, (label, packed) in zip(axes, pictures.items(), strict=True):
            strip(axis, unpacked(packed, shape))
            axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
        figure.savefig(DOCS / "assets" / f"papers-{name}.png", dpi=100, metadata={"Software": "tacita"})


def strip(axis: Any, pictures: Any) -> None:
    """Draw pictures side by side."""
    padded = np.pad(pictures, ((0, 0), (0, 0), (0, max(1, pictures.shape[2] // 8))), constant_values=255)
    axis.imshow(np.concatenate(list(padded), axis=1), "gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    for side in axis.spines.values():
        side.set_visible(False)


def unpacked(text: str, shape: tuple[int, int]) -> Any:
    """Return pictures from text."""
    return np.frombuffer(b64decode(text), dtype=np.uint8).reshape(-1, *shape)


def draw_levels(found: dict[str, list[Row]]) -> None:
    """Draw the student's accuracy and the exact effect against mu."""
    with styled(**STYLE):
        figure = Figure(figsize=(7.6, 3.7), layout="constrained")
        left, right = figure.subplots(1, 2)
        for family, (color, marker) in FAMILIES.items():
            some = [rows for name, rows in found.items() if name.split()[0] == family]
            for axis, rows, measure in (
                (left, some, lambda row: row["student"]["accuracy"]),
                (right, [rows for rows in some if "exact" in rows[0]], lambda row: row["exact"]["mean"]),
            ):
                x, y = (
                    [mean(f(row) for row in seeds) for seeds in rows]
                    for f in (lambda row: row["mu"]["pixels"], measure)
                )
                axis.plot(
                    x, y, color=color, marker=marker, ms=5, lw=1.2, label=family.replace("kernels", "noisy records")
                )
        left.set(xscale="log", xlabel="μ of a record", title="accuracy of the student")
        right.set(xscale="log", yscale="log", xlabel="μ of a record", title="exact effect of a record, mean")
        for axis in (left, right):
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_minor_formatter(lambda value, _: "")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, fontsize=9, ncols=3, loc="outside lower center")
        figure.savefig(DOCS / "assets" / "papers-figure-3.5.svg", metadata={"Date": None, "Creator": "tacita"})
