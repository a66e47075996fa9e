"""How many clients' noise the total is made of, and what it costs that more of them may be drawn."""

from __future__ import annotations

import math
from bisect import bisect_left

from scipy.stats import binom

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


def failure(shares: int, clients: int) -> float:
    """Return the part of delta charged for rounds with more clients drawn than there are shares, over all rounds."""
    return TOO_MANY * (1.0 + math.exp(LARGEST_EPSILON)) if 0 < shares < clients else 0.0
