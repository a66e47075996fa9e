r"""Every followed record's own privacy curve δ_x(ε), by Fourier transform, all records at once.

A record that spent n_l steps at level l has, at frequency ω, the transform Π_l φ_l(ω)^{n_l}, where φ_l is
that of one step's gridded loss. Then δ_x(ε) = E (1 - e^{ε-L})_+ is a sum over frequencies (Parseval), so
no record needs an inverse transform; and because a sum of many steps is smooth, a few dozen frequencies
carry everything. Records of similar spread share a grid.

What is added to δ, so that the result is an upper bound: the loss that wraps around the window's upper end
(Chernoff, from the gridded losses themselves), the noise cut off beyond 9.75 standard deviations, the
frequencies left out, and round-off. Between grid points of ε the chord in e^ε is used: δ is convex there.
The derivation is in docs/explanation/theory/bounds.md#record-curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacita import _check
from tacita.accounting.levels import NORM_LEVELS, TOP
from tacita.accounting.losses import LOST_PER_STEP, StepLoss, largest_loss, loss_spread, step_losses
from tacita.profile import Profile, chord, inverse_chord, most_missed

if TYPE_CHECKING:
    from tacita._check import Complexes, Counts, Floats

_TAIL = 1e-15  # mass allowed to wrap around the window
_MAX_CELLS = 1 << 17  # of a group's grid
_BATCH = 1 << 22  # complex numbers held at once
_FEW_FREQUENCIES = 1024
_FEW_RECORDS = 1000
_UNIT = 2.0**-53


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
        points: The fewest epsilons at which curves are evaluated; more are tighter between them.

    Returns:
        Curves that are upper bounds in both directions (record added, record removed).
    """
    sample_rate = _check.rate("sample_rate", sample_rate)
    noise_multiplier = _check.in_range("noise_multiplier", noise_multiplier, 1e-6, 1e9)
    if np.ndim(counts) != 2 or np.shape(counts)[1] != len(NORM_LEVELS) or np.min(counts, initial=0) < 0:
        raise ValueError(f"counts must be non-negative, of shape (m, {len(NORM_LEVELS)}), got {np.shape(counts)}.")
    spread = loss_spread(sample_rate, NORM_LEVELS / noise_multiplier) * (NORM_LEVELS > 0.0)
    distinct, back = _distinct_rows(counts)
    width = np.sqrt(distinct @ spread**2)
    groups = []
    for rows in _alike(width):
        used = np.flatnonzero(distinct[rows].any(axis=0) & (NORM_LEVELS > 0.0))
        group_counts = np.ascontiguousarray(distinct[np.ix_(rows, used)], dtype=np.float64)
        epsilons, deltas = _group_curves(
            group_counts,
            NORM_LEVELS[used] / noise_multiplier,
            sample_rate,
            (float(width[rows].min()), float(width[rows].max())),
            points,
        )
        place = np.full(len(distinct), -1)
        place[rows] = np.arange(len(rows))
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
    flat = np.ascontiguousarray(counts)
    keys = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    return flat[first], back


def _alike(width: Floats) -> Iterator[Counts]:
    """Yield indices of records whose widths are within a factor of √2; records that spent nothing are left out."""
    spent = np.flatnonzero(width > 0.0)
    scale = np.floor(2.0 * np.log2(width[spent]))
    for value in np.unique(scale):
        yield spent[scale == value]


def _group_curves(
    counts: Floats, ratios: Floats, sample_rate: float, width: tuple[float, float], least: int
) -> tuple[Floats, Floats]:
    one_step = width[0] / math.sqrt(counts.sum(axis=1).max())
    widest_loss = largest_loss(sample_rate, float(ratios.max()))
    theta = np.geomspace(min(0.25, 1.0 / width[1]), 16.0 / width[0], 24)
    coarse = max(one_step / 2.0, widest_loss / 16384)
    room = 0.0
    for losses in zip(*_pairs(sample_rate, ratios, coarse), strict=True):
        _, bottom, top = _window(
            counts @ _log_mgfs(losses, coarse, theta), counts @ _log_mgfs(losses, coarse, -theta), theta
        )
        room = max(room, top - bottom)
    for cells in (_MAX_CELLS, _MAX_CELLS // 8):
        interval = max(min(0.1 * one_step, 0.02 * width[0]), widest_loss / cells, room / cells)
        pairs = _pairs(sample_rate, ratios, interval)
        directions = [_Composed(counts, losses, interval, theta) for losses in zip(*pairs, strict=True)]
        if len(counts) <= _FEW_RECORDS or all(d.smooth for d in directions):
            break  # otherwise one inverse transform per record, on a grid that many records can afford
    most = 4096 if len(counts) <= _FEW_RECORDS else 1024
    bottom, top = min(d.bottom for d in directions), max(d.top for d in directions)
    epsilons = _epsilon_grid(bottom, top, width[0], (least, most))
    deltas = np.maximum(directions[0].delta(epsilons), directions[1].delta(epsilons))
    return epsilons, np.minimum(np.minimum.accumulate(deltas, axis=1), 1.0)


def _epsilon_grid(bottom: float, top: float, narrowest: float, limits: tuple[int, int]) -> Floats:
    """Return where curves are evaluated: from 0 to top, close together where the losses lie.

    Close means a small part of the losses' spread, and of 1, as the chord is in e^ε.
    """
    low = max(0.0, bottom)
    points = int(np.clip((top - low) * max(10.0 / narrowest, 4.0), *limits))
    grid = low + (top - low) * np.linspace(0.0, 1.0, points) ** 2
    return grid if low == 0.0 else np.concatenate([[0.0], grid])


def _pairs(sample_rate: float, ratios: Floats, interval: float) -> list[tuple[StepLoss, StepLoss]]:
    return [step_losses(sample_rate, float(r), interval) for r in ratios]


class _Composed:
    """One direction of a group: the composed loss of every record, as its low frequencies."""

    def __init__(self, counts: Floats, losses: tuple[StepLoss, ...], interval: float, theta: Floats) -> None:
        self.counts, self.interval, self.theta = counts, interval, theta
        self.steps = counts.sum(axis=1)
        self.log_moments = counts @ _log_mgfs(losses, interval, theta)
        self.moments_roundoff = np.max([_log_mgf_roundoff(loss, interval, theta) for loss in losses], axis=0)
        upper, self.bottom, self.top = _window(self.log_moments, counts @ _log_mgfs(losses, interval, -theta), theta)
        first, last = math.floor(self.bottom / interval), math.ceil(self.top / interval)
        self.size = 2 * next_fast_len((last - first + 2) // 2, real=True)
        self.first, self.last = first, first + self.size - 1
        transforms = np.stack([_transform(loss, self.size) for loss in losses])
        magnitude = np.log(np.maximum(np.abs(transforms), 1e-300))
        self.kept, dropped = _frequencies_needed(counts, magnitude)
        self.smooth = self.kept <= _FEW_FREQUENCIES
        self.log_magnitude = magnitude[:, : self.kept]
        self.angle = np.angle(transforms[:, : self.kept])
        roundoff = 6.0 * (4.0 * self.steps + 64.0) * _UNIT
        self.excess = upper + dropped + roundoff + self.steps * LOST_PER_STEP

    def delta(self, epsilons: Floats) -> Floats:
        """Return the upper bound on δ, shape (records, epsilons)."""
        out = np.empty((len(self.counts), len(epsilons)))
        payoff = self._payoff(epsilons) if self.smooth else None
        batch = max(1, _BATCH // (self.kept if self.smooth else self.size))
        for start in range(0, len(out), batch):
            part = self.counts[start : start + batch]
            size, phase = np.exp(part @ self.log_magnitude), part @ self.angle
            real, imaginary = size * np.cos(phase), size * np.sin(phase)
            if payoff is not None:
                values = real @ payoff.real - imaginary @ payoff.imag
            else:
                values = self._inverted(real + 1j * imaginary, epsilons)
            out[start : start + batch] = values
        out = np.maximum(out, 0.0) + self.excess[:, None]
        near_floor = (out < 100.0 * self.excess[:, None]).any(axis=0)
        out[:, near_floor] = np.minimum(out[:, near_floor], self._by_moments(epsilons[near_floor]))
        return np.asarray(out)

    def _by_moments(self, epsilons: Floats) -> Floats:
        """Return δ from the gridded losses' moments: looser, but it has no round-off floor.

        Its own round-off goes into the exponent.
        """
        lam = self.theta
        moments = self.log_moments - np.log1p(lam) - lam * np.log1p(1.0 / lam)
        moments += self.steps[:, None] * self.moments_roundoff
        bounds = np.zeros((len(self.counts), len(epsilons)))
        by_size = np.argsort(self.log_moments[:, len(lam) // 2])
        for guide in {by_size[0], by_size[len(by_size) // 2], by_size[-1]}:  # alike, so their best orders serve all
            best = np.argmin(moments[guide] - np.outer(epsilons, lam), axis=1)
            np.minimum(bounds, moments[:, best] - lam[best] * epsilons, out=bounds)
        return np.asarray(np.exp(bounds) + self.steps[:, None] * LOST_PER_STEP)

    def _inverted(self, transforms: Complexes, epsilons: Floats) -> Floats:
        """Return δ by one inverse transform per record: the way for losses that are not smooth."""
        from scipy.signal import lfilter  # as slow to import as a label is to make, and rarely needed

        probabilities = np.roll(irfft(transforms, self.size, axis=1), -(self.first % self.size), axis=1)
        probabilities = np.maximum(probabilities, 0.0)[:, ::-1]  # from the largest loss down
        above = np.cumsum(probabilities, axis=1)
        faded = lfilter([1.0], [1.0, -math.exp(-self.interval)], probabilities, axis=1)  # Σ p e^{loss here - loss}
        start = np.maximum(np.ceil(epsilons / self.interval), self.first)
        index = self.last - start.astype(np.int64)
        at = np.maximum(index, 0)
        values = above[:, at] * (1.0 + self.size * _UNIT) - np.exp(epsilons - start * self.interval) * faded[:, at]
        return np.where(index >= 0, values, 0.0)

    def _payoff(self, epsilons: Floats) -> Complexes:
        """Return (1/N) Σ_k (1 - e^{ε - kh})_+ e^{2πijk/N}, shape (frequencies, epsilons), with h the interval.

        In closed form, summed by parts so that nothing cancels: with z = e^{2πij/N}, k from a to b - 1,
        (1 - z) Σ z^k g_k = g_a z^a - g_{b-1} z^b + Σ_{k>a} z^k (g_k - g_{k-1}), and the last is a geometric sum.
        """
        h, stop = self.interval, self.last + 1
        start = np.ceil(epsilons / h)
        inside = start < stop  # past the window's upper end only the excess is left
        start = np.clip(start, self.first, self.last)
        frequency = 2.0 * np.pi * np.arange(self.kept) / self.size
        half = np.exp(0.5j * frequency)
        turn, short_of_one = half * half, -2j * np.sin(frequency / 2.0) * half  # z, and 1 - z to full accuracy
        head, tail = np.exp(1j * np.outer(frequency, start)), np.exp(1j * frequency * stop)[:, None]
        at_start, at_end = np.minimum(epsilons - start * h, 0.0), np.minimum(epsilons - self.last * h, 0.0)
        falling = (np.exp(at_start) * head * turn[:, None] - np.exp(at_end) * tail) * -math.expm1(-h)
        with np.errstate(divide="ignore", invalid="ignore"):
            payoff = -np.expm1(at_start) * head + np.expm1(at_end) * tail
            payoff = (payoff + falling / (short_of_one - turn * math.expm1(-h))[:, None]) / short_of_one[:, None]
        count = (stop - start).astype(np.int64)
        rising = np.concatenate([[0.0], np.cumsum(-np.expm1(-h * np.arange(count.max())))])
        payoff[0] = rising[count] - np.expm1(at_start) * np.expm1(-h * count) / math.expm1(-h)
        weight = np.full(self.kept, 2.0)
        weight[0] = 1.0
        if self.kept == self.size // 2 + 1:
            weight[-1] = 1.0  # the highest frequency has no mirror image
        return np.where(inside, payoff * weight[:, None] / self.size, 0.0)


def _transform(loss: StepLoss, size: int) -> Complexes:
    """Return Σ_k p_k e^{-2πijk/N}; losses outside the window wrap around it."""
    wrapped = np.zeros(size)
    position = np.arange(loss.first, loss.first + len(loss.probabilities)) % size
    np.add.at(wrapped, position, loss.probabilities)
    return np.asarray(rfft(wrapped))


def _window(upward: Floats, downward: Floats, theta: Floats) -> tuple[Floats, float, float]:
    """Return a bound on each record's mass above the window, and the window's lower and upper end.

    Chernoff: Pr[L > z] ≤ exp(Σ_l n_l κ_l(θ) - θ z) for every θ > 0, with κ_l the log moment generating
    function of the gridded one-step loss and `upward` the sum; for the lower end the same with -L.
    """
    goal = -math.log(_TAIL)
    top = float(((upward + goal) / theta).min(axis=1).max())
    bottom = -float(((downward + goal) / theta).min(axis=1).max())
    return np.exp((upward - theta * top).min(axis=1)), bottom, top


def _log_mgfs(losses: tuple[StepLoss, ...], interval: float, theta: Floats) -> Floats:
    """Return log E e^{θ loss} for each level's gridded loss, shape (levels, theta)."""
    return np.stack([_log_mgf(loss, interval, theta) for loss in losses])


def _log_mgf(loss: StepLoss, interval: float, theta: Floats) -> Floats:
    keep = loss.probabilities > 0.0
    points = interval * (loss.first + np.flatnonzero(keep))
    exponent = np.outer(theta, points) + np.log(loss.probabilities[keep])
    peak = exponent.max(axis=1)
    return np.asarray(peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1)))


def _log_mgf_roundoff(loss: StepLoss, interval: float, theta: Floats) -> Floats:
    """Return a bound on the round-off of `_log_mgf`: it grows with the exponents, and so with the largest loss."""
    largest = interval * max(-loss.first, loss.first + len(loss.probabilities))
    return np.asarray(_UNIT * (64.0 + 4.0 * largest) * (1.0 + np.abs(theta)))


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
