"""An oracle for composed curves that shares nothing with the code under test: a contour integral."""

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
            with np.errstate(over="ignore"):  # far from the saddle point, while looking for it
                total = total + count * np.log(np.sum(np.exp((z + 1) * loss + log_q)) * step)
        return total

    best = minimize_scalar(lambda c: float(np.real(exponent(np.exp(c)))) - c, bounds=(-6, 6), method="bounded")
    c = float(np.exp(best.x))
    peak = float(np.real(exponent(c)))

    def integrand(y):
        z = c + 1j * y
        return float(np.real(np.exp(exponent(z) - peak) / (z * (z + 1))))

    curvature = (float(np.real(exponent(c * 1.001) - 2 * exponent(c) + exponent(c * 0.999)))) / (c * 0.001) ** 2
    total, last, low, width = 0.0, 0.0, 0.0, 4.0 / np.sqrt(curvature)
    for _ in range(60):  # until two pieces in a row add nothing: heavy tails decay slowly
        piece = quad(integrand, low, low + width, limit=400, epsabs=1e-13, epsrel=1e-9)[0]
        total += piece
        if low and abs(piece) + abs(last) < 1e-9 * abs(total):
            break
        last, low, width = piece, low + width, 1.5 * width
    value = total / np.pi
    return float(np.exp(peak) * value)


@pytest.fixture(name="contour_delta")
def _contour_delta():
    return contour_delta
