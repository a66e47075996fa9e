"""Example norms to try the accountant on before you have your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tacita._check import Floats


def example_norms(records: int = 10_000) -> Floats:
    """Return norms of simulated records: log-normal, median 0.2, log-spread 0.5, clipped at 1.

    Roughly the shape seen in private training: most records contribute a fifth of the clip norm, a few
    reach it. Always the same numbers.
    """
    rng = np.random.default_rng(20260101)
    return np.minimum(rng.lognormal(np.log(0.2), 0.5, size=records), 1.0)
