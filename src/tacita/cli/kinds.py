"""The table of kinds of runs: who labels them, who ends them, who attacks them, and how they are resumed.

A new kind of run is one entry here. Modules are loaded when they are needed: a command loads its own kind alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita.runs import Run, RunError

if TYPE_CHECKING:
    from tacita.label import Label


@dataclass(frozen=True)
class Kind:
    """What can be done with a kind of run. Functions are given as `module:function`.

    Attributes:
        words: What it is, for messages.
        label: Builds the label from the folder; takes `delta`.
        end: Declares that the run ended for reasons that depended on nothing private; empty if it cannot be ended.
        attack: Attacks the run; empty if there is no attack on it.
        resume: How to go on with it; `{run}` is its folder. Empty if nothing can be left to do.
        unattacked: Why there is no attack.
        product: What is published, in the words of the registry of deployments.
        federated: Whether the data stay with several clients.
        tags: Of its model card, where it has a guarantee.
        weights: Refuses a folder whose newest weights its ledger does not cover; empty if a checkpoint's model is not
            what the run releases.
    """

    words: str
    label: str
    end: str = ""
    attack: str = ""
    resume: str = ""
    unattacked: str = ""
    product: str = "Machine learning model"
    federated: bool = False
    tags: tuple[str, ...] = ()
    weights: str = ""


KINDS = {
    "training": Kind(
        words="a training",
        label="tacita.training.labels:label_of_run",
        end="tacita.training.labels:declare_end",
        attack="tacita.audit:run",
        resume="tacita train --resume {run}",
        tags=("dp-sgd",),
        weights="tacita.training.labels:require_released",
    ),
    "inference": Kind(
        words="a fit of a Pyro model",
        label="tacita.inference.fitting:label_of_run",
        end="tacita.training.labels:declare_end",
        attack="tacita.audit:run",
        resume="tacita.inference.resume in Python",
        tags=("dp-sgd",),
    ),
    "final-samples": Kind(
        words="a release of posterior draws",
        label="tacita.inference.fitting:label_of_run",
        resume="tacita.inference.resume in Python",
        unattacked="there is no private training in it",
    ),
    "federation": Kind(
        words="a federation",
        label="tacita.federated.storage:label_of_run",
        end="tacita.federated.storage:declare_end",
        resume="tacita federate --resume {run}",
        unattacked="it is not trained as one dataset",
        federated=True,
        tags=("federated-learning",),
        weights="tacita.federated.storage:require_released",
    ),
    "synthesis": Kind(
        words="a generator",
        label="tacita.synthesis.labels:label_of_run",
        resume="tacita synthesise --resume {run}",
        unattacked="it is attacked when its quality is measured: `tacita synthesise --resume {run}`",
        product="Synthetic data",
        tags=("synthetic-data",),
    ),
    "federated-generator": Kind(
        words="a federated generator",
        label="tacita.synthesis.fedgp:label_of_run",
        product="Synthetic data",
        federated=True,
        tags=("federated-learning", "synthetic-data"),
        end="tacita.federated.storage:declare_end",
        resume="tacita synthesise --resume {run}",
        unattacked="it is not trained as one dataset",
    ),
    "program": Kind(
        words="a private program",
        label="tacita.programs.labels:label_of_run",
        unattacked="its guarantee is proved for every table, before any data are read",
        product="Summary statistics",
    ),
}


def kind_of(run: Path) -> Kind:
    """Return the kind of a run.

    Raises:
        RunError: If there is no run, or it is of a kind that this version does not know.
    """
    name = Run.open(run).kind
    if name not in KINDS:
        raise RunError(f"{str(run)!r} is a run of kind {name!r}, which this version does not know.")
    return KINDS[name]


def label_of(run: Path, *, delta: float | None = None) -> Label:
    """Return the label of any run."""
    found: Label = _function(kind_of(run).label)(run, delta=delta)
    return Run(run).published(found)


def declare_end(run: Path, reason: str) -> None:
    """End a run, declaring that this depended on nothing private."""
    kind = kind_of(run)
    if not kind.end:
        raise RunError(f"{str(run)!r} is {kind.words}: there is no end to declare.")
    _function(kind.end)(run, reason)


def attack_of(run: Path) -> Callable[..., Any]:
    """Return the function that attacks a run, or say why there is none."""
    kind = kind_of(run)
    if not kind.attack:
        raise RunError(f"{str(run)!r} is {kind.words} and is not attacked here: {kind.unattacked.format(run=run)}.")
    return _function(kind.attack)


def require_weights(run: Path) -> None:
    """Refuse a run that releases no model, or whose newest weights must not leave it."""
    kind = kind_of(run)
    if not kind.weights:
        raise RunError(f"{str(run)!r} is {kind.words}: the weights in its checkpoints are not what it releases.")
    _function(kind.weights)(run)


def require_kind(run: Path, *names: str) -> None:
    """Refuse a run that another command resumes, and name that command."""
    kind = kind_of(run)
    if kind not in (KINDS[name] for name in names):
        way = f"go on with: {kind.resume.format(run=run)}" if kind.resume else "there is nothing to go on with"
        raise RunError(f"{str(run)!r} is {kind.words}; {way}")


def _function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
