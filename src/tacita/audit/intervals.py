"""Exact confidence limits on a probability, from counts of successes (Clopper and Pearson)."""

from __future__ import annotations

from scipy.stats import beta


def lower_limit(successes: int, trials: int, confidence: float) -> float:
    """Return a lower confidence limit on the chance of a success."""
    return float(beta.ppf(1.0 - confidence, successes, trials - successes + 1)) if successes else 0.0


def upper_limit(successes: int, trials: int, confidence: float) -> float:
    """Return an upper confidence limit on the chance of a success."""
    return float(beta.ppf(confidence, successes + 1, trials - successes)) if successes < trials else 1.0


def interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95% confidence interval of the chance of a success."""
    return lower_limit(successes, trials, 0.975), upper_limit(successes, trials, 0.975)
