"""What the page on the papers takes from here: table 5.2, figures 5.6 and 5.7."""

from __future__ import annotations

from collections.abc import Callable

from experiments.authors import tables
from experiments.authors.figures import figures as figures
from experiments.tables import cost, digits


def _tables() -> dict[str, Callable[[], str]]:
    made = {
        "table 5.2 published": tables.published_table,
        "table 5.2 coded": tables.coded_table,
        "table 5.2 worst": tables.worst_table,
        "table 5.2 gradients": tables.followed_table,
        "table 5.2 ours": tables.ours_table,
        "figure 5.6": tables.growth_table,
        "figure 5.7": tables.distances_table,
        "noise for their DP": lambda rows: digits(rows["mnist worst"]["noise_for_theirs"]),
        "cost authors": cost,
    }
    for start in ("mnist coded", "cifar10 coded", "mnist private", "cifar10 private"):
        made[f"cost authors {start}"] = lambda rows, start=start: cost(rows, start)
    return {name: lambda make=make: make(tables.load()) for name, make in made.items()}


TABLES = _tables()
