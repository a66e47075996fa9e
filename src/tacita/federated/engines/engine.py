"""What an engine is: something that takes the rounds of a recipe's federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tacita.federated.recipes import Recipe
from tacita.federated.server import Server
from tacita.label import Label

Progress = Callable[[Server, float], None]  # after every round, with the accuracy on the test set


class Rounds(Protocol):
    """Takes the remaining rounds of a run."""

    def __call__(self, progress: Progress | None = None) -> Label:
        """Return the label, which the run directory gets too; call `progress` after every round."""


class Prepare(Protocol):
    """Prepares a run."""

    def __call__(self, recipe: Recipe, run_dir: Path, *, resume: bool) -> Rounds:
        """Check everything that can fail early, and return what takes the remaining rounds.

        Args:
            recipe: What to run.
            run_dir: Where the run is written.
            resume: Whether it goes on with the run that is there.
        """


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine.

    Attributes:
        name: As in recipes and commands.
        prepare: Returns a run that is ready to take its rounds and return its label.
        simulates_dropout: Whether it lets clients drop out by chance, to try it out.
    """

    name: str
    prepare: Prepare
    simulates_dropout: bool = False
