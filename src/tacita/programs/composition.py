"""What releases cost together, when one record is replaced by another.

A record may stay in the part of a release, or enter or leave it. What the noise must hide differs, so each release has
two costs, and the whole program costs the worst sum over where the record was and where it goes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from tacita._check import PrivacyError
from tacita.assumptions import assume
from tacita.guarantee import SMALLEST_EPSILON, Guarantee

if TYPE_CHECKING:
    from tacita.posterior.mechanisms import Mechanism, Statistic
    from tacita.profile import Profile
    from tacita.programs.columns import Condition
    from tacita.programs.handles import PlannedRelease
    from tacita.programs.queries import Query

LARGEST_POPULATION = 1024
_PLACED = 32  # cells, of which every pair is looked at for curves
_COMPOSED = 8  # different multisets of releases that are composed by their curves


@dataclass(frozen=True)
class Cost:
    """An exact (epsilon, delta)."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"epsilon {text(self.epsilon)}" + (f", delta {text(self.delta)}" if self.delta else "")


@dataclass(frozen=True)
class Charge:
    """What one release costs a record that stays in its part, and one that enters or leaves it."""

    stay: Cost
    cross: Cost

    @property
    def largest(self) -> Cost:
        """The release by itself."""
        return Cost(max(self.stay.epsilon, self.cross.epsilon), max(self.stay.delta, self.cross.delta))


def charge(query: Query, mechanism: Mechanism) -> Charge:
    """Return what a release costs: the larger change costs the whole budget of the mechanism.

    Proportional mechanisms cost the smaller change in proportion, others everything unless nothing changes.
    """
    moved = query.sensitivity
    epsilon, delta = exact(mechanism.epsilon), exact(mechanism.delta)
    proportional = mechanism.is_proportional(query.statistic)

    def cost(change: int) -> Cost:
        if proportional:
            return Cost(epsilon * change / moved.larger)
        return Cost(epsilon, delta) if change else Cost()

    return Charge(cost(moved.stay), cost(moved.cross))


def total(releases: Sequence[PlannedRelease]) -> Cost:
    """Return what all releases cost the worst-placed record.

    The record's cell of the population (its values in the columns of conditions) is v before and w after. A release
    costs `stay` if both lie in its part, `cross` if one does, nothing if none does; v and w are the worst ones, for
    epsilon and delta each. If there are too many cells, everything is added up.
    """
    cells = _memberships([release.query.conditions for release in releases])
    charges = [release.charge for release in releases]
    return Cost(
        _worst([c.stay.epsilon for c in charges], [c.cross.epsilon for c in charges], cells),
        _worst([c.stay.delta for c in charges], [c.cross.delta for c in charges], cells),
    )


def guarantee_of(releases: Sequence[PlannedRelease]) -> Guarantee:
    """Return what releases promise together, by their whole curves, rounded up: at most the sum of what they cost.

    All releases are fixed before data are read, so their privacy losses are independent and their curves compose. The
    curve is the largest over where the record was and where it goes; its delta is the one that the costs add up to.
    """
    from tacita.profile import Profile

    added = total(releases)
    epsilon, delta = max(SMALLEST_EPSILON, rounded_up(added.epsilon)), rounded_up(added.delta)
    profile = _composed(releases) & Profile.of_pair(epsilon, delta)
    found = profile.epsilon(delta) * (1.0 + 1e-9)
    epsilon = max(SMALLEST_EPSILON, found) if found < epsilon * (1.0 - 1e-9) else epsilon
    return Guarantee(
        kind="worst_case",
        epsilon=epsilon,
        delta=delta,
        method="checked composition of curves",
        neighbours="replace_one",
        sampling="none",
        assumptions=tuple(map(assume, ("public-size", "pure-functions", "released-results-only"))),
        publishable=True,
        profile=profile,
    )


_Kind = tuple["Mechanism", "Statistic", Cost]  # what has one curve: a mechanism on a statistic, at a cost


def _composed(releases: Sequence[PlannedRelease]) -> Profile:
    import numpy as np

    from tacita.composition import compose
    from tacita.profile import Profile

    curves = [compose([(_curve(kind), count) for kind, count in placed.items()]) for placed in _placements(releases)]
    if not curves:
        return Profile((0.0,), (0.0,))
    if len(curves) == 1:
        return curves[0]
    at = np.unique(np.concatenate([curve.epsilons for curve in curves]))
    return Profile.of_curve(lambda eps: np.max([curve.delta(eps) for curve in curves], axis=0), at).thinned()


@lru_cache(maxsize=256)
def _curve(kind: _Kind) -> Profile:
    """Return one release's curve: its certificate's for the larger change, and what its cost says about this one."""
    from tacita.posterior.plans import plan_release
    from tacita.profile import Profile

    mechanism, statistic, cost = kind
    said = Profile.of_pair(rounded_up(cost.epsilon), rounded_up(cost.delta))
    try:
        return plan_release(mechanism, statistic).certificate.profile & said
    except PrivacyError:  # it cannot be certified, so it will not run
        return said


def _placements(releases: Sequence[PlannedRelease]) -> list[Counter[_Kind]]:
    """Return which releases a record's replacement may change, as multisets of which every one is in one of these."""

    def kind(number: int, cost: Cost) -> _Kind:
        release = releases[number]
        return release.mechanism, release.query.statistic, cost

    def counted(changed: list[_Kind]) -> Counter[_Kind]:
        return Counter(one for one in changed if one[2] != Cost())

    largest = [kind(i, release.charge.largest) for i, release in enumerate(releases)]
    cells = _memberships([release.query.conditions for release in releases])
    if cells is None:
        return [counted(largest)]
    if len(cells) > _PLACED:  # both cells of a replacement are at most the fullest, for each kind
        fullest: Counter[_Kind] = Counter()
        for cell in cells:
            fullest |= counted([largest[i] for i in cell])
        return [(fullest + fullest) & counted(largest)]
    found: list[Counter[_Kind]] = []
    for before, after in combinations_with_replacement(cells, 2):
        stay = [kind(i, releases[i].charge.stay) for i in before & after]
        new = counted(stay + [kind(i, releases[i].charge.cross) for i in before ^ after])
        if new and not any(new <= old for old in found):
            found = [old for old in found if not old <= new] + [new]
    if len(found) <= _COMPOSED:
        return found
    together: Counter[_Kind] = Counter()
    for placed in found:
        together |= placed
    return [together]


def exact(value: float) -> Fraction:
    """Return the number that a person wrote, such as 1/10 for 0.1: three times 0.1 fit into 0.3.

    Examples:
        >>> 3 * exact(0.1) == exact(0.3)
        True
    """
    return Fraction(repr(float(value)))


def rounded_up(value: Fraction) -> float:
    """Return an exact number as a float that is written at least as large."""
    near = float(value)
    while exact(near) < value:
        near = math.nextafter(near, math.inf)
    return near


def text(value: Fraction, digits: int = 6, rounded: Callable[[Fraction], int] = math.ceil) -> str:
    """Return a cost for people.

    Args:
        value: The exact cost.
        digits: How many digits are kept.
        rounded: How the last one is rounded: up, unless it is what may be spent.
    """
    if not value:
        return "0"
    scale = Fraction(10) ** (digits - 1 - math.floor(math.log10(value)))
    return f"{float(rounded(value * scale) / scale):.{digits}g}"


def _memberships(parts: Sequence[Sequence[Condition]]) -> set[frozenset[int]] | None:
    """Return, for every cell of the population, which parts it lies in; None if there are too many."""
    everywhere = frozenset(range(len(parts)))
    cells = {everywhere}
    for size, places in _conditions_by_column(parts):
        free = everywhere.difference(places)
        by_value: dict[int, list[int]] = {}
        for number, allowed in places.items():
            for place in allowed:
                by_value.setdefault(place, []).append(number)
        choices = {free.union(numbers) for numbers in by_value.values()}
        if len(by_value) < size:
            choices.add(free)
        if len(choices) <= LARGEST_POPULATION:
            cells = {cell & choice for cell in cells for choice in choices}
        if max(len(choices), len(cells)) > LARGEST_POPULATION:
            return None
    return cells


def _conditions_by_column(parts: Sequence[Sequence[Condition]]) -> list[tuple[int, dict[int, frozenset[int]]]]:
    """Return each column's number of values, and which of them each part allows if it has a condition there."""
    columns: dict[str | int, tuple[int, dict[int, frozenset[int]]]] = {}
    for number, conditions in enumerate(parts):
        for condition in conditions:
            column = condition.column
            key = column.name if column.source is None else id(column)
            _, places = columns.setdefault(key, (len(column.labels), {}))
            places[number] = places.get(number, condition.places) & condition.places
    return list(columns.values())


def _worst(stay: Sequence[Fraction], cross: Sequence[Fraction], cells: set[frozenset[int]] | None) -> Fraction:
    scale = math.lcm(*(cost.denominator for cost in (*stay, *cross)))
    within, moving = [int(c * scale) for c in stay], [int(c * scale) for c in cross]
    most = [max(pair) for pair in zip(within, moving, strict=True)]
    if cells is None:
        return Fraction(sum(most), scale)
    bounded = sorted(((sum(most[i] for i in cell), cell) for cell in cells), key=lambda pair: -pair[0])
    leaving = {cell: sum(moving[i] for i in cell) for cell in cells}
    saved = [2 * out - kept for kept, out in zip(within, moving, strict=True)]  # by a record that does not leave
    worst = 0
    for position, (bound, before) in enumerate(bounded):
        if 2 * bound <= worst:
            break
        for other, after in bounded[position:]:
            if bound + other <= worst:
                break
            worst = max(worst, leaving[before] + leaving[after] - sum([saved[i] for i in before & after]))
    return Fraction(worst, scale)
