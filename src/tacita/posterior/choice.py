"""Which mechanism brings the released posterior nearest to the true one, on average under the prior.

Distance is Hellinger's, between the true posterior and the best one that can be named from the output: noise-aware
post-processing is open to everyone, so a mechanism is judged by its output as read at its best. Only public facts are
used: the prior, the number of records and the budget.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita._check import PrivacyError
from tacita.posterior.enumeration import distances, number_of_states, predictive, states
from tacita.posterior.plans import Candidate

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.posterior.mechanisms import Mechanism, Statistic
    from tacita.posterior.models import Dirichlet
    from tacita.posterior.noise import Noise

MOST_COMPARED = 1001  # states; beyond this tables take long, and geometric noise was never beaten below it
_DRAWS = 400


@lru_cache(maxsize=32)
def compare(options: tuple[Mechanism, ...], statistic: Statistic) -> tuple[Candidate, ...]:
    """Return the options of `best` with what they are judged by, the best first.

    Sums are judged by the noise's standard deviation, posteriors by their expected distance. Nothing is compared for
    other statistics, nor where there are too many possible posteriors for tables.

    Args:
        options: Mechanisms that fit the statistic.
        statistic: What is released.
    """
    if statistic.summed:
        found = []
        for option in options:
            with suppress(PrivacyError):  # too wide to be certified
                sd = option.calibrated(statistic).source.sd
                found.append(Candidate(option, sd, "standard deviation in steps"))
    else:
        unknown = statistic.prior is None or statistic.n is None
        if unknown or number_of_states(statistic.cells, statistic.n or 0) > MOST_COMPARED:
            return ()
        found = [Candidate(option, expected_distance(option, statistic)) for option in options]
    return tuple(sorted(found, key=lambda candidate: candidate.distance))


def expected_distance(mechanism: Mechanism, statistic: Statistic) -> float:
    """Return the expected Hellinger distance between the true posterior and the best one named from the output.

    Exact for two categories and for tables; for noise on three or more cells it is the mean of 400 simulated releases,
    with simulated data and a fixed seed.

    Args:
        mechanism: A mechanism that fits the statistic.
        statistic: A posterior's cells, with its prior and the public number of records.
    """
    if statistic.prior is None or statistic.n is None:
        raise ValueError("an expected distance needs a prior and a public number of records")
    prior, n = statistic.prior, statistic.n
    gaps = distances(prior, n, "hellinger")
    before = predictive(prior, n)
    plan = mechanism.calibrated(statistic)
    if plan.noise is not None and prior.cells > 2:
        return _simulated(plan.noise, prior, n, gaps, before)
    rows = plan.table if plan.table is not None else plan.source.clipped_rows(n)
    return float(((before[:, None] * rows).T @ gaps).min(axis=1).sum())


def _simulated(source: Noise, prior: Dirichlet, n: int, gaps: Floats, before: Floats) -> float:
    rng = np.random.default_rng(0)
    listed = states(prior.cells, n)
    sizes = np.arange(-source.reach, source.reach + 1)
    chances = np.exp(source.log_chance(sizes))
    total = 0.0
    for state in rng.choice(len(listed), size=_DRAWS, p=before):
        output = listed[state] + rng.choice(sizes, size=prior.cells, p=chances / chances.sum())
        logs = source.log_chance(output - listed).sum(axis=1)
        weights = before * np.exp(logs - logs.max())
        total += float(((weights / weights.sum()) @ gaps).min())
    return total / _DRAWS
