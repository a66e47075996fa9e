"""What a fit is given: its settings, and data in any form as tensors, in the order of the model's arguments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import attempt, held, number_in
from tacita._progress import Progress
from tacita.accounting import Target
from tacita.inference.guides import GUIDES
from tacita.inference.separation import separate
from tacita.inference.terms import Model, Separated, Tensors
from tacita.training.plan import declared_rate
from tacita.training.records import Records
from tacita.training.settings import Whose
from tacita.training.step import check_clip_norm


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a fit declares beside the private step.

    Attributes:
        method: A name in `tacita.inference.methods.METHODS`.
        guide: A name in `tacita.inference.guides.GUIDES`.
        samples: How many draws are released with the fit.
        steps: How many steps are taken.
        sample_rate: The chance with which each record enters a step.
        bare_rate: True if that was given as a number, which may have been computed from the data.
        clip_norm: The largest norm of one record's gradient at the current point.
        learning_rate: Of the guide.
        initial_scale: The standard deviation that unconstrained unknowns start with.
        floor: The smallest standard deviation.
        local_draws: Draws that average out a record's own continuous unknowns.

    Raises:
        ValueError: If a setting is out of range.
    """

    method: str = "noisy"
    guide: str = "diagonal"
    samples: int = 100
    steps: int = 500
    sample_rate: float = 0.1
    bare_rate: bool = False
    clip_norm: float = 1.0
    learning_rate: float = 0.05
    initial_scale: float = 0.1
    floor: float = 1e-6
    local_draws: int = 16

    def __post_init__(self) -> None:
        _check.one_of("guide", self.guide, tuple(GUIDES))
        for name in ("samples", "steps", "local_draws"):
            _check.count(name, getattr(self, name), high=10**7)
        _check.rate("sample_rate", self.sample_rate)
        check_clip_norm(self.clip_norm)
        for name, high in (("learning_rate", 10.0), ("initial_scale", 1e3), ("floor", 1e3)):
            _check.in_range(name, getattr(self, name), 1e-12, high)

    @classmethod
    def declare(cls, method: str, given: Mapping[str, Any]) -> Settings:
        """Return the settings of a fit from the keywords of `fit`.

        Args:
            method: The name of the method.
            given: Fields of this class, and `batch_size` and `nominal_size` in place of `sample_rate`.

        Returns:
            The settings; a sample rate given as a number is marked as such.

        Raises:
            TypeError: If there is no such setting.
            ValueError: If a setting is out of range.
        """
        known = [entry.name for entry in fields(cls) if entry.name not in ("method", "bare_rate")]
        known += ["batch_size", "nominal_size"]
        for key in given:
            if key not in known:
                raise TypeError(f"fit() got an unknown setting {key!r}; there are {', '.join(known)}.")
        rest = dict(given)
        if "batch_size" not in rest and "nominal_size" not in rest:
            return cls(method=method, bare_rate=rest.get("sample_rate", 1.0) != 1.0, **rest)
        batch, size = rest.pop("batch_size", None), rest.pop("nominal_size", None)
        divisor, _ = declared_rate(rest.pop("sample_rate", None), batch, size)
        return cls(method=method, sample_rate=1.0 / (_check.number("nominal_size", size) / divisor), **rest)

    @property
    def declared_rate(self) -> dict[str, Any]:
        """The sample rate as PrivateTraining takes it, next to a divisor of 1."""
        return {"sample_rate": self.sample_rate} if self.bare_rate else {"nominal_size": 1.0 / self.sample_rate}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call of `fit` or `resume` with its arguments checked; see `tacita.inference.fit` for what they mean.

    Attributes:
        settings: What the fit declares.
        options: Settings that only the method takes.
    """

    model: Model
    data: Any
    settings: Settings
    options: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None
    target: Target | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    holdout: Any = None
    ledger: Any = field(default=None, repr=False)  # a URL may hold a password
    run_dir: str | Path | None = None
    seed: int | None = None
    name: str | None = None
    panel: int = 256
    progress: Progress | None = None
    training: Mapping[str, Any] | None = None
    person: Any = field(default=None, repr=False)
    holdout_person: Any = field(default=None, repr=False)
    missing_person: str = "refuse"
    records_per_person: int | None = None

    @property
    def whose(self) -> Whose:
        """Whose the records are."""
        return Whose(person=self.person, holdout_person=self.holdout_person, missing_person=self.missing_person)

    def separated(self, *, fingerprint: str | None = None) -> tuple[Separated, Tensors]:
        """Return the model's parts, and the records as tensors.

        Args:
            fingerprint: That of the records, if they must be those that a run was started on.

        Returns:
            The parts and the records.

        Raises:
            PrivacyError: If these are other records, or they cannot be separated.
        """
        tensors, names = tensors_of(self.data)
        if fingerprint is not None and Records(tensors).fingerprint() != fingerprint:
            raise PrivacyError("These are not the records that the run was started on: it is another dataset.")
        return separate(self.model, tensors, names, draws=self.settings.local_draws), tensors

    @property
    def title(self) -> str:
        """The title of the label: the name given, or the model's."""
        return self.name or str(getattr(self.model, "__name__", "Inference"))


def tensors_of(data: Any) -> tuple[Tensors, tuple[str, ...]]:
    """Return the model's arguments as tensors, and their names if they are passed by name."""
    names: tuple[str, ...] = ()
    if isinstance(data, Mapping):
        names, data = tuple(map(str, data)), tuple(data.values())
    parts = data if isinstance(data, tuple | list) else (data,)
    try:
        tensors = tuple(_tensor(part) for part in parts)
    except (TypeError, ValueError, RuntimeError):  # without its text, which may hold a cell
        raise TypeError("data must be tensors or arrays of numbers: one, a tuple of them, or a dict.") from None
    if any(t.is_complex() or t.layout != torch.strided for t in tensors):
        raise TypeError("data must be dense arrays of real numbers, not complex or sparse ones.")
    lengths = {len(t) if t.dim() else 0 for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError("data must hold records along the first dimension, as many in each part, and not none.")
    kind = torch.get_default_dtype()
    return tuple(t.to(kind) if torch.is_floating_point(t) else t for t in tensors), names


def _tensor(part: Any) -> Tensor:
    if not isinstance(part, Tensor) and hasattr(part, "__array__"):  # pandas would index rows by its labels
        part = np.array(part)
    if not isinstance(part, list | tuple) and not (isinstance(part, np.ndarray) and part.dtype.kind in "OSU"):
        return torch.as_tensor(part).detach()
    with held():
        tensor = attempt(torch.as_tensor, part)
        return _cell_by_cell(part) if tensor is None or tensor.is_complex() else tensor.detach()


def _cell_by_cell(part: Any) -> Tensor:
    """Return the numbers of a part in which some cells are not numbers; each cell is read independently of the others.

    Such a cell, and every cell of a row whose shape differs from most, becomes NaN. Integers and booleans keep their
    type, as a model may accept nothing else: there it becomes the lowest integer, which is not a valid index, or False.
    """
    rows = [attempt(lambda row: np.array(row, dtype=object), row) for row in part]
    shapes = Counter(row.shape for row in rows if row is not None)
    shape = max(shapes, key=lambda shape: shapes[shape], default=())
    nothing = np.full(shape, None)
    alike = [nothing if row is None or row.shape != shape else row for row in rows]
    cells: list[Any] = [number_in(cell) for row in alike for cell in row.flat]
    cells = [None if isinstance(cell, int) and abs(cell) >= 2**63 else cell for cell in cells]  # no tensor holds it
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds:
        raise TypeError
    kind, missing = _KINDS[next(kind for kind in _KINDS if kind in kinds)]
    return torch.tensor([missing if cell is None else cell for cell in cells], dtype=kind).reshape(len(rows), *shape)


_KINDS: dict[type, tuple[torch.dtype, float]] = {  # the first type among the cells is used for all
    float: (torch.float64, math.nan),
    int: (torch.int64, -(2**63)),
    bool: (torch.bool, False),
}


def records_like(separated: Separated, data: Any, what: str) -> Tensors:
    """Return further records in the order of the model's arguments; they must look like the data.

    Args:
        separated: The model.
        data: The records, passed as the data were.
        what: The argument's name, for messages.

    Returns:
        The records as tensors.

    Raises:
        ValueError: If they are passed in another way, or differ in shape or type.
    """
    tensors, names = tensors_of(data)
    if sorted(names) != sorted(separated.names):
        given = ", ".join(map(repr, separated.names))
        raise ValueError(f"{what} must be passed as the data were: {f'a dict of {given}' if given else 'by place'}.")
    if names:
        tensors = tuple(tensors[names.index(name)] for name in separated.names)
    kinds = [[(tuple(t.shape), t.dtype) for t in part] for part in (separated.example, tuple(t[0] for t in tensors))]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{what} must hold records like the data's, of {kinds[0]}, got {kinds[1]}.")
    return tensors
