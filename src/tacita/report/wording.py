"""What a label says, in words and rounded figures, shared by the page and the plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tacita._numbers import chance_text, delta_text, epsilon_text, factor_text, round_up_text, success_text, times
from tacita.assumptions import Assumption
from tacita.guarantee import Guarantee, attack_success
from tacita.label import Label, Readings, Shares
from tacita.report.units import PERSON, Unit, capital, inline, spoken, target

OWNER_BAND = ("For the data's owner.", "Contains figures computed from private data: do not publish.")
INCLUDED_NOTE = (
    "The owner chose to publish these figures although they depend on the data. The limits on this label do not "
    "cover what these figures themselves may reveal."
)

_BASELINE = 0.10  # how often a secret is guessed without the person, in the sentence about secrets
_EXPOSURES = (10.0, 50.0, 90.0, 99.0, 100.0)  # percentages of the followed records on the card about their spread
_BELOW = 0.75  # of the worst case: a share whose epsilon is below that is worth the headline
_SHARES = {
    10.0: "One in ten",
    50.0: "Half",
    75.0: "3 in 4",
    90.0: "9 in 10",
    95.0: "19 in 20",
    99.0: "99 in 100",
    100.0: "The most exposed",
}


class Sentence(NamedTuple):
    """A sentence around the one figure to remember."""

    before: str
    figure: str
    after: str


class Exposure(NamedTuple):
    """What a percentage of the followed records stays under, and the attack success against it."""

    percent: float
    epsilon: str
    success: float

    @property
    def who(self) -> str:
        """The percentage in words."""
        return _SHARES.get(self.percent, f"{self.percent:g}%")


@dataclass(frozen=True, kw_only=True)
class Card:
    """One answer: to whom, the sentence, the attack success (None where no bound is claimed), the fine print."""

    key: str
    heading: str
    tag: str
    sentence: Sentence
    success: float | None = None
    figures: str = ""
    notes: tuple[str, ...] = ()
    exposures: tuple[Exposure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of all figures. The unit is shown where a label has more than one."""

    who: str
    unit: str
    epsilon: str
    delta: str
    attack: str
    how: str
    split: str
    scope: str
    publishable: bool


@dataclass(frozen=True, kw_only=True)
class Section:
    """What is said first about one unit: the question, the answers, and the worst case in other words."""

    question: str
    cards: tuple[Card, ...]
    meaning: tuple[str, ...]


def cards(label: Label) -> tuple[Card, ...]:
    """Return the answers to show first: anyone, and for the owner a typical person and the spread."""
    return tuple(card for section in sections(label) for card in section.cards)


def sections(label: Label) -> tuple[Section, ...]:
    """Return what is said first about each unit that has a worst case, the headline's unit first."""
    own, headline = label.readings, label.worst.unit
    found = []
    for worst, typical in leading(label):
        first = worst is label.worst
        unit = spoken(worst.unit, headline)
        answers = [_card(worst, worst, headline)]
        if own and own.shares and first:
            answers.append(_most(own.shares, worst, unit))
        elif typical is not None:
            answers.append(_card(typical, worst, headline, own.panels if own and first else ""))
        elif own and own.panels and first:
            said = Sentence("", "No figure.", f" {_sentence(own.panels)}")
            answers.append(Card(key="typical", heading=unit.typical, tag="not known", sentence=said))
        if own and own.percentiles and first:
            answers.append(_spread(own, worst))
        question = f"What can an outsider learn about {unit.about} from the result?"
        found.append(Section(question=question, cards=tuple(answers), meaning=_meaning(worst, unit)))
    return tuple(found)


def leading(label: Label) -> list[tuple[Guarantee, Guarantee | None]]:
    """Return the worst case and the typical figure of each unit that has a worst case, the headline's unit first.

    Where the headline's unit has no typical figure of its own, the first one of another unit takes its place.
    """
    own = label.readings
    typical = own.typical if own else tuple(g for g in label.comparisons if g.kind == "bayesian")
    worst = _by_unit((label.worst, *(g for g in label.comparisons if g.kind == "worst_case")))
    found = _by_unit(typical)
    first = found.get(label.worst.unit, typical[0] if typical else None)
    others = {unit: found[unit] for unit in found if found[unit] is not first}
    return [(g, first if g is label.worst else others.get(unit)) for unit, g in worst.items()]


def _by_unit(statements: Iterable[Guarantee]) -> dict[str, Guarantee]:
    """Return the first statement of each unit."""
    found: dict[str, Guarantee] = {}
    for statement in statements:
        found.setdefault(statement.unit, statement)
    return found


def units_note(label: Label) -> str:
    """Say that figures of several units stand side by side; empty where there is one unit."""
    units = [spoken(worst.unit, label.worst.unit) for worst, _ in leading(label)]
    if len(units) < 2:
        return ""
    listed = " and about ".join(unit.about for unit in units)
    return f"The figures about {listed} are separate statements: neither follows from the other."


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
        tag="worst case" if not typical else "reading of this run" if g.scope == "reading" else "guarantee",
        sentence=_attack(start, g, success),
        success=success,
        figures=f"epsilon {epsilon_text(g.epsilon)}, delta {delta_text(g.delta)}",
        notes=tuple(_typical_notes(g, unit, panels)) if typical else (*holds, *_secret(g, unit)),
    )


def _secret(worst: Guarantee, unit: Unit) -> list[str]:
    """Say how often a secret is guessed that could be guessed 10 times in 100 without the person; empty if always."""
    guessed = math.ceil(100.0 * worst.curve.secret_guess(_BASELINE) - 1e-9)
    if guessed >= 100 or worst.neighbours == "replace_one":
        return []
    return [
        f"A secret of one {unit.who} that could be guessed {100 * _BASELINE:.0f} times in 100 from a result made "
        f"without that {unit.who}'s data is guessed at most {guessed} times in 100."
    ]


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
    right, tries = times(success)
    after = f" (guessing alone: {tries // 2:,})."
    return Sentence(f"{start} is right at most ", f"{right:,} times in {tries:,}", after)


def _most(shares: Shares, worst: Guarantee, unit: Unit) -> Card:
    """Return what certified shares of the population stay under; the largest well below the worst case first."""
    rows = tuple(
        Exposure(percent, epsilon_text(epsilon), success)
        for (percent, epsilon), (_, success) in zip(shares.epsilons, shares.successes, strict=True)
    )
    below = [p for p, epsilon in shares.epsilons if epsilon <= _BELOW * worst.epsilon]
    shown = next(row for row in rows if row.percent == max(below, default=rows[0].percent))
    right, tries = times(shown.success)
    start = f"For at least {shown.percent:g} of 100 {unit.people} like those followed, an attacker is right at most "
    return Card(
        key="typical",
        heading=f"Most {unit.people}",
        tag="reading of this run",
        sentence=Sentence(start, f"{right:,} times in {tries:,}", f" (guessing alone: {tries // 2:,})."),
        success=shown.success,
        figures=f"at least each share of the population, at delta {delta_text(worst.delta)}",
        notes=(
            f"Certified by {shares.followed:,} {unit.many} that were not trained on: it fails with a probability of at "
            f"most {chance_text(shares.gamma)}, if they were drawn as the population's are.",
            f"Nobody can tell from it to which share a single {unit.who} belongs.",
        ),
        exposures=rows,
    )


def _spread(own: Readings, worst: Guarantee) -> Card:
    unit = spoken(worst.unit, worst.unit)
    rows = exposures(own, worst)
    half, last = next((row for row in rows if row.percent == 50.0), rows[-1]), rows[-1]
    right, tries = times(half.success)
    after = f" (guessing alone: {tries // 2:,})"
    if last is not half:
        most, among = times(last.success)
        most_exposed = "the most exposed one" if last.percent == 100.0 else f"{last.who} of them"
        after += f"; against {most_exposed}, at most {most:,} in {among:,}"
    return Card(
        key="spread",
        heading="From the least to the most exposed",
        tag="reading of this run",
        sentence=Sentence(
            f"Against {half.who.lower()} of the followed {unit.many}, an attacker is right at most ",
            f"{right:,} times in {tries:,}",
            f"{after}.",
        ),
        figures=f"each {unit.name}'s individual epsilon, at delta {delta_text(worst.delta)}",
        notes=(f"These shares describe the followed {unit.many}; they promise nothing to any single {unit.who}.",),
        exposures=rows,
    )


def success_of(guarantee: Guarantee, worst: Guarantee) -> float:
    """Return the attack success that a statement allows, never above what the worst case of the same unit does."""
    found = guarantee.curve.attack_success()
    return min(found, worst.curve.attack_success()) if guarantee.unit == worst.unit else found


def exposures(own: Readings, worst: Guarantee) -> tuple[Exposure, ...]:
    """Return what half, 90%, 99% and all of the followed records stay under, as far as it is known."""
    points, successes, most = sorted(own.percentiles), dict(own.successes), worst.curve.attack_success()
    known = [(p, e) for p, e in points if p in _EXPOSURES] or points[-5:]
    return tuple(
        Exposure(percent, epsilon_text(e), successes.get(percent, min(attack_success(e, worst.delta), most)))
        for percent, e in known
    )


def rows(label: Label) -> tuple[Row, ...]:
    """Return every figure of the label, side by side: those of the headline's unit, of other units, comparisons."""
    own, headline = label.readings, label.worst.unit
    typical = own.typical if own else ()
    spread = exposures(own, label.worst) if own and own.percentiles else ()
    first, *others = ([g for g in pair if g is not None and (own or g.kind == "worst_case")] for pair in leading(label))
    beside = [g for pair in others for g in pair]
    shown = {id(g) for g in (*first[1:], *beside)}
    worst = _by_unit((label.worst, *(g for g in label.comparisons if g.kind == "worst_case")))
    return (
        *(_row(g, worst, headline) for g in first),
        *(_exposure_row(e, label.worst) for e in spread),
        *(_row(g, worst, headline) for g in beside),
        *(_row(g, worst, headline, also=True) for g in (*label.comparisons, *typical) if id(g) not in shown),
    )


def _row(g: Guarantee, worst: Mapping[str, Guarantee], headline: str, *, also: bool = False) -> Row:
    lower = g.kind == "empirical_lower"
    how = (g.method, g.estimator, g.composition, g.notion and f"{g.notion} notion", g.model)
    return Row(
        who=who(g, spoken(g.unit, headline), also=also),
        unit=inline(g.unit),
        epsilon=f"at least {round_up_text(g.epsilon, up=False)}" if lower else epsilon_text(g.epsilon),
        delta=delta_text(g.delta),
        attack="none" if g.attack_success is None else f"at most {success_text(success_of(g, worst.get(g.unit, g)))}",
        how=", ".join(part for part in how if part),
        split=", ".join(f"{name} {round_up_text(value).replace('e-0', 'e-')}" for name, value in g.delta_split),
        scope="reading of this run" if g.scope == "reading" else "guarantee",
        publishable=g.publishable,
    )


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


def _exposure_row(e: Exposure, worst: Guarantee) -> Row:
    unit = spoken(worst.unit, worst.unit)
    return Row(
        who=e.who if e.percent == 100.0 else f"{e.who} of the followed {unit.many}",
        unit=unit.name,
        epsilon=e.epsilon,
        delta=delta_text(worst.delta),
        attack=f"at most {success_text(e.success)}",
        how=f"each {unit.name}'s individual figure",
        split="",
        scope="reading of this run",
        publishable=False,
    )


def sure_sentence(worst: Guarantee) -> str:
    """Say how sure an attacker may become of a person's presence; empty where nothing is promised."""
    if math.isinf(worst.epsilon) or not worst.delta:
        return ""
    unit, most = spoken(worst.unit, worst.unit), worst.curve.sure(worst.delta)
    if math.isinf(most):
        return ""
    return (
        f"How sure an attacker may become: except in outcomes of probability {chance_text(worst.delta)}, whoever gave "
        f"it even odds that one {unit.who} was there ends up at most {success_text(1.0 / (1.0 + math.exp(-most)))} "
        "sure. That is the rarest case; the attack success above is the average."
    )


def checks(label: Label) -> tuple[Assumption, ...]:
    """Return every assumption with its state, warnings first.

    What a figure assumes and nobody tested rests on the user.
    """
    own = label.readings
    statements = (label.worst, *label.comparisons, *(own.typical if own else ()))
    found = (*label.checks, *(own.checks if own else ()), *(a for g in statements for a in g.assumptions))
    return tuple(sorted(dict.fromkeys(found), key=lambda check: ("warning", "open", "holds").index(check.state)))


def state_words(owner: bool) -> dict[str, str]:
    """Return how each state of an assumption is said, to the owner or to the public."""
    return {"holds": "Holds", "open": f"Rests on {'you' if owner else 'the publisher'}", "warning": "Warning"}


def meaning(label: Label) -> tuple[str, ...]:
    """Return what the worst cases do and do not say, for people who never heard of epsilon."""
    return tuple(text for section in sections(label) for text in section.meaning)


def _meaning(worst: Guarantee, unit: Unit) -> tuple[str, ...]:
    if math.isinf(worst.epsilon):
        return (f"Nothing limits what the result may reveal about one {unit.who}.",)
    change = "Replacing" if worst.neighbours == "replace_one" else "Adding or removing"
    plus = f", plus a probability of at most {chance_text(worst.delta)}" if worst.delta else ""
    return (
        f"{change} one {unit.whole} changes the probability of anything an outsider may see of the result by a factor "
        f"of at most {factor_text(worst.epsilon)}{plus}.",
        unit.limits,
        *filter(None, [sure_sentence(worst)]),
    )


def delta_sentence(delta: float) -> str:
    """Explain delta in one sentence."""
    return (
        f"Delta ({delta_text(delta)}, {chance_text(delta)}) is the probability set aside for outcomes in which the "
        "limit given by epsilon may fail; the attack figures on this label include it."
    )


def source_note(label: Label) -> str:
    """Say what on this label was computed from the data."""
    if label.readings is not None:
        return "Only the figures marked publishable, the mechanism and the declared terms are independent of the data."
    rate = (
        "The sampling rate was given as a number: if it was computed from the data, this page reveals how many records "
        "there are. "
    )
    known = [
        *(["the sampling rate"] if label.bare_rate else []),
        *(["the figures published by choice"] if label.included else []),
        *(["which declared end was reached"] if label.end_shown else []),
    ]
    apart = f"Apart from {' and '.join(known)}, nothing" if known else "Nothing"
    return f"{rate if label.bare_rate else ''}{apart} on this page was computed from the data."


def mechanism(label: Label) -> tuple[tuple[str, str], ...]:
    """Return the description of the mechanism, or what the guarantee knows of it."""
    known = tuple((name.replace("_", " "), f"{value:.6g}") for name, value in label.worst.mechanism)
    return label.mechanism or known


def glossary(label: Label) -> tuple[tuple[str, str], ...]:
    """Return the words a reader may not know."""
    own, headline = label.readings, label.worst.unit
    statements = (label.worst, *label.comparisons, *(own.typical if own else ()))
    units = [spoken(unit, headline) for unit in _by_unit(statements)]
    one = " or ".join(unit.name for unit in units)
    was = "was used" if units == [PERSON] else "was in the data"
    common = (
        ("Even odds", f"Before seeing the result, the attacker finds it equally likely that the {one} {was} or not."),
        *((capital(unit.name), unit.meant) for unit in units),
        (
            "Epsilon",
            f"How much one {one} can change the result; 0 means not at all. It is one point of a curve. How often an "
            "attacker is right follows from the whole curve, and may differ between results with the same epsilon.",
        ),
        ("Worst case", f"A limit that holds for every conceivable {one}, even the most unusual one."),
        ("Noise multiplier", f"The amount of noise, as a multiple of the most that one {one} can contribute."),
        _ROUND
        if label.steps_word == "round"
        else ("Sample rate", f"The probability that a {one} takes part in a step."),
    )
    return common if own is None else (*common, *_owner_glossary(label, units))


_ROUND = (
    "Round",
    "One exchange between the server and the clients (the participants, which hold the records). It ends with a new "
    "model.",
)


def _owner_glossary(label: Label, units: list[Unit]) -> tuple[tuple[str, str], ...]:
    many = " or ".join(unit.many for unit in units)
    measured = f"The panel: {many} whose contributions were measured at every step."
    if label.steps_word == "round":
        measured = "Those whose contributions were measured during the run."
    return (
        (
            f"Typical {' or '.join(unit.who for unit in units)}",
            f"{units[0].drawn} drawn at random from the population that the followed {many} represent, on average.",
        ),
        (f"Followed {many}", measured),
        ("Reading", "A figure that describes one run, as opposed to a guarantee, which holds for every run."),
    )
