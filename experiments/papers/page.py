"""Write docs/explanation/papers.md and its figures from the results of every folder of `experiments/`.

    python -m experiments.papers.page

The text is in `sections/`, one file a chapter, with {{name}} where a table goes. Tables come from the `page.py` of each
folder in `FOLDERS`, which has `TABLES` (by name) and `figures()`. Every measured number comes from a results file; a
test compares the committed page with what this script makes of the committed results.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments import rows as measured
from experiments.rows import Row, Rows
from experiments.tables import bound, cost, digits, spread, table

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "explanation" / "papers.md"
SECTIONS = HERE / "sections"
FOLDERS = (  # whose page.py has TABLES and figures()
    "papers",
    "gans",
    "inversion",
    "federated_generators",
    "authors",
    "features",
    "variational_inference",
    "federated_mnist",
)
SHOWN_SIGMAS = (0.55, 0.95, 1.35)
QUANTILES = {"5.1": ("0.01", "0.50", "0.99"), "5.2": ("0.05", "0.50", "0.95"), "5.3": ("0.05", "0.25", "0.75", "0.95")}


def noise_table(rows: Rows, figure: str) -> str:
    """Return the table of figure 5.1 or 5.2."""
    head = ["C", "σ", "DP, order 24", "BDP, order 24", "DP, best order", "worst case, exact", "`band`", "90% of people"]
    lines = []
    for quantile in QUANTILES[figure]:
        row = rows[f"figure {figure} C={quantile}"]
        for sigma in SHOWN_SIGMAS:
            i, j = row["sigmas"].index(sigma), row["sound_sigmas"].index(sigma)
            theirs = [digits(row["coded_dp"][i]), spread(seed[i] for seed in row["coded_bdp"])]
            ours = [row["sound"][j][name] for name in ("worst", "band")] + [row["sound"][j]["shares"]["90"]]
            cells = [f"{quantile} quantile", f"{sigma}", *theirs, digits(row["best_dp"][i]), *map(bound, ours)]
            lines.append(cells)
    return table(head, lines)


def steps_table(rows: Rows) -> str:
    """Return the table of figure 5.3."""
    head = ["noise at", "DP, order 16", "BDP, order 16", "DP, best order", "BDP, best order"]
    head += ["clipped at 2C: touched", "worst case, exact", "`band`", "50% / 90% / 99% of people"]
    lines = []
    for quantile in QUANTILES["5.3"]:
        row = rows[f"figure 5.3 C={quantile}"]
        last = row["sound"][-1]
        theirs = [digits(row["coded_dp"][-1]), spread(seed[-1] for seed in row["coded_bdp"])]
        theirs += [digits(row["best_dp"]), spread(row["best"]["coded_bdp"])]
        shares = " / ".join(bound(value) for value in last["shares"].values())
        ours = [f"{row['touched']:.2%}", bound(last["worst"]), bound(last["band"]), shares]
        lines.append([f"{quantile} quantile", *theirs, *ours])
    return table(head, lines)


def growth_table(rows: Rows) -> str:
    """Return how the figure without an estimator grows with the sample."""
    some = rows["figure 5.3 C=0.05"]["growth"]
    head = ["noise at", *(f"{int(count):,} records" for count in some)]
    lines = [
        [f"{quantile} quantile", *map(digits, rows[f"figure 5.3 C={quantile}"]["growth"].values())]
        for quantile in QUANTILES["5.3"]
    ]
    return table(head, lines)


def orders_table(rows: Rows) -> str:
    """Return the table of figure 5.4."""
    lines = []
    for clip_norm in ("0.1", "0.7", "1.0"):
        row = rows[f"figure 5.4 C={clip_norm}"]
        cells = [clip_norm, f"{row['best_order']}", digits(row["best"]), digits(row["best_to_32"]), bound(row["exact"])]
        lines.append(cells)
    return table(["C", "best λ", "ε at the best λ", "ε with λ ≤ 32", "worst case, exact"], lines)


def product_table(rows: Rows) -> str:
    """Return the table of figure 5.5."""
    head = [
        "noise at",
        "Hölder, order 16",
        "product, order 16",
        "10,000 records, each keeps its norm",
        "… by the product",
    ]
    lines = []
    for quantile in QUANTILES["5.3"]:
        row = rows[f"figure 5.3 C={quantile}"]
        theirs = [spread(seed[-1] for seed in row[name]) for name in ("coded_bdp", "coded_naive")]
        lines.append([f"{quantile} quantile", *theirs, digits(row["kept"]), digits(row["product"])])
    return table(head, lines)


def variance_table(rows: Rows) -> str:
    """Return how well the variance tells whether a client took part."""
    found = [row for name, row in rows.items() if name.startswith("variance")]
    lines = [[f"{row['parameters']:,}", f"{row['total_variation']:.2f}"] for row in found]
    return table(["parameters", "total variation"], lines)


STATUSES = {
    "works": "works",
    "pending": "not measured yet",
    "refused": "refused, with the reason",
    "impossible": "impossible here",
    "open": "open",
}


def status(said: str) -> str:
    """Return the status of an item; `rows FOLDER: PATTERN; PATTERN` works once every pattern has a measured row."""
    if not said.startswith("rows "):
        return said
    folder, patterns = said.removeprefix("rows ").split(": ")
    names = measured.load(folder)
    return "works" if all(fnmatch.filter(names, pattern) for pattern in patterns.split("; ")) else "pending"


def items() -> list[list[str]]:
    """Return every item of the papers: source, what it is, where it is here, status."""
    lines = [line.split("\t") for line in (HERE / "items.tsv").read_text().splitlines()]
    return [[*cells, status(said)] for *cells, said in lines]


def items_table() -> str:
    """Return the closing table."""
    lines = [[*cells, STATUSES[found]] for *cells, found in items()]
    return table(["source", "item", "here", "status"], lines)


def items_count() -> str:
    """Return how many items there are of each status."""
    found = [code for *_, code in items()]
    counts = {text: found.count(name) for name, text in STATUSES.items()}
    return f"{len(found)} items: " + ", ".join(f"{count} {text}" for text, count in counts.items() if count)


def _tables() -> dict[str, Callable[[], str]]:
    made = {
        "figure 5.1": lambda rows: noise_table(rows, "5.1"),
        "figure 5.2": lambda rows: noise_table(rows, "5.2"),
        "figure 5.3": steps_table,
        "growth": growth_table,
        "figure 5.4": orders_table,
        "figure 5.5": product_table,
        "variance": variance_table,
    }
    parts: dict[str, Callable[[], str]] = {"items": items_table, "items count": items_count}
    for name, make in made.items():
        parts[name] = lambda make=make: make(measured.load("papers"))
        parts[f"cost {name}"] = lambda name=name: cost(measured.load("papers"), name)
    return parts


TABLES = _tables()


def sections() -> str:
    """Return the text of the page, chapter by chapter."""
    return "\n".join(file.read_text() for file in sorted(SECTIONS.glob("*.md")))


def page(text: str, folders: tuple[str, ...] = FOLDERS) -> str:
    """Return the page: the text with {{name}} replaced by that table.

    Raises:
        ValueError: If the text asks for a table that no folder makes.
    """
    for folder in folders:
        for name, make in importlib.import_module(f"experiments.{folder}.page").TABLES.items():
            if "{{" + name + "}}" in text:
                text = text.replace("{{" + name + "}}", make())
    if "{{" in text:
        raise ValueError(f"no folder makes {text[text.index('{{') :][:60]!r}, which the sections ask for.")
    return text


THEIR_DP, THEIR_BDP, EXACT, TYPICAL, SHARES = "#8a8a8a", "#b3403a", "#2b2b2b", "#1f6f8b", "#5a8f69"


def draw(
    name: str, shape: tuple[int, int], plot: Callable[[int, Any], None], *, ylabel: str = "epsilon at delta 1e-5"
) -> None:
    """Draw panels in rows and columns, with one legend under all of them."""
    from matplotlib.figure import Figure

    from tacita.report.charts import styled
    from tacita.report.plots import STYLE

    rows, columns = shape
    with styled(**STYLE):
        size = (max(7.0, 3.2 * columns), 0.8 + 2.9 * rows)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for i, axis in enumerate(axes.flat):
            plot(i, axis)
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        for axis in axes[:, 0]:
            axis.set_ylabel(ylabel)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, fontsize=9, ncols=min(3, 1 + columns), loc="outside lower center")
        path = DOCS / "assets" / f"papers-{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": "tacita"})


def range_line(axis: Any, x: list[float], seeds: list[list[float]], **style: Any) -> None:
    """Draw the median of several seeds over their range."""
    columns = [sorted(column) for column in zip(*seeds, strict=True)]
    axis.plot(x, [median(column) for column in columns], **style)
    low, high = ([column[end] for column in columns] for end in (0, -1))
    axis.fill_between(x, low, high, color=style["color"], alpha=0.2, lw=0)


def sound_lines(axis: Any, x: list[float], found: list[Row]) -> None:
    """Draw what holds: worst case, `band`, and what 90% of people stay under."""
    dots: Row = {"marker": "o", "ms": 3.5, "lw": 1.6}
    axis.plot(x, [one["worst"] for one in found], color=EXACT, label="worst case, exact", **dots | {"lw": 3.0})
    axis.plot(x, [one["band"] for one in found], color=TYPICAL, label="typical, band", **dots)
    axis.plot(x, [one["shares"]["90"] for one in found], color=SHARES, label="90% of people, certified", **dots)
    axis.set_yscale("log")


def figures() -> None:
    """Draw figures 5.1 to 5.5."""
    rows = measured.load("papers")
    for figure in ("5.1", "5.2"):

        def noise(i: int, axis: Any, figure: str = figure) -> None:
            quantile = QUANTILES[figure][i]
            row = rows[f"figure {figure} C={quantile}"]
            axis.plot(row["sigmas"], row["coded_dp"], "--", color=THEIR_DP, lw=1.6, label="thesis, DP (order 24)")
            range_line(axis, row["sigmas"], row["coded_bdp"], color=THEIR_BDP, lw=1.6, label="thesis, BDP (order 24)")
            axis.plot(row["sigmas"], row["best_dp"], ":", color=THEIR_DP, lw=1.6, label="DP by moments, best order")
            sound_lines(axis, row["sound_sigmas"], row["sound"])
            axis.set_title(f"C at the {quantile} quantile")
            axis.set_xlabel("σ (noise 2Cσ)")

        draw(f"figure-{figure}", (1, 3), noise)

    def steps(i: int, axis: Any) -> None:
        quantile = QUANTILES["5.3"][i]
        row = rows[f"figure 5.3 C={quantile}"]
        x = list(range(1, row["steps"] + 1))
        axis.plot(x, row["coded_dp"], "--", color=THEIR_DP, lw=1.6, label="thesis, DP (order 16)")
        range_line(axis, x, row["coded_bdp"], color=THEIR_BDP, lw=1.6, label="thesis, BDP (order 16), not clipped")
        sound_lines(axis, row["sound_steps"], row["sound"])
        axis.set_title(f"noise at the {quantile} quantile")
        axis.set_xlabel("step")

    draw("figure-5.3", (2, 2), steps)

    def orders(_: int, axis: Any) -> None:
        for clip_norm, color in (("0.1", TYPICAL), ("0.7", SHARES), ("1.0", THEIR_BDP)):
            row = rows[f"figure 5.4 C={clip_norm}"]
            label = f"C = {clip_norm}: best at λ = {row['best_order']}, exact {bound(row['exact'])}"
            axis.plot(row["orders"], row["epsilons"], color=color, lw=1.8, label=label)
            axis.plot([row["best_order"]], [row["best"]], "o", color=color, ms=6)
            axis.axhline(row["exact"], color=color, lw=1, ls=":")
        axis.axvline(32, color=EXACT, lw=0.8, ls="--")
        axis.annotate("λ = 32", (33, 60), fontsize=9)
        axis.set(xscale="log", yscale="log", xlabel="order λ", ylim=(0.02, 200), xlim=(1, 512))

    draw("figure-5.4", (1, 1), orders)

    def products(i: int, axis: Any) -> None:
        quantile = QUANTILES["5.3"][i]
        row = rows[f"figure 5.3 C={quantile}"]
        x = list(range(1, row["steps"] + 1))
        range_line(axis, x, row["coded_bdp"], color=THEIR_BDP, lw=1.6, label="thesis, Hölder")
        range_line(axis, x, row["coded_naive"], color=THEIR_DP, lw=1.6, label="thesis, product (no bound)")
        axis.set_yscale("log")
        axis.set_title(f"noise at the {quantile} quantile")
        axis.set_xlabel("step")

    draw("figure-5.5", (2, 2), products)


if __name__ == "__main__":
    PAGE.write_text(page(sections()))
    for name in FOLDERS:
        importlib.import_module(f"experiments.{name}.page").figures()
