r"""Several releases together, by their whole privacy curves.

A curve δ(ε) that bounds both directions is that of one dominating pair of laws: with t = e^ε and D(t) = δ(ln t) for
t ≥ 1, D(t) = 1 - t + t D(1/t) below, the greatest convex function under D is the curve of a loss whose atoms are its
kinks (Zhu, Dong & Wang 2022). Atoms are split over the two grid points beside them so that both laws' masses are kept
("connect the dots", Doroshenko et al. 2022), convolved, and read back as a curve. Every rounding is to the larger loss.
The proof is in docs/explanation/theory/profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Floats

_LARGEST = 300.0  # losses beyond this count as infinite
_CELLS = 2**14  # of the grid, over the width of the composed loss
_WIDEST = 2**17  # of the grid, over the widest single loss
_TRIMMED = 1e-18  # of probability, at each end of each convolution, beside its error
_UNIT = 2.0**-53


@dataclass(frozen=True)
class _Loss:
    """A loss on the grid `interval * (first, first + 1, ...)`; what is missing in `masses` is infinite."""

    first: int
    masses: Floats
    infinite: float


def compose(parts: Sequence[tuple[Profile, int]]) -> Profile:
    """Return the curve of several releases about the same records.

    Args:
        parts: Curves, each with how many releases have it. All are fixed before the first release: composing the
            curves of releases that are chosen by what earlier ones showed is not valid, and needs a filter.

    Returns:
        The curve, never below the true one.

    Raises:
        ValueError: If there are no parts.

    Guarantee:
        If every release's curve is at most the one given, the curve of all of them together is at most the result.

    Examples:
        >>> coin = Profile.of_pair(1.0, 0.0)
        >>> round(compose([(coin, 2)]).delta(1.0), 4)  # both coins show it: e²/(1+e)² (1 - 1/e)
        0.3378
    """
    counted = [(profile, _check.count("a number of releases", count)) for profile, count in parts]
    if not counted:
        raise ValueError("parts must hold at least one curve.")
    if len(counted) == 1 and counted[0][1] == 1:
        return counted[0][0]
    atoms = [_atoms(profile) for profile, _ in counted]
    counts = [count for _, count in counted]
    interval = _interval(atoms, counts)
    together = _Loss(0, np.ones(1), 0.0)
    for (losses, masses, infinite), count in zip(atoms, counts, strict=True):
        together = _convolved(together, _power(_on_grid(losses, masses, infinite, interval), count))
    last = math.fsum(count * profile.epsilons[-1] for profile, count in counted) * (1.0 + 4.0 * _UNIT)
    fails = min(1.0, math.fsum(count * profile.deltas[-1] for profile, count in counted) * (1.0 + 4.0 * _UNIT))
    return (_curve(together, interval) & Profile.of_pair(last, fails)).thinned()


def _atoms(profile: Profile) -> tuple[Floats, Floats, float]:
    """Return the loss of a pair that dominates the curve in both directions: its values, masses, and what is infinite.

    The masses are those of the first law; the infinite part makes up for round-off.
    """
    eps, deltas = np.array(profile.epsilons), np.array(profile.deltas)
    eps, deltas = eps[eps <= _LARGEST], deltas[eps <= _LARGEST]
    deltas[0] = min(deltas[0], float((deltas + (1.0 - deltas) * np.tanh(eps / 2.0)).min()) * (1.0 + 4.0 * _UNIT))
    kept = _hull(eps, deltas)
    eps, deltas = eps[kept], deltas[kept]
    widths = np.exp(eps[:-1]) * np.expm1(np.diff(eps))
    slopes = np.append(np.diff(deltas) / widths, 0.0)
    other = np.maximum(np.diff(slopes), 0.0)  # of the second law, at each kink but the middle one
    own = np.exp(eps[1:]) * other
    middle = max(0.0, 2.0 * slopes[0] + 1.0 - deltas[0])
    losses = np.concatenate([-eps[:0:-1], [0.0], eps[1:]])
    masses = np.concatenate([other[::-1], [middle], own])
    infinite = float(deltas[-1])
    reached = np.maximum(-np.expm1(losses[:, None] - losses), 0.0) @ masses + infinite
    mirrored = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * deltas[:0:-1]
    missing = max(0.0, float((np.append(mirrored, deltas) - reached).max()), 1.0 - infinite - float(masses.sum()))
    return losses, masses, min(1.0, infinite + missing + len(losses) * _UNIT)


def _hull(eps: Floats, deltas: Floats) -> list[int]:
    """Return which points are on the greatest convex function of e^ε below the curve."""
    kept: list[int] = []
    for new in range(len(eps)):
        while len(kept) > 1:
            before, last = kept[-2:]
            weight = math.expm1(eps[last] - eps[before]) / math.expm1(eps[new] - eps[before])
            if deltas[last] < deltas[before] + weight * (deltas[new] - deltas[before]):
                break
            kept.pop()
        kept.append(new)
    return kept


def _interval(atoms: Sequence[tuple[Floats, Floats, float]], counts: Sequence[int]) -> float:
    """Return the spacing of a grid that suits the composed loss. No bound rests on it."""
    mean = variance = widest = 0.0
    for (losses, masses, _), count in zip(atoms, counts, strict=True):
        share = masses / max(float(masses.sum()), 1e-300)
        centre = float(share @ losses)
        mean, variance = mean + count * abs(centre), variance + count * float(share @ (losses - centre) ** 2)
        widest = max(widest, float(losses[-1]))
    return max((mean + 9.0 * math.sqrt(variance)) / _CELLS, 2.0 * widest / _WIDEST, 1e-12)


def _on_grid(losses: Floats, masses: Floats, infinite: float, interval: float) -> _Loss:
    places = np.floor(losses / interval).astype(np.int64)
    up = np.expm1(np.minimum(places * interval - losses, 0.0)) / math.expm1(-interval)
    up = np.clip(up + 8.0 * _UNIT * (1.0 + np.abs(losses)) / interval, 0.0, 1.0)
    points = np.zeros(int(places[-1] - places[0]) + 2)
    np.add.at(points, places - places[0], masses * (1.0 - up))
    np.add.at(points, places - places[0] + 1, masses * up)
    return _Loss(int(places[0]), points, infinite)


def _power(loss: _Loss, count: int) -> _Loss:
    if count == 1:
        return loss
    half = _power(loss, count // 2)
    twice = _convolved(half, half)
    return _convolved(twice, loss) if count % 2 else twice


def _convolved(one: _Loss, other: _Loss) -> _Loss:
    if len(one.masses) == 1 or len(other.masses) == 1:
        masses = np.convolve(one.masses, other.masses)
        error = _UNIT * float(masses.sum())
    else:
        length = len(one.masses) + len(other.masses) - 1
        size = 1 << (length - 1).bit_length()
        spectrum = np.fft.rfft(one.masses, size) * np.fft.rfft(other.masses, size)
        masses = np.maximum(np.fft.irfft(spectrum, size)[:length], 0.0)
        # A transform's error is below 8 log2(size) units of its length (Higham 2002, ch. 24); there are three.
        norm = max(float(np.linalg.norm(one.masses)), float(np.linalg.norm(other.masses)))
        error = math.sqrt(size) * 24.0 * _UNIT * math.log2(size) * norm
    above, below, least = np.cumsum(masses[::-1])[::-1], np.cumsum(masses), _TRIMMED + error
    start = min(int(np.searchsorted(below, least)), len(masses) - 1)
    end = max(start + 1, len(masses) - int(np.searchsorted(above[::-1], least, side="right")))
    beyond = float(above[end]) if end < len(masses) else 0.0
    kept = masses[start:end].copy()
    kept[0] += below[start - 1] if start else 0.0  # smaller losses are moved up
    infinite = min(1.0, (one.infinite + other.infinite + error + beyond) * (1.0 + 2.0 * len(masses) * _UNIT))
    return _Loss(one.first + other.first + start, kept, infinite)


def _curve(loss: _Loss, interval: float) -> Profile:
    places = np.arange(loss.first, loss.first + len(loss.masses))
    kept = (places > 0) & (places * interval <= _LARGEST)
    infinite = loss.infinite + float(loss.masses[places * interval > _LARGEST].sum())
    above, masses = places[kept] * interval, loss.masses[kept]
    eps = np.concatenate([[0.0], np.arange(1, int(places[-1]) + 1) * interval])
    eps = eps[eps <= _LARGEST]
    own, other = (np.cumsum(part[::-1])[::-1] for part in (masses, masses * np.exp(-above)))
    at = np.searchsorted(above, eps, side="right")
    own, other = (np.append(part, 0.0)[at] for part in (own, other))
    slack = 4.0 * _UNIT * (len(masses) + _LARGEST) * own  # of sums, and of the grid
    deltas = np.maximum(own - np.exp(eps) * other, 0.0) + slack + infinite * (1.0 + 4.0 * _UNIT)
    return Profile.of_curve(lambda _: deltas, eps)
