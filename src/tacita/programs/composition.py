"""What releases cost together, when one record is replaced by another, or a person with several rows comes or goes.

A record may stay in the part of a release, or enter or leave it. What the noise must hide differs, so each release has
two costs, and the whole program costs the worst sum over where the record was and where it goes. A person's rows all
enter or leave, and may lie in several parts: the program costs the worst sum over where they lie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import nlargest
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, cast

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
_SPREADS = 1000  # ways to spread a person's rows over cells, of which every one is looked at


@dataclass(frozen=True)
class Cost:
    """An exact (epsilon, delta)."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"epsilon {text(self.epsilon)}" + (f", delta {text(self.delta)}" if self.delta else "")


@dataclass(frozen=True)
class Charge:
    """What one release costs a record that stays in its part, and one that enters or leaves it; a person's rows do."""

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
    epsilon and delta each. If there are too many cells, everything is added up. Where people come and go, each of a
    person's rows has a cell of its own.
    """
    cells = _memberships([release.query.conditions for release in releases])
    if (rows := _rows(releases)) is not None:
        return _total_of_rows(releases, rows, cells)
    charges = [release.charge for release in releases]
    return Cost(
        _worst([c.stay.epsilon for c in charges], [c.cross.epsilon for c in charges], cells),
        _worst([c.stay.delta for c in charges], [c.cross.delta for c in charges], cells),
    )


def guarantee_of(releases: Sequence[PlannedRelease]) -> Guarantee:
    """Return what releases promise together, by their whole curves, rounded up: at most the sum of what they cost.

    All releases are fixed before data are read, so their privacy losses are independent and their curves compose. The
    curve is the largest over where the record was and where it goes; its delta is the one that the costs add up to.
    Where people come and go, it is the largest over where a person's rows lie.
    """
    from tacita.profile import Profile

    added = total(releases)
    epsilon, delta = max(SMALLEST_EPSILON, rounded_up(added.epsilon)), rounded_up(added.delta)
    profile = _composed(releases) & Profile.of_pair(epsilon, delta)
    found = profile.epsilon(delta) * (1.0 + 1e-9)
    epsilon = max(SMALLEST_EPSILON, found) if found < epsilon * (1.0 - 1e-9) else epsilon
    rows = _rows(releases)
    size = assume("public-size") if rows is None else assume("rows-capped", rows=rows)
    return Guarantee(
        kind="worst_case",
        epsilon=epsilon,
        delta=delta,
        method="checked composition of curves",
        neighbours="replace_one" if rows is None else "add_remove",
        unit="record" if rows is None else "person",
        sampling="none",
        assumptions=(size, assume("pure-functions"), assume("released-results-only")),
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
    """Return which releases may change for one record or person, as multisets of which every one is in one of these."""

    def kind(number: int, cost: Cost) -> _Kind:
        release = releases[number]
        return release.mechanism, release.query.statistic, cost

    def counted(changed: list[_Kind]) -> Counter[_Kind]:
        return Counter(one for one in changed if one[2] != Cost())

    rows = _rows(releases)
    largest = [kind(i, release.charge.largest) for i, release in enumerate(releases)]
    cells = _memberships([release.query.conditions for release in releases])
    if cells is None:
        return [counted(largest)]
    fullest: Counter[_Kind] = Counter()
    for cell in cells:
        fullest |= counted([largest[i] for i in cell])
    # The cells of a person's rows, or both cells of a replacement, are at most the fullest, for each kind.
    in_cells = Counter({one: (rows or 2) * count for one, count in fullest.items()}) & counted(largest)
    if (ways := _ways(releases, cells, rows)) is None:
        return [in_cells]
    found: list[Counter[_Kind]] = []
    for costs in ways:
        new = counted([kind(i, cost) for i, cost in costs])
        if new and not any(new <= old for old in found):
            found = [old for old in found if not old <= new] + [new]
    if len(found) <= _COMPOSED:
        return found
    if rows is not None:
        return [in_cells]
    together: Counter[_Kind] = Counter()
    for placed in found:
        together |= placed
    return [together]


def _ways(
    releases: Sequence[PlannedRelease], cells: set[frozenset[int]], rows: int | None
) -> list[list[tuple[int, Cost]]] | None:
    """Return what changed releases cost, for each way of a record or a person's rows to lie; None if too many."""
    if rows is not None:
        spreads = _spreads(cells, rows, len(releases))
        if spreads is None:
            return None
        return [[(i, _cost_of_rows(releases[i], own)) for i, own in enumerate(spread)] for spread in spreads]
    if len(cells) > _PLACED:
        return None
    stay, cross = ([getattr(release.charge, what) for release in releases] for what in ("stay", "cross"))
    pairs = combinations_with_replacement(cells, 2)
    return [[(i, stay[i]) for i in one & new] + [(i, cross[i]) for i in one ^ new] for one, new in pairs]


def _rows(releases: Sequence[PlannedRelease]) -> int | None:
    """Return how many rows of a person count; None if one record is replaced by another."""
    return releases[0].query.rows if releases else None


def _cost_of_rows(release: PlannedRelease, own: int) -> Cost:
    """Return what a release costs a person with so many rows in its part, of all that count."""
    whole, statistic = release.charge.cross, release.query.statistic
    if own and release.mechanism.is_proportional(statistic):
        return Cost(whole.epsilon * own / cast("int", statistic.rows))
    return whole if own else Cost()


def _total_of_rows(releases: Sequence[PlannedRelease], rows: int, cells: set[frozenset[int]] | None) -> Cost:
    """Return what all releases cost the person whose rows lie worst.

    If there are too many ways to spread the rows: proportional costs are worst with all rows in one cell; of the others
    each row pays for those of its cell, those of every cell are paid once, and no more than all.
    """
    costs = [[_cost_of_rows(release, own) for own in range(rows + 1)] for release in releases]
    if (spreads := _spreads(cells, rows, len(releases))) is not None:
        spent = [[cost[own] for cost, own in zip(costs, spread, strict=True)] for spread in spreads]
        epsilons, deltas = ([_sum(getattr(c, what) for c in one) for one in spent] for what in ("epsilon", "delta"))
        return Cost(max(epsilons), max(deltas))
    everywhere = frozenset(range(len(releases)))
    placed = cells or {everywhere}
    shared = frozenset({i for i in everywhere if releases[i].mechanism.is_proportional(releases[i].query.statistic)})
    always = everywhere.intersection(*placed) - shared

    def most(costs: list[Fraction]) -> Fraction:
        def summed(chosen: frozenset[int]) -> Fraction:
            return _sum(costs[i] for i in chosen)

        dearest = _sum(nlargest(rows, [summed(cell - shared - always) for cell in placed]))
        together = max(summed(cell & shared) for cell in placed)
        return together + min(summed(everywhere - shared), summed(always) + dearest)

    return Cost(most([cost[rows].epsilon for cost in costs]), most([cost[rows].delta for cost in costs]))


def _spreads(cells: set[frozenset[int]] | None, rows: int, number: int) -> set[tuple[int, ...]] | None:
    """Return how many of a person's rows lie in each release's part, for every way to spread them; None if too many."""
    if cells is None:
        return None
    fullest = [cell for cell in cells if not any(cell < other for other in cells)]
    if math.comb(len(fullest) + rows - 1, rows) > _SPREADS:
        return None
    ways = combinations_with_replacement(fullest, rows)
    return {tuple(sum(i in cell for cell in way) for i in range(number)) for way in ways}


def _sum(costs: Iterable[Fraction]) -> Fraction:
    return sum(costs, Fraction(0))


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
