"""What a label says, in words and rounded figures, shared by the page and the plain text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from importlib import import_module

from tacita.guarantee import Guarantee, attack_success, round_up_text
from tacita.report.label import Check, Label, Readings
from tacita.report.numbers import chance_text, delta_text, epsilon_text, success_text, times

OWNER_BAND = ("For the data's owner.", "Contains figures computed from private data: do not publish.")
INCLUDED_NOTE = (
    "The owner chose to publish these figures although they depend on the data. The limits on this label do not "
    "cover what these figures themselves may give away."
)

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_WHO = {
    "worst_case": "Anyone (worst case)",
    "bayesian": "A typical person",
    "individual": "One record alone",
    "empirical_lower": "An attack that was tried (lower bound)",
}
_SHARES = {10.0: "One in ten", 50.0: "Half", 90.0: "9 in 10", 99.0: "99 in 100", 100.0: "The most exposed"}


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence around the one figure to remember."""

    before: str
    figure: str
    after: str

    def __str__(self) -> str:
        return self.before + self.figure + self.after


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """What a share of the followed records stays under."""

    who: str
    epsilon: str
    success: float

    @property
    def percent(self) -> str:
        """Attack success, rounded up."""
        return success_text(self.success)


@dataclass(frozen=True, kw_only=True)
class Card:
    """One answer: to whom, the sentence, the attack success (None where no bound is claimed), the fine print."""

    key: str
    heading: str
    tag: str
    sentence: Sentence
    success: float | None
    figures: str
    notes: tuple[str, ...] = ()
    exposures: tuple[Exposure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of all figures."""

    who: str
    epsilon: str
    delta: str
    attack: str
    how: str
    split: str
    scope: str
    publishable: bool


def version() -> str:
    """Return tacita's version. A plain import would tie this layer to everything the front door offers."""
    return str(import_module("tacita").__version__)


def printable(text: str) -> str:
    """Return `text` with control characters and broken code points made visible.

    Examples:
        >>> printable("a" + chr(27) + "b")
        'a�b'
    """
    return _CONTROL.sub("\ufffd", text)


def inline(text: str) -> str:
    """Return `text` fit to stand inside a sentence: printable, on one line, unable to reorder what surrounds it."""
    return _BIDI.sub("", printable(" ".join(text.split())))


def target(guarantee: Guarantee) -> str:
    """Say what the attacker of this guarantee has to find out."""
    unit = inline(guarantee.unit)
    if guarantee.neighbours == "replace_one":
        return f"which of two {unit}s was used"
    return "whether a person's record was used" if unit == "record" else f"whether one {unit} was in the data"


def cards(label: Label) -> tuple[Card, ...]:
    """Return the answers to show first: anyone, and for the owner a typical person and the spread."""
    own = label.readings
    if own is None:
        covered = [g for g in label.comparisons if g.kind == "bayesian"]
        return (_anyone(label.worst), *(_typical(g, "") for g in covered[:1]))
    found = [_anyone(label.worst)]
    if own.typical:
        found.append(_typical(own.typical[0], own.panels))
    elif own.panels:
        found.append(_unknown(own.panels))
    if own.percentiles:
        found.append(_spread(own, label.worst))
    return tuple(found)


def _anyone(worst: Guarantee) -> Card:
    success = attack_success(worst.epsilon, worst.delta)
    return Card(
        key="anyone",
        heading="Anyone",
        tag="worst case",
        sentence=_attack(f"An attacker who has to tell {target(worst)}, starting from even odds,", worst, success),
        success=success,
        figures=_figures(worst),
        notes=("Holds for every person, whatever their record and whatever the attacker already knows.",)
        if math.isfinite(worst.epsilon)
        else (),
    )


def _typical(typical: Guarantee, panels: str) -> Card:
    bound = typical.is_bound and typical.kind != "empirical_lower"
    success = attack_success(typical.epsilon, typical.delta) if bound else None
    told = target(typical).replace("a person's", "their")
    start = (
        f"Against people like those followed, on average, an attacker who has to tell {told}, starting from even odds,"
    )
    return Card(
        key="typical",
        heading="A typical person",
        tag="reading of this run" if typical.scope == "reading" else "guarantee",
        sentence=_attack(start, typical, success),
        success=success,
        figures=_figures(typical),
        notes=tuple(_typical_notes(typical, panels)),
    )


def _unknown(panels: str) -> Card:
    said = Sentence(before="", figure="No figure.", after=f" {_sentence(panels)}")
    return Card(key="typical", heading="A typical person", tag="not known", sentence=said, success=None, figures="")


def _sentence(text: str) -> str:
    clean = inline(text)
    return clean[:1].upper() + clean[1:].rstrip(".") + "."


def _typical_notes(typical: Guarantee, panels: str) -> list[str]:
    notes = [_sentence(panels)] if panels else []
    if typical.scope == "reading":
        notes.append("It describes this run and is no promise about other runs.")
    notes.append("It promises nothing to a person who is unlike those followed.")
    if typical.model == "model-based":
        notes.append("It is model-based: where a few records contribute far more than the rest it can be too low.")
    return notes


def _attack(start: str, guarantee: Guarantee, success: float | None) -> Sentence:
    if success is None:
        after = " This figure is kept for comparison only; the truth may be larger."
        return Sentence(before="", figure="Not an upper bound.", after=after)
    if math.isinf(guarantee.epsilon):
        after = f" {start} may be right every time."
        return Sentence(before="", figure="Nothing is promised.", after=after)
    right, tries = times(success)
    after = f" (guessing: {tries // 2:,})."
    return Sentence(before=f"{start} is right at most ", figure=f"{right:,} times in {tries:,}", after=after)


def _figures(guarantee: Guarantee) -> str:
    return f"epsilon {epsilon_text(guarantee.epsilon)}, delta {delta_text(guarantee.delta)}"


def _spread(own: Readings, worst: Guarantee) -> Card:
    rows = exposures(own, worst.delta)
    half = next((row for row in rows if row.who == _SHARES[50.0]), rows[-1])
    right, tries = times(half.success)
    last = rows[-1]
    after = f" (guessing: {tries // 2:,})"
    if last is not half:
        most, among = times(last.success)
        who = "the most exposed" if last.who == _SHARES[100.0] else f"{last.who} of them"
        after += f"; against {who}, at most {most:,} in {among:,}"
    who = "half" if half.who == _SHARES[50.0] else half.who.lower()
    return Card(
        key="spread",
        heading="The most exposed and the least",
        tag="reading of this run",
        sentence=Sentence(
            before=f"Against {who} of the records followed, an attacker is right at most ",
            figure=f"{right:,} times in {tries:,}",
            after=after + ".",
        ),
        success=None,
        figures=f"each record's own epsilon, at delta {delta_text(worst.delta)}",
        notes=("These shares are counted among the records followed; they promise nothing to any one person.",),
        exposures=rows,
    )


def exposures(own: Readings, delta: float) -> tuple[Exposure, ...]:
    """Return what half, 90%, 99% and all of the followed records stay under, as far as it is known."""
    points = sorted(own.percentiles)
    known = [(p, e) for p, e in points if p in _SHARES] or points[-5:]
    return tuple(
        Exposure(who=_SHARES.get(p, f"{p:g}%"), epsilon=epsilon_text(e), success=attack_success(e, delta))
        for p, e in known
    )


def rows(label: Label) -> tuple[Row, ...]:
    """Return every figure of the label, side by side."""
    own = label.readings
    typical = own.typical if own else ()
    spread = exposures(own, label.worst.delta) if own and own.percentiles else ()
    return (
        *map(_row, (label.worst, *typical[:1])),
        *(_exposure_row(e, label.worst.delta) for e in spread),
        *(_row(g, also=True) for g in (*label.comparisons, *typical[1:])),
    )


def _row(g: Guarantee, *, also: bool = False) -> Row:
    lower = g.kind == "empirical_lower"
    how = (g.method, g.estimator, g.composition, g.notion and f"{g.notion} notion", g.model)
    return Row(
        who=_who(g, also=also),
        epsilon=f"at least {round_up_text(g.epsilon, up=False)}" if lower else epsilon_text(g.epsilon),
        delta=delta_text(g.delta),
        attack=f"at most {success_text(attack_success(g.epsilon, g.delta))}" if g.is_bound and not lower else "none",
        how=", ".join(part for part in how if part),
        split=", ".join(f"{name} {round_up_text(value).replace('e-0', 'e-')}" for name, value in g.delta_split),
        scope="reading of this run" if g.scope == "reading" else "guarantee",
        publishable=g.publishable,
    )


def _who(g: Guarantee, *, also: bool) -> str:
    if not g.is_bound:
        return "Not an upper bound, for comparison only"
    return f"{_WHO[g.kind]}, for comparison" if also and g.kind != "empirical_lower" else _WHO[g.kind]


def _exposure_row(e: Exposure, delta: float) -> Row:
    return Row(
        who=e.who if e.who == _SHARES[100.0] else f"{e.who} of the records followed",
        epsilon=e.epsilon,
        delta=delta_text(delta),
        attack=f"at most {e.percent}",
        how="each record's own figure",
        split="",
        scope="reading of this run",
        publishable=False,
    )


def checks(label: Label) -> tuple[Check, ...]:
    """Return every assumption with its state, warnings first.

    What a figure assumes and nobody tested rests on the user.
    """
    own = label.readings
    listed = (*label.checks, *(own.checks if own else ()))
    statements = (label.worst, *label.comparisons, *(own.typical if own else ()))
    known = {check.text for check in listed}
    assumed = dict.fromkeys(text for g in statements for text in g.assumptions if text not in known)
    found = (*listed, *(Check(text=text, state="open") for text in assumed))
    return tuple(sorted(found, key=lambda check: ("warning", "open", "holds").index(check.state)))


def state_words(owner: bool) -> dict[str, str]:
    """Return how each state of an assumption is said, to the owner or to the public."""
    return {
        "holds": "Holds",
        "open": "Rests on you" if owner else "Rests on the publisher",
        "warning": "Warning",
    }


def meaning(worst: Guarantee) -> tuple[str, ...]:
    """Return what the worst case does and does not say, for people who never heard of epsilon."""
    if math.isinf(worst.epsilon):
        return ("The noise does not limit what the result may give away about one person.",)
    factor = round_up_text(math.exp(worst.epsilon)) if worst.epsilon < 20 else f"e^{round_up_text(worst.epsilon)}"
    unit = "person's record" if worst.unit == "record" else inline(worst.unit)
    return (
        f"Whatever an outsider sees of the result, one {unit} makes it at most {factor} times as likely, or as "
        f"unlikely, apart from a chance of {chance_text(worst.delta)}.",
        "It limits what can be learnt about a person because their data were used. It does not limit what the result "
        "says about people in general, which may apply to a person whose data were not used.",
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
        return "Only the rows marked publishable, the mechanism and the declared terms do not depend on the data."
    if label.included:
        return "Apart from the figures published by choice, nothing on this page was computed from the data."
    return "Nothing on this page was computed from the data."


def mechanism(label: Label) -> tuple[tuple[str, str], ...]:
    """Return the description of the mechanism, or what the guarantee knows of it."""
    known = tuple((name.replace("_", " "), f"{value:.6g}") for name, value in label.worst.mechanism)
    return label.mechanism or known


def glossary(owner: bool) -> tuple[tuple[str, str], ...]:
    """Return the words a reader may not know."""
    common = (
        ("Even odds", "Before looking, the attacker thinks it as likely as not that the record was used."),
        (
            "Record",
            "One row of the data. The sentences above speak of a person because they take one record for one person; "
            "somebody with several records is protected less.",
        ),
        (
            "Epsilon",
            "How much one record can change what comes out; 0 is not at all. An epsilon of 1 lets the attacker be "
            "right 74 times in 100, an epsilon of 3, 96 times in 100.",
        ),
        ("Worst case", "A limit that holds for every record imaginable, including the one that sticks out most."),
        ("Noise multiplier", "How much noise is added, as a multiple of the most that one record can contribute."),
        ("Sample rate", "The chance with which a record takes part in a step."),
    )
    return common if not owner else (*common, *_OWNER_GLOSSARY)


_OWNER_GLOSSARY = (
    ("Typical person", "Somebody drawn from the population that the followed records stand for, on average."),
    ("Followed records", "The panel: records whose contribution was measured at every step."),
    ("Reading", "A figure that describes one run, as opposed to a guarantee, which holds for every run."),
)
