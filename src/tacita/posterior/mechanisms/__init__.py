"""The mechanisms: one file and one entry of `MECHANISMS` each. No numerical library is loaded here."""

from tacita.posterior.mechanisms._best import Best, best
from tacita.posterior.mechanisms._exponential import Exponential, exponential
from tacita.posterior.mechanisms._gaussian import Gaussian, gaussian
from tacita.posterior.mechanisms._geometric import Geometric, geometric
from tacita.posterior.mechanisms._laplace import Laplace, laplace
from tacita.posterior.mechanisms.protocol import Mechanism, Statistic

MECHANISMS: dict[str, type[Mechanism]] = {
    "best": Best,
    "geometric": Geometric,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "exponential": Exponential,
}

__all__ = [
    "MECHANISMS",
    "Mechanism",
    "Statistic",
    "best",
    "exponential",
    "gaussian",
    "geometric",
    "laplace",
]
