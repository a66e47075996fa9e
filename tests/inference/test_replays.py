"""Final samples end to end: above a truth that is known, charged once, drawn once, infinite where nothing bounds."""

import copy
import json
import math
import multiprocessing
import os
import secrets
import shutil
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from click.testing import CliRunner
from scipy.optimize import brentq
from scipy.stats import norm
from typer.main import get_command

from tacita import PrivacyError, runs
from tacita.cli import app
from tacita.inference import Box, fit, resume
from tacita.inference.descent import descend
from tacita.inference.fitting import label_of_run
from tacita.inference.methods import final_samples
from tacita.inference.replays import OneStep, spread
from tacita.inference.request import Settings
from tacita.inference.separation import separate
from tacita.ledger import DECLARED, BudgetExceeded, Ledger

X = torch.linspace(-1.0, 1.0, 10)
DELTA, SCALE, DRAWS, STEPS, RATE, CLIP = 0.01, 0.3, 20, 30, 0.02, 3.0
PINNED = Box(bound=1.0, low=SCALE, high=SCALE, dimension=1)
SMALL = {"steps": 8, "sample_rate": 0.5, "pairs": 5, "samples": 2, "seed": 11, "workers": 1}


def mean(x):
    m = pyro.sample("m", dist.Normal(0.0, 10.0))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(m, 1.0), obs=x)


def final(data=X, model=mean, **more):
    return fit(model, data, method="final-samples", **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A toy whose posterior has a fixed scale: every pair is one Gaussian shift, and all ten records are replayed."""
    folder, seen = tmp_path_factory.mktemp("runs") / "toy", []
    result = final(
        delta=DELTA,
        box=PINNED,
        samples=DRAWS,
        pairs=2000,
        one_step=True,
        workers=2,
        seed=3,
        run_dir=folder,
        steps=STEPS,
        sample_rate=0.5,
        learning_rate=RATE,
        clip_norm=CLIP,
        initial_scale=SCALE,
        progress=lambda *step: seen.append(step[:2]),
    )
    return folder, result, seen


def kept(folder, i=None):
    return runs.read_json(folder, "fitted.json" if i is None else f"pairs/{i:08d}.json")


# The mechanism, against a second implementation of it.


def by_hand(x, seed, leave_out=None):
    """The toy's fit in numpy: coins for all records, clipped gradients, Adam, and the average of the second half."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2**31,)).spawn(2)[0])
    rng.integers(2**63)  # for draws that this model has none of
    points = np.random.default_rng(rng.integers(2**63))
    theta, first, second, average = np.array([0.0, math.log(SCALE)]), np.zeros(2), np.zeros(2), 0.0
    for t in range(1, STEPS + 1):
        coins, noise = rng.random(len(x)) < 0.5, points.standard_normal()
        rng.standard_normal(1)  # the step's noise, times zero
        if leave_out is not None:
            coins[leave_out] = False
        z = theta[0] + math.exp(theta[1]) * noise
        slope = np.clip(z - x[coins], -CLIP, CLIP).sum() / 0.5 + z / 100.0
        gradient = np.array([slope, slope * noise * math.exp(theta[1]) - 1.0])
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        rate = RATE * (0.1 + 0.45 * (1.0 + math.cos(math.pi * (t - 1) / STEPS)))
        theta = theta - rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.99**t)) + 1e-8)
        average += (theta[0] - average) / (t - STEPS // 2) if t > STEPS // 2 else 0.0
    return np.clip(average, -1.0, 1.0)


def test_the_fit_and_every_replay_are_what_the_mechanism_says(run):
    folder, _, _ = run
    assert kept(folder)["location"][0] == pytest.approx(by_hand(X.numpy(), 3), abs=1e-5)
    for i in range(len(X)):
        assert kept(folder, i)["location"][0] == pytest.approx(by_hand(X.numpy(), 3, i), abs=1e-5)
        assert kept(folder, i)["scale"] == [SCALE]


def rough(x):
    m = pyro.sample("m", dist.Normal(0.0, 10.0))
    with pyro.plate("records", len(x)):
        own = pyro.sample("own", dist.Normal(m, 1.0))
        pyro.sample("x", dist.Normal(own, 0.5), obs=x)


def test_equal_randomness_gives_equal_fits_even_where_a_record_has_its_own_unknowns(tmp_path):
    for name in ("one", "two"):
        torch.manual_seed(len(name))
        final(model=rough, run_dir=tmp_path / name, **SMALL, local_draws=4)
    documents = [(tmp_path / name / "fitted.json").read_bytes() for name in ("one", "two")]
    assert documents[0] == documents[1]


def test_leaving_out_a_record_without_a_gradient_changes_nothing_even_where_records_have_their_own_unknowns(tmp_path):
    data = torch.cat([torch.tensor([math.nan]), X])  # the first, so that all others stand behind it
    common = {**SMALL, "pairs": "all", "local_draws": 4}
    final(data, rough, run_dir=tmp_path / "run", **common)
    whole = {name: kept(tmp_path / "run")[name] for name in ("location", "scale")}
    assert kept(tmp_path / "run", 0) == whole
    assert kept(tmp_path / "run", 1) != whole


def test_the_kept_seed_repeats_the_training_and_not_the_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(final_samples, "secrets", SimpleNamespace(randbits=lambda bits: 7, token_hex=secrets.token_hex))
    for name in ("one", "two"):
        final(run_dir=tmp_path / name, **{**SMALL, "seed": None, "pairs": 0})
    one, two = (kept(tmp_path / name) for name in ("one", "two"))
    assert runs.read_json(tmp_path / "one", "run.json")["seed"] == 7
    assert (one["location"], one["scale"]) == (two["location"], two["scale"])
    assert not set(np.ravel(one["draws"])) & set(np.ravel(two["draws"]))


# The figures, against a truth in closed form.


def shift_delta(epsilon, distance):
    """δ(ε) of a Gaussian moved by `distance` of its standard deviations (Balle & Wang 2018)."""
    lost, kept_odds = norm.cdf(distance / 2 - epsilon / distance), norm.logcdf(-distance / 2 - epsilon / distance)
    return lost - math.exp(epsilon + kept_odds)


def true_epsilon(folder, delta):
    """The epsilon at which the exact mean over all ten records reaches delta: shifts by so many standard deviations."""
    whole = kept(folder)["location"][0]
    shifts = [abs(whole - kept(folder, i)["location"][0]) / SCALE * math.sqrt(DRAWS) for i in range(len(X))]
    return brentq(lambda e: np.mean([shift_delta(e, s) for s in shifts]) - delta, 0.0, 100.0)


def test_the_figures_are_above_the_truth_and_the_papers_figure_is_far_below(run):
    folder, result, _ = run
    label, truth = result.label(), true_epsilon(folder, DELTA)
    typical, papers = label.readings.typical
    assert truth < typical.epsilon < 2 * truth < label.worst.epsilon
    assert papers.epsilon < truth / 5
    assert not papers.is_bound
    assert not typical.publishable
    assert label.worst.epsilon > brentq(lambda e: shift_delta(e, 2 / SCALE * math.sqrt(DRAWS)) - DELTA, 0.0, 1000.0)


def test_with_every_record_left_out_the_typical_case_is_exact_and_needs_no_box(tmp_path):
    common = {"steps": STEPS, "sample_rate": 0.5, "learning_rate": RATE, "clip_norm": CLIP, "initial_scale": SCALE}
    few = X[::2]
    free = final(few, delta=DELTA, samples=2, pairs="all", workers=1, seed=3, run_dir=tmp_path / "free", **common)
    assert math.isinf(free.guarantee.epsilon)
    (typical,) = free.label().readings.typical
    assert typical.estimator == "every record"
    assert "every record of the data was left out once" in " ".join(c.text for c in free.label().readings.checks)
    assert not any("NOT A BOUND" in value for _, value in free.label().readings.facts)
    one = kept(tmp_path / "free")
    axis = np.linspace(-4.0, 4.0, 401)

    def log_density(row):  # of two draws, on a grid
        single = norm.logpdf(axis, row["location"][0], row["scale"][0])
        return single[:, None] + single[None]

    def mean_delta(epsilon):
        p, deltas = log_density(one), []
        for i in range(len(few)):
            q = log_density(kept(tmp_path / "free", i))
            ways = (np.maximum(np.exp(a) - math.exp(epsilon) * np.exp(b), 0.0).sum() for a, b in ((p, q), (q, p)))
            deltas.append(max(ways) * (axis[1] - axis[0]) ** 2)
        return np.mean(deltas)

    assert 0.1 * DELTA < mean_delta(typical.epsilon) <= DELTA
    assert label_of_run(tmp_path / "free") == free.label()


def test_each_replayed_records_own_figure_is_above_its_truth(run):
    folder, result, _ = run
    shifts = [abs(kept(folder)["location"][0] - kept(folder, i)["location"][0]) / SCALE for i in range(len(X))]
    most = brentq(lambda e: shift_delta(e, max(shifts) * math.sqrt(DRAWS)) - DELTA, 0.0, 100.0)
    assert most < result.label().readings.percentiles[-1][1] < 1.5 * most


def test_one_step_of_adam_for_all_records_at_once_is_what_the_optimiser_does():
    chosen = Settings(method="final-samples", steps=5, sample_rate=0.5, clip_norm=0.7)
    watch = OneStep(separate(mean, (X,)), (X,), chosen, np.arange(len(X)))
    checked = []

    def compare(optimizer, sample):
        z, before, total = optimizer.point.item(), copy.deepcopy(optimizer.state_dict()), optimizer.point.grad
        changes = watch.changes(optimizer, sample)
        sums = [total.double() + change for change in changes]
        for found, alternative in zip([watch.after(optimizer, change) for change in changes], sums, strict=True):
            for i in (0, 4, 9):
                optimizer.point.grad = alternative[i].float()
                optimizer.step()
                assert found.means[i] == pytest.approx(optimizer.guide.location.detach().numpy(), abs=1e-6)
                assert found.scales[i] == pytest.approx(optimizer.guide.scale.detach().numpy(), abs=1e-6)
                optimizer.load_state_dict(copy.deepcopy(before))
        optimizer.point.grad = total
        for i in range(len(X)):
            own = np.clip(z - X[i].item(), -0.7, 0.7)
            others = sum(np.clip(z - X[j].item(), -0.7, 0.7) for j in sample if j != i)
            assert sums[1][i].item() == pytest.approx(others, abs=1e-4)
            assert sums[0][i].item() == pytest.approx(others + own, abs=1e-4)
        checked.append(len(sample))

    descend(separate(mean, (X,)), (X,), chosen, np.random.default_rng(5), watch=compare)
    assert len(checked) == 5


def test_following_the_papers_changes_nothing(tmp_path):
    for name in ("with", "without"):
        final(run_dir=tmp_path / name, one_step=name == "with", **{**SMALL, "pairs": 2})
    one, other = (kept(tmp_path / name) for name in ("with", "without"))
    assert one.pop("one_step")["epsilon"] > 0
    assert other.pop("one_step") is None
    assert one == other


# A record far out of range.


def own_epsilons(result):
    return [epsilon for _, epsilon in result.label().readings.percentiles]


def test_a_record_thirty_times_out_of_range_is_clipped_or_infinite_never_small():
    near = X[::3]
    far = torch.cat([near, torch.tensor([30.0])])
    common = {**SMALL, "pairs": 50, "delta": 1e-5}
    fits = (near, 2.0), (far, 2.0), (far, 1e6)
    usual, clipped, loose = (final(data, clip_norm=clip, **common) for data, clip in fits)
    for result in (usual, clipped, loose):
        assert math.isinf(result.guarantee.epsilon)
        assert math.isinf(result.label().readings.typical[0].epsilon)
    assert own_epsilons(loose)[-1] > 3 * own_epsilons(usual)[-1]
    assert own_epsilons(clipped)[-1] < own_epsilons(loose)[-1]
    boxed = final(far, clip_norm=1e6, box=PINNED, **common)
    assert own_epsilons(usual)[-1] < boxed.label().readings.typical[0].epsilon <= boxed.guarantee.epsilon < 1e3


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_record_whose_gradient_cannot_be_squared_takes_no_part(bad, tmp_path):
    data = torch.cat([X[:2], torch.tensor([bad])])
    final(data, run_dir=tmp_path / "run", **{**SMALL, "pairs": "all", "clip_norm": 1e6})
    last = kept(tmp_path / "run", 2)
    assert last == {name: kept(tmp_path / "run")[name] for name in ("location", "scale")}
    assert kept(tmp_path / "run", 0) != last


# The box.


def test_everything_that_is_compared_or_drawn_lies_in_the_box(tmp_path):
    box = Box(bound=0.01, low=0.45, high=0.5, dimension=1)
    final(X + 3.0, box=box, run_dir=tmp_path / "run", **SMALL)
    found = [kept(tmp_path / "run"), *(json.loads(p.read_text()) for p in (tmp_path / "run" / "pairs").iterdir())]
    assert {(tuple(f["location"]), tuple(f["scale"])) for f in found} == {((0.01,), (0.45,))}
    facts = dict(label_of_run(tmp_path / "run").readings.facts)
    assert facts["At an edge of the box"] == "1 of 1 means, 1 of 1 scales"


def test_a_box_moves_what_is_outside_and_nothing_else():
    box = Box(bound=[1.0, 2.0], low=0.1, high=[0.2, 0.3], dimension=2)
    assert box.project(np.array([[0.5, -1.5]]), np.array([[0.15, 0.25]])).means.tolist() == [[0.5, -1.5]]
    lost = box.project(np.array([[math.nan, math.inf]]), np.array([[math.inf, math.nan]]))
    assert (lost.means.tolist(), lost.scales.tolist()) == ([[0.0, 0.0]], [[0.1, 0.1]])
    moved = box.project(np.array([[-7.0, 7.0]]), np.array([[0.01, 9.0]]))
    assert moved.means.tolist() == [[-1.0, 2.0]]
    assert moved.scales.tolist() == [[0.1, 0.3]]
    assert box.holds(moved)
    again = Box(**json.loads(json.dumps(asdict(box))))
    assert again == box
    assert str(again) == "means within 2 of zero, standard deviations from 0.1 to 0.3, and for some unknowns less"


def positive(x):
    m = pyro.sample("m", dist.LogNormal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(m, 1.0), obs=x)


WILD = {"samples": 2, "steps": 60, "learning_rate": 5.0, "seed": 0, "workers": 1}  # diverges, with a record or without


@pytest.mark.parametrize("one_step", [False, True])
def test_a_fit_that_diverges_is_held_to_the_box_too(one_step, tmp_path):
    final(torch.full((3,), 1e6), positive, box=PINNED, run_dir=tmp_path / "run", pairs="all", one_step=one_step, **WILD)
    found = [kept(tmp_path / "run"), *(kept(tmp_path / "run", i) for i in range(3))]
    assert ([0.0], [SCALE]) in [(row["location"], row["scale"]) for row in found]
    with pytest.raises(ValueError, match="a training diverged"):
        final(torch.full((3,), 1e6), positive, pairs=0, **WILD)


@pytest.mark.parametrize("one_step", [False, True])
def test_a_fit_whose_matrices_fail_is_held_to_the_box_too(one_step, tmp_path):
    def matrices(x):
        m = pyro.sample("m", dist.LogNormal(0.0, 1.0))
        spread = torch.eye(2) * (1e4 - m)  # no covariance where the records pull it to
        pyro.sample("w", dist.MultivariateNormal(torch.zeros(2), spread))
        with pyro.plate("records", len(x)):
            pyro.sample("x", dist.Normal(m, 1.0), obs=x)

    box = Box(bound=1.0, low=SCALE, high=SCALE, dimension=3)
    data = torch.full((3,), 1e6)
    final(data, matrices, box=box, run_dir=tmp_path / "run", pairs=2 * one_step, one_step=one_step, **WILD)
    assert kept(tmp_path / "run")["location"] == [0.0] * 3
    assert (kept(tmp_path / "run")["one_step"] is not None) == one_step


def matrices_of_records(x):
    m = pyro.sample("m", dist.Normal(0.0, 10.0))
    with pyro.plate("records", len(x)):
        spread = torch.eye(1) * (1e4 - x)[:, None, None]  # no covariance for a record beyond
        pyro.sample("x", dist.MultivariateNormal(m * torch.ones(1), spread), obs=x[:, None])


def test_f3_a_record_on_which_the_model_fails_does_not_stop_the_papers_figure(tmp_path):
    data = torch.cat([torch.tensor([1e6]), X[:2]])
    for one_step in (True, False):
        few = {**SMALL, "pairs": "all", "steps": 3, "sample_rate": 1.0, "one_step": one_step}
        final(data, matrices_of_records, run_dir=tmp_path / str(one_step), **few)
    followed, alone = (kept(tmp_path / name) for name in ("True", "False"))
    assert followed.pop("one_step")["epsilon"] == "infinity"
    assert alone.pop("one_step") is None
    assert followed == alone


def test_a_record_on_which_the_model_fails_is_as_if_it_were_not_there():
    separated, data = separate(matrices_of_records, (X,)), torch.cat([torch.tensor([1e6]), X])

    def fitted(leave_out):
        chosen = Settings(steps=3, sample_rate=1.0)
        return descend(separated, (data,), chosen, np.random.default_rng(1), leave_out=leave_out)[0].fitted()

    assert torch.allclose(fitted(None).location, fitted(0).location)
    assert not torch.allclose(fitted(None).location, fitted(1).location)


def test_f3_a_computation_that_fails_ends_in_the_box(tmp_path, monkeypatch):
    def failing(*details, **more):
        raise IndexError("31337 is out of bounds")

    monkeypatch.setattr(final_samples, "descend", failing)
    box = Box(bound=1.0, low=SCALE, high=SCALE, dimension=1)
    result = final(run_dir=tmp_path / "run", **{**SMALL, "box": box})
    assert kept(tmp_path / "run")["location"] == [0.0]
    assert result.guarantee.epsilon < math.inf


def test_without_a_box_a_replay_that_diverges_costs_infinity_and_the_draws_stay(tmp_path, monkeypatch):
    def without_the_third(*details, leave_out=None, **more):
        optimizer, elbo = descend(*details, leave_out=leave_out, **more)
        if leave_out == 2:
            optimizer.average["location"] += math.nan
        return optimizer, elbo

    monkeypatch.setattr(final_samples, "descend", without_the_third)
    result = final(run_dir=tmp_path / "run", **{**SMALL, "pairs": "all"})
    assert kept(tmp_path / "run", 2) == {"location": [None], "scale": [None]}
    assert len(result.posterior.sample()["m"]) == 2
    assert math.isinf(result.label().readings.typical[0].epsilon)  # a tenth of all records is more than delta
    own = own_epsilons(result)
    assert math.isinf(own[-1])
    assert math.isfinite(own[0])
    assert label_of_run(tmp_path / "run") == result.label()


# The release.


def test_only_the_paid_draws_are_in_the_posterior(run):
    folder, result, seen = run
    posterior = result.posterior
    assert posterior.location is None
    assert posterior.covariance is None
    assert posterior.sample()["m"].shape == (DRAWS,)
    with pytest.raises(PrivacyError, match="each one costs"):
        posterior.sample(DRAWS + 1)
    assert np.load(folder / "posterior.npz")["m"] == pytest.approx(posterior.sample()["m"].numpy())
    draws = np.array(kept(folder)["draws"])
    assert abs(draws.mean() - kept(folder)["location"][0]) < 5 * SCALE / math.sqrt(DRAWS)
    assert len(result.elbo) == STEPS
    assert seen == [(1 + k, 11) for k in range(11)]
    assert multiprocessing.active_children() == []


def test_it_is_charged_once_at_what_the_box_costs(run):
    folder, result, _ = run
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        charges = [row for row in ledger.rows() if row.kind == "charge"]
        spent = ledger.spent(DELTA)
    assert len(charges) == 1
    for lam, units in zip(DECLARED, charges[0].body["costs"], strict=True):
        exact = DRAWS * lam * (lam + 1) * (2.0 / SCALE) ** 2 / 2
        assert exact < units / 2**40 < 1.002 * exact
    assert spent.epsilon >= result.guarantee.epsilon


def test_without_a_box_the_ledger_says_infinite_and_a_budget_refuses(tmp_path):
    with Ledger.create(tmp_path / "open.sqlite") as ledger:
        final(ledger=ledger, **SMALL)
        assert math.isinf(ledger.spent(1e-5).epsilon)
    with Ledger.create(tmp_path / "budget.sqlite", epsilon=5.0, delta=1e-5) as ledger:
        with pytest.raises(BudgetExceeded, match="epsilon inf"):
            final(ledger=ledger, run_dir=tmp_path / "refused", **SMALL)
        with pytest.raises(BudgetExceeded):
            final(ledger=ledger, box=PINNED, **{**SMALL, "seed": None})
        assert ledger.spent() is None
    assert not (tmp_path / "refused" / "fitted.json").exists()
    with pytest.raises(PrivacyError, match="Nothing was released"):
        label_of_run(tmp_path / "refused")


def test_a_chosen_seed_is_marked_and_refused_twice(run, tmp_path):
    _, result, _ = run
    warnings = [check.text for check in result.label().checks if check.state == "warning"]
    assert any("chosen seed" in text for text in warnings)
    with Ledger.create(tmp_path / "ledger.sqlite") as ledger:
        final(ledger=ledger, **{**SMALL, "pairs": 0})
        with pytest.raises(PrivacyError, match="used this seed"):
            final(ledger=ledger, **{**SMALL, "pairs": 0})


def test_the_label_of_the_folder_is_the_one_that_was_written(run):
    folder, result, _ = run
    done = CliRunner().invoke(get_command(app), ["label", str(folder), "--json"])
    assert json.loads(done.output)["label"] == result.label().to_dict()
    other = label_of_run(folder, delta=1e-6)
    assert other.worst.epsilon > result.guarantee.epsilon
    assert len(other.readings.typical) == 1  # the papers' figure was taken at the run's delta
    text, public = str(result.label()), str(result.label().public())
    assert "NOT A BOUND" in text
    assert "UNSOUND" in text
    assert "NOT A BOUND" not in public
    assert "UNSOUND" not in public
    assert (folder / "label.html").read_text() == result.label().public().html()
    done = CliRunner().invoke(get_command(app), ["audit", str(folder)])
    assert done.exit_code != 0
    assert "Traceback" not in done.output


def test_two_runs_on_other_data_have_the_same_public_label(tmp_path):
    pages = []
    for name, data in (("one", X), ("two", X * 0.1 + 0.5)):
        final(data, box=PINNED, run_dir=tmp_path / name, name="a run", **SMALL)
        pages.append((tmp_path / name / "label.html").read_bytes())
    assert pages[0] == pages[1]


# Going on.


def interrupted_at(count):
    def progress(done, total, note):
        if done == count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_stopped_goes_on_with_the_same_draws_and_one_charge(workers, tmp_path):
    common = {**SMALL, "workers": workers, "box": PINNED}
    whole = final(run_dir=tmp_path / "whole", **common)
    with pytest.raises(KeyboardInterrupt):
        final(run_dir=tmp_path / "run", progress=interrupted_at(3), **common)
    assert multiprocessing.active_children() == []
    pairs = sorted((tmp_path / "run" / "pairs").iterdir())
    before = {path: path.stat().st_mtime_ns for path in pairs}
    assert len(before) == 2
    partial = label_of_run(tmp_path / "run")
    assert partial.worst == whole.guarantee
    assert partial.readings.typical == ()
    assert "not finished" in partial.readings.panels
    done = []
    result = resume(tmp_path / "run", mean, X, progress=lambda *step: done.append(step[0]))
    assert done[0] == 3
    assert {path: path.stat().st_mtime_ns for path in pairs} == before
    assert result.label().readings.typical == whole.label().readings.typical
    assert result.posterior.sample()["m"].tolist() == whole.posterior.sample()["m"].tolist()
    assert resume(tmp_path / "run", mean, X).label().worst == whole.guarantee
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len([row for row in ledger.rows() if row.kind == "charge"]) == 1


def test_a_run_that_was_charged_and_not_drawn_is_drawn_without_a_second_charge(tmp_path, monkeypatch):
    def killed(*details, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(final_samples, "descend", killed)
        with pytest.raises(KeyboardInterrupt):
            final(run_dir=tmp_path / "run", box=PINNED, **SMALL)
    result = resume(tmp_path / "run", mean, X)
    assert len(result.posterior.sample()["m"]) == 2
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len([row for row in ledger.rows() if row.kind == "charge"]) == 1
    monkeypatch.delattr(final_samples, "descend")  # nothing is left to fit
    again = resume(tmp_path / "run", mean, X)
    assert again.posterior.sample()["m"].tolist() == result.posterior.sample()["m"].tolist()


@pytest.mark.parametrize("copied", [False, True])
def test_one_charge_pays_for_one_set_of_draws(copied, tmp_path):
    common = {**SMALL, "pairs": 0, "box": PINNED, "ledger": tmp_path / "ledger.sqlite"}
    final(run_dir=tmp_path / "run", **common)
    folder = tmp_path / "run"
    if copied:
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "run", folder, ignore=shutil.ignore_patterns("fitted.json", "posterior.npz"))
    else:
        (folder / "fitted.json").unlink()
    with pytest.raises(PrivacyError, match=r"were made, and they are gone.*start a new fit"):
        resume(folder, mean, X)
    assert not (folder / "fitted.json").exists()


def test_draws_that_a_crash_lost_are_not_made_again(tmp_path, monkeypatch):
    def killed(*details):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "write_once", killed)
        with pytest.raises(KeyboardInterrupt):
            final(run_dir=tmp_path / "run", box=PINNED, **SMALL)
    with pytest.raises(PrivacyError, match="they are gone"):
        resume(tmp_path / "run", mean, X)


def test_of_two_copies_that_are_fitted_at_once_only_one_draws(tmp_path, monkeypatch):
    def while_it_fits(*details, **more):
        monkeypatch.setattr(final_samples, "descend", descend)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        resume(tmp_path / "copy", mean, X)
        return descend(*details, **more)

    monkeypatch.setattr(final_samples, "descend", while_it_fits)
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        final(run_dir=tmp_path / "run", ledger=tmp_path / "ledger.sqlite", box=PINNED, **{**SMALL, "pairs": 0})
    assert (tmp_path / "copy" / "fitted.json").exists()
    assert not (tmp_path / "run" / "fitted.json").exists()


def test_l13_a_release_is_not_resumed_while_it_is_made(tmp_path):
    refused = []

    def meanwhile(*done):
        try:
            resume(tmp_path / "run", mean, X)
        except PrivacyError as error:
            refused.append(str(error))

    final(run_dir=tmp_path / "run", box=PINNED, progress=meanwhile, **SMALL)
    assert refused
    assert all("in use" in message for message in refused)
    resume(tmp_path / "run", mean, X)  # it has ended


def test_a_ledger_from_before_the_draws_is_refused(tmp_path, monkeypatch):
    def keeps_a_copy(*details, **more):
        for path in tmp_path.glob("ledger.sqlite*"):
            shutil.copy(path, tmp_path / path.name.replace("ledger", "older"))
        return descend(*details, **more)

    monkeypatch.setattr(final_samples, "descend", keeps_a_copy)
    final(run_dir=tmp_path / "run", ledger=tmp_path / "ledger.sqlite", box=PINNED, **{**SMALL, "pairs": 0})
    with pytest.raises(PrivacyError, match="it was rolled back"):
        resume(tmp_path / "run", mean, X, ledger=tmp_path / "older.sqlite")


def test_a_document_is_written_once(tmp_path):
    assert runs.write_once(tmp_path, "fitted.json", {"draws": [1]})
    assert not runs.write_once(tmp_path, "fitted.json", {"draws": [2]})
    assert runs.read_json(tmp_path, "fitted.json") == {"draws": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["fitted.json"]


def test_another_model_other_data_or_another_ledger_are_refused(tmp_path):
    def other(x):
        m = pyro.sample("m", dist.Normal(torch.zeros(2), 10.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("x", dist.Normal(m.sum(), 1.0), obs=x)

    with pytest.raises(KeyboardInterrupt):
        final(run_dir=tmp_path / "run", progress=interrupted_at(2), **SMALL)
    with pytest.raises(PrivacyError, match="another dataset"):
        resume(tmp_path / "run", mean, X + 1e-3)
    with pytest.raises(PrivacyError, match="its unknowns or its plate differ"):
        resume(tmp_path / "run", other, X)
    with Ledger.create(tmp_path / "other.sqlite") as ledger, pytest.raises(PrivacyError, match="not the ledger"):
        resume(tmp_path / "run", mean, X, ledger=ledger)
    document = runs.Run(tmp_path / "run").document()["fit"]
    changed = {**document["replays"], "box": asdict(PINNED)}
    runs.Run(tmp_path / "run").write(fit={**document, "replays": changed})
    with pytest.raises(PrivacyError, match="another mechanism"):
        resume(tmp_path / "run", mean, X)
    with pytest.raises(PrivacyError, match="not those that its ledger froze"):
        label_of_run(tmp_path / "run")


def test_settings_that_were_changed_since_are_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        final(run_dir=tmp_path / "run", progress=interrupted_at(2), **SMALL)
    document = runs.Run(tmp_path / "run").document()["fit"]
    edits = [("settings", {"learning_rate": 0.5}), ("settings", {"steps": 9}), ("settings", {"clip_norm": 2.0})]
    for part, changed in (*edits, ("replays", {"pairs": 6})):
        runs.Run(tmp_path / "run").write(fit={**document, part: {**document[part], **changed}})
        with pytest.raises(PrivacyError, match=r"another mechanism \(settings differ\)"):
            resume(tmp_path / "run", mean, X)
        with pytest.raises(PrivacyError, match="not those that its ledger froze"):
            label_of_run(tmp_path / "run")


# Processes.


def test_a_process_that_dies_or_fails_is_told():
    def dies(i):
        os._exit(3)

    def fails(i):
        raise ValueError(f"record {i}")

    with pytest.raises(RuntimeError, match="before its work was done"):
        list(spread(dies, [1, 2, 3], 2))
    with pytest.raises(ValueError, match="A replay without one record failed"):
        list(spread(fails, [1, 2, 3], 2))
    assert multiprocessing.active_children() == []
    assert sorted(spread(lambda i: {"location": [i]}, [1, 2, 3], 2)) == [(i, {"location": [i]}) for i in (1, 2, 3)]


# What makes no sense.


def test_an_epsilon_that_the_box_does_not_keep_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(PrivacyError, match=r"20 draws from this box cost epsilon .*one draw costs .*fewer samples"):
        final(epsilon=1.0, box=PINNED, samples=20, run_dir=tmp_path / "run")
    with pytest.raises(PrivacyError, match=r"needs a box.*dimension=1"):
        final(epsilon=1.0, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    kind = Box(bound=0.1, low=1.0, high=1.0, dimension=1)
    assert final(epsilon=2.0, box=kind, **{**SMALL, "pairs": 0}).guarantee.epsilon <= 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_multiplier": 1.0}, "noise_multiplier does not go with"),
        ({"holdout": X}, "holdout does not go with"),
        ({"training": {"individual_every": 5}}, "training does not go with"),
        ({"guide": "low-rank"}, "diagonal posteriors only"),
        ({"box": Box(bound=1.0, low=0.1, high=0.2, dimension=3)}, r"3 coordinates and the model 1 \(m 1\)"),
        ({"box": (1.0, 2.0)}, "must be a tacita.inference.Box"),
        ({"pairs": -1}, "pairs must be"),
        ({"pairs": 0, "one_step": True}, "needs 2 pairs or more"),
        ({"pairs": 1, "one_step": True}, "needs 2 pairs or more"),
        ({"workers": 0}, "workers must be"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"epsilon": math.nan, "box": PINNED}, "^epsilon must be"),
        ({"epsilon": -1.0, "box": PINNED}, "^epsilon must be"),
        ({"epsilon": "a", "box": PINNED}, "^epsilon must be"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        final(**given)
