"""What every method of inference provides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from tacita.inference.results import Result
from tacita.inference.settings import Progress, Request, Settings
from tacita.inference.terms import Model
from tacita.label import Label
from tacita.runs import Run


@runtime_checkable
class Method(Protocol):
    """A way to fit a model: one file, and one entry in `METHODS`.

    Attributes:
        name: Its name in `METHODS`.
        text: What it does, for the label.
        note: What a reader of its intervals should know; may be empty.
        fits_guide: Whether it fits a guide; one that does not makes a chain.
        objective: What `Result.elbo` holds.
        repeatable: Whether `coverage` can repeat its fits.
        options: Settings of `fit` that only this method takes.
        defaults: Its defaults of `Settings`, where they differ.
        refuses: Arguments of `fit` that it does not take, and why not.
    """

    name: str
    text: str
    note: str
    fits_guide: bool
    objective: str
    repeatable: bool
    options: tuple[str, ...]
    defaults: Mapping[str, Any]
    refuses: Mapping[str, str]

    def fit(self, request: Request) -> Result:
        """Fit the model."""
        ...

    def resume(
        self,
        run: Run,
        settings: Settings,
        model: Model,
        data: Any,
        *,
        holdout: Any,
        ledger: Any,
        progress: Progress | None,
    ) -> Result:
        """Continue an interrupted fit."""
        ...

    def label(self, run: Run, *, delta: float | None) -> Label:
        """Return the label of a run directory; neither data nor model are needed."""
        ...
