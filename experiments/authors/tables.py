"""The tables of table 5.2 and of figures 5.6 and 5.7."""

from __future__ import annotations

import json
import math
from statistics import mean

from experiments import rows as measured
from experiments.rows import Row, Rows
from experiments.tables import bound, digits, percents, spread, table, up
from tacita import attack_success

DELTA, LEVEL = 1e-5, 0.05
# Published: accuracy without and with privacy, DP, BDP at 1e-5 and at 1e-10 (Triastcyn 2020, table 5.2).
THEIRS = {
    "MNIST": (99, 96, 2.18, 0.62, 0.95),
    "CIFAR-10": (86, 73, 8.0, 0.51, 0.76),
    "Abalone": (77, 76, 7.6, 0.5, 0.61),
    "Adult": (81, 81, 0.5, 0.16, 0.2),
}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
FORMS = {
    "mnist coded": "MNIST, without batch normalisation",
    "mnist normalised": "MNIST, with it",
    "cifar10 coded clipped": "CIFAR-10, C = 1 as printed",
    "cifar10 coded unclipped": "CIFAR-10, not clipped, as coded",
    "cifar10 coded stretched": "CIFAR-10, not clipped, features × 5",
    "cifar10 coded longer": "CIFAR-10, not clipped, features × 5, 20 epochs",
}
WORST = {
    "mnist coded": "mnist worst",
    "mnist normalised": "mnist worst",
    "cifar10 coded clipped": "cifar10 worst clipped",
    "cifar10 coded unclipped": "cifar10 worst clipped",
    "cifar10 coded stretched": "cifar10 worst stretched",
    "cifar10 coded longer": "cifar10 worst longer",
}
INFINITE = ("infinite", "100%")
SETTINGS = {
    "mnist worst": "MNIST",
    "cifar10 worst clipped": "CIFAR-10",
    "cifar10 worst stretched": "CIFAR-10, features × 5",
    "cifar10 worst longer": "CIFAR-10, features × 5",
}
KINDS = {
    "printed": "as printed: each record clipped to C, noise σC on the sum",
    "coded": "as coded: the batch's mean clipped to C, noise σC on the mean",
}


def load() -> Rows:
    """Return the measured rows."""
    return measured.load("authors")


def seeds(rows: Rows, start: str) -> list[Row]:
    """Return the rows of every seed."""
    return [row for name, row in rows.items() if name.startswith(f"{start} seed ")]


def holds(epsilon: float) -> str:
    """Return a worst case, rounded up; whole from a thousand on."""
    return f"{math.ceil(epsilon):,}" if epsilon >= 1000.0 else bound(epsilon)


def chance(success: float) -> str:
    """Return an attacker's success in percent, rounded up."""
    return "100%" if success > 0.9999 else f"{up(100.0 * success, 1)}%"


def published_table(rows: Rows) -> str:
    """Return the papers' table, with P(A) by eq. 5.1."""
    head = ["data", "without privacy", "private", "DP", "BDP", "BDP*", "P(A): DP / BDP / BDP*"]
    lines = []
    for name, (plain, private, *epsilons) in THEIRS.items():
        attacks = " / ".join(f"{attack_success(epsilon):.2%}" for epsilon in epsilons)
        lines.append([name, f"{plain}%", f"{private}%", *map(str, epsilons), attacks])
    return table(head, lines)


def coded_table(rows: Rows) -> str:
    """Return what the authors' form gives, and what it guarantees."""
    head = ["run", "without privacy", "private", "DP, moments at distance C", "BDP", "BDP*", "P(A): BDP / BDP*"]
    head += ["BDP / BDP*, orders to 512", "worst case, as coded, at most", "P(A)"]
    lines = []
    for form, text in FORMS.items():
        found, worst = seeds(rows, form), rows.get(WORST[form])
        if not found or not worst:
            continue
        plain = seeds(rows, f"{form.split()[0]} baseline")
        cells = [text, percents(row["accuracy"] for row in plain) if plain else ""]
        cells += [percents(row["accuracy"] for row in found), digits(worst["moments"])]
        cells += [spread(row[key] for row in found) for key in ("bdp", "bdp_star")]
        cells.append(" / ".join(chance(max(row["attack"][key] for row in found)) for key in ("bdp", "bdp_star")))
        cells.append(" / ".join(spread(row[f"{key}_more_orders"] for row in found) for key in ("bdp", "bdp_star")))
        known = worst["coded"]
        lines.append([*cells, *((holds(known["epsilon"]), chance(known["attack"])) if clips(form) else INFINITE)])
    return table(head, lines)


def clips(form: str) -> bool:
    """Return whether the batch's gradient is clipped, without which no worst case is finite."""
    return not form.startswith("cifar10") or form == "cifar10 coded clipped"


def worst_table(rows: Rows) -> str:
    """Return the worst cases of the authors' settings, by what is clipped."""
    head = ["settings", "what is clipped, where the noise is", "noise over what one record can add"]
    head += ["worst case", "by participations alone", "P(A)"]
    lines = []
    for name, text in SETTINGS.items():
        row = rows.get(name, {})
        kinds = [(text, row[kind]) for kind, text in KINDS.items() if row and "×" not in SETTINGS[name]]
        kinds += [
            (f"each record clipped to {c}, noise σC on the mean", one) for c, one in row.get("records", {}).items()
        ]
        for kind, one in kinds:
            cells = [f"{text}, {row['steps']:,} steps", kind, digits(one["noise_multiplier"])]
            lines.append([*cells, holds(one["epsilon"]), holds(one["participations"]), chance(one["attack"])])
    return table(head, lines)


def followed_table(rows: Rows) -> str:
    """Return what the runs' gradients were like."""
    head = ["run", "batches clipped", "a record's gradient: median, largest", "longer than"]
    head += ["distance accounted for: median, largest"]
    lines = []
    for form, text in FORMS.items():
        for row in seeds(rows, form)[:1]:
            distances, norms = row["distances"], row.get("record_norms")
            own = ["none: records are mixed", ""]
            if norms:
                above = [f"{float(c):g}: {share:.1%}" for c, share in row["records_above"].items()]
                own = [f"{digits(norms['50'])}, {digits(norms['max'])}", f"{', '.join(above)} of {norms['count']:,}"]
            clipped = f"{row['batches_clipped']:.0%}" if clips(form) else "not clipped"
            lines.append([text, clipped, *own, f"{digits(distances['50'])}, {digits(distances['max'])}"])
    return table(head, lines)


def ours_table(rows: Rows) -> str:
    """Return this library's own figures on the four sets: a worst case, and what it lets an attacker do."""
    head = ["data", "model", "accuracy", "worst case", "typical", "P(A), at most", "results"]
    lines = []
    for name, text in NAMES.items():
        found = seeds(rows, f"{name} private")
        if found:
            cells = [text, "linear, public features", percents(row["accuracy"] for row in found)]
            cells += [bound(max(row[key] for row in found)) for key in ("worst", "typical")]
            page = {"mnist": "[MNIST](results/mnist.md)", "cifar10": "[features](results/features.md)"}[name]
            lines.append([*cells, chance(max(row["attack"] for row in found)), f"here; more in {page}"])
    for name, asked in (("abalone", 0.9), ("adult", 0.25)):
        trials = inferred(name, asked)
        if trials:
            worst = max(row["worst"] for row in trials)
            cells = [name.capitalize(), "logistic regression", f"{100 * mean(r['accuracy'] for r in trials):.1f}%"]
            typical = [row["typical"] for row in trials if row["typical"] is not None]
            cells += [bound(worst), bound(max(typical)) if typical else ""]
            lines.append([*cells, chance(attack_success(worst, DELTA)), "[inference](results/inference.md)"])
    return table(head, lines)


def inferred(data: str, asked: float) -> list[Row]:
    """Return the trials of private variational inference at an epsilon."""
    path = measured.HERE / "variational_inference" / "results.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    wanted = {"data": data, "method": "noisy", "asked": asked}
    return [row for row in found if wanted.items() <= row.items()]


def growth_table(rows: Rows) -> str:
    """Return the figures along the runs."""
    head = ["run", "steps", "BDP after a quarter", "half", "all", "worst case as coded, after a quarter", "half", "all"]
    lines = []
    for form, text in FORMS.items():
        for row in seeds(rows, form)[:1]:
            last, known = row["steps"], rows[WORST[form]]
            own = [digits(at(row["curve_steps"], row["bdp_curve"], last * i / 4)) for i in (1, 2, 4)]
            clipped = row["mechanism"]["clip_norm"] is not None
            worst = [holds(at(known["curve_steps"], known["coded"]["curve"], last * i / 4)) for i in (1, 2, 4)]
            lines.append([text, f"{last:,}", *own, *(worst if clipped else ["infinite"] * 3)])
    return table(head, lines)


def at(steps: list[int], values: list[float], step: float) -> float:
    """Return a curve's value at the first step that is not before."""
    return next(value for one, value in zip(steps, values, strict=True) if one >= step - 0.5)


def distances_table(rows: Rows) -> str:
    """Return the papers' tests and the library's own, for figure 5.7."""
    head = ["run", "pairs", "mean distance: inside, outside", "t-test p", "Levene p"]
    head += ["single records, by exchanges: smallest p, corrected", "right at most, of 100"]
    lines = []
    for start in (*FORMS, "mnist private", "cifar10 private"):
        for row in (row for row in seeds(rows, start) if "leak" in row):
            text = f"{FORMS.get(start) or own(start)}, seed {row['seeds'][0]}"
            p = min(check["corrected"] for one in row["leak"]["comparisons"] for check in one["checks"])
            count, means, tests = paired(row)
            cells = [text, f"{count:,}", ", ".join(map(digits, means)), *map(chances, tests)]
            lines.append([*cells, chances(p), up(100.0 * row["leak"]["missed"], 1)])
    return table(head, lines)


def own(start: str) -> str:
    """Return the name of a run of our own."""
    return f"{NAMES[start.split()[0]]}, our own run"


def chances(p: float) -> str:
    """Return a p-value, in bold if it tells the two sides apart."""
    text = "0" if p == 0.0 else f"{p:.0e}" if p < 1e-3 else f"{p:.2g}"
    return f"**{text}**" if p < LEVEL else text


def paired(row: Row) -> tuple[int, list[float], tuple[float, float]]:
    """Return how many pairs a run's distances are of, the means of both sides, and the papers' p-values."""
    if "pairs" in row:
        return row["pairs"]["count"], row["pairs"]["averages"], (row["pairs"]["t_test"], row["pairs"]["levene"])
    records = row["leak"]["comparisons"][-1]["records"][0]
    return records * (records - 1) // 2, row["leak"]["comparisons"][-1]["averages"], row["leak"]["papers"]
