"""Every method of the table keeps to the protocol, and a new one needs one class and one entry."""

import math
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

from tacita.accounting import Target
from tacita.inference import Box, coverage, fit, fitting, resume
from tacita.inference.guides import GUIDES
from tacita.inference.methods import METHODS, Method
from tacita.inference.methods.plain import Plain
from tacita.inference.plots import elbo_plot
from tacita.inference.results import Posterior
from tacita.label import Label
from tacita.runs import RunError

X = torch.linspace(-1.0, 1.0, 12)
TINY = {"steps": 3, "sample_rate": 0.5, "seed": 1, "samples": 2}
NEEDS = {"noisy": {"noise_multiplier": 4.0}, "sgld": {"noise_multiplier": 4.0}, "final-samples": {"pairs": 0}}
REFUSABLE = {
    "epsilon": 1.0,
    "target": Target(attack_success=0.6),
    "noise_multiplier": 1.0,
    "ledger": "ledger.sqlite",
    "run_dir": "run",
    "holdout": X,
    "training": {"individual_every": 2},
    "person": list(range(len(X))),
    "records_per_person": 2,
    "holdout_person": list(range(len(X))),
}


def mean(x):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(m, 1.0), obs=x)


class Toy(Plain):
    """A plain fit that releases its first draws several times over."""

    name = "toy"
    text = "a toy"
    note = "Do not use it."
    options = ("repeats",)

    def fit(self, request):
        result = super().fit(request)
        draws = result.posterior.released.repeat(request.options.get("repeats", 1), 1)
        return replace(result, posterior=Posterior(result.posterior.separated, draws))


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", Toy())
    return METHODS


@pytest.mark.parametrize("name", [*METHODS, "toy"])
def test_every_method_keeps_to_the_protocol(name, table, tmp_path):
    method = table[name]
    assert isinstance(method, Method)
    assert method.name == name
    assert set(method.refuses) <= set(REFUSABLE)
    kept = {} if "run_dir" in method.refuses else {"run_dir": tmp_path / "run"}
    result = fit(mean, X, method=name, **TINY, **NEEDS.get(name, {}), **kept)
    assert result.method == name
    assert result.settings["method"] == name
    assert len(result.elbo) == TINY["steps"]
    assert result.posterior.sample()["m"].isfinite().all()
    label = result.label()
    assert isinstance(label, Label)
    rows = dict(label.mechanism)
    assert rows["Method"] == method.text
    assert ("Guide" in rows) == method.fits_guide
    assert method.note in rows["Intervals"]
    assert (GUIDES["diagonal"].note in rows["Intervals"]) == method.fits_guide
    assert elbo_plot(result).axes[0].get_ylabel() == method.objective
    assert (result.guarantee.epsilon < math.inf) == (name in ("noisy", "sgld"))  # no box was declared
    if kept:
        assert fitting.label_of_run(tmp_path / "run").to_dict() == label.to_dict()
        again = resume(tmp_path / "run", mean, X)
        assert again.guarantee == result.guarantee
        if result.posterior.location is None:  # else further draws are free
            assert torch.equal(again.posterior.released, result.posterior.released)
        else:
            assert torch.equal(again.posterior.location, result.posterior.location)


@pytest.mark.parametrize("name", [*METHODS, "toy"])
def test_a_method_refuses_what_it_does_not_take_and_takes_no_others_options(name, table):
    for argument, reason in table[name].refuses.items():
        with pytest.raises(ValueError, match=f"^{argument} does not go with method='{name}'{reason}"):
            fit(mean, X, method=name, **TINY, **{argument: REFUSABLE[argument]})
    others = {"box": Box(bound=1.0, low=1.0, high=1.0, dimension=1), "repeats": 3}
    for option in set(others) - set(table[name].options):
        with pytest.raises(ValueError, match=rf"^{option}: for method='.*' only, got method='{name}'"):
            fit(mean, X, method=name, **TINY, **{option: others[option]})


def test_a_new_method_needs_one_entry(table):
    result = fit(mean, X, method="toy", repeats=5, **TINY)
    assert len(result.posterior.released) == 5 * TINY["samples"]
    assert 0.0 <= coverage(result, X, worlds=2, seed=0).share <= 1.0
    with pytest.raises(RunError, match="method='toy' writes no run directory"):
        table["toy"].resume(None, None)


def test_an_unknown_method_and_the_old_name_of_the_seed_are_refused():
    with pytest.raises(ValueError, match="method must be one of 'noisy', 'final-samples', 'sgld', 'plain', got 'vi'"):
        fit(mean, X, method="vi")
    with pytest.raises(TypeError, match="fit: rng is called seed now"):
        fit(mean, X, rng=1)
    with pytest.raises(TypeError, match="coverage: rng is called seed now"):
        coverage(None, X, rng=1)


def test_no_function_shadows_its_module():
    import tacita.inference.fitting as module

    assert module.fit is fit
