"""What a label says about declared rungs: to anyone what was declared, to the owner also who stands where."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from tacita._numbers import delta_text, epsilon_text, factor_text
from tacita.label import Label
from tacita.report.units import headline_unit


class RungRow(NamedTuple):
    """One rung: its part of the plan, its epsilon and factor, and for the owner how many ended on it or below."""

    part: str
    epsilon: str
    factor: str
    records: str
    share: str


def rung_rows(label: Label) -> tuple[RungRow, ...]:
    """Return one row for each declared rung; records and share are empty on a public label."""
    own = label.readings
    counts = own.rung_counts if own else ()
    shares = own.rung_shares if own else ()
    return tuple(
        RungRow(
            part=_part(fraction),
            epsilon=epsilon_text(epsilon),
            factor=factor_text(epsilon),
            records=f"{counts[k]:,}" if counts else "",
            share=f"at least {_percent_down(shares[k])}" if shares else "",
        )
        for k, (fraction, epsilon) in enumerate(label.ladder)
    )


def rung_table(label: Label) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the heads and rows of the page's table; columns that have no figures are left out."""
    many = headline_unit(label).many
    heads = ("Rung", "Epsilon", "Factor at most", f"Training {many}", "Population, on it or below")
    rows = tuple(tuple(text for text in row if text) for row in rung_rows(label))
    return heads[: len(rows[0])] if rows else (), rows


def rung_sentences(label: Label) -> tuple[str, ...]:
    """Say what rungs are and what they promise; nothing if none were declared."""
    if not label.ladder:
        return ()
    unit = headline_unit(label)
    said = (
        f"Budgets, or rungs, were declared before the first {label.steps_word}. Each {unit.who} ended on the smallest "
        f"one that their {unit.theirs} stayed within. On which one is not disclosed, and nobody was held back by it.",
        f"For a {unit.who} who ended on a rung: the probability of what an outsider sees, together with ending on this "
        f"rung, differs by at most the rung's factor from what it would be without their {unit.theirs}. For all rungs "
        f"together, exceptions have a probability of at most {delta_text(label.worst.delta)}.",
        "This is not a limit fixed beforehand for a known person, since the rung depends on the course of the run. "
        "The figure for anyone holds for everybody besides.",
    )
    if label.readings is None or not label.readings.rung_counts:
        return said
    counted = f"How many training {unit.many} ended on each rung was counted exactly: do not publish it."
    certified = (
        f"Shares of the population come from {unit.many} that were not trained on, and fail with a probability "
        "of at most 0.000001, if these were drawn as the population's are."
    )
    return (*said, counted, *([certified] if label.readings.rung_shares else []))


def rung_lines(label: Label) -> tuple[str, ...]:
    """Return the sentences and one line for each rung, for plain text."""
    lines = []
    for row in rung_rows(label):
        count = f"; {row.records} training {headline_unit(label).many} ended on it" if row.records else ""
        share = f"; {row.share} of the population stands on it or below" if row.share else ""
        lines.append(f"{row.part}: epsilon {row.epsilon}, a factor of at most {row.factor}{count}{share}")
    return (*rung_sentences(label), *lines)


def _part(fraction: float) -> str:
    if fraction == 1.0:
        return "The whole plan"
    exact = Fraction(fraction).limit_denominator(1000)
    name = str(exact) if float(exact) == fraction else f"{fraction:g}"
    return f"{name} of the plan"


def _percent_down(share: float) -> str:
    return "100%" if share == 1.0 else f"{int(share * 1000.0) / 10.0:g}%"
