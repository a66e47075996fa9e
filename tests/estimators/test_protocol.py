"""Every estimator of the table keeps the protocol; a new one needs a function and an entry, and nothing else."""

import numpy as np
import pytest

from tacita import BayesianAccountant
from tacita.estimators import ESTIMATORS, Estimator


def largest_seen(values, *, weights, gamma, worst):
    return np.minimum(values.max(axis=-1), worst)


TOYS = {f"toy {of}": Estimator(largest_seen, averages=of, model="distribution-free") for of in ("deltas", "moments")}


@pytest.fixture(params=[*ESTIMATORS, *TOYS])
def entry(request, monkeypatch):
    for name, toy in TOYS.items():
        monkeypatch.setitem(ESTIMATORS, name, toy)
    return request.param, ESTIMATORS[request.param]


def test_the_bound_has_the_rows_shape_and_lies_between_the_mean_and_the_worst_case(entry):
    _, estimator = entry
    values = np.array([[0.1, 0.5], [0.0, 0.2]])  # two costs, so that `binary` takes them
    worst = np.array([0.9, 1.0])
    weights = np.array([30, 10])
    found = estimator.bound(values, weights=weights, gamma=1e-3, worst=worst)
    averaged = values if estimator.averages == "deltas" else np.exp(values)
    mean = averaged @ weights / weights.sum()
    mean = mean if estimator.averages == "deltas" else np.log(mean)
    assert found.shape == (2,)
    assert (mean <= found).all()
    assert (found <= worst * (1 + 1e-12)).all()


def test_weights_count_equal_records_and_their_order_does_not_matter(entry):
    _, estimator = entry
    options = {"gamma": 1e-3, "worst": np.array([1.0])}
    short = estimator.bound(np.array([[0.1, 0.5]]), weights=np.array([30, 10]), **options)
    long = estimator.bound(np.array([[0.5] * 10 + [0.1] * 30]), weights=np.ones(40, dtype=np.int64), **options)
    assert short == pytest.approx(long, rel=1e-12)


def test_a_smaller_gamma_never_lowers_the_bound(entry):
    _, estimator = entry
    values, weights, worst = np.array([[0.1, 0.5]]), np.array([30, 10]), np.array([1.0])
    loose, strict = (estimator.bound(values, weights=weights, gamma=g, worst=worst) for g in (1e-2, 1e-6))
    assert strict >= loose


def test_the_accountant_gives_a_figure_by_every_entry(entry):
    name, estimator = entry
    accountant = BayesianAccountant(sample_rate=0.01, noise_multiplier=1.0)
    accountant.step(np.where(np.arange(100) < 3, 1.0, 0.1), steps=50)
    weak = accountant.guarantee(delta=1e-5, estimator=name, notion="weak")
    assert (weak.estimator, weak.model, weak.is_bound) == (name, estimator.model, True)
    assert 0.0 < weak.epsilon <= accountant.worst_case(delta=1e-5).epsilon
    assert sum(value for _, value in weak.delta_split) == pytest.approx(1e-5)
