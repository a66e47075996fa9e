"""What every method of inference provides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from tacita.inference.guides import GUIDES
from tacita.inference.labels import count_of
from tacita.inference.request import Request
from tacita.inference.results import Result
from tacita.inference.terms import Separated
from tacita.label import Label
from tacita.runs import Run, RunError


@runtime_checkable
class Method(Protocol):
    """A way to fit a model: one file, and one entry in `METHODS`.

    Attributes:
        name: Its name in `METHODS`.
        text: What it does, for the label.
        note: What a reader of its intervals should know; may be empty.
        fits_guide: Whether it fits a guide; one that does not runs a chain.
        objective: What `Result.elbo` holds.
        repeatable: Whether `coverage` can repeat its fits.
        options: Settings of `fit` that only this method takes.
        defaults: Its defaults of `Settings`, where they differ.
        refuses: Arguments of `fit` that it does not take, and why not.
    """

    name: str
    text: str
    note: str = ""
    fits_guide: bool = True
    objective: str = "evidence bound"
    repeatable: bool = True
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = MappingProxyType({})
    refuses: Mapping[str, str] = MappingProxyType({})

    def purpose(self, separated: Separated) -> str:
        """Return what a fit is for, in a sentence."""
        return f"The posterior of a Pyro model, {count_of(separated.size)}, by {self.text}."

    def interval_notes(self, guide: str) -> tuple[str, ...]:
        """Return what a reader of its intervals should know, whatever the outcome."""
        return tuple(note for note in (self.note, GUIDES[guide].note if self.fits_guide else "") if note)

    @abstractmethod
    def fit(self, request: Request) -> Result:
        """Fit the model."""

    def resume(self, run: Run, request: Request) -> Result:
        """Continue an interrupted fit; a method without run directories has none."""
        raise RunError(f"method={self.name!r} writes no run directory to resume: fit again.")

    def label(self, run: Run, *, delta: float | None) -> Label:
        """Return the label of a run directory; neither data nor model are needed."""
        raise RunError(f"method={self.name!r} writes no run directory to label: fit again.")
