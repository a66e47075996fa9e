"""Settings of a training in groups, and how single keywords reach them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from tacita.ledger import Ledger
from tacita.training.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Whose norms are measured along the run, for the typical case and for the owner's tables.

    Attributes:
        panel: How many training records (and as many held-out ones) are followed when not all are measured; 0 follows
            nobody, and there is no typical case then. 200 held-out ones certify what 50, 75 and 90% of people stay
            under.
        panel_rate: The chance with which they are measured at a step, which costs a gradient each. What they may have
            spent in the other steps is bounded by how often they were seen at each norm, so figures get larger the
            smaller it is. None adds about an eighth of its gradients to a run, but measures 150 times, or at every step
            of a shorter run; 1 measures at every step.
        holdout: Records like those of the dataset that are not trained on.
        groups: For the owner's tables: {column: one value per training record}. A person whose records differ in one
            is counted as "(several)".
    """

    panel: int = 200
    panel_rate: float | None = None
    holdout: Any = None
    groups: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Whose:
    """Whose each record is, where people have several: they are then drawn, clipped and accounted for as persons.

    Attributes:
        person: One id for each training record, of any hashable kind: an array, a column, a tensor, a list. Equal ids
            are one person. None if each record is taken to be a person.
        holdout_person: The same for the records of `holdout`. Nobody may be in both.
        missing_person: What a missing id (None, NaN, an empty text) means: "refuse", or "own", your word that the
            record's person has no other record and is nobody else in the data.
    """

    person: Any = None
    holdout_person: Any = None
    missing_person: str = "refuse"


@dataclass(frozen=True, kw_only=True)
class Books:
    """Where a run is kept and charged, and what it is called.

    Attributes:
        ledger: A path, a database's URL (`postgresql://USER@HOST/DATABASE`) or a `tacita.ledger.Ledger` to charge. A
            file is made if it does not exist. Without one the run directory gets its own.
        run_dir: Where to write the run. None writes nothing, and the run cannot be resumed.
        seed: None, the default, is a cryptographic generator keyed by the operating system; a chosen number is marked
            as not secure. A resumed run goes on with fresh randomness in any case.
        name: The run's name on its label.
        purpose: What is made, in a sentence, for its label.
        reservation: The name under which budget is held for this run in the ledger (`tacita ledger reserve`).
    """

    ledger: Ledger | str | Path | None = field(default=None, repr=False)  # a URL may hold a password
    run_dir: str | Path | None = None
    seed: int | None = None
    name: str | None = None
    purpose: str = ""
    reservation: str = ""


def grouped(name: str, kind: type[Any], given: Any, settings: dict[str, Any]) -> Any:
    """Return a group of settings: the one given, or one made of single keywords, which are taken out.

    Args:
        name: What the group is called.
        kind: Its class.
        given: The group, or None.
        settings: Single keywords.
    """
    single = {entry.name: settings.pop(entry.name) for entry in fields(kind) if entry.name in settings}
    if given is None:
        return kind(**single)
    if not isinstance(given, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(given).__name__}.")
    if single:
        raise TypeError(f"Give {name}=… or {', '.join(single)}=…, not both.")
    return given


def declared(plan: Plan | None, settings: dict[str, Any]) -> Plan:
    """Return the plan given, or the one that single keywords declare."""
    if plan is None:
        return Plan.declare(**settings)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, got {type(plan).__name__}.")
    if settings:
        raise TypeError(f"Give plan=… or {', '.join(settings)}=…, not both.")
    if not plan.checked:  # its stops could share out more than delta, and its rate be counted from the data
        raise ValueError(
            "Make the plan by Plan.declare(…), which checks what it declares; do not change it afterwards."
        )
    return plan


def group_codes(groups: Mapping[str, Any] | None, size: int) -> dict[str, tuple[Any, list[str]]]:
    """Return each column as codes and the values they stand for."""
    coded = {}
    for name, values in (groups or {}).items():
        array = np.asarray(values)
        if array.shape != (size,):
            raise ValueError(f"groups[{name!r}] must hold one value per training record, got shape {array.shape}.")
        levels, codes = np.unique(array.astype(str), return_inverse=True)
        coded[str(name)] = (codes.astype(np.int64), levels.tolist())
    return coded
