"""The label of a fit: that of its steps or draws, with what is known about the posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita.assumptions import assume, of_persons
from tacita.facts import RunFacts
from tacita.guarantee import SMALLEST_EPSILON
from tacita.inference.final_samples import box_guarantee, final_samples_cost, pair_costs, pair_epsilons
from tacita.inference.replays import ALL, Released, Replays
from tacita.label import Label, Readings, build, noise_assumption, not_hardened, percentiles, run_rows, status_rows
from tacita.mechanisms.diagonal import Gaussians
from tacita.runs import read_json

if TYPE_CHECKING:
    from tacita.inference.methods.protocol import Method
    from tacita.inference.terms import Separated

KIND = "inference"
OWNER = "owner.json"  # what was computed from the records, for the owner


def document_of(
    separated: Separated, settings: Mapping[str, Any], notes: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """Return what run.json holds about a fit; nothing in it depends on a record.

    Args:
        separated: The model.
        settings: What the fit declared.
        notes: What a reader of the intervals should know.
        more: Further entries.

    Returns:
        Plain data.
    """
    return {
        "settings": dict(settings),
        "unknowns": {u.name: list(u.shape) for u in separated.unknowns},
        "plate": separated.plate,
        "notes": list(notes),
        **more,
    }


def owner_facts(folder: Path | None) -> dict[str, Any]:
    """Return what a run directory holds for its owner alone, as far as it is known yet."""
    return read_json(folder, OWNER) if folder is not None and (folder / OWNER).is_file() else {}


def require_same_model(found: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Refuse to continue a run with a model that has other unknowns, or another plate, than the run's document says."""
    if any(found[key] != document[key] for key in ("unknowns", "plate")):
        raise PrivacyError("This is not the model that the run was started with: its unknowns or its plate differ.")


def count_of(numbers: int) -> str:
    """Return how many unknown numbers there are, in words."""
    return "1 unknown number" if numbers == 1 else f"{numbers} unknown numbers"


def with_warning(notes: tuple[str, ...], warning: str) -> tuple[str, ...]:
    """Return notes with a warning at the end, if there is one."""
    return (*notes, f"Warning: {warning}.") if warning else notes


def add_fit(label: Label, method: Method, document: Mapping[str, Any], owner: Mapping[str, Any] | None = None) -> Label:
    """Return a label with what is known about a fit.

    Args:
        label: Of the steps or draws.
        method: How the posterior was fitted.
        document: From `document_of`.
        owner: What only the owner may see: a warning, the share of clipped records, the coverage.

    Returns:
        The label with the fit's rows, readings and assumptions.
    """
    settings = document["settings"]
    unknowns = {name: math.prod(shape) for name, shape in document["unknowns"].items()}
    sites = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in unknowns.items())
    rows = [("Method", method.text), ("Unknowns", f"{count_of(sum(unknowns.values()))}: {sites}")]
    if method.fits_guide:
        rows.append(("Guide", f"{settings['guide']} Gaussian over the unconstrained unknowns"))
    if document["notes"]:
        rows.append(("Intervals", " ".join(document["notes"])))
    readings = _add_readings(label.readings or Readings(), settings, owner or {}, label.worst.unit)
    # A fit is planned with a batch of 1, so that its plan tells the rate and not the size.
    changed = replace(label, mechanism=(*rows, *label.mechanism), nominal_size=None, readings=readings)
    return changed.resting_on(assume("one-record-models", plate=document["plate"]), assume("model-keeps-nothing"))


def _add_readings(readings: Readings, settings: Mapping[str, Any], owner: Mapping[str, Any], unit: str) -> Readings:
    checks, metrics = list(readings.checks), list(readings.metrics)
    share, coverage = owner.get("clipped"), owner.get("coverage")
    if owner.get("warning"):  # computed from the private outcome; the public page holds nothing that is
        checks.append(assume("fit-unsettled", warning=owner["warning"]))
    if share:
        many = assume("many-clipped", share=f"{share:.0%}", clip_norm=f"{settings['clip_norm']:g}")
        checks.append(of_persons(many) if unit == "person" else many)
    if coverage:
        level, covered = float(coverage["level"]), float(coverage["share"])
        metrics.append((f"{level:.0%} intervals that contained the truth, by simulation", f"{covered:.1%}"))
        texts = {"level": f"{level:.0%}", "held": f"{covered:.1%}"}
        if covered + 2.0 * float(coverage["error"]) < level:
            checks.append(assume("intervals-narrow", **texts, widen=f"{float(coverage['widen']):.2f}"))
        else:
            checks.append(assume("intervals-cover", **texts))
    return replace(readings, checks=tuple(checks), metrics=tuple(metrics))


def label_of_samples(
    method: Method,
    document: Mapping[str, Any],
    facts: RunFacts,
    delta: float,
    *,
    released: Released,
    without: Gaussians | None,
) -> Label:
    """Return the label of final samples.

    Args:
        method: How the posterior was fitted.
        document: From `document_of`, with the declared replays.
        facts: What the run knows about itself.
        delta: Of every figure.
        released: The posterior that was drawn from, and the papers' figure if it was requested.
        without: A posterior for each replayed record; None while there are none.

    Returns:
        The label, whose worst case is the box's alone.
    """
    settings, replays = document["settings"], Replays.from_dict(document["replays"])
    samples, box, bare = int(settings["samples"]), replays.box, settings["bare_rate"] is True
    codes = ("no-box-declared" if box is None else "box-enforced", "one-posterior", "part-clipped")
    charged = "draws-charged-in-memory" if facts.in_memory else "draws-charged"
    chosen = (
        "record-is-person",
        "model-chosen-blindly",
        "fit-stays",
        "nothing-else",
        *(("bare-rate",) if bare else ()),
    )
    rows = (
        ("Released draws", f"{samples}, all from one posterior; no more can be drawn"),
        ("Box", "none" if box is None else str(box)),
        ("Noise in training", "none; the randomness of the draws provides the privacy"),
        ("Clip norm", f"{settings['clip_norm']:g}"),
        ("Sample rate", f"{settings['sample_rate']:.6g} (Poisson sampling)"),
        ("Steps", str(settings["steps"])),
        *run_rows(facts),
    )
    label = build(
        facts,
        box_guarantee(box, samples=samples, delta=delta),
        rests_on=(*map(assume, (*codes, charged)), noise_assumption(facts), *map(assume, chosen)),
        mechanism=rows,
        declared=() if box is None else (f"Whatever the data, the posterior is confined to a box: {box}.",),
        not_hardened=not_hardened(facts, "how long a fit takes depends on how many records were drawn for its steps"),
        bare_rate=bare,
        readings=_sample_readings(facts, released, without, replays, samples=samples, delta=delta),
    )
    return add_fit(label, method, document)


def _sample_readings(
    facts: RunFacts, released: Released, without: Gaussians | None, replays: Replays, *, samples: int, delta: float
) -> Readings:
    """Return what the owner sees, and what the replays show: the typical case, each record's own, what is no bound."""
    rows, fitted, box = [("Training records", str(facts.trained)), *status_rows(facts)], released.fitted, replays.box
    if box is not None:
        means, scales = fitted.means[0], fitted.scales[0]
        held = (np.abs(means) >= box.bound).sum(), ((scales <= box.low) | (scales >= box.high)).sum()
        rows.append(("At an edge of the box", f"{held[0]} of {len(means)} means, {held[1]} of {len(means)} scales"))
    if without is None:
        panels = "The replays without single records are not finished: continue with tacita.inference.resume."
        if replays.pairs == 0:
            panels = "The fit was not replayed without single records, so there is no typical figure."
        return Readings(facts=tuple(rows), panels=panels)
    count, complete, one_step = len(without.means), replays.pairs == ALL, released.one_step
    every = Gaussians(np.repeat(fitted.means, count, 0), np.repeat(fitted.scales, count, 0))
    cost = final_samples_cost(every, without, samples=samples, delta=delta, box=box, complete=complete)
    own = pair_epsilons(pair_costs(every, without, samples=samples), delta=delta)
    dataset, *checks = (a for a in cost.bayesian.assumptions if a not in cost.worst_case.assumptions)
    typical = [replace(cost.bayesian, assumptions=(dataset,))]
    if one_step is not None and one_step.delta == delta:
        typical.append(replace(one_step, assumptions=one_step.assumptions[:1]))
        checks.append(one_step.assumptions[0])
    panels = f"The fit was replayed without each of the {count} records of these data"
    if not complete:
        panels = f"{count} records of these data were drawn with replacement, and the fit was replayed without each"
        seen = (
            f"the average over the replayed records alone would be epsilon {round_up_text(cost.observed)}. It is NOT "
            "A BOUND: records that were not replayed may cost any amount more"
        )
        rows.append(("Seen in the replays", seen))
    return Readings(
        facts=tuple(rows),
        typical=tuple(typical),
        panels=panels,
        percentiles=percentiles(np.clip(own, SMALLEST_EPSILON, cost.worst_case.epsilon)),
        checks=tuple(checks),
    )
