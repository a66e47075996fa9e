"""Students: do they learn what is there, and only that?"""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from tacita.data import load
from tacita.synthesis.students import (
    ValidationCurves,
    accuracy,
    learning_curve,
    predict,
    student,
    train_student,
    validation_curves,
)


@pytest.fixture(scope="module")
def digits():
    found = load("digits")
    train = torch.from_numpy(found.inputs), torch.from_numpy(found.targets)
    return train, (torch.from_numpy(found.test_inputs), torch.from_numpy(found.test_targets))


def crossed(count, rng):
    """A table whose label is told by two columns together and by neither alone."""
    inputs = torch.from_numpy(rng.uniform(-1.0, 1.0, (count, 4))).float()
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def test_a_student_of_real_digits_reads_digits(digits, rng):
    assert student(*digits, 10, rng=rng) >= 0.96


def test_logistic_regression_does_as_well_as_scikit_learns(digits, rng):
    (inputs, labels), (unseen, truth) = digits
    oracle = LogisticRegression(max_iter=500).fit(inputs.flatten(1).numpy(), labels.numpy())
    expected = oracle.score(unseen.flatten(1).numpy(), truth.numpy())
    assert abs(student(*digits, 10, rng=rng, kind="logistic") - expected) < 0.03


def test_a_network_learns_from_a_table_what_a_linear_model_cannot(rng):
    train, test = crossed(1500, rng), crossed(500, rng)
    assert student(train, test, 2, rng=rng) > 0.9
    assert student(train, test, 2, rng=rng, kind="logistic") < 0.65


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 9), (2, 28, 21)])
def test_images_of_any_size_and_channels_are_taken(shape, rng):
    inputs, labels = torch.rand(4, *shape), torch.tensor([0, 1, 2, 1])
    assert predict(train_student((inputs, labels), 3, rng=rng, steps=2), inputs).shape == (4,)


def test_one_class_makes_a_student_that_knows_no_other(digits, rng):
    inputs, truth = digits[1]
    alone = student((inputs, torch.full_like(truth, 3)), digits[1], 10, rng=rng, steps=20)
    assert alone == pytest.approx(float((truth == 3).double().mean()))


def test_a_student_repeats_with_its_rng_and_moves_no_global_generator(digits):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (
        train_student(digits[0], 10, rng=np.random.default_rng(seed), steps=3).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_accuracy_is_a_share_and_leaves_the_model_as_it_was():
    class Sign(nn.Module):
        def forward(self, inputs):
            return torch.cat([-inputs, inputs], 1)

    model = nn.Sequential(Sign(), nn.Dropout(0.9).eval()).train()
    model[1].eval()
    inputs = torch.tensor([[-1.0], [2.0], [3.0], [-4.0]])
    assert accuracy(model, (inputs, torch.tensor([0, 1, 0, 0]))) == 0.75
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_a_learning_curve_rises_and_compares_as_many_real_records_where_there_are(digits, rng):
    (inputs, labels), test = digits
    curve = learning_curve(digits[0], test, 10, (10, 1000), rng=rng, real=(inputs[:50], labels[:50]), steps=60)
    assert curve.sizes == (10, 1000)
    assert curve.synthetic[0] + 0.2 < curve.synthetic[1]
    assert curve.real[0] is not None
    assert curve.real[1] is None


def test_validation_losses_agree_where_the_sets_do(digits, rng):
    train, test = digits
    curves = validation_curves(train, test, test, 10, rng=rng, learning_rates=(0.003, 0.01, 0.05), steps=30)
    assert np.allclose(curves.real, curves.synthetic, atol=1e-4)
    assert curves.pearson == pytest.approx((1.0,) * 3)
    assert (curves.selection, curves.regret) == pytest.approx((1.0, 0.0))
    assert curves.real[2][-1] < curves.real[2][0]
    assert curves.steps == tuple(range(2, 31, 2))
    assert all(len(losses) == 15 for losses in curves.real)


def test_validation_losses_part_where_the_labels_of_one_set_are_wrong(digits, rng):
    train, (inputs, labels) = digits
    wrong = inputs, (labels + 1) % 10
    curves = validation_curves(train, digits[1], wrong, 10, rng=rng, learning_rates=(0.03, 0.1), steps=45)
    assert max(curves.pearson) < 0.0
    assert max(curves.spearman) < 0.0


def test_correlations_and_regret_by_hand():
    curves = ValidationCurves(
        learning_rates=(1.0, 2.0, 3.0),
        steps=(1, 2, 3),
        real=((3.0, 2.0, 1.0), (1.0, 2.0, 3.0), (5.0, 5.0, 5.0)),
        synthetic=((9.0, 4.0, 1.0), (3.0, 2.0, 0.0), (1.0, 2.0, 4.0)),
        accuracies=(0.9, 0.6, 0.3),
    )
    assert curves.spearman == pytest.approx((1.0, -1.0, None))
    assert curves.pearson[0] == pytest.approx(8.0 / np.sqrt(2.0 * 98.0 / 3.0))  # of (3, 2, 1) and (9, 4, 1)
    assert curves.pearson[2] is None
    assert curves.selection == pytest.approx(0.5)  # ranks (1, 2, 3) and (2, 1, 3)
    assert curves.regret == pytest.approx(0.3)  # the second student is chosen, the first is best


def test_a_student_that_diverges_counts_as_the_worst(digits, rng):
    curves = validation_curves(*(digits[1],) * 3, 10, rng=rng, learning_rates=(0.01, 1000.0), steps=30)
    assert curves.real[1][-1] == 1000.0
    assert np.isfinite(curves.real).all()


def test_nothing_to_follow_gives_no_figures(digits, rng):
    curves = validation_curves(*(digits[1],) * 3, 10, rng=rng, learning_rates=())
    assert (curves.pearson, curves.spearman, curves.selection, curves.regret) == ((), (), None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:0], y[:0]), "at least 1 labelled record"),
        (lambda x, y: (x, y + 1), "labels from 0 to 9"),
        (lambda x, y: (x, y - 1), "labels from 0 to 9"),
        (lambda x, y: (x, y[:-1]), "one label"),
        (lambda x, y: (x, y.int()), "one label"),
        (lambda x, y: (x[:, 0], y), "must be images"),
        (lambda x, y: (x.long(), y), "of floats"),
        (lambda x, y: (x[..., :0], y), "must be images"),
        (lambda x, y: (x / 0.0, y), "finite"),
    ],
)
def test_bad_records_are_refused_in_one_line(change, message, digits, rng):
    with pytest.raises(ValueError, match=message) as caught:
        train_student(change(*digits[1]), 10, rng=rng, steps=1)
    assert "\n" not in str(caught.value)


def test_other_bad_input_is_refused(digits, rng):
    train, test = digits
    with pytest.raises(ValueError, match="encoded alike"):
        student((train[0][..., 1:], train[1]), test, 10, rng=rng)
    with pytest.raises(TypeError, match="pair of tensors"):
        train_student(train[0], 10, rng=rng)
    with pytest.raises(ValueError, match="classes"):
        train_student(train, 1, rng=rng)
    with pytest.raises(ValueError, match="kind"):
        train_student(train, 10, rng=rng, kind="forest")
    with pytest.raises(ValueError, match="no more synthetic records"):
        learning_curve(test, test, 10, (1000,), rng=rng, real=test)
    with pytest.raises(ValueError, match="learning_rates"):
        validation_curves(train, test, test, 10, rng=rng, learning_rates=(-1.0,))
