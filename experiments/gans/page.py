"""Tables and figures of experiments/gans for docs/explanation/papers.md; older rows come from experiments/synthesis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from statistics import mean

from experiments import rows as measured
from experiments.gans import pictures
from experiments.gans.pictures import PICTURES, Group, group, panels
from experiments.rows import HERE, Row
from experiments.tables import cost, digits, percents, table, up

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
KINDS = {
    "table 3.1 {} direction ": "chapter 3, no noise",
    "section 7.5.3 {} wgan-gp ": "`wgan-gp`, no noise",
    "table 7.1 {} wgan ": "chapter 7, WGAN with noise",
    "table 7.1 {} wgan-gp ": "chapter 7, WGAN-GP with noise",
    "table 7.1 {} mean-embedding ": "`mean-embedding`, worst case of 1",
}
NOTHING = "*Not measured yet.*"


def older(folder: str, name: str) -> Group:
    """Return the seeds of a row of an older experiment, one line each."""
    lines = (HERE / folder / "results.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["row"] == name]


def share(found: Iterable[Row], key: str, places: int = 1) -> str:
    """Return the mean percentage of several seeds, and their range; a dash if there is none."""
    values = [100.0 * row[key] for row in found if key in row]
    return percents(values, places) if values else "–"


def average(found: Group, key: str) -> str:
    """Return the mean of several seeds."""
    return digits(mean(row[key] for row in found)) if found else "–"


def filled(head: list[str], lines: list[list[str]]) -> str:
    """Return a table, or that nothing was measured."""
    return table(head, lines) if lines else NOTHING


def kinds() -> list[tuple[str, str, Group]]:
    """Return every generator that was measured: data, what it is, its seeds."""
    found = [(name, kind, group(key.format(name))) for name in TITLES for key, kind in KINDS.items()]
    return [(name, kind, rows) for name, kind, rows in found if rows]


def chapter_3() -> list[tuple[str, Group]]:
    """Return the generators of table 3.1, ours and the library's."""
    direction = group("table 3.1 mnist direction")
    found = [
        ("thesis's networks, labels appended", group("table 3.1 mnist")),
        ("thesis's networks, labels appended, DP critic", group("table 3.1 mnist dp-critic")),
        ("thesis's networks, labels as a direction", direction),
        ("… and its weights averaged", [row["averaged"] | {"epochs": row["epochs"]} for row in direction]),
        ("`wgan-gp`, the library's defaults", older("synthesis", "mnist wgan-gp")),
        ("`wgan-gp`, DP critic", older("synthesis", "mnist wgan-gp dp-critic")),
    ]
    return [(name, rows) for name, rows in found if rows]


def table_3_1() -> str:
    """Return students of artificial MNIST."""
    real = ("real data", older("synthesis", "mnist real"))
    lines = [
        [
            name,
            f"{rows[0]['epochs']:.0f}" if "epochs" in rows[0] else "–",
            share(rows, "student"),
            share(rows, "logistic"),
            str(len(rows)),
        ]
        for name, rows in (real, *chapter_3())
    ]
    return table(["students of", "epochs", "student", "logistic regression", "runs"], lines)


def table_3_2() -> str:
    """Return the average-case measure."""
    lines = [
        [name, average(rows, "mu_chebyshev"), average(rows, "mu_student"), share(rows, "nearer")]
        for name, rows in chapter_3()
    ]
    return table(["generator", "μ, Chebyshev", "μ, Student", "nearer to training than to test images"], lines)


def on_the_way(key: str, text: Callable[[float], str]) -> str:
    """Return what was measured during the trainings of table 3.1: Fréchet distances, or short students."""
    curves = curves_3_1()
    found = [dict(zip(curve["steps"], curve[key], strict=True)) for _, curve in curves]
    steps = sorted({step for one in found for step in one})
    lines = [[f"{step:,}", *(text(one[step]) if step in one else "–" for one in found)] for step in steps]
    return filled(["critic steps", *(name for name, _ in curves)], lines)


def thousandths(value: float) -> str:
    """Return a Fréchet distance in thousandths."""
    return digits(1000.0 * value)


def end_points() -> str:
    """Return the library's Fréchet distances at the end, without and with the DP critic."""
    lines = []
    for title, name in (("without", "mnist wgan-gp"), ("with the DP critic", "mnist wgan-gp dp-critic")):
        rows = older("synthesis", name)
        lines.append([title, *(thousandths(row["frechet"]) for row in rows), share(rows, "student")])
    return table(["`wgan-gp`", *(f"run {i + 1}" for i in range(len(lines[0]) - 2)), "student"], lines)


def signed(value: float | None) -> str:
    """Return a correlation."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def validation(data: str, only: str = "") -> str:
    """Return the correlation of losses on real and synthetic validation sets, by the student's learning rate."""
    found = [
        (kind, rows[0]) for name, kind, rows in kinds() if name == data and only in kind and "validation" in rows[0]
    ]
    if not found:
        return NOTHING
    rates = found[0][1]["validation"]["learning_rates"]
    lines = [
        [
            kind,
            *map(signed, row["validation"]["pearson"]),
            signed(row["selection"]),
            f"{100 * row['regret']:.1f} points",
        ]
        for kind, row in found
    ]
    return table(["generator", *(f"{rate:g}" for rate in rates), "order of students", "lost by choosing"], lines)


def learning() -> str:
    """Return accuracy by the number of labelled images, and its share of what all of them give."""
    lines = []
    for name, kind, rows in kinds():
        if "learning" not in rows[0]:
            continue
        real = mean(row["student"] for row in older("synthesis", f"{name} real"))
        curve, full = rows[0]["learning"], mean(row["student"] for row in rows)
        for what, values, most in (("real images", curve["real"], real), (kind, curve["synthetic"], full)):
            cells = [f"{100 * value:.1f}% ({100 * value / most:.0f}%)" for value in values]
            lines.append([TITLES[name], what, *cells, f"{100 * most:.1f}%"])
        sizes = curve["sizes"]
    return table(["data", "labelled images", *(f"{size:,}" for size in sizes), "all"], lines) if lines else NOTHING


def private_classifiers() -> dict[str, tuple[str, str]]:
    """Return our own private classifiers' accuracy and worst case, from the experiments that trained them."""
    of = {"mnist": ("mnist_dpsgd", "linear-0.75 "), "fashion-mnist": ("features", "fashion-mnist 1 ")}
    found = {
        name: [row for key, row in measured.load(folder).items() if key.startswith(prefix)]
        for name, (folder, prefix) in of.items()
    }
    return {
        name: (percents([row["accuracy"] for row in some], 2), up(max(row["worst"] for row in some)))
        for name, some in found.items()
        if some
    }


def table_7_1() -> str:
    """Return students of private generators."""
    lines = []
    for name, title in TITLES.items():
        real = share(older("synthesis", f"{name} real"), "student")
        accuracy, worst = private_classifiers().get(name, ("–", "–"))
        lines.append([title, "real data", "none", real, "–"])
        lines.append([title, "private classifier", worst, accuracy, "–"])
        for key in ("wgan", "wgan-gp"):
            for row in group(f"table 7.1 {name} {key}"):
                noise = max(row["controls"].values())
                worst = scientific(row["accounts"][0]["worst"])
                kind = f"as published, {key.upper()}, {row['epochs']:.0f} of 400 epochs"
                lines.append([title, kind, worst, f"{100 * row['student']:.1f}%", f"{100 * noise:.1f}%"])
        for kind in ("private-wgan 1", "mean-embedding 1"):
            rows = older("synthesis", f"{name} {kind}")
            worst = up(max(row["epsilon"] for row in rows))
            lines.append([title, f"`{kind.split()[0]}`, per record", worst, share(rows, "student"), "–"])
    return table(["data", "what", "worst case ε", "accuracy", "noise labelled by the same annotator"], lines)


def scientific(value: float) -> str:
    """Return a large number in words of ten, rounded up in its third digit."""
    power = len(f"{value:.0f}") - 1
    return f"{up(value / 10**power)}·10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(c)] for c in str(power))}"


def accounts() -> str:
    """Return the authors' figure and the true worst case of chapter 7's training."""
    lines = []
    for name, kind, rows in kinds():
        for account in rows[0].get("accounts", ()):
            cells = [digits(account["coded"]), scientific(account["clipped_by_record"]), scientific(account["worst"])]
            lines.append([TITLES[name], kind, f"{account['steps']:,}", *cells])
    head = ["data", "generator", "critic steps", "BDP, their code", "worst case if records were clipped"]
    return filled([*head, "worst case"], lines)


def annotators() -> str:
    """Return how good the annotators are."""
    found = [(TITLES[name], rows) for name, kind, rows in kinds() if "annotator" in rows[0]]
    best = {title: max(row["annotator"] for row in rows) for title, rows in found}
    return ", ".join(f"{100 * value:.1f}% on {title}" for title, value in best.items()) or "not measured yet"


def without_guarantee() -> str:
    """Return students of generators without noise."""
    lines = [["MNIST", share(older("synthesis", "mnist wgan-gp"), "student"), "96.09%"]]
    fashion = group("section 7.5.3 fashion-mnist wgan-gp")
    lines += [["Fashion-MNIST", share(fashion, "student"), "84.86%"]] if fashion else []
    return table(["data", "here, `wgan-gp`", "thesis"], lines)


def rotation() -> str:
    """Return what is seen of half of the images being rotated."""
    lines = []
    for row in group("figure 7.3 mnist mean-embedding"):
        for key in ("correct", "altered"):
            part = row[key]
            text = "; ".join(part["alarms"]) or "none"
            lines.append(
                [f"`mean-embedding` at {up(row['epsilon'])}, {key} images", f"{part['look_turned']:.0%}", text]
            )
    for row in group("figure 7.3 mnist wgan"):
        worst = scientific(row["accounts"][0]["worst"])
        lines.append([f"as published (worst case {worst}), altered images", f"{row['look_turned']:.0%}", "–"])
    return filled(["generator", "samples that look rotated", "alarms, beside a trusted release"], lines)


def shown(name: str, about: str, there: bool) -> str:
    """Return the picture, if there is one."""
    return f"![{about}](../assets/papers-{name})" if there else ""


def curves_3_1() -> list[tuple[str, Row]]:
    """Return the generators of table 3.1 that were followed, and what was seen."""
    return [(name, rows[0]["curve"]) for name, rows in chapter_3() if "curve" in rows[0]]


def loss_panels() -> list[tuple[str, Row]]:
    """Return the losses of figures 3.2 and 7.5."""
    return [
        (f"{TITLES[name]}: {kind}".replace("`", "").replace(", worst", ",\nworst"), rows[0]["validation"])
        for name, kind, rows in kinds()
        if "validation" in rows[0] and "WGAN-GP" not in kind
    ]


def _tables() -> dict[str, Callable[[], str]]:
    made: dict[str, Callable[[], str]] = {
        "table 3.1": table_3_1,
        "table 3.2": table_3_2,
        "figure 3.2": lambda: validation("mnist", "chapter 3,"),
        "table 3.1 curve": lambda: on_the_way("student", lambda value: f"{100 * value:.1f}%"),
        "figure 3.3": lambda: on_the_way("frechet", thousandths),
        "figure 3.3 end points": end_points,
        "table 7.1": table_7_1,
        "table 7.1 accounts": accounts,
        "annotators": annotators,
        "sound mnist": lambda: share(older("synthesis", "mnist mean-embedding 1"), "student"),
        "section 7.5.3": without_guarantee,
        "figure 7.3": rotation,
        "figure 7.4": learning,
        "figure 7.5 mnist": lambda: validation("mnist"),
        "figure 7.5 fashion-mnist": lambda: validation("fashion-mnist"),
        "picture figure 3.3": lambda: shown("figure-3.3.svg", "Fréchet distance over training", bool(curves_3_1())),
        "picture figure 7.5": lambda: shown("figure-7.5.svg", "Losses on real and synthetic sets", bool(loss_panels())),
    }
    for figure, (about, _) in PICTURES.items():
        made[f"picture {figure.replace('-', ' ')}"] = lambda figure=figure, about=about: shown(
            f"{figure}.png", about, bool(panels(figure))
        )
    for name in ("table 3.1", "table 7.1", "section 7.5.3", "figure 7.3"):
        made[f"cost {name}"] = lambda name=name: cost(measured.load("gans"), name)
    return made


TABLES = _tables()


def figures() -> None:
    """Draw figures 3.3 and 7.5, and the samples of table 3.1 and of figures 7.2 and 7.3."""
    pictures.figures(curves_3_1(), loss_panels())
