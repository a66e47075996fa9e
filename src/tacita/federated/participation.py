"""What depends on clients taking part by chance: how many are drawn at most, and what their records cost."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from tacita.accounting import ORDERS, epsilon_from_costs
from tacita.accounting.levels import TOP, cost_table
from tacita.accounting.profiles import moments_profile
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.federated.plan import FederationPlan


TOO_MANY = 1e-30  # chance, over all rounds, that more clients are drawn than there are shares of noise
LARGEST_EPSILON = 40.0  # up to which that chance counts for nothing


def noise_shares(clients: int, client_rate: float, rounds: int) -> int:
    """Return the least number of clients that is exceeded in any of the rounds with chance at most 1e-30 in all.

    Args:
        clients: How many clients may be enrolled.
        client_rate: The chance with which each of them takes part in a round.
        rounds: How many rounds there may be at most.

    Returns:
        A number from 1 to `clients`.

    Examples:
        >>> noise_shares(10_000, 0.01, 300), noise_shares(20, 0.5, 30)
        (240, 20)
    """
    if client_rate == 1.0:
        return clients
    fewer = range(1, clients)  # nobody is drawn beyond `clients`
    return 1 + bisect_left(fewer, True, key=lambda n: rounds * binom.sf(n, clients, client_rate) <= TOO_MANY)


def hidden_participation(plan: FederationPlan, rounds: int, delta: float) -> Guarantee:
    """Return the worst case of a record whose client takes part by chance, averaged over that chance.

    In a round the record's client takes part with chance p, and only then do the two worlds differ. Moments of a
    mixture are at most mixed moments: the round costs log(1 + p (exp(a) - 1)), where a is the cost of the client's
    steps.

    Args:
        plan: A plan that protects records.
        rounds: How many rounds are taken.
        delta: Total failure probability.

    Returns:
        The figure for a record, or that of a client which is in every round where this is smaller.

    Raises:
        PrivacyError: If the plan's level does not protect records.

    Guarantee:
        It holds whether or not the attacker learns who took part, since the coins are the same in both worlds; once
        they are known, the figure of the busiest client says more.
    """
    declared = plan.records_mechanism
    table = cost_table(declared.sample_rate, declared.noise_multiplier, ORDERS)
    costs = rounds * plan.copies * mixed_costs(plan.local_steps * table[:, TOP], plan.client_rate)
    epsilon = max(SMALLEST_EPSILON, float(epsilon_from_costs(costs, ORDERS, delta=delta, notion="weak")))
    plain = plan.record_worst(rounds * plan.steps_a_round, delta)  # of clients that are in every round
    if plain.epsilon <= epsilon:
        return plain
    mixed = moments_profile(costs, ORDERS, up_to=4.0 * epsilon) & Profile.of_pair(epsilon, delta)
    return replace(plain, epsilon=epsilon, method="rdp, over who takes part", mechanism=(), profile=plain.curve & mixed)


def mixed_costs(costs: Floats, chance: float) -> Floats:
    """Return log(1 + p (exp(a) - 1)) for every cost a, without overflow and never below it.

    Examples:
        >>> float(mixed_costs(np.log([3.0]), 0.5)[0] - np.log(2.0)) < 1e-14
        True
    """
    small = np.minimum(costs, 1.0)
    large = np.maximum(costs, 1.0)
    mixed = np.where(
        costs < 1.0,
        np.log1p(chance * np.expm1(small)),
        large + np.log(chance + (1.0 - chance) * np.exp(-large)),
    )
    return np.asarray(np.minimum(mixed * (1.0 + 1e-14) + 1e-15, costs))
