r"""Every followed record's own privacy curve δ_x(ε), by Fourier transform, all records at once.

A record that spent n_l steps at level l has, at frequency ω, the transform Π_l φ_l(ω)^{n_l}, where φ_l is
that of one step's gridded loss. Then δ_x(ε) = E (1 - e^{ε-L})_+ is a sum over frequencies (Parseval), so
no record needs an inverse transform; and because a sum of many steps is smooth, a few dozen frequencies
carry everything (`spectra`). Records of similar spread share a grid.

What is added to δ, so that the result is an upper bound: the loss that wraps around the window's upper end
(Chernoff, from the gridded losses themselves), the noise cut off beyond 9.75 standard deviations, the
frequencies left out, what stands in for many levels, and round-off. Between grid points of ε the chord
in e^ε is used: δ is convex there.
The derivation is in docs/explanation/theory/bounds.md#record-curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.accounting.levels import NORM_LEVELS, TOP
from tacita.accounting.losses import StepLoss, largest_loss, loss_spread, step_losses
from tacita.accounting.spectra import ROWS, Composed, log_mgfs, polynomials, products, window
from tacita.profile import Profile, chord, inverse_chord, most_missed

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_MAX_CELLS = 1 << 17  # of a group's grid
_FEW_RECORDS = 1000  # more of them share polynomials, and grids of fewer epsilons
_FALL, _FAR_FALL, _FAR = 0.4, 1.5, 26.0  # by how many nats δ falls between those epsilons; and where it is below e^-26
_FEWEST = 64  # of those epsilons
_COARSER = 4  # levels taken together to place a grid


@dataclass(frozen=True)
class _Group:
    """Curves of records of similar spread, on one grid of ε; records with the same steps share one."""

    rows: Counts  # increasing
    which: Counts  # the curve of each of the rows
    epsilons: Floats
    deltas: Floats  # (curves, epsilons), non-increasing along the second axis

    @cached_property
    def points(self) -> tuple[float, ...]:
        """The epsilons as a profile has them."""
        return tuple(self.epsilons.tolist())


@dataclass(frozen=True)
class RecordCurves:
    """δ_x(ε) of many records; build with `record_curves`."""

    size: int
    groups: tuple[_Group, ...]

    def delta(self, epsilons: Floats) -> Floats:
        """Return an upper bound on δ_x(ε), shape (len(epsilons), records)."""
        out = np.zeros((len(epsilons), self.size))
        for group in self.groups:
            out[:, group.rows] = chord(epsilons, group.epsilons, group.deltas).T[:, group.which]
        return out

    def epsilon(self, delta: float) -> Floats:
        """Return, for each record, an upper bound on the smallest ε with δ_x(ε) ≤ delta."""
        out = np.zeros(self.size)
        for group in self.groups:
            out[group.rows] = inverse_chord(delta, group.epsilons, group.deltas)[group.which]
        return out

    def tpr(self, rates: Floats) -> Floats:
        """Return, as `Profile.tpr` does, the most that a test for each record's presence finds.

        Args:
            rates: False-positive rates, in [0, 1].

        Returns:
            Shape (len(rates), records).
        """
        out = np.repeat(np.asarray(rates, dtype=np.float64)[:, None], self.size, axis=1)
        for group in self.groups:
            missed = np.stack([most_missed(rate, group.epsilons, group.deltas) for rate in rates])
            out[:, group.rows] = 1.0 - missed[:, group.which]
        return out

    def profile(self, record: int) -> Profile:
        """Return the whole curve of one record."""
        for group in self.groups:
            place = group.rows.searchsorted(record)
            if place < len(group.rows) and group.rows[place] == record:
                return Profile(group.points, tuple(group.deltas[group.which[place]].tolist()))
        return Profile((0.0,), (0.0,))  # it spent nothing


def record_curves(counts: Counts, *, sample_rate: float, noise_multiplier: float, points: int = 192) -> RecordCurves:
    """Return the privacy curves of records with the given steps at each level.

    Args:
        counts: Shape (m, len(NORM_LEVELS)); row x says how many steps record x spent at each level.
        sample_rate: q.
        noise_multiplier: σ.
        points: The fewest epsilons at which curves are evaluated, more being tighter between them. Where more than
            1000 different records are alike, about 150 are placed where their curves bend.

    Returns:
        Curves that are upper bounds in both directions (record added, record removed).
    """
    sample_rate = _check.rate("sample_rate", sample_rate)
    noise_multiplier = _check.in_range("noise_multiplier", noise_multiplier, 1e-6, 1e9)
    if np.ndim(counts) != 2 or np.shape(counts)[1] != len(NORM_LEVELS) or np.min(counts, initial=0) < 0:
        raise ValueError(f"counts must be non-negative, of shape (m, {len(NORM_LEVELS)}), got {np.shape(counts)}.")
    spread = loss_spread(sample_rate, NORM_LEVELS / noise_multiplier) * (NORM_LEVELS > 0.0)
    distinct, back = _distinct_rows(counts)
    width = np.sqrt(products(distinct, spread**2))
    groups = []
    for rows in _alike(width):
        used = np.flatnonzero(distinct[rows].any(axis=0) & (NORM_LEVELS > 0.0))
        ratios = NORM_LEVELS[used] / noise_multiplier
        for some, epsilons, deltas in _group_curves(
            distinct[np.ix_(rows, used)], ratios, sample_rate, width[rows], points
        ):
            place = np.full(len(distinct), -1)
            place[rows[some]] = np.arange(len(some))
            members = np.flatnonzero(place[back] >= 0)
            groups.append(_Group(members, place[back[members]], epsilons, deltas))
    return RecordCurves(len(counts), tuple(groups))


@lru_cache(maxsize=8)
def worst_curve(steps: int, *, sample_rate: float, noise_multiplier: float, points: int = 192) -> RecordCurves:
    """Return the curve of one record that is at the clip bound in every step.

    Args:
        steps: How many steps.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.
        points: As in `record_curves`.

    Returns:
        The curve of one record.
    """
    counts = np.zeros((1, len(NORM_LEVELS)), dtype=np.int64)
    counts[0, TOP] = steps
    return record_curves(counts, sample_rate=sample_rate, noise_multiplier=noise_multiplier, points=points)


def _distinct_rows(counts: Counts) -> tuple[Counts, Counts]:
    """Return every row once, and where each row is among them.

    Rows are sorted by a weighted sum modulo 2^64, then compared number by number; rows that differ and have one sum, of
    which there is next to no chance, are sorted whole.
    """
    if not len(counts):
        return counts, np.empty(0, dtype=np.int64)
    weights = np.random.default_rng(0).integers(1 << 62, size=counts.shape[1])
    slices = [slice(start, start + ROWS) for start in range(0, len(counts), ROWS)]
    sums = np.concatenate([counts[rows].astype(np.int64) @ weights for rows in slices])
    _, first, back = np.unique(sums, return_index=True, return_inverse=True)
    if not all(np.array_equal(counts[rows], counts[first[back[rows]]]) for rows in slices):
        _, first, back = np.unique(counts, axis=0, return_index=True, return_inverse=True)
    return counts[first], back


def _alike(width: Floats) -> Iterator[Counts]:
    """Yield indices of records whose widths are within a factor of √2; records that spent nothing are left out."""
    spent = np.flatnonzero(width > 0.0)
    scale = np.floor(2.0 * np.log2(width[spent]))
    for value in np.unique(scale):
        yield spent[scale == value]


def _group_curves(
    counts: Counts, ratios: Floats, sample_rate: float, width: Floats, least: int
) -> Iterator[tuple[Counts, Floats, Floats]]:
    """Yield which records, at which epsilons, and their curves there."""
    many, order = len(counts) > _FEW_RECORDS, np.argsort(width, kind="stable")
    few = order[np.linspace(0, len(order) - 1, _FEW_RECORDS).astype(np.int64)] if many else np.arange(len(order))
    narrowest, widest = float(width[order[0]]), float(width[order[-1]])
    theta = np.geomspace(min(0.25, 1.0 / widest), 16.0 / narrowest, 24)
    basis = polynomials(ratios) if many else None
    step = _COARSER if basis is not None else 1
    ends = np.arange(len(ratios) - 1, -1, -step)[::-1]  # the top level among them
    fewer = np.add.reduceat(counts[few], np.concatenate([[0], ends[:-1] + 1]), axis=1, dtype=np.int64)
    for interval in _intervals(fewer, ratios[ends], sample_rate, narrowest, theta):
        directions = [
            Composed(counts, losses, interval, theta, few=few, basis=basis)
            for losses in zip(*_pairs(sample_rate, ratios, interval), strict=True)
        ]
        if not many or all(d.smooth for d in directions):
            break  # otherwise one inverse transform per record, on a grid that many records can afford
    bottom, top = min(d.bottom for d in directions), max(d.top for d in directions)
    for some in _pieces(order, width) if many else [few]:
        if many:
            epsilons = _paced_grid(directions, some, bottom, top, float(width[some[0]]))
        else:
            epsilons = _epsilon_grid(bottom, top, narrowest, least)
        deltas = directions[0].delta(some, epsilons)
        np.maximum(deltas, directions[1].delta(some, epsilons), out=deltas)
        yield some, epsilons, np.minimum(np.minimum.accumulate(deltas, axis=1, out=deltas), 1.0, out=deltas)


def _intervals(counts: Counts, ratios: Floats, sample_rate: float, narrowest: float, theta: Floats) -> Iterator[float]:
    """Yield the spacing of the losses' grid: as fine as wanted, and as coarse as many records can afford.

    No bound rests on it, so that counts may be those of fewer levels, rounded up.
    """
    one_step = narrowest / math.sqrt(counts.sum(axis=1).max())
    widest_loss = largest_loss(sample_rate, float(ratios.max()))
    coarse = max(one_step / 2.0, widest_loss / 16384)
    room = 0.0
    for losses in zip(*_pairs(sample_rate, ratios, coarse), strict=True):
        up, down = (products(counts, log_mgfs(losses, coarse, sign * theta)) for sign in (1.0, -1.0))
        _, bottom, top = window(up, down, theta)
        room = max(room, top - bottom)
    for cells in (_MAX_CELLS, _MAX_CELLS // 8):
        yield max(min(0.1 * one_step, 0.02 * narrowest), widest_loss / cells, room / cells)


def _pieces(order: Counts, width: Floats) -> list[Counts]:
    """Return records in the order of their widths, cut where these have grown by a factor of 2^(1/8)."""
    scale = np.floor(8.0 * np.log2(width[order]))
    return np.split(order, np.flatnonzero(np.diff(scale)) + 1)


def _paced_grid(directions: list[Composed], rows: Counts, bottom: float, top: float, narrowest: float) -> Floats:
    """Return epsilons from 0 to top between which log δ falls by about as much for the records unlike each other.

    Its slope is that of the bound by moments. It places the grid, and no bound rests on it.
    """
    low = max(0.0, bottom)
    share = np.linspace(0.0, 1.0, 1024)
    at = low + (top - low) * share**2
    density = np.full(len(at), float(_FEWEST))  # along `share`
    bulk = at - low < 3.0 * narrowest
    density[bulk] = np.maximum(density[bulk], 20.0 * (top - low) * share[bulk] / narrowest)
    for d in directions:
        moments = d.log_moments[rows]
        ends = np.concatenate([[0, len(rows) - 1], moments.argmax(axis=0)[::6], moments.argmin(axis=0)[::6]])
        for guide in np.unique(ends):
            rates = np.outer(at, d.theta) - moments[guide]
            fallen = rates.max(axis=1)
            each = np.where(fallen < _FAR, 1.0 / _FALL, 1.0 / _FAR_FALL) * (fallen < 1.5 * _FAR)
            falls = d.theta[rates.argmax(axis=1)] * 2.0 * (top - low) * share
            np.maximum(density, falls * each, out=density)
    way = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(share))])
    grid = np.unique(np.interp(np.linspace(0.0, way[-1], math.ceil(way[-1]) + 2), way, at))
    return grid if low == 0.0 else np.concatenate([[0.0], grid])


def _epsilon_grid(bottom: float, top: float, narrowest: float, least: int) -> Floats:
    """Return where curves are evaluated: from 0 to top, close together where the losses lie.

    Close means a small part of the losses' spread, and of 1, as the chord is in e^ε.
    """
    low = max(0.0, bottom)
    points = int(np.clip((top - low) * max(10.0 / narrowest, 4.0), least, 4096))
    grid = low + (top - low) * np.linspace(0.0, 1.0, points) ** 2
    return grid if low == 0.0 else np.concatenate([[0.0], grid])


def _pairs(sample_rate: float, ratios: Floats, interval: float) -> list[tuple[StepLoss, StepLoss]]:
    return [step_losses(sample_rate, float(r), interval) for r in ratios]
