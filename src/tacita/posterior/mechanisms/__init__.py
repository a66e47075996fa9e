"""The mechanisms: one file and one entry of `MECHANISMS` each. No numerical library is loaded here."""

from tacita.posterior.mechanisms._best import Best as best
from tacita.posterior.mechanisms._exponential import Exponential as exponential
from tacita.posterior.mechanisms._gaussian import Gaussian as gaussian
from tacita.posterior.mechanisms._geometric import Geometric as geometric
from tacita.posterior.mechanisms._laplace import Laplace as laplace
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

__all__ = ["MECHANISMS", "Mechanism", "Statistic", "best", "exponential", "gaussian", "geometric", "laplace"]

MECHANISMS: dict[str, type[Mechanism]] = {
    "best": best,
    "geometric": geometric,
    "gaussian": gaussian,
    "laplace": laplace,
    "exponential": exponential,
}
