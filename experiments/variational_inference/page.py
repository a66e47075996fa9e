"""Tables and figure of the section on variational inference, and the table of docs/explanation/results/inference.md.

python -m experiments.variational_inference.page
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments import rows as measured
from experiments.rows import Row
from experiments.tables import bound, cost, digits, table
from tacita import attack_success

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "explanation" / "results" / "inference.md"
FOLDER, FIGURE = "variational_inference", "papers-figure-5.8.svg"
DATA, TRIALS = ("abalone", "adult"), 10
PUBLISHED = {  # accuracy, DP, BDP at 1e-5, BDP at 1e-10, as reported
    "abalone": (76, 7.6, 0.5, 0.61),
    "adult": (81, 0.5, 0.16, 0.2),
}
NAMES = {
    "noisy": "aligned gradients (`noisy`)",
    "dpvi": "DPVI, clipped guide gradients",
    "sgld": "DP-SGLD",
    "samples": "samples, no noise; scales fixed",
    "learnt": "samples, no noise; scales learnt",
    "plain": "without privacy",
}
TICKS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PRIVATE = ("noisy", "dpvi", "sgld", "samples")  # with a worst case
COLOURS = {"noisy": "#1f6f8b", "dpvi": "#b26a00", "sgld": "#8a8a8a", "samples": "#39754c", "learnt": "#b3403a"}

Key = tuple[str, str, float]


def grouped() -> dict[Key, list[Row]]:
    """Return the trials of each dataset, method and setting; the first trial comes first."""
    found = defaultdict(list)
    for row in measured.load(FOLDER).values():
        if "accuracy" in row:
            found[row["data"], row["method"], float(row["asked"])].append(row)
    order = sorted(found, key=lambda key: (key[0], list(NAMES).index(key[1]), key[2]))
    return {key: sorted(found[key], key=lambda row: row["seeds"][0]) for key in order}


def accuracy(trials: list[Row], key: str = "accuracy") -> str:
    """Return the mean over trials and their standard deviation, and how many there are unless it is all ten."""
    values = [100.0 * row[key] for row in trials]
    fewer = "" if len(values) == TRIALS else f" (n = {len(values)})"
    return f"{mean(values):.1f}%" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + fewer


def attack(epsilon: float) -> str:
    """Return the papers' P(A)."""
    return f"{100.0 * attack_success(epsilon):.1f}%"


def compared() -> str:
    """Return the accuracy of every method with a worst case, at each epsilon."""
    groups, lines = grouped(), []
    for name in DATA:
        for at in sorted({at for data, method, at in groups if data == name and method in PRIVATE}):
            cells = [groups.get((name, method, at)) for method in PRIVATE]
            lines.append([name.capitalize(), f"{at:g}", *(accuracy(found) if found else "–" for found in cells)])
        plain = groups.get((name, "plain", 0.0))
        if plain:
            lines.append([name.capitalize(), "none", accuracy(plain), "", "", ""])
    return table(["data", "worst case", *(NAMES[method] for method in PRIVATE)], lines)


def sampled() -> str:
    """Return the accounts of sampling instead of noise, scales fixed."""
    head = ["data", "worst case", "exact for these records", "the papers' figure, 1e-5 / 1e-10", "their P(A)"]
    head += ["guide's scale", "accuracy of ten points", "of the means, which are not released"]
    lines = []
    for (name, method, at), trials in grouped().items():
        first = trials[0]
        if method != "samples" or not first.get("papers"):
            continue
        theirs = [first["papers"]["bdp 1e-05"], first["papers"]["bdp 1e-10"]]
        typical = bound(first["typical"]) if first.get("typical") else "–"
        shown = [" / ".join(map(digits, theirs)), " / ".join(map(attack, theirs)), digits(first["scale"])]
        shown += [accuracy(trials), accuracy(trials, "at_the_mean")]
        lines.append([name.capitalize(), f"{at:g}", typical, *shown])
    return table(head, lines)


def learnt() -> str:
    """Return the thesis's own form: its figure, and that nothing bounds it."""
    head = ["data", "steps", "the papers' figure, one step at a time", "in truth: half of the replayed records", "90%"]
    head += ["worst case", "accuracy of ten points"]
    lines = []
    for (name, method, at), trials in grouped().items():
        first = trials[0]
        if method == "learnt" and "own" in first:
            figures = [first["one_step"], first["own"].get("50"), first["own"].get("90"), None]
            shown = ["infinite" if figure is None else digits(figure) if figure > 1e-5 else "0" for figure in figures]
            lines.append([name.capitalize(), f"{at:g}", *shown, accuracy(trials)])
    return table(head, lines)


def guides() -> str:
    """Return what the accounts of DPVI say of one run."""
    head = ["data", "worst case, exact", "moments accountant, as published", "authors' accountant, 1e-5 / 1e-10"]
    head += ["their P(A)", "accuracy, ten trials"]
    lines = []
    for (name, method, at), trials in grouped().items():
        first = trials[0]
        if method != "dpvi" or not first.get("papers"):
            continue
        theirs = [first["papers"]["bdp 1e-05"], first["papers"]["bdp 1e-10"]]
        shown = [digits(first["moments"]), " / ".join(map(digits, theirs)), " / ".join(map(attack, theirs))]
        lines.append([name.capitalize(), f"{at:g}", *shown, accuracy(trials)])
    return table(head, lines)


def authors(name: str) -> str:
    """Return, for table 5.2, the thesis's method and DPVI at the DP epsilon of its row, as their accountant sees it."""
    groups, at, parts = grouped(), PUBLISHED[name][1], []
    for method, what in (("samples", "sampling without noise"), ("dpvi", "DPVI")):
        trials = groups.get((name, method, at))
        if trials and trials[0].get("papers"):
            theirs = [trials[0]["papers"][key] for key in ("bdp 1e-05", "bdp 1e-10")]
            shown = f"BDP {digits(theirs[0])}, BDP* {digits(theirs[1])}, P(A) {attack(theirs[0])} / {attack(theirs[1])}"
            parts.append(f"{what} {accuracy(trials)}: {shown}; worst case {at:g}, P(A) {attack(at)}")
    return "; ".join(parts) or "not measured"


def number(name: str, method: str, at: float) -> str:
    """Return the accuracy of one setting, for use in a sentence."""
    trials = grouped().get((name, method, at))
    return accuracy(trials).split(" ")[0] if trials else "–"


def account(name: str, method: str, at: float, *keys: str) -> str:
    """Return one figure of the first trial, for use in a sentence."""
    found: Any = next(iter(grouped().get((name, method, at), ())), None)
    for key in keys:
        found = found and found.get(key)
    return digits(found) if found else "not measured"


def splits() -> str:
    """Return which rows were measured on splits that do not keep what settings were chosen on out of the test sets."""
    if any("other splits" in row["settings"] for row in measured.load(FOLDER).values()):
        found = (
            "Abalone's trials of `noisy`, DP-SGLD and the fit without privacy are older and split all records anew, so"
        )
        return f"{found} the fifth that their settings were chosen on is partly in their test sets."
    return "Abalone's trials all share their splits."


def _tables() -> dict[str, Callable[[], str]]:
    named: dict[str, Callable[[], str]] = {
        "figure 5.8": compared,
        "figure 5.8 samples": sampled,
        "figure 5.8 learnt": learnt,
        "figure 5.8 guides": guides,
        "figure 5.8 splits": splits,
        "cost figure 5.8": lambda: cost(measured.load(FOLDER)),
    }
    for name in DATA:
        named[f"{name} authors"] = partial(authors, name)
        named[f"{name} plain"] = partial(number, name, "plain", 0.0)
        named[f"{name} learnt 30"] = partial(number, name, "learnt", 30.0)
        for key, keys in {"figure": ("one_step",), "half": ("own", "50"), "tenth": ("own", "90")}.items():
            named[f"{name} learnt 30 {key}"] = partial(account, name, "learnt", 30.0, *keys)
    named["abalone samples 7.6 exact"] = partial(account, "abalone", "samples", 7.6, "typical")
    for name, method, at in product(DATA, PRIVATE, (0.25, 0.5, 0.9, 7.6)):
        named[f"{name} {method} {at:g}"] = partial(number, name, method, at)
    return named


TABLES = _tables()


def results_table() -> str:
    """Return the table of docs/explanation/results/inference.md."""
    head = ["data", "method", "worst case", "typical", "accuracy, ten trials", "log score", "CPU time"]
    lines = []
    for (name, method, at), trials in grouped().items():
        if method == "learnt":
            continue
        right = [100.0 * row["accuracy"] for row in trials]
        typical = trials[0].get("typical")
        cells = [
            name.capitalize(),
            NAMES[method],
            "none" if method == "plain" else f"{at:g}",
            bound(typical) if typical else "",
            f"{accuracy(trials)} ({min(right):.1f}–{max(right):.1f})",
            f"{mean(row['log_score'] for row in trials):.3f}",
            f"{60 * mean(row['cpu_minutes'] for row in trials[1:] or trials):.0f} s",
        ]
        lines.append(cells)
    return table(head, lines)


def results_page(text: str) -> str:
    """Return the text of a page with its first table replaced by `results_table`."""
    before, rest = text.split("\n| ", 1)
    return f"{before}\n{results_table()}\n\n{rest.split(chr(10) * 2, 1)[1]}"


def figures() -> None:
    """Draw figure 5.8."""
    from matplotlib.figure import Figure

    from tacita.report.charts import styled
    from tacita.report.plots import STYLE

    groups = grouped()
    with styled(**STYLE):
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        for axis, name in zip(figure.subplots(1, 2), DATA, strict=True):
            for method in PRIVATE:
                line(
                    axis, groups, name, method, lambda row: row["worst"], fmt="o-", label=NAMES[method].replace("`", "")
                )
            style: Row = {"mfc": "none", "lw": 1.0, "alpha": 0.8}
            line(
                axis,
                groups,
                name,
                "samples",
                for_these,
                fmt="o:",
                label="the same, exact for these records",
                **style,
            )
            line(
                axis,
                groups,
                name,
                "learnt",
                one_step,
                fmt="s:",
                label="scales learnt, at the papers' figure: no bound",
                **style,
            )
            plain = groups.get((name, "plain", 0.0))
            if plain:
                axis.axhline(
                    100.0 * mean(row["accuracy"] for row in plain), color="#2b2b2b", ls=":", lw=1, label=NAMES["plain"]
                )
            right, dp, bdp, star = PUBLISHED[name]
            for marker, at, label in (("x", dp, "DP"), ("+", bdp, "BDP"), ("1", star, "BDP*")):
                axis.plot(at, right, marker, color="#7b1fa2", ms=9, mew=2, label=f"published, {label}")
            axis.set(xscale="log", xlabel="epsilon (delta 1e-5)", title=name.capitalize())
            axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
            axis.minorticks_off()
        figure.axes[0].set_ylabel("test accuracy, %")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, fontsize=8.5, ncols=3, loc="outside lower center")
        figure.savefig(DOCS / "assets" / FIGURE, metadata={"Date": None, "Creator": "tacita"})


def for_these(row: Row) -> float | None:
    """Return what a fit by samples costs these records, exactly."""
    return row.get("typical")


def one_step(row: Row) -> float | None:
    """Return the papers' figure of a fit in the thesis's own form."""
    return row.get("one_step")


def line(
    axis: Any,
    groups: dict[Key, list[Row]],
    name: str,
    method: str,
    epsilon: Callable[[Row], float | None],
    **style: Any,
) -> None:
    """Draw a method's accuracy over an account of its first trial."""
    points = []
    for (data, other, _), trials in groups.items():
        at = epsilon(trials[0]) if (data, other) == (name, method) else None
        if at is not None:
            values = [100.0 * row["accuracy"] for row in trials]
            points.append((at, mean(values), stdev(values) if len(values) > 1 else 0.0))
    if points:
        x, y, error = zip(*sorted(points), strict=True)
        axis.errorbar(x, y, error, color=COLOURS[method], capsize=3, ms=4, **style)


if __name__ == "__main__":
    PAGE.write_text(results_page(PAGE.read_text()))
    figures()
