"""The private step: noise, sampling, bounds, broken records, memory."""

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare, kstest, norm
from torch import nn

import tacita
from tacita._check import PrivacyError
from tacita.accounting import moments_budget, token_profile
from tacita.training import poisson_sample
from tacita.training.step import noisy_mean
from tests.training.trainings import FALSE_ALARM, loss_fn, train

pytestmark = pytest.mark.filterwarnings("ignore:The gradient is exactly zero")  # noise is looked at alone


class Noise(nn.Module):
    """A model whose loss is zero for every record: what the optimiser sees is noise alone."""

    def __init__(self, size=1000):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return torch.zeros(len(x), 2) + 0.0 * self.w.sum()


def noises(steps, **settings):
    model = Noise()
    x = (torch.zeros(300, 1), torch.zeros(300, dtype=torch.long))
    private = train(x, model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), steps=steps, panel=0, **settings)
    seen, last = [], torch.zeros(1000)
    for _ in private:
        seen.append((last - model.w.detach()) * private.plan.batch_size)
        last = model.w.detach().clone()
    return torch.stack(seen).double().numpy(), private


@pytest.mark.stat
def test_the_noise_is_gaussian_with_the_planned_scale():
    noise, _ = noises(30, clip_norm=0.5, noise_multiplier=3.0, seed=5)
    values = noise.ravel()[:20_000]
    assert kstest(values, norm(scale=1.5).cdf).pvalue > FALSE_ALARM
    assert kstest(values, norm(scale=1.65).cdf).pvalue < FALSE_ALARM  # sees an error of 10%


@pytest.mark.stat
def test_f6_noise_is_never_reused():
    noise, _ = noises(60, seed=6)
    steps, size = noise.shape
    for lag in range(1, 6):
        products = (noise[lag:] * noise[:-lag]).sum() / (noise**2).sum()
        assert abs(products) < 5 / math.sqrt((steps - 1) * size)
    again = (np.tile(noise[:30], (2, 1)) * 1.0).reshape(60, size)
    assert abs((again[30:] * again[:-30]).sum() / (again**2).sum()) > 5 / math.sqrt((steps - 1) * size)


def sampling_pvalues(samples, size, rate):
    """Tests that Poisson sampling passes and its usual impostors fail."""
    sizes = np.array([len(s) for s in samples])
    counts = np.bincount(np.concatenate(samples), minlength=size)
    steps = len(samples)
    variance = size * rate * (1 - rate)
    spread = ((sizes - size * rate) ** 2).sum() / variance  # chi-squared with `steps` degrees of freedom
    from scipy.stats import chi2

    expected = steps * rate
    record_spread = ((counts - expected) ** 2).sum() / (expected * (1 - rate))
    return (
        2 * min(chi2.cdf(spread, steps), chi2.sf(spread, steps)),
        binomtest(int(sizes.sum()), steps * size, rate).pvalue,
        2 * min(chi2.cdf(record_spread, size), chi2.sf(record_spread, size)),
    )


@pytest.mark.stat
def test_f7_records_enter_by_independent_coins():
    rng = np.random.default_rng(8)
    size, rate, steps = 1000, 0.02, 1000
    coins = [poisson_sample(size, rate, rng=rng) for _ in range(steps)]
    assert min(sampling_pvalues(coins, size, rate)) > FALSE_ALARM
    batch = int(size * rate)
    shuffled = [p for _ in range(steps * batch // size) for p in np.split(rng.permutation(size), size // batch)]
    fixed = [rng.choice(size, batch, replace=False) for _ in range(steps)]
    more = [poisson_sample(size, 1.1 * rate, rng=rng) for _ in range(steps)]
    for impostor in (shuffled, fixed, more):
        assert min(sampling_pvalues(impostor, size, rate)) < FALSE_ALARM


@pytest.mark.stat
@pytest.mark.parametrize("rate", [1 / 300, 1 / 256, 0.3, 0.99])
def test_coins_of_millions_of_records_have_the_declared_rate_and_are_independent(rng, rate):
    size = 2 * 2**20 + 5
    heads = np.zeros(size, dtype=bool)
    heads[poisson_sample(size, rate, rng=rng)] = True
    assert binomtest(int(heads.sum()), size, rate).pvalue > FALSE_ALARM
    assert binomtest(int(heads.sum()), size, rate - 0.1 * min(rate, 1 - rate)).pvalue < FALSE_ALARM
    for lag in (1, 7, 8, 2**20):  # coins of one word, of neighbouring words, and of neighbouring blocks
        both = int((heads[lag:] & heads[:-lag]).sum())
        assert binomtest(both, size - lag, rate**2).pvalue > FALSE_ALARM


def test_coins_of_millions_of_records_at_rate_one_are_all_heads(rng):
    assert np.array_equal(poisson_sample(2**20 + 3, 1.0, rng=rng), np.arange(2**20 + 3))


def test_the_loop_uses_that_sampler(blobs):
    """Bounds seen by the step are those of independent coins: batch sizes vary as they should."""
    private = train(blobs, steps=200, panel=0, seed=3)
    sizes = []
    original = private.mechanism.records.marked
    private.mechanism.records.marked = lambda indices, **rng: (
        sizes.append(len(indices)),
        original(indices, **rng),
    )[1]
    private.run()
    assert chisquare([sum(sizes), 200 * 300 - sum(sizes)], [200 * 30, 200 * 270]).pvalue > 1e-4
    assert 15 < np.var(sizes) < 45


def test_f11_empty_batches_are_noised_and_charged():
    model = Noise(50)
    x = (torch.zeros(30, 1), torch.zeros(30, dtype=torch.long))
    private = train(x, model, sample_rate=1 / 30, batch_size=1, steps=150, panel=4, seed=1)
    last, moved = model.w.detach().clone(), 0
    for step in private:
        moved += not torch.equal(last, model.w)
        last = model.w.detach().clone()
        assert math.isfinite(step.loss) or math.isnan(step.loss)
    assert moved == 150
    assert private._stepper.keeper.charges.charged == 150
    assert private.accountants["training"].taken == 150


@pytest.mark.parametrize("clip_norm", [1.0, "auto"])
def test_f9_a_spoiled_record_leaves_no_trace(blobs, clip_norm):
    """Same seed, with the record spoiled and with its gradient silenced: bit-identical parameters."""
    x, y = blobs
    bad = x.clone()
    bad[17] = float("nan")
    results = []
    for data in (bad, x):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        private = train((data, y), model, seed=4, panel=0, batch_size=30, clip_norm=clip_norm)
        if data is x:
            original = private._stepper.bounds
            private._stepper.bounds = lambda s, original=original: np.where(s == 17, 0.0, original(s))
        seen = [(s.number, s.norms) for s in private]
        results.append((model.weight.detach().clone(), len(seen)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.isfinite(results[0][0]).all()


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.inf, math.nan])
def test_b4_no_clipping_is_refused(blobs, clip_norm):
    with pytest.raises(PrivacyError, match="clip_norm must be positive and finite"):
        train(blobs, clip_norm=clip_norm)


@pytest.mark.parametrize("clip_norm", [1.0, "auto"])
def test_individual_bounds_are_enforced_for_every_record(blobs, clip_norm):
    """Each record's contribution at every step stays within the level it was charged for."""
    x, y = blobs
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    private = train((x, y), model, lr=2.0, individual_every=5, steps=20, seed=2, clip_norm=clip_norm)
    seen = []
    clipped = private.mechanism.clipped

    def watched(sample, bounds, **how):
        got = clipped(sample, bounds, **how)
        seen.append((sample, got.norms.numpy(), private._stepper.state.panels["training"].levels.copy()))
        return got

    private.mechanism.clipped = watched
    private.run()
    levels = tacita.accounting.NORM_LEVELS
    for sample, norms, own in seen:
        assert (norms <= private.plan.clip_norm * levels[own[sample]] * (1 + 1e-6)).all()
    counts = private.accountants["training"].counts
    assert counts.shape[0] == 300
    assert (counts.sum(1) == 20).all()  # every step is charged, sampled or not


def test_a_level_is_a_function_of_the_record_and_of_released_parameters(blobs):
    """Removing another record changes nobody's level at the first measurement."""
    x, y = blobs
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    keep = torch.arange(300) != 11
    whole = train((x, y), model, individual_every=5)
    less = train((x[keep], y[keep]), model, individual_every=5)
    for private in (whole, less):
        private._stepper.measure()
    levels = [private._stepper.state.panels["training"].levels for private in (whole, less)]
    assert np.array_equal(levels[0][keep.numpy()], levels[1])


@pytest.mark.parametrize("budget", ["tokens", "moments"])
def test_f19_records_never_pass_their_budget(blobs, budget):
    plan = {"sample_rate": 0.1, "noise_multiplier": 1.0}
    if budget == "tokens":
        declared = token_profile({1.0: 0.3, 0.25: 0.3, 0.01: 0.4}, steps=20)
    else:
        declared = moments_budget(steps=8, **plan)
    private = train(blobs, lr=0.02, individual_every=4, steps=20, record_budget=declared, holdout=blobs)
    private.run()
    for accountant in private.accountants.values():
        assert declared.within(accountant.counts, **plan).all()
    label = private.label()
    plain = tacita.worst_case(steps=20, delta=1e-5, **plan)
    assert label.worst.epsilon < plain.epsilon
    assert label.worst.method == ("token filter" if budget == "tokens" else "moments filter")
    assert label.worst.publishable
    assert any("held to a budget" in line for line in label.declared)
    spent = private._stepper.keeper.charges.ledger.spent(1e-5)
    unfiltered = train(blobs, lr=0.02, steps=20, panel=0).run()._stepper.keeper.charges.ledger.spent(1e-5)
    assert spent.epsilon < unfiltered.epsilon


def test_a_stale_gradient_of_a_frozen_parameter_is_not_released(blobs):
    x, y = blobs
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss_fn(model(x), y).backward()
    model.bias.requires_grad_(False)
    before = model.bias.clone()
    train(blobs, model, optimizer=optimizer, steps=1, panel=0).run()
    assert torch.equal(model.bias, before)


@pytest.mark.parametrize("broken", [17, 0])
def test_f3_a_record_on_which_the_loss_raises_stops_nothing(blobs, tmp_path, broken):
    """A class that the model does not have, wherever it stands: the same model and the same page as with NaN."""
    models, pages = [], set()
    for change in ("class", "number"):
        x, y = (t.clone() for t in blobs)
        if change == "class":
            y[broken] = 9
        else:
            x[broken] = torch.nan
        torch.manual_seed(0)
        private = train((x, y), run_dir=tmp_path / change, name="same", individual_every=4, steps=12, seed=1)
        private.run()
        models.append(torch.cat([p.detach().flatten() for p in private.model.parameters()]))
        pages.add(private.label().public().html())
    torch.testing.assert_close(*models, rtol=0, atol=1e-5)  # up to round-off: chunks differ
    assert len(pages) == 1


def test_training_does_not_change_the_data(blobs):
    x, y = blobs[0].clone(), blobs[1].clone()
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    train((x, y), model, individual_every=1, steps=3).run()
    assert torch.equal(x, blobs[0])


def test_a_chunk_that_does_not_fit_into_memory_is_halved():
    """A real limit on the address space: one chunk of all records cannot be allocated, smaller ones can."""
    code = textwrap.dedent("""
        import resource, torch
        from tacita.training import clipped_sum
        torch.set_num_threads(1)
        x = torch.randn(64, 4)
        parameters = {"w": torch.zeros(200_000, 4)}
        loss = lambda p, r: (p["w"] * r).square().sum() + (p["w"] * r).sum()
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 160 * 2**20,) * 2)  # per-record gradients take 205 MB
        got = clipped_sum(loss, parameters, x, torch.full((64,), 1e9, dtype=torch.float64), chunk=64)
        assert torch.allclose(got.sums["w"][0], x.sum(0), atol=1e-4)
        print("fits", len(got.norms))
    """)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "fits 64", run.stderr[-500:]


@pytest.mark.parametrize("shape", [(300, 200), (7,), ()])
def test_the_noisy_mean_takes_the_place_of_sums_only_where_it_may(shape):
    sums = {"w": torch.randn(shape), "turned": torch.randn(shape).T if len(shape) == 2 else torch.randn(shape)}
    before = {name: total.clone() for name, total in sums.items()}
    how = {"clip_norm": 2.0, "noise_multiplier": 1.5, "divisor": 10.0}
    noisy = noisy_mean(sums, **how, rng=np.random.default_rng(1))
    drawn = np.random.default_rng(1)
    for name, total in sums.items():
        assert torch.equal(total, before[name])
        expected = (total.double().numpy() + 3.0 * drawn.standard_normal(total.shape)) / 10.0
        np.testing.assert_allclose(noisy[name].numpy(), expected, rtol=1e-6, atol=1e-9)
    again = noisy_mean(sums, **how, rng=np.random.default_rng(1), overwrite=True)
    assert all(torch.equal(again[name], noisy[name]) for name in sums)
    assert again["w"].data_ptr() == sums["w"].data_ptr()


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_steps(tmp_path):
    code = textwrap.dedent("""
        import sys, torch
        from torch import nn
        from tacita.training import PrivateTraining
        torch.set_num_threads(1)
        model = nn.Linear(4, 2)
        data = torch.randn(300, 4), torch.randint(0, 2, (300,))
        private = PrivateTraining(model, nn.functional.cross_entropy, data, sample_rate=0.1, batch_size=30, panel=32,
            steps=10_000,
            noise_multiplier=1.0, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), run_dir=sys.argv[1])
        for step in private:
            if step.number in (2000, 10_000):
                print(int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20)
    """)
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    early, late = map(float, run.stdout.split())
    assert late < early + 30


@pytest.mark.slow
def test_memory_grows_with_the_chunk_and_not_with_the_batch():
    """Per-record gradients of a layer norm and convolution: peak resident memory of a subprocess."""
    code = textwrap.dedent("""
        import sys, torch
        from torch import nn
        from tacita.training import clipped_sum
        from tacita.training.records import record_loss
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Conv2d(8, 64, 5), nn.Flatten(), nn.Linear(64 * 16, 4))
        loss = record_loss(model, nn.functional.cross_entropy)
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        batch, chunk = int(sys.argv[1]), int(sys.argv[2])
        x, y = torch.randn(batch, 8, 8, 8), torch.zeros(batch, dtype=torch.long)
        open("/proc/self/clear_refs", "w").write("5")  # forget the peak of importing
        for _ in range(2):
            clipped_sum(loss, parameters, (x, y), torch.ones(batch, dtype=torch.float64), chunk=chunk)
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(int(status["VmHWM"].split()[0]) / 1024)
    """)

    def peak(batch, chunk):
        run = subprocess.run(
            [sys.executable, "-c", code, str(batch), str(chunk)], capture_output=True, text=True, check=True
        )
        return float(run.stdout)

    small, large_batch, large_chunk = peak(64, 64), peak(2048, 64), peak(2048, 2048)
    assert large_batch < small + 40
    assert large_chunk > small + 60


@pytest.mark.slow
def test_a_model_of_a_hundred_million_parameters_takes_a_private_step_in_little_more_than_its_own_memory(tmp_path):
    code = textwrap.dedent("""
        import resource, sys, time, torch
        from torch import nn
        from tacita.training import PrivateTraining
        torch.set_num_threads(1)

        class Words(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.one = nn.Embedding(60_000, 1000), nn.Linear(1000, 6000)
                self.two, self.out = nn.Linear(6000, 6000), nn.Linear(6000, 2)

            def forward(self, words):
                return self.out(self.two(self.one(self.words(words)).relu()).relu().mean(1))

        model = Words()
        assert sum(p.numel() for p in model.parameters()) > 100_000_000
        before = model.words.weight.detach()[1000].clone()
        data = torch.randint(0, 1000, (32, 16)), torch.randint(0, 2, (32,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = PrivateTraining(model, nn.functional.cross_entropy, data, optimizer=optimizer, batch_size=32,
            nominal_size=32, steps=10, noise_multiplier=1.0, panel=0, ledger=sys.argv[1])
        began = time.process_time()
        next(iter(private))
        print(f"{time.process_time() - began:.1f} s", file=sys.stderr)
        assert all(int((p.grad == 0.0).sum()) == 0 for p in model.parameters())
        assert not torch.equal(model.words.weight[1000], before)  # a word that no record has
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    """)
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ledger.sqlite")], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 2.5, run.stderr  # GB: 0.4 of parameters, as much of gradients, torch and the chunk
