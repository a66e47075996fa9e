"""Leak tests of a synthetic set: a memoriser is caught, fresh draws are not, and the null is the exact one."""

import itertools
import math

import numpy as np
import pytest
import torch

from tacita.data import load
from tacita.synthesis.leakage import generator_membership, holdout_test


def tensor(rows):
    return torch.tensor(np.asarray(rows, dtype=np.float64))


@pytest.fixture(scope="module")
def digits():
    """Four parts of the digits: trained on, held out, reference, and fresh draws for an ideal generator."""
    order = np.random.default_rng(0).permutation(1437)
    inputs = torch.from_numpy(load("digits").inputs)
    return [inputs[part] for part in np.split(order[:1436], 4)]


def blurred(records, strength, rng):
    """A generator that puts out its training records with noise, more of it where they lie further apart."""
    flat = records.flatten(1)
    apart = torch.cdist(flat, flat).fill_diagonal_(math.inf).min(dim=1).values
    chosen = torch.from_numpy(rng.integers(len(flat), size=2 * len(flat)))
    noise = torch.from_numpy(rng.normal(size=(len(chosen), flat.shape[1])) / math.sqrt(flat.shape[1]))
    return (flat[chosen] + strength * apart[chosen, None] * noise).float().reshape(-1, *records.shape[1:])


def test_a_memoriser_is_caught(digits, rng):
    training, held_out, _, _ = digits
    found = holdout_test(training, held_out, training, rng=np.random.default_rng(0))
    assert found.share == 1.0
    assert found.p_value == 1e-4
    assert "leans towards the records it was trained on" in str(found)
    near = holdout_test(training, held_out, blurred(training, 1.0, rng), rng=np.random.default_rng(0))
    assert near.p_value < 0.01
    assert near.share > near.null_interval[1]
    assert (near.records, near.points) == (359, 718)


def test_fresh_draws_and_a_memoriser_of_others_are_not(digits):
    training, held_out, reference, fresh = digits
    for synthetic in (reference, fresh):
        found = holdout_test(training, held_out, synthetic, rng=np.random.default_rng(0))
        assert found.p_value > 0.01
        assert 0.3 < found.null_interval[0] <= 0.5 <= found.null_interval[1] < 0.7
        assert "does not prove that there is none" in str(found)
    assert holdout_test(training, held_out, held_out, rng=np.random.default_rng(0)).p_value == 1.0


@pytest.mark.stat
@pytest.mark.parametrize("tries", [150, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ties", [False, True])
def test_false_alarms_are_as_rare_as_the_p_value_says(ties, tries, rng):
    """At most 5% plus three standard errors; with many ties too, where a fixed order would favour one kind."""
    found = []
    for _ in range(tries):
        draws = rng.integers(0, 4, size=(140, 2)) if ties else rng.normal(size=(140, 2))
        found.append(holdout_test(tensor(draws[:30]), tensor(draws[30:60]), tensor(draws[60:]), rng=rng).p_value)
    for level in (0.05, 0.2, 0.5):
        alarms, error = np.mean(np.array(found) <= level), math.sqrt(level * (1 - level) / tries)
        assert level - 4 * error - 0.06 < alarms < level + 3 * error  # sums are whole numbers: p is a little too large


def test_the_null_is_that_of_all_halves(rng):
    """Ten and ten records: all 184,756 halves, with every synthetic point's nearest record found by brute force."""
    records, synthetic = rng.normal(size=(20, 2)), rng.normal(size=(60, 2))
    nearest = ((synthetic[:, None] - records) ** 2).sum(-1).argmin(1)
    counts = np.bincount(nearest, minlength=20)
    sums = np.array([counts[list(half)].sum() for half in itertools.combinations(range(20), 10)])
    found = holdout_test(tensor(records[:10]), tensor(records[10:]), tensor(synthetic), rng=np.random.default_rng(0))
    assert found.share == counts[:10].sum() / 60
    exact = (sums >= counts[:10].sum()).mean()
    assert found.p_value == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 1e4))
    assert found.null_interval == pytest.approx(tuple(np.quantile(sums, [0.025, 0.975]) / 60), abs=1.5 / 60)
    assert sums.mean() == pytest.approx(30)


def test_the_larger_set_is_thinned_and_features_are_used(digits):
    training, held_out, _, fresh = digits

    def bright(part):
        return part.flatten(1).sum(1, keepdim=True)

    found = holdout_test(training, held_out[:100], fresh, features=bright, rng=np.random.default_rng(0))
    assert found.records == 100
    assert found == holdout_test(training, held_out[:100], fresh, features=bright, rng=np.random.default_rng(0))
    assert found != holdout_test(training, held_out[:100], fresh, rng=np.random.default_rng(0))


def test_an_attack_on_a_memoriser_succeeds(digits, rng):
    training, held_out, reference, _ = digits
    for others in (None, reference):
        found = generator_membership(
            training, training, held_out, reference=others, epsilon=0.5, rng=np.random.default_rng(0)
        )
        assert found.auc > 0.999
        assert found.exceeds_claim
        assert found.state == "warning"
        assert found.records == 359
    blur = generator_membership(blurred(training, 1.0, rng), training, held_out, rng=np.random.default_rng(0))
    assert blur.distinguishable
    assert blur.auc > 0.6


def test_a_reference_makes_the_attack_stronger(digits, rng):
    training, held_out, reference, _ = digits
    gained = []
    for _ in range(4):
        synthetic = blurred(training, 1.0, rng)
        alone = generator_membership(synthetic, training, held_out, rng=np.random.default_rng(0))
        gained.append(
            generator_membership(synthetic, training, held_out, reference=reference, rng=np.random.default_rng(0)).auc
            - alone.auc
        )
    assert min(gained) > 0.0


def test_a_reference_does_not_spoil_the_attack_on_a_generator_that_blurs_evenly(digits, rng):
    """There the plain ratio of densities, without the fitted exponent, loses 0.15 of the AUC."""
    training, held_out, reference, _ = digits
    synthetic = training.repeat(2, 1, 1, 1) + torch.from_numpy(0.2 * rng.normal(size=(718, 1, 8, 8))).float()
    alone = generator_membership(synthetic, training, held_out, rng=np.random.default_rng(0))
    assert (
        generator_membership(synthetic, training, held_out, reference=reference, rng=np.random.default_rng(0)).auc
        > alone.auc - 0.02
    )


@pytest.mark.stat
@pytest.mark.parametrize("with_reference", [False, True])
def test_an_attack_on_fresh_draws_fails(with_reference, rng):
    """A 95% interval excludes one half in at most 5% of draws, plus three standard errors."""
    tries = 60
    found = []
    for _ in range(tries):
        synthetic, members, others, reference = torch.split(tensor(rng.normal(size=(200, 4))), 50)
        found.append(
            generator_membership(
                synthetic, members, others, reference=reference if with_reference else None, epsilon=0.1, rng=rng
            )
        )
    assert np.mean([attack.distinguishable for attack in found]) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries)
    assert np.mean([attack.auc for attack in found]) == pytest.approx(0.5, abs=0.03)
    assert {attack.state for attack in found} == {"not-refuted"}


def test_a_reference_that_holds_the_attacked_records_is_refused(digits):
    training, held_out, _, fresh = digits
    with pytest.raises(ValueError, match="reference holds the held-out records"):
        generator_membership(fresh, training, held_out, reference=held_out)
    with pytest.raises(ValueError, match="reference holds the training records"):
        generator_membership(fresh, training, held_out, reference=training)


def test_points_that_all_coincide_say_nothing():
    same = torch.zeros(20, 3)
    found = generator_membership(same, same, same, reference=same, rng=np.random.default_rng(0))
    assert found.auc == 0.5
    assert holdout_test(same, same, same, rng=np.random.default_rng(0)).p_value > 0.01


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"training": torch.zeros(9, 2)}, ValueError, "training must hold at least 10 records"),
        ({"held_out": torch.zeros(9, 2)}, ValueError, "held_out must hold at least 10 records"),
        ({"held_out": torch.zeros(10, 3)}, ValueError, "held_out must have as many features as the rest, 2, got 3"),
        ({"synthetic": [1.0, 2.0]}, TypeError, "synthetic must be a tensor of records, got list"),
    ],
)
def test_bad_input_gets_one_line(changes, error, message):
    arguments = {"training": torch.rand(10, 2), "held_out": torch.rand(10, 2), "synthetic": torch.rand(10, 2)} | changes
    for test in (holdout_test, generator_membership):
        with pytest.raises(error, match=message) as caught:
            test(**arguments)
        assert "\n" not in str(caught.value)
