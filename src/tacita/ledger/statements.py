"""What a ledger says of a run, a reservation or an analyst, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from tacita.profile import Profile


@dataclass(frozen=True)
class Promise:
    """A budget that holds for everything charged to a ledger, and the privacy curve that follows from it."""

    epsilon: float
    delta: float
    curve: Profile


@dataclass(frozen=True)
class Reservation:
    """Budget that is held for a run.

    Attributes:
        analyst: Who opened the run; empty if nobody said.
        time: When it was reserved.
        steps: How many steps it is for.
        charged: How many of them are charged. Once there are any, it cannot be cancelled.
        epsilon: What it costs by itself, at the budget's delta; 1e-5 without a budget.
    """

    analyst: str
    time: str
    steps: int
    charged: int
    epsilon: float


@dataclass(frozen=True)
class Analyst:
    """What one analyst has spent and may spend.

    Attributes:
        epsilon: What their own charges come to, at the budget's delta; 1e-5 without a budget.
        share: The most that this may be; None if the budget alone limits it.
    """

    epsilon: float
    share: float | None
