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
from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError
from tacita.training.contributions import Several
from tacita.training.records import Records

if TYPE_CHECKING:
    from tacita._check import Counts

MISSING = ("refuse", "own")
_MIXED = "(several)"  # of a person whose records are in several groups
_MARK = " persons "
_NOT_THERE = ("NAType", "NaTType")  # of pandas, which may not be installed


class Persons:
    """The records of a dataset, indexed by the person they belong to.

    Args:
        records: The records.
        ids: One id for each record, of any hashable kind; equal ids are one person.
        missing: What a missing id (None, NaN, an empty text) means: "refuse", or "own", that the record's person has no
            other record and is nobody else here, which is the owner's word.
        name: Of the ids, for messages.

    Raises:
        PrivacyError: If an id is missing and that was not declared.
    """

    def __init__(self, records: Records, ids: Any, *, missing: str = "refuse", name: str = "person") -> None:
        _check.one_of("missing_person", missing, MISSING)
        self.records = records
        listed = _listed(ids, name)
        if len(listed) != len(records):
            raise ValueError(f"{name} must hold one id for each record: got {len(listed)} for {len(records)} records.")
        if missing == "refuse" and any(one is None for one in listed):
            raise PrivacyError(
                "An id is missing (None, NaN or empty). Whose record is it? Leave such records out, or declare by "
                "missing_person='own' that each belongs to a person of its own."
            )
        self._known = {one for one in listed if one is not None}
        codes: dict[tuple[Any, ...], int] = {}
        keys = ((None, row) if one is None else (one,) for row, one in enumerate(listed))
        self._codes = _by_place(np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64))
        self._order: Counts = np.argsort(self._codes, kind="stable")
        self.counts: Counts = np.bincount(self._codes)
        self._starts: Counts = np.cumsum(self.counts) - self.counts

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def form_taken(self) -> bool:
        """Whether what a record looks like was taken from the dataset instead of being declared."""
        return self.records.form_taken

    def require_others(self, held: Persons) -> None:
        """Refuse held-out records of somebody who is trained on: they would be no test, and removed together.

        Args:
            held: The held-out records.
        """
        own, others = ({type(one) for one in side._known} for side in (self, held))
        if own and others and not own & others:
            raise PrivacyError(
                "The ids of training and held-out records are of different types, so the same person would not be "
                "known again: use one type for both."
            )
        if self._known & held._known:
            raise PrivacyError(
                "Somebody has records in both the training and the held-out data: split the data by person, all "
                "records of one to the same side."
            )

    def several(self, persons: Any, most: int, *, rng: np.random.Generator) -> Several | None:
        """Return at most so many records of each of these persons, drawn afresh where there are more.

        Args:
            persons: Places of persons.
            most: How many records of each.
            rng: Where the seed of what is drawn comes from, without moving its stream.
        """
        if len(persons) == 0:
            return None
        own = rng.spawn(1)[0]
        places = [self._some(int(person), most, own) for person in persons]
        records = self.records.marked(np.concatenate(places), rng=rng)
        return Several(records, torch.tensor([len(rows) for rows in places]), most)

    def _some(self, person: int, most: int, rng: np.random.Generator) -> Counts:
        rows = self.rows(person)
        return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))

    def rows(self, person: int) -> Counts:
        """Return the places of a person's records."""
        return self._order[self._starts[person] : self._starts[person] + self.counts[person]]

    def largest(self, persons: Any, norms: Any) -> Any:
        """Return the largest of each person's records' norms, which bounds the mean of any of them.

        Args:
            persons: Places of persons.
            norms: Takes places of records and returns as many norms.
        """
        if len(persons) == 0:
            return np.empty(0)
        rows = np.concatenate([self.rows(int(person)) for person in persons])
        counts = self.counts[np.asarray(persons)]
        return np.maximum.reduceat(norms(rows), np.cumsum(counts) - counts)

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


def _listed(ids: Any, name: str) -> list[Any]:
    """Return ids as a list, None for each that is missing."""
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__len__"):
        raise TypeError(f"{name} must be an array or a list with one id for each record, got {type(ids).__name__}.")
    if getattr(getattr(ids, "dtype", None), "kind", "") in ("m", "M"):
        ids = [None if np.isnat(one) else str(one) for one in np.asarray(ids)]
    listed = [
        one.item() if isinstance(one, Tensor) else one for one in (ids.tolist() if hasattr(ids, "tolist") else ids)
    ]
    try:
        found = [None if _is_missing(one) else one for one in listed]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold one id for each record: a number, a text, or a tuple of them.") from None
    kinds = {isinstance(one, str | bytes) for one in found if one is not None}
    if len(kinds) > 1:
        raise ValueError(f"{name} must not mix texts with other ids: the same one as a number and a text would be two.")
    return found


def _by_place(codes: Counts) -> Counts:
    """Return codes in the order of the persons' places on average: who comes first may well have most records."""
    places = np.bincount(codes, weights=np.arange(len(codes))) / np.maximum(np.bincount(codes), 1)
    ranks: Counts = np.argsort(np.argsort(places, kind="stable"), kind="stable")
    return ranks[codes]


def _is_missing(one: Any) -> bool:
    hash(one)
    kind: Any = type(one)
    if one is None or kind.__name__ in _NOT_THERE:
        return True
    if kind.__hash__ is object.__hash__:
        raise TypeError("No two of them are ever equal.")
    if isinstance(one, tuple):
        return any(map(_is_missing, one))
    return not one.strip() if isinstance(one, str | bytes) else bool(one != one)
