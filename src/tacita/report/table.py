"""Every figure of a label in one table: attack success, what tests find, epsilon, delta and mu."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tacita._numbers import chance_text, delta_text, epsilon_text, round_up_text, success_text
from tacita.guarantee import Guarantee
from tacita.label import Label, Points, Shares
from tacita.report.cards import READING, Exposure, by_unit, exposures, leading, success_of
from tacita.report.units import Unit, inline, spoken

FLOOR = 1e-5  # what a curve may exceed the Gaussian one by
RATES = (0.01, 0.001)  # of false alarms
COLUMNS = ("Attack success", "Found at 1% false alarms", "Found at 0.1% false alarms", "Epsilon", "Delta", "Mu")
NONE = "–"
LIMITS = (
    "Every figure is an upper limit, unless it says otherwise. A dash means that no such limit was computed. Larger "
    "shares than those listed have the limit of the first row."
)
_METHODS = {
    "pld": "the privacy loss of all releases, added up numerically (PLD)",
    "rdp": "Rényi moments, added up over the releases (RDP)",
    "rdp filter": "Rényi moments, held to a budget (RDP)",
    "rdp, over who takes part": "Rényi moments, averaged over who takes part (RDP)",
    "moments": "moments of the privacy loss, added up over the releases",
    "participations": "a bound over how often one takes part",
    "final-samples": "draws from one posterior",
    "basic composition": "epsilons and deltas added up",
    "worst-case cap": "no more than the worst case",
    "none": "nothing limits it",
    "band": "a confidence band over the followed ones",
    "student": "Student's interval over the followed ones, which assumes a distribution",
    "bernstein": "Bernstein's inequality over the followed ones",
    "conformal": "a conformal bound over the followed ones",
    "panel": "each one followed through the whole run",
    "hoelder": "rounds combined by Hölder's inequality",
    "independent": "releases taken as independent, which they are not",
    "replayed pairs": "the fit repeated without single records",
    "weak": "delta averaged over the population",
    "strong": "delta bounds the tail of the privacy loss",
    "distribution-free": "whatever the distribution",
    "model-based": "by a model of the distribution",
}
_PARTS = {
    "band": "the confidence band",
    "band, over all clients": "the confidence bands of all clients",
    "estimator": "the estimator",
    "expected": "the average",
    "tail": "the tail",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of all figures. The unit is shown where a label has more than one.

    Attributes:
        who: Whom it is about.
        unit: Of which unit.
        epsilon: Rounded to the safe side.
        delta: At which delta.
        attack: How often an attack with even odds is right.
        found: What a test finds at each of `RATES` of false alarms.
        mu: The Gaussian release that allows as much, up to `FLOOR`.
        how: How it was computed, in words.
        split: Where delta goes, in words.
        scope: Guarantee, or reading of this run.
        publishable: Whether it may be shown to outsiders.
    """

    who: str
    unit: str
    epsilon: str
    delta: str
    attack: str
    found: tuple[str, ...] = (NONE, NONE)
    mu: str = NONE
    how: str = ""
    split: str = ""
    scope: str = READING
    publishable: bool = False

    @property
    def figures(self) -> tuple[str, ...]:
        """The texts below `COLUMNS`."""
        return self.attack, *self.found, self.epsilon, self.delta, self.mu

    @property
    def basis(self) -> str:
        """How it was computed, what kind of statement it is, and who may see it."""
        split = f"of delta: {self.split}" if self.split else ""
        publish = "may be published" if self.publishable else "for the owner only"
        return "; ".join(part for part in (self.how, split, self.scope, publish) if part)


def rows(label: Label) -> tuple[Row, ...]:
    """Return every figure of the label, side by side: those of the headline's unit, of other units, comparisons."""
    own, headline = label.readings, label.worst.unit
    typical = own.typical if own else ()
    spread = exposures(own, label.worst) if own and own.percentiles else ()
    shares = _share_rows(own.shares, label.worst) if own and own.shares else ()
    first, *others = ([g for g in pair if g is not None and (own or g.kind == "worst_case")] for pair in leading(label))
    beside = [g for pair in others for g in pair]
    shown = {id(g) for g in (*first[1:], *beside)}
    worst = by_unit((label.worst, *(g for g in label.comparisons if g.kind == "worst_case")))
    anyone = _row(first[0], worst, headline)
    return (
        anyone,
        *(row for row in shares if not _repeats(row, anyone)),
        *(_row(g, worst, headline) for g in first[1:]),
        *(row for row in (_exposure_row(e, label.worst) for e in spread) if not _repeats(row, anyone)),
        *(_row(g, worst, headline) for g in beside),
        *(_row(g, worst, headline, also=True) for g in (*label.comparisons, *typical) if id(g) not in shown),
    )


def _repeats(row: Row, anyone: Row) -> bool:
    """Whether a share has no smaller limit than anyone."""
    return (row.epsilon, row.attack) == (anyone.epsilon, anyone.attack)


def who(g: Guarantee, unit: Unit, *, also: bool) -> str:
    """Say whom a statement is about; `also` marks a second statement of its kind."""
    if not g.is_bound:
        return "Not an upper bound, for comparison only"
    if g.kind == "empirical_lower":
        return "An attack that was tried (lower bound)"
    who = {
        "worst_case": f"{unit.anyone} (worst case)",
        "bayesian": unit.typical,
        "individual": f"One {unit.name} alone",
    }
    return f"{who[g.kind]}, for comparison" if also else who[g.kind]


def mu_note() -> str:
    """Say what mu is, with its floor."""
    return (
        "Mu: no test finds more than one against a single Gaussian release whose mean moves by mu standard deviations, "
        f"apart from a probability of {chance_text(FLOOR)}."
    )


def _row(g: Guarantee, worst: Mapping[str, Guarantee], headline: str, *, also: bool = False) -> Row:
    lower = g.kind == "empirical_lower"
    how = [_METHODS.get(part or "", part) for part in (g.method, g.estimator, g.composition, g.notion, g.model)]
    found, mu = _powers(g, worst.get(g.unit, g))
    return Row(
        who=who(g, spoken(g.unit, headline), also=also),
        unit=inline(g.unit),
        epsilon=f"at least {round_up_text(g.epsilon, up=False)}" if lower else epsilon_text(g.epsilon),
        delta=delta_text(g.delta),
        attack="none" if g.attack_success is None else success_text(success_of(g, worst.get(g.unit, g))),
        found=found,
        mu=mu,
        how=", ".join(part for part in how if part),
        split=", ".join(f"{_PARTS.get(name, name)} {delta_text(value)}" for name, value in g.delta_split),
        scope=READING if g.scope == "reading" else "guarantee",
        publishable=g.publishable,
    )


def _powers(g: Guarantee, worst: Guarantee) -> tuple[tuple[str, ...], str]:
    """Return what a test finds at each of `RATES`, and mu; nothing where no whole curve is bounded."""
    if g.attack_success is None or g.profile is None or g.notion == "strong":
        return (NONE,) * len(RATES), NONE
    curves = [g.curve, worst.curve] if g.unit == worst.unit and g is not worst else [g.curve]
    found = tuple(success_text(min(curve.tpr(rate) for curve in curves)) for rate in RATES)
    mu = min(curve.mu(floor=FLOOR) for curve in curves)
    return found, NONE if math.isinf(mu) else round_up_text(mu)


def _share_rows(shares: Shares, worst: Guarantee) -> tuple[Row, ...]:
    unit, tests, successes = spoken(worst.unit, worst.unit), dict(shares.tests), dict(shares.successes)
    return tuple(
        Row(
            who=f"At least {Exposure(percent, '', 0.5).who.lower()} of the population",
            unit=unit.name,
            epsilon=epsilon_text(epsilon),
            delta=delta_text(worst.delta),
            attack=success_text(successes[percent]),
            found=tuple(_found(tests.get(percent, ()), rate, worst) for rate in RATES),
            how=f"certified by {shares.followed:,} {unit.many} that were not trained on",
        )
        for percent, epsilon in shares.epsilons
    )


def _found(points: Points, rate: float, worst: Guarantee) -> str:
    """Return what a test finds at a rate, from certified points: at the next larger rate, which finds no less."""
    above = [tpr for fpr, tpr in sorted(points) if fpr >= rate * (1.0 - 1e-9)]
    return success_text(min(above[0], worst.curve.tpr(rate))) if above else NONE


def _exposure_row(e: Exposure, worst: Guarantee) -> Row:
    unit = spoken(worst.unit, worst.unit)
    return Row(
        who=f"{e.who} of the followed {unit.many}",
        unit=unit.name,
        epsilon=e.epsilon,
        delta=delta_text(worst.delta),
        attack=success_text(e.success),
        how=f"each {unit.name}'s individual figure",
    )
