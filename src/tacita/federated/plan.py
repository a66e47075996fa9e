"""What a federation declares before its first round: public constants, none of them a function of the data.

Four levels, each with the form that holds (docs/explanation/theory/federated.md):

    client      the server clips updates and adds the noise; a client with all it holds is protected
    parallel    each client adds its own noise to its own steps; a record is protected from everybody, the server too
    sequential  every record of the federation has its own coin, all clients answer and share the noise of one step
    joint       clients' noise protects records and is counted again for clients; the server adds what is missing
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from scipy.stats import binom

from tacita import _check
from tacita._check import PrivacyError
from tacita.guarantee import Guarantee
from tacita.training.plan import Plan, declared_rate, declared_stops, next_end
from tacita.training.step import check_clip_norm, positive

LEVELS = ("client", "parallel", "sequential", "joint")
TOO_MANY = 1e-30  # chance, over all rounds, that more clients are drawn than there are shares of noise
LARGEST_EPSILON = 40.0  # up to which that chance counts for nothing
_NOISE_RANGE = (0.01, 1e4)
_TAKES_PART = "the chance with which each client takes part in a round"
_PER_RECORD = ("record_clip_norm", "record_rate", "local_batch")


@dataclass(frozen=True, kw_only=True)
class FederationPlan:
    """The mechanism of a federation. Make it with `federation_plan`.

    Attributes:
        level: client, parallel, sequential or joint.
        clients: How many clients may be enrolled.
        client_rate: The chance with which each enrolled client takes part in a round; the largest of all.
        rounds: How many rounds there may be at most.
        stops: Declared ends, as (round, share of delta) pairs; the last one is at `rounds`. Empty for the plan's alone.
        clip_norm: The largest norm of a client's update.
        noise_multiplier: For client and joint: the standard deviation of all noise on the sum over `clip_norm`.
        record_clip_norm: The largest norm of one record's gradient inside a client.
        record_noise_multiplier: Noise over what one record can add: in a client's own step (parallel, joint), or in
            the sum over all clients (sequential).
        record_rate: The chance with which each record enters its client's step.
        bare_rate: True if that was given as a number, which may have been computed from the data, instead of as
            local_batch over a declared nominal size.
        local_batch: What a client divides its sum of gradients by: a declared constant.
        local_steps: Steps inside a client between two rounds.
        copies: How many clients may hold the same record; its costs add up over them.
        divisor: What the server divides the sum of updates by: a declared constant.
        delta: At which delta running figures are given.
        client_rates: Lower rates of single clients, by name.
        client_metrics: Whether what clients measure themselves is passed on. No figure covers it; the label says so.
    """

    level: str
    clients: int
    client_rate: float
    rounds: int
    clip_norm: float
    noise_multiplier: float | None = None
    record_clip_norm: float | None = None
    record_noise_multiplier: float | None = None
    record_rate: float | None = None
    local_batch: float | None = None
    local_steps: int = 1
    copies: int = 1
    divisor: float = 1.0
    delta: float = 1e-5
    client_rates: Mapping[str, float] = field(default_factory=dict)
    client_metrics: bool = False
    stops: tuple[tuple[int, float], ...] = ()
    bare_rate: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "client_rates": dict(self.client_rates)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FederationPlan:
        """Rebuild what `to_dict` wrote."""
        try:
            return cls(**{**data, "stops": tuple((int(r), float(share)) for r, share in data["stops"])})
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(f"The federation's plan is damaged: {error}") from error

    @cached_property
    def of_clients(self) -> Plan | None:
        """The mechanism as a client sees it, one step a round; None where clients are not protected."""
        if self.noise_multiplier is None:
            return None
        return Plan(
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.client_rate,
            steps=self.rounds,
            batch_size=self.divisor,
            delta=self.delta,
            unit="client",
        )

    @cached_property
    def of_records(self) -> Plan | None:
        """The mechanism as a record sees it whose client is in every round; None where records are not protected."""
        if self.record_noise_multiplier is None:
            return None
        return Plan(
            clip_norm=_given(self.record_clip_norm),
            noise_multiplier=self.record_noise_multiplier,
            sample_rate=_given(self.record_rate),
            steps=self.rounds * self.steps_a_round,
            batch_size=_given(self.local_batch),
            delta=self.delta,
        )

    @property
    def steps_a_round(self) -> int:
        """How many steps of a round a record may be in: those of every client that holds it."""
        return self.local_steps * self.copies

    @property
    def headline(self) -> Plan:
        """The plan of the larger unit that is protected."""
        plan = self.of_clients or self.of_records
        if plan is None:
            raise PrivacyError("This plan protects nobody.")
        return plan

    @cached_property
    def shares(self) -> int:
        """How many clients' noise the total is made of: with more clients drawn, a joint round asks nobody."""
        if self.level == "sequential":
            return self.clients
        return noise_shares(self.clients, self.client_rate, self.rounds) if self.level == "joint" else 0

    @property
    def total_noise(self) -> float:
        """The standard deviation of the noise in every sum of updates, whoever takes part."""
        if self.level == "sequential":
            return _given(self.record_noise_multiplier) * self._record_reach
        return 0.0 if self.level == "parallel" else _given(self.noise_multiplier) * self.clip_norm

    @property
    def share_noise(self) -> float:
        """The standard deviation of the noise that a client adds to its update, where it is a share of the total."""
        return self.total_noise / math.sqrt(self.shares) if self.shares else 0.0

    @property
    def failure(self) -> float:
        """What is charged of delta for rounds with more clients drawn than there are shares, all rounds together."""
        return (
            TOO_MANY * (1.0 + math.exp(LARGEST_EPSILON))
            if self.level == "joint" and self.shares < self.clients
            else 0.0
        )

    @property
    def _record_reach(self) -> float:
        """How far one record can move its client's update."""
        return _given(self.record_clip_norm) / _given(self.local_batch)

    def largest_update(self, size: int) -> float:
        """Return the norm above which no honest update with noise of its own lies, but for a chance below 1e-40."""
        return self.clip_norm + self.share_noise * (math.sqrt(size) + 14.0)

    def rate_of(self, client: str) -> float:
        """Return the chance with which a client takes part in a round."""
        return self.client_rates.get(client, self.client_rate)

    def end_after(self, taken: int) -> tuple[int, float]:
        """Return the end that covers a federation of `taken` rounds, and its share of delta: the next declared one."""
        return next_end(self.stops, self.rounds, taken)

    def client_worst(self, rounds: int, delta: float, *, rate: float | None = None, method: str = "pld") -> Guarantee:
        """Return the worst case for a client after so many rounds; `rate` for one that takes part less often."""
        plan = self.of_clients
        if plan is None:
            raise PrivacyError(f"Level {self.level!r} does not protect clients: there is no figure for them.")
        spare = delta - self.failure
        if spare <= 0.0:
            raise PrivacyError(f"delta must be above {self.failure:.2g} at level 'joint', got {delta:g}.")
        own = plan if rate is None else _with_rate(plan, rate)
        found = own.worst(rounds, spare, method)
        if self.failure and found.epsilon > LARGEST_EPSILON:
            raise PrivacyError("Level 'joint' promises nothing beyond epsilon 40: raise noise_multiplier.")
        return _at_delta(found, delta, self.failure)

    def record_worst(self, steps: int, delta: float, method: str = "pld") -> Guarantee:
        """Return the worst case for a record after so many steps of its client."""
        plan = self.of_records
        if plan is None:
            raise PrivacyError(f"Level {self.level!r} does not protect single records: there is no figure for them.")
        return plan.worst(steps, delta, method)


def federation_plan(
    *,
    level: str,
    clients: int,
    client_rate: float,
    rounds: int,
    clip_norm: float = 1.0,
    noise_multiplier: float | None = None,
    record_clip_norm: float | None = None,
    record_noise_multiplier: float | None = None,
    record_rate: float | None = None,
    local_batch: float | None = None,
    local_size: float | None = None,
    local_steps: int = 1,
    copies: int = 1,
    divisor: float | None = None,
    delta: float = 1e-5,
    client_rates: Mapping[str, float] | None = None,
    client_metrics: bool = False,
    stops: Sequence[int] | Mapping[int, float] = (),
) -> FederationPlan:
    """Check and complete what a federation declares; see `FederationPlan` for the words.

    `local_size` is the nominal number of records of a client, declared and not counted: `record_rate` is then
    local_batch / local_size. Given as a number instead, it becomes an open assumption on the label. `stops` are further
    ends, such as (10, 20), or {round: share of delta}. `divisor` is by default the expected number of clients in a
    round. At level joint a client's own noise is its share of the total, so `record_noise_multiplier` follows from the
    rest.

    Examples:
        >>> plan = federation_plan(level="client", clients=100, client_rate=0.1, rounds=50, noise_multiplier=1.1)
        >>> plan.divisor, round(plan.client_worst(50, 1e-3).epsilon, 1)
        (10.0, 2.8)
    """
    level = _check.one_of("level", "parallel" if level == "instance" else level, LEVELS)
    rate = _check.rate("client_rate", client_rate, hint=_TAKES_PART)
    enrolled, lower = _check.count("clients", clients), _lower_rates(client_rates, rate)
    if level == "sequential" and (rate < 1.0 or lower):
        raise PrivacyError(
            "Level 'sequential' needs client_rate=1: all clients answer every round, if with noise alone."
        )
    if level in ("sequential", "joint") and local_steps != 1:
        raise PrivacyError(
            f"Level {level!r} is for FedSGD alone: with local_steps={local_steps} a client steps from points that "
            "its own noise has moved, so the noise cannot be counted again. Use local_steps=1, or another level."
        )
    if copies != 1 and level not in ("parallel", "joint"):
        raise PrivacyError(
            f"Level {level!r} takes no copies: at level 'client' a client is protected with all it holds, at level "
            "'sequential' a record that several clients hold is a group of records (see tacita.group)."
        )
    plan = FederationPlan(
        level=level,
        clients=enrolled,
        client_rate=rate,
        rounds=_check.count("rounds", rounds),
        clip_norm=check_clip_norm(clip_norm),
        noise_multiplier=_noise(level, "noise_multiplier", noise_multiplier, ("client", "joint")),
        record_noise_multiplier=_noise(
            level, "record_noise_multiplier", record_noise_multiplier, ("parallel", "sequential")
        ),
        local_steps=_check.count("local_steps", local_steps),
        copies=_check.count("copies", copies),
        divisor=positive("divisor", divisor) if divisor is not None else max(1.0, _expected(enrolled, rate, lower)),
        delta=_check.probability("delta", delta),
        client_rates=lower,
        client_metrics=bool(client_metrics),
        stops=declared_stops(stops, _check.count("rounds", rounds)),
        bare_rate=local_size is None and record_rate is not None and record_rate < 1.0,
        **_per_record(level, record_clip_norm, record_rate, local_batch, local_size),
    )
    if level != "joint":
        return plan
    own = min(plan.share_noise / plan._record_reach, _NOISE_RANGE[1])  # more noise than that is not counted
    _check.in_range("the noise multiplier that clients' shares give their records", own, *_NOISE_RANGE)
    return FederationPlan(**{**plan.to_dict(), "record_noise_multiplier": own})


def noise_shares(clients: int, client_rate: float, rounds: int) -> int:
    """Return the least number of clients that is passed in any of the rounds with chance at most 1e-30 in all.

    Examples:
        >>> noise_shares(10_000, 0.01, 300), noise_shares(20, 0.5, 30)
        (240, 20)
    """
    if client_rate == 1.0:
        return clients
    fewer = range(1, clients)  # nobody is drawn beyond `clients`
    return 1 + bisect_left(fewer, True, key=lambda n: rounds * binom.sf(n, clients, client_rate) <= TOO_MANY)


def _per_record(
    level: str, clip: float | None, rate: float | None, batch: float | None, size: float | None
) -> dict[str, float]:
    if size is not None:
        batch, rate = declared_rate(rate, batch, size)
    given = dict(zip(_PER_RECORD, (clip, rate, batch), strict=True))
    if level == "client":
        wrong = [name for name, value in given.items() if value is not None]
        if wrong:
            raise ValueError(f"Level 'client' clips whole updates; {', '.join(wrong)} belong to the other levels.")
        return {}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ValueError(f"Level {level!r} needs {', '.join(missing)}.")
    return {
        "record_clip_norm": check_clip_norm(clip),
        "record_rate": _check.rate("record_rate", rate),
        "local_batch": positive("local_batch", batch),
    }


def _noise(level: str, name: str, value: float | None, levels: tuple[str, ...]) -> float | None:
    if level not in levels:
        if value is not None:
            raise ValueError(f"Level {level!r} takes no {name}.")
        return None
    if value is None:
        raise ValueError(f"Level {level!r} needs {name}.")
    return _check.in_range(name, value, *_NOISE_RANGE)


def _lower_rates(rates: Mapping[str, float] | None, largest: float) -> dict[str, float]:
    checked = {
        str(name): _check.rate(f"the rate of {name!r}", rate, hint=_TAKES_PART) for name, rate in (rates or {}).items()
    }
    if any(rate > largest for rate in checked.values()):
        raise PrivacyError(
            "client_rate must be the largest rate of all: single clients may take part less often, not more."
        )
    return checked


def _expected(clients: int, rate: float, lower: Mapping[str, float]) -> float:
    return rate * (clients - len(lower)) + sum(lower.values())


def _with_rate(plan: Plan, rate: float) -> Plan:
    return Plan.from_dict({**plan.to_dict(), "sample_rate": _check.rate("rate", rate)})


def _at_delta(found: Guarantee, delta: float, failure: float) -> Guarantee:
    if not failure:
        return found
    return replace(found, delta=delta, delta_split=(("noise", delta - failure), ("too many drawn", failure)))


def _given(value: float | None) -> float:
    if value is None:
        raise PrivacyError("The federation's plan lacks a number that its level needs.")
    return value
