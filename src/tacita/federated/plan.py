"""What a federation declares before its first round: public constants, none of them a function of the data.

What is protected, and how, is the plan's privacy level, one of `tacita.federated.levels.LEVELS`:

    client      the server clips updates and adds the noise; a client with all it holds is protected
    parallel    each client adds noise to its own steps; a record is protected from everybody, the server included
    sequential  every record of the federation has its own coin, all clients answer and share the noise of one step
    joint       clients' noise protects records and is counted again for clients; the server adds what is missing

The statements and their proofs are in docs/explanation/theory/federated.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import Target
from tacita.federated import participation
from tacita.federated.levels import LEVELS, UNPROTECTED, Level
from tacita.federated.levels.level import given
from tacita.federated.noise import calibrated, declared_noise
from tacita.guarantee import Guarantee
from tacita.mechanisms.rounded import Grid
from tacita.training.plan import Pair, Plan, declared_kind, declared_rate, declared_stops, next_end
from tacita.training.settings import grouped
from tacita.training.step import check_clip_norm, positive

_NOISE_RANGE = (0.01, 1e4)
_TAKES_PART = "the chance with which each client takes part in a round"
_UNCLIPPED = 1e18  # updates of that norm are dropped in any case


@dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """How records are protected inside a client, at the levels that protect them.

    Attributes:
        record_clip_norm: The largest norm of one record's gradient inside a client.
        record_noise_multiplier: Noise over what one record can add: in a client's step (parallel), or in the sum over
            all clients (sequential). At level joint it follows from the rest.
        record_rate: The chance with which each record enters its client's step. Given as a number instead of
            `local_size`, it becomes an open assumption on the label.
        local_batch: What a client divides its sum of gradients by: a declared constant.
        local_size: The nominal number of records of a client, declared and not counted: `record_rate` is then
            local_batch / local_size.
        local_steps: Steps inside a client between two rounds.
        copies: How many clients may hold the same record; its costs add up over them.
    """

    record_clip_norm: float | None = None
    record_noise_multiplier: float | None = None
    record_rate: float | None = None
    local_batch: float | None = None
    local_size: float | None = None
    local_steps: int = 1
    copies: int = 1


@dataclass(frozen=True, kw_only=True)
class FederationPlan:
    """The mechanism of a federation. Create it with `FederationPlan.declare`.

    Attributes:
        level: The name of the privacy level: client, parallel, sequential or joint.
        clients: How many clients may be enrolled.
        client_rate: The chance with which each enrolled client takes part in a round; the largest one.
        rounds: How many rounds there may be at most.
        stops: Declared ends, as (round, share of delta) pairs; the last one is at `rounds`. Empty for the plan's alone.
        clip_norm: The largest norm of a client's update.
        noise_multiplier: For client and joint: the standard deviation of all noise on the sum over `clip_norm`.
        record_clip_norm: The largest norm of one record's gradient inside a client.
        record_noise_multiplier: Noise over what one record can add: in a client's step (parallel, joint), or in
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
        client_metrics: Whether metrics that clients measure are passed on. No figure covers them; the label says so.
        noise: "float", or at level client "exact": updates, sums and noise in whole numbers on a public grid.

    Examples:
        >>> plan = FederationPlan.declare(
        ...     level="client", clients=100, client_rate=0.1, rounds=50, noise_multiplier=1.1)
        >>> plan.divisor, round(plan.client_worst(50, 1e-3).epsilon, 1)
        (10.0, 2.8)
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
    noise: str = "float"

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "record_noise_multiplier"):
            if getattr(self, name) is not None:
                _check.in_range(name, getattr(self, name), *_NOISE_RANGE)
        if self.stops and (self.stops[-1][0] != self.rounds or not sum(share for _, share in self.stops) <= 1.0 + 1e-9):
            raise ValueError("stops must end at the last round, and share out no more than delta.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {**asdict(self), "client_rates": dict(self.client_rates)}
        return {name: value for name, value in plain.items() if (name, value) != ("noise", "float")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FederationPlan:
        """Rebuild what `to_dict` wrote."""
        try:
            _check.one_of("level", data["level"], (*LEVELS, UNPROTECTED.name))
            noise = declared_kind(data.get("noise", "float"))
            return cls(**{**data, "stops": tuple((int(r), float(share)) for r, share in data["stops"]), "noise": noise})
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(f"The federation's plan is damaged: {error}") from error

    @property
    def privacy_level(self) -> Level:
        """Everything that depends on the level."""
        return UNPROTECTED if self.level == UNPROTECTED.name else LEVELS[self.level]

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
            noise=self.noise,
        )

    @property
    def grid(self) -> Grid | None:
        """What updates and noise are whole numbers of; None for noise in floating point."""
        return None if self.of_clients is None else self.of_clients.grid

    @cached_property
    def of_records(self) -> Plan | None:
        """The mechanism as a record sees it whose client is in every round; None where records are not protected."""
        if self.record_noise_multiplier is None:
            return None
        return Plan(
            clip_norm=given(self.record_clip_norm),
            noise_multiplier=self.record_noise_multiplier,
            sample_rate=given(self.record_rate),
            steps=self.rounds * self.steps_a_round,
            batch_size=given(self.local_batch),
            delta=self.delta,
        )

    @property
    def records_mechanism(self) -> Plan:
        """The mechanism as a record sees it; raises where single records are not protected."""
        if self.of_records is None:
            raise PrivacyError(f"Level {self.level!r} does not protect single records: there is no figure for them.")
        return self.of_records

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
        """How many clients' noise the total is made of: a round that draws more clients asks nobody."""
        return self.privacy_level.shares(self)

    @property
    def total_noise(self) -> float:
        """The standard deviation of the noise in every sum of updates, whoever takes part."""
        return self.privacy_level.total_noise(self)

    @property
    def share_noise(self) -> float:
        """The standard deviation of the noise that a client adds to its update, where it is a share of the total."""
        return self.total_noise / math.sqrt(self.shares) if self.shares else 0.0

    @property
    def failure(self) -> float:
        """What is charged of delta for rounds with more clients drawn than there are shares, all rounds together."""
        if not 0 < self.shares < self.clients:
            return 0.0
        return participation.TOO_MANY * (1.0 + math.exp(participation.LARGEST_EPSILON))

    @property
    def record_reach(self) -> float:
        """How far one record can move its client's update."""
        return given(self.record_clip_norm) / given(self.local_batch)

    def largest_update(self, size: int) -> float:
        """Return the norm that an honest update with a share of the noise exceeds with chance below 1e-40."""
        return self.clip_norm + self.share_noise * (math.sqrt(size) + 14.0)

    def rate_of(self, client: str) -> float:
        """Return the chance with which a client takes part in a round."""
        return self.client_rates.get(client, self.client_rate)

    def end_after(self, taken: int) -> tuple[int, float]:
        """Return the end that covers a federation of `taken` rounds, and its share of delta: the next declared one."""
        return next_end(self.stops, self.rounds, taken)

    def client_worst(self, rounds: int, delta: float, *, rate: float | None = None, method: str = "pld") -> Guarantee:
        """Return the worst case for a client.

        Args:
            rounds: How many rounds are taken, fixed beforehand.
            delta: Total failure probability.
            rate: The rate of a client that takes part less often than `client_rate`.
            method: `pld`, or `rdp` for comparison.

        Raises:
            PrivacyError: If the level does not protect clients, or does not reach this delta.

        Guarantee:
            Worst case over adding or removing one client with all it holds.
        """
        plan = self.of_clients
        if plan is None:
            raise PrivacyError(f"Level {self.level!r} does not protect clients: there is no figure for them.")
        spare = delta - self.failure
        if spare <= 0.0:
            raise PrivacyError(f"delta must be above {self.failure:.2g} at level {self.level!r}, got {delta:g}.")
        own = plan if rate is None else replace(plan, sample_rate=_check.rate("rate", rate))
        found = own.worst(rounds, spare, method)
        if not self.failure:
            return found
        if found.epsilon > participation.LARGEST_EPSILON:
            raise PrivacyError(f"Level {self.level!r} promises nothing beyond epsilon 40: raise noise_multiplier.")
        curve = found.profile and found.profile.raised(self.failure, up_to=participation.LARGEST_EPSILON)
        split = (("noise", spare), ("too many drawn", self.failure))
        return replace(found, delta=delta, delta_split=split, profile=curve)

    def record_worst(self, steps: int, delta: float, method: str = "pld") -> Guarantee:
        """Return the worst case for a record.

        Args:
            steps: How many steps its clients take, fixed beforehand.
            delta: Total failure probability.
            method: `pld`, or `rdp` for comparison.

        Raises:
            PrivacyError: If the level does not protect records.

        Guarantee:
            Worst case over adding or removing one record.
        """
        return self.records_mechanism.worst(steps, delta, method)

    @classmethod
    def declare(
        cls,
        *,
        level: str,
        clients: int,
        client_rate: float,
        rounds: int,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        target: Pair | Target | None = None,
        records: RecordSettings | None = None,
        divisor: float | None = None,
        delta: float = 1e-5,
        client_rates: Mapping[str, float] | None = None,
        client_metrics: bool = False,
        stops: Sequence[int] | Mapping[int, float] = (),
        noise: str = "float",
        **settings: Any,
    ) -> FederationPlan:
        """Check and complete what a federation declares.

        Args:
            level: client, parallel, sequential or joint.
            clients: How many clients may be enrolled.
            client_rate: The chance with which each takes part in a round; the largest one.
            rounds: How many rounds there may be at most.
            clip_norm: The largest norm of a client's update.
            noise_multiplier: Noise standard deviation over `clip_norm`, at levels client and joint.
            target: (epsilon, delta), or a `Target` such as `Target(attack_success=0.55)`, instead of the level's noise
                multiplier: the least noise that keeps the worst case of the level's larger unit within it.
            records: How records are protected inside a client; or the fields of `RecordSettings`, such as
                `record_clip_norm`, `record_noise_multiplier`, `local_batch` and `local_size`, as keywords.
            divisor: What the server divides the sum by; by default the expected number of clients in a round.
            delta: At which delta running figures are given.
            client_rates: Lower rates of single clients, by name.
            client_metrics: Whether metrics that clients measure are passed on. No figure covers them.
            stops: Further ends, such as (10, 20), or {round: share of delta}.
            noise: How it is drawn: "float", or at level client "exact".
            settings: Single settings of `records`.

        Raises:
            PrivacyError: If the level cannot keep its promise with these settings.
            ValueError: If a setting is missing, out of range, or of another level.
        """
        inside: RecordSettings = grouped("records", RecordSettings, records, settings)
        refuse_unknown(settings)
        protects = _level_named(level)
        rate, lower = _rates(client_rate, client_rates)
        _check_level(protects, rate, lower, inside)
        if declared_kind(noise) == "exact" and (protects.protects_records or not protects.units):
            raise PrivacyError(
                f"noise='exact' is for level 'client', where the server adds all noise; at level {protects.name!r} "
                "clients add noise of their own, in floating point."
            )
        found = None if target is None else 1.0  # what the search starts from
        plan = cls(
            level=protects.name,
            clients=_check.count("clients", clients),
            client_rate=rate,
            rounds=_check.count("rounds", rounds),
            clip_norm=check_clip_norm(clip_norm),
            **declared_noise(protects, noise_multiplier, inside.record_noise_multiplier, found),
            divisor=positive("divisor", divisor) if divisor is not None else _expected(clients, rate, lower),
            delta=_check.probability("delta", delta),
            client_rates=lower,
            client_metrics=bool(client_metrics),
            stops=declared_stops(stops, _check.count("rounds", rounds)),
            noise=noise,
            **_per_record(protects, inside),
        )
        made = protects.complete(plan if target is None else calibrated(plan, target))
        _ = made.grid  # fail early if it does not exist
        return made

    @classmethod
    def without_guarantee(cls, *, clients: int, client_rate: float, rounds: int, delta: float = 1e-5) -> FederationPlan:
        """Declare a federation that protects nobody: no clipping, no noise, no ledger.

        Args:
            clients: How many clients may be enrolled.
            client_rate: The chance with which each takes part in a round.
            rounds: How many rounds there may be at most.
            delta: The delta of its label, whose epsilon is infinite.

        Guarantee:
            None. There is no other way to a plan without noise: `declare` refuses one.
        """
        rate = _check.rate("client_rate", client_rate, hint=_TAKES_PART)
        return cls(
            level=UNPROTECTED.name,
            clients=_check.count("clients", clients),
            client_rate=rate,
            rounds=_check.count("rounds", rounds),
            clip_norm=_UNCLIPPED,
            divisor=_expected(clients, rate, {}),
            delta=_check.probability("delta", delta),
        )


federation_plan = FederationPlan.declare


def refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Refuse settings that no group has taken."""
    if settings:
        raise TypeError(f"A federation has no setting {', '.join(settings)}.")


def _level_named(name: str) -> Level:
    if name == "instance":
        raise ValueError("Level 'instance' is called 'parallel'.")
    return LEVELS[_check.one_of("level", name, tuple(LEVELS))]


def _check_level(level: Level, rate: float, lower: Mapping[str, float], inside: RecordSettings) -> None:
    """Refuse settings with which the level cannot keep its promise."""
    if level.everybody_answers and (rate < 1.0 or lower):
        raise PrivacyError(
            f"Level {level.name!r} needs client_rate=1: all clients answer every round, if only with noise."
        )
    if level.single_step and inside.local_steps != 1:
        raise PrivacyError(
            f"Level {level.name!r} is for FedSGD alone: with local_steps={inside.local_steps} a client steps from "
            "points that its own noise has moved, so the noise cannot be counted again. Use local_steps=1, or another "
            "level."
        )
    if inside.copies != 1 and not level.copies:
        raise PrivacyError(
            f"Level {level.name!r} takes no copies: at level 'client' a client is protected with all it holds, at "
            "level 'sequential' a record that several clients hold is a group of records (see tacita.group)."
        )


def _per_record(level: Level, inside: RecordSettings) -> dict[str, Any]:
    rate, batch = inside.record_rate, inside.local_batch
    if inside.local_size is not None:
        batch, rate = declared_rate(rate, batch, inside.local_size)
    values = {"record_clip_norm": inside.record_clip_norm, "record_rate": rate, "local_batch": batch}
    if not level.protects_records:
        wrong = [name for name, value in values.items() if value is not None]
        if wrong:
            names = ", ".join(wrong)
            raise ValueError(f"Level {level.name!r} clips whole updates; {names} belong to the other levels.")
        return {"local_steps": _check.count("local_steps", inside.local_steps)}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise ValueError(f"Level {level.name!r} needs {', '.join(missing)}.")
    return {
        "record_clip_norm": check_clip_norm(inside.record_clip_norm),
        "record_rate": _check.rate("record_rate", rate),
        "local_batch": positive("local_batch", batch),
        "local_steps": _check.count("local_steps", inside.local_steps),
        "copies": _check.count("copies", inside.copies),
        "bare_rate": inside.local_size is None and inside.record_rate is not None and inside.record_rate < 1.0,
    }


def _rates(rate: float, rates: Mapping[str, float] | None) -> tuple[float, dict[str, float]]:
    largest = _check.rate("client_rate", rate, hint=_TAKES_PART)
    lower = {
        str(name): _check.rate(f"the rate of {name!r}", value, hint=_TAKES_PART)
        for name, value in (rates or {}).items()
    }
    if any(value > largest for value in lower.values()):
        raise PrivacyError(
            "client_rate must be the largest rate of all: single clients may take part less often, not more."
        )
    return largest, lower


def _expected(clients: int, rate: float, lower: Mapping[str, float]) -> float:
    return max(1.0, rate * (clients - len(lower)) + sum(lower.values()))
