"""Tables 4.1 and 4.2 of the thesis beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean

from experiments.federated_generators.run import (
    CENTRAL,
    CHOICES,
    CLIENTS,
    MDGAN_ROUNDS,
    METHODS,
    SIZES,
    SPLITS,
    best,
)
from experiments.rows import Rows, load
from experiments.tables import cost, digits, percents, table

FOLDER = "federated_generators"
WORDS = {"even": "i.i.d.", "class": "two classes a client"}
THEIRS = {
    ("even", 500): ("98.10", "64.30", "97.35", "79.45"),
    ("even", 1000): ("98.55", "93.46", "97.39", "93.38"),
    ("even", 2000): ("98.92", "97.47", "97.41", "96.23"),
    ("class", 500): ("97.31", "79.23", "", "83.26"),
    ("class", 1000): ("98.78", "91.90", "", "95.89"),
    ("class", 2000): ("98.76", "95.18", "", "96.88"),
}
THEIR_MU = {
    ("even", 500): ("0.0101", "0.0117"),
    ("even", 1000): ("0.0046", "0.0069"),
    ("even", 2000): ("0.0015", "0.0021"),
    ("class", 500): ("", "0.0090"),
    ("class", 1000): ("", "0.0044"),
    ("class", 2000): ("", "0.0020"),
}


def found(rows: Rows, split: str, size: int, method: str, key: str) -> list[float]:
    """Return what the seeds of one cell measured."""
    start = f"table 4.1 {size} {split} {method} "
    return [row[key] for name, row in rows.items() if name.startswith(start)]


def _cells() -> Iterable[tuple[str, int]]:
    return [(split, size) for split in SPLITS for size in SIZES]


def _percent(values: list[float]) -> str:
    return percents([100.0 * value for value in values]) if values else ""


def _number(values: list[float]) -> str:
    return digits(mean(values)) if values else ""


def students(rows: Rows) -> str:
    """Return table 4.1."""
    names = ("real data", "MD-GAN", "CentGP", "FedGP")
    head = ["split", "records a client", *(f"thesis: {name}" for name in names), *(f"here: {name}" for name in names)]
    lines = []
    for split, size in _cells():
        ours = [_percent(found(rows, split, size, method, "student")) for method in METHODS]
        theirs = [f"{value}%" if value else "" for value in THEIRS[split, size]]
        lines.append([WORDS[split], f"{size:,}", *theirs, *ours])
    return table(head, lines)


def measures(rows: Rows) -> str:
    """Return table 4.2, with the measure of two sets that no generator made."""
    head = ["split", "records a client", "thesis: μ_C", "thesis: μ_F", "here: μ_C", "here: μ_F"]
    head += ["the records themselves", "fresh records"]
    lines = []
    for split, size in _cells():
        ours = [_number(found(rows, split, size, method, "mu")) for method in ("centgp", "fedgp")]
        ours += [_number(found(rows, split, size, "real", key)) for key in ("mu_copies", "mu_fresh")]
        lines.append([WORDS[split], f"{size:,}", *THEIR_MU[split, size], *ours])
    return table(head, lines)


def choices(rows: Rows) -> str:
    """Return the schedules that were compared."""
    head = [
        "split",
        "clients in a round, steps of the generator at each (batches of 32, server rate 1)",
        "rounds",
        "student",
        "last weights",
    ]
    head += ["CPU minutes"]
    lines = []
    for split, label, schedule in CHOICES:
        row = rows.get(f"choice {split} {label} seed 1")
        if row:
            scores = [_percent([row[key]]) for key in ("student", "last")]
            lines.append([WORDS[split], label, f"{schedule.rounds}", *scores, f"{row['cpu_minutes']:.1f}"])
    central = rows.get(f"choice {CENTRAL} seed 1")
    if central:
        cells = [_percent([central["student"]]), "", f"{central['cpu_minutes']:.1f}"]
        lines.append(["", "in one place, as many steps as by default", "", *cells])
    return table(head, lines)


def _of(split: str) -> str:
    try:
        schedule = best(split, quick=False)
    except RuntimeError:
        return "not measured yet"
    asked = round(CLIENTS * schedule.client_rate)
    who = "all clients" if asked == CLIENTS else f"{asked} of {CLIENTS} clients"
    return (
        f"{schedule.rounds} rounds, on average {who} in each, {schedule.local_steps} generator steps at a client, "
        f"batches of {schedule.batch_size}, server rate {schedule.server_rate:g}"
    )


def _minutes(rows: Rows, method: str) -> str:
    spent = [row["cpu_minutes"] for name, row in rows.items() if name.startswith("table 4.1") and f" {method} " in name]
    return f"{mean(spent):.1f}" if spent else "–"


def _tables() -> dict[str, Callable[[], str]]:
    made = {"table 4.1": students, "table 4.2": measures, "fedgp choices": choices}
    parts: dict[str, Callable[[], str]] = {name: lambda make=make: make(load(FOLDER)) for name, make in made.items()}
    parts |= {f"fedgp schedule {split}": lambda split=split: _of(split) for split in SPLITS}
    parts |= {f"minutes {method}": lambda method=method: _minutes(load(FOLDER), method) for method in METHODS}
    parts["mdgan rounds"] = lambda: f"{MDGAN_ROUNDS:,}"
    for name, prefix in (("table 4.1", "table 4.1"), ("fedgp choices", "choice")):
        parts[f"cost {name}"] = lambda prefix=prefix: cost(load(FOLDER), prefix)
    return parts


TABLES = _tables()


def figures() -> None:
    """Draw nothing: both are tables."""
