r"""Every followed record's own privacy curve δ_x(ε), by Fourier transform, all records at once.

A record that spent n_l steps at level l has, at frequency ω, the transform Π_l φ_l(ω)^{n_l}, where φ_l is
that of one step's gridded loss. Then δ_x(ε) = E (1 - e^{ε-L})_+ is a sum over frequencies (Parseval), so
no record needs an inverse transform; and because a sum of many steps is smooth, a few dozen frequencies
carry everything. Records of similar spread share a grid.

What is added to δ, so that the result is an upper bound: the loss that wraps around the window's upper end
(Chernoff, from the gridded losses themselves), the noise cut off beyond 9.75 standard deviations, the
frequencies left out, and round-off. Between grid points of ε the chord in e^ε is used: δ is convex there.
The derivation is in docs/theory/bounds.md#record-curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacita.accounting.levels import LEVELS, TOP
from tacita.accounting.losses import LOST_PER_STEP, StepLoss, largest_loss, loss_spread, step_losses

if TYPE_CHECKING:
    from tacita._check import Complexes, Counts, Floats

_TAIL = 1e-15  # mass allowed to wrap around the window
_POINTS = 256  # of ε, for each group of records
_MAX_CELLS = 1 << 17  # of a group's grid
_BATCH = 1 << 22  # complex numbers held at once
_FEW_FREQUENCIES = 1024
_UNIT = 2.0**-53


@dataclass(frozen=True)
class _Group:
    """Curves of records of similar spread, on one grid of ε."""

    rows: Counts
    epsilons: Floats
    deltas: Floats  # (rows, epsilons), non-increasing along the second axis


@dataclass(frozen=True)
class RecordCurves:
    """δ_x(ε) of many records; build with `record_curves`."""

    size: int
    groups: tuple[_Group, ...]

    def delta(self, epsilons: Floats) -> Floats:
        """Return an upper bound on δ_x(ε), shape (len(epsilons), records)."""
        out = np.zeros((len(epsilons), self.size))
        for group in self.groups:
            out[:, group.rows] = _chord(group, epsilons).T
        return out

    def epsilon(self, delta: float) -> Floats:
        """Return, for each record, an upper bound on the smallest ε with δ_x(ε) ≤ delta."""
        out = np.zeros(self.size)
        for group in self.groups:
            out[group.rows] = _inverse_chord(group, delta)
        return out


def record_curves(counts: Counts, *, sample_rate: float, noise_multiplier: float) -> RecordCurves:
    """Return the privacy curves of records with the given steps at each level.

    Args:
        counts: Shape (m, len(LEVELS)); row x says how many steps record x spent at each level.
        sample_rate: q.
        noise_multiplier: σ.

    Returns:
        Curves that are upper bounds in both directions (record added, record removed).
    """
    spread = loss_spread(sample_rate, LEVELS / noise_multiplier) * (LEVELS > 0.0)
    distinct, back = _distinct_rows(counts)
    width = np.sqrt(distinct @ spread**2)
    groups = []
    for rows in _octaves(width):
        used = np.flatnonzero(distinct[rows].any(axis=0) & (LEVELS > 0.0))
        group_counts = np.ascontiguousarray(distinct[np.ix_(rows, used)], dtype=np.float64)
        epsilons, deltas = _group_curves(
            group_counts,
            LEVELS[used] / noise_multiplier,
            sample_rate,
            (float(width[rows].min()), float(width[rows].max())),
        )
        place = np.full(len(distinct), -1)
        place[rows] = np.arange(len(rows))
        members = np.flatnonzero(place[back] >= 0)
        groups.append(_Group(members, epsilons, deltas[place[back[members]]]))
    return RecordCurves(len(counts), tuple(groups))


@lru_cache(maxsize=8)
def worst_curve(steps: int, *, sample_rate: float, noise_multiplier: float) -> RecordCurves:
    """Return the curve of one record that is at the clip bound in every step."""
    counts = np.zeros((1, len(LEVELS)), dtype=np.int64)
    counts[0, TOP] = steps
    return record_curves(counts, sample_rate=sample_rate, noise_multiplier=noise_multiplier)


def _distinct_rows(counts: Counts) -> tuple[Counts, Counts]:
    flat = np.ascontiguousarray(counts)
    keys = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    return flat[first], back


def _octaves(width: Floats) -> Iterator[Counts]:
    """Yield indices of records whose widths are within a factor of two; records that spent nothing are left out."""
    spent = np.flatnonzero(width > 0.0)
    octave = np.floor(np.log2(width[spent]))
    for value in np.unique(octave):
        yield spent[octave == value]


def _group_curves(
    counts: Floats, ratios: Floats, sample_rate: float, width: tuple[float, float]
) -> tuple[Floats, Floats]:
    steps = counts.sum(axis=1)
    widest_loss = largest_loss(sample_rate, float(ratios.max()))
    coarse = max(widest_loss / 4096, width[0] / 64.0)
    theta = np.geomspace(min(0.25, 1.0 / width[1]), 16.0 / width[0], 24)
    room = 0.0
    for losses in zip(*_pairs(sample_rate, ratios, coarse), strict=True):
        _, bottom, top = _window(counts, losses, coarse, theta)
        room = max(room, top - bottom)
    most_cells = min(max(_MAX_CELLS * 1000 // len(counts), _MAX_CELLS // 8), _MAX_CELLS)
    interval = max(width[0] * min(0.1 / math.sqrt(steps.max()), 0.02), widest_loss / _MAX_CELLS, room / most_cells)
    pairs = _pairs(sample_rate, ratios, interval)
    directions = [_Composed(counts, losses, interval, theta) for losses in zip(*pairs, strict=True)]
    top = max(d.top for d in directions)
    epsilons = top * np.linspace(0.0, 1.0, _POINTS) ** 2
    deltas = np.maximum(directions[0].delta(epsilons), directions[1].delta(epsilons))
    return epsilons, np.minimum(np.minimum.accumulate(deltas, axis=1), 1.0)


def _pairs(sample_rate: float, ratios: Floats, interval: float) -> list[tuple[StepLoss, StepLoss]]:
    return [step_losses(sample_rate, float(r), interval) for r in ratios]


class _Composed:
    """One direction of a group: the composed loss of every record, as its low frequencies."""

    def __init__(self, counts: Floats, losses: tuple[StepLoss, ...], interval: float, theta: Floats) -> None:
        self.counts, self.interval = counts, interval
        self.steps = counts.sum(axis=1)
        upper, bottom, self.top = _window(counts, losses, interval, theta)
        first, last = math.floor(bottom / interval), math.ceil(self.top / interval)
        self.size = 2 * next_fast_len((last - first + 2) // 2, real=True)
        self.first, self.last = first, first + self.size - 1
        transforms = np.stack([_transform(loss, self.size) for loss in losses])
        magnitude = np.log(np.maximum(np.abs(transforms), 1e-300))
        self.kept, dropped = _frequencies_needed(counts, magnitude)
        self.log_magnitude = magnitude[:, : self.kept]
        self.angle = np.angle(transforms[:, : self.kept])
        roundoff = 6.0 * (4.0 * self.steps + 64.0) * _UNIT
        self.excess = upper + dropped + roundoff + self.steps * LOST_PER_STEP

    def delta(self, epsilons: Floats) -> Floats:
        """Return the upper bound on δ, shape (records, epsilons)."""
        out = np.empty((len(self.counts), len(epsilons)))
        smooth = self.kept <= _FEW_FREQUENCIES
        payoff = self._payoff(epsilons) if smooth else None
        batch = max(1, _BATCH // (self.kept if smooth else self.size))
        for start in range(0, len(out), batch):
            part = self.counts[start : start + batch]
            size, phase = np.exp(part @ self.log_magnitude), part @ self.angle
            real, imaginary = size * np.cos(phase), size * np.sin(phase)
            if payoff is not None:
                values = real @ payoff.real - imaginary @ payoff.imag
            else:
                values = self._inverted(real + 1j * imaginary, epsilons)
            out[start : start + batch] = values
        return np.asarray(np.maximum(out, 0.0) + self.excess[:, None])

    def _inverted(self, transforms: Complexes, epsilons: Floats) -> Floats:
        """Return δ by one inverse transform per record: the way for losses that are not smooth."""
        probabilities = np.roll(irfft(transforms, self.size, axis=1), -(self.first % self.size), axis=1)
        probabilities = np.maximum(probabilities, 0.0)[:, ::-1]  # from the largest loss down
        losses = (self.last - np.arange(self.size)) * self.interval
        above = np.cumsum(probabilities, axis=1)
        discounted = np.cumsum(probabilities * np.exp(-np.clip(losses, 0.0, 700.0)), axis=1)
        index = self.last - np.ceil(epsilons / self.interval).astype(np.int64)
        at = np.maximum(index, 0)
        values = above[:, at] - np.exp(np.minimum(epsilons, 700.0)) * discounted[:, at]
        return np.where(index >= 0, values, 0.0)

    def _payoff(self, epsilons: Floats) -> Complexes:
        """Return (1/N) Σ_k (1 - e^{ε - k·interval})_+ e^{2πijk/N}, shape (frequencies, epsilons), in closed form."""
        frequency = 2.0 * np.pi * np.arange(self.kept) / self.size
        start = np.ceil(epsilons / self.interval)
        stop = self.last + 1
        head, tail = np.exp(1j * np.outer(frequency, start)), np.exp(1j * frequency * stop)[:, None]
        turn = np.exp(1j * frequency)
        with np.errstate(divide="ignore", invalid="ignore"):
            flat = (head - tail) / (1.0 - turn)[:, None]
        flat[0] = stop - start
        fading = turn * math.exp(-self.interval)
        shrink, at_end = (
            np.exp(epsilons - start * self.interval),
            np.exp(np.minimum(epsilons - stop * self.interval, 0.0)),
        )
        faded = (shrink * head - at_end * tail) / (1.0 - fading)[:, None]
        weight = np.full(self.kept, 2.0)
        weight[0] = 1.0
        if self.kept == self.size // 2 + 1:
            weight[-1] = 1.0  # the highest frequency has no mirror image
        inside = start < stop  # past the window's upper end only the excess is left
        return np.where(inside, (flat - faded) * weight[:, None] / self.size, 0.0)


def _transform(loss: StepLoss, size: int) -> Complexes:
    """Return Σ_k p_k e^{-2πijk/N}; losses outside the window wrap around it."""
    wrapped = np.zeros(size)
    position = np.arange(loss.first, loss.first + len(loss.probabilities)) % size
    np.add.at(wrapped, position, loss.probabilities)
    return np.asarray(rfft(wrapped))


def _window(
    counts: Floats, losses: tuple[StepLoss, ...], interval: float, theta: Floats
) -> tuple[Floats, float, float]:
    """Return a bound on each record's mass above the window, and the window's lower and upper end.

    Chernoff: Pr[L > z] ≤ exp(Σ_l n_l κ_l(θ) - θ z) for every θ > 0, with κ_l the log moment generating
    function of the gridded one-step loss; for the lower end the same with -L.
    """
    upward = np.stack([_log_mgf(loss, interval, theta) for loss in losses], axis=0)
    downward = np.stack([_log_mgf(loss, interval, -theta) for loss in losses], axis=0)
    goal = -math.log(_TAIL)
    up, down = counts @ upward, counts @ downward
    top = float(((up + goal) / theta).min(axis=1).max())
    bottom = -float(((down + goal) / theta).min(axis=1).max())
    top, bottom = max(top, interval), min(bottom, -interval)
    return np.exp((up - theta * top).min(axis=1)), bottom, top


def _log_mgf(loss: StepLoss, interval: float, theta: Floats) -> Floats:
    keep = loss.probabilities > 0.0
    points = interval * (loss.first + np.flatnonzero(keep))
    exponent = np.outer(theta, points) + np.log(loss.probabilities[keep])
    peak = exponent.max(axis=1)
    return np.asarray(peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1)))


def _frequencies_needed(counts: Floats, magnitude: Floats) -> tuple[int, Floats]:
    """Return how many frequencies to keep, and a bound on what the others could add to each record's δ.

    The payoff's transform at frequency j is at most N/j in size, so frequencies from J on add at most
    2 (1 + ln(N / 2J)) times the largest of their magnitudes; a running maximum bounds those.
    """
    total = magnitude.shape[1]
    envelope = np.maximum.accumulate(magnitude[:, ::-1], axis=1)[:, ::-1]
    candidates = np.unique(np.geomspace(16, total, 40).astype(np.int64))
    candidates = candidates[candidates < total]
    if len(candidates):
        largest = counts @ envelope[:, candidates]
        enough = np.flatnonzero(largest.max(axis=0) < math.log(1e-17))
        if len(enough):
            kept = int(candidates[enough[0]])
            return kept, 2.0 * (1.0 + math.log(total / kept)) * np.exp(largest[:, enough[0]])
    return total, np.zeros(len(counts))


def _chord(group: _Group, epsilons: Floats) -> Floats:
    """Return δ at the given epsilons by the chord in e^ε; beyond the grid the last value holds."""
    eps = np.clip(epsilons, 0.0, group.epsilons[-1])
    right = np.clip(np.searchsorted(group.epsilons, eps, side="left"), 1, len(group.epsilons) - 1)
    low, high = group.epsilons[right - 1], group.epsilons[right]
    weight = np.exp(eps - high) * np.expm1(low - eps) / np.expm1(low - high)
    return (1.0 - weight) * group.deltas[:, right - 1] + weight * group.deltas[:, right]


def _inverse_chord(group: _Group, delta: float) -> Floats:
    """Return the smallest ε at which the chord is at most delta; infinite if it never is."""
    reached = group.deltas <= delta
    right = reached.argmax(axis=1)
    rows = np.arange(len(right))
    left = np.maximum(right - 1, 0)
    above, below = group.deltas[rows, left], group.deltas[rows, right]
    low, high = group.epsilons[left], group.epsilons[right]
    share = np.divide(above - delta, above - below, out=np.ones_like(above), where=above > below)
    with np.errstate(divide="ignore"):
        eps = low + np.logaddexp(np.log1p(-share), np.log(share) + high - low)
    return np.asarray(np.where(reached.any(axis=1), np.where(right == 0, group.epsilons[0], eps), np.inf))
