"""An oracle for composed curves that shares nothing with the code under test: a contour integral."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar


def contour_delta(epsilon, rate, parts):
    r"""δ(ε) for the record removed, after n steps at ratio r for each (r, n) in `parts`.

    With K(z) = Σ n log ∫ P (P/Q)^z, for any c > 0,

        δ(ε) = (1/2πi) ∫_{Re z = c} exp(K(z) - zε) / (z (z + 1)) dz,

    because (1 - e^{ε-ℓ})_+ is the inverse Laplace transform of e^{-zε}/(z(z+1)) at ℓ. Taken through the saddle
    point the integrand decays like a Gaussian and loses no digits, however small δ is.
    """
    w = np.linspace(-12.0, 24.0, 6_001)
    step = w[1] - w[0]

    def exponent(z):
        total = -z * epsilon
        for ratio, count in parts:
            loss = np.log1p(rate * np.expm1(ratio * w - ratio**2 / 2))
            log_q = -(w**2) / 2 - 0.5 * np.log(2 * np.pi)
            total = total + count * np.log(np.sum(np.exp((z + 1) * loss + log_q)) * step)
        return total

    best = minimize_scalar(lambda c: float(np.real(exponent(np.exp(c)))) - c, bounds=(-6, 6), method="bounded")
    c = float(np.exp(best.x))
    peak = float(np.real(exponent(c)))

    def integrand(y):
        z = c + 1j * y
        return float(np.real(np.exp(exponent(z) - peak) / (z * (z + 1))))

    curvature = (float(np.real(exponent(c * 1.001) - 2 * exponent(c) + exponent(c * 0.999)))) / (c * 0.001) ** 2
    pieces = np.array([0.0, 4.0, 12.0, 40.0, 120.0]) / np.sqrt(curvature)
    value = sum(quad(integrand, a, b, limit=200, epsabs=1e-13, epsrel=1e-9)[0] for a, b in pairwise(pieces)) / np.pi
    return float(np.exp(peak) * value)


@pytest.fixture(name="contour_delta")
def _contour_delta():
    return contour_delta
