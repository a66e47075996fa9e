"""The papers' epsilons: marked as what they are, refused where they do not apply."""

import math

import numpy as np
import pytest

from tacita import BayesianAccountant, PrivacyError
from tacita.papers import printed_figure, product_figure, sequential_accountant

MECHANISM = {"sample_rate": 0.01, "noise_multiplier": 1.0}


def followed(norms, repeats, **options):
    accountant = BayesianAccountant(**MECHANISM, **options)
    accountant.step(np.asarray(norms, dtype=float), steps=repeats)
    return accountant


def test_the_product_is_marked_as_no_bound_and_lies_below_what_bounds():
    norms = np.where(np.arange(1000) < 100, 1.0, 0.1)
    fresh = followed(norms, 2000, composition="hoelder", steps=2000)
    product = product_figure(fresh, delta=1e-5)
    assert (product.is_bound, product.composition, product.scope) == (False, "independent", "reading")
    assert "NOT an upper bound" in str(product)
    assert str(product).startswith("NOT AN UPPER BOUND")
    assert product.to_dict()["attack_success"] is None
    assert product.epsilon < 0.8 * fresh.guarantee(delta=1e-5, estimator="student").epsilon


def test_the_product_is_for_fresh_records():
    with pytest.raises(ValueError, match="composition='hoelder'"):
        product_figure(followed(np.full(5, 0.3), 2), delta=1e-5)
    fresh = BayesianAccountant(**MECHANISM, composition="hoelder", steps=3)
    with pytest.raises(PrivacyError, match="No step was charged"):
        product_figure(fresh, delta=1e-5)
    fresh.step(np.full(5, 0.3))
    with pytest.raises(ValueError, match="estimator must be one of 'student'"):
        product_figure(fresh, delta=1e-5, estimator="band")


def test_clients_in_sequence_are_parts_of_one_dataset_each_with_its_own_noise():
    norms = followed(np.full(50, 0.4), 7, composition="hoelder", steps=10)
    theirs = sequential_accountant(norms, clients=4)
    assert (theirs.sample_rate, theirs.noise_multiplier) == (0.01 / 4, 1.0 / math.sqrt(4))
    assert (theirs.taken, theirs.planned) == (28, 40)
    assert not product_figure(theirs, delta=1e-5).is_bound


def test_the_printed_formula_is_looser():
    accountant = followed(np.full(50, 0.5), 200)
    printed = printed_figure(accountant, delta=1e-5)
    assert printed.is_bound
    assert printed.epsilon > accountant.guarantee(delta=1e-5, estimator="student").epsilon
    with pytest.raises(PrivacyError, match="No step was charged"):
        printed_figure(BayesianAccountant(**MECHANISM), delta=1e-5)
