"""A page from which a person finds faults of the data without seeing the data (Triastcyn 2020, section 7.5.2).

It shows samples, figures and alarms of a released set, beside those of an earlier release that is trusted if there is
one. Nothing but released sets is read, so that a private generator's page costs nothing and may be published with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacita.synthesis.alarm import Alarm as Alarm
from tacita.synthesis.alarm import Expected as Expected
from tacita.synthesis.alarm import alarms as alarms
from tacita.synthesis.description import DIRECTIONS, ColumnPart, Look, columns_of, thinned
from tacita.synthesis.description import Statistics as Statistics
from tacita.synthesis.description import describe as describe
from tacita.synthesis.pages import (
    LIMIT,
    MOST_BARS,
    THIS,
    Bars,
    Drawing,
    Lines,
    Picture,
    Section,
    grid_png,
    histogram,
    page,
    share_text,
    two_lines,
)
from tacita.synthesis.students import Labelled

COLUMNS, ROWS = 8, 2  # of the samples shown of a class
TRUSTED = "Trusted release"

_HEADINGS = {
    "rotated": "Turned images",
    "mirrored": "Mirrored images",
    "inverted": "Inverted images",
    "cropped": "Cropped images",
    "unlike": "Not comparable",
    "missing": "Missing",
    "shares": "Shares of classes",
    "unrecognised": "Unlike its class",
    "collapsed": "Too much alike",
    "impossible": "Impossible values",
    "column": "Shares in a column",
}
_LIMITS = (
    "A generator stands between the data and this page. It may invent a fault, and it may hide one: what is rare is "
    "lost first, and a class that a collapsed generator forgot looks like a class that the data lack. A page without "
    "alarms is no proof that the data are sound."
)


def inspection_page(
    samples: Labelled,
    classes: Sequence[str],
    *,
    title: str,
    reference: Labelled | None = None,
    features: Sequence[str] = (),
    expected: Expected | None = None,
    false_alarms: float = 0.05,
    rng: int | np.random.Generator = 0,
) -> str:
    """Return a page about a released set, to be written as UTF-8.

    Args:
        samples: Inputs and labels of the release.
        classes: The names of the classes.
        title: The page's heading.
        reference: Inputs and labels of an earlier release that is trusted.
        features: For tables: the features' names.
        expected: What is publicly known about the data.
        false_alarms: The chance of an alarm although the release was drawn just as the reference was.
        rng: Where the resampling of the alarms comes from.

    Returns:
        A complete HTML document, a function of the released sets and the arguments alone.
    """
    raised = alarms(
        samples, classes, reference=reference, features=features, expected=expected, false_alarms=false_alarms, rng=rng
    )
    now = describe(samples, classes, features=features)
    before = describe(reference, classes, features=features) if reference else None
    sections = [_alarm_section(raised, now, before, false_alarms)]
    if now.overall is None:
        sections += [_class_section(now, before), _column_section(samples, reference, features, now, before)]
    else:
        sections += [_sample_section(samples, reference, now), _mean_section(now, before), _class_section(now, before)]
        sections += [_figure_section(now.overall, before.overall if before else None)]
    sections.append(Section("What this page cannot show", _LIMITS))
    lead = f"{now.size:,} synthetic records of {len(classes)} classes, to be looked at in place of the data."
    return page(title, lead, sections, owner=False)


def _alarm_section(raised: Sequence[Alarm], now: Statistics, before: Statistics | None, false_alarms: float) -> Section:
    rows = [(_heading(alarm), alarm.text, alarm.cannot_show) for alarm in raised]
    if raised:
        many = "1 alarm" if len(raised) == 1 else f"{len(raised)} alarms"
        text = f"{many}: look below, and at how the data are prepared."
        return Section("Alarms", text, rows=rows, heads=("Alarm", "What was noticed", LIMIT), state="warning")
    if before is None:
        others = (
            "and a column that never changes"
            if now.overall is None
            else "copies, and a wrong background if one was declared"
        )
        text = (
            f"Without an earlier release to compare with, only these raise an alarm: a missing class, impossible "
            f"values, {others}. Everything else has to be seen below."
        )
        return Section("Alarms", f"No alarm, but no trusted release to compare with.\n\n{text}", state="open")
    note = (
        f"Of releases drawn just like the trusted one, at most {share_text(false_alarms)} raise an alarm. A retrained "
        "generator differs by more; changes of less than a tenth are therefore not reported."
    )
    return Section("Alarms", "No alarm: nothing stands out beside the trusted release.", note=note, state="holds")


def _heading(alarm: Alarm) -> str:
    return f"{_HEADINGS[alarm.kind]}: {alarm.about}" if alarm.about else _HEADINGS[alarm.kind]


def _sample_section(samples: Labelled, reference: Labelled | None, now: Statistics) -> Section:
    figures = []
    for c, part in enumerate(now.classes):
        for suffix, some in (("", samples), (f", {TRUSTED.lower()}", reference)):
            if some is not None:
                figures.append(_samples(part.name + suffix, thinned(some[0][some[1] == c], COLUMNS * ROWS)))
    text = "Do they look like what you expect: the right way up, whole, the right colours, all different?"
    note = "Spread evenly over the release, not picked by hand. Grey means that there are no samples."
    return Section("Samples of each class", text, figures, note=note)


def _samples(name: str, images: Tensor) -> Picture:
    if not len(images):
        nothing = torch.full((COLUMNS * ROWS, *images.shape[1:]), 0.5)
        return Picture(png=grid_png(nothing, columns=COLUMNS), name=f"{name}: none", alt=f"No samples of class {name}")
    alt = f"{len(images)} samples of class {name}"
    return Picture(png=grid_png(images, columns=COLUMNS), name=name, alt=alt)


def _mean_section(now: Statistics, before: Statistics | None) -> Section:
    figures = []
    for place, part in enumerate(now.classes):
        looks = [part.look, before.classes[place].look if before else None]
        means = [look.mean for look in looks if look is not None]
        if part.look is not None and means:
            png = grid_png(torch.stack(means), columns=len(means), cell=56)
            caption = f"brightness {part.look.brightness:.2f}\ndiversity {part.look.diversity:.2f}"
            figures.append(Picture(png=png, name=part.name, alt=f"Mean image of class {part.name}", caption=caption))
    text = "The average of a class shows what its samples share: where they stand, which way up, how bright."
    if before:
        text += " Left, this release; right, the trusted one."
    return Section("Mean image of each class", text, figures)


def _class_section(now: Statistics, before: Statistics | None) -> Section:
    shares = Bars(
        name="Share of each class",
        values=tuple(part.name for part in now.classes),
        shares=tuple(part.share for part in now.classes),
        others=tuple(part.share for part in before.classes) if before else (),
        compared=TRUSTED if before else "",
    )
    figures: list[Drawing] = [shares]
    if now.overall is not None:
        figures.append(_direction_lines(now.overall, before.overall if before else None))
    text = "How common each class is"
    return Section("Shares", text + (", and which way edges run." if now.overall else "."), figures)


def _direction_lines(now: Look, before: Look | None) -> Lines:
    degrees = [180.0 * i / DIRECTIONS for i in range(DIRECTIONS + 1)]
    return two_lines(
        (THIS, TRUSTED),
        _around(degrees, now),
        () if before is None else _around(degrees, before),
        heading="Which way edges run",
        caption="Turned images have the same edges in other places of this curve.",
        description="Share of the edges in each direction, from upright (0 and 180 degrees) over level (90 degrees).",
        x_title="degrees; 0 is upright, 90 is level",
        y_title="share of the edges",
    )


def _around(degrees: list[float], look: Look) -> tuple[tuple[float, float], ...]:
    return tuple(zip(degrees, (*look.directions, look.directions[0]), strict=True))


def _figure_section(now: Look, before: Look | None) -> Section:
    def shown(write: str, *names: str) -> str:
        texts = [write.format(*(100.0 * v for n in names for v in _numbers(look, n))) for look in (now, before) if look]
        return texts[0] if len(texts) == 1 else f"{texts[0]} (trusted: {texts[1]})"

    rows = (
        ("Brightness", shown("{:.1f}%", "brightness"), "Which images are dark; where the light is."),
        ("Background", shown("{:.0f}%", "background"), "A share of inverted images below a half."),
        ("Pixels brighter than half", shown("{:.1f}%", "bright"), "Their places."),
        ("Centre, down and across", shown("{:.0f}%, {:.0f}%", "centre"), "Turning about the middle."),
        (
            "Extent: top, left, bottom, right",
            shown("{:.0f}%, {:.0f}%, {:.0f}%, {:.0f}%", "box"),
            "Cuts of a few images.",
        ),
        ("Sharpness", shown("{:.1f}%", "sharpness"), "Whether the data or the generator are blurred."),
        ("Symmetry: mirrored, turned", shown("{:.0f}%, {:.0f}%", "symmetry"), "Which way round images are."),
        ("Diversity", shown("{:.1f}%", "diversity"), "Whether the variety is the data's."),
        ("Near copies", shown("{:.1f}%", "copies"), "Copies of the data: this page does not know the data."),
    )
    return Section("Figures of the images", "All classes together, in percent of the largest possible.", rows=rows)


def _numbers(look: Look, name: str) -> tuple[float, ...]:
    value = getattr(look, name)
    return value if isinstance(value, tuple) else (value,)


def _column_section(
    samples: Labelled, reference: Labelled | None, features: Sequence[str], now: Statistics, before: Statistics | None
) -> Section:
    figures: list[Drawing] = []
    for place, (name, values, where) in enumerate(columns_of(features, samples[0])):
        if values:
            figures.append(_category(now.columns[place], before.columns[place] if before else None))
        else:
            trusted = None if reference is None else reference[0][:, where]
            figures.append(histogram(name, samples[0][:, where], low=-1.0, high=1.0, others=trusted, compared=TRUSTED))
    rows = [row for part in now.columns for row in _column_rows(part)]
    text = (
        "How common each value is. Numbers are shown as they are encoded, from their lowest (-1) to their highest (1)."
    )
    return Section("Columns", text, figures, rows=rows)


def _category(part: ColumnPart, before: ColumnPart | None) -> Bars:
    """Return a category's commonest values as bars, the rest as one."""
    names = [*part.values, "(missing)"]
    shares = np.array([(*p.shares, p.absent) for p in (part, before) if p])
    order = [int(i) for i in np.argsort(-shares[0], kind="stable") if shares[:, i].any()]
    shown, rest = order[:MOST_BARS], order[MOST_BARS:]
    columns = [shares[:, i].tolist() for i in shown] + ([shares[:, rest].sum(1).tolist()] if rest else [])
    return Bars(
        name=part.name,
        values=(*(names[i] for i in shown), *([f"{len(rest)} more"] if rest else [])),
        shares=tuple(column[0] for column in columns),
        others=tuple(column[1] for column in columns) if before else (),
        compared=TRUSTED if before else "",
    )


def _column_rows(part: ColumnPart) -> list[tuple[str, str, str]]:
    rows = []
    if part.unused:
        some = ", ".join(part.unused[:8]) + (f" and {len(part.unused) - 8} more" if len(part.unused) > 8 else "")
        rows.append((f"{part.name}: no record has", some, "Whether the data lack them: what is rare is lost first."))
    if part.impossible:
        rows.append((f"{part.name}: impossible values", share_text(part.impossible), "Which fault made them."))
    return rows
