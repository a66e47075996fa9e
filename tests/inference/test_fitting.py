"""A fit end to end: what it guarantees, charges, releases and writes; and what one record can do to it."""

import inspect
import json
import math
import signal
import traceback
from dataclasses import fields

import dp_accounting
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import norm
from typer.main import get_command

from tacita import PrivacyError, runs
from tacita.accounting import Target
from tacita.cli import app
from tacita.inference import coverage, fit, resume
from tacita.inference.fitting import TRAINING, label_of_run
from tacita.inference.guides import Variational
from tacita.inference.methods import METHODS
from tacita.inference.request import tensors_of
from tacita.ledger import Ledger
from tacita.training import PrivateTraining
from tacita.training.plan import Plan
from tacita.training.settings import Follow

NOISE, STEPS, RATE = 8.0, 20, 0.2


def level(y):
    """The mean and the spread of real numbers."""
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = pyro.sample("spread", dist.LogNormal(0.0, 0.5))
    with pyro.plate("people", len(y)):
        pyro.sample("y", dist.Normal(mean, spread), obs=y)


def middle(y):
    """The mean of numbers whose spread is one: a record's gradient is known by hand."""
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("people", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("people", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def numbers(count=300, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(1.0, 1.0, count)).float()


def quick(model=level, data=None, **options):
    """A private fit of a second or less: the noise is given and nobody is followed."""
    given = {"noise_multiplier": NOISE, "steps": STEPS, "sample_rate": RATE, "panel": 0, "seed": 1}
    return fit(model, numbers() if data is None else data, **{**given, **options})


def charged(path):
    with Ledger.open(path) as ledger:
        return sum(run["charged"] for run in ledger.runs().values())


def dp_accountings_epsilon(noise, rate, steps, delta=1e-5):
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = dp_accounting.pld.PLDAccountant()
    return accountant.compose(event, steps).get_epsilon(delta)


# A whole run, with a target, a ledger, followed records and a folder.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "run"
    seen = []

    def progress(step, steps, note):
        seen.append((step, steps, charged(folder / "ledger.sqlite")))

    result = fit(
        level,
        numbers(),
        epsilon=2.0,
        steps=STEPS,
        sample_rate=RATE,
        samples=50,
        holdout=numbers(60, seed=9),
        panel=40,
        run_dir=folder,
        seed=1,
        name="Heights",
        progress=progress,
    )
    return result, folder, seen


def test_the_guarantee_is_within_what_was_asked_and_dp_accountings_own(run):
    result, folder, _ = run
    assert result.guarantee.kind == "worst_case"
    assert 1.9 < result.guarantee.epsilon <= 2.0
    noise = json.loads((folder / "run.json").read_text())["plan"]["noise_multiplier"]
    assert result.guarantee.epsilon == pytest.approx(dp_accountings_epsilon(noise, RATE, STEPS), rel=2e-3)


def test_a_fit_keeps_to_what_an_attacker_may_achieve():
    result = fit(level, torch.randn(30), target=Target(attack_success=0.6), steps=3, panel=0, samples=5, seed=1)
    assert 0.599 < result.guarantee.attack_success <= 0.6


def test_steps_are_charged_before_they_are_taken(run):
    _, folder, seen = run
    assert [(step, steps) for step, steps, _ in seen] == [(k, STEPS) for k in range(1, STEPS + 1)]
    assert all(on_disk >= step for step, _, on_disk in seen)
    assert charged(folder / "ledger.sqlite") == STEPS


def test_the_folders_label_is_the_results_own(run):
    result, folder, _ = run
    assert label_of_run(folder) == result.label()
    pages = {name: (folder / name).read_bytes() for name in ("guarantee.json", "label.html", "label-owner.html")}
    done = CliRunner().invoke(get_command(app), ["label", str(folder), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["label"] == result.label().to_dict()
    assert {name: (folder / name).read_bytes() for name in pages} == pages
    assert label_of_run(folder, delta=1e-7).worst.epsilon > result.guarantee.epsilon


def test_the_label_speaks_of_the_posterior(run):
    result, _, _ = run
    label = result.label()
    rows = dict(label.mechanism)
    assert label.title == "Heights"
    assert rows["Unknowns"] == "2 unknown numbers: mean, spread"
    assert "variational" in rows["Method"]
    assert "include the noise" in rows["Intervals"]
    assert "widens" in result.notes[0]
    assert any("one record of plate 'people' at a time" in check.text for check in label.public().checks)


def test_typical_cases_are_on_the_owners_label_alone(run):
    result, _, _ = run
    readings = result.label().readings
    assert readings.typical[0].kind == "bayesian"
    assert 0.0 < readings.typical[0].epsilon <= result.guarantee.epsilon
    assert "40" in readings.panels
    assert result.label().public().readings is None


def test_held_out_records_certify_shares_of_the_population():
    result = quick(level, numbers(), holdout=numbers(60, seed=9), panel=60, steps=5, clip_norm=100.0)
    found = result.label().readings.shares
    assert found.followed == 60
    assert found.epsilons[0][1] < result.guarantee.epsilon
    assert quick(level, numbers(), steps=5, clip_norm=100.0).label().readings.shares is None


def test_the_released_draws_are_in_the_folder(run):
    result, folder, _ = run
    with np.load(folder / "posterior.npz") as kept:
        assert set(kept) == {"mean", "spread"}
        for name, values in result.posterior.sample().items():
            assert kept[name].shape == (50,)
            assert np.array_equal(kept[name], values.numpy())


def test_what_the_folder_says_of_a_fit_holds_nothing_of_the_records(tmp_path):
    """Its numbers are settings and shapes, and how much wider the noise made intervals, which is private."""
    said = []
    for seed in (0, 5):
        quick(data=numbers(seed=seed), run_dir=tmp_path / str(seed), seed=None)
        document = json.loads((tmp_path / str(seed) / "run.json").read_text())["fit"]
        said.append({key: value for key, value in document.items() if key != "notes"})
    assert said[0] == said[1]


@pytest.mark.slow
def test_the_posterior_is_near_the_exact_one():
    data = numbers(2000)
    result = quick(middle, data, steps=300, noise_multiplier=3.0, samples=10, initial_scale=0.03)
    precision = 2000 + 0.25
    exact, sd = float(data.sum()) / precision, precision**-0.5
    (row,) = result.summary()
    assert row.mean == pytest.approx(exact, abs=3 * row.sd)
    assert sd < row.sd < 1.5 * sd


# Summaries, further draws, ArviZ.


def test_the_summary_is_a_table_with_its_warnings():
    result = quick()
    text = str(result.summary())
    assert text.splitlines()[0].split() == ["mean", "sd", "2.5%", "97.5%"]
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["mean", "spread"]
    assert "include the noise of the private fit" in text
    wide, narrow = (result.summary(level=level).rows[0] for level in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert (narrow.high - narrow.low) / narrow.sd == pytest.approx(2 * norm.ppf(0.75), rel=0.1)
    with pytest.raises(ValueError, match="level"):
        result.summary(level=95)


def test_vector_sites_are_numbered():
    x = torch.randn(200, 2)
    rows = quick(logistic, (x, (x[:, 0] > 0).float())).summary().rows
    assert [row.name for row in rows] == ["w[0]", "w[1]", "b"]


def test_further_draws_are_free_and_like_the_summary():
    result = quick(samples=7)
    assert len(result.posterior.sample()["mean"]) == 7
    many = result.posterior.sample(4000, seed=3)["mean"]
    row = result.summary().rows[0]
    assert float(many.mean()) == pytest.approx(row.mean, abs=4 * row.sd / math.sqrt(4000) * 2)
    assert torch.equal(many, result.posterior.sample(4000, seed=3)["mean"])
    with pytest.raises(ValueError, match="size"):
        result.posterior.sample(0)


def test_arviz_takes_the_draws():
    arviz = pytest.importorskip("arviz", reason="ArviZ is not installed (pip install -e '.[bayes]')")
    x = torch.randn(200, 2)
    result = quick(logistic, (x, (x[:, 0] > 0).float()), samples=40)
    made = result.to_arviz().posterior
    assert made["w"].dims[:2] == ("chain", "draw")
    assert (made["w"].shape, made["b"].shape) == ((1, 40, 2), (1, 40))
    assert np.array_equal(made["b"].values[0], result.posterior.sample()["b"].numpy())
    assert "epsilon" in made.attrs["privacy"]
    table = arviz.summary(result.to_arviz(), kind="stats")
    assert sorted(table.index) == ["b", "w[0]", "w[1]"]
    draws = result.posterior.sample()["b"]
    assert table.loc["b", "mean"] == pytest.approx(float(draws.mean()), abs=1e-3)


# Data in every form, and other methods.


def test_data_by_place_by_name_as_arrays_and_as_one_tensor():
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = (x[:, 0] > 0).astype(float)
    forms = [
        (x, y),
        [x.astype(np.float32), y],
        {"y": torch.from_numpy(y), "x": x},
        (torch.from_numpy(x).float(), torch.from_numpy(y).float()),
    ]
    means = [[row.mean for row in quick(logistic, data, steps=3).summary()] for data in forms]
    assert all(other == pytest.approx(means[0], abs=1e-6) for other in means)
    one = numbers()
    same = [quick(level, data, steps=3).summary() for data in (one, one.numpy(), {"y": one})]
    assert same[0] == same[1] == same[2]


def test_the_same_seed_gives_the_same_draws_and_another_other_ones():
    first, again, other = (quick(seed=seed).posterior.released for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-3)


def test_double_precision_by_default(double):
    result = quick(level, numbers().double())
    assert result.posterior.released.dtype == torch.float64
    assert result.posterior.sample()["mean"].dtype == torch.float64
    assert result.summary().rows[0].sd > 0.0


def test_whole_numbers_stay_whole():
    def kinds(kind):
        shares = pyro.sample("shares", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("people", len(kind)):
            pyro.sample("kind", dist.Categorical(shares), obs=kind)

    result = quick(kinds, np.arange(300) % 3)
    draws = result.posterior.sample()["shares"]
    assert draws.shape == (100, 3)
    assert torch.allclose(draws.sum(-1), torch.ones(100), atol=1e-5)


def test_a_low_rank_guide_and_own_unknowns():
    def counts(y):
        rate = pyro.sample("rate", dist.Normal(0.0, 1.0))
        spread = pyro.sample("spread", dist.HalfNormal(1.0))
        with pyro.plate("people", len(y)):
            own = pyro.sample("own", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Poisson(torch.exp(rate + spread * own)), obs=y)

    y = torch.from_numpy(np.random.default_rng(0).poisson(2.0, 200)).float()
    result, again = (quick(counts, y, guide="low-rank", local_draws=4) for _ in range(2))
    assert [row.name for row in result.summary()] == ["rate", "spread"]
    assert torch.equal(result.posterior.released, again.posterior.released)
    assert "low-rank" in dict(result.label().mechanism)["Guide"]


def test_langevin_dynamics_releases_its_chain_and_no_more():
    result = quick(middle, method="sgld", samples=5)
    assert result.posterior.sample()["mean"].shape == (5,)
    assert result.guarantee.epsilon == pytest.approx(dp_accountings_epsilon(NOISE, RATE, STEPS), rel=2e-3)
    with pytest.raises(PrivacyError, match="5 draws were released"):
        result.posterior.sample(6)
    assert "not calibrated" in str(result.summary())
    rows = dict(result.label().mechanism)
    assert "Langevin" in rows["Method"]
    assert rows["Intervals"] == METHODS["sgld"].note  # and none of a guide's
    assert "Guide" not in rows
    assert result.to_arviz().posterior["mean"].shape == (1, 5)


def test_a_plain_fit_promises_nothing_and_says_so():
    data = numbers(2000)
    seen = []
    options = {"steps": 300, "sample_rate": 0.5, "initial_scale": 0.03}
    result = fit(middle, data, method="plain", seed=0, progress=lambda *step: seen.append(step), **options)
    assert math.isinf(result.guarantee.epsilon)
    assert "No guarantee" in " ".join(result.label().declared)
    assert "infinite" in str(result.label())
    exact, sd = float(data.sum()) / 2000.25, 2000.25**-0.5
    (row,) = result.summary()
    assert row.mean == pytest.approx(exact, abs=0.5 * sd)
    assert 0.9 * sd < row.sd < 1.4 * sd
    assert (len(result.elbo), seen[-1]) == (300, (300, 300, "step"))


def test_the_evidence_bound_is_the_exact_evidence_less_the_fits_distance():
    """Without noise, at the end, its mean is just below the log evidence of a conjugate model."""
    data = numbers(500)
    result = fit(middle, data, method="plain", steps=300, sample_rate=1.0, initial_scale=0.05, seed=0)
    prior, n = 0.25, 500
    mean = float(data.double().sum()) / (n + prior)
    log_evidence = (
        norm.logpdf(data.numpy(), mean).sum()
        + norm.logpdf(mean, 0.0, 2.0)
        - norm.logpdf(mean, mean, (n + prior) ** -0.5)
    )
    constant = 0.5 * math.log(2 * math.pi * math.e)  # the entropy's, which the bound leaves out
    assert np.mean(result.elbo[-100:]) + constant == pytest.approx(log_evidence, abs=0.5)


# What one record can do.


@pytest.fixture
def gradients(monkeypatch):
    """Return the points and noisy sums that fits step along."""
    seen = []
    before = Variational._gradient

    def spy(self):
        seen.append((self.point.detach().clone(), self.point.grad.clone()))
        return before(self)

    monkeypatch.setattr(Variational, "_gradient", spy)
    return seen


def with_record(value):
    return numbers().index_fill(0, torch.tensor([0]), value)


def first_sum(gradients, value, **options):
    """The noisy sum of the first step, every record in it, the same noise at every call."""
    gradients.clear()
    result = quick(middle, with_record(value), sample_rate=1.0, clip_norm=0.5, **options)
    return (*gradients[0], result)


def test_a_record_out_of_range_moves_a_step_by_the_clip_norm(gradients):
    point, nothing, _ = first_sum(gradients, math.nan)
    for value, expected in ((30.0, -0.5), (-30.0, 0.5), (3e10, -0.5), (math.inf, 0.0)):
        at, found, _ = first_sum(gradients, value)
        assert torch.equal(at, point)
        assert float(found - nothing) == pytest.approx(expected, abs=1e-4)


def test_a_record_that_is_not_a_number_contributes_nothing(gradients):
    """Against a record at the point itself, whose gradient is zero, and one just beside it."""
    point, nothing, result = first_sum(gradients, math.nan)
    for away in (0.0, 0.25):
        _, found, _ = first_sum(gradients, float(point) - away)
        assert float(found - nothing) == pytest.approx(away, abs=1e-4)
    assert all(torch.isfinite(g).all() for _, g in gradients)
    assert torch.isfinite(result.posterior.released).all()


def test_how_far_out_of_range_makes_no_difference():
    """30 times and 3000 times out of range are clipped to the same: so are the fits."""
    far, further = (quick(middle, with_record(value)).posterior for value in (30.0, 3000.0))
    assert torch.allclose(far.released, further.released, atol=1e-5)
    usual = quick(middle, with_record(1.0)).posterior
    assert 0.0 < float((far.location - usual.location).abs()) < 0.2


# Ledgers and interruptions.


def test_standardising_inside_the_model_is_refused_before_anything_is_charged(tmp_path):
    def standardised(y):
        return middle((y - y.mean()) / y.std())

    book = tmp_path / "book.sqlite"
    Ledger.create(book, epsilon=1.0, delta=1e-5).close()
    with pytest.raises(PrivacyError, match="before the fit, with public constants"):
        quick(standardised, ledger=book, run_dir=tmp_path / "run")
    assert charged(book) == 0
    assert not (tmp_path / "run").exists()


def test_a_shared_ledger_is_charged_and_its_budget_kept(tmp_path):
    book = tmp_path / "shared.sqlite"
    Ledger.create(book, epsilon=1.0, delta=1e-5).close()
    result = quick(ledger=book, steps=10)
    assert charged(book) == 10
    assert result.label().worst.epsilon < 1.0
    with pytest.raises(PrivacyError, match="budget"):
        quick(ledger=book, noise_multiplier=0.6, steps=50, seed=None)


class Stop(Exception):
    """A failure of the caller's own code."""


@pytest.mark.parametrize("method", ["noisy", "sgld"])
@pytest.mark.parametrize("by", ["ctrl-c", "failure"])
def test_an_interrupted_fit_goes_on(tmp_path, by, method):
    folder, seen = tmp_path / "run", []

    def progress(step, steps, note):
        if step == 16:
            signal.raise_signal(signal.SIGINT)
            if by == "failure":
                raise Stop

    with pytest.raises((KeyboardInterrupt, Stop)):
        quick(run_dir=folder, progress=progress, method=method, samples=4)
    assert 16 <= charged(folder / "ledger.sqlite") < STEPS
    result = resume(folder, level, numbers(), progress=lambda *step: seen.append(step))
    assert charged(folder / "ledger.sqlite") == STEPS
    assert seen[-1] == (STEPS, STEPS, "step")
    assert result.guarantee.epsilon == pytest.approx(dp_accountings_epsilon(NOISE, RATE, STEPS), rel=2e-3)
    assert label_of_run(folder) == result.label()
    with np.load(folder / "posterior.npz") as kept:
        assert np.array_equal(kept["mean"], result.posterior.sample()["mean"].numpy())
    if by == "ctrl-c":
        assert seen[0] == (17, STEPS, "step")


def test_a_fit_is_not_resumed_on_other_records_or_another_model(tmp_path):
    def progress(step, steps, note):
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        quick(run_dir=tmp_path / "run", progress=progress)
    with pytest.raises(PrivacyError, match="another dataset"):
        resume(tmp_path / "run", level, numbers(seed=3))
    with pytest.raises(PrivacyError, match="not the model that the run was started with"):
        resume(tmp_path / "run", middle, numbers())


# What is refused: one clear line each, before anything is charged.


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"data": "names"}, TypeError, "tensors or arrays"),
        ({"data": [["a", "b"]]}, TypeError, "tensors or arrays"),
        ({"data": torch.tensor(1.0)}, ValueError, "first dimension"),
        ({"data": torch.zeros(0)}, ValueError, "first dimension"),
        ({"data": (torch.zeros(3), torch.zeros(4))}, ValueError, "first dimension"),
        ({"data": ()}, ValueError, "first dimension"),
        ({"data": {"z": torch.zeros(5)}}, ValueError, "arguments do not match the data"),
        ({"data": (torch.zeros(5), torch.zeros(5))}, ValueError, "arguments do not match the data"),
        ({"model": 3}, TypeError, "model must be"),
        ({"method": "exact"}, ValueError, "method must be one of"),
        ({"guide": "full"}, ValueError, "guide must be one of"),
        ({"steps": 0}, ValueError, "steps must be"),
        ({"samples": -1}, ValueError, "samples must be"),
        ({"local_draws": 0.5}, ValueError, "local_draws must be"),
        ({"sample_rate": 1.5}, ValueError, "sample_rate"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate must be"),
        ({"epsilon": 1.0}, ValueError, "noise_multiplier"),
        ({"noise_multiplier": None}, ValueError, "noise_multiplier"),
        ({"noise_multiplier": 0.0}, ValueError, "noise_multiplier"),
        ({"delta": 1.0}, ValueError, "delta"),
        ({"colour": "blue"}, TypeError, "colour"),
        ({"holdout": (torch.zeros(3), torch.zeros(3)), "panel": 3}, ValueError, "record"),
        ({"panel": -1}, ValueError, "panel must be"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(options, kind, said, tmp_path):
    with pytest.raises(kind) as caught:
        quick(**{"ledger": tmp_path / "book.sqlite", **options})
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert not (tmp_path / "book.sqlite").exists() or charged(tmp_path / "book.sqlite") == 0


def average(x):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(m, 1.0), obs=x)


def own_levels(x):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        level = pyro.sample("level", dist.Normal(m, 1.0))
        pyro.sample("x", dist.Normal(level, 1.0), obs=x)


FEW = {"noise_multiplier": 1.0, "panel": 0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "either noise_multiplier or epsilon"),
        ({}, "either noise_multiplier or epsilon"),
        ({"epsilon": 1.0, "target": Target(attack_success=0.6)}, "either noise_multiplier or epsilon"),
        ({"method": "plain", "target": Target(attack_success=0.6)}, "target does not go with"),
        ({"epsilon": -1.0}, "^epsilon must be"),
        ({"epsilon": math.nan}, "^epsilon must be"),
        ({"epsilon": 1.0, "seed": "a"}, "^seed must be"),
        ({"epsilon": 1.0, "seed": -1}, "^seed must be"),
        ({"epsilon": 1.0, "clipnorm": 1.0}, "unknown setting 'clipnorm'; there are guide, samples"),
        ({"epsilon": 1.0, "training": {"batch_size": 2}}, "^training may not hold 'batch_size'"),
        ({"epsilon": 1.0, "training": {"foo": 1}}, "^training may not hold 'foo': what fit passes on is stops"),
        ({"epsilon": 1.0, "training": [1]}, "^training must be a dict"),
        ({"epsilon": 1e-5}, r"^epsilon must be in \[0.0001, 500\]"),
        ({"epsilon": 1.0, "progress": "yes"}, "^progress must be"),
        ({"epsilon": 1.0, "name": 3}, "^name must be"),
        ({"method": "final-samples", "epsilon": -1.0, "pairs": 0}, "^epsilon must be"),
    ],
)
def test_arguments_are_refused_by_their_own_names(given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        fit(average, torch.rand(30), **{"steps": 5, **given})


@pytest.mark.parametrize("x", [torch.ones(9) + 1j, torch.eye(4).to_sparse(), "abc", []], ids=range(4))
def test_data_that_are_no_numbers_are_refused(x):
    with pytest.raises((ValueError, TypeError), match=r"^data must"):
        fit(average, x, steps=5, **FEW)


@pytest.mark.parametrize(
    "odd", ["Smith", None, 1j, [1.0, 2.0], 10**400], ids=["text", "none", "complex", "row", "huge"]
)
def test_f3_one_odd_cell_is_no_number_and_changes_no_other(odd):
    (made,), _ = tensors_of(([0.5, odd, 2.0, 1],))
    assert made.dtype == torch.float32
    assert made[[0, 2, 3]].tolist() == [0.5, 2.0, 1.0]
    assert math.isnan(made[1])


@pytest.mark.parametrize("odd", ["Smith", None])
def test_f3_one_odd_cell_leaves_whole_numbers_whole(odd):
    """A model that looks places up in a table would be refused otherwise, which tells of the cell."""
    for form in (list, np.array):
        (kinds,), _ = tensors_of((form([2, 1, odd, 0]),))
        assert kinds.dtype == torch.long
        assert kinds[[0, 1, 3]].tolist() == [2, 1, 0]
        assert kinds[2] < -(10**18)  # in no table
        (truths,), _ = tensors_of((form([True, odd, False]),))
        assert truths.tolist() == [True, False, False]


@pytest.mark.parametrize("odd", [[1.0, "Smith"], [1.0], None, "Smith"])
def test_f3_one_odd_row_changes_no_other(odd):
    (made,), _ = tensors_of(([[1.0, 2.0], odd, [3.0, 4.0]],))
    assert made[[0, 2]].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert bool(torch.isnan(made[1]).any())


def test_f3_a_column_with_one_odd_cell_is_fitted():
    for odd in ("Smith", None):
        result = fit(average, ([0.1 * i for i in range(29)] + [odd],), steps=2, **FEW)
        assert result.label is not None


@pytest.mark.parametrize("column", [["a", "Smith"], [None, None], np.array(["a", "Smith"]), [1j, 2j]])
def test_a_column_without_any_number_is_refused_and_no_cell_is_quoted(column):
    with pytest.raises(TypeError, match=r"^data must be tensors or arrays of numbers") as caught:
        tensors_of((column,))
    assert "Smith" not in "".join(traceback.format_exception(caught.value))


def test_records_own_unknowns_are_not_drawn_from_a_generator_that_the_user_seeds(tmp_path):
    x = torch.randn(50)

    def stop(step, steps, note):
        if step == 2:
            raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        fit(own_levels, x, steps=4, run_dir=tmp_path / "run", progress=stop, **FEW)
    resume(tmp_path / "run", own_levels, x)
    assert torch.equal(before, torch.get_rng_state())


def test_a_fit_that_a_budget_cuts_short_is_averaged_over_its_own_second_half(monkeypatch):
    seen, before = [], Variational.fitted
    monkeypatch.setattr(Variational, "fitted", lambda self: (seen.append(self), before(self))[1])
    cut = {"steps": 60, "training": {"budget": (3.0, 1e-5)}, **FEW}
    chain = fit(average, torch.rand(200), method="sgld", **cut)
    assert len(chain.posterior.released) > 0
    result = fit(average, torch.rand(200), **cut)
    taken = int(dict(result.guarantee.mechanism)["steps"])
    assert 2 <= taken < 30
    assert result.settings["steps"] == taken
    assert seen[0].averaged == taken - taken // 2


def test_a_site_may_be_called_file(tmp_path):
    def model(x):
        m = pyro.sample("file", dist.Normal(0.0, 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("x", dist.Normal(m, 1.0), obs=x)

    result = fit(model, torch.rand(50), steps=5, run_dir=tmp_path / "run", **FEW)
    with np.load(tmp_path / "run" / "posterior.npz") as kept:
        assert np.array_equal(kept["file"], result.posterior.sample()["file"].numpy())


def test_resuming_a_finished_fit_says_so_and_keeps_what_the_owner_knows(tmp_path, capsys):
    x = torch.rand(50)
    result = fit(average, x, steps=5, run_dir=tmp_path / "run", **FEW)
    coverage(result, x, worlds=2, seed=1)
    before = runs.read_json(tmp_path / "run", "owner.json")
    capsys.readouterr()
    again = resume(tmp_path / "run", average, x)
    (line,) = capsys.readouterr().err.splitlines()
    assert "is finished" in line
    assert f"tacita label {tmp_path / 'run'}" in line
    assert again.label() == label_of_run(tmp_path / "run")
    assert torch.equal(again.posterior.covariance, result.posterior.covariance)
    assert again.notes == result.notes
    assert runs.read_json(tmp_path / "run", "owner.json") == before


def test_an_audit_attacks_the_steps_and_leaves_the_label_its_own(tmp_path):
    fit(average, torch.rand(50), steps=5, run_dir=tmp_path / "run", **FEW)
    public = (tmp_path / "run" / "label.html").read_bytes()
    done = CliRunner().invoke(get_command(app), ["audit", str(tmp_path / "run"), "--only", "canaries", "--seed", "1"])
    assert done.exit_code == 0, done.output
    owner = (tmp_path / "run" / "label-owner.html").read_text()
    assert "Unknowns" in owner
    assert "A record made to be found" in owner
    assert (tmp_path / "run" / "label.html").read_bytes() == public


def test_a_warning_is_for_the_owner_and_in_the_summary_and_changes_nothing_on_the_public_page(tmp_path):
    for name, far in (("near", 0.0), ("far", 900.0)):
        few = {"steps": 20, "initial_scale": 0.01, "noise_multiplier": 0.01, "panel": 0, "seed": 3, "name": "x"}
        told = fit(level_of_many, torch.rand(50) + far, run_dir=tmp_path / name, **few)
    assert any("had not converged" in check.text for check in told.label().readings.checks)
    assert "Warning: The fit had not converged" in str(told.summary())
    near, far = ((tmp_path / name / "label.html").read_bytes() for name in ("near", "far"))
    assert near == far


def level_of_many(x):
    m = pyro.sample("m", dist.Normal(0.0, 1000.0))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(m, 100.0), obs=x)


# What one record, or a careless caller, can do to it.


def kinds(k):
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("people", len(k)):
        pyro.sample("k", dist.Categorical(shares), obs=k)


@pytest.mark.parametrize("method", ["noisy", "sgld", "final-samples"])
@pytest.mark.parametrize("place", [0, 7])
def test_f3_a_record_that_the_model_cannot_take_stops_nothing(method, place, tmp_path):
    """A missing answer, coded as -1: the fit ends as it does without that record's answer."""
    data = torch.arange(60) % 3
    odd = data.index_fill(0, torch.tensor([place]), -1)
    more = {"pairs": 1, "workers": 1, "noise_multiplier": None} if method == "final-samples" else {}
    for number, records in enumerate((data, odd)):
        result = quick(kinds, records, method=method, sample_rate=1.0, steps=4, run_dir=tmp_path / str(number), **more)
        assert result.posterior.sample()["shares"].isfinite().all()
    pages = {(tmp_path / number / "label.html").read_bytes() for number in "01"}
    assert len(pages) == 1


def test_held_out_records_are_taken_by_name_and_refused_if_they_are_others():
    data = {"x": torch.randn(60, 2), "y": torch.ones(60)}
    figures = {
        quick(logistic, data, holdout=held, panel=30, steps=5).label().readings.typical[0].epsilon
        for held in (data, {"y": data["y"], "x": data["x"]})
    }
    assert len(figures) == 1
    for held, said in (
        ((data["x"], data["y"]), "a dict of 'x', 'y'"),
        ({"x": data["x"]}, "passed as the data were"),
        ({"x": torch.ones(60, 3), "y": data["y"]}, "records like the data's"),
        ({"x": data["x"], "y": torch.ones(60).long()}, "records like the data's"),
    ):
        with pytest.raises(ValueError, match=said):
            quick(logistic, data, holdout=held)
    result = quick(logistic, data)
    with pytest.raises(ValueError, match="passed as the data were"):
        coverage(result, data["x"], worlds=2)


def test_tables_of_pandas_are_read_by_place():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": np.arange(40.0), "y": np.arange(40.0) % 2})[::2]  # its own labels have gaps
    result = quick(middle, table["y"] + 1.0)
    assert quick(middle, torch.tensor(table["y"].to_numpy()) + 1.0).summary() == result.summary()


@pytest.mark.parametrize("method", ["noisy", "sgld", "plain"])
def test_a_flat_prior_is_a_prior(method):
    def flat(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0).mask(False))
        with pyro.plate("people", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    given = {"noise_multiplier": None, "panel": 0} if method == "plain" else {}
    assert quick(flat, method=method, **given).posterior.sample()["mean"].isfinite().all()


def test_what_a_fit_passes_on_are_arguments_of_private_training():
    known = {*inspect.signature(PrivateTraining).parameters, *inspect.signature(Plan.declare).parameters}
    assert set(TRAINING) < known | {entry.name for entry in fields(Follow)}


def test_settings_that_were_edited_are_refused(tmp_path):
    quick(run_dir=tmp_path / "run")
    document = runs.Run(tmp_path / "run").document()["fit"]
    document["settings"]["sample_rate"] = 0.9
    runs.Run(tmp_path / "run").write(fit=document)
    with pytest.raises(PrivacyError, match="settings in run"):
        resume(tmp_path / "run", level, numbers())
