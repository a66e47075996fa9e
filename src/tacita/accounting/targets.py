"""Noise calibrated to what people mean: how often an attack is right, whom it finds, what it guesses."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tacita import _check, _search
from tacita._check import PrivacyError
from tacita.accounting.gaussian import least_noise
from tacita.accounting.profiles import worst_profile
from tacita.accounting.worst import check_mechanism, worst_case
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

    def met(noise: float) -> bool:
        return target.met(worst_profile(sample_rate=q, noise_multiplier=noise, steps=count))

    low, high = _NOISE_RANGE
    if not met(high):
        raise PrivacyError(f"No noise multiplier up to {high:g} reaches this target; use fewer steps or a lower rate.")
    start = low if met(low) else _search.boundary(met, fails=low, at=high, rtol=1e-5, geometric=True)
    return worst_case(sample_rate=q, noise_multiplier=least_noise(start, met), steps=count, delta=dlt)
