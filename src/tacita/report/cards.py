"""What a label answers first: anyone, most people, and where a single person may stand; one card each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tacita._numbers import chance_text, delta_text, epsilon_text, odds_text, success_text
from tacita.guarantee import Guarantee, attack_success
from tacita.label import Label, Points, Readings, Shares
from tacita.report.rungs import rung_rows
from tacita.report.units import Unit, capital, inline, spoken, target

_BASELINE = 0.10  # how often a secret is guessed without the person, in the sentence about secrets
_EXPOSURES = (10.0, 50.0, 90.0, 99.0, 100.0)  # percentages of the followed records that are given as figures
_BELOW = 0.75  # of the worst case: a share whose epsilon is below that is worth the headline
_SHARES = {
    10.0: "One in ten",
    50.0: "Half",
    75.0: "3 in 4",
    90.0: "9 in 10",
    95.0: "19 in 20",
    99.0: "99 in 100",
    100.0: "All",
}
READING = "reading of this run"


class Sentence(NamedTuple):
    """A sentence around the one figure to remember."""

    before: str
    figure: str
    after: str


class Exposure(NamedTuple):
    """What a percentage of records stays under, and the attack success against it."""

    percent: float
    epsilon: str
    success: float

    @property
    def who(self) -> str:
        """The percentage in words."""
        return _SHARES.get(self.percent, f"{self.percent:g}%")


@dataclass(frozen=True, kw_only=True)
class Card:
    """One answer.

    Attributes:
        key: `anyone`, `typical`, `spread` or `ladder`.
        heading: To whom.
        tag: What kind of statement it is.
        sentence: The answer.
        success: The attack success that the sentence states; None where no bound is claimed.
        figures: Epsilon and delta.
        notes: The fine print.
        lines: (name, figure, epsilon) of smaller answers.
        exposures: The figures that the lines were made of.
    """

    key: str
    heading: str
    tag: str
    sentence: Sentence
    success: float | None = None
    figures: str = ""
    notes: tuple[str, ...] = ()
    lines: tuple[tuple[str, str, str], ...] = ()
    exposures: tuple[Exposure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """What is said first about one unit: the question, and the answers. `worst` is its worst case."""

    question: str
    cards: tuple[Card, ...]
    worst: Guarantee


def cards(label: Label) -> tuple[Card, ...]:
    """Return the answers to show first: anyone, and for the owner most people and where one may stand."""
    return tuple(card for section in sections(label) for card in section.cards)


def sections(label: Label) -> tuple[Section, ...]:
    """Return what is said first about each unit that has a worst case, the headline's unit first."""
    own, headline = label.readings, label.worst.unit
    found = []
    for worst, typical in leading(label):
        first = worst is label.worst
        unit = spoken(worst.unit, headline)
        answers = []
        if own and own.shares and first:
            answers.append(_most(own.shares, worst, unit))
        elif typical is not None:
            answers.append(_card(typical, worst, headline, own.panels if own and first else ""))
        if own and own.percentiles and first:
            answers.append(_spread(own, worst))
        if own is None and len(label.ladder) > 1 and first:
            answers.append(_ladder(label, unit))
        question = f"What can an outsider learn about {unit.about} from the result?"
        anyone = _card(worst, worst, headline)
        if own and own.panels and first and typical is None:  # why there is no figure of the followed
            anyone = replace(anyone, notes=(*anyone.notes, _sentence(own.panels)))
        merged = _merged(anyone, answers, worst)
        found.append(Section(question=question, cards=merged, worst=worst))
    return tuple(found)


def leading(label: Label) -> list[tuple[Guarantee, Guarantee | None]]:
    """Return the worst case and the typical figure of each unit that has a worst case, the headline's unit first.

    Where the headline's unit has no typical figure of its own, the first one of another unit takes its place.
    """
    own = label.readings
    typical = own.typical if own else tuple(g for g in label.comparisons if g.kind == "bayesian")
    worst = by_unit((label.worst, *(g for g in label.comparisons if g.kind == "worst_case")))
    found = by_unit(typical)
    first = found.get(label.worst.unit, typical[0] if typical else None)
    others = {unit: found[unit] for unit in found if found[unit] is not first}
    return [(g, first if g is label.worst else others.get(unit)) for unit, g in worst.items()]


def by_unit(statements: Iterable[Guarantee]) -> dict[str, Guarantee]:
    """Return the first statement of each unit."""
    found: dict[str, Guarantee] = {}
    for statement in statements:
        found.setdefault(statement.unit, statement)
    return found


def success_of(guarantee: Guarantee, worst: Guarantee) -> float:
    """Return the attack success that a statement allows, never above what the worst case of the same unit does."""
    found = guarantee.curve.attack_success()
    return min(found, worst.curve.attack_success()) if guarantee.unit == worst.unit else found


def exposures(own: Readings, worst: Guarantee) -> tuple[Exposure, ...]:
    """Return what half, 90%, 99% and all of the followed records stay under, as far as it is known."""
    points, successes = sorted(own.percentiles), dict(success_points(own, worst))
    known = [(p, e) for p, e in points if p in _EXPOSURES] or points[-5:]
    return tuple(Exposure(percent, epsilon_text(e), successes[percent]) for percent, e in known)


def success_points(own: Readings, worst: Guarantee) -> Points:
    """Return (percent, attack success that this share of the followed records stays under).

    From their whole curves; where only the pair (epsilon, delta) is known, from the pair.
    """
    known, most = dict(own.successes), worst.curve.attack_success()
    return tuple((p, known.get(p, min(attack_success(e, worst.delta), most))) for p, e in sorted(own.percentiles))


def _odds(before: str, success: float, more: str = "") -> Sentence:
    """Say a success rate as so many times in 100."""
    return Sentence(before, f"{odds_text(success)},", f" where guessing gives 50{more}.")


def _merged(anyone: Card, others: list[Card], worst: Guarantee) -> tuple[Card, ...]:
    """Return the cards, without those that say the same as the one about anyone: one more sentence says so."""
    limit = epsilon_text(worst.epsilon), success_text(worst.curve.attack_success())
    same = [card for card in others if card.key != "ladder" and _says(card, anyone, limit)]
    if not same:
        return (anyone, *others)
    names = ["each of those followed" if card.key == "spread" else _lower(card.heading) for card in same]
    note = f"To the digits shown, the figure for {' and for '.join(names)} is the same."
    return (replace(anyone, notes=(*anyone.notes, note)), *(card for card in others if card not in same))


def _says(card: Card, anyone: Card, limit: tuple[str, str]) -> bool:
    """Whether a card gives no other figure than the limit for anyone."""
    if card.exposures:
        return all((e.epsilon, success_text(e.success)) == limit for e in card.exposures)
    return card.success is not None and (card.figures, card.sentence.figure) == (anyone.figures, anyone.sentence.figure)


def _card(g: Guarantee, worst: Guarantee, headline: str, panels: str = "") -> Card:
    """Return what a worst case, or a typical figure with who was followed for it, means for an attacker."""
    unit, typical = spoken(g.unit, headline), g.kind != "worst_case"
    success = None if g.attack_success is None else success_of(g, worst)
    who = f"On average over {unit.people} like those followed, an attacker" if typical else "An attacker"
    start = f"{who} who starts from even odds and tries to tell {target(g, headline, again=typical)}"
    holds = [f"Holds for {unit.holds} and whatever the attacker already knows."] if math.isfinite(g.epsilon) else []
    return Card(
        key="typical" if typical else "anyone",
        heading=unit.typical if typical else unit.anyone,
        tag="worst case" if not typical else READING if g.scope == "reading" else "guarantee",
        sentence=_attack(start, g, success),
        success=success,
        figures=f"epsilon {epsilon_text(g.epsilon)}, delta {delta_text(g.delta)}",
        notes=tuple(_typical_notes(g, unit, panels)) if typical else (*_secret(g, unit), *holds),
    )


def _secret(worst: Guarantee, unit: Unit) -> list[str]:
    """Say how often a secret is guessed that could be guessed 10 times in 100 without the person; empty if always."""
    guessed = worst.curve.secret_guess(_BASELINE)
    if guessed >= 1.0 or worst.neighbours == "replace_one":
        return []
    return [
        f"A secret of one {unit.who} that could be guessed {100 * _BASELINE:.0f} times in 100 from a result made "
        f"without that {unit.who}'s data is guessed at most {odds_text(guessed)}."
    ]


def _lower(heading: str) -> str:
    return heading[:1].lower() + heading[1:]


def _sentence(text: str) -> str:
    return capital(inline(text)).rstrip(".") + "."


def _typical_notes(typical: Guarantee, unit: Unit, panels: str) -> list[str]:
    notes = [_sentence(panels)] if panels else []
    if typical.scope == "reading":
        notes.append("It describes this run only, and promises nothing about other runs.")
    notes.append(f"It promises nothing to {unit.unlike}.")
    if typical.model == "model-based":
        notes.append(f"It is model-based: if a few {unit.many} contribute far more than the rest, it can be too low.")
    return notes


def _attack(start: str, guarantee: Guarantee, success: float | None) -> Sentence:
    if success is None:
        after = " This figure is shown for comparison only; the true value may be larger."
        return Sentence("", "Not an upper bound.", after)
    if math.isinf(guarantee.epsilon):
        return Sentence("", "Nothing is promised.", f" {start} may be right every time.")
    return _odds(f"{start} is right at most ", success)


def _most(shares: Shares, worst: Guarantee, unit: Unit) -> Card:
    """Return what certified shares of the population stay under; the largest well below the worst case first."""
    found = tuple(
        Exposure(percent, epsilon_text(epsilon), success)
        for (percent, epsilon), (_, success) in zip(shares.epsilons, shares.successes, strict=True)
    )
    below = [p for p, epsilon in shares.epsilons if epsilon <= _BELOW * worst.epsilon]
    shown = next(row for row in found if row.percent == max(below, default=found[0].percent))
    limit = epsilon_text(worst.epsilon), success_text(worst.curve.attack_success())
    smaller = tuple(e for e in found if (e.epsilon, success_text(e.success)) != limit)
    start = f"For at least {shown.percent:g} of 100 {unit.people} like those followed, an attacker is right at most "
    rest = f"For larger shares, the limit is the one for {_lower(unit.anyone)}."
    return Card(
        key="typical",
        heading=f"Most {unit.people}",
        tag=READING,
        sentence=_odds(start, shown.success),
        success=shown.success,
        figures=f"epsilons at delta {delta_text(worst.delta)}",
        notes=(
            *([rest] if len(smaller) < len(found) else []),
            f"Certified by {shares.followed:,} {unit.many} that were not trained on: it fails with a probability of at "
            f"most {chance_text(shares.gamma)}, if they were drawn as the population's are.",
        ),
        lines=tuple((f"At least {who.lower()}", figure, epsilon) for who, figure, epsilon in _lines(smaller)),
        exposures=found,
    )


def _spread(own: Readings, worst: Guarantee) -> Card:
    """Return how the followed records spread: anybody may stand anywhere between the first and the last of them."""
    unit = spoken(worst.unit, worst.unit)
    rows = exposures(own, worst)
    half, last = next((row for row in rows if row.percent == 50.0), rows[-1]), rows[-1]
    them = "all of them" if last.percent == 100.0 else f"{last.who} of them"
    more = "" if last is half else f"; for {them}, at most {success_text(last.success)[:-1]}"
    start = f"For {half.who.lower()} of the followed {unit.many}, an attacker is right at most "
    return Card(
        key="spread",
        heading=unit.anywhere,
        tag=READING,
        sentence=_odds(start, half.success, more),
        figures=f"each {unit.name}'s individual epsilon, at delta {delta_text(worst.delta)}",
        notes=(f"Nobody can tell from this where a single {unit.who} stands, and it promises nothing to any of them.",),
        lines=_lines(rows),
        exposures=rows,
    )


def _lines(rows: Iterable[Exposure]) -> tuple[tuple[str, str, str], ...]:
    return tuple((row.who, success_text(row.success), f"epsilon {row.epsilon}") for row in rows)


def _ladder(label: Label, unit: Unit) -> Card:
    """Return the declared rungs, for the public page: nothing of it depends on the data."""
    return Card(
        key="ladder",
        heading="Smaller limits that were declared",
        tag="guarantee",
        sentence=Sentence(
            "Before the run, ",
            f"{len(label.ladder) - 1} smaller limits",
            f" were declared. A {unit.who} whose {unit.theirs} stayed within one of them has that limit. Which one is "
            "not disclosed.",
        ),
        notes=("What these limits promise stands below, under Rungs.",),
        lines=tuple((row.part, f"epsilon {row.epsilon}", "") for row in rung_rows(label)),
    )
