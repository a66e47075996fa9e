"""Labels with a given text in every place a user can write to, and a real browser to look at them."""

import base64
import hashlib
import struct
import zlib
from functools import cache
from statistics import NormalDist

import pytest

from tacita.assumptions import assume
from tacita.guarantee import Guarantee
from tacita.label import Bound, Chart, Finding, GroupRow, Label, Readings, Series


def assumptions(text):
    """One assumption of every state."""
    return (
        assume("no-trend", panel=text),
        assume("clients-representative", panel=text),
        assume("fit-unsettled", warning=text),
    )


def guarantee(text, **changes):
    fields = {
        "kind": "worst_case",
        "epsilon": 1.0162,
        "delta": 1e-5,
        "method": text,
        "unit": text,
        "sampling": text,
        "estimator": text,
        "composition": text,
        "delta_split": ((text, 5e-7),),
        "mechanism": ((text, 1.0),),
        "assumptions": assumptions(text),
        "publishable": True,
    }
    return Guarantee(**(fields | changes))


@cache
def png(width, height, shade):
    """Return a grey PNG as a data: address; `shade` gives the brightness (0 to 255) of a pixel."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(int(shade(x, y)) for x in range(width)) for y in range(height))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    image = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    return "data:image/png;base64," + base64.b64encode(image).decode()


def rings(x, y):
    """Four rings, and below them what is left of them in noise."""
    distance = ((x % 28 - 13.5) ** 2 + (y % 28 - 13.5) ** 2) ** 0.5
    return 255.0 * (abs(distance - 5.0 - x // 28) < 2.0) if y < 28 else hashlib.sha256(bytes((x, y))).digest()[0]


@cache
def roc(shift):
    """The curve of an attack whose scores are normal, `shift` apart for members and others."""
    normal = NormalDist()
    alarms = [10.0 ** (-4.0 + 0.1 * i) for i in range(40)]
    return ((0.0, 0.0), *((p, 1.0 - normal.cdf(normal.inv_cdf(1.0 - p) - shift)) for p in alarms), (1.0, 1.0))


@cache
def histogram(centre):
    """A bell as bars: corners of 24 bins from -3 to 3."""
    normal, width = NormalDist(mu=centre), 0.25
    corners = [(-3.0, 0.0)]
    for left in (-3.0 + width * i for i in range(24)):
        height = (normal.cdf(left + width) - normal.cdf(left)) / width
        corners += [(left, height), (left + width, height)]
    return (*corners, (3.0, 0.0))


def findings(text="", scale=1.0):
    """What five attacks found, in words such as an audit writes, or with `text` in place of each of them."""

    def say(words):
        return text or words

    return (
        Finding(
            key=say("canaries"),
            heading=say("Does the mechanism leak more than it claims?"),
            state="not-refuted",
            sentence=say("An attacker who sees every step guesses right 71.2% of the time; the claim allows 73.43%."),
            columns=(say("Canary"), say("Proved, 95%"), say("Proved, 99.95%"), say("Claimed"), say("Verdict")),
            rows=(
                (say("A record made to be found"), say("0.9312"), say("0.8871"), say("1.017"), say("not refuted")),
                (say("A record from held-out data"), say("0.4011"), say("0.3107"), say("0.85"), say("not refuted")),
            ),
            bounds=(
                Bound(
                    who=say("A record made to be found"),
                    lower=0.88719 * scale,
                    upper=1.0162 * scale,
                    state="not-refuted",
                ),
                Bound(
                    who=say("A record from held-out data"),
                    lower=0.3107 * scale,
                    upper=0.85 * scale,
                    state="not-refuted",
                ),
            ),
            notes=(
                say("20,000 canaries were put in or left out by a fair coin each; they are attacked all at once."),
                say("The bounds hold with the confidence given, if the canaries do not disturb each other."),
            ),
        ),
        Finding(
            key=say("typical"),
            heading=say("Is a typical person as safe as the label says?"),
            state="open",
            sentence=say("The attack proved nothing about a typical person; 512 records are too few to decide."),
            bounds=(Bound(who=say("A record like those followed"), lower=0.0, upper=0.85 * scale, state="open"),),
        ),
        Finding(
            key=say("membership"),
            heading=say("Can an outsider tell who was in the data?"),
            state="not-refuted",
            sentence=say("Hardly: right 53.1% of the time against the finished model, where guessing gives 50%."),
            columns=(say("False alarms"), say("Members found"), say("The claim allows")),
            rows=((say("0.1%"), say("0.14%"), say("0.28%")), (say("1%"), say("1.3%"), say("2.8%"))),
            chart=Chart(
                heading=say("Members found at each rate of false alarms"),
                caption=say("Towards the left the attacker accuses few people and wants to be sure."),
                description=say("The attack stays close to guessing at every rate and under what the label allows."),
                x_title=say("false alarms"),
                y_title=say("members found"),
                series=(
                    Series(hue="plain", name=say("Guessing"), points=((1e-4, 1e-4), (1.0, 1.0))),
                    Series(hue="anyone", name=say("The label allows"), points=roc(1.0 * scale)),
                    Series(hue="spread", name=say("The attack"), points=roc(0.2 * scale)),
                ),
                log=True,
            ),
            notes=(say("3,000 members and 3,000 others; a stronger attack may do better."),),
        ),
        Finding(
            key=say("inversion"),
            heading=say("Can a record be rebuilt from what a step gives away?"),
            state="not-refuted",
            sentence=say("No: from the noisy gradients nothing of the records can be seen."),
            picture=png(112, 56, rings),
            picture_text=say("Above, four records; below, what the attack made of their steps: noise."),
            notes=(say("The attacker knows the model and which class each record has."),),
            tests_claim=False,
        ),
        Finding(
            key=say("leak"),
            heading=say("Does the published figure itself give people away?"),
            state="open",
            sentence=say("With and without one person the figure differs by less than can be told apart (p = 0.41)."),
            tests_claim=False,
            chart=Chart(
                heading=say("The figure with a person, and without"),
                caption=say("Two bells that cover each other cannot be told apart."),
                description=say("Two bells, nearly the same: one centred at 0, the other at 0.15."),
                x_title=say("distance, in standard deviations"),
                y_title=say("share of the repeats"),
                series=(
                    Series(hue="typical", name=say("With the person"), points=histogram(0.15 * scale)),
                    Series(hue="spread", name=say("Without"), points=histogram(0.0)),
                ),
            ),
        ),
    )


def readings(text, scale=1.0):
    return Readings(
        typical=(
            guarantee(text, kind="bayesian", epsilon=0.85 * scale, scope="reading", notion="weak", publishable=False),
            guarantee(text, kind="bayesian", epsilon=0.4 * scale, model="model-based", publishable=False),
        ),
        panels=text,
        percentiles=tuple(
            (float(p), scale * (0.1 + 0.9 * (p / 100) ** 2)) for p in (1, 10, 25, 50, 75, 90, 95, 99, 100)
        ),
        curve=tuple((step, scale * 0.85 * (step / 2000) ** 0.4) for step in range(1, 2001, 7)),
        groups=tuple(
            GroupRow(column=text, value=text, records=100, median=0.2 * scale, p90=0.6 * scale, largest=scale)
            for _ in range(3)
        ),
        metrics=((text, text),),
        checks=assumptions(text),
        certificate=text,
        facts=((text, text), (text, text)),
        audit=findings(text, scale),
    )


def full_label(text, scale=1.0):
    return Label(
        nominal_size=2000,
        title=text,
        purpose=text,
        worst=guarantee(text),
        comparisons=(guarantee(text, epsilon=1.3), guarantee(text, kind="bayesian", epsilon=0.9)),
        curve=tuple((step, 1.0162 * (step / 2000) ** 0.5) for step in range(1, 2001, 7)),
        mechanism=((text, text), (text, text)),
        declared=(text, text),
        not_hardened=(text, text),
        audit_command="tacita audit RUN",
        included=((text, text),),
        readings=readings(text, scale),
    )


@pytest.fixture
def make_label():
    """Return a function from a text (and a scale of the readings) to a label with that text everywhere."""
    return full_label


@pytest.fixture
def make_readings():
    return readings


@pytest.fixture
def make_findings():
    return findings


@pytest.fixture
def make_guarantee():
    return guarantee
