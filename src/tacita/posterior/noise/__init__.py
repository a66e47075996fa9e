"""Noise on whole numbers: one file and one entry of `NOISES` for each distribution."""

from tacita.posterior.noise.gaussian import GaussianNoise as GaussianNoise
from tacita.posterior.noise.geometric import GeometricNoise as GeometricNoise
from tacita.posterior.noise.laplace import LaplaceNoise as LaplaceNoise
from tacita.posterior.noise.protocol import Noise as Noise

NOISES: dict[str, type[Noise]] = {"geometric": GeometricNoise, "laplace": LaplaceNoise, "gaussian": GaussianNoise}
