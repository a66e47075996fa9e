"""The label of a fit: that of its steps or draws, with what is known about the posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita.assumptions import Assumption, assume
from tacita.facts import RunFacts
from tacita.guarantee import SMALLEST_EPSILON, round_up_text
from tacita.inference.box import Box
from tacita.inference.final_samples import box_guarantee, final_samples_cost, pair_costs, pair_epsilons
from tacita.inference.guides import GUIDES
from tacita.inference.replays import ALL, Released, Replays
from tacita.label import (
    Label,
    Readings,
    build,
    noise_assumption,
    not_hardened,
    percentiles,
    run_rows,
    status_rows,
)
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


def purpose(method: Method, separated: Separated) -> str:
    """Return what a fit is for, in a sentence."""
    return f"The posterior of a Pyro model, {_count(separated.size)}, by {method.text}."


def _count(numbers: int) -> str:
    return "1 unknown number" if numbers == 1 else f"{numbers} unknown numbers"


def interval_notes(method: Method, guide: str) -> tuple[str, ...]:
    """Return what a reader of a method's intervals should know, whatever the outcome."""
    return tuple(note for note in (method.note, GUIDES[guide].note if method.fits_guide else "") if note)


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
    rows = [("Method", method.text), ("Unknowns", f"{_count(sum(unknowns.values()))}: {sites}")]
    if method.fits_guide:
        rows.append(("Guide", f"{settings['guide']} Gaussian over the unconstrained unknowns"))
    if document["notes"]:
        rows.append(("Intervals", " ".join(document["notes"])))
    readings = _add_readings(label.readings or Readings(), settings, owner or {})
    return replace(label, mechanism=(*rows, *label.mechanism), readings=readings).resting_on(
        assume("one-record-models", plate=document["plate"]), assume("model-keeps-nothing")
    )


def _add_readings(readings: Readings, settings: Mapping[str, Any], owner: Mapping[str, Any]) -> Readings:
    checks, metrics = list(readings.checks), list(readings.metrics)
    share, coverage = owner.get("clipped"), owner.get("coverage")
    if owner.get("warning"):  # computed from the private outcome; the public page holds nothing that is
        checks.append(assume("fit-unsettled", warning=owner["warning"]))
    if share:
        checks.append(assume("many-clipped", share=f"{share:.0%}", clip_norm=f"{settings['clip_norm']:g}"))
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
    samples, replays = int(document["settings"]["samples"]), Replays.from_dict(document["replays"])
    box, bare = replays.box, document["settings"]["bare_rate"] is True
    worst = box_guarantee(box, samples=samples, delta=delta)
    rests_on = (*_sample_assumptions(box, facts), *((assume("bare-rate"),) if bare else ()))
    readings = Readings(facts=_facts(facts, box, released.fitted), panels=_unreplayed(replays))
    if without is not None:
        readings = _replayed(readings, released, without, replays, samples=samples, delta=delta)
    label = build(
        facts,
        worst,
        rests_on=rests_on,
        mechanism=_sample_rows(document, facts, box),
        declared=() if box is None else (f"Whatever the data, the posterior is confined to a box: {box}.",),
        not_hardened=not_hardened("how long a fit takes depends on how many records were drawn for its steps"),
        bare_rate=bare,
        readings=readings,
    )
    return add_fit(label, method, document)


def _sample_assumptions(box: Box | None, facts: RunFacts) -> tuple[Assumption, ...]:
    codes = ["no-box-declared" if box is None else "box-enforced", "one-posterior", "part-clipped"]
    codes.append("draws-charged-in-memory" if facts.in_memory else "draws-charged")
    chosen = ("record-is-person", "model-chosen-blindly", "fit-stays", "nothing-else")
    return (*map(assume, codes), noise_assumption(facts), *map(assume, chosen))


def _sample_rows(document: Mapping[str, Any], facts: RunFacts, box: Box | None) -> tuple[tuple[str, str], ...]:
    settings = document["settings"]
    return (
        ("Released draws", f"{settings['samples']}, all from one posterior; no more can be drawn"),
        ("Box", "none" if box is None else str(box)),
        ("Noise in training", "none; the randomness of the draws provides the privacy"),
        ("Clip norm", f"{settings['clip_norm']:g}"),
        ("Sample rate", f"{settings['sample_rate']:.6g} (Poisson sampling)"),
        ("Steps", str(settings["steps"])),
        *run_rows(facts),
    )


def _facts(facts: RunFacts, box: Box | None, fitted: Gaussians) -> tuple[tuple[str, str], ...]:
    rows = [("Training records", str(facts.trained)), *status_rows(facts)]
    if box is not None:
        means, scales = fitted.means[0], fitted.scales[0]
        held = (np.abs(means) >= box.bound).sum(), ((scales <= box.low) | (scales >= box.high)).sum()
        rows.append(("At an edge of the box", f"{held[0]} of {len(means)} means, {held[1]} of {len(means)} scales"))
    return tuple(rows)


def _unreplayed(replays: Replays) -> str:
    if replays.pairs == 0:
        return "The fit was not replayed without single records, so there is no typical figure."
    return "The replays without single records are not finished: continue with tacita.inference.resume."


def _replayed(
    readings: Readings, released: Released, without: Gaussians, replays: Replays, *, samples: int, delta: float
) -> Readings:
    """Add what the replays show: the typical case, each replayed record's own, and what is not a bound."""
    count, complete, one_step = len(without.means), replays.pairs == ALL, released.one_step
    every = Gaussians(np.repeat(released.fitted.means, count, 0), np.repeat(released.fitted.scales, count, 0))
    cost = final_samples_cost(every, without, samples=samples, delta=delta, box=replays.box, complete=complete)
    epsilons = np.clip(
        pair_epsilons(pair_costs(every, without, samples=samples), delta=delta),
        SMALLEST_EPSILON,
        cost.worst_case.epsilon,
    )
    dataset, *enforced = (a for a in cost.bayesian.assumptions if a not in cost.worst_case.assumptions)
    typical = [replace(cost.bayesian, assumptions=(dataset,))]
    checks = enforced
    if one_step is not None and one_step.delta == delta:
        typical.append(replace(one_step, assumptions=one_step.assumptions[:1]))
        checks.append(one_step.assumptions[0])
    seen = (
        f"the average over the replayed records alone would be epsilon {round_up_text(cost.observed)}. It is NOT A "
        "BOUND: records that were not replayed may cost any amount more"
    )
    drawn = f"{count} records of these data were drawn with replacement, and the fit was replayed without each"
    return replace(
        readings,
        typical=tuple(typical),
        panels=f"The fit was replayed without each of the {count} records of these data" if complete else drawn,
        percentiles=percentiles(epsilons),
        checks=tuple(checks),
        facts=readings.facts if complete else (*readings.facts, ("Seen in the replays", seen)),
    )
