"""The results as Markdown: the thesis's tables beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

Row = Mapping[str, Any]

NAMES = {
    "digits": "digits (8x8)",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "adult": "Adult",
}


def tables(rows: Sequence[Row]) -> str:
    """Return every table that there are rows for."""
    parts = [_released(rows), _plain(rows), _federated(rows), _annotated(rows)]
    return "\n\n".join(part for part in parts if part)


def _grouped(rows: Iterable[Row], keep: Callable[[str], bool]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if keep(row["row"]):
            found.setdefault(row["row"], []).append(row)
    return found


def _percents(group: Sequence[Row], key: str) -> str:
    values = [100 * row[key] for row in group]
    spread = "" if len(values) == 1 else f" ({min(values):.1f}–{max(values):.1f})"
    return f"{mean(values):.1f}%{spread}"


def _average(group: Sequence[Row], key: str) -> str:
    return f"{mean(row[key] for row in group):.3g}"


def _real(rows: Sequence[Row], data: str, key: str) -> str:
    found = _grouped(rows, lambda name: name == f"{data} real")
    return _percents(found[f"{data} real"], key) if found else ""


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    body = [" | ".join(("", *line, "")).strip() for line in lines]
    if not body:
        return ""
    return "\n".join([" | ".join(("", *head, "")).strip(), "|" + "---|" * len(head), *body])


def _released(rows: Sequence[Row]) -> str:
    """Rows with a guarantee."""
    head = (
        "data",
        "generator",
        "worst-case epsilon",
        "typical",
        "student",
        "logistic",
        "real data",
        "runs",
        "CPU time",
    )
    lines = []
    for name, group in _grouped(rows, lambda n: "mean-embedding" in n or "private-wgan" in n).items():
        data, generator, *more = name.split()
        typical = f"{mean(row['typical'] for row in group):.2f}" if all("typical" in row for row in group) else ""
        lines.append(
            (
                NAMES[data],
                generator + (" with annotator" if "annotator" in more else ""),
                f"{max(row['epsilon'] for row in group):.4g}",
                typical,
                _percents(group, "student"),
                _percents(group, "logistic"),
                _real(rows, data, "student"),
                str(len(group)),
                f"{mean(row['seconds'] for row in group) / 60:.1f} min",
            )
        )
    return _table(head, lines)


def _plain(rows: Sequence[Row]) -> str:
    """Rows of tables 3.1 and 3.2."""
    head = (
        "data",
        "generator",
        "student",
        "real data",
        "mu, Chebyshev",
        "mu, mean",
        "nearer to training",
        "runs",
        "CPU time",
    )
    lines = []
    for name, group in _grouped(rows, lambda n: "wgan-gp" in n).items():
        data, generator, *more = name.split()
        lines.append(
            (
                NAMES[data],
                generator + (", DP critic" if more else ""),
                _percents(group, "student"),
                _real(rows, data, "student"),
                _average(group, "mu_chebyshev"),
                _average(group, "mu_student"),
                f"{_percents(group, 'nearer')}, p ≥ {min(row['nearer_p'] for row in group):.2g}",
                str(len(group)),
                f"{mean(row['seconds'] for row in group) / 60:.1f} min",
            )
        )
    return _table(head, lines)


def _federated(rows: Sequence[Row]) -> str:
    """Rows of tables 4.1 and 4.2."""
    head = (
        "split",
        "worst-case epsilon of a client",
        "student",
        "mu, mean, gamma 1e-15",
        "mu, Chebyshev",
        "runs",
        "CPU time",
    )
    lines = []
    for name, group in _grouped(rows, lambda n: "fedgp" in n).items():
        epsilon = max(row["epsilon"] for row in group)
        lines.append(
            (
                " ".join(name.split()[2:]),
                "none" if math.isinf(epsilon) else f"{epsilon:.3g}",
                _percents(group, "student"),
                _average(group, "mu_student"),
                _average(group, "mu_chebyshev"),
                str(len(group)),
                f"{mean(row['seconds'] for row in group) / 60:.1f} min",
            )
        )
    return _table(head, lines)


def _annotated(rows: Sequence[Row]) -> str:
    """What noise teaches when the annotator labels it."""
    groups = _grouped(rows, lambda n: "annotator" in n)
    names = list(dict.fromkeys(c for group in groups.values() for row in group for c in row.get("controls", {})))
    lines = [
        (
            NAMES[name.split()[0]],
            _percents(group, "student"),
            *(f"{100 * mean(row['controls'][c] for row in group):.1f}%" for c in names),
        )
        for name, group in groups.items()
    ]
    return _table(("data", "generated", *names), lines)
