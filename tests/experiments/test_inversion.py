"""The exact effects of leaving a record out are what integration and refitting give."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from torch.distributions import MultivariateNormal, kl_divergence

from experiments.inversion import mu
from experiments.inversion.page import across, counts, pooled

ONE, OTHER = [0.0, 0.4, 1.5], [0.2, 0.3]


def log_density(values, centres, width):
    return logsumexp([norm.logpdf(values, c, width) for c in centres], axis=0)


@pytest.mark.parametrize("width", [0.05, 0.5])
def test_a_kernel_estimates_effect_is_that_of_integration(monkeypatch, width):
    monkeypatch.setattr(mu, "PER_KERNEL", 20_000)
    inputs = torch.tensor(ONE + OTHER).reshape(-1, 1, 1, 1)
    found = mu.Kernels(inputs, torch.tensor([0, 0, 0, 1, 1]), width).effects(np.arange(5))
    grid, expected = np.linspace(-4, 6, 100_001), []
    for own in (ONE, OTHER):
        p = log_density(grid, own, width) - np.log(5)
        for left_out in own:
            q = log_density(grid, [c for c in own if c != left_out], width) - np.log(4)
            elsewhere = (5 - len(own)) / 5 * np.log(4 / 5)
            expected.append(np.trapezoid(np.exp(p) * (p - q), grid) + elsewhere)
    assert found == pytest.approx(expected, rel=0.03, abs=0.003)


def test_the_divergence_of_gaussians_is_that_of_torch():
    draws = torch.Generator().manual_seed(0)
    means = torch.randn(2, 3, 4, generator=draws, dtype=torch.float64)
    roots = torch.randn(2, 3, 4, 6, generator=draws, dtype=torch.float64)
    covariances = roots @ roots.mT
    one, other = (MultivariateNormal(m, c) for m, c in zip(means, covariances, strict=True))
    found = mu._gaussian_kl(means[0], covariances[0], means[1], covariances[1])
    torch.testing.assert_close(found, kl_divergence(one, other))


def test_a_mean_embedding_is_fitted_without_the_record_and_with_the_same_noise():
    draws = torch.Generator().manual_seed(0)
    inputs, labels = torch.rand(60, 1, 8, 8, generator=draws), torch.arange(60) % 10
    whole = mu.Gaussians(inputs, labels, 0.5, seed=3)
    kept = torch.arange(60) != 7
    without = mu.Gaussians(inputs[kept], labels[kept], 0.5, seed=3)
    expected = mu._gaussian_kl(*whole.fitted(whole.total), *without.fitted(without.total)).mean()
    assert whole.effects(np.array([7]))[0] == pytest.approx(float(expected), rel=1e-6)
    assert expected > 0


def test_summaries_of_seeds():
    assert counts([3, 1, 2]) == "2 (1–3)"
    assert counts([4]) == "4"
    assert pooled([{"found": 0.5, "low": 0.1, "high": 0.7}, {"found": -0.7, "low": -0.8, "high": 0.2}]) == (
        "−0.10 (−0.80 to +0.70)"
    )
    assert across(np.array([[1, 1], [2, 1], [3, 1], [4, 1]])) == "all alike"
    assert across(np.arange(8).reshape(4, 2)).startswith("+1.00, 4")
    assert across(np.stack([np.arange(9)] * 2, 1)).startswith("+1.00 (+1.00")
