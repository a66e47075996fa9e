"""The privacy label of a generator's run directory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tacita import _check
from tacita._check import PrivacyError
from tacita.label import Finding, Label, Readings
from tacita.runs import Run, RunError, read_json
from tacita.synthesis.generators import GENERATORS
from tacita.synthesis.recipes import KIND


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a generator's run directory; the data are not needed.

    Args:
        folder: The run directory.
        delta: Total failure probability; None takes the recipe's.

    Raises:
        PrivacyError: If the run's files contradict its ledger or each other.
        RunError: If it is not the run of a generator, or damaged.
    """
    run = Run.open(folder, KIND)
    document, recipe = run.document(), run.recipe
    with run.reading():
        if recipe["generator"] != document["generator"]:
            raise PrivacyError("The run was made by another generator than its recipe says.")
        total = float(recipe["delta"]) if delta is None else _check.probability("delta", delta)
        label = GENERATORS[str(document["generator"])].label(run, total)
    return replace(
        label,
        mechanism=(*label.mechanism, ("Released records", str(document.get("released", "none yet")))),
        audit_command="tacita synthesise --resume RUN",
        readings=replace(label.readings or Readings(), audit=findings_of(run.folder)),
    )


def findings_of(folder: Path) -> tuple[Finding, ...]:
    """Return what attacks found, if the run's quality was measured."""
    if not (folder / "quality.json").is_file():
        return ()
    try:
        return tuple(Finding.from_dict(row) for row in read_json(folder, "quality.json")["findings"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"quality.json in {str(folder)!r} is damaged: {error} Delete it.") from error


def typical_of_run(folder: Path) -> Callable[[float], float] | None:
    """Return the typical epsilon as a function of delta, for the owner; None if nobody was followed."""
    label = label_of_run(folder)
    if label.readings is None or not label.readings.typical:
        return None

    def epsilon(delta: float) -> float:
        readings = label_of_run(folder, delta=delta).readings
        return math.inf if readings is None else readings.typical[0].epsilon

    return epsilon
