"""The label of a fit: training's own, with what a posterior adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita import runs
from tacita.guarantee import Guarantee
from tacita.report.label import Check, Label, Readings
from tacita.training.labels import holds
from tacita.training.labels import label_of_run as label_of_training

if TYPE_CHECKING:
    from tacita.inference.separation import Separated

FILE = "inference.json"
METHOD_TEXTS = {
    "noisy": "variational inference, each record's gradient clipped and noised",
    "sgld": "Langevin dynamics whose noise is the privacy's",
    "final-samples": "variational inference without noise; only final draws are released",
    "plain": "variational inference without privacy",
}
NOTES = {
    "diagonal": "The guide takes unknowns to be independent: where they are not, its intervals are too narrow. Check "
    "them with tacita.inference.coverage.",
    "low-rank": "The guide is Gaussian: check its intervals with tacita.inference.coverage.",
    "sgld": "Draws of one chain, not yet at its stationary law: intervals are not calibrated.",
}


def document_of(
    separated: Separated, settings: Mapping[str, Any], notes: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """Return what the run directory says of a fit; nothing in it depends on a record."""
    return {
        "schema": runs.SCHEMA,
        "settings": dict(settings),
        "unknowns": {u.name: list(u.shape) for u in separated.unknowns},
        "plate": separated.plate,
        "notes": list(notes),
        **more,
    }


def decorated(label: Label, document: Mapping[str, Any]) -> Label:
    """Return a label with what a fit's document says."""
    settings = document["settings"]
    unknowns = {name: math.prod(shape) for name, shape in document["unknowns"].items()}
    sites = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in unknowns.items())
    rows = [("Method", METHOD_TEXTS[settings["method"]]), ("Unknowns", f"{sum(unknowns.values())} numbers: {sites}")]
    if settings["method"] != "sgld":
        rows.append(("Guide", f"{settings['guide']} Gaussian over the unconstrained unknowns"))
    if document["notes"]:
        rows.append(("Intervals", " ".join(document["notes"])))
    one = holds(f"The model was run on one record of plate {document['plate']!r} at a time")
    return replace(label, mechanism=(*rows, *label.mechanism), checks=(*label.checks, one))


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a fit's run directory; neither data nor model are needed."""
    where = Path(folder)
    try:
        return decorated(label_of_training(where, delta=delta), runs.read_json(where, FILE))
    except (KeyError, TypeError, AttributeError) as error:
        raise runs.RunError(f"The fit in {str(where)!r} is damaged: {error}") from error


def label_of_plain(title: str, document: Mapping[str, Any], delta: float) -> Label:
    """Return the label of a fit without privacy."""
    worst = Guarantee(
        kind="worst_case", epsilon=math.inf, delta=delta, method="none", sampling="none", publishable=True
    )
    label = Label(
        title=title,
        purpose="A posterior of a Pyro model, fitted without privacy.",
        worst=worst,
        declared=("No guarantee: the data were used without noise.",),
        checks=(Check(text="Nothing limits what one record can do to the posterior", state="warning"),),
        readings=Readings(panels="Nobody was followed: there is no noise to account for."),
    )
    return decorated(label, document)
