"""What a label calls those it protects, and how texts of users are made safe to show."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tacita.guarantee import Guarantee
from tacita.label import Label

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """How a label speaks of a unit: of what is added to the data, or taken away, as a whole.

    Attributes:
        name: The unit, such as `record` or `client`.
        who: Whom it stands for: a person where the label is about records alone, else the unit itself.
        people: Several of them.
        anyone: The heading of a worst case.
        about: The one a question is about.
        whole: One, with everything that belongs to it.
        asked: What an attacker has to tell.
        told: The same, of those just spoken of.
        holds: For whom a worst case holds.
        limits: What a worst case limits, and what it does not.
        unlike: Whom a typical figure promises nothing.
        drawn: What a typical one is.
        meant: What the unit is.
    """

    name: str
    who: str
    people: str
    anyone: str
    about: str
    whole: str
    asked: str
    told: str
    holds: str
    limits: str
    unlike: str
    drawn: str
    meant: str

    @property
    def many(self) -> str:
        """Several of the unit."""
        return f"{self.name}s"

    @property
    def theirs(self) -> str:
        """What they have in the data, as in "their record": a person's records, or the unit itself."""
        return "records" if self.name == "person" else self.name

    @property
    def typical(self) -> str:
        """The heading of a typical figure."""
        return f"A typical {self.who}"

    @property
    def anywhere(self) -> str:
        """The heading of the spread of the followed records."""
        return "You may be anywhere here" if self.who == "person" else f"A {self.who} may be anywhere here"


PERSON = Unit(
    name="record",
    who="person",
    people="people",
    anyone="Anyone",
    about="a person",
    whole="person's record",
    asked="whether a person's record was used",
    told="whether their record was used",
    holds="every person, whatever their record says",
    limits="This limits what can be learnt about a person because their data were used. It does not limit what the "
    "result says about people in general, which may also apply to a person whose data were not used.",
    unlike="a person unlike those followed",
    drawn="A person",
    meant="One row of the data. The sentences above speak of a person because they assume one record per person; a "
    "person with several records is less protected.",
)

SEVERAL = replace(
    PERSON,
    name="person",
    whole="person with all their records",
    asked="whether a person's records were used",
    told="whether their records were used",
    holds="every person, however many records they have, whatever these say,",
    meant="All records of one id in the data: they come or go together. Whoever has two ids is less protected.",
)


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


def spoken(unit: str, headline: str = "record") -> Unit:
    """Return how to speak of a unit. A record stands for a person only where the label's headline is about records.

    Examples:
        >>> spoken("record").typical, spoken("client", "client").typical, spoken("record", "client").typical
        ('A typical person', 'A typical client', 'A typical record')
        >>> spoken("record").asked, spoken("person", "person").asked
        ("whether a person's record was used", "whether a person's records were used")
    """
    if unit == headline == "record":
        return PERSON
    if unit == "person":
        return SEVERAL
    name = inline(unit)
    plain = Unit(
        name=name,
        who=name,
        people=f"{name}s",
        anyone=f"Any one {name}",
        about=f"a {name}",
        whole=name,
        asked=f"whether one {name} was in the data",
        told="whether one of them was in the data",
        holds=f"every {name}, whatever it contains",
        limits=f"This limits what can be learnt about a {name} because it was in the data. It does not limit what the "
        f"result says about {name}s in general, which may also apply to a {name} that was not in the data.",
        unlike=f"a {name} unlike those followed",
        drawn="One",
        meant=f"What is in the data, or not, as a whole; whoever stands behind several {name}s is less protected.",
    )
    if unit == "record":
        return replace(plain, meant="One row of the data; whoever has several records is less protected.")
    if unit != "client":
        return plain
    return replace(
        plain,
        about="a client (with all the records it holds)",
        whole="client with all the records it holds",
        holds="every client, whatever records it holds",
        meant="One participant with all the records it holds; whoever stands behind several clients is less protected.",
    )


def headline_unit(label: Label) -> Unit:
    """Return how to speak of the unit of the label's headline."""
    return spoken(label.worst.unit, label.worst.unit)


def target(guarantee: Guarantee, headline: str = "record", *, again: bool = False) -> str:
    """Say what an attacker on this guarantee tries to tell; `again` where those it is about were just spoken of."""
    unit = spoken(guarantee.unit, headline)
    if guarantee.neighbours == "replace_one":
        return f"which of two {unit.many} was used"
    return unit.told if again else unit.asked


def capital(text: str) -> str:
    """Return a text with a capital at its beginning."""
    return text[:1].upper() + text[1:]
