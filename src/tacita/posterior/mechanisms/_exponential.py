"""The exponential mechanism over the finitely many posteriors that a dataset of known size can lead to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacita import _check
from tacita._check import PrivacyError
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

if TYPE_CHECKING:
    from tacita.posterior.plans import ReleasePlan

SENSITIVITIES = ("global", "smooth")
SCORES = ("hellinger", "squared_hellinger", "kl", "total_variation", "jensen_shannon", "lecam")
TWO_CELL_SCORES = ("total_variation", "jensen_shannon", "lecam")  # they have no closed form for more categories
CALIBRATIONS = ("exact", "nominal")
MOST_STATES = 3000  # tables of probabilities and distances have this many rows and columns at most


@dataclass(frozen=True, kw_only=True)
class Exponential(Mechanism):
    """The exponential mechanism over posteriors: the nearer one is to the true posterior, the likelier.

    Args:
        epsilon: The privacy loss it may have.
        delta: Its failure probability; `smooth` needs one.
        sensitivity: `smooth` or `global`. `local` is refused: it is not private.
        score: The distance between posteriors, one of `SCORES`. `chi2` is refused: its sensitivity is infinite.
        calibration: `exact` spends the whole budget, by enumeration; `nominal` is as published.

    Raises:
        PrivacyError: If the options give no guarantee.
    """

    name: ClassVar[str] = "exponential"
    epsilon: float
    delta: float = 0.0
    sensitivity: str = "smooth"
    score: str = "hellinger"
    calibration: str = "exact"

    def __post_init__(self) -> None:
        if self.sensitivity == "local":
            raise PrivacyError(
                "sensitivity='local' is not private: the local sensitivity depends on the data, and there are priors "
                "(such as beta(0.01, 0.01) with 200 records) for which the stated (epsilon, delta) is broken. "
                "Use 'smooth'."
            )
        if self.score in ("chi2", "chi^2", "chi_squared"):
            raise PrivacyError(
                "score='chi2' has infinite sensitivity: the chi-squared divergence between two posteriors is infinite "
                "once one count is about twice the other, so no noise is enough. Use score='hellinger'."
            )
        _check.one_of("sensitivity", self.sensitivity, SENSITIVITIES)
        _check.one_of("score", self.score, SCORES)
        _check.one_of("calibration", self.calibration, CALIBRATIONS)
        super().__post_init__()
        if self.sensitivity == "smooth" and not self.delta > 0.0:
            raise PrivacyError("sensitivity='smooth' needs delta > 0; pass one, or sensitivity='global'.")

    @classmethod
    def candidates(cls, epsilon: float, delta: float, statistic: Statistic) -> tuple[Mechanism, ...]:
        """Offer the global sensitivity, and the smooth one if there is a delta."""
        allowed = SENSITIVITIES if delta > 0.0 else ("global",)
        return tuple(cls(epsilon=epsilon, delta=delta, sensitivity=sensitivity) for sensitivity in allowed)

    def refusal(self, statistic: Statistic) -> str:
        """Refuse what is not a posterior of a public number of records with an enumerable number of outcomes."""
        if statistic.cells == 1 or statistic.prior is None:
            return "exponential chooses among finitely many posteriors: use geometric or best"
        if statistic.n is None:
            return "exponential needs a public number of records, and that of a part is private: use geometric or best"
        if math.comb(statistic.n + statistic.cells - 1, statistic.cells - 1) > MOST_STATES:
            return f"it has more than the {MOST_STATES} possible posteriors that are enumerated: use geometric or best"
        if statistic.cells > 2 and self.score in TWO_CELL_SCORES:
            return f"score={self.score!r} is for two categories, this has {statistic.cells}: use score='hellinger'"
        return ""

    def calibrated(self, statistic: Statistic) -> ReleasePlan:
        """Return the table of probabilities of every posterior given every other."""
        from tacita.posterior.enumeration import exponential_table
        from tacita.posterior.plans import Certificate, ReleasePlan

        if statistic.prior is None or statistic.n is None:
            raise PrivacyError(f"{self} cannot be used: {self.refusal(statistic)}.")
        curve = exponential_table(self, statistic.prior, statistic.n)
        how = f"enumeration of all {len(curve.rows)} posteriors"
        return ReleasePlan(self, statistic, Certificate(curve, how), table=curve.rows)
