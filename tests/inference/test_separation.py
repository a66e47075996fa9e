"""A model taken apart has the density and the per-record gradients of Pyro's own trace, or is refused with its line."""

import itertools
import math
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy.integrate import quad
from scipy.stats import norm, poisson
from torch.distributions import biject_to, constraints

from tacita._check import PrivacyError
from tacita.inference.methods.private_steps import Evidence
from tacita.inference.separation import separate, start_of
from tacita.training.records import record_loss
from tacita.training.step import private_gradient

# Models, and what is known of them without taking them apart.


@dataclass(frozen=True)
class Case:
    """A model, its data, how its sites come from free numbers, and what a record's own discrete sites can be."""

    model: object
    data: object  # () -> tensors, or a dict of them
    free: dict  # site -> (transform from free numbers, their shape)
    own: dict = field(default_factory=dict)  # site -> values

    def tensors(self):
        made = self.data()
        return (tuple(made.values()), tuple(made)) if isinstance(made, dict) else (made, ())

    def separated(self):
        return separate(self.model, *self.tensors())

    def size(self):
        return sum(math.prod(shape) for _, shape in self.free.values())

    def values(self, flat):
        parts = flat.split([math.prod(shape) for _, shape in self.free.values()])
        return {
            name: transform(part.reshape(shape))
            for (name, (transform, shape)), part in zip(self.free.items(), parts, strict=True)
        }

    def trace(self, flat, tensors, **own):
        """Pyro's own trace of the model at these values."""
        names = self.tensors()[1]
        conditioned = poutine.condition(self.model, data={**self.values(flat), **own})
        batch = {"kwargs": dict(zip(names, tensors, strict=True))} if names else {"args": tensors}
        trace = poutine.trace(conditioned).get_trace(*batch.get("args", ()), **batch.get("kwargs", {}))
        trace.compute_log_prob()
        return trace

    def record(self, flat, tensors):
        """One record's log density by Pyro's trace, its own discrete sites summed out one combination at a time."""
        terms = []
        for chosen in itertools.product(*self.own.values()):
            trace = self.trace(flat, tensors, **dict(zip(self.own, chosen, strict=True)))
            sites = [s for n, s in trace.nodes.items() if s["type"] == "sample" and "log_prob_sum" in s]
            terms.append(sum(s["log_prob_sum"] for s in sites if s["name"] not in self.free))
        return torch.logsumexp(torch.stack([torch.as_tensor(t) for t in terms]), 0)


def real(part):
    return part


def simplex(part):
    return biject_to(constraints.simplex)(part)


def xy():
    x = torch.randn(7, 2)
    return x, x @ torch.tensor([1.0, -2.0]) + torch.randn(7)


def linear(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def looped_linear(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
    for i in pyro.plate("records", len(x)):
        pyro.sample(f"y_{i}", dist.Normal(x[i] @ w, sigma), obs=y[i])


def logistic(x, y):
    w = pyro.sample("w", dist.Laplace(torch.zeros(2), 1.0).to_event(1))
    b = pyro.sample("b", dist.StudentT(4.0, 0.0, 2.0))
    with pyro.plate("records", len(x)):
        logits = pyro.deterministic("logits", x @ w + b)
        pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def counts(x, y):
    rates = pyro.sample("rates", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Poisson(x.abs() @ rates), obs=y)


def schools(school, score):
    """Groups share their effects; a record's column says which is its own."""
    mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    with pyro.plate("schools", 3):
        effect = pyro.sample("effect", dist.Normal(mean, tau))
    with pyro.plate("pupils", len(score)):
        pyro.sample("score", dist.Normal(effect[school], 1.5), obs=score)


def kinds(kind):
    shares = pyro.sample("shares", dist.Dirichlet(torch.tensor([1.0, 2.0, 0.5])))
    with pyro.plate("records", len(kind)):
        pyro.sample("kind", dist.Categorical(shares), obs=kind)


def mixture(y):
    """A record's own discrete site, vectorised."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    means = pyro.sample("means", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    with pyro.plate("records", len(y)):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(means[z], 1.0), obs=y)


def two_own(y):
    """Two own discrete sites, the second built on the first."""
    p = pyro.sample("p", dist.Beta(2.0, 2.0))
    shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(y)):
        a = pyro.sample("a", dist.Bernoulli(p))
        b = pyro.sample("b", dist.Bernoulli(0.2 + 0.5 * a))
        pyro.sample("y", dist.Normal(shift * a + b, 0.7), obs=y)


def looped_mixture(y):
    p = pyro.sample("p", dist.Beta(2.0, 2.0))
    shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    for i in pyro.plate("records", len(y)):
        a = pyro.sample(f"a_{i}", dist.Bernoulli(p))
        pyro.sample(f"y_{i}", dist.Normal(shift * a, 0.7), obs=y[i])


def weighted(x, y):
    """Every record with a public weight, and those with a negative x masked out."""
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)), poutine.scale(scale=0.3), poutine.mask(mask=x[:, 0] > 0.0):
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)


def by_factor(y):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(y)):
        pyro.factor("y", -((y - m).abs() ** 1.5))


def two_columns(x, y):
    """Two observed sites in one plate, one of them a vector."""
    m = pyro.sample("m", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.MultivariateNormal(m, torch.eye(2)), obs=x)
        pyro.sample("y", dist.Normal(x @ m, 1.0), obs=y)


def real_records():
    return (torch.randn(7) + 1.0,)


BINARY = torch.tensor([0.0, 1.0], dtype=torch.float64)
CASES = {
    "linear": Case(linear, xy, {"w": (real, (2,)), "sigma": (torch.exp, ())}),
    "by name": Case(
        linear, lambda: dict(zip("yx", xy()[::-1], strict=True)), {"w": (real, (2,)), "sigma": (torch.exp, ())}
    ),
    "in a loop": Case(looped_linear, xy, {"w": (real, (2,)), "sigma": (torch.exp, ())}),
    "logistic": Case(logistic, lambda: (xy()[0], torch.ones(7).bernoulli(0.5)), {"w": (real, (2,)), "b": (real, ())}),
    "counts": Case(counts, lambda: (xy()[0], torch.arange(7.0)), {"rates": (torch.exp, (2,))}),
    "groups": Case(
        schools,
        lambda: {"school": torch.arange(7) % 3, "score": torch.randn(7)},
        {"mean": (real, ()), "tau": (torch.exp, ()), "effect": (real, (3,))},
    ),
    "simplex": Case(kinds, lambda: (torch.arange(7) % 3,), {"shares": (simplex, (2,))}),
    "weighted": Case(weighted, xy, {"m": (real, ())}),
    "factor": Case(by_factor, real_records, {"m": (real, ())}),
    "two columns": Case(two_columns, xy, {"m": (real, (2,))}),
    "mixture": Case(
        mixture, real_records, {"weights": (simplex, (2,)), "means": (real, (3,))}, {"z": torch.arange(3)[:, None]}
    ),
    "two own": Case(
        two_own,
        real_records,
        {"p": (torch.sigmoid, ()), "shift": (real, ())},
        {"a": BINARY[:, None], "b": BINARY[:, None]},
    ),
    "own in a loop": Case(
        looped_mixture,
        real_records,
        {"p": (torch.sigmoid, ()), "shift": (real, ())},
        {"a_0": BINARY},
    ),
}
WITHOUT_OWN = [name for name, case in CASES.items() if not case.own]


@pytest.fixture(params=CASES)
def case(request, double):
    return CASES[request.param]


def log_volume(case, flat):
    """The log volume change of all sites, from the matrix of derivatives; a simplex has one number too many."""
    start, total = 0, 0.0
    for transform, shape in case.free.values():
        part = flat[start : start + math.prod(shape)].detach()
        start += len(part)
        matrix = torch.autograd.functional.jacobian(
            lambda free, transform=transform, shape=shape: transform(free.reshape(shape)).flatten()[: len(free)], part
        )
        total += float(torch.linalg.slogdet(matrix)[1])
    return total


def points(case, count=3):
    return torch.from_numpy(np.random.default_rng(2).normal(size=(count, case.size())))


# Densities.


@pytest.mark.parametrize("name", WITHOUT_OWN)
def test_prior_and_records_add_up_to_pyros_own_density(name, double):
    case = CASES[name]
    (tensors, _), made = case.tensors(), case.separated()
    for flat in points(case):
        ours = made.log_prior(flat) + sum(made.log_likelihood(flat, record) for record in zip(*tensors, strict=True))
        theirs = case.trace(flat, tensors).log_prob_sum() + log_volume(case, flat)
        assert float(ours) == pytest.approx(float(theirs), rel=1e-10)


def test_a_records_term_is_pyros_with_its_own_discrete_sites_summed_out(case):
    (tensors, _), made = case.tensors(), case.separated()
    for flat in points(case, 2):
        for i, record in enumerate(zip(*tensors, strict=True)):
            theirs = case.record(flat, tuple(t[i : i + 1] for t in tensors))
            assert float(made.log_likelihood(flat, record)) == pytest.approx(float(theirs), rel=1e-10)


def test_the_prior_is_the_density_of_the_shared_sites_alone(case):
    (tensors, _), made = case.tensors(), case.separated()
    for flat in points(case):
        own = {
            name: values[0].expand(len(tensors[0])) if values.dim() > 1 else values[0]
            for name, values in case.own.items()
        }
        trace = case.trace(flat, tensors, **own)
        theirs = sum(float(trace.nodes[name]["log_prob_sum"]) for name in case.free) + log_volume(case, flat)
        assert float(made.log_prior(flat)) == pytest.approx(theirs, rel=1e-10)


def test_values_keep_leading_dimensions(case):
    made = case.separated()
    flats = points(case, 4)
    together = made.values(flats)
    for i, flat in enumerate(flats):
        for name, value in case.values(flat).items():
            assert torch.allclose(together[name][i], value, rtol=1e-12)


# Per-record gradients, through the step that training takes.


def test_per_record_gradients_equal_a_loop_over_pyros_traces(case):
    tensors, made = case.tensors()[0], case.separated()
    for flat in points(case, 2):
        loop = []
        for i in range(len(tensors[0])):
            at = flat.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(-case.record(at, tuple(t[i : i + 1] for t in tensors)), at)
            loop.append(gradient)
        evidence = Evidence(made, flat)
        loss, records = record_loss(evidence, None), tensors
        for i, gradient in enumerate(loop):
            only = torch.zeros(len(loop)).index_fill(0, torch.tensor([i]), 1e11)  # others are clipped to nothing
            sums, clipped = _batch_gradient(loss, flat, records, bounds=only)
            assert torch.allclose(sums["point"], gradient, rtol=1e-6, atol=1e-9 * float(gradient.norm()))
            assert float(clipped.norms[i]) == pytest.approx(float(gradient.norm()), rel=1e-6)
        sums, _ = _batch_gradient(loss, flat, records)
        whole = torch.stack(loop).sum(0)
        assert torch.allclose(sums["point"], whole, rtol=1e-6, atol=1e-9 * float(whole.norm()))


def _batch_gradient(loss, flat, records, bounds=None, seed=0):
    return private_gradient(
        loss,
        {"point": flat},
        records,
        clip_norm=1e11,
        noise_multiplier=0.0,
        divisor=1.0,
        rng=np.random.default_rng(seed),
        bounds=bounds,
    )


# A record's own continuous sites, averaged out over draws from their prior.


def overdispersed(y):
    """Counts whose log rate has a record's own normal part."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    with pyro.plate("records", len(y)):
        own = pyro.sample("own", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Poisson(torch.exp(mean + spread * own)), obs=y)


def contaminated(y):
    """A record's own continuous site, and an own discrete one that says whether it matters."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(y)):
        odd = pyro.sample("odd", dist.Bernoulli(0.3))
        shift = pyro.sample("shift", dist.Laplace(0.0, 2.0))
        pyro.sample("y", dist.Normal(mean + odd * shift, 1.0), obs=y)


def overdispersed_by_quadrature(count):
    """The log density of a count at mean 0.4 and spread exp(-0.3)."""
    return math.log(
        quad(lambda own: norm.pdf(own) * poisson.pmf(count, math.exp(0.4 + math.exp(-0.3) * own)), -9, 9)[0]
    )


def contaminated_by_quadrature(y):
    """The log density of a record at mean 0.2."""
    odd, _ = quad(lambda s: math.exp(-abs(s) / 2) / 4 * norm.pdf(y, 0.2 + s), -40, 40, points=[0.0, y])
    return math.log(0.7 * norm.pdf(y, 0.2) + 0.3 * odd)


def test_own_continuous_sites_converge_to_quadrature(double):
    y, flat = torch.tensor([0.0, 2.0, 7.0]), torch.tensor([0.4, -0.3])
    made = separate(overdispersed, (y,), draws=10_000)
    assert (made.drawn, made.size) == (("own",), 2)
    for value in y:
        terms = torch.stack([made.log_likelihood(flat, (value,)) for _ in range(20)])
        assert float(terms.mean()) == pytest.approx(overdispersed_by_quadrature(int(value)), abs=0.02)


def test_few_draws_give_a_lower_bound_on_average(double):
    value, flat = torch.tensor(7.0), torch.tensor([0.4, -0.3])
    means = []
    for draws in (2, 32):
        made = separate(overdispersed, (value[None],), draws=draws)
        means.append(float(torch.stack([made.log_likelihood(flat, (value,)) for _ in range(300)]).mean()))
    assert means[0] < means[1] - 0.1 < means[1] < overdispersed_by_quadrature(7)


def test_own_continuous_and_discrete_sites_together(double):
    y, flat = torch.tensor([4.0, -0.5]), torch.tensor([0.2])
    made = separate(contaminated, (y,), draws=10_000)
    for value in y.tolist():
        terms = torch.stack([made.log_likelihood(flat, (torch.tensor(value),)) for _ in range(10)])
        assert float(terms.mean()) == pytest.approx(contaminated_by_quadrature(value), abs=0.02)


@pytest.mark.parametrize("prior", [dist.Normal(0.0, 1.0), dist.Laplace(0.0, 1.0), dist.Exponential(2.0)])
def test_every_record_and_every_draw_is_fresh(prior, double):
    """Under per-record differentiation, records that are equal still get draws of their own."""

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("records", len(y)):
            own = pyro.sample("own", prior)
            pyro.sample("y", dist.Normal(mean + own, 1.0), obs=y)

    y = torch.ones(50)
    made = separate(model, (y,), draws=3)
    loss, flat = record_loss(Evidence(made, torch.zeros(1)), None), torch.zeros(1)
    _, clipped = _batch_gradient(loss, flat, (y,))
    _, again = _batch_gradient(loss, flat, (y,), seed=1)
    assert len(set(clipped.norms.tolist())) == 50
    assert not set(clipped.norms.tolist()) & set(again.norms.tolist())


# Where a fit starts.


def test_the_start_is_the_priors_means_one_after_the_other(double):
    def model(y):
        mean = pyro.sample("mean", dist.Normal(4.0, 1.0))
        wide = pyro.sample("wide", dist.Cauchy(1.0, 1.0))
        scale = pyro.sample("scale", dist.Exponential(0.5))
        effect = pyro.sample("effect", dist.Normal(mean * torch.ones(2), scale).to_event(1))
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(effect.sum() + wide, scale), obs=y)

    made = separate(model, (torch.randn(4),))
    assert start_of(made).tolist() == pytest.approx([4.0, 0.0, math.log(2.0), 4.0, 4.0])


# What is refused. SECRET stands in the data and must be in no message.

SECRET = 31337.25


def secret_records():
    return (torch.tensor([1.5, SECRET, -2.5, 0.5, 7.0]),)


def normal_mean():
    return pyro.sample("mean", dist.Normal(0.0, 1.0))


def no_plate(y):
    pyro.sample("y", dist.Normal(normal_mean(), 1.0).expand([len(y)]).to_event(1), obs=y)


def centred(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y - y.mean())


def centred_with_own(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        own = pyro.sample("own", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean + own, 1.0), obs=y - y.mean())


def own_of_neighbours(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        own = pyro.sample("own", dist.Normal(y.mean(), 1.0))
        pyro.sample("y", dist.Normal(mean + own, 1.0), obs=y)


def centred_in_a_loop(y):
    mean = normal_mean()
    for i in pyro.plate("records", len(y)):
        pyro.sample(f"y_{i}", dist.Normal(mean, 1.0), obs=y[i] - y.mean())


def scaled_down(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)), poutine.scale(scale=1.0 / len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def chained(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean + torch.cat([y[:1], y[:-1]]), 1.0), obs=y)


def pairs(y):
    mean = normal_mean()
    with pyro.plate("one", len(y), dim=-1), pyro.plate("other", len(y), dim=-2):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[:, None] - y)


def subsampling(y):
    mean = normal_mean()
    with pyro.plate("records", len(y), subsample_size=1) as rows:
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])


def with_param(y):
    scale = pyro.param("scale", torch.tensor(1.0))
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def discrete_shared(y):
    mean, kind = normal_mean(), pyro.sample("kind", dist.Bernoulli(0.5))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean + kind, 1.0), obs=y)


def observed_outside(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    pyro.sample("total", dist.Normal(mean, 1.0), obs=y.sum())


def factor_outside(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    pyro.factor("penalty", -(mean**2))


def range_of_data(y):
    top = pyro.sample("top", dist.Uniform(-1.0, y.max() + 2.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(top, 1.0), obs=y)


def range_of_equal_data(y):
    """All records say the same, so only the stand-ins show that the range comes from them."""
    top = pyro.sample("top", dist.Uniform(-1.0, torch.where(y[0] > 1.4, SECRET, 2.0)))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(top, 1.0), obs=0.0 * y + 1.5)


def prior_of_data(y):
    mean = pyro.sample("mean", dist.Normal(y.mean(), 1.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def fixed_plate(y):
    mean = normal_mean()
    with pyro.plate("records", 5):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def plate_of_a_value(y):
    """The size of the plate around the observed site is a record's value."""
    mean = normal_mean()
    with pyro.plate("secret", 1 + int(y.abs().max())):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[:1])


def two_plates(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("a", dist.Normal(mean, 1.0), obs=y)
    with pyro.plate("again", len(y)):
        pyro.sample("b", dist.Normal(mean, 1.0), obs=y)


def failing(y):
    normal_mean()
    raise RuntimeError(f"bad value {y[0]}, {SECRET}")


def failing_on_zeros(y):
    mean = normal_mean()
    if float(y.abs().sum()) == 0.0:
        raise RuntimeError(f"nothing but zeros, not {SECRET}")
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def failing_on_records(y):
    mean = normal_mean()
    if float(y.abs().sum()) > 0.0:
        raise RuntimeError(f"bad value {y[0]}, {SECRET}")
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def plate_of_nonzero(y):
    """The plate follows the number of records on zeros alone."""
    mean = normal_mean()
    with pyro.plate("records", len(y) + int((y != 0.0).any()), dim=-1):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def branching(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 2.0 if y[0] > -1e9 else 3.0), obs=y)


def in_place(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        centres = torch.zeros(len(y))
        centres += mean * y
        pyro.sample("y", dist.Normal(centres, 1.0), obs=y)


def prior_not_a_number(y):
    scale = pyro.sample("scale", dist.Normal(torch.tensor(0.0), torch.tensor(-1.0)))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(scale, 1.0), obs=y)


def nothing_observed(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0))


def nothing_shared(y):
    with pyro.plate("records", len(y)):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def changing_sites(y):
    mean = normal_mean()
    if len(y) > 2:
        pyro.sample("extra", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def many_values(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        kind = pyro.sample("kind", dist.Categorical(torch.ones(65)))
        pyro.sample("y", dist.Normal(mean + kind, 1.0), obs=y)


def values_of_data(y):
    """How many values a record's own site takes is written in a record."""
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        hits = pyro.sample("hits", dist.Binomial(y.abs().clamp_max(9.0).floor(), 0.5))
        pyro.sample("y", dist.Normal(mean + hits, 1.0), obs=y)


def unbounded_own(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        kind = pyro.sample("kind", dist.Poisson(3.0))
        pyro.sample("y", dist.Normal(mean + kind, 1.0), obs=y)


def own_in_a_further_plate(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)), pyro.plate("answers", 3):
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(mean + kind, 1.0), obs=y.expand(3, -1))


def own_vector(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        kind = pyro.sample("kind", dist.Bernoulli(torch.full((3,), 0.5)).to_event(1))
        pyro.sample("y", dist.Normal(mean + kind.sum(-1), 1.0), obs=y)


def without_numbers(y):
    mean, none = normal_mean(), pyro.sample("none", dist.Normal(torch.zeros(0), 1.0).to_event(1))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean + none.sum(), 1.0), obs=y)


def whole_numbers(y):
    share = pyro.sample("share", dist.Beta(1.0, 1.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Bernoulli(share), obs=(y > 0.0).long())


def truth_values(y):
    share = pyro.sample("share", dist.Beta(1.0, 1.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Bernoulli(share), obs=y > 0.0)


def undrawable_own(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        angle = pyro.sample("angle", dist.VonMises(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean + angle, 1.0), obs=y)


REFUSED = [
    (no_plate, PrivacyError, ["'y'", "no plate", "pyro.plate('records'", "LINE"]),
    (centred, PrivacyError, ["'y'", "'records'", "centred", "LINE"]),
    (centred_with_own, PrivacyError, ["'y'", "'records'", "centred", "LINE"]),
    (own_of_neighbours, PrivacyError, ["'own'", "'records'", "LINE"]),
    (centred_in_a_loop, PrivacyError, ["'records'", "LINE"]),
    (scaled_down, PrivacyError, ["'y'", "'records'", "LINE"]),
    (chained, PrivacyError, ["'y'", "'records'", "LINE"]),
    (pairs, PrivacyError, ["'y'", "'one'", "LINE"]),
    (subsampling, PrivacyError, ["'records'", "subsamples", "LINE"]),
    (with_param, PrivacyError, ["'scale'", "no prior", "LINE"]),
    (discrete_shared, ValueError, ["'kind'", "discrete", "LINE"]),
    (observed_outside, PrivacyError, ["'total'", "plate", "LINE"]),
    (factor_outside, PrivacyError, ["'penalty'", "plate", "LINE"]),
    (range_of_data, ValueError, ["'top'", "range", "LINE"]),
    (range_of_equal_data, ValueError, ["'top'", "range", "LINE"]),
    (prior_of_data, PrivacyError, ["'mean'", "prior", "LINE"]),
    (fixed_plate, PrivacyError, ["'y'", "'records'", "another size", "LINE"]),
    (plate_of_nonzero, PrivacyError, ["'y'", "'records'", "another size", "LINE"]),
    (plate_of_a_value, PrivacyError, ["'y'", "'secret'", "LINE"]),
    (two_plates, PrivacyError, ["'b'", "'again'", "'records'", "one plate", "LINE"]),
    (failing, ValueError, ["RuntimeError", "after site 'mean'", "stand-in record of zeros", "LINE"]),
    (failing_on_zeros, ValueError, ["RuntimeError", "'mean'", "stand-in record of zeros", "must run on", "LINE"]),
    (failing_on_records, ValueError, ["RuntimeError", "torch.where", "LINE"]),
    (branching, ValueError, ["torch.where", "LINE"]),
    (in_place, ValueError, ["in place", "LINE"]),
    (prior_not_a_number, ValueError, ["'scale'", "not a number", "LINE"]),
    (nothing_observed, PrivacyError, ["obs="]),
    (nothing_shared, PrivacyError, ["'records'", "LINE"]),
    (changing_sites, PrivacyError, ["'extra'", "LINE"]),
    (many_values, ValueError, ["'kind'", "'records'", "64", "LINE"]),
    (values_of_data, ValueError, ["'hits'", "LINE"]),
    (unbounded_own, ValueError, ["'kind'", "Poisson", "LINE"]),
    (own_in_a_further_plate, ValueError, ["'kind'", "'records'", "'answers'", "a vector of", "LINE"]),
    (own_vector, ValueError, ["'kind'", "'records'", "a vector of", "LINE"]),
    (without_numbers, ValueError, ["'none'", "no numbers", "LINE"]),
    (whole_numbers, ValueError, ["floats", "LINE"]),
    (truth_values, ValueError, ["floats", "LINE"]),
    (undrawable_own, ValueError, ["'angle'", "VonMises", "LINE"]),
]


@pytest.mark.parametrize(("model", "kind", "said"), REFUSED, ids=[model.__name__ for model, *_ in REFUSED])
def test_refusals_name_the_site_the_plate_and_the_line_and_no_value(model, kind, said):
    data = (torch.full((5,), 1.5),) if model is range_of_equal_data else secret_records()
    with pytest.raises(kind) as caught:
        separate(model, data)
    message = str(caught.value)
    first = model.__code__.co_firstlineno
    last = max(line for _, _, line in model.__code__.co_lines() if line)
    lines = [f"test_separation.py, line {n}" for n in range(first, last + 1)]
    for words in said:
        assert any(line in message for line in lines) if words == "LINE" else words in message, message
    assert "\n" not in message
    assert all(secret not in "".join(traceback.format_exception(caught.value)) for secret in ("31337", "7.0"))


def logarithm(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y.log())


def group(k):
    effects = pyro.sample("effects", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("records", len(k)):
        pyro.sample("y", dist.Normal(effects[k], 1.0), obs=torch.ones(len(k)))


@pytest.mark.parametrize("place", [0, 1, 2, 5, 10])
@pytest.mark.parametrize(
    ("model", "data", "odd"), [(logarithm, torch.ones(11), -1.0), (group, torch.arange(11) % 3, 9)]
)
def test_f3_whether_a_model_is_taken_does_not_hang_on_a_record(model, data, odd, place):
    """Not even on those that it is tried on: a number without a logarithm, a group that there is not."""
    assert separate(model, (data,)).plate == "records"
    assert separate(model, (data.index_fill(0, torch.tensor([place]), odd),)).plate == "records"
    assert separate(model, (torch.full_like(data, odd),)).plate == "records"


def wider_if(odd):
    """A model in which one odd record widens the density of all."""

    def model(y):
        mean = normal_mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0 + 3.0 * odd(y)), obs=y.clamp(-5.0, 5.0))

    return model


@pytest.mark.parametrize("last", [3.0, 5000.0, -5000.0, math.nan])
@pytest.mark.parametrize("odd", [lambda y: y.max() > 1000.0, lambda y: y.min() < -1000.0, lambda y: y.min() < -1.0])
def test_f3_a_model_that_mixes_records_where_one_is_odd_is_refused_whether_one_is_or_not(odd, last):
    with pytest.raises(PrivacyError, match="cannot be separated at site 'y'"):
        separate(wider_if(odd), (torch.tensor([0.1, 0.5, 1.0, 2.0, last]),))


def prior_beyond(y):
    mean = pyro.sample("mean", dist.Normal(torch.where(y.max() > 1e6, 1.0, 0.0), 1.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def range_beyond(y):
    mean = pyro.sample("mean", dist.Uniform(-1.0, torch.where(y.max() > 1e6, 2.0, 1.0)))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def plate_beyond(y):
    mean = normal_mean()
    with pyro.plate("records", len(y) + (not _batched(y) and int(y.max() > 1e6)), dim=-1):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def site_beyond(y):
    mean = normal_mean()
    if not _batched(y) and bool(y.max() > 1e6):
        pyro.sample("extra", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize(
    "model", [wider_if(lambda y: y.max() > 1e6), prior_beyond, range_beyond, plate_beyond, site_beyond]
)
def test_f3_no_record_refuses_a_model_not_even_one_unlike_every_stand_in(model):
    """A fit calls it with one record at a time, so its terms are private all the same."""
    for last in (3.0, 1e9):
        assert separate(model, (torch.tensor([0.1, 0.5, last]),)).plate == "records"


def test_f3_the_model_is_checked_on_public_stand_ins_alone():
    """The same calls, whatever the records are."""

    def calls(y):
        seen = []

        def model(y):
            if not _batched(y):
                seen.append(y.detach().clone())
            mean = normal_mean()
            with pyro.plate("records", len(y)):
                pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

        separate(model, (y,))
        return seen

    one, other = calls(torch.full((5,), SECRET)), calls(torch.full((9,), -3.25))
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not any(bool(((y == SECRET) | (y == -3.25)).any()) for y in one)


# Models that keep something from call to call.


def latching(keep, when=lambda kept, y: not kept, prior=False):
    """A model that takes constants from the records it is called with."""
    kept = {}

    def model(y):
        if when(kept, y):
            kept["it"] = keep(y)
        mean = pyro.sample("mean", dist.Normal(kept.get("it", 0.0) if prior else 0.0, 1.0))
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y if prior else y - kept.get("it", 0.0))

    return model


class RunningMean(torch.nn.Module):
    """A layer that follows the mean of what it is called with."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, y):
        self.mean = 0.9 * self.mean + 0.1 * y.mean().detach()
        mean = normal_mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y - self.mean)


def one_behind():
    """Every call is centred by the one before it."""
    kept = [torch.zeros(())]

    def model(y):
        mean, before, kept[0] = normal_mean(), kept[0], y.mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y - before)

    return model


def mean_of(y):
    return y.mean()


def late(kept, y):
    return not kept and bool((y.detach() != 0.0).any())


def scaled(from_=1.0, change=torch.abs):
    """Divides by a number of the first records above a level; the density of zeros says nothing of it."""
    kept = {}

    def model(y):
        if not kept and float(y.abs().max()) > from_:
            kept["scale"] = float(y.abs().sum())
        mean = normal_mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=change(y.abs()) / kept.get("scale", 1.0))

    return model


def following():
    """Divides by the largest number so far."""
    kept = {"scale": 1.0}

    def model(y):
        kept["scale"] = max(kept["scale"], float(y.abs().max()))
        mean = normal_mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y / kept["scale"])

    return model


KEEPING = {
    "a mean": (lambda: latching(mean_of), "'y'"),
    "a prior": (lambda: latching(mean_of, prior=True), "'mean'"),
    "a standard deviation": (lambda: latching(lambda y: y.std(), prior=True), "'mean'"),
    "the call before": (one_behind, "'y'"),
    "what it sees of records": (lambda: latching(mean_of, late), "'y'"),
    "a number of records": (lambda: latching(lambda y: float(y.sum()), late), "'y'"),
    "a prior of records": (lambda: latching(mean_of, late, prior=True), "'mean'"),
    "a factor of records": (scaled, "'y'"),
    "a factor of logarithms": (lambda: scaled(change=torch.log), "'y'"),
    "the largest": (following, "'y'"),
    "a running mean": (RunningMean, "'y'"),
}


@pytest.mark.parametrize("name", KEEPING)
def test_a_model_that_keeps_something_of_its_records_is_refused(name):
    make, site = KEEPING[name]
    with pytest.raises(PrivacyError, match="from call to call") as caught:
        separate(make(), secret_records())
    assert site in str(caught.value)
    assert "test_separation.py, line" in str(caught.value)
    assert "31337" not in "".join(traceback.format_exception(caught.value))


def test_a_model_that_keeps_something_in_pyros_store_is_refused():
    def model(y):
        store = pyro.get_param_store()
        if "centre" not in store:
            store["centre"] = y.mean().detach()
        mean = normal_mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y - store["centre"].detach())

    with pytest.raises(PrivacyError, match=r"from call to call, in Pyro's parameter store: 'centre'"):
        separate(model, secret_records())
    assert "centre" not in pyro.get_param_store()


@pytest.mark.parametrize("make", [lambda: latching(lambda y: float(y.mean()) + 1.0), lambda: scaled(0.0)])
def test_a_number_that_is_kept_of_the_first_calls_comes_from_public_stand_ins(make):
    """Numbers leave no track to follow, but the first calls are public, and so is all that is kept of them."""
    one, other = (separate(make(), (y,)) for y in (*secret_records(), torch.ones(9)))
    record = (torch.tensor(3.0),)
    term = float(one.log_likelihood(torch.zeros(1), record))
    assert term == float(other.log_likelihood(torch.zeros(1), record))
    assert term == pytest.approx(norm.logpdf(2.0), rel=1e-5)  # 3 - 1, and 3 / (1/4 + 2/4 + 3/4)


def test_the_first_calls_and_the_last_are_zeros_of_one_two_and_three_rows_and_then_other_numbers():
    calls = []

    def model(y):
        calls.append((len(y), not _batched(y) and bool((y == 0.0).all())))
        mean = normal_mean()
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    separate(model, secret_records())
    first = next(i for i, (_, zeros) in enumerate(calls) if not zeros)
    assert {rows for rows, _ in calls[:first]} == {1, 2, 3}
    assert calls[-11:] == [(1, True), (2, True), (3, True), *[(3, False), (1, False)] * 4]
    assert max(rows for rows, _ in calls) == 3


def _batched(y):
    return torch._C._functorch.is_functorch_wrapped_tensor(y)


# What makes one record's value depend on the others; x are the records of one column.
MIXING = {
    "standardised": lambda x: (x - x.mean()) / x.std(),
    "divided by the deviation": lambda x: x / x.std(),
    "moved into [0, 1]": lambda x: (x - x.min()) / (x.max() - x.min()),
    "standardised, with a floor": lambda x: (x - x.mean()) / (x.std(unbiased=False) + 1e-6),
    "standardised unless alone": lambda x: (x - x.mean()) / x.std() if len(x) > 1 else x,
    "standardised logarithms": lambda x: torch.log(x - 20.0) / torch.log(x - 20.0).std(),
    "centred": lambda x: x - x.mean(),
    "centred above 10": lambda x: torch.where(x > 10.0, x - x.mean(), x),
    "a softmax": lambda x: torch.softmax(x, 0),
    "batch norm": lambda x: torch.nn.functional.batch_norm(x[:, None], None, None, training=True)[:, 0],
    "ranked": lambda x: x.argsort().argsort().float(),
    "sorted": lambda x: x.sort().values,
    "over the largest": lambda x: x / x.max(),
    "over the sum": lambda x: x / x.sum(),
    "added up": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("of", ["inputs", "outcomes", "whole numbers"])
@pytest.mark.parametrize("how", MIXING)
def test_a_model_that_computes_with_all_records_at_once_is_refused_whatever_they_are(how, of):
    """Equal records tell nothing: public stand-ins must. A record that is no number alone would contribute nothing."""
    mix = MIXING[how]

    def model(x, y):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        inputs, outcomes = (x, mix(y)) if of == "outcomes" else (mix(x.float()), y)
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(slope * inputs, 1.0), obs=outcomes)

    equal = torch.full((20,), SECRET)
    with pytest.raises((PrivacyError, ValueError), match=r"cannot be separated|one included") as caught:
        separate(model, (equal.long() if of == "whole numbers" else equal, equal))
    assert "test_separation.py, line" in str(caught.value)
    assert str(SECRET) not in str(caught.value)


def test_a_lone_record_that_makes_no_number_is_told_with_the_way_out():
    def model(x):
        mean = normal_mean()
        with pyro.plate("records", len(x)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=(x - x.mean()) / x.std())

    with pytest.raises(PrivacyError, match="before the fit, with public constants"):
        separate(model, (torch.randn(20),))


def test_a_lone_record_that_makes_no_number_is_found_in_a_loop_over_records_with_sites_of_their_own():
    def model(x):
        mean, scaled = normal_mean(), (x - x.mean()) / x.std()
        for i in pyro.plate("records", len(x)):
            own = pyro.sample(f"own_{i}", dist.Normal(0.0, 1.0))
            pyro.sample(f"x_{i}", dist.Normal(mean + own, 1.0), obs=scaled[i])

    with pytest.raises(PrivacyError, match="with others and none alone"):
        separate(model, (torch.randn(20),))


def by_category(kind, y):
    """Whole numbers that are places in a table of two, on which 50 is no place."""
    levels = pyro.sample("levels", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(levels[kind], 1.0), obs=y)


def of_one_kind(kind, y):
    """Whole numbers of which only 0 is a place."""
    level = pyro.sample("level", dist.Normal(torch.zeros(1), 1.0).to_event(1))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(level[kind], 1.0), obs=y)


@pytest.mark.parametrize("model", [by_category, of_one_kind])
def test_models_of_places_in_a_table_are_taken_apart(model):
    assert separate(model, (torch.zeros(9, dtype=torch.long), torch.randn(9))).size in (1, 2)


def log_normal(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.LogNormal(mean, 1.0), obs=y)


def gamma(y):
    rate = pyro.sample("rate", dist.Gamma(2.0, 2.0))
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Gamma(0.5 * rate, rate), obs=y)


def logs(y):
    mean = normal_mean()
    with pyro.plate("records", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y.log())


@pytest.mark.parametrize("model", [log_normal, gamma, logs])
def test_a_model_whose_density_is_no_number_on_zeros_is_taken_apart(model, double):
    made, y = separate(model, (torch.tensor([0.5, 2.0, 3.0, 1.0]),)), torch.tensor(2.0)
    ours = float(made.log_likelihood(torch.zeros(1), (y,)))
    theirs = {
        log_normal: norm.logpdf(math.log(2.0)) - math.log(2.0),
        gamma: -0.5 * math.log(math.pi) - 0.5 * math.log(2.0) - 2.0,
        logs: norm.logpdf(math.log(2.0)),
    }[model]
    assert ours == pytest.approx(theirs, rel=1e-10)


# Models that hold the records beside their arguments.


def holding(held):
    def model(y):
        mean = pyro.sample("mean", dist.Normal(held.mean(), 1.0))
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def holding_in_a_list(y):
    held = {"records": [y]}

    def model(y):
        mean = pyro.sample("mean", dist.Normal(held["records"][0].mean(), 1.0))
        with pyro.plate("records", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


class Holding(torch.nn.Module):
    def __init__(self, held):
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, y):
        holding(self.held)(y)


@pytest.mark.parametrize(
    "make",
    [
        holding,
        lambda y: holding(y[1:]),
        lambda y: holding(y.numpy()),
        lambda y: holding(y.double()),
        lambda y: holding(y.double().numpy()),
        holding_in_a_list,
        Holding,
    ],
)
def test_a_model_that_holds_the_records_is_refused(make):
    (y,) = secret_records()
    with pytest.raises(PrivacyError, match=r"holds the records themselves, as 'held'.*as arguments only"):
        separate(make(y), (y,))


def test_a_model_may_hold_public_tensors():
    separate(holding(torch.arange(5.0)), secret_records())
    separate(Holding(torch.arange(5.0)), secret_records())


# Arguments.


@pytest.mark.parametrize(
    ("tensors", "names", "said"),
    [
        (2, (), "the model takes y, and data has 2 tensors"),
        (1, ("z",), "the model takes y, and data has 'z'"),
        (2, ("y", "z"), "the model takes y, and data has 'y', 'z'"),
    ],
)
@pytest.mark.parametrize("model", [centred, Holding(torch.zeros(1))], ids=["function", "module"])
def test_arguments_that_do_not_match_the_data_are_told(model, tensors, names, said):
    with pytest.raises(ValueError, match=f"arguments do not match the data: {said}"):
        separate(model, secret_records() * tensors, names)


def test_records_that_require_gradients_are_taken_as_they_are():
    assert separate(linear, tuple(t.requires_grad_() for t in xy())).size == 3


def test_a_model_must_be_a_function():
    with pytest.raises(TypeError, match="Pyro model"):
        separate(3, secret_records())


def test_records_that_are_not_finite_are_not_what_the_model_is_tried_on():
    y = torch.tensor([math.nan, 1.0, 2.0, math.inf, 4.0])
    x = torch.randn(5, 2).index_fill(0, torch.tensor([1]), math.nan)
    made = separate(linear, (x, y))
    assert [u.name for u in made.unknowns] == ["w", "sigma"]


def test_nothing_that_is_kept_comes_from_a_record():
    """Two datasets without a record in common are taken apart into the same parts."""
    one, other = (separate(mixture, (torch.randn(9) + shift,)) for shift in (0.0, 50.0))
    assert torch.equal(one.discrete[0][1], other.discrete[0][1])
    assert all(torch.equal(a, b) for a, b in zip(one.example, other.example, strict=True))
    flat = torch.randn(one.size)
    assert all(torch.equal(a, b) for a, b in zip(one.values(flat).values(), other.values(flat).values(), strict=True))


# The session is left as it was found.


def test_torchs_own_checks_stay_switched_off():
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        separate(linear, xy())
        assert torch.distributions.Distribution._validate_args is False
    finally:
        torch.distributions.Distribution.set_default_validate_args(True)


@pytest.mark.parametrize("model", [linear, with_param])
@pytest.mark.parametrize("checked", [True, False])
def test_the_session_is_left_as_it_was_found(model, checked):
    data = xy() if model is linear else secret_records()
    pyro.clear_param_store()
    pyro.param("kept", torch.tensor(2.5))
    with pyro.validation_enabled(checked):
        torch.manual_seed(3)
        states = pyro.util.get_rng_state()
        with nullcontext() if model is linear else pytest.raises(PrivacyError):
            start_of(separate(model, data))
        after = pyro.util.get_rng_state()
        assert torch.equal(after["torch"], states["torch"])
        assert after["random"] == states["random"]
        assert after["numpy"][1].tolist() == states["numpy"][1].tolist()
        assert {name: value.item() for name, value in pyro.get_param_store().items()} == {"kept": 2.5}
        with pytest.raises(ValueError, match="scale") if checked else nullcontext():
            dist.Normal(torch.tensor(0.0), torch.tensor(-1.0))
        assert poutine.util.is_validation_enabled() is checked
    pyro.clear_param_store()
