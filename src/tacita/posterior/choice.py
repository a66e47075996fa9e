"""Which mechanism brings the released posterior nearest to the true one, on average under the prior.

Distance is Hellinger's, between the true posterior and the best one that can be named from the output: noise-aware
post-processing is open to everyone, so a mechanism is not blamed for an output that is merely badly read. Only public
things enter: the prior, the number of records and the budget.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita.posterior import finite
from tacita.posterior.mechanisms import Request, exponential, laplace
from tacita.posterior.plans import Candidate, Noise, cells_plan
from tacita.posterior.scores import distances, number_of_states, predictive, states

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.posterior.models import Dirichlet

MOST_COMPARED = 1001  # states; beyond this tables take long, and geometric noise was never beaten below it
_DRAWS = 400


@lru_cache(maxsize=32)
def compare(request: Request, prior: Dirichlet, n: int) -> tuple[Candidate, ...]:
    """Return every mechanism that fits the budget with its expected distance, the nearest first.

    With too many possible posteriors for tables nothing is compared.
    """
    plain = replace(request, name="geometric", delta=0.0)
    if number_of_states(prior.cells, n) > MOST_COMPARED:
        return ()
    found = [Candidate(option, expected_distance(option, prior, n)) for option in _options(request, plain, prior)]
    return tuple(sorted(found, key=lambda candidate: candidate.distance))


def expected_distance(request: Request, prior: Dirichlet, n: int) -> float:
    """Return the expected Hellinger distance between the true posterior and the best one named from the output.

    Exact for two categories and for tables; for noise on three or more cells it is the mean of 400 simulated releases,
    with simulated data and a fixed seed.
    """
    gaps = distances(prior, n, "hellinger")
    before = predictive(prior, n)
    plan = cells_plan(request, prior, prior.cells, n)
    if plan.noise is not None and prior.cells > 2:
        return _simulated(plan.noise, prior, n, gaps, before)
    rows = plan.table if plan.table is not None else _noise_rows(plan.source, n)
    return float(((before[:, None] * rows).T @ gaps).min(axis=1).sum())


def _options(request: Request, plain: Request, prior: Dirichlet) -> list[Request]:
    epsilon, delta = request.epsilon, request.delta
    options = [plain, laplace(epsilon=epsilon), exponential(epsilon=epsilon, delta=delta, sensitivity="global")]
    if prior.cells == 2:
        options.append(laplace(epsilon=epsilon, sensitivity="histogram"))
    if delta > 0.0:
        options.append(exponential(epsilon=epsilon, delta=delta))
    return options


def _noise_rows(source: Noise, n: int) -> Floats:
    if source.kind == "geometric":
        return finite.geometric_rows(n, 1.0 / source.scale)
    return finite.laplace_rows(n, source.scale)


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
