"""Splits of records over clients."""

import numpy as np
import pytest

from tacita.federated.splits import cut, even, shards, uneven


@pytest.fixture
def labels(rng):
    return rng.permutation(np.repeat(np.arange(10), 600))


def test_even_splits_use_every_record_before_any_twice(rng):
    parts = even(100, 10, 10, rng=rng)
    assert sorted(np.concatenate(parts)) == list(range(100))
    again = np.bincount(np.concatenate(even(100, 25, 10, rng=rng)), minlength=100)
    assert again.min() == 2
    assert again.max() == 3


def test_shards_hold_one_label_each(labels, rng):
    parts = shards(labels, 10, shard=300, each=2, rng=rng)
    assert [len(part) for part in parts] == [600] * 10
    assert max(len(set(labels[part])) for part in parts) <= 2
    assert sorted(np.concatenate(parts)) == list(range(6000))
    assert len(np.concatenate(shards(labels, 100, shard=300, each=2, rng=rng))) == 60_000


@pytest.mark.parametrize(("alpha", "least", "most"), [(0.01, 0.9, 1.0), (1000.0, 0.08, 0.2)])
def test_uneven_splits_follow_alpha(labels, rng, alpha, least, most):
    parts = uneven(labels, 40, alpha=alpha, each=200, rng=rng)
    largest = np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])
    assert [len(part) for part in parts] == [200] * 40
    assert least <= largest <= most


@pytest.mark.parametrize("rule", ["even", "shards"])
def test_cut_clients_keep_a_number_of_their_own_records(labels, rng, rule):
    parts = even(6000, 200, 30, rng=rng) if rule == "even" else shards(labels, 200, shard=15, each=2, rng=rng)
    some = cut(parts, 10, rng=rng)
    sizes = [len(part) for part in some]
    assert (min(sizes), max(sizes)) == (10, 30)
    assert np.mean(sizes) == pytest.approx(20, abs=5 * 6.06 / np.sqrt(200))  # evenly drawn: their sd is 6.06
    for part, kept in zip(parts, some, strict=True):
        assert len(np.unique(kept)) == len(kept)
        assert set(kept) <= set(part)
    classes = [len(set(labels[part])) for part in some]
    assert rule == "even" or np.mean(classes) == pytest.approx(np.mean([len(set(labels[p])) for p in parts]), abs=0.1)
    assert [len(part) for part in cut(parts, 30, rng=rng)] == [30] * 200


def test_a_seed_repeats_a_split(labels):
    first, second = (uneven(labels, 5, alpha=0.3, each=50, rng=np.random.default_rng(3)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_bad_splits_are_refused(labels, rng):
    with pytest.raises(ValueError, match="smaller shards"):
        shards(labels, 3, shard=601, rng=rng)
    with pytest.raises(ValueError, match="least must be"):
        cut([np.arange(9), np.arange(8)], 9, rng=rng)
    with pytest.raises(ValueError, match="alpha"):
        uneven(labels, 3, alpha=0.0, each=3, rng=rng)
    with pytest.raises(ValueError, match="shape"):
        shards([[1]], 3, rng=rng)
