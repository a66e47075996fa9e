"""From a generator's run to its privacy label: what its making promises, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import composed, gaussian_release, participation_bound
from tacita.assumptions import assume
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee, round_up_text
from tacita.label import (
    Finding,
    Label,
    Readings,
    build,
    no_guarantee,
    noise_assumption,
    not_hardened,
    run_rows,
    status_rows,
)
from tacita.ledger import Ledger
from tacita.runs import Run, RunError, read_json
from tacita.synthesis.recipes import KIND
from tacita.training.labels import Standing, standing_of_run
from tacita.training.panel import Panel
from tacita.training.plan import Plan

_CHOSEN = ("record-is-person", "generator-chosen-blindly", "nothing-else")
_AUDIT = "tacita synthesise --resume RUN"


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a generator's run directory; the data are not needed."""
    run = Run.open(folder, KIND)
    where, document, recipe, facts = run.folder, run.document(), run.recipe, run.facts
    with run.reading():
        if recipe["generator"] != document["generator"]:
            raise PrivacyError("The run was made by another generator than its recipe says.")
        total = float(recipe["delta"]) if delta is None else _check.probability("delta", delta)
        made: Label = _MAKERS[str(document["generator"])](where, document, recipe, facts, total)
    rows = (("Released records", str(document.get("released", "none yet"))),)
    readings = replace(made.readings or Readings(), audit=findings_of(where))
    return replace(
        made,
        title=facts.title,
        purpose=facts.purpose,
        mechanism=(*made.mechanism, *rows),
        audit_command=_AUDIT,
        readings=readings,
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


def _embedding(
    folder: Path, document: Mapping[str, Any], recipe: Mapping[str, Any], facts: RunFacts, delta: float
) -> Label:
    plan, name = Plan.from_dict(document["plan"]), str(document["id"])
    with Ledger.open(_ledger_file(folder, recipe)) as ledger:
        if not ledger.contains(str(document["head"])):
            raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")
        if name not in ledger.runs() or ledger.runs()[name]["mechanism"] != plan.frozen():
            raise PrivacyError("The run's plan is not the one that its ledger froze before the release.")
        if ledger.charged(name) == 0:
            raise PrivacyError("Nothing was released yet: there is nothing to label.")
    state, saved = Run(folder).load()
    if saved["id"] != name or float(state["embedding"]["settings"][0]) != plan.noise_multiplier:
        raise PrivacyError("The kept release belongs to another run.")
    panels = {n: Panel.restore(None, part, saved["panels"][n], budget=None) for n, part in state["panels"].items()}
    plain = Standing(plan, 1, panels, facts, {}).label(delta)
    codes = ("unit-vectors", "one-release", "embedding-fixed-beforehand", "release-charged")
    worst = gaussian_release(noise_multiplier=plan.noise_multiplier, delta=delta)
    return build(
        facts,
        worst,
        rests_on=[*map(assume, codes), noise_assumption(facts), *map(assume, ("after-release", *_CHOSEN))],
        curve=((1, worst.epsilon),),
        mechanism=(
            ("Generator", "mean-embedding: one noisy sum of class-conditional features"),
            ("Sensitivity", "1, for one record added or removed"),
            ("Noise standard deviation", f"{plan.noise_multiplier:.6g}"),
            ("Releases", "1"),
            *run_rows(facts),
        ),
        not_hardened=not_hardened("how long it takes depends on how many records there are"),
        bare_rate=plain.bare_rate,
        readings=plain.readings,
    )


def _critic(
    folder: Path, document: Mapping[str, Any], recipe: Mapping[str, Any], facts: RunFacts, delta: float
) -> Label:
    annotated = _annotated(folder, document, recipe)
    critic = standing_of_run(folder / "critic", ledger_file=_ledger_file(folder, recipe))
    kind = "unlabelled, with a private annotator" if annotated else "conditional"
    rows = (("Generator", f"private-wgan, {kind}; gradient penalty inside each record's loss"),)
    if not annotated:
        label = critic.label(delta)
        readings = label.readings or Readings()
        readings = replace(readings, metrics=facts.metrics, facts=_owner_facts(facts))
        mechanism = (*rows, *_with_ledger(label.mechanism, recipe))
        return replace(label, mechanism=mechanism, readings=readings).resting_on(assume("after-release"))
    annotator = standing_of_run(folder / "annotator", ledger_file=_ledger_file(folder, recipe))
    label = _two_parts(critic, annotator, rows, facts, delta)
    return replace(label, mechanism=_with_ledger(label.mechanism, recipe))


def _annotated(folder: Path, document: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
    """Return whether there were two trainings; what the files say of it must agree, and agree with the ledger."""
    parts = len(document["parts"])
    if len({bool(recipe.get("annotator")), parts == 2, (folder / "annotator").exists()}) > 1:
        raise PrivacyError("The files of this run do not agree on whether an annotator was trained.")
    if not recipe.get("ledger"):
        with Ledger.open(folder / "ledger.sqlite") as ledger:
            if len(ledger.runs()) != parts:
                raise PrivacyError(
                    "The run's own ledger holds more, or fewer, trainings than its label would speak of."
                )
    return parts == 2


def _ledger_file(folder: Path, recipe: Mapping[str, Any]) -> Path:
    return Path(recipe["ledger"]) if recipe.get("ledger") else folder / "ledger.sqlite"


def _with_ledger(mechanism: tuple[tuple[str, str], ...], recipe: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Say once where the run was charged."""
    where = Path(recipe["ledger"]).name if recipe.get("ledger") else "the run's own"
    return (*(row for row in mechanism if not row[0].lower().endswith("ledger")), ("Ledger", where))


def _two_parts(
    critic: Standing, annotator: Standing, rows: tuple[tuple[str, str], ...], facts: RunFacts, delta: float
) -> Label:
    """Return the label of a critic and an annotator that were trained on the same records."""
    halves = [standing.label(delta / 2.0) for standing in (critic, annotator)]
    worst = composed([(s.plan.sample_rate, s.plan.noise_multiplier, s.end) for s in (critic, annotator)], delta=delta)
    typical = _sum([label.readings.typical[0] for label in halves if label.readings and label.readings.typical])
    if typical is not None and typical.epsilon > worst.epsilon:
        typical = replace(typical, epsilon=worst.epsilon, method="worst-case cap")
    names = ("Critic", "Annotator")
    mechanism = tuple(
        (f"{n}: {k.lower()}", v) for n, half in zip(names, halves, strict=True) for k, v in half.mechanism
    )
    alone = tuple(
        (f"{name} alone", f"epsilon {round_up_text(half.worst.epsilon)} at delta {round_up_text(half.worst.delta)}")
        for name, half in zip(names, halves, strict=True)
    )
    readings = _readings(
        facts,
        "Nobody was followed, so there is no typical case."
        if typical is None
        else "Records were followed through both trainings; the two figures, each at half of delta, are added.",
        typical=() if typical is None else (typical,),
    )
    return build(
        facts,
        worst,
        rests_on=(*halves[0].checks, assume("parts-composed"), assume("after-release")),
        mechanism=(*rows, *mechanism, *alone),
        not_hardened=not_hardened(),
        readings=readings,
    )


def _sum(statements: list[Guarantee]) -> Guarantee | None:
    if len(statements) < 2:
        return None
    return statements[0] + statements[1]


def _plain(
    folder: Path, document: Mapping[str, Any], recipe: Mapping[str, Any], facts: RunFacts, delta: float
) -> Label:
    layer = bool(recipe.get("dp_critic"))
    declared = [
        "No guarantee: the data were used without noise. What stands below is what was measured, for the owner; a "
        "measure bounds nothing.",
    ]
    if layer:
        declared.append(
            "The critic clips its features to length one and adds noise of 1.5 to them (the thesis's DP critic). That "
            "hides neither the critic's weights nor the gradients that shape the generator: it is a regulariser."
        )
    return build(
        facts,
        no_guarantee(delta=delta),
        rests_on=(assume("generator-unlimited"),),
        mechanism=(("Generator", f"wgan-gp{', with the DP critic layer' if layer else ''}"),),
        declared=tuple(declared),
        readings=_readings(facts, "Nobody was followed: there is no noise to account for."),
    )


def _papers(
    folder: Path, document: Mapping[str, Any], recipe: Mapping[str, Any], facts: RunFacts, delta: float
) -> Label:
    plan = document["plan"]
    _, saved = Run(folder).load()
    if {**saved["plan"], "sample_rate": plan["sample_rate"]} != plan or int(saved["step"]) > int(plan["steps"]):
        raise PrivacyError("The plan is not the one that the generator was trained by.")
    if plan["sample_rate"] != min(1.0, plan["batch_size"] / plan["size"]):
        raise PrivacyError("The sample rate is not the one that follows from the plan.")
    rate, noise, steps = float(plan["sample_rate"]), float(plan["noise"]), int(plan["steps"])
    worst = participation_bound(sample_rate=rate, noise_multiplier=noise / 2.0, steps=steps, delta=delta)
    return build(
        facts,
        worst,
        rests_on=[*map(assume, ("record-coins", "batch-clipped", "papers-noise-too-small")), noise_assumption(facts)],
        mechanism=(
            ("Generator", "papers-wgan: the whole update is clipped, as the thesis words it"),
            ("Clip norm C", f"{float(plan['clip_norm']):g}"),
            ("Noise over C", f"{noise:g}"),
            ("Sensitivity", "2C, for one record added or removed"),
            ("Sample rate", f"{rate:.6g} (independent coins)"),
            ("Steps", str(steps)),
        ),
        declared=("Offered to compare with the thesis, which reports the Bayesian figure for per-record clipping.",),
        not_hardened=not_hardened(),
        readings=_readings(facts, "Nobody was followed: without per-record clipping there is no record's own figure."),
    )


def _readings(facts: RunFacts, panels: str, *, typical: tuple[Guarantee, ...] = ()) -> Readings:
    return Readings(typical=typical, panels=panels, metrics=facts.metrics, facts=_owner_facts(facts))


def _owner_facts(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    return (
        ("Training records", str(facts.trained)),
        ("Held-out records", str(facts.held_out)),
        *status_rows(facts),
    )


_MAKERS: dict[str, Any] = {
    "mean-embedding": _embedding,
    "private-wgan": _critic,
    "wgan-gp": _plain,
    "papers-wgan": _papers,
}
