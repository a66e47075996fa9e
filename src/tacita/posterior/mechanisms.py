"""Which mechanism is asked for, and what it may cost. Plain descriptions, with no arithmetic in them."""

from __future__ import annotations

from dataclasses import dataclass

from tacita import _check
from tacita._check import PrivacyError

SENSITIVITIES = ("smooth", "global")
SCORES = ("hellinger", "squared_hellinger", "kl", "total_variation", "jensen_shannon", "lecam")
CALIBRATIONS = ("exact", "nominal")
CELLS = ("naive", "histogram")
LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-12
MOST_STATES = 3000  # tables of probabilities and distances have this many rows and columns at most


@dataclass(frozen=True)
class Request:
    """A mechanism by name with its budget, as `geometric`, `gaussian`, `laplace`, `exponential` and `best` make it."""

    name: str
    epsilon: float
    delta: float = 0.0
    sensitivity: str = ""
    score: str = ""
    calibration: str = ""

    def __str__(self) -> str:
        options = [f"epsilon={_text(self.epsilon)}", f"delta={_text(self.delta)}" if self.delta else ""]
        options += [f"{n}={v!r}" for n in ("sensitivity", "score", "calibration") if (v := getattr(self, n))]
        return f"{self.name}({', '.join(o for o in options if o)})"


def geometric(*, epsilon: float) -> Request:
    """Two-sided geometric (discrete Laplace) noise on whole numbers: counts, cells, sums on a grid.

    Examples:
        >>> print(geometric(epsilon=0.5))
        geometric(epsilon=0.5)
    """
    return Request("geometric", _epsilon(epsilon))


def gaussian(*, epsilon: float, delta: float) -> Request:
    """Discrete Gaussian noise on one whole number, such as a sum on a grid. Needs delta > 0."""
    return Request("gaussian", _epsilon(epsilon), _delta(_check.probability("delta", delta)))


def laplace(*, epsilon: float, sensitivity: str = "naive") -> Request:
    """Laplace noise on counts, rounded and clipped, as in the literature; kept for comparison.

    Args:
        epsilon: The stated privacy loss.
        sensitivity: `naive` takes both counts of a record's move (2); `histogram` uses that with two categories one
            count says everything (1).
    """
    return Request("laplace", _epsilon(epsilon), sensitivity=_check.one_of("sensitivity", sensitivity, CELLS))


def exponential(
    *,
    epsilon: float,
    delta: float = 0.0,
    sensitivity: str = "smooth",
    score: str = "hellinger",
    calibration: str = "exact",
) -> Request:
    """The exponential mechanism over posteriors: near ones, by a distance between distributions, are likelier.

    Args:
        epsilon: The privacy loss it may have.
        delta: Its failure probability; `smooth` needs one.
        sensitivity: `smooth` or `global`. `local` is refused: it is not private.
        score: The distance, one of `SCORES`. `chi2` is refused: its sensitivity is infinite.
        calibration: `exact` spends the whole budget, by enumeration; `nominal` is as published.
    """
    if sensitivity == "local":
        raise PrivacyError(
            "sensitivity='local' is not private: the local sensitivity depends on the data, and there are priors "
            "(such as beta(0.01, 0.01) with 200 records) for which the stated (epsilon, delta) is broken. Use 'smooth'."
        )
    if score in ("chi2", "chi^2", "chi_squared"):
        raise PrivacyError(
            "score='chi2' has infinite sensitivity: the chi-squared divergence between two posteriors is infinite once "
            "one count is about twice the other, so no noise is enough. Use score='hellinger'."
        )
    _check.one_of("sensitivity", sensitivity, SENSITIVITIES)
    dlt = _delta(delta)
    if sensitivity == "smooth" and not dlt > 0.0:
        raise PrivacyError("sensitivity='smooth' needs delta > 0; pass one, or sensitivity='global'.")
    return Request(
        "exponential",
        _epsilon(epsilon),
        dlt,
        sensitivity,
        _check.one_of("score", score, SCORES),
        _check.one_of("calibration", calibration, CALIBRATIONS),
    )


def best(*, epsilon: float, delta: float = 0.0) -> Request:
    """Whatever brings the released posterior nearest to the true one, on average under the prior, at this cost."""
    return Request("best", _epsilon(epsilon), _delta(delta))


def _epsilon(epsilon: object) -> float:
    return _check.in_range("epsilon", epsilon, 1e-4, LARGEST_EPSILON)


def _delta(delta: object) -> float:
    dlt = _check.in_range("delta", delta, 0.0, 0.5)
    if 0.0 < dlt < SMALLEST_DELTA:
        raise ValueError(
            f"delta must be 0 or at least {SMALLEST_DELTA:g}, got {dlt:g}: smaller ones cannot be told from round-off."
        )
    return dlt


def _text(x: float) -> str:
    """Return a number shortly, unless that is another number."""
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)
