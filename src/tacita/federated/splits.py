"""Who holds which records: splits of a dataset over clients, by public rules and an explicit generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacita import _check

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tacita._check import Counts


def even(size: int, clients: int, each: int, *, rng: np.random.Generator) -> list[Counts]:
    """Return `each` records for every client, drawn without regard to their labels.

    No record is held twice while there are enough; then all are dealt out again, as often as needed.

    Args:
        size: How many records there are.
        clients: How many clients.
        each: Records of a client.
        rng: Deals them out.

    Examples:
        >>> [len(part) for part in even(10, 3, 2, rng=np.random.default_rng(0))]
        [2, 2, 2]
    """
    return np.array_split(_dealt(np.arange(_check.count("size", size)), clients * each, rng), clients)


def shards(
    labels: ArrayLike, clients: int, *, shard: int = 300, each: int = 2, rng: np.random.Generator
) -> list[Counts]:
    """Return `each` shards for every client; a shard is a number of records with one label.

    As in McMahan et al. 2017: records are sorted by label and cut, so a client sees few labels. Shards that would hold
    two labels are left out; if there are not enough, they are dealt out again.

    Args:
        labels: The label of every record.
        clients: How many clients.
        shard: Records in a shard.
        each: Shards of a client.
        rng: Deals them out.
    """
    classes = _labels(labels)
    pieces = [
        part
        for label in np.unique(classes)
        for part in _whole(rng.permutation(np.flatnonzero(classes == label)), _check.count("shard", shard))
    ]
    if not pieces:
        raise ValueError(f"No label has {shard} records; choose smaller shards.")
    order = _dealt(np.arange(len(pieces)), clients * each, rng).reshape(clients, each)
    return [np.concatenate([pieces[i] for i in row]) for row in order]


def uneven(labels: ArrayLike, clients: int, *, alpha: float, each: int, rng: np.random.Generator) -> list[Counts]:
    """Return `each` records for every client, its mix of labels drawn from a symmetric Dirichlet distribution.

    Small `alpha`: one label for each client; large: the same mix everywhere. Records are drawn with replacement between
    clients, not within one while its label has enough.

    Args:
        labels: The label of every record.
        clients: How many clients.
        alpha: The concentration of the Dirichlet distribution.
        each: Records of a client.
        rng: Draws the mixes and deals them out.
    """
    classes = _labels(labels)
    _check.in_range("alpha", alpha, 1e-6, 1e6)
    groups = [np.flatnonzero(classes == label) for label in np.unique(classes)]
    parts = []
    for _ in range(_check.count("clients", clients)):
        counts = rng.multinomial(_check.count("each", each), rng.dirichlet(np.full(len(groups), alpha)))
        parts.append(np.concatenate([_dealt(g, int(c), rng) for g, c in zip(groups, counts, strict=True) if c]))
    return parts


def cut(parts: list[Counts], least: int, *, rng: np.random.Generator) -> list[Counts]:
    """Return some of each client's records: how many is drawn evenly from `least` to all it was dealt.

    Args:
        parts: Every client's records.
        least: The fewest records of a client.
        rng: Draws them.

    Examples:
        >>> parts = cut([np.arange(40), np.arange(40)], 2, rng=np.random.default_rng(0))
        >>> [len(part) for part in parts]
        [28, 24]
    """
    _check.count("least", least, high=min(len(part) for part in parts))
    return [rng.permutation(part)[: int(rng.integers(least, len(part) + 1))] for part in parts]


def _dealt(items: Counts, number: int, rng: np.random.Generator) -> Counts:
    """Return so many items, each as often as any other or once more."""
    rounds = -(-number // len(items))
    return np.concatenate([rng.permutation(items) for _ in range(rounds)])[:number]


def _whole(items: Counts, size: int) -> list[Counts]:
    return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]


def _labels(labels: ArrayLike) -> NDArray[np.generic]:
    classes = np.asarray(labels)
    if classes.ndim != 1 or not len(classes):
        raise ValueError(f"labels must be one column of at least one record, got shape {classes.shape}.")
    return classes
