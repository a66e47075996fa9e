"""Masked sums and maxima: exact, rounded up, unreadable one by one, and aborted when a message is missing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacita._check import PrivacyError
from tacita.federated.masking import FEWEST, LARGEST_COST, UNIT, largest, masker, neighbours, summed


def exchange(costs, purpose="run 1, round 1", levels=None):
    clients = {f"client {i}": masker(f"client {i}", purpose) for i in range(len(costs))}
    keys = {name: client.public for name, client in clients.items()}
    if levels is None:
        return {n: c.sum_message(v, keys) for (n, c), v in zip(clients.items(), costs, strict=True)}, keys
    return {n: c.maximum_message(v, levels, keys) for (n, c), v in zip(clients.items(), costs, strict=True)}, keys


@pytest.mark.parametrize("clients", [3, 10, 40])
def test_sums_are_exact_but_for_rounding_up(clients, rng):
    costs = rng.lognormal(-6, 3, size=(clients, 13))
    costs[0, 0], costs[1, 1] = 0.0, LARGEST_COST
    found = summed(*exchange(costs))
    exact = [sum(Fraction(float(c)) for c in column) for column in costs.T]
    for total, true in zip(found, exact, strict=True):
        assert true <= Fraction(float(total)) <= true * (1 + Fraction(1, 2**50)) + Fraction(clients + 1, UNIT)


def test_a_message_looks_like_noise():
    """The words of one client, whose costs are all 0, are even in every byte; unmasked they would all be 0."""
    messages, _ = exchange(np.zeros((5, 4000)))
    seen = np.bincount(messages["client 2"].view(np.uint8), minlength=256)
    assert stats.chisquare(seen).pvalue > 1e-6


def test_two_exchanges_of_the_same_numbers_share_nothing():
    costs = np.ones((3, 50))
    (first, _), (second, _) = exchange(costs), exchange(costs)
    assert not (first["client 0"] == second["client 0"]).any()
    differences = first["client 0"] - second["client 0"]
    assert len(set(differences.tolist())) == 50


def test_the_purpose_is_part_of_the_mask():
    clients = {n: masker(n, "round 1") for n in "abc"}
    keys = {n: c.public for n, c in clients.items()}
    other = {n: type(c)(n, c.key, "round 2") for n, c in clients.items()}
    mixed = {n: (other if n == "a" else clients)[n].sum_message([1.0] * 20, keys) for n in "abc"}
    with pytest.raises(PrivacyError, match="larger than any sum"):
        summed(mixed, keys)


@pytest.mark.parametrize("seed", range(5))
def test_maxima_are_the_next_level_up(seed):
    rng = np.random.default_rng(seed)
    levels = np.geomspace(1e-4, 10.0, 30)
    costs = rng.lognormal(-3, 2, size=(6, 8))
    costs[0, 0], costs[:, 1] = 50.0, 0.0
    found = largest(*exchange(costs, levels=levels), levels)
    for column, got in zip(costs.T, found, strict=True):
        expected = next((level for level in levels if level >= column.max()), math.inf)
        assert got == expected
    assert found[0] == math.inf
    assert found[1] == levels[0]


def test_a_maximum_does_not_say_how_many_are_above():
    levels = [1.0]
    sums = []
    for above in (1, 5):
        costs = np.array([[2.0]] * above + [[0.5]] * (6 - above))
        messages, _ = exchange(costs, levels=levels)
        sums.append(int(np.sum(list(messages.values()), axis=0, dtype=np.uint64)[0]))
    assert min(sums) > 1000  # random words, not the counts 1 and 5


def test_a_client_that_drops_out_aborts_the_exchange():
    messages, keys = exchange(np.ones((4, 3)))
    del messages["client 1"]
    with pytest.raises(PrivacyError, match=r"1 of 4 clients did not answer.*new keys"):
        summed(messages, keys)
    present = {n: k for n, k in keys.items() if n in messages}
    with pytest.raises(PrivacyError, match="larger than any sum"):
        summed(messages, present)  # what is left is masked still


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update({"client 0": m["client 0"][:-1]}),
        lambda m: m.update({"client 0": m["client 0"].astype(np.float64)}),
        lambda m: m.update({"stranger": m["client 0"]}),
        lambda m: m.update({"client 0": m["client 0"].reshape(1, -1)}),
        lambda m: m.update({"client 0": m["client 0"] + np.uint64(2**62)}),
    ],
)
def test_broken_messages_are_refused(change):
    messages, keys = exchange(np.ones((4, 3)))
    change(messages)
    with pytest.raises(PrivacyError, match="epeat"):
        summed(messages, keys)


def test_too_few_clients_and_foreign_keys_are_refused():
    with pytest.raises(PrivacyError, match=f"needs {FEWEST}"):
        exchange(np.ones((2, 3)))
    client, others = masker("a", "x"), [masker(n, "x") for n in "bc"]
    keys = {"a": others[0].public, **{o.name: o.public for o in others}}
    with pytest.raises(PrivacyError, match="own"):
        client.sum_message([1.0], keys)
    same = {"a": client.public, "b": others[0].public, "c": others[0].public}
    with pytest.raises(PrivacyError, match="different clients"):
        client.sum_message([1.0], same)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, 2 * LARGEST_COST])
def test_what_is_no_cost_is_not_sent(bad):
    with pytest.raises(ValueError, match="cost"):
        exchange([[1.0], [1.0], [bad]])


def test_sixty_clients_on_the_ring_add_up_and_every_message_is_masked():
    costs = np.tile(np.arange(1.0, 6.0), (60, 1))
    messages, keys = exchange(costs)
    np.testing.assert_allclose(summed(messages, keys), 60 * np.arange(1.0, 6.0), rtol=1e-12)
    assert all(len(neighbours(name, keys)) == 20 for name in keys)
    words = np.stack(list(messages.values())).astype(np.float64)
    assert (words > 2.0**50).mean() > 0.99  # a cost of 5 is 5 * 2**32


def test_a_mask_is_used_once():
    clients = {n: masker(n, "x") for n in "abc"}
    keys = {n: c.public for n, c in clients.items()}
    clients["a"].sum_message([1.0], keys)
    with pytest.raises(PrivacyError, match="made already"):
        clients["a"].maximum_message([1.0], [2.0], keys)


def test_levels_must_rise():
    messages, keys = exchange(np.ones((3, 1)), levels=[1.0, 2.0])
    with pytest.raises(ValueError, match="rise"):
        largest(messages, keys, [2.0, 1.0])
