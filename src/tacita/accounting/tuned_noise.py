"""How much noise the runs of a tuning need, so that the tuning as a whole keeps to a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tacita import _check, _search
from tacita._check import PrivacyError
from tacita.accounting.gaussian import least_noise
from tacita.accounting.targets import Target
from tacita.accounting.tuning import Poisson, RenyiCurve, Trials, trial_curve

Goal = tuple[float, float] | Target

_NOISES = (0.125, 8192.0)
_NEAR = 5e-4  # how far above the least noise it may be
_MORE = 1.002


def tuned_noise_multiplier(trials: Trials, *, target: Goal, sample_rate: float, steps: int, **score: Any) -> float:
    """Return the least noise multiplier, within 0.05%, with which a tuning as a whole keeps to a target.

    Args:
        trials: The law of the number of runs.
        target: (epsilon, delta) of the whole tuning, or a `Target`.
        sample_rate: q in (0, 1], of every run.
        steps: How many, in every run.
        score: `score_noise` and `score_apart`, as `tune` is given them.

    Returns:
        The noise multiplier, at least 0.125, rounded up to five digits.

    Raises:
        PrivacyError: If no noise in the range reaches the target.

    Guarantee:
        As of `tuned_worst_case`, whose epsilon, or curve, is within the target.

    Examples:
        >>> from tacita.accounting import NegativeBinomial
        >>> law = NegativeBinomial.expecting(10.0)
        >>> tuned_noise_multiplier(law, target=(2.0, 1e-5), sample_rate=0.01, steps=2000)
        1.7845
    """
    return tuned_noise_multipliers(trials, [(sample_rate, steps)], target=target, **score)[0]


def tuned_noise_multipliers(
    trials: Trials, sampled: Sequence[tuple[float, int]], *, target: Goal, **score: Any
) -> tuple[float, ...]:
    """Return a noise multiplier for each setting, so that all cost about the same and a tuning keeps to a target.

    Args:
        trials: The law of the number of runs.
        sampled: (sample rate, steps) of each setting.
        target: (epsilon, delta) of the whole tuning, or a `Target`.
        score: `score_noise` and `score_apart`, as `tune` is given them.

    Returns:
        The noise multipliers, rounded up to five digits, in the order of the settings.

    Raises:
        PrivacyError: If no noise in the range reaches the target.

    Guarantee:
        As of `tuned_worst_case` of a run with any of the settings, which is within the target.
    """
    kinds, profiled = list(dict.fromkeys(sampled)), isinstance(trials, Poisson)

    def keeps(noises: Sequence[float], some: Sequence[tuple[float, int]]) -> bool:
        mechanisms = [(rate, noise, steps) for (rate, steps), noise in zip(some, noises, strict=True)]
        return keeps_to(target, trials.selected(trial_curve(mechanisms, profiled=profiled, **score)))

    alone = [_least(lambda noise, kind=kind: keeps([noise], [kind])) for kind in kinds]  # type: ignore[misc]
    scaled, factor = alone, 1.0
    while not keeps(scaled, kinds):  # curves that cross cost more together than each of them
        factor *= _MORE
        scaled = [least_noise(noise * factor, lambda _: True) for noise in alone]
    found = dict(zip(kinds, scaled, strict=True))
    return tuple(found[kind] for kind in sampled)


def keeps_to(target: Goal, best: RenyiCurve) -> bool:
    """Return whether a tuning keeps to a target.

    Args:
        target: (epsilon, delta) of the whole tuning, or a `Target`.
        best: The Rényi curve of the best run, from `selected`.
    """
    if isinstance(target, Target):
        return math.isfinite(min(best.divergences)) and target.met(best.proved())
    epsilon, delta = target
    _check.in_range("epsilon", epsilon, 1e-4, 500.0)
    return best.epsilon(_check.probability("delta", delta)) <= epsilon


def _least(keeps: Callable[[float], bool]) -> float:
    least, most = _NOISES
    if not keeps(most):
        raise PrivacyError(
            f"No noise multiplier up to {most:g} keeps the tuning within this target: expect fewer runs, take fewer "
            "steps or a lower sample rate, or give a private score more noise."
        )
    noise = 1.0
    while noise > least and keeps(noise):
        noise /= 2.0
    while not keeps(noise * 2.0):
        noise *= 2.0
    return least_noise(_search.boundary(keeps, fails=noise, at=noise * 2.0, rtol=_NEAR, geometric=True), keeps)
