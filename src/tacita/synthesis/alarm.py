"""Alarms: a fault of the data, noticed in a released set without looking at the data.

With a trusted release of the same kind of generator, trained before the fault, a new release is compared with it. With
none, only what contradicts the set itself or a declared expectation is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tacita.data import Dataset
from tacita.synthesis.description import ColumnPart, Statistics, border, describe, thinned
from tacita.synthesis.faults import FEWEST, MOST, fault_shares, fit_judge, small
from tacita.synthesis.neighbours import nearest
from tacita.synthesis.pages import share_text
from tacita.synthesis.students import Labelled, labelled

if TYPE_CHECKING:
    from tacita._check import Floats

FALSE_ALARMS = 0.05  # the chance of an alarm although the release was drawn just as the trusted one was
TOLERANCE = 0.1  # changes below this share are not reported: two trainings of one generator differ, too
UNLIKE = 0.8  # share of images like nothing known, above which naming a fault would be guessing
CLOSE = 0.75  # distance to the nearest sample, over that in the trusted release
RARE = 0.2  # of what was to be expected: less, and a class is missing
COMMON = 0.02  # share of the trusted records with a value, above which its absence is reported
_LEVEL = FALSE_ALARMS / 5  # for each of five families of tests

CANNOT = {
    "rotated": "Whether the data were turned or the generator learned it so; images that look alike both ways hide it.",
    "mirrored": "Whether the data were mirrored or the generator learned it so; symmetric classes hide it.",
    "inverted": "Whether the data were inverted, or only what was released.",
    "cropped": "Parts lost in other ways than a blank third or an enlarged middle.",
    "unlike": "What differs: a generator trained longer, shorter or otherwise is enough. No fault can be named.",
    "missing": "Whether the data lack it or the generator dropped it: a collapsed generator forgets classes, too.",
    "shares": "Whether the data changed or the generator, which may prefer what is common.",
    "unrecognised": "Whether its data are missing, its labels are mixed up, or the generator failed to learn it.",
    "collapsed": "Whether the data hold copies or the generator repeats itself; the latter is common.",
    "impossible": "Which fault made them: some generators leave the range by themselves.",
    "column": "Whether the data changed or the generator. Faults that leave every column's shares alone stay hidden.",
}


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Something that should make a person look.

    Attributes:
        kind: One of `CANNOT`.
        about: The class or column; empty for the whole set.
        text: What was noticed, in plain words.
        value: The figure that raised it.
        limit: What it was compared with.
    """

    kind: str
    about: str = ""
    text: str
    value: float
    limit: float

    @property
    def heading(self) -> str:
        """Its kind, and the class or column."""
        return self.kind.capitalize() + (f": {self.about}" if self.about else "")

    @property
    def cannot_show(self) -> str:
        """What cannot be concluded from it."""
        return CANNOT[self.kind]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is publicly known about the data, to be checked where there is no trusted release.

    Attributes:
        background: Whether images are dark or light at their edges; None if neither.
        shares: The share of each class; empty if not known.
    """

    background: Literal["dark", "light"] | None = None
    shares: tuple[float, ...] = ()


def alarms(
    release: Dataset,
    *,
    reference: Dataset | None = None,
    expected: Expected | None = None,
    rng: int | np.random.Generator = 0,
) -> tuple[Alarm, ...]:
    """Return what should make a person look at a released set.

    Args:
        release: The released set, as `released_dataset` reads it.
        reference: An earlier release that is trusted, of the same kind of generator.
        expected: What is publicly known about the data. Its shares come before those of the reference.
        rng: Where the resampling comes from. The default gives the same answer every time.

    Returns:
        The alarms; none if nothing stands out.

    Raises:
        ValueError: If the two sets do not hold the same things, or the shares do not fit.

    Guarantee:
        About privacy none is needed: only released records are read. About false alarms, the rate of `FALSE_ALARMS` is
        that of two releases drawn alike. A retrained generator differs by more, which `TOLERANCE` allows for without
        proof.
    """
    known, now = expected or Expected(), describe(release)
    if reference is not None:
        _require_alike(release, reference)
    before = None if reference is None else describe(reference)
    found = _classes(now, before, known)
    if now.impossible > 0.0:
        text = f"{share_text(now.impossible)} of the records hold a value that no record can have."
        found.insert(0, Alarm(kind="impossible", text=text, value=now.impossible, limit=0.0))
    if now.overall is None:
        return (*found, *_columns(now, before))
    samples, draws = labelled(release), np.random.default_rng(rng)
    if reference is None:
        return (*found, *_background(samples[0], known), *_copies(now))
    trusted, names = labelled(reference), release.classes or ()
    changed = list(_changed(samples, trusted, draws))
    if not changed:  # a fault of all images would make their classes hard to recognise
        changed += _unrecognised(samples, trusted, names, draws)
    return (*found, *changed, *_copies(now), *_closer(samples, trusted, names))


def _require_alike(release: Dataset, reference: Dataset) -> None:
    """Refuse to compare releases whose records, classes or columns are not the same."""
    parts: dict[str, Callable[[Dataset], Sequence[object]]] = {
        "shapes of a record": lambda data: [data.inputs.shape[1:]],
        "classes": lambda data: [repr(name) for name in data.classes or ()],
        "columns": lambda data: [(c.name, c.domain) for c in data.schema.columns] if data.schema else [],
    }
    for what, read in parts.items():
        for new, old in zip_longest(read(release), read(reference), fillvalue="nothing"):
            if new != old:
                raise ValueError(
                    f"These two releases cannot be compared: their {what} differ, {new} in the new one and {old} in "
                    "the trusted one."
                )


def _classes(now: Statistics, before: Statistics | None, known: Expected) -> list[Alarm]:
    """Report classes with far fewer samples than expected, or with none; if there are none such, shares that moved."""
    count = len(now.classes)
    if known.shares and len(known.shares) != count:
        raise ValueError(f"expected.shares must give {count} shares, one for each class, got {len(known.shares)}.")
    wanted = known.shares or (tuple(part.share for part in before.classes) if before else ())
    shares, found = np.array(wanted or [1.0 / count] * count), []
    for part, share in zip(now.classes, shares.tolist(), strict=True):
        few = part.share <= RARE * share if wanted else part.count == 0
        if few and stats.binom.cdf(part.count, now.size, share) < _LEVEL / count:
            were = f"{share * now.size:,.0f} were to be expected{'' if wanted else ' if all were as common'}"
            text = f"Class {part.name} has {part.count} of the {now.size:,} samples; {were}."
            found.append(Alarm(kind="missing", about=part.name, text=text, value=part.share, limit=RARE * share))
    if found or not wanted:
        return found
    sizes = (now.size,) if known.shares or before is None else (now.size, before.size)
    new = np.array([part.share for part in now.classes])
    distance, limit = _moved(new, shares, sizes, _LEVEL)
    if distance > limit:
        most = int(np.abs(new - shares).argmax())
        name = now.classes[most].name
        text = (
            f"{share_text(distance)} of the samples would have to change their class to give the expected shares; most "
            f"of all {name}, now {share_text(new[most])}, expected {share_text(shares[most])}."
        )
        found.append(Alarm(kind="shares", about=name, text=text, value=distance, limit=limit))
    return found


def _moved(shares: Floats, others: Floats, sizes: tuple[int, ...], level: float) -> tuple[float, float]:
    """Return the share of records that would have to change (total variation), and what it is allowed to be.

    Sets drawn alike exceed the limit with a chance of at most `level`: their mean distance, by Cauchy-Schwarz, plus
    what McDiarmid's inequality allows, as one record moves it by 1 / size.
    """
    spread = sum(1.0 / size for size in sizes)
    mean = 0.5 * float(np.sqrt(others * (1.0 - others) * spread).sum())
    limit = mean + float(np.sqrt(0.5 * spread * np.log(1.0 / level)))
    return 0.5 * float(np.abs(shares - others).sum()), max(TOLERANCE, limit)


def _changed(samples: Labelled, reference: Labelled, rng: np.random.Generator) -> Iterator[Alarm]:
    """Report faults of the images that too many samples have; or that most are like nothing known."""
    judged = fault_shares(samples, reference, chance=_LEVEL, rng=rng)
    if judged is None:
        return
    if judged.unlike > UNLIKE:
        text = f"{share_text(judged.unlike)} of the images are like nothing in the trusted release, faulty or not."
        yield Alarm(kind="unlike", text=text, value=judged.unlike, limit=UNLIKE)
        return
    limit = max(TOLERANCE, judged.by_chance)
    for fault, share in judged.shares:
        if share > limit:
            text = f"{share_text(share)} of the images look {fault.words}, compared with the trusted release."
            yield Alarm(kind=fault.kind, text=text, value=share, limit=limit)


def _unrecognised(
    samples: Labelled, reference: Labelled, classes: Sequence[str], rng: np.random.Generator
) -> Iterator[Alarm]:
    """Report classes whose samples no longer look like the class in the trusted release."""
    order = torch.from_numpy(rng.permutation(len(reference[0])))
    trusted, labels = reference[0][order], reference[1][order]
    usable = [c for c in range(len(classes)) if int((labels == c).sum()) >= 2 * FEWEST]
    if len(usable) < 2:
        return
    halves = [trusted[labels == c][: 2 * MOST].chunk(2) for c in usable]
    judge = fit_judge([small(half) for half, _ in halves])
    for place, c in enumerate(usable):
        new = thinned(samples[0][samples[1] == c], MOST)
        if not len(new):
            continue
        right, before = (judge(small(some)).argmax(1) == place for some in (new, halves[place][1]))
        now, was = float(right.mean()), float(before.mean())
        if now < 0.5 * was and stats.binom.cdf(right.sum(), len(right), was) < _LEVEL / len(usable):
            text = (
                f"Only {share_text(now)} of the samples of class {classes[c]} look like it did in the trusted release; "
                f"{share_text(was)} did there."
            )
            yield Alarm(kind="unrecognised", about=classes[c], text=text, value=now, limit=0.5 * was)


def _copies(now: Statistics) -> Iterator[Alarm]:
    """Report classes whose samples nearly repeat each other."""
    for part in now.classes:
        if part.look is not None and part.count >= FEWEST and part.look.copies > TOLERANCE:
            text = f"{share_text(part.look.copies)} of the samples of class {part.name} nearly equal another one."
            yield Alarm(kind="collapsed", about=part.name, text=text, value=part.look.copies, limit=TOLERANCE)


def _closer(samples: Labelled, reference: Labelled, classes: Sequence[str]) -> Iterator[Alarm]:
    """Report classes whose samples lie far closer together than in the trusted release."""
    for c, name in enumerate(classes):
        new, old = (some[0][some[1] == c] for some in (samples, reference))
        count = min(len(new), len(old), MOST)
        if count < FEWEST:
            continue
        rows = [small(thinned(some, count)) for some in (new, old)]
        near, usual = (nearest(some, some, 1, same=True)[0][:, 0] for some in rows)
        ratio = float(np.median(near) / max(float(np.median(usual)), 1e-12))
        if ratio < CLOSE and stats.mannwhitneyu(near, usual, alternative="less").pvalue < _LEVEL / len(classes):
            less = share_text(1.0 - ratio)
            text = f"Samples of class {name} differ {less} less from the most similar one than in the trusted release."
            yield Alarm(kind="collapsed", about=name, text=text, value=ratio, limit=CLOSE)


def _background(images: Tensor, known: Expected) -> Iterator[Alarm]:
    """Report images whose edges are not dark, or not light, where that was declared."""
    if known.background is None:
        return
    edges = border(images.nan_to_num()).median(1).values
    wrong = float(((edges > 0.5) if known.background == "dark" else (edges < 0.5)).float().mean())
    if wrong > TOLERANCE:
        text = f"{share_text(wrong)} of the images do not have the {known.background} background that was declared."
        yield Alarm(kind="inverted", text=text, value=wrong, limit=TOLERANCE)


def _columns(now: Statistics, before: Statistics | None) -> Iterator[Alarm]:
    """Report columns of a table that never change, that lost values, or whose shares moved."""
    for place, part in enumerate(now.columns):
        earlier = before.columns[place] if before else None
        if part.constant and not (earlier and earlier.constant):
            text = f"Column {part.name} has the same value in every record."
            yield Alarm(kind="collapsed", about=part.name, text=text, value=1.0, limit=1.0)
        elif earlier and before:
            yield from _column(part, earlier, (now.size, before.size), _LEVEL / (2 * len(now.columns)))


def _column(part: ColumnPart, earlier: ColumnPart, sizes: tuple[int, int], level: float) -> Iterator[Alarm]:
    was = dict(zip(earlier.values, earlier.shares, strict=False))
    lost = [value for value in part.unused if was[value] >= COMMON and (1.0 - was[value]) ** sizes[0] < level]
    if lost:
        gone = share_text(sum(was[value] for value in lost))
        text = f"Column {part.name} lost what {gone} of the trusted records have: {', '.join(lost)}."
        yield Alarm(kind="missing", about=part.name, text=text, value=0.0, limit=COMMON)
        return
    new, old = (np.array([*some.shares, some.absent]) for some in (part, earlier))
    distance, limit = _moved(new, old, sizes, level)
    if distance > limit:
        moved = share_text(distance)
        text = f"{moved} of the records would need another {part.name} to give the trusted release's shares."
        yield Alarm(kind="column", about=part.name, text=text, value=distance, limit=limit)
