import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from tacita.data import load
from tacita.mechanisms.rounded import Grid
from tacita.synthesis import embedding as E
from tacita.synthesis.features import Moments, fourier
from tacita.synthesis.networks import draw_latent, make_generator
from tacita.synthesis.students import student

SHAPE = (1, 4, 4)
MAPS = {
    "moments": Moments(SHAPE, kept=3),
    "fourier": fourier(SHAPE, 40, scale=1.0),
    "too long": lambda records: 1e30 * records.flatten(1),
}
anything = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45])
batches = arrays(np.float32, st.tuples(st.integers(1, 5), *map(st.just, SHAPE)), elements=anything)


def digits():
    data = load("digits")
    return tuple(
        torch.from_numpy(np.array(a)) for a in (data.inputs, data.targets, data.test_inputs, data.test_targets)
    )


def records(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.random((n, *SHAPE), dtype=np.float32)), torch.from_numpy(rng.integers(0, 3, n))


@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
@settings(deadline=None, max_examples=40)
@given(pixels=batches)
def test_nobody_adds_more_than_one(features, pixels):
    rows = E.contributions(torch.from_numpy(pixels), features)
    assert rows.dtype == torch.float64
    assert (rows.norm(dim=1) <= 1.0).all()
    norms = E.contribution_norms(torch.from_numpy(pixels), features)
    np.testing.assert_allclose(norms, np.linalg.norm(rows.numpy(), axis=1))


@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
@settings(deadline=None, max_examples=40)
@given(pixels=batches, label=st.integers(-2, 4), place=st.integers(0, 40))
def test_adding_a_record_changes_the_sum_by_at_most_one(features, pixels, label, place):
    inputs, labels = records()
    more = torch.cat([inputs[:place], torch.from_numpy(pixels[:1]), inputs[place:]])
    named = torch.cat([labels[:place], torch.tensor([label]), labels[place:]])
    change = E.embedding_sum(more, named, 3, features) - E.embedding_sum(inputs, labels, 3, features)
    assert float(change.norm()) <= 1.0
    assert (change.norm(dim=1) > 1e-9).sum() <= 1  # one class
    if not 0 <= label < 3:
        assert float(change.norm()) < 1e-12


def test_the_sum_does_not_depend_on_batches(monkeypatch):
    inputs, labels = records()
    whole = E.embedding_sum(inputs, labels, 3, MAPS["moments"])
    monkeypatch.setattr(E, "BATCH", 7)
    torch.testing.assert_close(E.embedding_sum(inputs, labels, 3, MAPS["moments"]), whole, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_records_add_exactly_nothing(bad):
    inputs, labels = records(1)
    inputs[0, 0, 1, 1] = bad
    for features in MAPS.values():
        assert not E.embedding_sum(inputs, labels, 3, features).any()
        assert float(E.contribution_norms(inputs, features)) == 0.0


def test_labels_out_of_range_add_exactly_nothing():
    inputs, _ = records(2)
    assert not E.embedding_sum(inputs, torch.tensor([-1, 3]), 3, MAPS["moments"]).any()
    with pytest.raises(ValueError, match="one label for each record"):
        E.embedding_sum(inputs, torch.tensor([0]), 3, MAPS["moments"])


def test_the_shape_is_the_same_without_records():
    inputs, labels = records()
    full = E.embedding_sum(inputs, labels, 3, MAPS["moments"])
    empty = E.embedding_sum(inputs[:0], labels[:0], 3, MAPS["moments"])
    assert empty.shape == full.shape == (3, 1 + 9 + 81)
    assert not empty.any()


def test_only_the_sum_depends_on_the_data():
    (inputs, labels), features = records(), MAPS["moments"]
    made = [
        E.release_embedding(inputs[:n], labels[:n], 3, features, noise_multiplier=2.0, rng=np.random.default_rng(5))
        for n in (40, 39)
    ]
    one, other = made
    for field in dataclasses.fields(E.Embedding):
        if field.name != "sums":
            assert getattr(one, field.name) == getattr(other, field.name)
    clean = [E.embedding_sum(inputs[:n], labels[:n], 3, features) for n in (40, 39)]
    torch.testing.assert_close(one.sums - clean[0], other.sums - clean[1])  # the same noise, undivided
    assert 0.9 < float((one.sums - other.sums).norm()) <= 1.0


@pytest.mark.stat
def test_noise_is_normal_and_as_large_as_asked():
    noise = E.add_noise(torch.zeros(10, 5000).double(), noise_multiplier=3.0, rng=np.random.default_rng(1)).sums
    assert stats.kstest(noise.numpy().ravel() / 3.0, "norm").pvalue > 1e-4  # false alarms: 1e-4
    assert stats.kstest(noise.numpy().ravel() / 2.9, "norm").pvalue < 1e-4
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier"):
            E.add_noise(torch.zeros(2, 2), noise_multiplier=wrong, rng=np.random.default_rng(1))


def test_counts_and_means_are_those_of_the_records():
    (inputs, labels), features = records(), MAPS["moments"]
    released = E.release_embedding(inputs, labels, 3, features, noise_multiplier=1e-3, rng=np.random.default_rng(0))
    counts = labels.bincount(minlength=3).double()
    torch.testing.assert_close(released.counts, counts, atol=0.05, rtol=0.0)
    torch.testing.assert_close(released.proportions, counts / 40, atol=2e-3, rtol=0.0)
    expected = torch.stack([features(inputs[labels == c].double()).mean(0) for c in range(3)])
    torch.testing.assert_close(released.means, expected, atol=4e-3, rtol=0.0)


def test_empty_classes_keep_everything_finite():
    released = E.add_noise(torch.zeros(3, 10).double(), noise_multiplier=5.0, rng=np.random.default_rng(2))
    assert released.means.isfinite().all()
    assert (released.counts > 0).all()
    assert float(released.proportions.sum()) == pytest.approx(1.0)


def test_a_release_survives_a_checkpoint():
    released = E.add_noise(torch.ones(3, 4).double(), noise_multiplier=0.7, rng=np.random.default_rng(2))
    again = E.Embedding.from_tensors(released.to_tensors())
    assert torch.equal(again.sums, released.sums)
    assert (again.noise_multiplier, again.count_weight) == (released.noise_multiplier, released.count_weight)


def test_class_moments_without_noise_are_sample_moments():
    inputs, labels = records(300)
    moments = MAPS["moments"]
    released = E.release_embedding(inputs, labels, 3, moments, noise_multiplier=1e-3, rng=np.random.default_rng(0))
    mean, covariance = E.class_moments(released, moments)
    for c in range(3):
        u = moments.coefficients(inputs[labels == c].double()).numpy()
        np.testing.assert_allclose(mean[c], u.mean(0), atol=1e-3)
        np.testing.assert_allclose(covariance[c], np.cov(u.T, bias=True), atol=1e-3)


def test_eigenvalues_of_noise_end_where_they_are_cut():
    moments = Moments((30,))
    quiet = torch.zeros(8, 1 + 30 + 900).double()
    quiet[:, 0] = 1000 * E.RADIUS * math.sqrt(E.COUNT_SHARE)
    released = E.add_noise(quiet, noise_multiplier=1.0, rng=np.random.default_rng(3))
    _, second = moments.unpack(released.means)
    edge = float((released.errors * math.sqrt(60 / 0.7)).max())
    noise = torch.linalg.eigvalsh(second)
    assert 0.9 * edge < float(noise.abs().max()) < 1.15 * edge  # Wigner's edge, from random matrices themselves
    _, covariance = E.class_moments(released, moments)
    assert (torch.linalg.eigvalsh(covariance) > -1e-12).all()


def test_generated_coefficients_have_the_released_moments():
    moments = Moments((1, 8, 8), kept=2, length=100.0)
    generator = E.MomentGenerator(moments, 1)
    with torch.no_grad():
        generator.factor.mul_(1e-4)  # far from black and white, nothing is cut off
        generator.centre.fill_(0.5)
        z = draw_latent(generator, 5000, draws=torch.Generator().manual_seed(0))
        z[:, 4:] = 0.0
        made = generator(z, torch.zeros(5000, dtype=torch.int64)).flatten(1) - 0.5
    u = made @ torch.linalg.pinv(moments.back.float())
    torch.testing.assert_close(u.T @ u / 5000, generator.factor[0].T @ generator.factor[0], rtol=0.2, atol=1e-9)
    with pytest.raises(ValueError, match="by labels"):
        generator(z)


def test_the_estimate_of_the_discrepancy_is_unbiased():
    """A generator that cannot learn, against the distance computed from many of its records."""
    generator, features = make_generator((3,), 2), fourier((3,), 20, scale=0.5)
    target = E.add_noise(torch.ones(2, 21).double(), noise_multiplier=0.1, rng=np.random.default_rng(0))
    losses = E.fit_generator(
        generator, target, features, steps=300, batch_size=4, learning_rate=0.0, rng=np.random.default_rng(0)
    )
    labels = torch.arange(2).repeat_interleave(20_000)
    with torch.no_grad():
        made = features(generator(draw_latent(generator, 40_000, draws=torch.Generator().manual_seed(1)), labels))
    distance = (made.reshape(2, 20_000, -1).mean(1) - target.means.float()).square().sum()
    assert np.mean(losses) == pytest.approx(float(distance), abs=5 * np.std(losses) / math.sqrt(300))
    assert np.std(losses) / math.sqrt(300) < 0.05 * float(distance)


@pytest.mark.parametrize("kind", ["fourier", "moments"])
def test_fitting_a_network_brings_it_nearer(kind):
    inputs, labels, _, _ = digits()
    features = fourier((1, 8, 8), 500, scale=3.0) if kind == "fourier" else Moments((1, 8, 8), kept=4)
    released = E.release_embedding(inputs, labels, 10, features, noise_multiplier=1.0, rng=np.random.default_rng(0))
    torch.manual_seed(0)
    generator = make_generator((1, 8, 8), 10)
    seen = []
    losses = E.fit_generator(
        generator,
        released,
        features,
        steps=60,
        batch_size=100,
        learning_rate=3e-3,
        rng=np.random.default_rng(0),
        progress=lambda step, *_: seen.append(step),
    )
    assert seen == list(range(1, 61))
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:5])


def test_a_student_of_released_digits_knows_real_ones():
    inputs, labels, test_inputs, test_labels = digits()
    features = Moments((1, 8, 8), **E.FEATURES["small images"])
    released = E.release_embedding(inputs, labels, 10, features, noise_multiplier=2.0, rng=np.random.default_rng(0))
    asked, made = torch.arange(2000) % 10, []
    for steps in (2, 2, 200):
        generator = E.new_generator(features, 10, ())
        fit = {**E.DEFAULTS["small images"], "steps": steps}
        E.fit_generator(generator, released, features, **fit, rng=np.random.default_rng(1))
        with torch.no_grad():
            made.append(generator(draw_latent(generator, 2000, draws=torch.Generator().manual_seed(2)), asked))
    assert torch.equal(made[0], made[1])  # a fit that is begun again ends the same
    assert 0.0 <= float(made[2].min()) <= float(made[2].max()) <= 1.0
    found = student((made[2], asked), (test_inputs, test_labels), 10, rng=np.random.default_rng(0))
    assert found > 0.75


def test_the_callers_records_are_left_as_they_are():
    records = torch.full((1, 8), 1e200, dtype=torch.float64)
    first = E.contributions(records, lambda x: x)
    assert (records == 1e200).all()
    assert torch.equal(first, E.contributions(records, lambda x: x))
    assert (first == 0.0).all()


@pytest.mark.parametrize("kind", ["images", "table"])
def test_f26_one_record_moves_a_whole_sum_by_its_own_whole_numbers_and_nothing_else(kind, rng):
    shape = (1, 8, 8) if kind == "images" else (9,)
    inputs, labels = torch.from_numpy(rng.normal(size=(70, *shape))), torch.from_numpy(rng.integers(4, size=70))
    inputs[7] = torch.nan
    features, grid = Moments(shape, kept=3), Grid.of(1.0, 0.7)

    def whole(places):  # of four classes one is unknown
        return E.whole_embedding_sum(inputs[places], labels[places], 3, features, grid=grid)

    together = whole(range(70))
    rounded = E.embedding_sum(inputs, labels, 3, features)
    assert float((together * grid.step - rounded).abs().max()) < 70 * grid.step
    for place in (0, 7, 33, 63, 64, 69):
        own = whole([place])
        others = rng.permutation(np.delete(np.arange(70), place))
        assert torch.equal(together - own, whole(others))
        assert int(own.square().sum()) <= grid.most(1.0)
        assert bool(own.any()) == (place != 7 and bool(labels[place] < 3))


@pytest.mark.stat
def test_whole_embeddings_are_on_the_grid_with_the_noise_that_was_asked_for(rng):
    total, grid = torch.zeros(40, 500, dtype=torch.int64), Grid.of(1.0, 2.5)
    released = E.add_whole_noise(total, noise_multiplier=2.5, grid=grid, rng=rng)
    steps = released.sums / grid.step
    assert torch.equal(steps, steps.round())
    assert abs(float(released.sums.std()) - 2.5) < 0.08
    assert released.noise_multiplier == 2.5
