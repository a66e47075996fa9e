"""Records by person: whoever has several is drawn, clipped and accounted for as one.

Neighbouring datasets differ in all records of one person. A step draws persons, each by one coin, and takes at most k
of a person's records, a fresh random subset where there are more. That amplifies nothing: what a person may contribute
at most is bounded by all of their records, whichever were drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacita._check import PrivacyError
from tacita.data.ids import numbered
from tacita.training.contributions import Several
from tacita.training.records import Records
from tacita.training.settings import Whose

if TYPE_CHECKING:
    from tacita._check import Counts

_MIXED = "(several)"  # of a person whose records are in several groups
_MARK = " persons "
_NAMES = {"training": "person", "held-out": "holdout_person"}


class Persons:
    """The records of a dataset, indexed by the person they belong to.

    Args:
        records: The records.
        whose: A number for each record's person.
    """

    def __init__(self, records: Records, whose: Counts) -> None:
        self.records = records
        self._codes = _by_place(whose)
        self._order: Counts = np.argsort(self._codes, kind="stable")
        self.counts: Counts = np.bincount(self._codes)
        self._starts: Counts = np.cumsum(self.counts) - self.counts

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def form_taken(self) -> bool:
        """Whether what a record looks like was taken from the dataset instead of being declared."""
        return self.records.form_taken

    def several(self, persons: Any, most: int, *, rng: np.random.Generator, summed: bool = False) -> Several | None:
        """Return at most so many records of each of these persons, drawn afresh where there are more.

        Args:
            persons: Places of persons.
            most: How many records of each.
            summed: Whether they stand for the sum over all of a person's records, and not for the mean.
            rng: Where the seed of what is drawn comes from, without moving its stream.
        """
        if len(persons) == 0:
            return None
        own = rng.spawn(1)[0]
        places = [self._some(int(person), most, own) for person in persons]
        records = self.records.marked(np.concatenate(places), rng=rng)
        weights = torch.from_numpy(self.counts[np.asarray(persons)].astype(np.float64)) if summed else None
        return Several(records, torch.tensor([len(rows) for rows in places]), most, weights)

    def _some(self, person: int, most: int, rng: np.random.Generator) -> Counts:
        rows = self.rows(person)
        return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))

    def rows(self, person: int) -> Counts:
        """Return the places of a person's records."""
        return self._order[self._starts[person] : self._starts[person] + self.counts[person]]

    def largest(self, persons: Any, norms: Any, *, summed: bool = False) -> Any:
        """Return the largest of each person's records' norms, which bounds the mean of any of them.

        Args:
            persons: Places of persons.
            summed: Whether the sum over all of a person's records is to be bounded.
            norms: Takes places of records and returns as many norms.
        """
        if len(persons) == 0:
            return np.empty(0)
        rows = np.concatenate([self.rows(int(person)) for person in persons])
        counts = self.counts[np.asarray(persons)]
        return np.maximum.reduceat(norms(rows), np.cumsum(counts) - counts) * (counts if summed else 1)

    def grouped(self, groups: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return one value per person for each column of one per record; "(several)" where a person's differ."""
        found = {}
        for name, values in (groups or {}).items():
            column = np.asarray(values)
            if column.shape != self._codes.shape:
                raise ValueError(f"groups[{name!r}] must hold one value per training record, got shape {column.shape}.")
            ordered = column.astype(str)[self._order]
            first = ordered[self._starts]
            differ = np.logical_or.reduceat(ordered != np.repeat(first, self.counts), self._starts)
            found[name] = np.where(differ, _MIXED, first)
        return found

    def fingerprint(self) -> str:
        """Return a mark of the records and of whose they are. For the owner."""
        return f"{self.records.fingerprint()}{_MARK}{hashlib.sha256(self._codes.tobytes()).hexdigest()}"

    def matches(self, fingerprint: str) -> bool:
        """Return whether these are the records, and the persons, of a fingerprint."""
        before, _, mark = fingerprint.partition(_MARK)
        return mark == hashlib.sha256(self._codes.tobytes()).hexdigest() and self.records.matches(before)


def parted(plain: Mapping[str, Records], whose: Whose) -> Mapping[str, Records | Persons]:
    """Return training and held-out records, by person if ids are given.

    Args:
        plain: The records by part.
        whose: Whose each is.

    Raises:
        PrivacyError: If somebody is in both, or nobody can tell.
        ValueError: If an id is missing and that is refused, or ids cannot tell people apart.
    """
    if whose.person is None:
        if whose.holdout_person is not None:
            raise ValueError("holdout_person=… needs person=…, the ids of the training records.")
        return plain
    if "held-out" in plain and whose.holdout_person is None:
        raise PrivacyError(
            "The held-out records need ids too, or people who are trained on may be among them: pass holdout_person=…. "
            "If each of them is of a person of its own, who is not trained on, declare it: "
            "holdout_person=[None] * len(holdout), missing_person='own'."
        )
    given = {"training": whose.person, "held-out": whose.holdout_person}
    ids = {part: _listed(given[part], len(records), _NAMES[part]) for part, records in plain.items()}
    codes = numbered([one for listed in ids.values() for one in listed], missing=whose.missing_person, name="person")
    trained, held = codes[: len(ids["training"])], codes[len(ids["training"]) :]
    if np.isin(held, trained).any():
        raise PrivacyError(
            "Somebody has records in both the training and the held-out data: split the data by person, all records of "
            "one to the same side."
        )
    return {part: Persons(plain[part], own) for part, own in zip(plain, (trained, held), strict=False)}


def _listed(ids: Any, size: int, name: str) -> list[Any]:
    """Return as many ids as a list, None for a date that is missing."""
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__len__"):
        raise TypeError(f"{name} must be an array or a list with one id for each record, got {type(ids).__name__}.")
    if getattr(getattr(ids, "dtype", None), "kind", "") in ("m", "M"):
        ids = [None if np.isnat(one) else str(one) for one in np.asarray(ids)]
    listed = list(ids.tolist() if hasattr(ids, "tolist") else ids)
    if len(listed) != size:
        raise ValueError(f"{name} must hold one id for each record: got {len(listed)} for {size} records.")
    return listed


def _by_place(codes: Counts) -> Counts:
    """Return numbers from 0 in the order of persons' places on average: who comes first may have most records."""
    _, codes = np.unique(codes, return_inverse=True)
    places = np.bincount(codes, weights=np.arange(len(codes))) / np.bincount(codes)
    ranks: Counts = np.argsort(np.argsort(places, kind="stable"), kind="stable")
    return ranks[codes]
