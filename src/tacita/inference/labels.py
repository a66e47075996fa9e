"""The label of a fit: training's own, with what a posterior adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita.assumptions import Assumption, assume
from tacita.facts import RunFacts
from tacita.guarantee import SMALLEST_EPSILON, Guarantee, round_up_text
from tacita.inference.divergences import Box, Gaussians
from tacita.inference.final_samples import box_guarantee, final_samples_cost, pair_costs, pair_epsilons
from tacita.label import (
    Label,
    Readings,
    build,
    no_guarantee,
    noise_assumption,
    not_hardened,
    percentiles,
    run_rows,
    status_rows,
)
from tacita.runs import Run, read_json
from tacita.training.labels import label_of_run as label_of_training

if TYPE_CHECKING:
    from tacita.inference.terms import Separated

KIND = "inference"
OWNER = "owner.json"  # what was computed from the records, for the owner
METHOD_TEXTS = {
    "noisy": "variational inference, each record's gradient clipped and noised",
    "sgld": "Langevin dynamics whose noise is the privacy's",
    "final-samples": "variational inference without noise; only final draws are released",
    "plain": "variational inference without privacy",
}
NOTES = {
    "noisy": "Intervals include the noise of the private fit.",
    "diagonal": "The guide takes unknowns to be independent: where they are not, its intervals are too narrow. Check "
    "them with tacita.inference.coverage.",
    "low-rank": "The guide is Gaussian: check its intervals with tacita.inference.coverage.",
    "sgld": "Draws of one chain, not yet at its stationary law: intervals are not calibrated.",
    "final-samples": "Only these draws are released, so means and intervals are as rough as so few draws make them.",
}


def document_of(
    separated: Separated, settings: Mapping[str, Any], notes: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """Return what the run directory says of a fit; nothing in it depends on a record."""
    return {
        "settings": dict(settings),
        "unknowns": {u.name: list(u.shape) for u in separated.unknowns},
        "plate": separated.plate,
        "notes": list(notes),
        **more,
    }


def decorated(label: Label, document: Mapping[str, Any], owner: Mapping[str, Any] | None = None) -> Label:
    """Return a label with what a fit's document says, and what its owner knows."""
    settings = document["settings"]
    unknowns = {name: math.prod(shape) for name, shape in document["unknowns"].items()}
    sites = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in unknowns.items())
    rows = [("Method", METHOD_TEXTS[settings["method"]]), ("Unknowns", f"{sum(unknowns.values())} numbers: {sites}")]
    if settings["method"] != "sgld":
        rows.append(("Guide", f"{settings['guide']} Gaussian over the unconstrained unknowns"))
    if document["notes"]:
        rows.append(("Intervals", " ".join(document["notes"])))
    readings = _read(label.readings or Readings(), settings, owner or {})
    made = replace(label, mechanism=(*rows, *label.mechanism), readings=readings)
    return made.resting_on(assume("one-record-models", plate=document["plate"]), assume("model-keeps-nothing"))


def _read(readings: Readings, settings: Mapping[str, Any], owner: Mapping[str, Any]) -> Readings:
    """Return the owner's readings with what is known of clipping and of the intervals' coverage."""
    checks, metrics = list(readings.checks), list(readings.metrics)
    share, found = owner.get("clipped"), owner.get("coverage")
    if owner.get("warning"):  # computed from the private outcome; the public page holds nothing that is
        checks.append(assume("fit-unsettled", warning=owner["warning"]))
    if share:
        checks.append(assume("many-clipped", share=f"{share:.0%}", clip_norm=f"{settings['clip_norm']:g}"))
    if found:
        level, held = float(found["level"]), float(found["share"])
        metrics.append((f"{level:.0%} intervals that held the truth, by simulation", f"{held:.1%}"))
        texts = {"level": f"{level:.0%}", "held": f"{held:.1%}"}
        if held + 2.0 * float(found["error"]) < level:
            checks.append(assume("intervals-narrow", **texts, widen=f"{float(found['widen']):.2f}"))
        else:
            checks.append(assume("intervals-cover", **texts))
    return replace(readings, checks=tuple(checks), metrics=tuple(metrics))


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a fit's run directory; neither data nor model are needed."""
    run = Run.open(folder)
    if run.kind == "final-samples":
        from tacita.inference.replays import label_of_run as label_of_final_samples

        return label_of_final_samples(folder, delta=delta)
    owner = read_json(run.folder, OWNER) if (run.folder / OWNER).is_file() else {}
    label = label_of_training(folder, delta=delta)
    with run.reading():
        return decorated(label, run.document()["fit"], owner)


def label_of_plain(title: str, document: Mapping[str, Any], delta: float, owner: Mapping[str, Any]) -> Label:
    """Return the label of a fit without privacy."""
    label = build(
        RunFacts(title, "A posterior of a Pyro model, fitted without privacy.", seeded=False),
        no_guarantee(delta=delta),
        rests_on=(assume("posterior-unlimited"),),
        declared=("No guarantee: the data were used without noise.",),
        audit_command="tacita audit RUN",
        readings=Readings(panels="Nobody was followed: there is no noise to account for."),
    )
    return decorated(label, document, owner)


def label_of_samples(
    document: Mapping[str, Any],
    facts: RunFacts,
    delta: float,
    *,
    fitted: Gaussians,
    without: Gaussians | None,
    one_step: Guarantee | None = None,
) -> Label:
    """Return the label of final samples.

    Args:
        document: What the run directory says of the fit.
        facts: What the run knows about itself.
        delta: Of every figure.
        fitted: The posterior that was drawn from.
        without: A posterior for each replayed record; None while there are none.
        one_step: The papers' figure, if it was asked for.
    """
    samples, box = int(document["settings"]["samples"]), box_of(document)
    worst = box_guarantee(box, samples=samples, delta=delta)
    bare = document["settings"]["bare_rate"] is True
    rests_on = (*_sample_assumptions(box, facts), *((assume("bare-rate"),) if bare else ()))
    readings = Readings(facts=_facts(facts, box, fitted), panels=_unreplayed(document))
    if without is not None:
        complete = document["replays"]["pairs"] == "all"
        readings = _replayed(readings, fitted, without, samples, delta, box, one_step, complete)
    label = build(
        facts,
        worst,
        rests_on=rests_on,
        mechanism=_sample_rows(document, facts, box),
        declared=() if box is None else (f"Whatever the data, the posterior is held to a box: {box}.",),
        not_hardened=not_hardened("how long a fit takes depends on how many records were drawn for its steps"),
        bare_rate=bare,
        readings=readings,
    )
    return decorated(label, document)


def box_of(document: Mapping[str, Any]) -> Box | None:
    """Return the box that a fit's document declares."""
    return None if document["replays"]["box"] is None else Box(**document["replays"]["box"])


def _sample_assumptions(box: Box | None, facts: RunFacts) -> tuple[Assumption, ...]:
    codes = ["no-box-declared" if box is None else "box-enforced", "one-posterior", "part-clipped"]
    codes.append("draws-charged-in-memory" if facts.in_memory else "draws-charged")
    chosen = ("record-is-person", "model-chosen-blindly", "fit-stays", "nothing-else")
    return (*map(assume, codes), noise_assumption(facts), *map(assume, chosen))


def _sample_rows(document: Mapping[str, Any], facts: RunFacts, box: Box | None) -> tuple[tuple[str, str], ...]:
    settings = document["settings"]
    return (
        ("Released draws", f"{settings['samples']}, all of one posterior; more cannot be had"),
        ("Box", "none" if box is None else str(box)),
        ("Noise in training", "none: the draws' own randomness is the privacy"),
        ("Clip norm", f"{settings['clip_norm']:g}"),
        ("Sample rate", f"{settings['sample_rate']:.6g} (independent coins)"),
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


def _unreplayed(document: Mapping[str, Any]) -> str:
    if document["replays"]["pairs"] == 0:
        return "No fit was replayed without a record, so there is no typical case."
    return "The replays without single records are not finished: go on with tacita.inference.resume."


def _replayed(
    readings: Readings,
    fitted: Gaussians,
    without: Gaussians,
    samples: int,
    delta: float,
    box: Box | None,
    one_step: Guarantee | None,
    complete: bool,
) -> Readings:
    """Add what the replays say: the typical case, each replayed record's own, and what is no bound."""
    count = len(without.means)
    every = Gaussians(np.repeat(fitted.means, count, 0), np.repeat(fitted.scales, count, 0))
    cost = final_samples_cost(every, without, samples=samples, delta=delta, box=box, complete=complete)
    own = np.clip(
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
        f"epsilon {round_up_text(cost.observed)} would be the average over the replayed records alone. It is NOT A "
        "BOUND: records that were not replayed may cost any amount more"
    )
    drawn = f"{count} records of these data were drawn with replacement, and the fit replayed without each"
    return replace(
        readings,
        typical=tuple(typical),
        panels=f"The fit was replayed without each of the {count} records of these data" if complete else drawn,
        percentiles=percentiles(own),
        checks=tuple(checks),
        facts=readings.facts if complete else (*readings.facts, ("Seen in the replays", seen)),
    )
