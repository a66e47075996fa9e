"""Noise calibrated to what people mean: how often an attack is right, whom it finds, what it guesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tacita import _check, _search
from tacita._check import PrivacyError
from tacita.accounting.gaussian import least_noise
from tacita.accounting.profiles import worst_profile
from tacita.accounting.worst import SampledSteps, calibrate, check_mechanism, composed, worst_case
from tacita.guarantee import Guarantee
from tacita.profile import Profile

_NOISE_RANGE = (0.01, 1e4)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The most that an attack may achieve; give exactly one.

    Attributes:
        attack_success: How often the best attack is right about a record's presence, at even odds; above 0.5.
        tpr: (share of members found, share of others wrongly accused): such as (0.02, 0.01).
        secret: (chance without the person, chance from the release) of guessing a secret, such as (0.10, 0.15).
        mu: (distance of a Gaussian release, floor): what the curve stays under, but for the floor; see `Profile.mu`.

    Raises:
        ValueError: If none or several are given, or one asks for less than guessing achieves.
    """

    attack_success: float | None = None
    tpr: tuple[float, float] | None = None
    secret: tuple[float, float] | None = None
    mu: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            raise ValueError(f"Give one target of {', '.join(f.name for f in fields(self))}; got {len(given)}.")
        pairs = {
            "attack_success": (0.5, self.attack_success),
            "secret": self.secret,
            "tpr": self.tpr and self.tpr[::-1],
        }
        if pair := pairs.get(given[0]):
            guessing, allowed = (_check.probability(given[0], value) for value in pair)
            if not allowed > guessing:
                raise ValueError(
                    f"{given[0]} must be above what guessing achieves, which is {guessing:g}; got {allowed:g}."
                )
        elif self.mu is not None:
            distance, floor = self.mu
            _check.in_range("mu", distance, 1e-6, 1e6)
            _check.probability("floor", floor)

    @classmethod
    def of(cls, given: Mapping[str, Any] | str) -> Target:
        """Return the target that a recipe's table names, {attack_success = 0.55}, or a text: "tpr=0.02,0.01".

        Examples:
            >>> Target.of("tpr=0.02,0.01") == Target.of({"tpr": [0.02, 0.01]}) == Target(tpr=(0.02, 0.01))
            True
        """
        if not isinstance(given, str):
            try:
                table: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
                return cls(**table)
            except (AttributeError, TypeError):
                raise ValueError(
                    "target must be a table such as {attack_success = 0.55} or {tpr = [0.02, 0.01]}."
                ) from None
        name, _, text = given.partition("=")
        known = [field.name for field in fields(cls)]
        try:
            one, *more = (float(part) for part in text.split(","))
        except ValueError:
            one, more, known = 0.0, [], []
        if name not in known or len(more) != (name != "attack_success"):
            raise ValueError(f'target must be such as "attack_success=0.55" or "tpr=0.02,0.01", got {given!r}.')
        return cls.of({name: [one, *more] if more else one})

    def met(self, profile: Profile) -> bool:
        """Return whether a mechanism with this curve keeps to the target."""
        if self.attack_success is not None:
            return profile.attack_success() <= self.attack_success
        if self.tpr is not None:
            return profile.tpr(self.tpr[1]) <= self.tpr[0]
        if self.secret is not None:
            return profile.secret_guess(self.secret[0]) <= self.secret[1]
        return self.mu is not None and profile.mu(floor=self.mu[1]) <= self.mu[0]


def calibrate_to(target: Target, *, delta: float, sample_rate: float, steps: int) -> Guarantee:
    """Return the guarantee of the least noise that keeps to a target.

    Args:
        target: What an attack may achieve at most.
        delta: δ in (0, 1), at which the guarantee states its epsilon; the target does not depend on it.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        steps: Number of steps, fixed beforehand.

    Returns:
        The guarantee; the noise multiplier is in its `mechanism`, rounded up to five digits.

    Raises:
        PrivacyError: If no noise in the range reaches the target.

    Guarantee:
        As of `worst_case`; the target is met by the curve of the noise returned.

    Examples:
        >>> found = calibrate_to(Target(attack_success=0.55), delta=1e-5, sample_rate=0.01, steps=2000)
        >>> found.noise_multiplier
        1.9058
    """
    q, _, count = check_mechanism(sample_rate, 1.0, steps)
    dlt = _check.probability("delta", delta)
    noise = least_noise_for(target, lambda s: worst_profile(sample_rate=q, noise_multiplier=s, steps=count))
    return worst_case(sample_rate=q, noise_multiplier=noise, steps=count, delta=dlt)


def calibrate_composed_to(target: Target, parts: Sequence[SampledSteps], *, delta: float) -> tuple[SampledSteps, ...]:
    """Return the mechanisms with all noise scaled by one factor, the least with which they keep to a target together.

    Args:
        target: What an attack may achieve at most.
        parts: (sample rate, noise multiplier, steps) of each mechanism; only the ratios of the noises matter.
        delta: δ in (0, 1), at which their guarantee, `composed`, is stated.

    Returns:
        The mechanisms with their noise scaled.

    Raises:
        PrivacyError: If no noise in the range reaches the target.

    Guarantee:
        The target is met by the curve of `composed`.
    """
    if len(parts) == 1:
        ((rate, _, steps),) = parts
        found = calibrate_to(target, delta=delta, sample_rate=rate, steps=steps)
        return ((rate, found.noise_multiplier, steps),)
    low = max(_NOISE_RANGE[0] / noise for _, noise, _ in parts) * (1.0 + 1e-5)
    high = min(_NOISE_RANGE[1] / noise for _, noise, _ in parts) * (1.0 - 1e-3)

    def scaled(factor: float) -> tuple[SampledSteps, ...]:
        return tuple((rate, float(f"{noise * factor:.6g}"), steps) for rate, noise, steps in parts)

    return scaled(
        least_noise_for(target, lambda f: composed(scaled(f), delta=delta).curve, within=(low, high), rtol=1e-3)
    )


def goal_of(
    epsilon: float | None, delta: float, target: Mapping[str, Any] | str | None
) -> tuple[float, float] | Target | None:
    """Return what a recipe's noise is calibrated to: its epsilon with delta, or its target; None for neither.

    Args:
        epsilon: The recipe's entry.
        delta: The recipe's entry.
        target: The recipe's entry, as `Target.of` takes it.

    Raises:
        ValueError: If both are given, or the table is not a target's.
    """
    if epsilon is not None and target is not None:
        raise ValueError("Give either epsilon or target, and not both.")
    if epsilon is not None:
        return epsilon, delta
    return None if target is None else Target.of(target)


def noise_within(goal: tuple[float, float] | Target, *, sample_rate: float, steps: int) -> float:
    """Return the least noise multiplier with which sampled Gaussian steps stay within a pair or a target.

    Args:
        goal: (epsilon, delta), or a `Target`.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        steps: Number of steps, fixed beforehand.
    """
    if isinstance(goal, Target):  # no delta is in it
        return calibrate_to(goal, delta=1e-5, sample_rate=sample_rate, steps=steps).noise_multiplier
    epsilon, delta = goal
    return calibrate(epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps).noise_multiplier


def least_noise_for(
    target: Target,
    curve: Callable[[float], Profile],
    *,
    within: tuple[float, float] = _NOISE_RANGE,
    rtol: float = 1e-5,
) -> float:
    """Return the least noise whose curve keeps to a target, rounded up to five digits.

    Args:
        target: What an attack may achieve at most.
        curve: From noise to the privacy curve of what is released with it; more noise, less of everything.
        within: The least and the most noise that is tried.
        rtol: How near to the least one it comes.

    Raises:
        PrivacyError: If no noise in the range reaches the target.

    Guarantee:
        The target is met by the curve of the noise returned.
    """
    low, high = within

    def met(noise: float) -> bool:
        return target.met(curve(noise))

    if not met(high):
        raise PrivacyError(f"No noise multiplier up to {high:g} reaches this target; use fewer steps or a lower rate.")
    start = low if met(low) else _search.boundary(met, fails=low, at=high, rtol=rtol, geometric=True)
    return least_noise(start, met)
