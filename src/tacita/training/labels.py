"""From a run to its privacy label: what may be published, and the owner's readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import delta_text, round_up_text
from tacita.accounting import BayesianAccountant, MomentsBudget
from tacita.accounting.filters import Budget
from tacita.accounting.shares import GAMMA, certified_shares, own_epsilons, own_successes
from tacita.assumptions import Assumption, assume, of_persons
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee
from tacita.label import (
    Finding,
    GroupRow,
    Label,
    Pairs,
    Readings,
    build,
    declared_ends,
    end_assumption,
    ends_remark,
    noise_assumption,
    not_hardened,
    percentile,
    percentiles,
    run_rows,
    status_rows,
)
from tacita.ledger import Ledger, Promise
from tacita.owner import Owner
from tacita.runs import Run, RunError, read_json
from tacita.training.keeper import State
from tacita.training.panel import Panel, order_checks
from tacita.training.plan import Plan, filter_epsilon
from tacita.training.rungs import ladder_of
from tacita.training.tuned import Tuned, tuned_of

if TYPE_CHECKING:
    from tacita._check import Floats

_OF_PANELS = (
    "representative",
    "static-norms",
    "observed-norms",
    "measured-at-random",
    "exchangeable",
)  # the rest is enforced by training
_TYPICAL = "; the typical figures are for these"
_SMALL = 1000  # records in a running figure


def reading(panel: Panel, delta: float) -> float:
    """Return the typical epsilon so far, from at most 1000 followed records, evenly spread."""
    some = np.unique(np.linspace(0, len(panel.indices) - 1, _SMALL).astype(int))
    return panel.account(delta).subset(some).running(delta=delta)


@dataclass(frozen=True)
class Standing:
    """A run as it stands: what was declared, how many steps count, who was followed, and how it ended.

    Attributes:
        plan: What was declared.
        taken: How many steps may have been released. For the owner: it may depend on the data.
        panels: Who was followed.
        facts: What the run knows about itself.
        groups: For the owner's tables.
        ended: Why the owner ended it early, if that depended on nothing private.
        promise: What its ledger keeps, if it had a budget from the first charge on.
        tuned: The tuning that it was chosen by, which its label then speaks of.
    """

    plan: Plan
    taken: int
    panels: Mapping[str, Panel]
    facts: RunFacts
    groups: Mapping[str, Any]
    ended: str = ""
    promise: Promise | None = None
    tuned: Tuned | None = None

    @property
    def end(self) -> int:
        """The step that the label speaks of: the declared end that covers the steps taken."""
        return self.taken if self.ended else self.plan.end_after(self.taken)[0]

    def label(self, delta: float) -> Label:
        """Return the label at one delta for every figure."""
        if self.tuned is not None:
            return self._of_tuning(self.tuned, delta)
        plan, worst = self.plan, self.worst(delta)
        comparisons = [plan.headline(self.taken, delta, ended=self.ended, method="rdp")]
        if plan.record_budget is not None:
            plain = replace(plan, record_budget=None).headline(self.taken, delta, ended=self.ended)
            if worst.epsilon < plain.epsilon:
                comparisons.insert(0, plain)
        own = delta if self.ended else delta * plan.end_after(self.taken)[1]
        times = (step for step in reading_times(plan) if step < self.end)
        curve = [(step, min(worst.epsilon, plan.running(step, own))) for step in times]
        return build(
            self.facts,
            worst,
            rests_on=self.rests_on,
            comparisons=comparisons,
            curve=(*curve, (self.end, worst.epsilon)),
            mechanism=(*self.mechanism, *run_rows(self.facts)),
            declared=(*_declared(plan, delta), *ends_remark(plan.stops, self.ended, "step")),
            ladder=tuple((rung.fraction, rung.epsilon) for rung in ladder_of(plan, delta).rungs),
            not_hardened=not_hardened(self.facts, exact=plan.grid is not None),
            bare_rate=plan.bare_rate,
            nominal_size=_declared_size(plan),
            end_shown=bool(plan.stops) or bool(self.ended),
            audit_command="tacita audit RUN",
            readings=self.readings(delta, worst),
        )

    def _of_tuning(self, tuned: Tuned, delta: float) -> Label:
        """Return the label of a run that is the best of several: nothing said of one run alone carries over."""
        facts, unit = replace(self.facts, ledger="the tuning's"), self.plan.unit
        return build(
            facts,
            self.worst(delta),
            rests_on=tuned.rests_on(self.rests_on, unit=unit),
            mechanism=(*self.mechanism, *tuned.rows, *run_rows(facts)),
            not_hardened=not_hardened(
                facts,
                "how long the tuning took depends on how many runs there were, and how long a step takes on how many "
                "records were drawn",
                exact=self.plan.grid is not None,
            ),
            bare_rate=self.plan.bare_rate,
            nominal_size=_declared_size(self.plan),
            readings=Readings(
                metrics=facts.metrics,
                facts=self._own_facts(),
                panels="The figures of single records are those of one run, and do not hold for the best of several.",
            ),
        )

    def _own_facts(self) -> Pairs:
        return (
            (f"Training {self.plan.unit}s", str(self.facts.trained)),
            (f"Held-out {self.plan.unit}s", str(self.facts.held_out)),
            ("Steps taken", f"{self.taken} of {self.plan.steps}{'' if self.tuned else _TYPICAL}"),
            *status_rows(self.facts),
        )

    def worst(self, delta: float) -> Guarantee:
        """Return the worst case of the steps that count, or of the tuning."""
        if self.tuned is not None:
            return self.tuned.worst(delta, unit=self.plan.unit)
        return self.plan.headline(self.taken, delta, ended=self.ended, promise=self.promise)

    def readings(self, delta: float, worst: Guarantee) -> Readings:
        """Return what was followed, for the owner; no figure is above the worst case."""
        plan, panels, metrics = self.plan, self.panels, self.facts.metrics
        own = self._own_facts()
        if not panels:
            return Readings(
                metrics=metrics, facts=own, panels=f"No {plan.unit}s were followed, so there is no typical figure."
            )
        accounts = {name: panel.account(delta) for name, panel in panels.items()}
        statements = {name: self._typical(name, accounts[name], delta) for name in panels}
        larger = max(statements, key=lambda name: statements[name].epsilon)
        headline = statements.pop(larger)
        if headline.epsilon > worst.epsilon:
            headline = capped(headline, worst)
        followed = f"training panel only: {len(panels['training'].indices)} {plan.unit}s were followed"
        if "held-out" in panels:
            sizes = [f"{len(panels[name].indices)} {name}" for name in ("training", "held-out")]
            many = f"{' and '.join(sizes)} {plan.unit}s"
            followed = f"{many} were followed; the {larger} ones gave the larger figure, which is shown"
        several = len(panels[larger].indices) > 1
        papers = [self._typical(larger, accounts[larger], delta, estimator="student")] if several else []
        epsilons = own_epsilons(accounts["training"], worst)
        ladder = ladder_of(plan, delta)
        held_out = panels["held-out"].counts() if ladder.rungs and "held-out" in panels else None
        return Readings(
            typical=(headline, *statements.values(), *papers),
            panels=followed,
            percentiles=percentiles(epsilons),
            successes=percentiles(own_successes(accounts["training"], worst)),
            shares=certified_shares(panels["held-out"].account_for_shares(), worst) if "held-out" in panels else None,
            curve=self.facts.curve if delta == plan.delta else (),
            groups=tuple(_group_rows(panels["training"], self.groups, epsilons)),
            metrics=metrics,
            rung_counts=ladder.counts_of(panels["training"].counts()) if ladder.rungs else (),
            rung_shares=() if held_out is None else ladder.shares(held_out, gamma=GAMMA),
            checks=self._said(order_checks(panels, ordered="ordered-records", unordered="no-trend")),
            certificate=_certificate(plan, panels, delta),
            facts=own,
        )

    def _typical(self, name: str, account: BayesianAccountant, delta: float, **estimator: Any) -> Guarantee:
        """Return a panel's figure without what training enforces, saying what following training records means."""
        found = account.guarantee(delta=delta, **estimator)
        own = [a for a in found.assumptions if a.code in _OF_PANELS]
        if name == "training":
            own = [assume("training-panel-only" if len(self.panels) == 1 else "training-panel"), *own[1:]]
        return replace(found, unit=self.plan.unit, assumptions=self._said(own))

    def _said(self, assumptions: Iterable[Assumption]) -> tuple[Assumption, ...]:
        """Return assumptions on records as they are about the plan's unit."""
        return tuple(map(of_persons, assumptions) if self.plan.unit == "person" else assumptions)

    @property
    def mechanism(self) -> Pairs:
        """Clipping, noise, sampling and steps, for the table of the mechanism."""
        plan = self.plan
        rows = [
            ("Clip norm", f"{plan.clip_norm:g}" if plan.softening is None else f"automatic: {_normalised(plan)}"),
            ("Noise multiplier", f"{plan.noise_multiplier:.6g}"),
            ("Sample rate", f"{plan.sample_rate:.6g} (Poisson sampling)"),
            ("Steps", declared_ends(plan.steps, plan.stops, self.end, self.ended)),
            ("Divisor (declared batch size)", f"{plan.batch_size:g}"),
        ]
        if plan.grid is not None:
            rows.insert(2, ("Noise", f"exact, on a grid of {plan.grid.step:.6g}"))
        if plan.individual_every is not None:
            often = "at every step" if plan.individual_every == 1 else f"once in {plan.individual_every} steps"
            rows.append(("Individual bounds", f"every {plan.unit} is measured {often}"))
        if plan.records_per_person is not None:
            several = f"at most {plan.records_per_person}, drawn afresh at every step; the {plan.of_person} is clipped"
            rows.append(("Records in a person's contribution", several))
        return tuple(rows)

    @property
    def rests_on(self) -> list[Assumption]:
        """What the publishable figures rest on."""
        plan, facts = self.plan, self.facts
        codes = ["record-coins", "clipped", "fixed-beforehand", "charged-in-memory" if facts.in_memory else "charged"]
        codes += ["records-apart", *(["record-budget"] if plan.record_budget is not None else [])]
        codes += ["rungs"] if plan.rungs else []
        asked = [*(["bare-rate"] if plan.bare_rate else []), *(["form-taken"] if facts.form_taken else [])]
        asked += ["record-is-person", *(["rows-alone"] if facts.lone_records else []), "chosen-blindly", "nothing-else"]
        return [
            *self._said(map(assume, codes)),
            noise_assumption(facts, exact=plan.grid is not None),
            *([] if plan.grid is None else map(assume, ("whole-numbers", "others-still"))),
            end_assumption(self.ended, "step"),
            *([assume("public-features", images=", ".join(facts.features))] if facts.features else []),
            *self._said(map(assume, asked)),
        ]


def capped(found: Guarantee, worst: Guarantee) -> Guarantee:
    """Return a typical figure as the worst case of the same run has it, curve included."""
    return replace(found, epsilon=worst.epsilon, method="worst-case cap", profile=worst.profile, one_end=worst.one_end)


def declare_end(folder: str | Path, reason: str) -> None:
    """End the run of a run directory, declaring that this depended on nothing private; see `PrivateTraining.end`."""
    run = Run.open(folder, "training")
    (where,) = run.ledgers
    with Owner(run.folder).opening() as owner, Ledger.open(where) as ledger:
        ledger.end(str(run.document()["id"]), reason)
    owner.close()


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a run directory, from its newest checkpoint; the data are not needed."""
    found = standing_of_run(folder)
    total = found.plan.delta if delta is None else _check.probability("delta", delta)
    return with_audit(found.label(total), Run(Path(folder)), found.taken)


def standing_of_run(folder: str | Path, *, ledger_place: str | Path | None = None) -> Standing:
    """Read a run directory; its ledger, at another place if one is given, says how many steps count."""
    run = Run.open(folder, "training")
    tuned = tuned_of(run)
    state, _, saved = State.load(run)
    with run.reading(), Ledger.open(ledger_place or run.ledgers[0]) as ledger:
        plan, facts, name = state.plan, run.facts, str(saved["id"])
        if name not in ledger.runs() or ledger.runs()[name]["mechanism"] != plan.frozen():
            raise PrivacyError("The run's plan is not the one that its ledger froze before the first step.")
        taken = ledger.standing(name, step=state.taken, head=str(saved["head"]), clean=saved["clean"] is True)
        ended, promise = ledger.ended(name), ledger.promise(name)
    if taken == 0:
        raise PrivacyError("No step was taken yet: there is nothing to label.")
    state.lose((plan.steps if facts.status == "failed" else taken) - state.taken)
    return Standing(plan, state.taken, state.panels, facts, state.groups, ended, promise, tuned)


def require_released(folder: str | Path) -> None:
    """Refuse weights that may not leave a run directory.

    Raises:
        PrivacyError: If the last step failed, no step was taken, or the ledger lacks a step of the newest checkpoint.
    """
    if standing_of_run(folder).facts.status == "failed":
        raise PrivacyError(
            f"The last step of the run in {str(folder)!r} failed halfway: resume it, which goes on from the checkpoint "
            "before, or start anew."
        )


def with_audit(label: Label, run: Run, taken: int) -> Label:
    """Return the label with what attacks found, if the run directory has an audit of as many steps.

    Args:
        label: The owner's label.
        run: The run directory.
        taken: How many steps the label speaks of to the owner.
    """
    if label.readings is None or not (run.folder / "audit.json").exists():
        return label
    document = read_json(run.folder, "audit.json")
    try:
        if (document["steps"], document["delta"]) != (taken, label.worst.delta):
            checks = (*label.readings.checks, assume("audit-outdated"))
            return replace(label, readings=replace(label.readings, checks=checks))
        found = tuple(Finding.from_dict(row) for row in document["findings"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"The audit in {str(run.folder)!r} is damaged: {error} Delete audit.json.") from error
    return replace(label, readings=replace(label.readings, audit=found))


def reading_times(plan: Plan) -> range:
    """Return the steps at which running figures are given."""
    return range(max(5, plan.steps // 10), plan.steps + 1, max(5, plan.steps // 10))


def _declared_size(plan: Plan) -> int | None:
    told = not plan.bare_rate and plan.sample_rate < 1.0  # at rate 1 the plan holds a divisor, and no size
    return round(plan.batch_size / plan.sample_rate) if told else None


def _normalised(plan: Plan) -> str:
    return f"every gradient g is scaled to g / (|g| + {plan.softening:g})"


def _declared(plan: Plan, delta: float) -> tuple[str, ...]:
    lines = []
    if plan.softening is not None:
        lines.append(
            f"No clip norm was chosen: {_normalised(plan)}. Short gradients then count almost as much as long ones, so "
            "figures for most records are closer to the worst case than with a clip norm."
        )
    if plan.record_budget is not None:
        epsilon = filter_epsilon(plan.record_budget, plan.sample_rate, plan.noise_multiplier, delta)
        lines.append(
            f"Every {plan.unit} is held to a budget of epsilon {round_up_text(epsilon)} at delta {delta_text(delta)} "
            f"({_budget_text(plan.record_budget)}); which {plan.unit}s were held back is not disclosed."
        )
    if plan.certificate is not None:
        lines.append(
            f"A conformal certificate was declared before the first step: {_budget_text(plan.certificate)}, with "
            f"{plan.tolerated} followed {plan.unit}s tolerated above it. Whether it was issued depends on the data and "
            "is stated on the owner's label."
        )
    return tuple(lines)


def _budget_text(budget: Budget) -> str:
    if isinstance(budget, MomentsBudget):
        return f"a cap on the moments at {len(budget.orders)} orders"
    levels = [((k / 256) ** 2, n) for k, n in enumerate(budget.tokens) if n]
    return "at most " + ", ".join(f"{n} steps at {share:.3g} of the clip norm" for share, n in reversed(levels))


def _group_rows(panel: Panel, groups: Mapping[str, Any], epsilons: Floats) -> Iterable[GroupRow]:
    for column, (codes, values) in groups.items():
        followed = codes[panel.indices]
        for code, value in enumerate(values):
            own = epsilons[followed == code]
            if len(own):
                yield GroupRow(
                    column=column,
                    value=value,
                    records=len(own),
                    median=percentile(own, 50),
                    p90=percentile(own, 90),
                    largest=float(own.max()),
                )


def _certificate(plan: Plan, panels: Mapping[str, Panel], delta: float) -> str:
    if plan.certificate is None:
        return ""
    try:
        issued = [p.account(delta).guarantee(delta=delta, estimator="conformal") for p in panels.values()]
    except PrivacyError as error:
        return f"Not issued: {error}"
    larger = replace(max(issued, key=lambda g: g.epsilon), unit=plan.unit)
    who = "" if "held-out" in panels else f" It applies only to {plan.unit}s that were trained on."
    return f"Issued. {larger.claim}{who}"
