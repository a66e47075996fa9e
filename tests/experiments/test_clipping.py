"""Clip rules compared: the table in the guide is that of the committed results, and all rules are equally private."""

import importlib

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from experiments import rows

run = importlib.import_module("experiments.clipping.run")
GUIDE = run.measured.HERE.parent / "docs" / "how-to" / "train.md"


def test_the_table_in_the_guide_is_made_of_the_committed_results():
    assert run.accuracies(rows.load("clipping")) in GUIDE.read_text(), "run python -m experiments.clipping.run --table"


@pytest.mark.parametrize("sigma", [0.8, 3.0])
def test_the_quantiles_count_is_paid_for_by_the_gradients_noise(sigma):
    """By dp-accounting: a release at the gradient's noise beside one of the count, which moves by a half."""
    rule, wanted, found = run.Quantile(sigma, batch_size=16), PLDAccountant(), PLDAccountant()
    wanted.compose(dp_event.GaussianDpEvent(sigma))
    for noise in (rule.noise, 2 * rule.count_noise):
        found.compose(dp_event.GaussianDpEvent(noise))
    assert found.get_epsilon(1e-5) == pytest.approx(wanted.get_epsilon(1e-5), rel=1e-3)
    assert rule.noise > sigma
