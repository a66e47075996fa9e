"""Alarms: a fault of the data, noticed in a released set without looking at the data.

With a trusted release of the same kind of generator, trained before the fault, a new release is compared with it. With
none, only what contradicts the set itself or a declared expectation is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tacita import _check
from tacita.synthesis.description import ColumnPart, Statistics, describe, thinned
from tacita.synthesis.faults import FEWEST, MOST, Floats, fault_shares, fit_judge, small
from tacita.synthesis.neighbours import nearest
from tacita.synthesis.students import Labelled

TOLERANCE = 0.1
UNLIKE = 0.8  # share of images like nothing known, above which naming a fault would be guessing
CLOSE = 0.75  # distance to the nearest sample, over that in the trusted release
RARE = 0.2  # of what was to be expected: less, and a class is missing
COMMON = 0.02  # share of the trusted records with a value, above which its absence is reported
_FAMILIES = 5  # of tests, which share the chance of a false alarm

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
    samples: Labelled,
    classes: Sequence[str],
    *,
    reference: Labelled | None = None,
    features: Sequence[str] = (),
    expected: Expected | None = None,
    false_alarms: float = 0.05,
    tolerance: float = TOLERANCE,
    rng: int | np.random.Generator = 0,
) -> tuple[Alarm, ...]:
    """Return what should make a person look at a released set.

    Args:
        samples: Inputs and labels of the release.
        classes: The names of the classes.
        reference: Inputs and labels of an earlier release that is trusted, of the same kind of generator.
        features: For tables: the features' names.
        expected: What is publicly known about the data. Its shares come before those of the reference.
        false_alarms: The chance of an alarm although the release was drawn just as the reference was.
        tolerance: Changes below this share are not reported: two trainings of one generator differ, too.
        rng: Where the resampling comes from. The default gives the same answer every time.

    Returns:
        The alarms; none if nothing stands out.

    Raises:
        ValueError: If shapes, labels or shares do not fit.

    Guarantee:
        About privacy none is needed: only released records are read. About false alarms, the rate is that of two
        releases drawn alike. A retrained generator differs by more, which `tolerance` allows for without proof.
    """
    level = _check.probability("false_alarms", false_alarms) / _FAMILIES
    least = _check.probability("tolerance", tolerance)
    known = expected or Expected()
    if reference is not None and samples[0].shape[1:] != reference[0].shape[1:]:
        shapes = [tuple(some[0].shape[1:]) for some in (samples, reference)]
        raise ValueError(f"samples and reference must hold records of one shape, got {shapes[0]} and {shapes[1]}.")
    now = describe(samples, classes, features=features)
    before = None if reference is None else describe(reference, classes, features=features)
    found = [*_impossible(now), *_classes(now, before, known, level, least)]
    if now.overall is None:
        return (*found, *_columns(now, before, level, least))
    if reference is None:
        return (*found, *_background(samples[0], known, least), *_copies(now, least))
    draws = np.random.default_rng(rng)
    changed = list(_changed(samples, reference, level, least, draws))
    if not changed:  # a fault of all images would make their classes hard to recognise
        changed += _unrecognised(samples, reference, classes, level, draws)
    return (*found, *changed, *_copies(now, least), *_closer(samples, reference, classes, level))


def _impossible(now: Statistics) -> Iterator[Alarm]:
    if now.impossible > 0.0:
        text = f"{_percent(now.impossible)} of the records hold a value that no record can have."
        yield Alarm(kind="impossible", text=text, value=now.impossible, limit=0.0)


def _classes(now: Statistics, before: Statistics | None, known: Expected, level: float, least: float) -> list[Alarm]:
    """Report missing classes; if there are none, shares that moved."""
    count = len(now.classes)
    if known.shares and len(known.shares) != count:
        raise ValueError(f"expected.shares must give {count} shares, one for each class, got {len(known.shares)}.")
    shares = np.array(known.shares or ([part.share for part in before.classes] if before else []))
    found = list(_missing(now, shares, level))
    if found or not len(shares):
        return found
    sizes = (now.size,) if known.shares or before is None else (now.size, before.size)
    return list(_moved(now, shares, sizes, level, least))


def _missing(now: Statistics, shares: Floats, level: float) -> Iterator[Alarm]:
    """Report classes with far fewer samples than expected; without expectations, those with none."""
    count = len(now.classes)
    for part, share in zip(now.classes, shares if len(shares) else np.full(count, 1.0 / count), strict=True):
        few = part.share <= RARE * share if len(shares) else part.count == 0
        if few and stats.binom.cdf(part.count, now.size, share) < level / count:
            wanted = f"{share * now.size:,.0f} were to be expected{'' if len(shares) else ' if all were as common'}"
            text = f"Class {part.name} has {part.count} of the {now.size:,} samples; {wanted}."
            yield Alarm(kind="missing", about=part.name, text=text, value=part.share, limit=RARE * float(share))


def _moved(now: Statistics, shares: Floats, sizes: tuple[int, ...], level: float, least: float) -> Iterator[Alarm]:
    """Report shares of classes that moved farther than chance and the tolerance allow, and which moved most."""
    found = np.array([part.share for part in now.classes])
    most = int(np.abs(found - shares).argmax())
    distance, limit = _distance(found, shares), max(least, _by_chance(shares, sizes, level))
    if distance > limit:
        name, new, old = now.classes[most].name, _percent(float(found[most])), _percent(float(shares[most]))
        text = (
            f"{_percent(distance)} of the samples would have to change their class to give the expected shares; most "
            f"of all {name}, now {new}, expected {old}."
        )
        yield Alarm(kind="shares", about=name, text=text, value=distance, limit=limit)


def _distance(shares: Floats, others: Floats) -> float:
    """Return the share of records that would have to change to get from one to the other (total variation)."""
    return 0.5 * float(np.abs(shares - others).sum())


def _by_chance(shares: Floats, sizes: tuple[int, ...], level: float) -> float:
    """Return what the distance of sets drawn alike exceeds with a chance of at most `level`.

    Its mean, by Cauchy-Schwarz, plus what McDiarmid's inequality allows: one record moves it by 1 / size.
    """
    spread = sum(1.0 / size for size in sizes)
    mean = 0.5 * float(np.sqrt(shares * (1.0 - shares) * spread).sum())
    return mean + float(np.sqrt(0.5 * spread * np.log(1.0 / level)))


def _changed(
    samples: Labelled, reference: Labelled, level: float, least: float, rng: np.random.Generator
) -> Iterator[Alarm]:
    """Report faults of the images that too many samples have; or that most are like nothing known."""
    judged = fault_shares(samples, reference, chance=level, rng=rng)
    if judged is None:
        return
    if judged.unlike > UNLIKE:
        text = f"{_percent(judged.unlike)} of the images are like nothing in the trusted release, faulty or not."
        yield Alarm(kind="unlike", text=text, value=judged.unlike, limit=UNLIKE)
        return
    limit = max(least, judged.by_chance)
    for fault, share in judged.shares:
        if share > limit:
            text = f"About {_percent(share)} of the images look {fault.words}, compared with the trusted release."
            yield Alarm(kind=fault.kind, text=text, value=share, limit=limit)


def _unrecognised(
    samples: Labelled, reference: Labelled, classes: Sequence[str], level: float, rng: np.random.Generator
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
        limit = 0.5 * float(before.mean())
        if right.mean() < limit and stats.binom.cdf(right.sum(), len(right), before.mean()) < level / len(usable):
            name, now, was = str(classes[c]), _percent(float(right.mean())), _percent(float(before.mean()))
            text = (
                f"Only {now} of the samples of class {name} look like it did in the trusted release; {was} did there."
            )
            yield Alarm(kind="unrecognised", about=name, text=text, value=float(right.mean()), limit=limit)


def _copies(now: Statistics, least: float) -> Iterator[Alarm]:
    """Report classes whose samples nearly repeat each other."""
    for part in now.classes:
        if part.look is not None and part.count >= FEWEST and part.look.copies > least:
            text = f"{_percent(part.look.copies)} of the samples of class {part.name} nearly equal another one."
            yield Alarm(kind="collapsed", about=part.name, text=text, value=part.look.copies, limit=least)


def _closer(samples: Labelled, reference: Labelled, classes: Sequence[str], level: float) -> Iterator[Alarm]:
    """Report classes whose samples lie far closer together than in the trusted release."""
    for c, name in enumerate(classes):
        new, old = (some[0][some[1] == c] for some in (samples, reference))
        count = min(len(new), len(old), MOST)
        if count < FEWEST:
            continue
        near, usual = (_gaps(small(thinned(some, count))) for some in (new, old))
        ratio = float(np.median(near) / max(float(np.median(usual)), 1e-12))
        if ratio < CLOSE and stats.mannwhitneyu(near, usual, alternative="less").pvalue < level / len(classes):
            less = _percent(1.0 - ratio)
            text = f"Samples of class {name} differ {less} less from the most similar one than in the trusted release."
            yield Alarm(kind="collapsed", about=str(name), text=text, value=ratio, limit=CLOSE)


def _gaps(rows: Floats) -> Floats:
    """Return how far each row is from the nearest other."""
    return nearest(rows, rows, 1, same=True)[0][:, 0]


def _background(images: Tensor, known: Expected, least: float) -> Iterator[Alarm]:
    """Report images whose edges are not dark, or not light, where that was declared."""
    if known.background is None:
        return
    x = images.nan_to_num()
    edges = torch.cat([x[:, :, 0], x[:, :, -1], x[:, :, :, 0], x[:, :, :, -1]], 2).flatten(1).median(1).values
    wrong = float(((edges > 0.5) if known.background == "dark" else (edges < 0.5)).float().mean())
    if wrong > least:
        text = f"{_percent(wrong)} of the images do not have the {known.background} background that was declared."
        yield Alarm(kind="inverted", text=text, value=wrong, limit=least)


def _columns(now: Statistics, before: Statistics | None, level: float, least: float) -> Iterator[Alarm]:
    """Report columns of a table that never change, that lost values, or whose shares moved."""
    for place, part in enumerate(now.columns):
        earlier = before.columns[place] if before else None
        if part.constant and not (earlier and earlier.constant):
            text = f"Column {part.name} has the same value in every record."
            yield Alarm(kind="collapsed", about=part.name, text=text, value=1.0, limit=1.0)
        elif earlier and before:
            yield from _column(part, earlier, (now.size, before.size), level / (2 * len(now.columns)), least)


def _column(
    part: ColumnPart, earlier: ColumnPart, sizes: tuple[int, int], level: float, least: float
) -> Iterator[Alarm]:
    was = dict(zip(earlier.values, earlier.shares, strict=False))
    lost = [value for value in part.unused if was[value] >= COMMON and (1.0 - was[value]) ** sizes[0] < level]
    if lost:
        gone = sum(was[value] for value in lost)
        text = f"Column {part.name} lost what {_percent(gone)} of the trusted records have: {', '.join(lost)}."
        yield Alarm(kind="missing", about=part.name, text=text, value=0.0, limit=COMMON)
        return
    new, old = (np.array([*some.shares, some.absent]) for some in (part, earlier))
    distance, limit = _distance(new, old), max(least, _by_chance(old, sizes, level))
    if distance > limit:
        text = (
            f"{_percent(distance)} of the records would need another {part.name} to give the trusted release's shares."
        )
        yield Alarm(kind="column", about=part.name, text=text, value=distance, limit=limit)


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f}%" if share >= 0.095 or share == 0.0 else f"{100.0 * share:.2g}%"
