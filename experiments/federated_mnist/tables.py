"""The tables and the figure of docs/explanation/results/federated.md, from results.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIGURE = HERE.parents[1] / "docs" / "assets" / "federated-growth.svg"
Row = dict[str, Any]

# Triastcyn & Faltings 2019, Tables I to IV (Triastcyn 2020, Tables 6.1 to 6.4): accuracy in percent, epsilon.
PAPER = {
    ("mnist", "shards", 100): ((78, 8), (88, 4.0)),
    ("mnist", "shards", 1000): ((95, 3), (96, 1.5)),
    ("mnist", "iid", 100): ((86, 8), (92, 2.0)),
    ("mnist", "iid", 1000): ((97, 3), (97, 1.0)),
    ("retinamnist", "iid", 100): ((60, 8), (65, 2.1)),
}
PAPER_JOINT = {
    ("mnist", "iid"): (15, 74, 2),
    ("mnist", "shards"): (12, 62, 4),
    ("retinamnist", "iid"): (42, 64, 1),
}
NAMES = {("mnist", "iid"): "MNIST, i.i.d.", ("mnist", "shards"): "MNIST, shards", ("retinamnist", "iid"): "RetinaMNIST"}


def up(value: float | None, digits: int = 2) -> str:
    """Return an epsilon rounded up."""
    return "–" if value is None else f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def power(delta: float) -> str:
    """Return a delta such as 1e-5."""
    return f"1e{round(math.log10(delta))}"


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def clients(rows: list[Row]) -> str:
    """Return the rows where clients are protected."""
    head = ["data", "clients", "δ", "paper, DP", "paper, BDP (no bound)", "accuracy", "worst case (RDP)", "norm / C"]
    head += ["typical, sound: band, Hölder", "no bound: student, product", "half of the clients"]
    lines = []
    for r in sorted(rows, key=lambda r: (r["data"], r["clients"], r["split"])):
        key = (r["data"], r["split"])
        dp, bdp = PAPER[(*key, r["clients"])]
        name = NAMES[key] + (f", same noise, C = {r['clip_norm']:g}" if r["experiment"].endswith("loose") else "")
        start = [name, f"{r['clients']:,}", power(r["delta"]), *(f"{a}% at {e:g}" for a, e in (dp, bdp))]
        if r["target"] is None:
            lines.append([*start, f"{r['accuracy']:.1f}%", "almost no noise", "–", "–", "–", "–"])
            continue
        lines.append(
            [
                *start,
                f"**{r['accuracy']:.1f}%**",
                f"**{up(r['worst_pld'])}** ({up(r['worst_rdp'])})",
                f"{r['mean_norm']:.2f}",
                f"{up(r['band'])}, {up(r['hoelder_bernstein'])}",
                f"{up(r['not_a_bound_student'])}, {up(r['not_a_bound_product'])}",
                up(r["own_percentiles"]["50"]),
            ]
        )
    return table(head, lines)


def joint(rows: list[Row]) -> str:
    """Return the rows of level joint."""
    head = [
        "data",
        "paper, DP",
        "paper, BDP (no bound)",
        "accuracy",
        "client, worst case at 1e-3",
        "… paper's product (no bound)",
    ]
    head += ["image, worst case at 1e-5"]
    lines = []
    for r in rows:
        key = (r["data"], r["split"])
        dp, bdp, epsilon = PAPER_JOINT[key]
        lines.append(
            [
                NAMES[key],
                f"{dp}%",
                f"{bdp}% at {epsilon} and 0.1",
                f"**{r['accuracy']:.1f}%**",
                f"**{up(r['worst_pld'])}**",
                up(r["not_a_bound_product"]),
                f"**{up(min(r['record_worst'], r['record_hidden']), 3)}**",
            ]
        )
    return table(head, lines)


def settings(rows: list[Row]) -> str:
    """Return how the models were trained."""
    head = [
        "data",
        "clients",
        "ε",
        "model",
        "chance of a client",
        "rounds",
        "C",
        "σ",
        "inside a client",
        "server",
        "CPU minutes",
    ]
    lines = []
    for r in rows:
        inside = r["local"]
        if r["experiment"] == "joint":
            inside = f"record C {r['record_clip']:g}, rate {r['record_rate']:g}, σ {r['record_noise_multiplier']:.3g}"
        lines.append(
            [
                NAMES[r["data"], r["split"]] + (", joint" if r["experiment"] == "joint" else ""),
                f"{r['clients']:,}",
                "–" if r["target"] is None else f"{r['target']:g}",
                r["model"],
                f"{r['client_rate']:g}",
                str(r["rounds"]),
                f"{r['clip_norm']:g}",
                f"{r['noise_multiplier']:.3g}",
                inside,
                f"rate {r['learning_rate']:g}, momentum {r['momentum']:g}",
                f"{r['cpu_minutes']:g}",
            ]
        )
    return table(head, lines)


def growing(rows: list[Row]) -> str:
    """Return the last round of every growth curve."""
    head = ["data", "clients", "rounds", "parallel, worst case", "sequential, worst case"]
    head += ["paper's parallel (no bound)", "paper's sequential (no bound)"]
    last = {(r["split"], r["clients"]): r for r in rows}
    names = ("parallel_worst", "sequential_worst", "not_a_bound_parallel", "not_a_bound_sequential")
    lines = [
        [NAMES["mnist", split], f"{number:,}", str(r["round"]), *(up(r[name], 3) for name in names)]
        for (split, number), r in last.items()
    ]
    return table(head, lines)


def draw(rows: list[Row]) -> None:
    """Draw epsilon over rounds, for both levels and both sizes."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "tacita"  # the same file every time
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    curves = {
        "parallel_worst": ("parallel, worst case", "#b3403a", "-"),
        "sequential_worst": ("sequential, worst case", "#1f6f8b", "-"),
        "not_a_bound_parallel": ("paper's parallel (no bound)", "#b3403a", ":"),
        "not_a_bound_sequential": ("paper's sequential (no bound)", "#1f6f8b", ":"),
    }
    for axis, split, title in zip(axes, ("iid", "shards"), ("i.i.d.", "two digits a client"), strict=True):
        for number, marker in ((100, "o"), (1000, "s")):
            mine = [r for r in rows if (r["split"], r["clients"]) == (split, number)]
            for key, (name, color, style) in curves.items():
                points = [(r["round"], r[key]) for r in mine]
                label = f"{name}, {number:,} clients" if split == "iid" else None
                fill = color if number == 100 else "white"
                axis.plot(
                    *zip(*points, strict=True), style, color=color, marker=marker, ms=4, mfc=fill, lw=1.4, label=label
                )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
        axis.set_xticks([], minor=True)
        axis.set_xlabel("round")
        axis.set_title(f"MNIST, {title}", loc="left", weight="bold")
        axis.grid(color="#d9d9d9", lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("epsilon of a client's record, delta 1e-5")
    figure.legend(frameon=False, fontsize=9, ncols=2, loc="outside lower center")
    figure.savefig(FIGURE, metadata={"Date": None, "Creator": "tacita"})


def write() -> None:
    """Print the tables and write the figure."""
    rows = [json.loads(line) for line in (HERE / "results.jsonl").read_text().splitlines()]
    single = [r for r in rows if r["experiment"].startswith(("client", "retina"))]
    both = [r for r in rows if r["experiment"] == "joint"]
    over = [r for r in rows if r["experiment"] == "growth"]
    parts = [clients(single), joint(both), settings(single + both)]
    if over:
        parts.append(growing(over))
        draw(over)
    print("\n\n".join(parts))
