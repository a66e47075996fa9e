"""Records that are read one by one: what they look like, and what stands for one that is broken.

A record that cannot be read, or does not look like the others, stops nothing: it contributes exactly zero, and nothing
of it is said. What records look like, their form (names, shapes, types), must then not hang on any one of them: it is
declared, or it is what most of a few records have, at places that depend on the number of records alone. A single
record changes that vote only where the dataset has no form to speak of, and there it is refused before anything is
charged.
"""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacita._guard import attempt, held
from tacita.training.arrays import UnfitError, as_tensor
from tacita.training.memory import generators
from tacita.training.randomness import fresh_draws

if TYPE_CHECKING:
    from tacita._check import Counts

_VOTERS = 15  # records that say what records look like
_SAMPLED = 64  # records that a run remembers, to know its dataset again
_AGAIN = 4  # readings that show what changes: what is drawn at random is rarely four times the same
_READS = 8  # before a record is another one: few things that are drawn at random differ so often
_BROKEN = "broken"
_DEEP = 8  # dimensions that nested lists may have

Form = tuple[Any, tuple[Any, ...]]  # tuples, dicts and their names; dtype, shape and device of each tensor


class Marked(NamedTuple):
    """A batch of records, zeros where one is broken, and which are not."""

    record: Any
    readable: Tensor


def places(size: int) -> Counts:
    """Return a few places, spread over so many records."""
    return np.unique(np.linspace(0, size - 1, _VOTERS).astype(np.int64))


def readable(batch: Any) -> Any:
    """Return a batch without its broken records; None if there are no others."""
    if not isinstance(batch, Marked):
        return batch
    if not bool(batch.readable.any()):
        return None
    return batch.record if bool(batch.readable.all()) else tree_map(lambda t: t[batch.readable], batch.record)


class Reader:
    """Reads the records of a map-style dataset.

    Args:
        source: The dataset.
        like: A record, made up, that looks like all others; by default most of a few records say it.
        dtype: Of reals that are not tensors.
    """

    def __init__(self, source: Any, like: Any = None, dtype: torch.dtype | None = None) -> None:
        self._source, self._like, self._dtype = source, like, dtype

    @property
    def declared(self) -> bool:
        """Whether what a record looks like was declared."""
        return self._like is not None

    @cached_property
    def form(self) -> Form:
        """What a record looks like."""
        if self._like is not None:
            return _parts(self._like, self._dtype)[0]
        with _quietly():
            found = [attempt(self._form_or_fault, int(place)) for place in places(len(self._source))]
        votes = Counter(form for form in found if isinstance(form, tuple))
        if not votes:
            fault, count = Counter(found).most_common(1)[0]
            shared = f" {fault}" if isinstance(fault, str) and 2 * count > len(found) else ""
            raise ValueError(
                f"No record of the dataset could be read, of {len(found)} that were tried.{shared} A record is a tuple "
                "or a dict of tensors, arrays and numbers; look at dataset[0]."
            )
        form, count = votes.most_common(1)[0]
        if 2 * count <= votes.total():
            raise ValueError(
                "The records of the dataset have no common form: their names, shapes or types differ. Pad them to one "
                "shape, whatever the batch (a tokenizer's padding='max_length', a collator's pad_to_multiple_of=…), or "
                "say what they look like, with a made-up record: Records(dataset, like=(…, …))."
            )
        return form

    @property
    def sample(self) -> Any:
        """A record of the form of all others, with nothing in it."""
        structure, kinds = self.form
        return tree_unflatten([torch.empty(shape, dtype=dtype, device="meta") for dtype, shape, _ in kinds], structure)

    @cached_property
    def _generators(self) -> list[Any]:
        """The generators that the dataset draws from besides the global ones."""
        with _quietly():
            attempt(self._source.__getitem__, 0)  # some are made at the first reading
        return generators(self._source)

    def _form_or_fault(self, place: int) -> Form | str:
        """Return what a record looks like, or which of its parts, by name and type, cannot become a tensor."""
        try:
            return _parts(self._source[place], self._dtype)[0]
        except UnfitError as error:
            return str(error)

    def take(self, indices: Any, *, rng: np.random.Generator | None = None) -> Marked:
        """Return the records at these places; a broken one is zeros, and marked.

        Args:
            indices: Which.
            rng: Where the seed of what the dataset draws comes from, as in random augmentation; the operating system
                if None.
        """
        structure, kinds = self.form
        blank = [torch.zeros(len(indices), *shape, dtype=dtype, device=device) for dtype, shape, device in kinds]
        with _quietly(rng, self._generators):
            good = [bool(attempt(self._read, int(i), row, blank)) for row, i in enumerate(indices)]
        for row in np.flatnonzero(~np.array(good)):
            for leaf in blank:
                leaf[row] = 0
        return Marked(tree_unflatten(blank, structure), torch.tensor(good))

    def _read(self, place: int, row: int, batch: list[Tensor]) -> bool:
        leaves = self._leaves(place)
        for leaf, own in zip(batch, leaves, strict=True):
            leaf[row].copy_(own)  # now: the dataset may use the same memory for the next record
        return True

    def _leaves(self, place: int) -> list[Tensor]:
        form, leaves = _parts(self._source[place], self._dtype)
        if form != self.form:
            raise ValueError("Another form.")
        return leaves

    # Knowing a dataset again.

    def fingerprint(self) -> str:
        """Return marks of some records, drawn by a key that is kept with them.

        A part that changes from reading to reading in most records, as by random augmentation, is left out; so is a
        single record that changes.
        """
        key = secrets.token_hex(16)
        passes = [[self._marks(key, place) for place in self._chosen(key)] for _ in range(_AGAIN)]
        read = list(zip(*passes, strict=True))
        whole = [marks for marks in read if all(marks)]
        slots = range(len(self.form[1]))
        kept = [2 * sum(len({m[slot] for m in marks}) == 1 for marks in whole) > len(whole) for slot in slots]
        if whole and not any(kept):
            warnings.warn(
                "Every part of most records changes from reading to reading, so resuming can only compare how "
                "many there are.",
                stacklevel=4,
            )
        found = [{_joined(m, kept) for m in marks} for marks in read]
        marks = [joined.pop() if len(joined) == 1 else "" for joined in found]
        return " ".join((key, str(len(self._source)), "".join(str(int(k)) for k in kept), ",".join(marks)))

    def matches(self, fingerprint: str) -> bool:
        """Return whether this is the dataset of a fingerprint, as far as it tells."""
        key, size, slots, marks = (*fingerprint.split(" "), "", "", "")[:4]
        if size != str(len(self._source)) or len(slots) != len(self.form[1]):
            return False
        kept = [slot == "1" for slot in slots]
        listed = marks.split(",")
        return len(listed) == len(self._chosen(key)) and all(
            not mark or any(_joined(self._marks(key, place), kept) == mark for _ in range(_READS))
            for place, mark in zip(self._chosen(key), listed, strict=True)
        )

    def _chosen(self, key: str) -> Counts:
        size = len(self._source)
        drawn = np.random.default_rng(int(key, 16)).choice(size, min(size, _SAMPLED), replace=False)
        return np.sort(drawn)

    def _marks(self, key: str, place: int) -> list[str]:
        """Return a mark of each part of a record; none if it is broken."""

        def made() -> list[str]:
            return [
                hashlib.sha256(f"{key} {place} ".encode() + _bytes(leaf)).hexdigest() for leaf in self._leaves(place)
            ]

        with _quietly(None, self._generators):
            return attempt(made) or []


class Collated:
    """A map-style dataset of the batches of one that a collate function makes of another one's records.

    So whatever it does to a record, such as padding, hangs on that record alone.

    Args:
        source: The dataset.
        collate: Makes a batch of a list of records.
        dtype: Of reals that are not tensors.
    """

    def __init__(self, source: Any, collate: Callable[[list[Any]], Any], dtype: torch.dtype | None = None) -> None:
        self._source, self._collate, self._dtype = source, collate, dtype

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, place: int) -> Any:
        """Return one record, without the dimension of the batch."""
        return tree_map(_only, _plain(self._collate([self._source[place]]), self._dtype))


def _only(batch: Tensor) -> Tensor:
    if batch.dim() == 0 or len(batch) != 1:
        raise UnfitError(
            f"collate_fn([record]) returned a tensor of shape {tuple(batch.shape)}, where the first dimension must be "
            "1, the batch's: packing several records into one would mix them."
        )
    return batch[0]


@contextmanager
def _quietly(rng: np.random.Generator | None = None, generators: Sequence[Any] = ()) -> Iterator[None]:
    """Hold Ctrl-C back and show no warning, which would say something of a record; what is drawn is drawn afresh."""
    with held(), warnings.catch_warnings(), fresh_draws(rng, generators):
        warnings.simplefilter("ignore")
        yield


def _parts(value: Any, dtype: torch.dtype | None) -> tuple[Form, list[Tensor]]:
    """Return the form of a record and its tensors."""
    leaves, structure = tree_flatten(_plain(value, dtype))
    return (structure, tuple((leaf.dtype, tuple(leaf.shape), leaf.device) for leaf in leaves)), leaves


def _plain(value: Any, dtype: torch.dtype | None, name: str = "") -> Any:
    """Return a record as tuples and dicts of tensors, each of a type that does not hang on other records.

    A list is a tensor where it is a part of a record and holds numbers, as in rows of `datasets`, and else a tuple.
    """
    if isinstance(value, list) and name and value and _numeric(value):
        return as_tensor(value, dtype, name)
    if isinstance(value, Mapping | tuple | list):
        if len(value) == 0:
            raise UnfitError(f"{name or 'A record'} is empty.")
        if isinstance(value, Mapping):
            return {part: _plain(value[part], dtype, f"{name}[{part!r}]") for part in sorted(value, key=str)}
        return tuple(_plain(part, dtype, f"{name}[{place}]") for place, part in enumerate(value))
    return as_tensor(value, dtype, name or "A record")


def _numeric(value: Any) -> bool:
    """Whether the first thing in nested lists is a number."""
    for _ in range(_DEEP):
        if isinstance(value, list) and value:
            value = value[0]
    return isinstance(value, bool | int | float | np.number)


def _bytes(leaf: Tensor) -> bytes:
    return leaf.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _joined(marks: list[str], kept: list[bool]) -> str:
    """Return one mark of the parts that are kept, or that a record is broken."""
    if not marks:
        return _BROKEN
    return hashlib.sha256(" ".join(m for m, keep in zip(marks, kept, strict=True) if keep).encode()).hexdigest()[:16]
