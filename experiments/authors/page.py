"""What the page on the papers takes from here: table 5.2, figures 5.6 and 5.7."""

from __future__ import annotations

from collections.abc import Callable

from experiments.authors import tables
from experiments.authors.figures import figures as figures
from experiments.rows import Row, Rows
from experiments.tables import cost, digits


def numbers() -> dict[str, Callable[[Rows], str]]:
    """Return single numbers of the MNIST run in the authors' form, for sentences."""

    def run(rows: Rows) -> Row:
        return rows["mnist coded seed 0"]

    return {
        "noise for their DP": lambda rows: digits(rows["mnist worst"]["noise_for_theirs"]),
        "mnist bdp": lambda rows: digits(run(rows)["bdp"]),
        "mnist bdp star": lambda rows: digits(run(rows)["bdp_star"]),
        "mnist bdp more orders": lambda rows: digits(run(rows)["bdp_more_orders"]),
        "mnist bdp star more orders": lambda rows: digits(run(rows)["bdp_star_more_orders"]),
        "mnist long records": lambda rows: f"{run(rows)['records_above']['10.0']:.0%}",
        "mnist followed": lambda rows: f"{run(rows)['record_norms']['count']:,}",
        "mnist longest": lambda rows: digits(run(rows)["record_norms"]["max"]),
        "mnist worst": lambda rows: tables.holds(rows["mnist worst"]["coded"]["epsilon"]),
        "mnist worst 10": lambda rows: tables.holds(rows["mnist worst"]["records"]["10"]["epsilon"]),
        "mnist worst 80": lambda rows: tables.holds(rows["mnist worst"]["records"]["80"]["epsilon"]),
        "mnist t-test": lambda rows: f"{run(rows)['pairs']['t_test']:.0e}",
    }


def _tables() -> dict[str, Callable[[], str]]:
    made = {
        "table 5.2 published": tables.published_table,
        "table 5.2 coded": tables.coded_table,
        "table 5.2 worst": tables.worst_table,
        "table 5.2 gradients": tables.followed_table,
        "table 5.2 ours": tables.ours_table,
        "figure 5.6": tables.growth_table,
        "figure 5.7": tables.distances_table,
        **numbers(),
    }
    for start in ("mnist coded", "cifar10 coded", "mnist private", "cifar10 private"):
        made[f"cost authors {start}"] = lambda rows, start=start: cost(rows, start)
    return {name: lambda make=make: make(tables.load()) for name, make in made.items()}


TABLES = _tables()
