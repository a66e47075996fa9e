"""A page from which a person finds faults of the data without seeing the data (Triastcyn 2020, section 7.5.2).

It shows samples, figures and alarms of a released set, beside those of an earlier release that is trusted if there is
one. Nothing but released sets is read, so that a private generator's page costs nothing and may be published with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacita import runs
from tacita.data import Dataset
from tacita.synthesis.alarm import FALSE_ALARMS, Alarm, alarms
from tacita.synthesis.description import BINS, DIRECTIONS, ColumnPart, Look, Statistics, describe, thinned
from tacita.synthesis.pages import LIMIT, THIS, Bars, Drawing, Picture, Section, grid_png, page, share_text, two_lines
from tacita.synthesis.release import released_dataset
from tacita.synthesis.students import labelled

COLUMNS, ROWS = 8, 2  # of the samples shown of a class
MOST_BARS = 12
TRUSTED = "Trusted release"

_LIMITS = (
    "A generator stands between the data and this page. It may invent a fault, and it may hide one: what is rare is "
    "lost first, and a class that a collapsed generator forgot looks like a class that the data lack. A page without "
    "alarms is no proof that the data are sound."
)


def write_inspection(run: Path, file: Path, *, title: str, reference: Path | None = None) -> tuple[Alarm, ...]:
    """Write a page about a released set, made from it alone, and return the alarms that it raises.

    Args:
        run: A run directory, or a folder with a released set.
        file: The page to write.
        title: The page's heading.
        reference: An earlier release that is trusted, to compare with.

    Returns:
        The alarms; none if nothing stands out.
    """
    found, trusted = released_dataset(run), None if reference is None else released_dataset(reference)
    raised = alarms(found, reference=trusted)
    runs.write_text(file.parent, file.name, inspection_page(found, raised, title=title, reference=trusted))
    return raised


def inspection_page(release: Dataset, raised: Sequence[Alarm], *, title: str, reference: Dataset | None = None) -> str:
    """Return a page about a released set, to be written as UTF-8.

    Args:
        release: The released set.
        raised: What `alarms` noticed about it.
        title: The page's heading.
        reference: The earlier release that it was compared with, if any.

    Returns:
        A complete HTML document, a function of the released sets and the arguments alone.
    """
    now, before = describe(release), None if reference is None else describe(reference)
    sections = [_alarm_section(raised, now, before)]
    if now.overall is None:
        sections += [_class_section(now, before), _column_section(now, before)]
    else:
        sections += [_sample_section(release, reference), _mean_section(now, before), _class_section(now, before)]
        sections += [_figure_section(now.overall, before.overall if before else None)]
    sections.append(Section("What this page cannot show", _LIMITS))
    lead = f"{now.size:,} synthetic records of {len(now.classes)} classes, to be looked at in place of the data."
    return page(title, lead, sections, owner=False)


def _alarm_section(raised: Sequence[Alarm], now: Statistics, before: Statistics | None) -> Section:
    if raised:
        rows = [(alarm.heading, alarm.text, alarm.cannot_show) for alarm in raised]
        many = "1 alarm" if len(raised) == 1 else f"{len(raised)} alarms"
        text = f"{many}: look below, and at how the data are prepared."
        return Section("Alarms", text, rows=rows, heads=("Alarm", "What was noticed", LIMIT), state="warning")
    if before is None:
        tables, images = "and a column that never changes", "copies, and a wrong background if one was declared"
        text = (
            "Without an earlier release to compare with, only these raise an alarm: a missing class, impossible "
            f"values, {tables if now.overall is None else images}. Everything else has to be seen below."
        )
        return Section("Alarms", f"No alarm, but no trusted release to compare with.\n\n{text}", state="open")
    note = (
        f"Of releases drawn just like the trusted one, at most {share_text(FALSE_ALARMS)} raise an alarm. A retrained "
        "generator differs by more; changes of less than a tenth are therefore not reported."
    )
    return Section("Alarms", "No alarm: nothing stands out beside the trusted release.", note=note, state="holds")


def _sample_section(release: Dataset, reference: Dataset | None) -> Section:
    sets = [("", release)] + ([] if reference is None else [(f", {TRUSTED.lower()}", reference)])
    pictures = []
    for place, name in enumerate(release.classes or ()):
        for suffix, data in sets:
            inputs, labels = labelled(data)
            pictures.append(_samples(name + suffix, thinned(inputs[labels == place], COLUMNS * ROWS)))
    text = "Do they look like what you expect: the right way up, whole, the right colours, all different?"
    note = "Spread evenly over the release, not picked by hand. Grey means that there are no samples."
    return Section("Samples of each class", text, pictures, note=note)


def _samples(name: str, images: Tensor) -> Picture:
    alt, heading = f"{len(images)} samples of class {name}", name
    if not len(images):
        images, heading = torch.full((COLUMNS * ROWS, *images.shape[1:]), 0.5), f"{name}: none"
    return Picture(png=grid_png(images, columns=COLUMNS), name=heading, alt=alt)


def _mean_section(now: Statistics, before: Statistics | None) -> Section:
    pictures = []
    for place, part in enumerate(now.classes):
        other = before.classes[place].look if before else None
        if part.look is not None:
            means = [look.mean for look in (part.look, other) if look is not None]
            png = grid_png(torch.stack(means), columns=len(means), cell=56)
            caption = f"brightness {part.look.brightness:.2f}\ndiversity {part.look.diversity:.2f}"
            pictures.append(Picture(png=png, name=part.name, alt=f"Mean image of class {part.name}", caption=caption))
    text = "The average of a class shows what its samples share: where they stand, which way up, how bright."
    if before:
        text += " Left, this release; right, the trusted one."
    return Section("Mean image of each class", text, pictures)


def _class_section(now: Statistics, before: Statistics | None) -> Section:
    bars = Bars(
        name="Share of each class",
        values=tuple(part.name for part in now.classes),
        shares=tuple(part.share for part in now.classes),
        others=tuple(part.share for part in before.classes) if before else (),
        compared=TRUSTED if before else "",
    )
    if now.overall is None:
        return Section("Shares", "How common each class is.", [bars])
    edges = two_lines(
        (THIS, TRUSTED),
        _around(now.overall),
        _around(before.overall) if before and before.overall else (),
        heading="Which way edges run",
        caption="Turned images have the same edges in other places of this curve.",
        description="Share of the edges in each direction, from upright (0 and 180 degrees) over level (90 degrees).",
        x_title="degrees; 0 is upright, 90 is level",
        y_title="share of the edges",
    )
    return Section("Shares", "How common each class is, and which way edges run.", [bars, edges])


def _around(look: Look) -> list[tuple[float, float]]:
    degrees = [180.0 * place / DIRECTIONS for place in range(DIRECTIONS + 1)]
    return list(zip(degrees, (*look.directions, look.directions[0]), strict=True))


def _figure_section(now: Look, before: Look | None) -> Section:
    def shown(write: str, name: str) -> str:
        values = [np.atleast_1d(getattr(look, name)).tolist() for look in (now, before) if look]
        texts = [write.format(*(100.0 * value for value in some)) for some in values]
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


def _column_section(now: Statistics, before: Statistics | None) -> Section:
    drawings: list[Drawing] = []
    rows = []
    for part, earlier in zip(now.columns, before.columns if before else [None] * len(now.columns), strict=True):
        drawings.append(_category(part, earlier) if part.values else _spread(part, earlier))
        if part.unused:
            some = ", ".join(part.unused[:8]) + (f" and {len(part.unused) - 8} more" if len(part.unused) > 8 else "")
            limit = "Whether the data lack them: what is rare is lost first."
            rows.append((f"{part.name}: no record has", some, limit))
        if part.impossible:
            rows.append((f"{part.name}: impossible values", share_text(part.impossible), "Which fault made them."))
    text = (
        "How common each value is. Numbers are shown as they are encoded, from their lowest (-1) to their highest (1)."
    )
    return Section("Columns", text, drawings, rows=rows)


def _spread(part: ColumnPart, before: ColumnPart | None) -> Drawing:
    """Return the outline of a number's histogram."""
    edges = np.repeat(np.linspace(-1.0, 1.0, BINS + 1), 2).tolist()
    first, second = (
        list(zip(edges, [0.0, *np.repeat(some.shares, 2).tolist(), 0.0], strict=True)) if some else ()
        for some in (part, before)
    )
    return two_lines(
        (THIS, TRUSTED),
        first,
        second,
        heading=part.name,
        description=f"How the values of {part.name} are spread, in {BINS} steps from -1 to 1.",
        x_title="value",
        y_title="share of the records",
    )


def _category(part: ColumnPart, before: ColumnPart | None) -> Drawing:
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
