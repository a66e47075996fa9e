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


def prepare(kind: str, scale: float) -> None:
    """Build a sampler, so that what is missing or impossible is known before anything is charged."""
    _sampler(kind, float(scale))


def discrete_laplace(values: Sequence[int], scale: float) -> tuple[int, ...]:
    """Return values plus noise with P(z) proportional to exp(-|z| / scale)."""
    return tuple(_sampler("laplace", float(scale))([int(v) for v in values]))


def discrete_gaussian(values: Sequence[int], sd: float) -> tuple[int, ...]:
    """Return values plus noise with P(z) proportional to exp(-z² / (2 sd²))."""
    return tuple(_sampler("gaussian", float(sd))([int(v) for v in values]))


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
def _sampler(kind: str, scale: float) -> Any:
    opendp = _opendp()
    domain = opendp.domains.vector_domain(opendp.domains.atom_domain(T="i64"))
    if kind == "gaussian":
        return opendp.measurements.make_gaussian(domain, opendp.metrics.l2_distance("f64"), scale=scale)
    return opendp.measurements.make_laplace(domain, opendp.metrics.l1_distance("i64"), scale=scale)


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
