"""What a label says in words, shared by the page and the plain text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from tacita._numbers import chance_text, delta_text, factor_text, success_text
from tacita.assumptions import Assumption
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.report.cards import by_unit, leading
from tacita.report.units import PERSON, Unit, capital, spoken

OWNER_BAND = ("For the data's owner.", "Contains figures computed from private data: do not publish.")
INCLUDED_NOTE = (
    "The owner chose to publish these figures although they depend on the data. The limits on this label do not "
    "cover what these figures themselves may reveal."
)
_RARE = 0.01  # an exception that is more likely than this is none
Words = tuple[tuple[str, str], ...]


class Titles(NamedTuple):
    """The headings of the parts below the first screen, in the order in which they stand there."""

    attacks: str = "What attacks found"
    all: str = "All figures, and what a test for presence can find"
    meaning: str = "In other words"
    groups: str = "Groups"
    rungs: str = "Rungs: smaller limits that were declared"
    made: str = "How the result was made"
    rests: str = "What this rests on"
    hardened: str = "What was not hardened"
    scale: str = "The marks on the scale, with sources"
    issue: str = "Who issued this label"
    words: str = "Words used here"


SHORT = Titles(
    attacks="Attacks",
    all="Figures",
    meaning="In other words",
    groups="Groups",
    rungs="Rungs",
    made="How it was made",
    rests="Assumptions",
    hardened="Not hardened",
    scale="Scale",
    issue="Issuer",
    words="Words",
)
TITLES = Titles()


def contents(label: Label) -> tuple[tuple[str, str], ...]:
    """Return (name, short heading) of the parts that the page has below its first screen."""
    own = label.readings
    absent = {
        "attacks": own is None,
        "meaning": own is None,  # on the public page it stands on the first screen
        "groups": own is None or not own.groups,
        "rungs": not label.ladder,
        "rests": not checks(label),
        "hardened": not label.not_hardened,
    }
    return tuple((name, short) for name, short in SHORT._asdict().items() if not absent.get(name, False))


def units_note(label: Label) -> str:
    """Say that figures of several units stand side by side; empty where there is one unit."""
    units = [spoken(worst.unit, label.worst.unit) for worst, _ in leading(label)]
    if len(units) < 2:
        return ""
    listed = " and about ".join(unit.about for unit in units)
    return f"The figures about {listed} are separate statements: neither follows from the other."


def sure_sentences(worst: Guarantee) -> tuple[str, ...]:
    """Say how sure an attacker may become of a person's presence, and how likely the exceptions are.

    The exceptions are the tail of the privacy loss, which is larger than delta.
    """
    if math.isinf(worst.epsilon):
        return ()
    unit, curve = spoken(worst.unit, worst.unit), worst.curve
    above = worst.epsilon * (1.0 + 1e-9)  # a curve that ends at epsilon says nothing below it
    limits = [(above, curve.tail(above))]
    limits += [(curve.sure(worst.delta), worst.delta)] if worst.delta else []
    known = [(most, chance) for most, chance in limits if math.isfinite(most) and chance < _RARE]
    if not known:
        return ()
    start = f"An attacker who gave it even odds that one {unit.who} was there, and looks at the result, is then "
    return (
        start + "; or ".join(f"at most {_belief(most)} sure, {_exception(chance)}" for most, chance in known) + ".",
        "The exceptions are the tail of the privacy loss: outcomes that are more likely with than without the "
        f"{unit.who} by a larger factor. Both are about the most telling outcomes; the attack success is the average "
        "over all outcomes.",
    )


def _exception(chance: float) -> str:
    return f"except in outcomes of probability {chance_text(chance)}" if chance else "without exception"


def _belief(epsilon: float) -> str:
    return success_text(1.0 / (1.0 + math.exp(-epsilon)))


def checks(label: Label) -> tuple[Assumption, ...]:
    """Return every assumption with its state, warnings first.

    What a figure assumes and nobody tested rests on the user.
    """
    own = label.readings
    statements = (label.worst, *label.comparisons, *(own.typical if own else ()))
    found = (*label.checks, *(own.checks if own else ()), *(a for g in statements for a in g.assumptions))
    return tuple(sorted(dict.fromkeys(found), key=lambda check: ("warning", "open", "holds").index(check.state)))


def warnings(label: Label) -> tuple[str, ...]:
    """Return the assumptions that are known to fail, as sentences."""
    return tuple(f"{capital(check.text)}." for check in checks(label) if check.state == "warning")


def state_words(owner: bool) -> dict[str, str]:
    """Return how each state of an assumption is said, to the owner or to the public."""
    return {"holds": "Holds", "open": f"Rests on {'you' if owner else 'the publisher'}", "warning": "Warning"}


def meaning(label: Label) -> tuple[str, ...]:
    """Return what the worst cases do and do not say, for people who never heard of epsilon."""
    said = (text for worst, _ in leading(label) for text in _meaning(worst, spoken(worst.unit, label.worst.unit)))
    return (*said, delta_sentence(label.worst.delta)) if math.isfinite(label.worst.epsilon) else tuple(said)


def _meaning(worst: Guarantee, unit: Unit) -> tuple[str, ...]:
    if math.isinf(worst.epsilon):
        return (f"Nothing limits what the result may reveal about one {unit.who}.",)
    change = "Replacing" if worst.neighbours == "replace_one" else "Adding or removing"
    plus = f", plus a probability of at most {chance_text(worst.delta)}" if worst.delta else ""
    return (
        f"{change} one {unit.whole} changes the probability of anything an outsider may see of the result by a factor "
        f"of at most {factor_text(worst.epsilon)}{plus}.",
        unit.limits,
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
        return "Only the figures that may be published, the mechanism and the declared terms do not depend on the data."
    rate = (
        "The sampling rate was given as a number: if it was computed from the data, this page reveals how many "
        f"{spoken(label.worst.unit, label.worst.unit).many} there are. "
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


def glossary(label: Label, shown: str) -> Words:
    """Return the words a reader may not know, as far as they occur.

    Args:
        label: Decides what the words mean.
        shown: The text of the rest of the page.
    """
    said = " ".join(shown.split()).casefold()
    return (
        *((capital(unit.name), unit.meant) for unit in _units(label)),
        *(
            (name, text)
            for name, text in (*_common_words(label), *_owner_words(label))
            if re.search(rf"(?<!\w){re.escape(name.casefold())}(s|es)?(?!\w)", said)
        ),
    )


def _units(label: Label) -> list[Unit]:
    own = label.readings
    statements = (label.worst, *label.comparisons, *(own.typical if own else ()))
    return [spoken(unit, label.worst.unit) for unit in by_unit(statements)]


def _common_words(label: Label) -> Iterable[tuple[str, str]]:
    units = _units(label)
    one = " or ".join(unit.name for unit in units)
    was = "was used" if units == [PERSON] else "was in the data"
    yield "Even odds", f"Before seeing the result, the attacker finds it equally likely that the {one} {was} or not."
    yield (
        "Epsilon",
        f"How much one {one} can change the result; 0 means not at all. It is one point of a curve. How often an "
        "attacker is right follows from the whole curve, and may differ between results with the same epsilon.",
    )
    yield "Privacy curve", "The delta that goes with each epsilon: everything that a mechanism promises."
    yield (
        "Privacy loss",
        f"How much more likely an outcome is with one {one} than without, on a logarithmic scale. It differs from "
        "outcome to outcome; epsilon limits it.",
    )
    yield (
        "Test for presence",
        f"Any way of telling from the result whether one {one} {was}. A false alarm accuses one that was not.",
    )
    yield "PLD", "Privacy loss distribution: the sharpest way in use to add up releases."
    yield "RDP", "Rényi differential privacy: an older way to add up releases; its figures are larger."
    yield "Worst case", f"A limit that holds for every conceivable {one}, even the most unusual one."
    yield "Clip norm", f"The most that one {one} may contribute; longer contributions are scaled down to it."
    yield "Noise multiplier", f"The amount of noise, as a multiple of the most that one {one} can contribute."
    yield "Poisson sampling", f"Each {one} is drawn by chance, independently of all others."
    if label.steps_word == "round":
        yield (
            "Round",
            "One exchange between the server and the clients (the participants, which hold the records). It ends with "
            "a new model.",
        )
    else:
        yield "Sample rate", f"The probability that a {one} takes part in a step."


def _owner_words(label: Label) -> Iterable[tuple[str, str]]:
    if label.readings is None:
        return
    units = _units(label)
    many = " or ".join(unit.many for unit in units)
    measured = f"The panel: {many} whose contributions were measured at every step."
    if label.steps_word == "round":
        measured = "Those whose contributions were measured during the run."
    for unit in units:
        drawn = f"{unit.drawn} drawn at random from the population that the followed {many} represent, on average."
        yield f"Typical {unit.who}", drawn
    yield f"Followed {' or '.join(unit.many for unit in units[:1])}", measured
    yield "Reading", "A figure that describes one run, as opposed to a guarantee, which holds for every run."
    yield "Confidence band", "Limits that the population's average stays within, from the followed ones alone."
    yield (
        "Canary",
        "A record made up for an attack, so that the attack can find it as easily as possible.",
    )
