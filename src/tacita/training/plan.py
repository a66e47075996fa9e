"""What is declared before the first step: public constants, none of them a function of the data."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita._search import boundary
from tacita.accounting import (
    MomentsBudget,
    Target,
    TokenBudget,
    noise_within,
    worst_case,
    worst_curve,
)
from tacita.accounting.filters import Budget
from tacita.accounting.rungs import FRACTIONS, check_fractions
from tacita.accounting.state import budget_from, budget_state
from tacita.accounting.worst import check_mechanism
from tacita.assumptions import assume, of_persons
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.ledger import Promise
from tacita.mechanisms.rounded import Grid
from tacita.profile import Profile
from tacita.training.step import AUTO, check_clip_norm, positive

if TYPE_CHECKING:
    from tacita._check import Floats

Pair = tuple[float, float]
NOISES = ("float", "exact")
SOFTENING = 0.01  # as published; it decides only what gradients about as short as this contribute


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The mechanism of a run and what was promised about it. Make one with `Plan.declare`.

    Attributes:
        clip_norm: C, the largest norm of a record's contribution, such as its gradient. Or "auto": no norm needs to be
            chosen, every gradient g is scaled to g / (|g| + 0.01). The plan then holds C = 1, which bounds their norms.
        noise_multiplier: Noise standard deviation over C.
        sample_rate: The chance with which each record enters a step, on its own coin.
        steps: How many steps there may be at most. The label speaks of all of them, even if the run is ended earlier.
        batch_size: The planned batch, a declared constant by which the noisy sum is divided, whatever the realised one.
        bare_rate: True if the rate was given as a number, which may have been computed from the data, instead of as
            batch_size over a declared nominal size. It is then an open assumption on the label.
        stops: Further ends, declared beforehand, such as (100, 200, 400): a run that ends by one of them is labelled
            with it. Each takes an equal share of delta, or the share given as {step: share}. Kept as (step, share)
            pairs, of which the last one is at `steps`; empty for the plan's end alone.
        delta: At which delta running figures are given.
        individual_every: Every record is measured once in so many steps, and held to its own bound in between.
        record_budget: From `token_profile`, `token_budget` or `moments_budget`: what a record may spend before it is
            held back, in silence. Needs `individual_every`.
        rungs: Fractions of what the plan allows, such as (0.125, 0.25, 0.5, 1.0): budgets that hold nobody back, and
            of which the smallest that a record stayed within is its rung. Needs `individual_every`, which declares
            these four unless others are given; () for none. They cost the figure for anyone nothing.
        certificate: The budget of a conformal certificate.
        tolerated: How many followed records may pass it.
        unit: What is added or removed, and clipped: a record, a person with all of theirs, or a client with all it
            holds. Whatever else is said here of records is then said of these.
        records_per_person: How many of a person's records are in one contribution at most, a fresh random subset where
            there are more; None if records are the unit. More of them make a contribution less noisy and a step slower;
            what it may cost a person is the same.
        of_person: What of a person's records is clipped: the gradient of their "mean" loss, or for likelihoods that of
            their "sum", estimated by the mean over those that were taken, times how many the person has.
        softening: r of automatic clipping; None if contributions are clipped to C.
        noise: "float" for noise in floating point; "exact" for a rounded Gaussian on a public grid, drawn exactly, and
            contributions in whole numbers on it. No figure changes, and no low digit gives anything away; a step takes
            about four times as long.
    """

    clip_norm: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    batch_size: float
    bare_rate: bool = False
    stops: tuple[tuple[int, float], ...] = ()
    delta: float = 1e-5
    individual_every: int | None = None
    record_budget: Budget | None = None
    rungs: tuple[float, ...] = ()
    certificate: Budget | None = None
    tolerated: int = 0
    unit: str = "record"
    softening: float | None = None
    records_per_person: int | None = None
    of_person: str = "mean"
    noise: str = "float"

    @classmethod
    def declare(
        cls,
        *,
        steps: int,
        batch_size: float | None = None,
        nominal_size: float | None = None,
        sample_rate: float | None = None,
        stops: Sequence[int] | Mapping[int, float] = (),
        clip_norm: float | str = 1.0,
        noise_multiplier: float | None = None,
        target: Pair | Target | None = None,
        budget: Pair | None = None,
        delta: float = 1e-5,
        individual_every: int | None = None,
        record_budget: Budget | None = None,
        rungs: Sequence[float] | None = None,
        certificate: Budget | None = None,
        tolerated: int = 0,
        records_per_person: int | None = None,
        of_person: str = "mean",
        noise: str = "float",
    ) -> Plan:
        """Check and complete what a run declares: calibrate the noise, cut the steps to the budget.

        What is named like an attribute of the plan is described there. Besides:

            nominal_size: The public size of the data, declared and never counted from them, or else `sample_rate`: a
                record's chance to enter a step is batch_size / nominal_size, whatever the true size is. With
                `records_per_person` both are numbers of persons.
            target: (epsilon, delta), or a `Target` such as `Target(attack_success=0.55)`, or else `noise_multiplier`:
                the least noise that keeps the worst case within it.
            budget: (epsilon, delta): cut the steps so that the worst case stays within it.

        Raises:
            PrivacyError: If the budget does not pay for a single step.
            ValueError: If an argument is missing, contradicts another or is out of range.
        """
        divisor, rate = declared_rate(sample_rate, batch_size, nominal_size)
        planned = _check.count("steps", steps)
        ends = declared_stops(stops, planned)
        _check_budgets(individual_every, record_budget, certificate, tolerated)
        end = ends[-1][1] if ends else 1.0
        multiplier = _declared_noise(noise_multiplier, target, (rate, planned, end), record_budget)
        if budget is not None:
            if ends:
                raise ValueError("budget=… finds the number of steps, and stops=… declares it: give one of them.")
            planned = _within(checked_pair("budget", budget), rate, multiplier, planned)
        made = cls(
            clip_norm=1.0 if clip_norm == AUTO else check_clip_norm(clip_norm),
            softening=SOFTENING if clip_norm == AUTO else None,
            noise_multiplier=multiplier,
            sample_rate=rate,
            steps=planned,
            batch_size=divisor,
            bare_rate=nominal_size is None and rate < 1.0,
            stops=ends,
            delta=_check.probability("delta", delta),
            individual_every=individual_every,
            record_budget=record_budget,
            rungs=_declared_rungs(rungs, individual_every),
            certificate=certificate,
            tolerated=tolerated,
            unit="record" if records_per_person is None else "person",
            records_per_person=_records_per_person(records_per_person, of_person),
            of_person=of_person,
            noise=declared_kind(noise),
        )
        _ = made.grid  # fail early if it does not exist
        if made.grid is not None and records_per_person is not None:
            raise PrivacyError(
                "noise='exact' is for records: persons with several are not summed on a grid yet. Use noise='float'."
            )
        object.__setattr__(made, "_checked", True)  # no field: a plan that was changed afterwards lacks it
        return made

    @property
    def checked(self) -> bool:
        """Whether `declare` made this plan. One that was built or changed by hand is not accepted for training."""
        return bool(getattr(self, "_checked", False))

    @property
    def clipping(self) -> float | str:
        """The clip norm as it was declared: a number, or "auto"."""
        return self.clip_norm if self.softening is None else AUTO

    @property
    def grid(self) -> Grid | None:
        """What contributions and noise are whole numbers of; None for noise in floating point."""
        return Grid.of(self.clip_norm, self.noise_multiplier) if self.noise == "exact" else None

    def contributions(self, norms: Floats) -> Floats:
        """Return the norms over C, in [0, 1], that gradients of these norms are brought to."""
        if self.softening is not None:
            return np.asarray(norms / (norms + self.softening))
        return np.minimum(norms / self.clip_norm, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. What was added to plans later is left out where it says what they said before."""
        left_out = (
            ("unit", "record"),
            ("rungs", ()),
            ("softening", None),
            ("records_per_person", None),
            ("of_person", "mean"),
            ("noise", "float"),
        )
        plain = {name: value for name, value in asdict(self).items() if (name, value) not in left_out}
        return {**plain, **{k: budget_state(getattr(self, k)) for k in ("record_budget", "certificate")}}

    def frozen(self) -> dict[str, float | int | str]:
        """Return what a ledger freezes before the first step: everything, as numbers and texts."""
        return {name: v if isinstance(v, int | float) else json.dumps(v) for name, v in self.to_dict().items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild what `to_dict` wrote."""
        try:
            budgets = {k: budget_from(data[k]) for k in ("record_budget", "certificate")}
            stops = tuple((int(t), float(share)) for t, share in data["stops"])
            rungs = check_fractions("rungs", data["rungs"]) if "rungs" in data else ()
            noise = declared_kind(data.get("noise", "float"))
            return cls(**{**data, **budgets, "stops": stops, "rungs": rungs, "noise": noise})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PrivacyError(f"The run's plan is damaged: {error}") from error

    def worst(self, steps: int, delta: float, method: str = "pld") -> Guarantee:
        """Return the worst case of `steps` steps, their number fixed beforehand; the filter's, where that is less.

        Args:
            steps: How many, whatever the data were.
            delta: Total failure probability.
            method: `pld` or `rdp`.

        Guarantee:
            Worst case over neighbours that differ in one unit of the plan.
        """
        found = worst_case(
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            steps=steps,
            delta=delta,
            method=method,  # type: ignore[arg-type]
        )
        plain = self._said(found)
        if self.grid is not None:
            rests_on = (assume("rounded-noise") if a.code == "gaussian-noise" else a for a in plain.assumptions)
            plain = replace(plain, assumptions=tuple(rests_on))
        if self.record_budget is None or method != "pld":
            return plain
        epsilon = filter_epsilon(self.record_budget, self.sample_rate, self.noise_multiplier, delta)
        if epsilon >= plain.epsilon:
            return plain
        kind = "token filter" if isinstance(self.record_budget, TokenBudget) else "moments filter"
        kept = self.record_budget.profile(sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)
        return self._said(
            replace(
                plain,
                epsilon=epsilon,
                method=kind,
                assumptions=(*plain.assumptions, assume("enforced-record-budget")),
                profile=plain.curve & kept & Profile.of_pair(epsilon, delta),
            )
        )

    def _said(self, found: Guarantee) -> Guarantee:
        """Return a statement about records as it is about the plan's unit."""
        said = map(of_persons, found.assumptions) if self.unit == "person" else found.assumptions
        return replace(found, unit=self.unit, assumptions=tuple(said))

    def end_after(self, taken: int) -> tuple[int, float]:
        """Return the end that covers a run of `taken` steps, and its share of delta: the next declared one."""
        return next_end(self.stops, self.steps, taken)

    def headline(
        self, taken: int, delta: float, *, ended: str = "", promise: Promise | None = None, method: str = "pld"
    ) -> Guarantee:
        """Return what a label says of a run that took `taken` steps, whatever made it end there.

        When a run ends may depend on its outputs, so the steps taken bound nothing. With declared ends t_1 < … < t_K
        and shares of delta that add up to it, P(S) ≤ Σ_k e^{ε_k} Q(S, ended by t_k) + δ for every event S, where ε_k is
        that of t_k steps at its share (docs: theory/filters). Without declared ends there is one, the plan's. The
        profile is that of all planned steps at any declared end: what a run shows that ended earlier is a function of
        what the whole run shows.

        Args:
            taken: Steps taken.
            delta: Total failure probability.
            ended: The owner's word that the end depended on nothing private; the steps taken then count.
            promise: The budget of a ledger that refused what would have passed it, from its first charge on. It
                would take all of delta for itself, so it does not count where ends were declared.
            method: `pld` or `rdp`.
        """
        end, share = (taken, 1.0) if ended else self.end_after(taken)
        found = self.worst(end, delta * share, method)
        if share == 1.0:
            return within_promise(found, promise)
        return of_one_end(found, self.worst(self.steps, delta), share)

    def running(self, steps: int, delta: float) -> float:
        """Return the worst-case epsilon of `steps` steps by our own curves: for plots, a hundred times quicker."""
        curve = worst_curve(steps, sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)
        epsilon = float(curve.epsilon(delta)[0])
        if self.record_budget is None:
            return epsilon
        return min(epsilon, filter_epsilon(self.record_budget, self.sample_rate, self.noise_multiplier, delta))


def next_end(stops: tuple[tuple[int, float], ...], planned: int, taken: int) -> tuple[int, float]:
    """Return the declared end at or after `taken`, and its share of delta; the plan's, with all of it, if none was.

    Args:
        stops: Declared ends with their shares of delta.
        planned: The plan's own end.
        taken: Steps, or rounds, taken.
    """
    return next(((stop, share) for stop, share in stops if stop >= taken), (planned, 1.0))


def of_one_end(found: Guarantee, whole: Guarantee, share: float) -> Guarantee:
    """Return a figure computed at one declared end's share of delta as a statement at the whole of it.

    Args:
        found: The figure.
        whole: That of all planned steps at the whole of delta, whose curve holds at any end.
        share: The end's share of delta.
    """
    delta = whole.delta
    split = (("this declared end", delta * share), ("the other declared ends", delta * (1.0 - share)))
    return replace(found, delta=delta, delta_split=split, profile=whole.curve, one_end=True)


def within_promise(found: Guarantee, promise: Promise | None) -> Guarantee:
    """Return a figure, or what the ledger keeps whatever was released, where that says more."""
    if promise is None or promise.delta > found.delta or promise.epsilon >= found.epsilon:
        return found
    curve = found.curve & promise.curve  # the plan's holds at any end
    kept = replace(found, epsilon=promise.epsilon, method="the ledger's budget", profile=curve)
    return replace(kept, mechanism=(), delta_split=())


def filter_epsilon(budget: Budget, rate: float, noise: float, delta: float) -> float:
    """Return the worst-case epsilon of a record that is held to a budget.

    Args:
        budget: What it may spend.
        rate: The sample rate.
        noise: The noise multiplier.
        delta: At which delta.
    """
    epsilon = budget.epsilon(delta, sample_rate=rate, noise_multiplier=noise, notion="weak")
    return max(epsilon, SMALLEST_EPSILON)


def _check_budgets(every: int | None, record: Budget | None, certificate: Budget | None, tolerated: int) -> None:
    if every is not None:
        _check.count("individual_every", every)
    for name, budget in (("record_budget", record), ("certificate", certificate)):
        if budget is not None and not isinstance(budget, MomentsBudget | TokenBudget):
            raise TypeError(f"{name} must come from token_profile, token_budget or moments_budget.")
    if record is not None and every is None:
        raise ValueError("record_budget needs individual_every=k: a budget is kept by bounds that are measured.")
    _check.count("tolerated", tolerated, low=0)


def _records_per_person(count: int | None, of_person: str) -> int | None:
    if _check.one_of("of_person", of_person, ("mean", "sum")) == "sum" and count is None:
        raise ValueError("of_person needs records_per_person=k: it is about persons with several records.")
    return None if count is None else _check.count("records_per_person", count, high=10_000)


def declared_kind(noise: object) -> str:
    """Return how noise is drawn: `float` or `exact`."""
    if isinstance(noise, int | float) and not isinstance(noise, bool):
        raise ValueError(f"noise is 'float' or 'exact', which is how it is drawn; give noise_multiplier={noise!r}.")
    return _check.one_of("noise", noise, NOISES)


def _declared_rungs(rungs: Sequence[float] | None, every: int | None) -> tuple[float, ...]:
    if rungs is None:
        return FRACTIONS if every is not None else ()
    if not rungs:
        return ()
    if every is None:
        raise ValueError("rungs needs individual_every=k: a record's rung is known from bounds that are measured.")
    return check_fractions("rungs", rungs)


def checked_pair(name: str, value: object) -> Pair:
    """Return a pair (epsilon, delta), checked."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (epsilon, delta), got {value!r}.")
    return _check.in_range(f"{name}'s epsilon", value[0], 1e-6, 1e6), _check.probability(f"{name}'s delta", value[1])


def _declared_noise(
    noise: float | None, target: Pair | Target | None, steps: tuple[float, int, float], record: Budget | None
) -> float:
    """Return the noise multiplier given, or the least one that keeps to the target in the last end's share of delta."""
    if (noise is None) == (target is None):
        raise ValueError("Give either noise_multiplier or target=(epsilon, delta), and not both.")
    rate, planned, share = steps
    if target is None:
        return check_mechanism(rate, noise, planned)[1]
    if isinstance(target, Target):  # a run that ends earlier shows less than the whole one
        return noise_within(target, sample_rate=rate, steps=planned)
    epsilon, delta = checked_pair("target", target)
    delta *= share
    plain = noise_within((epsilon, delta), sample_rate=rate, steps=planned)
    if not isinstance(record, TokenBudget):
        return plain
    return boundary(
        lambda noise: filter_epsilon(record, rate, noise, delta) <= epsilon,
        fails=0.05,
        at=plain,  # a filter never costs more than the same steps without it
        rtol=1e-4,
        geometric=True,
    )


def _within(budget: Pair, rate: float, noise: float, steps: int) -> int:
    """Return how many of the steps stay within a worst-case budget: known before the first one."""

    def fits(count: int) -> bool:
        spent = worst_case(sample_rate=rate, noise_multiplier=noise, steps=count, delta=budget[1])
        return spent.epsilon <= budget[0]

    def surely_fits(count: int) -> bool:
        curve = worst_curve(count, sample_rate=rate, noise_multiplier=noise)
        return float(curve.epsilon(budget[1])[0]) <= budget[0]

    # Our own curves are quick and a hair above; the last few steps are settled by PLD.
    low = bisect_left(range(1, steps + 1), True, key=lambda count: not surely_fits(count))
    while low < steps and fits(low + 1):
        low += 1
    if low == 0:
        raise PrivacyError(
            f"The budget of epsilon {budget[0]:g} at delta {budget[1]:g} does not pay for a single step; raise "
            "noise_multiplier or lower sample_rate."
        )
    return low


def declared_rate(
    sample_rate: float | None, batch_size: float | None, nominal_size: float | None
) -> tuple[float, float]:
    """Return the divisor and the sample rate of a step; neither is compared with how many records there are.

    Args:
        sample_rate: The rate as a number, or else `nominal_size`.
        batch_size: The planned batch, by which the noisy sum is divided.
        nominal_size: The public size of the data.

    Raises:
        ValueError: If one is missing, contradicts another or is out of range.
    """
    if batch_size is None or (sample_rate is None) == (nominal_size is None):
        raise ValueError(
            "Declare batch_size and nominal_size, for example batch_size=256, nominal_size=60_000: the planned batch "
            "and the public size of the data, not counted from them. Their quotient is the sample rate. Or give "
            "sample_rate and batch_size; the label then says that the rate was your choice."
        )
    divisor = positive("batch_size", batch_size)
    if sample_rate is not None:
        return divisor, _check.rate("sample_rate", sample_rate)
    size = positive("nominal_size", nominal_size)
    if divisor > size:
        raise ValueError(f"batch_size={divisor:g} must be at most nominal_size={size:g}.")
    return divisor, divisor / size


def declared_stops(stops: Sequence[int] | Mapping[int, float], steps: int) -> tuple[tuple[int, float], ...]:
    """Return declared ends with their shares of delta, the last one at `steps`; equal shares unless they are given.

    Examples:
        >>> declared_stops((100, 200), 400), declared_stops({50: 0.2, 400: 0.8}, 400)
        (((100, 0.3333333333333333), (200, 0.3333333333333333), (400, 0.3333333333333333)), ((50, 0.2), (400, 0.8)))
    """
    times = sorted({_check.count("a stop", stop) for stop in stops})
    if not times:
        return ()
    if times[-1] > steps:
        raise ValueError(f"stops must be at most steps={steps}, got {times[-1]}.")
    if not isinstance(stops, Mapping):
        times = sorted({*times, steps})
        return tuple((stop, 1.0 / len(times)) for stop in times)
    if times[-1] != steps:
        raise ValueError(f"stops with shares must end at steps={steps}: add {{{steps}: its share}}.")
    shares = [_check.in_range("a stop's share of delta", stops[stop], 1e-9, 1.0) for stop in times]
    if not sum(shares) <= 1.0 + 1e-12:
        raise ValueError(f"The stops' shares of delta must add up to at most 1, got {sum(shares):g}.")
    return tuple(zip(times, shares, strict=True))
