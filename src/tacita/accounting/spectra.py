r"""The loss of many steps at many levels, as its low frequencies: one direction of a group of records.

A record that spent n_l steps at level l has, at frequency ω, the transform Π_l φ_l(ω)^{n_l}. Where records are many,
log φ_l(ω), which is smooth in l, is replaced by a polynomial of low degree in the root of the norm, so that a record is
a few numbers instead of one for each level; its largest error, times the steps, is added to δ.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from tacita.accounting.losses import LOST_PER_STEP, StepLoss

if TYPE_CHECKING:
    from tacita._check import Complexes, Counts, Floats

_TAIL = 1e-15  # mass allowed to wrap around the window
_BATCH = 1 << 18  # complex numbers held at once: few enough for a processor's cache
ROWS = 1 << 13  # of counts that are worked on at once, so that no copy of all of them is made
_LEVELS = 32  # whose moments are computed at once
_FEW_FREQUENCIES = 1024
_DEGREES = 24  # of the polynomials, from 0
_MOST_ADDED = 1e-9  # to δ by them; where it would be more they are not used
_UNIT = 2.0**-53


def products(counts: Counts, weights: Floats) -> Floats:
    """Return counts @ weights without a copy of all counts as reals."""
    starts = range(0, len(counts), ROWS)
    parts = [counts[start : start + ROWS].astype(np.float64) @ weights for start in starts]
    return np.concatenate(parts) if parts else counts @ weights


def polynomials(ratios: Floats) -> Floats | None:
    """Return orthonormal polynomials in √ratio, shape (levels, degrees); None for so few levels that none are needed.

    Args:
        ratios: Increasing and positive: the levels over the noise.
    """
    if len(ratios) <= 2 * _DEGREES:
        return None
    root = np.sqrt(ratios)
    scaled = (2.0 * root - root[0] - root[-1]) / (root[-1] - root[0])
    return np.asarray(np.linalg.qr(np.polynomial.chebyshev.chebvander(scaled, _DEGREES - 1))[0])


class Composed:
    """One direction of a group: the composed loss of every record.

    Args:
        counts: Steps at each level, shape (records, levels).
        losses: One step's loss at each level.
        interval: The spacing of their grid.
        theta: The orders of the moments.
        few: Some of the records, the narrowest and the widest among them: they place window and frequencies.
        basis: From `polynomials`, or None.
    """

    def __init__(
        self,
        counts: Counts,
        losses: tuple[StepLoss, ...],
        interval: float,
        theta: Floats,
        *,
        few: Counts,
        basis: Floats | None = None,
    ) -> None:
        self.counts, self.interval, self.theta = counts, interval, theta
        self.steps = counts.sum(axis=1).astype(np.float64)
        self.log_moments = products(counts, log_mgfs(losses, interval, theta))
        self.moments_roundoff = np.max([log_mgf_roundoff(loss, interval, theta) for loss in losses], axis=0)
        downward = products(counts[few], log_mgfs(losses, interval, -theta))
        upper, self.bottom, self.top = window(self.log_moments, downward, theta)
        first, last = math.floor(self.bottom / interval), math.ceil(self.top / interval)
        self.size = 2 * next_fast_len((last - first + 2) // 2, real=True)
        self.first, self.last = first, first + self.size - 1
        transforms = np.stack([_transform(loss, self.size) for loss in losses])
        magnitude = np.log(np.maximum(np.abs(transforms), 1e-300))
        self._candidates, self._envelope = _candidates(magnitude)
        self.kept = magnitude.shape[1]
        self.kept, _ = self._frequencies_needed(few, few)
        self.smooth = self.kept <= _FEW_FREQUENCIES
        self._candidates = self._candidates[self._candidates <= self.kept]
        self.logs = np.stack([magnitude[:, : self.kept], np.angle(transforms[:, : self.kept])])
        self.excess = upper + 6.0 * (4.0 * self.steps + 64.0) * _UNIT + self.steps * LOST_PER_STEP
        self.counted: Counts | Floats = counts
        if basis is not None and self.smooth:
            self._shorten(basis)

    def _shorten(self, basis: Floats) -> None:
        """Put each record's steps and the logarithms of the transforms in terms of the polynomials, if these fit.

        Both logarithms' errors move the transform by at most that much, and δ by as much times Σ_j |payoff_j|, which
        is at most 1 + 2 (1 + ln kept); two products in the place of one double the round-off.
        """
        within = basis.T @ self.logs
        error = np.abs(self.logs - basis @ within).max(axis=2).sum(axis=0)
        often = 1.0 + 2.0 * (1.0 + math.log(self.kept))
        added = 2.0 * often * products(self.counts, error) + 24.0 * self.steps * _UNIT
        if added.max() < _MOST_ADDED:
            self.excess, self.logs, self.counted = self.excess + added, within, products(self.counts, basis)

    def delta(self, rows: Counts, epsilons: Floats) -> Floats:
        """Return the upper bound on δ of some records, in the order of their spread; shape (rows, epsilons)."""
        kept, dropped = self._frequencies_needed(rows[:: 1 + len(rows) // 1024], rows)
        excess = self.excess[rows] + dropped
        logs, out = self.logs[:, :, :kept], np.empty((len(rows), len(epsilons)))
        payoff = self._payoff(epsilons, kept) if self.smooth else None
        batch = max(1, _BATCH // (kept if self.smooth else self.size))
        for start in range(0, len(out), batch):
            part = self.counted[rows[start : start + batch]].astype(np.float64, copy=False)
            size, phase = np.exp(part @ logs[0]), part @ logs[1]
            real, imaginary = size * np.cos(phase), size * np.sin(phase)
            if payoff is not None:
                values = real @ payoff.real - imaginary @ payoff.imag
            else:
                values = self._inverted(real + 1j * imaginary, epsilons)
            out[start : start + batch] = values
        np.maximum(out, 0.0, out=out)
        out += excess[:, None]
        near_floor = (out < 100.0 * excess[:, None]).any(axis=0)
        out[:, near_floor] = np.minimum(out[:, near_floor], self._by_moments(rows, epsilons[near_floor]))
        return out

    def _by_moments(self, rows: Counts, epsilons: Floats) -> Floats:
        """Return δ from the gridded losses' moments: looser, but it has no round-off floor.

        Its own round-off goes into the exponent.
        """
        lam, log_moments, steps = self.theta, self.log_moments[rows], self.steps[rows, None]
        moments = log_moments - np.log1p(lam) - lam * np.log1p(1.0 / lam)
        moments += steps * self.moments_roundoff
        bounds = np.zeros((len(rows), len(epsilons)))
        by_size = np.argsort(log_moments[:, len(lam) // 2])
        for guide in {by_size[0], by_size[len(by_size) // 2], by_size[-1]}:  # alike, so their best orders serve all
            best = np.argmin(moments[guide] - np.outer(epsilons, lam), axis=1)
            np.minimum(bounds, moments[:, best] - lam[best] * epsilons, out=bounds)
        return np.asarray(np.exp(bounds) + steps * LOST_PER_STEP)

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

    def _payoff(self, epsilons: Floats, kept: int) -> Complexes:
        """Return (1/N) Σ_k (1 - e^{ε - kh})_+ e^{2πijk/N}, shape (frequencies, epsilons), with h the interval.

        In closed form, summed by parts so that nothing cancels: with z = e^{2πij/N}, k from a to b - 1,
        (1 - z) Σ z^k g_k = g_a z^a - g_{b-1} z^b + Σ_{k>a} z^k (g_k - g_{k-1}), and the last is a geometric sum.
        """
        h, stop = self.interval, self.last + 1
        start = np.ceil(epsilons / h)
        inside = start < stop  # past the window's upper end only the excess is left
        start = np.clip(start, self.first, self.last)
        frequency = 2.0 * np.pi * np.arange(kept) / self.size
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
        weight = np.full(kept, 2.0)
        weight[0] = 1.0
        if kept == self.size // 2 + 1:
            weight[-1] = 1.0  # the highest frequency has no mirror image
        return np.where(inside, payoff * weight[:, None] / self.size, 0.0)

    def _frequencies_needed(self, few: Counts, rows: Counts) -> tuple[int, Floats]:
        """Return how many frequencies to keep, and a bound on what the others could add to each record's δ.

        The payoff's transform at frequency j is at most N/j in size, so frequencies from J on add at most
        2 (1 + ln(N / 2J)) times the largest of their magnitudes; a running maximum bounds those.

        Args:
            few: Records for whom what is left out must not count.
            rows: Records to bound it for.
        """
        total, number = self.size // 2 + 1, len(self._candidates)
        if number:
            largest = products(self.counts[few], self._envelope[:, :number]).max(axis=0)
            enough = np.flatnonzero(largest < math.log(1e-17))
            at = int(enough[0]) if len(enough) else number - 1
            kept = int(self._candidates[at])
            if len(enough) or kept == self.kept:
                left = products(self.counts[rows], self._envelope[:, at])
                return kept, 2.0 * (1.0 + math.log(total / kept)) * np.exp(left)
        return total, np.zeros(len(rows))


def _candidates(magnitude: Floats) -> tuple[Counts, Floats]:
    """Return how many frequencies may be kept, and each level's largest magnitude from each of these numbers on."""
    total = magnitude.shape[1]
    candidates = np.unique(np.geomspace(16, total, 40).astype(np.int64))
    candidates = candidates[candidates < total]
    envelope = np.maximum.accumulate(magnitude[:, ::-1], axis=1)[:, ::-1]
    return candidates, envelope[:, candidates]


def _transform(loss: StepLoss, size: int) -> Complexes:
    """Return Σ_k p_k e^{-2πijk/N}; losses outside the window wrap around it."""
    position = np.arange(loss.first, loss.first + len(loss.probabilities)) % size
    return np.asarray(rfft(np.bincount(position, weights=loss.probabilities, minlength=size)))


def window(upward: Floats, downward: Floats, theta: Floats) -> tuple[Floats, float, float]:
    """Return a bound on each record's mass above the window, and the window's lower and upper end.

    Chernoff: Pr[L > z] ≤ exp(Σ_l n_l κ_l(θ) - θ z) for every θ > 0, with κ_l the log moment generating
    function of the gridded one-step loss and `upward` the sum; for the lower end the same with -L.
    """
    goal = -math.log(_TAIL)
    top = float(((upward + goal) / theta).min(axis=1).max())
    bottom = -float(((downward + goal) / theta).min(axis=1).max())
    return np.exp((upward - theta * top).min(axis=1)), bottom, top


def log_mgfs(losses: tuple[StepLoss, ...], interval: float, theta: Floats) -> Floats:
    """Return log E e^{θ loss} for each level's gridded loss, shape (levels, theta); all θ are of one sign.

    Exponents are taken from the end of each grid at which they are largest, so that all levels share their table.
    """
    out, rising = np.empty((len(losses), len(theta))), bool(theta[0] > 0.0)
    for start in range(0, len(losses), _LEVELS):
        some = losses[start : start + _LEVELS]
        ends = [int(np.flatnonzero(loss.probabilities)[-1 if rising else 0]) for loss in some]
        rows = [
            loss.probabilities[end::-1] if rising else loss.probabilities[end:]
            for loss, end in zip(some, ends, strict=True)
        ]
        stacked = np.zeros((len(some), max(map(len, rows))))
        for place, row in enumerate(rows):
            stacked[place, : len(row)] = row
        falling = np.exp(np.outer(np.arange(stacked.shape[1]), -np.abs(theta) * interval))
        ending = np.array([interval * (loss.first + end) for loss, end in zip(some, ends, strict=True)])
        out[start : start + _LEVELS] = np.log(stacked @ falling) + np.outer(ending, theta)
    return out


def log_mgf_roundoff(loss: StepLoss, interval: float, theta: Floats) -> Floats:
    """Return a bound on the round-off of `log_mgfs`.

    It grows with the exponents, and so with the largest loss, and with the number of terms.
    """
    cells = len(loss.probabilities)
    largest = interval * max(-loss.first, loss.first + cells)
    return np.asarray(_UNIT * ((64.0 + 4.0 * largest) * (1.0 + np.abs(theta)) + 2.0 * cells))
