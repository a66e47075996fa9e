"""Exact discrete noise: OpenDP's samplers, and an exact draw from a row of probabilities.

No float is ever added to data: noise is a whole number drawn by exact arithmetic, so its low bits say nothing. There is
no seed: noise that can be repeated can be subtracted.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats


def discrete_laplace(values: Sequence[int], scale: float) -> tuple[int, ...]:
    """Return values plus noise with P(z) proportional to exp(-|z| / scale)."""
    return tuple(laplace_sampler(scale)([int(v) for v in values]))


def discrete_gaussian(values: Sequence[int], sd: float) -> tuple[int, ...]:
    """Return values plus noise with P(z) proportional to exp(-z² / (2 sd²))."""
    return tuple(gaussian_sampler(sd)([int(v) for v in values]))


def rounded_laplace(values: Sequence[int], scale: float) -> tuple[int, ...]:
    """Return values plus Laplace noise of this scale, rounded to whole numbers.

    Rounded Laplace noise is not 0 with probability exp(-1 / (2 scale)); then its size is geometric and its sign even.
    Both come from exact discrete Laplace draws, by rejection.
    """
    return tuple(int(value) + _one_rounded_laplace(scale) for value in values)


def pick(row: Floats) -> int:
    """Return an index with probability proportional to the row's floats, exactly."""
    ratios = [float(weight).as_integer_ratio() for weight in row]
    largest = max(denominator for _, denominator in ratios)  # denominators are powers of two
    ends = list(accumulate(top * (largest // bottom) for top, bottom in ratios))
    drawn = secrets.randbelow(ends[-1])
    return next(index for index, end in enumerate(ends) if drawn < end)


def _one_rounded_laplace(scale: float) -> int:
    while (coin := discrete_laplace([0], 2.0 * scale)[0]) < 0:
        pass
    if coin == 0:
        return 0
    while (noise := discrete_laplace([0], scale)[0]) == 0:
        pass
    return noise


@lru_cache(maxsize=64)
def laplace_sampler(scale: float) -> Any:
    """Return OpenDP's discrete Laplace measurement. Build it before charging: what is impossible raises here."""
    opendp = _opendp()
    return opendp.measurements.make_laplace(_integers(opendp), opendp.metrics.l1_distance("i64"), scale=float(scale))


@lru_cache(maxsize=64)
def gaussian_sampler(sd: float) -> Any:
    """Return OpenDP's discrete Gaussian measurement. Build it before charging: what is impossible raises here."""
    opendp = _opendp()
    return opendp.measurements.make_gaussian(_integers(opendp), opendp.metrics.l2_distance("f64"), scale=float(sd))


def _integers(opendp: Any) -> Any:
    return opendp.domains.vector_domain(opendp.domains.atom_domain(T="i64"))


def _opendp() -> Any:
    try:
        import opendp.domains
        import opendp.measurements
        import opendp.metrics
        from opendp.mod import enable_features
    except ImportError as error:
        raise _check.missing("Exact noise needs OpenDP", "posterior") from error
    enable_features("contrib")
    return opendp
