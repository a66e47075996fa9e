"""Conjugate Pyro models are recognised by what they mean; everything else is refused with its reason."""

import math
import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine

from tacita.posterior.models import Beta, Dirichlet, Normal, beta, dirichlet, normal
from tacita.posterior.pyro_model import recognise


def beta_model(records, *, prior=None):
    """Return a model with a Beta prior whose records are observed by `records(share, data)`."""

    def model(data):
        records(pyro.sample("share", prior(data) if prior else dist.Beta(2.0, 1.0)), data)

    return model


def bernoulli(share, data):
    with pyro.plate("people", len(data)):
        pyro.sample("smoker", dist.Bernoulli(share), obs=data)


def dirichlet_model(records, alphas=(1.0, 2.0, 0.5)):
    def model(data):
        records(pyro.sample("shares", dist.Dirichlet(torch.tensor(alphas))), data)

    return model


def categorical(shares, data):
    with pyro.plate("people", len(data)):
        pyro.sample("colour", dist.Categorical(shares), obs=data)


def normal_model(records, *, prior=None):
    def model(data):
        records(pyro.sample("mean", prior(data) if prior else dist.Normal(170.0, 10.0)), data)

    return model


def heights(mean, data, scale=7.0):
    with pyro.plate("people", len(data)):
        pyro.sample("height", dist.Normal(mean, scale), obs=data)


# What is recognised.


def by_logits(share, data):
    with pyro.plate("people", len(data)):
        pyro.sample("smoker", dist.Bernoulli(logits=torch.logit(share)), obs=data)


def one_at_a_time(share, data):
    for i in pyro.plate("people", len(data)):
        pyro.sample(f"smoker_{i}", dist.Bernoulli(share), obs=data[i])


def plain_loop(share, data):
    for i, x in enumerate(data):
        pyro.sample(f"smoker_{i}", dist.Bernoulli(share), obs=x)


def as_event(share, data):
    pyro.sample("smoker", dist.Bernoulli(share).expand([len(data)]).to_event(1), obs=data)


def reordered(share, data):
    bernoulli(share, data[torch.randperm(len(data))])


def with_a_note(share, data):
    pyro.deterministic("odds", share / (1 - share))
    bernoulli(share, data)


@pytest.mark.parametrize("records", [bernoulli, by_logits, one_at_a_time, plain_loop, as_event, reordered, with_a_note])
def test_every_way_to_observe_true_and_false_records_is_one_beta(records):
    found = recognise(beta_model(records), cells=2)
    assert found == beta(2.0, 1.0)
    assert isinstance(found, Beta)


def test_a_prior_of_one_entry_is_a_single_latent():
    model = beta_model(bernoulli, prior=lambda data: dist.Beta(torch.tensor([0.1]), torch.tensor([3.0])).to_event(1))
    assert recognise(model, cells=2) == beta(0.1, 3.0)


def log_categorical(shares, data):
    with pyro.plate("people", len(data)):
        pyro.sample("colour", dist.Categorical(logits=shares.log()), obs=data)


def categorical_loop(shares, data):
    for i, x in enumerate(data):
        pyro.sample(f"colour_{i}", dist.Categorical(shares), obs=x)


@pytest.mark.parametrize("records", [categorical, log_categorical, categorical_loop])
def test_categories_are_a_dirichlet_in_their_order(records):
    assert recognise(dirichlet_model(records), cells=3) == dirichlet(1.0, 2.0, 0.5)


def test_two_categories_may_be_a_dirichlet_even_when_the_model_needs_whole_numbers():
    def counts_first(shares, data):
        torch.bincount(data)  # refuses floats
        categorical(shares, data)

    for records in (categorical, counts_first):
        found = recognise(dirichlet_model(records, (3.0, 4.0)), cells=2)
        assert found == dirichlet(3.0, 4.0)
        assert type(found) is Dirichlet


def test_many_categories_are_recognised():
    alphas = tuple(1.0 + i % 5 for i in range(300))
    assert recognise(dirichlet_model(categorical, alphas), cells=300) == dirichlet(*alphas)


def heights_loop(mean, data):
    for i in pyro.plate("people", len(data)):
        pyro.sample(f"height_{i}", dist.Normal(mean, 7.0), obs=data[i])


def heights_event(mean, data):
    pyro.sample("height", dist.Normal(mean, 7.0 * torch.ones(len(data))).to_event(1), obs=data)


@pytest.mark.parametrize("records", [heights, heights_loop, heights_event])
def test_normal_records_of_known_scale_are_a_normal(records):
    assert recognise(normal_model(records), cells=None) == normal(170.0, 10.0, record_sd=7.0)


def test_numbers_come_back_as_written_not_as_single_precision_holds_them():
    model = normal_model(lambda mean, data: heights(mean, data, 0.3), prior=lambda data: dist.Normal(170.1, 0.7))
    assert recognise(model, cells=None) == Normal(170.1, 0.7, 0.3)


def test_models_that_compute_in_double_precision_are_recognised():
    def prior(data):
        return dist.Normal(torch.tensor(0.1, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))

    assert recognise(normal_model(heights, prior=prior), cells=None) == normal(0.1, 2.0, record_sd=7.0)


def test_a_pyro_module_is_a_model_too():
    class Smokers(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.share = pyro.nn.PyroSample(dist.Beta(4.0, 5.0))

        def forward(self, data):
            bernoulli(self.share, data)

    assert recognise(Smokers(), cells=2) == beta(4.0, 5.0)


# The oracle: the posterior of the description is the one that integrating the Pyro log joint gives.


def log_joint(model, name, value, data):
    return float(poutine.trace(poutine.condition(model, data={name: value})).get_trace(data).log_prob_sum())


def moments(points, weights, log_densities):
    """Return the mean and the variance of each coordinate, by quadrature."""
    mass = weights * np.exp(log_densities - np.max(log_densities))
    mass /= mass.sum()
    mean = mass @ points
    return mean, mass @ (points - mean) ** 2


def unit_interval(nodes):
    x, w = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, w / 2


def double(x):
    return torch.tensor(x, dtype=torch.float64)


weight = st.floats(0.5, 20.0)


@settings(max_examples=10)
@given(a=weight, b=weight, records=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=9))
def test_the_beta_posterior_is_the_integral_of_the_pyro_model(a, b, records):
    records = [0.0, 1.0, *records]
    model = beta_model(bernoulli, prior=lambda data: dist.Beta(double(a), double(b)))
    points, weights = unit_interval(150)
    data = double(records)
    mean, variance = moments(points, weights, [log_joint(model, "share", double(p), data) for p in points])
    prior = recognise(model, cells=2)
    true, false = prior.alphas[0] + sum(records), prior.alphas[1] + len(records) - sum(records)
    total = true + false
    assert mean == pytest.approx(true / total, rel=1e-3)
    assert variance == pytest.approx(true * false / (total**2 * (total + 1)), rel=1e-3)


@settings(max_examples=5)
@given(alphas=st.tuples(weight, weight, weight), records=st.lists(st.integers(0, 2), max_size=6))
def test_the_dirichlet_posterior_is_the_integral_of_the_pyro_model(alphas, records):
    records = [0, 1, 2, *records]
    prior = double(alphas)

    def model(data):
        categorical(pyro.sample("shares", dist.Dirichlet(prior)), data)

    nodes, weights = unit_interval(24)
    u, v = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
    points = np.stack([u, (1 - u) * v, (1 - u) * (1 - v)], axis=1)
    area = np.outer(weights, weights).ravel() * (1 - u)
    data = torch.tensor(records)
    mean, variance = moments(points, area, [log_joint(model, "shares", double(p), data) for p in points])
    posterior = np.array(recognise(model, cells=3).alphas) + np.bincount(records, minlength=3)
    shares = posterior / posterior.sum()
    np.testing.assert_allclose(mean, shares, rtol=1e-3)
    np.testing.assert_allclose(variance, shares * (1 - shares) / (posterior.sum() + 1), rtol=1e-3)


@settings(max_examples=10)
@given(
    mean=st.floats(-50, 50),
    sd=st.floats(0.1, 20),
    record_sd=st.floats(0.1, 20),
    records=st.lists(st.floats(-60, 60), min_size=1, max_size=8),
)
def test_the_normal_posterior_is_the_integral_of_the_pyro_model(mean, sd, record_sd, records):
    model = normal_model(
        lambda latent, data: heights(latent, data, double(record_sd)),
        prior=lambda data: dist.Normal(double(mean), double(sd)),
    )
    found = recognise(model, cells=None)
    precision = found.sd**-2 + len(records) * found.record_sd**-2
    centre = (found.mean / found.sd**2 + sum(records) / found.record_sd**2) / precision
    nodes, weights = unit_interval(60)
    points = centre + (2 * nodes - 1) * 8 / math.sqrt(precision)
    integrated, variance = moments(
        points, weights, [log_joint(model, "mean", double(p), double(records)) for p in points]
    )
    assert integrated == pytest.approx(centre, abs=1e-3 / math.sqrt(precision))
    assert variance == pytest.approx(1 / precision, rel=1e-3)


# What is refused, and why.


def subsampled(share, data):
    with pyro.plate("people", len(data), subsample_size=len(data) - 1) as chosen:
        pyro.sample("smoker", dist.Bernoulli(share), obs=data[chosen])


def weighted(share, data):
    with poutine.scale(scale=2.0):
        bernoulli(share, data)


def masked(share, data):
    with poutine.mask(mask=data > 0.5):
        bernoulli(share, data)


def masked_distribution(share, data):
    with pyro.plate("people", len(data)):
        pyro.sample("smoker", dist.Bernoulli(share).mask(data > 0.5), obs=data)


def partly_missing(share, data):
    with pyro.plate("people", len(data)):
        pyro.sample("smoker", dist.Bernoulli(share), obs=data, obs_mask=data > 0.5)


def with_factor(share, data):
    bernoulli(share, data)
    pyro.factor("nudge", share)


def with_parameter(share, data):
    pyro.param("rate", torch.tensor(1.0))
    bernoulli(share, data)


def with_a_second_latent(share, data):
    pyro.sample("other", dist.Normal(0.0, 1.0))
    bernoulli(share, data)


def pseudo_record(share, data):
    bernoulli(share, data)
    pyro.sample("expert", dist.Bernoulli(share), obs=torch.tensor(1.0))


def first_hundred(share, data):
    bernoulli(share, data[:100])


def everyone_is_the_first(share, data):
    bernoulli(share, data[0].expand(len(data)))


def counted_once_per_pair(share, data):
    with pyro.plate("people", len(data)):
        pyro.sample("smoker", dist.Bernoulli(share), obs=data.unsqueeze(-1))


def flipped(share, data):
    bernoulli(share, 1 - data)


def flipped_in_place(share, data):
    bernoulli(share, data.neg_().add_(1))


def of_the_complement(share, data):
    bernoulli(1 - share, data)


def clamped(share, data):
    bernoulli(share.clamp(0.01, 0.99), data)


def only_the_first_depends(share, data):
    shares = torch.full((len(data),), 0.5)
    shares[0] = share
    with pyro.plate("people", len(data)):
        pyro.sample("smoker", dist.Bernoulli(shares), obs=data)


def poisson(share, data):
    with pyro.plate("people", len(data)):
        pyro.sample("smokers", dist.Poisson(share), obs=data)


def hidden_evidence(share, data):
    bernoulli(share, data)
    pyro.sample("note", dist.Bernoulli(share), obs=torch.tensor(1.0), infer={"_deterministic": True})


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (subsampled, "subsample"),
        (weighted, "weights 'smoker' by a scale"),
        (masked, "masks 'smoker'"),
        (masked_distribution, "distribution MaskedDistribution"),
        (partly_missing, "masks 'smoker_observed'"),
        (with_factor, "a factor, 'nudge'"),
        (with_parameter, "parameter to be learned, 'rate'"),
        (with_a_second_latent, r"2 latents \('share', 'other'\)"),
        (pseudo_record, "observes 4 values where there are 3 records"),
        (first_hundred, "observes 100 values where there are 129 records"),
        (everyone_is_the_first, "other than the records as they are"),
        (counted_once_per_pair, "density is not the product"),
        (flipped, "other than the records as they are"),
        (flipped_in_place, "other than the records as they are"),
        (of_the_complement, "not drawn with the latent 'share' itself"),
        (clamped, "not drawn with the latent 'share' itself"),
        (only_the_first_depends, "not drawn with the latent 'share' itself"),
        (poisson, "distribution Poisson, which is not conjugate to Beta"),
        (hidden_evidence, "density is not the product"),
        (lambda share, data: None, "observes no records"),
    ],
)
def test_true_false_records_observed_otherwise_are_refused(records, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        recognise(beta_model(records), cells=2)
    assert "Supported are a Beta prior" in str(refused.value)


class Tilted(dist.Beta):
    def log_prob(self, value):
        return super().log_prob(value) + value


@pytest.mark.parametrize(
    ("prior", "reason"),
    [
        (lambda data: dist.Beta(1.0 + data.mean(), 1.0), "changes with the data"),
        (lambda data: dist.Beta(float(len(data)), 1.0), "changes with the data"),
        (lambda data: dist.Beta(2.0 if len(data) < 100 else 3.0, 1.0), "changes with the data"),
        (lambda data: dist.Beta(1.0 + torch.rand(()), 1.0), "from call to call"),
        (lambda data: dist.Beta(2.0, 1.0).expand([len(data)]).to_event(1), "a group of 3 instead of a single one"),
        (lambda data: dist.Beta(2.0, 1.0).mask(False), "prior of type MaskedDistribution"),
        (lambda data: dist.Uniform(0.0, 1.0), "prior of type Uniform"),
        (lambda data: dist.Bernoulli(0.5), "prior of type Bernoulli"),
        (lambda data: Tilted(2.0, 1.0), "prior of type Tilted"),
        (lambda data: dist.Beta(1e9, 1.0), "out of range: true must be in"),
        (lambda data: dist.Beta(-1.0, 1.0), "raised ValueError on placeholder records"),
    ],
)
def test_other_priors_are_refused(prior, reason):
    with pytest.raises(ValueError, match=reason):
        recognise(beta_model(bernoulli, prior=prior), cells=2)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (lambda shares, data: categorical(shares, (data + 1) % 3), "other than the records as they are"),
        (lambda shares, data: categorical(shares[[1, 0, 2]], data), "not drawn with the latent"),
        (lambda shares, data: categorical(shares**2, data), "not drawn with the latent"),
        (lambda shares, data: categorical(torch.cat([shares, shares]), data), "not drawn with the latent"),
        (lambda shares, data: bernoulli(shares[0], (data == 0).float()), "Bernoulli, which is not conjugate"),
    ],
)
def test_categories_observed_otherwise_are_refused(records, reason):
    with pytest.raises(ValueError, match=reason):
        recognise(dirichlet_model(records), cells=3)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (lambda mean, data: heights(mean, data / 100), "other than the records as they are"),
        (lambda mean, data: heights(mean, data.clamp(0, 250)), "other than the records as they are"),
        (lambda mean, data: heights(mean, data.log()), "other than the records as they are"),
        (lambda mean, data: heights(mean, data, data.std()), "scale of its records changes"),
        (lambda mean, data: heights(mean, data, 1.0 + data.abs()), "different scales"),
        (lambda mean, data: heights(mean, data, mean.abs()), "scale of its records changes"),
        (lambda mean, data: heights(mean.clamp(0, 250), data), "not drawn with the latent 'mean' itself"),
        (lambda mean, data: heights(170 + 10 * mean, data), "not drawn with the latent 'mean' itself"),
        (lambda mean, data: heights(mean, data, pyro.sample("sd", dist.HalfNormal(1.0))), "2 latents"),
        (
            lambda mean, data: pyro.sample("height", dist.StudentT(3.0, mean, 1.0).expand([len(data)]), obs=data),
            "StudentT, which is not conjugate to Normal",
        ),
        (
            lambda mean, data: pyro.sample("h", dist.LogNormal(mean, 1.0).expand([len(data)]), obs=data.abs()),
            "LogNormal, which is not conjugate to Normal",
        ),
    ],
)
def test_reals_observed_otherwise_are_refused(records, reason):
    with pytest.raises(ValueError, match=reason):
        recognise(normal_model(records), cells=None)


def test_a_hierarchy_is_refused():
    def schools(data):
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        with pyro.plate("schools", len(data)):
            effect = pyro.sample("effect", dist.Normal(centre, 1.0))
            pyro.sample("score", dist.Normal(effect, 1.0), obs=data)

    with pytest.raises(ValueError, match=r"2 latents \('centre', 'effect'\)"):
        recognise(schools, cells=None)


def test_one_latent_for_each_record_is_refused():
    def model(data):
        with pyro.plate("people", len(data)):
            pyro.sample("height", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=data)

    with pytest.raises(ValueError, match="a group of 3 instead of a single one"):
        recognise(model, cells=None)


def test_a_model_without_a_latent_is_refused():
    with pytest.raises(ValueError, match="it has no latent"):
        recognise(lambda data: bernoulli(torch.tensor(0.5), data), cells=2)


@pytest.mark.parametrize(
    ("model", "cells", "reason"),
    [
        (beta_model(bernoulli), None, "Beta prior is for a true/false column, and this is a column of real numbers"),
        (beta_model(bernoulli), 4, "Beta prior is for a true/false column, and this is a column with 4 categories"),
        (dirichlet_model(categorical), 4, "Dirichlet prior is for a column with 3 categories, and .* 4 categories"),
        (dirichlet_model(categorical), None, "Dirichlet prior is for a column with 3 categories, and .* real numbers"),
        (normal_model(heights), 2, "Normal prior is for a column of real numbers, and .* 2 categories"),
    ],
)
def test_a_model_for_another_column_is_refused(model, cells, reason):
    with pytest.raises(ValueError, match=reason):
        recognise(model, cells=cells)


def test_an_error_in_the_model_is_named():
    def broken(data):
        raise KeyError("height")

    with pytest.raises(ValueError, match="raised KeyError on placeholder records: 'height'"):
        recognise(broken, cells=2)
    with pytest.raises(ValueError, match=r"raised TypeError on placeholder records: .*positional argument"):
        recognise(lambda: None, cells=2)


def test_arguments_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="model must be a function of one argument"):
        recognise("model.py", cells=2)
    with pytest.raises(ValueError, match="cells must be a whole number"):
        recognise(beta_model(bernoulli), cells=1)


# The session is left as it was found.


def careless(share, data):
    pyro.set_rng_seed(1)
    pyro.param("left_behind", torch.ones(2))
    for i in pyro.plate("people", len(data)):
        pyro.sample(f"smoker_{i}", dist.Bernoulli(share), obs=data[i])
        raise RuntimeError("stopped half way")


@pytest.mark.parametrize("records", [bernoulli, careless])
def test_generators_parameters_and_handlers_are_left_as_found(records):
    store = pyro.get_param_store()
    kept = pyro.param("kept", torch.tensor([3.0]))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    settings_before = torch.get_default_dtype(), torch.is_grad_enabled(), poutine.util.is_validation_enabled()
    try:
        if records is careless:
            with pytest.raises(ValueError, match="raised RuntimeError on placeholder records: stopped half way"):
                recognise(beta_model(records), cells=2)
        else:
            recognise(beta_model(records), cells=2)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002
        assert list(store.keys()) == ["kept"]
        assert store["kept"] is kept
        assert settings_before == (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            poutine.util.is_validation_enabled(),
        )
        assert not poutine.runtime._PYRO_STACK
    finally:
        pyro.clear_param_store()
