"""Exact noise: contributions in whole numbers that nobody else moves, sums on a grid, and nothing in the low digits."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tacita._check import PrivacyError
from tacita.mechanisms.rounded import Grid
from tacita.training import PrivateTraining, whole
from tacita.training.chunks import Way
from tacita.training.gradients import clipped_sum
from tacita.training.layers import Loss
from tacita.training.plan import Plan
from tacita.training.recipes import Recipe, default_model
from tacita.training.records import Records, record_loss
from tacita.training.step import noisy_mean
from tacita.training.whole import Blocks, steady_blocks, whole_mean, whole_sum
from tests.training.trainings import again, loss_fn, start, train

GRID = Grid.of(1.0, 1.0)


@pytest.fixture(autouse=True)
def _same_weights():
    torch.manual_seed(3)


class Words(nn.Module):
    """Looks words up in a matrix that also decodes them, by layers of several kinds."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.mix, self.scale = nn.GRU(8, 8, batch_first=True), nn.Parameter(torch.ones(8))

    def forward(self, x):
        hidden, _ = self.mix(self.norm(self.words(x)))
        return (hidden * self.scale).mean(1) @ self.words.weight.T


def digits(count):
    return torch.randn(count, 1, 28, 28), torch.randint(0, 10, (count,))


KINDS = {
    "convolutions": lambda: (default_model((1, 28, 28), 10), digits(24)),
    "linear": lambda: (
        nn.Sequential(nn.Linear(31, 40), nn.Tanh(), nn.Linear(40, 5)),
        (torch.randn(24, 31), torch.arange(24) % 5),
    ),
    "words": lambda: (Words(), (torch.randint(0, 12, (24, 7)), torch.arange(24) % 12)),
}


def prepared(model, data) -> tuple[Loss, dict, Records]:
    return record_loss(model, loss_fn), dict(model.named_parameters()), Records.of(data, torch.device("cpu"), None)


def summed(loss, parameters, records, places, *, blocks, bounds=None, **how):
    limits = torch.full((len(places),), 1.0, dtype=torch.float64) if bounds is None else bounds
    part = records.marked(np.asarray(places, dtype=int))
    found = whole_sum(loss, parameters, part, limits, grid=GRID, blocks=blocks, **how)
    return {name: total.clone() for name, total in found.sums.items()}, found


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_f26_one_record_moves_the_sum_by_its_own_whole_numbers_and_nothing_else(kind, rng):
    """The others are the same bit for bit, in any order, beside a record of NaN, and without the record."""
    model, data = KINDS[kind]()
    if data[0].is_floating_point():
        data[0][20] = torch.nan
    loss, parameters, records = prepared(model, data)
    most = 16 if kind == "convolutions" else 6
    blocks = steady_blocks(loss, parameters, records.marked(np.arange(1)), most)
    assert blocks.size in (1, most)  # which, depends on the processor
    alone = [summed(loss, parameters, records, [i], blocks=blocks)[0] for i in range(24)]
    for size in (2, 9, 16, 17, 24):
        places = rng.permutation(24)[:size]
        together, found = summed(loss, parameters, records, places, blocks=blocks)
        assert equal(together, {name: sum(alone[i][name] for i in places) for name in parameters})
        squares = sum(alone[places[0]][name].square().sum() for name in parameters)
        assert float(found.norms[0]) == pytest.approx(math.sqrt(int(squares)) * GRID.step, rel=1e-12)
    if kind == "convolutions":  # what the test would see: other shapes give other bits
        shape = replace(blocks, size=1 if blocks.size > 1 else 16)
        other = [summed(loss, parameters, records, [i], blocks=shape)[0] for i in range(8)]
        assert not all(equal(one, alone[i]) for i, one in enumerate(other))
    if data[0].is_floating_point():
        assert all(not total.any() for total in alone[20].values())


@pytest.mark.parametrize("softening", [None, 0.01])
def test_whole_sums_are_float_sums_rounded_towards_zero(softening):
    model, data = KINDS["convolutions"]()
    loss, parameters, records = prepared(model, data)
    bounds = torch.linspace(0.0, 0.5, 24, dtype=torch.float64)
    exact = summed(loss, parameters, records, range(24), blocks=Blocks(Way(), 8), bounds=bounds, softening=softening)[1]
    part = records.marked(np.arange(24))
    rounded = clipped_sum(loss, parameters, part, bounds, softening=softening)
    for name in parameters:
        assert float((exact.sums[name] * GRID.step - rounded.sums[name]).abs().max()) < 25 * GRID.step
    assert torch.allclose(exact.norms, rounded.norms, atol=3e-4)
    assert (exact.norms <= bounds).all()
    assert torch.allclose(exact.losses, rounded.losses, atol=1e-5)


def test_a_float_norm_that_is_wrong_moves_nothing_beyond_the_bound(monkeypatch):
    """Even then no contribution passes its bound, counted in whole numbers."""
    model, data = KINDS["linear"]()
    loss, parameters, records = prepared(model, data)
    shipped = whole.norms
    monkeypatch.setattr(whole, "norms", lambda tensor: 0.01 * shipped(tensor))
    for place in range(6):
        bound = 0.1 * (place + 1)
        sums, _ = summed(
            loss,
            parameters,
            records,
            [place],
            blocks=Blocks(Way(), 4),
            bounds=torch.tensor([bound], dtype=torch.float64),
        )
        squares = sum(int(total.square().sum()) for total in sums.values())
        assert squares <= math.floor((Fraction(bound) / Fraction(GRID.step)) ** 2)
        assert squares > 0


class Picky(nn.Linear):
    """Fails on a word that it does not know."""

    def forward(self, x):
        return functional.embedding(x, self.weight).mean(1) + self.bias


def test_a_record_on_which_the_model_raises_moves_nobody():
    words = torch.randint(0, 5, (10, 3))
    words[4] = 77
    loss, parameters, records = prepared(Picky(5, 5), (words, torch.arange(10) % 5))
    blocks = steady_blocks(loss, parameters, records.marked(np.arange(1)), 8)
    kept = [i for i in range(10) if i != 4]
    assert equal(
        summed(loss, parameters, records, range(10), blocks=blocks)[0],
        summed(loss, parameters, records, kept, blocks=blocks)[0],
    )


def test_records_run_alone_where_places_or_neighbours_matter():
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    dropping = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    loss, parameters, records = prepared(dropping, (x, y))
    assert steady_blocks(loss, parameters, records.marked(np.arange(1))).size == 1
    private = train((x.repeat(4, 1), y.repeat(4)), dropping, steps=1, noise="exact", panel=0)
    assert private.advance().number == 1
    assert private.mechanism.exact_blocks().size == 1


def test_blocks_are_tried_with_other_weights_than_zeros(monkeypatch):
    """A model that starts at zero adds nothing up, so its places look alike at first."""
    model = nn.Linear(31, 5)
    nn.init.zeros_(model.weight)
    loss, parameters, records = prepared(model, (torch.randn(8, 31), torch.arange(8) % 5))
    tried, shipped = [], whole.differentiated

    def watched(loss, weights, *rest):
        tried.append(bool(weights["weight"].any()))
        return shipped(loss, weights, *rest)

    monkeypatch.setattr(whole, "differentiated", watched)
    steady_blocks(loss, parameters, records.marked(np.arange(1)), 8)
    assert set(tried) == {False, True}


class Moody(nn.Linear):
    """Begins to draw from numpy's generator, which gives all records of a block the same, after a thousand calls."""

    def __init__(self):
        super().__init__(4, 2)
        self.calls = [0]

    def forward(self, x):
        self.calls[0] += 1
        return super().forward(x) * (1.0 if self.calls[0] < 1000 else np.random.rand())  # noqa: NPY002


def test_records_that_would_share_a_draw_run_alone():
    model = Moody()
    loss, parameters, records = prepared(model, (torch.randn(8, 4), torch.arange(8) % 2))
    calm, _ = summed(loss, parameters, records, range(8), blocks=Blocks(Way(), 4))
    model.calls[0] = 1000
    sums, found = summed(loss, parameters, records, range(8), blocks=Blocks(Way(), 4))
    assert not equal(calm, sums)
    assert (found.norms > 0).all()
    assert model.calls[0] >= 1000 + 1 + 8


def test_every_release_is_on_the_grid_with_and_without_a_record(blobs):
    x, y = blobs
    for data in ((x, y), (x[1:], y[1:])):
        model = nn.Linear(4, 2).double()
        private = train((data[0].double(), data[1]), model, batch_size=32, steps=8, noise="exact", clip_norm=0.7)
        grid = private.plan.grid
        steps = []
        for _ in private:
            steps += [p.grad.numpy() * 32 / grid.step for p in model.parameters()]
        flat = np.concatenate([s.ravel() for s in steps])
        assert len(flat) == 80
        assert (flat == np.round(flat)).all()


def certain(released, change):
    """How many releases cannot come from sums that differ by a change: no float noise takes those there."""
    near = released - change
    tried = [near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)]
    return int((~np.any([change + noise == released for noise in tried], axis=0)).sum())


@pytest.mark.stat
def test_f26_the_precision_attack_finds_nothing_in_200_000_draws(rng):
    count, change = 200_000, 1.0
    zeros = {"a": torch.zeros(count, dtype=torch.float64)}
    plain = noisy_mean(zeros, clip_norm=1.0, noise_multiplier=1.0, divisor=1.0, rng=rng)["a"].numpy()
    assert certain(plain, change) > 0.1 * count  # it works on floats
    whole_zeros = {"a": torch.zeros(count, dtype=torch.int64)}
    exact = whole_mean(whole_zeros, grid=GRID, divisor=1.0, rng=rng)["a"].numpy()
    assert certain(exact, change) == 0
    assert (exact / GRID.step == np.round(exact / GRID.step)).all()
    assert abs(exact.std() - 1.0) < 0.02


@pytest.mark.parametrize("clip_norm", [0.3, "auto"])
def test_levels_of_single_records_are_kept_in_whole_numbers(blobs, clip_norm, monkeypatch):
    shipped, seen = whole.whole_sum, []

    def watched(loss, parameters, records, bounds, **how):
        found = shipped(loss, parameters, records, bounds, **how)
        seen.append((found.norms / how["grid"].step, [how["grid"].most(b) for b in bounds.tolist()]))
        return found

    monkeypatch.setattr("tacita.training.mechanism.whole_sum", watched)
    private = train(blobs, nn.Linear(4, 2), individual_every=3, steps=9, noise="exact", clip_norm=clip_norm, lr=2.0)
    for _ in range(9):
        private.advance()
    assert len(seen) == 9
    for norms, most in seen:
        assert all(round(float(n) ** 2) <= m for n, m in zip(norms, most, strict=True))
    assert len({m for _, most in seen for m in most}) > 5  # levels of their own


def test_figures_are_those_of_float_noise_and_the_label_loses_its_warning(blobs):
    labels = {}
    for kind in ("float", "exact"):
        private = train(blobs, steps=3, noise=kind, panel=0)
        private.advance()
        labels[kind] = private.label()
    assert labels["exact"].worst.epsilon == labels["float"].worst.epsilon
    codes = {kind: {a.code for a in label.worst.assumptions} for kind, label in labels.items()}
    assert codes["exact"] - codes["float"] == {"exact-gaussian", "whole-numbers", "others-still"}
    assert codes["float"] - codes["exact"] == {"fresh-noise"}
    assert any("loating" in line for line in labels["float"].not_hardened)
    assert not any("loating" in line for line in labels["exact"].not_hardened)
    assert any("Timing" in line for line in labels["exact"].not_hardened)
    seeded = train(blobs, steps=3, noise="exact", seed=4, panel=0)
    seeded.advance()
    assert "chosen-seed" in {a.code for a in seeded.label().worst.assumptions}
    assert "floating point" not in str(seeded.plan.worst(3, 1e-5))


def test_exact_noise_is_declared_frozen_and_resumed(tmp_path, blobs):
    private, _ = start(tmp_path / "run", blobs, noise="exact", panel=4)
    for _ in range(3):
        private.advance()
    private.pause()
    resumed, _ = again(tmp_path / "run", blobs)
    assert resumed.plan.noise == "exact"
    assert resumed.advance().number == 4
    plan = resumed.plan
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.frozen()["noise"] == '"exact"'
    assert "noise" not in Plan.declare(steps=3, batch_size=2, nominal_size=20, noise_multiplier=1.0).to_dict()


def test_seeded_exact_runs_repeat_and_others_do_not(blobs):
    def weights(seed):
        model = nn.Linear(4, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        train(blobs, model, steps=3, noise="exact", seed=seed, panel=0).advance()
        return model.weight.detach()

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(None), weights(None))


def test_what_exact_noise_is_not_there_for_is_refused_by_name(blobs, monkeypatch):
    with pytest.raises(ValueError, match=r"noise_multiplier=1\.5"):
        train(blobs, noise=1.5)
    with pytest.raises(ValueError, match="exact"):
        train(blobs, noise="precise")
    with pytest.raises(PrivacyError, match="1/32"):
        train(blobs, noise="exact", noise_multiplier=0.03)
    with monkeypatch.context() as patch:
        patch.setattr("tacita.training.distributed.Processes.__init__", two_processes)
        with pytest.raises(PrivacyError, match="one process"):
            train(blobs, noise="exact")
    monkeypatch.setattr("tacita.training.mechanism.Mechanism.accelerator", "cuda")
    with pytest.raises(PrivacyError, match="cuda"):
        train(blobs, noise="exact")


class AtLeastOne(nn.Linear):
    """Raises on records of zeros, and on those of ones."""

    def forward(self, x):
        if not bool((x.abs().sum(-1) > 4.0).all()):
            raise ValueError("too small")
        return super().forward(x)


def test_how_records_are_computed_is_never_found_out_on_real_ones(blobs):
    x, y = blobs
    with pytest.raises(PrivacyError, match="record of zeros"), pytest.warns(UserWarning, match="one after the other"):
        train((x + 10.0, y), AtLeastOne(4, 2), noise="exact")


def two_processes(self):
    self.joined, self.size, self.rank, self.leads = False, 2, 0, True
    self.spread = lambda tensors: tensors


def test_a_recipe_declares_exact_noise():
    table = {"data": {"name": "digits"}, "epsilon": 2.0}
    assert Recipe.from_dict({**table, "noise": "exact"}).noise == "exact"
    for wrong in ("precise", 1.0):
        with pytest.raises(ValueError, match="noise"):
            Recipe.from_dict({**table, "noise": wrong})


def test_an_empty_sample_is_noised_like_any_other(blobs):
    x, y = blobs
    private = PrivateTraining(
        model := nn.Linear(4, 2), loss_fn, (x[:20], y[:20]), optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        batch_size=1, sample_rate=1e-9, steps=2, noise_multiplier=1.0, noise="exact", panel=0,
    )  # fmt: skip
    before = model.weight.detach().clone()
    private.advance()
    assert (model.weight != before).all()
