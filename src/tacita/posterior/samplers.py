"""Exact discrete noise: OpenDP's samplers, and an exact draw from a row of probabilities.

No float is ever added to data: noise is a whole number drawn by exact arithmetic, so its low bits say nothing. There is
no seed: noise that can be repeated can be subtracted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

    Sampler = Callable[[Sequence[int]], tuple[int, ...]]


@lru_cache(maxsize=64)
def sampler(kind: Literal["laplace", "gaussian"], scale: float) -> Sampler:
    """Return a function that adds exact noise to whole numbers: OpenDP's measurement.

    Args:
        kind: `laplace` for P(z) proportional to exp(-|z| / scale), `gaussian` for exp(-z² / (2 scale²)).
        scale: How wide it is.

    Returns:
        The function. Build it before charging: whatever is missing or impossible raises here.
    """
    try:
        from opendp.domains import atom_domain, vector_domain
        from opendp.measurements import make_gaussian, make_laplace
        from opendp.metrics import l1_distance, l2_distance
        from opendp.mod import enable_features
    except ImportError as error:
        raise _check.missing("Exact noise needs OpenDP", "posterior") from error
    enable_features("contrib")
    integers = vector_domain(atom_domain(T="i64"))
    if kind == "laplace":
        measurement = make_laplace(integers, l1_distance("i64"), scale=float(scale))
    else:
        measurement = make_gaussian(integers, l2_distance("f64"), scale=float(scale))
    return lambda values: tuple(measurement([int(value) for value in values]))


def pick(row: Floats) -> int:
    """Return an index with probability proportional to the row's floats, exactly."""
    ratios = [float(weight).as_integer_ratio() for weight in row]
    largest = max(denominator for _, denominator in ratios)  # denominators are powers of two
    ends = list(accumulate(top * (largest // bottom) for top, bottom in ratios))
    drawn = secrets.randbelow(ends[-1])
    return next(index for index, end in enumerate(ends) if drawn < end)
