"""What an engine is: something that takes the rounds of a job, a federation that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from tacita._progress import Progress, quiet
from tacita.data import Dataset
from tacita.federated.client import Local, Part, Training
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.federated.storage import KIND
from tacita.label import Label
from tacita.runs import Run
from tacita.training.settings import Books


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A recipe with its data: who holds what, what clients do, what was declared.

    Attributes:
        recipe: A dataclass of plain data, which the run's document keeps.
        dataset: What was split over the clients.
        holdings: What each client holds, by name.
        plan: What was declared.
        model: Returns the untrained model.
        local: What a client does at levels without privacy inside it, and its learning rate.
        loss_fn: As in PyTorch; None with a `Training`.
        name: The run's name on its label.
        purpose: What is made, in a sentence.
        seed: For runs that can be repeated; not secure.
        server_rate: By how much of the private mean the server moves the model.
        momentum: The server's.
        dropout: The chance that a client does not answer, where the engine simulates it.
        panel: How many clients are followed, at level client.
        score: Measures a model, for the owner: texts by name.
        kind: The kind of its runs.
    """

    recipe: Any
    dataset: Dataset
    holdings: Mapping[str, Part]
    plan: FederationPlan
    model: Callable[[], nn.Module]
    local: Local | Training
    loss_fn: Callable[[Any, Any], Tensor] | None
    name: str
    purpose: str
    seed: int | None
    server_rate: float = 1.0
    momentum: float = 0.0
    dropout: float = 0.0
    panel: int = 64
    score: Callable[[nn.Module], Mapping[str, str]] = lambda model: {}
    kind: str = KIND

    def books(self, run_dir: Path) -> Books:
        """Return where the job's run is kept, and what it is called."""
        return Books(run_dir=run_dir, seed=self.seed, name=self.name, purpose=self.purpose)

    def keep(self, run_dir: Path, engine: str) -> None:
        """Write the recipe, and the name of the engine that runs it, to the run's document."""
        Run(run_dir).write(kind=self.kind, recipe=asdict(self.recipe), engine=engine)


Make = Callable[[], Job]  # creates a job, or returns the one that this process has; small enough to send to workers


class Running(Protocol):
    """A prepared run."""

    job: Job
    model: nn.Module

    @property
    def server(self) -> Server:
        """The federation's server, once its first round has begun."""

    def run(self, progress: Progress = quiet) -> Label:
        """Take the remaining rounds and return the label, which the run directory gets too."""


class Prepare(Protocol):
    """Prepares a run."""

    def __call__(self, make: Make, run_dir: Path, *, resume: bool) -> Running:
        """Check everything that can fail early, and return what takes the remaining rounds.

        Args:
            make: Creates the job.
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
