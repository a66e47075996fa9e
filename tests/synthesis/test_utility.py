"""What a set is worth: controls that teach nothing by chance and much by an annotator, distances by closed forms."""

import json
from dataclasses import asdict, fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from tacita.data import load
from tacita.synthesis.students import LearningCurve, predict, student, train_student
from tacita.synthesis.utility import NOTES, Utility, controls, frechet, measure_utility

QUICK = {"steps": 25, "sizes": (), "learning_rates": ()}


@pytest.fixture(scope="module")
def digits():
    found = load("digits")
    order = torch.randperm(len(found.targets), generator=torch.Generator().manual_seed(0))
    inputs, labels = torch.from_numpy(found.inputs)[order], torch.from_numpy(found.targets)[order]
    test = torch.from_numpy(found.test_inputs), torch.from_numpy(found.test_targets)
    return (inputs[:700], labels[:700]), (inputs[700:], labels[700:]), test


@pytest.fixture(scope="module")
def annotator(digits):
    return partial(predict, train_student(digits[0], 10, rng=np.random.default_rng(1)))


# Controls.


def test_controls_with_labels_by_chance_teach_nothing(digits, rng):
    for name, data in controls((1, 8, 8), 10, 500, rng=rng):
        assert student(data, digits[2], 10, rng=rng, steps=25) < 0.3, name


def test_smooth_noise_that_an_annotator_labels_teaches_digits(digits, annotator, rng):
    assert annotator(digits[2][0]).eq(digits[2][1]).double().mean() > 0.95
    found = dict(controls((1, 8, 8), 10, 4000, rng=rng, annotator=annotator))
    assert student(found["smooth noise"], digits[2], 10, rng=rng) > 0.6  # measured: 0.67 to 0.82
    assert student(found["uniform noise"], digits[2], 10, rng=rng) > 0.25  # measured: 0.30 to 0.83


def test_uniform_noise_that_an_annotator_labels_teaches_a_table(rng):
    weights = torch.tensor([1.0, -2.0, 0.5, 1.5])

    def knows(inputs):
        return (inputs @ weights > 0).long()

    inputs = torch.from_numpy(rng.uniform(-1.0, 1.0, (500, 4))).float()
    test = inputs, knows(inputs)
    for name, data in controls((4,), 2, 1000, rng=rng, annotator=knows):
        assert student(data, test, 2, rng=rng) > 0.9, name


@pytest.mark.parametrize(("shape", "low"), [((3, 6, 10), 0.0), ((5,), -1.0)])
def test_controls_are_records_in_their_range(shape, low, rng):
    found = dict(controls(shape, 4, 300, rng=rng, generator=lambda n: (torch.zeros(n, *shape), torch.ones(n).long())))
    names = {"uniform noise", "Gaussian noise", "an untrained generator"}
    assert set(found) == (names | {"smooth noise"} if len(shape) == 3 else names)
    for inputs, labels in found.values():
        assert inputs.shape == (300, *shape)
        assert inputs.dtype == torch.float32
        assert low <= float(inputs.min()) <= float(inputs.max()) <= 1.0
        assert labels.shape == (300,)
    uniform, gaussian = found["uniform noise"][0], found["Gaussian noise"][0]
    assert float(uniform.mean()) == pytest.approx((1.0 + low) / 2.0, abs=0.05)
    assert float(uniform.std()) == pytest.approx((1.0 - low) / np.sqrt(12.0), abs=0.02)
    assert float(gaussian.mean()) == pytest.approx((1.0 + low) / 2.0, abs=0.05)
    assert set(found["uniform noise"][1].tolist()) == {0, 1, 2, 3}


def test_smooth_noise_is_smoother_than_noise_and_of_many_contrasts(rng):
    found = dict(controls((1, 28, 28), 10, 300, rng=rng))
    steps = {name: float(found[name][0].diff(dim=3).abs().mean()) for name in ("smooth noise", "uniform noise")}
    assert steps["smooth noise"] < 0.5 * steps["uniform noise"]
    spreads = found["smooth noise"][0].flatten(1).std(1)
    assert spreads.min() < 0.1 < 0.35 < spreads.max()


def test_controls_repeat_with_their_rng():
    first, second = (dict(controls((1, 8, 8), 3, 20, rng=np.random.default_rng(4))) for _ in range(2))
    for name in first:
        assert torch.equal(first[name][0], second[name][0])
        assert torch.equal(first[name][1], second[name][1])


def test_an_annotator_that_gives_no_classes_is_refused(rng):
    with pytest.raises(ValueError, match="uniform noise must have labels from 0 to 2"):
        next(controls((4,), 3, 10, rng=rng, annotator=lambda x: torch.full((len(x),), 3)))


# The Fréchet distance.


def with_moments(mean, covariance, count, rng):
    """Records whose empirical mean and covariance are exactly these."""
    raw = rng.standard_normal((count, len(mean)))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(np.cov(raw.T)).T)
    return torch.from_numpy(white @ np.linalg.cholesky(covariance).T + mean)


def test_frechet_of_independent_features_is_the_closed_form(rng):
    first = with_moments(np.array([1.0, 2.0, 3.0]), np.diag([1.0, 4.0, 0.25]), 50, rng)
    second = with_moments(np.array([0.0, 2.0, 5.0]), np.diag([9.0, 1.0, 0.25]), 80, rng)
    assert frechet(first, second) == pytest.approx((1 + 4) + (2**2 + 1**2 + 0), rel=1e-12)


def test_frechet_of_any_covariances_is_the_matrix_formula(rng):
    roots = rng.standard_normal((2, 6, 6))
    left, right = roots[0] @ roots[0].T, roots[1] @ roots[1].T
    first, second = (with_moments(np.zeros(6), cov, 40, rng) for cov in (left, right))
    expected = np.trace(left + right - 2.0 * np.real(sqrtm(left @ right)))
    assert frechet(first, second) == pytest.approx(expected, rel=1e-8)
    assert frechet(second, first) == pytest.approx(expected, rel=1e-8)


def test_frechet_with_two_records_is_exact_in_many_dimensions(rng):
    # Covariances u u' and v v' have tr (S^½ T S^½)^½ = |u · v|.
    u, v, shift = rng.standard_normal((3, 500)) / np.sqrt(2.0)
    first, second = torch.from_numpy(np.stack([u, -u])), torch.from_numpy(np.stack([v, -v]) + shift)
    expected = shift @ shift + 2.0 * (u @ u + v @ v) - 4.0 * abs(u @ v)
    assert frechet(first, second) == pytest.approx(expected, rel=1e-12)


def test_frechet_is_zero_for_the_same_set_and_shows_the_bias_of_few_records(digits):
    inputs = digits[1][0]
    assert frechet(inputs, inputs) == pytest.approx(0.0, abs=1e-10)
    few = frechet(inputs[:40], inputs[40:80])
    assert 0.0 < frechet(inputs[:350], inputs[350:700]) < few


def test_frechet_is_taken_in_the_features(digits):
    inputs = digits[1][0]
    assert frechet(inputs, 1.0 - inputs, features=lambda x: x.flatten(1) - 0.5) > 1.0
    assert frechet(inputs, 1.0 - inputs, features=lambda x: (x - 0.5).abs().flatten(1)) == pytest.approx(0.0, abs=1e-9)


def test_sets_that_have_no_distance_are_refused(digits):
    inputs = digits[1][0]
    with pytest.raises(ValueError, match="at least 2"):
        frechet(inputs, inputs[:1])
    with pytest.raises(ValueError, match="as many features"):
        frechet(inputs, inputs[..., 1:])


# All together.


def test_a_good_set_is_worth_more_than_its_controls_and_a_bad_one_is_not(digits):
    good, train, test = digits
    told = []
    utility = measure_utility(good, train, test, 10, rng=0, **QUICK | {"steps": 70}, report=told.append)
    assert utility.student > 0.9
    assert utility.margin > 0.6
    assert abs(utility.student - utility.baseline) < 0.06
    assert utility.chance == float(torch.bincount(test[1]).max()) / 360
    assert utility.frechet < 1.5 * utility.frechet_real
    assert min(utility.logistic) > 0.8
    assert told[0] == "A student of synthetic data"
    bad = dict(controls((1, 8, 8), 10, 700, rng=np.random.default_rng(1)))["smooth noise"]
    poor = measure_utility(bad, train, test, 10, rng=0, **QUICK | {"sizes": (50,)})
    assert poor.margin < 0.1
    assert poor.logistic[0] < 0.4 < 0.6 < poor.logistic[1]
    assert poor.learning.synthetic[1] < 0.4 < 0.6 < poor.learning.real[1]
    assert poor.frechet > 10.0 * poor.frechet_real


def test_with_an_annotator_the_controls_are_labelled_too(digits, annotator):
    inputs = torch.rand(700, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    set_of_noise = inputs, annotator(inputs)
    untrained = lambda count: (torch.rand(count, 1, 8, 8), torch.zeros(count, dtype=torch.int64))  # noqa: E731
    utility = measure_utility(
        set_of_noise, *digits[1:], 10, annotator=annotator, generator_control=untrained, rng=0, **QUICK
    )
    assert utility.annotated
    assert set(utility.controls) == {"uniform noise", "Gaussian noise", "smooth noise", "an untrained generator"}
    assert utility.best_control == ("smooth noise", utility.controls["smooth noise"])
    assert utility.margin < 0.0  # annotated smooth noise teaches more than this "generator" of noise


def test_every_part_is_there_and_repeats_with_its_rng(digits):
    asked = {"sizes": (50, 10_000), "learning_rates": (0.01, 0.1), "features": lambda images: images[:, 0, 0]}
    utility = measure_utility(*digits, 10, rng=3, steps=5, **asked)
    assert utility.learning.sizes == (50, 700)
    assert utility.validation.learning_rates == (0.01, 0.1)
    assert (utility.synthetic_records, utility.test_records, utility.frechet_records) == (700, 360, 360)
    json.dumps(asdict(utility), allow_nan=False)
    assert utility == measure_utility(*digits, 10, rng=3, steps=5, **asked)


def test_a_table_is_measured_too(rng):
    inputs = torch.from_numpy(rng.uniform(-1.0, 1.0, (600, 3))).float()
    labels = (inputs[:, 0] > 0.2).long()
    parts = [(inputs[i::3], labels[i::3]) for i in range(3)]
    utility = measure_utility(*parts, 2, rng=0, **QUICK | {"steps": 150})
    assert utility.student > 0.9
    assert set(utility.controls) == {"uniform noise", "Gaussian noise"}


def test_a_set_of_one_class_is_measured_and_worth_chance(digits):
    inputs, labels = digits[0]
    only = inputs[labels == 3], labels[labels == 3]
    utility = measure_utility(only, *digits[1:], 10, rng=0, **QUICK | {"learning_rates": (0.05,)})
    assert utility.validation.synthetic[0][-1] < 0.5 < 2.0 < utility.validation.real[0][-1]
    assert utility.student == pytest.approx(float((digits[2][1] == 3).double().mean()))
    assert utility.margin <= 0.0
    assert utility.learning == LearningCurve(sizes=(), synthetic=(), real=())


def test_every_figure_has_a_note_on_what_it_does_not_show():
    counted = {"frechet_records", "annotated", "synthetic_records", "test_records"}
    assert set(NOTES) == {field.name for field in fields(Utility)} - counted
    assert all(note.endswith(".") and len(note) > 40 for note in NOTES.values())


def test_margin_is_over_chance_too(digits):
    utility = measure_utility(digits[0], *digits[1:], 10, rng=0, steps=1, sizes=(), learning_rates=())
    likely = replace(utility, student=0.85, controls={"a": 0.2, "b": 0.05}, chance=0.75)
    assert likely.best_control == ("a", 0.2)
    assert likely.margin == pytest.approx(0.1)
    assert replace(likely, chance=0.05).margin == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s, t, u: ((s[0][:0], s[1][:0]), t, u), "synthetic must have at least 2"),
        (lambda s, t, u: (s, (t[0], t[1] * 0), u), "real_train has records of one class only"),
        (lambda s, t, u: (s, t, (u[0], u[1] * 0)), "real_test has records of one class only"),
        (lambda s, t, u: ((s[0], s[1] + 5), t, u), "synthetic must have labels from 0 to 9"),
        (lambda s, t, u: (s, (t[0][..., 1:], t[1]), u), "real_train has records of shape"),
        (lambda s, t, u: (s, t, (u[0].flatten(1), u[1])), "real_test has records of shape"),
    ],
)
def test_sets_that_do_not_fit_are_refused_in_one_line(spoil, message, digits):
    with pytest.raises(ValueError, match=message) as caught:
        measure_utility(*spoil(*digits), 10, rng=0)
    assert "\n" not in str(caught.value)
