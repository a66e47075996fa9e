"""A critic trained with DP-SGD and a generator fitted to it; without labels, also a private annotator."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita._progress import Progress
from tacita.accounting import Target, calibrate_composed, calibrate_composed_to, composed, most_spent
from tacita.accounting.profiles import worst_profile
from tacita.assumptions import assume
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee
from tacita.label import Label, Pairs, Readings, build, not_hardened, run_rows
from tacita.ledger import DECLARED, BudgetExceeded, Ledger
from tacita.ledger.costs import cost_units
from tacita.ledger.rows import LedgerState
from tacita.ledger.totals import Totals, distance_units, floor_for
from tacita.runs import Run
from tacita.synthesis.gan import adam, game_records
from tacita.synthesis.generators.kind import (
    Annotate,
    facts_of,
    ledger_path,
    new_game,
    owner_rows,
    readings,
    require_signal,
    settings,
    write_run,
)
from tacita.synthesis.students import predict
from tacita.training.charges import ledger_at
from tacita.training.labels import Standing, capped, standing_of_run
from tacita.training.loop import PrivateTraining
from tacita.training.recipes import default_model

if TYPE_CHECKING:
    from tacita.synthesis.recipes import Task

Part = tuple[float, float, int]  # sample rate, noise multiplier, steps

CRITICS: dict[str, dict[str, Any]] = {  # by kind of data
    "small images": {"steps": 600, "batch_size": 256, "learning_rate": 2e-3, "critic_steps": 2, "width": 4},
    "images": {"steps": 1000, "batch_size": 256, "learning_rate": 1e-3, "critic_steps": 2, "width": 8},
    "table": {"steps": 600, "batch_size": 512, "learning_rate": 1e-3, "critic_steps": 2, "width": 8},
}
CHUNK = 128  # records differentiated at once: more leave the cache, fewer spend more on each call
ANNOTATOR: dict[str, Any] = {"steps": 200, "batch_size": 512, "learning_rate": 0.5}


@dataclass
class PrivateWgan:
    """A private critic and its generator; the worst case of one private training, or of two that are composed."""

    purpose: ClassVar[str] = "Synthetic records from a Wasserstein GAN whose critic was trained with DP-SGD."
    private: ClassVar[bool] = True
    entries: ClassVar[frozenset[str]] = frozenset(
        {"epsilon", "target", "noise_multiplier", "ledger", "steps", "batch_size", "learning_rate", "critic_steps"}
        | {"clip_norm", "width", "panel", "annotator"}
    )

    task: Task
    folder: Path
    resume: bool

    def __post_init__(self) -> None:
        task, recipe = self.task, self.task.recipe
        self.chosen = settings(task, CRITICS)
        self.facts, self.shares = facts_of(task, self.purpose), None
        self.annotate: Annotate = None
        self.game = new_game(task, self.chosen, 0 if recipe.annotator else len(task.classes))
        self.generator, self.untrained = self.game.generator, copy.deepcopy(self.game.generator)
        self.draws = torch.Generator().manual_seed(int(np.random.default_rng(recipe.seed).integers(2**62)))
        labeller = default_model(task.shape, len(task.classes)) if recipe.annotator else None
        self._ledger = ledger_path(recipe.ledger, self.folder)
        if self.resume:
            self.parts = [(rate, noise, steps) for rate, noise, steps in Run(self.folder).document()["parts"]]
        else:
            self.parts = self._plan()
            with ledger_at(self._ledger) as ledger:  # it exists before any part is begun
                if recipe.annotator:
                    require_budget(ledger, self.parts)
            self._write()
        self.critic = self._critic()
        self.annotation = None if labeller is None else self._annotation(labeller)
        self.steps = sum(part.plan.steps for part in (self.critic, self.annotation) if part is not None)

    def _plan(self) -> list[Part]:
        recipe, size, batch_size = self.task.recipe, self.task.size, self.chosen["batch_size"]
        noise = recipe.noise_multiplier or 1.0
        parts = [(min(1.0, batch_size / size), noise, self.chosen["steps"])]
        if recipe.annotator:
            parts.append((min(1.0, ANNOTATOR["batch_size"] / size), noise, ANNOTATOR["steps"]))
        goal = recipe.goal
        if isinstance(goal, Target):
            parts = list(calibrate_composed_to(goal, parts, delta=recipe.delta))
        elif goal is not None:
            parts = list(calibrate_composed(parts, epsilon=goal[0], delta=goal[1]))
        if goal is not None:
            require_signal(parts[0][1], batch_size, "a step looks at about {} records")
        return parts

    def _critic(self) -> PrivateTraining:
        return self._training(
            "critic",
            (self.game, None, game_records(*self.task.train)),
            self.parts[0],
            self.chosen["batch_size"],
            {"seed": self.task.recipe.seed, "clip_norm": self.task.recipe.clip_norm or 1.0},
            optimizer=adam(self.game.critic.parameters(), self.chosen["learning_rate"]),
            holdout=game_records(*self.task.held),
            companions={"generator": self.game.companion()},
            chunk=CHUNK,
        )

    def _annotation(self, labeller: nn.Module) -> PrivateTraining:
        return self._training(
            "annotator",
            (labeller, nn.functional.cross_entropy, self.task.train),
            self.parts[1],
            ANNOTATOR["batch_size"],
            {"seed": second_seed(self.task.recipe.seed)},
            optimizer=torch.optim.SGD(labeller.parameters(), lr=ANNOTATOR["learning_rate"], momentum=0.9),
            holdout=self.task.held,
        )

    def _training(
        self, name: str, trained: Any, part: Part, batch_size: int, declared: dict[str, Any], **attached: Any
    ) -> PrivateTraining:
        """Begin a private training, or resume it if it was begun.

        Args:
            name: Its folder, and what it is called.
            trained: Model, loss and records.
            part: What was calibrated.
            batch_size: The planned one.
            declared: Further settings of a new training.
            attached: What a resumed training needs, too.
        """
        task, where, (model, loss, records) = self.task, self.folder / name, trained
        if self.resume and where.exists():
            return PrivateTraining.resume(where, model, loss, records, ledger=Ledger.open(self._ledger), **attached)
        return PrivateTraining(
            model,
            loss,
            records,
            nominal_size=max(task.size, batch_size),
            noise_multiplier=part[1],
            steps=part[2],
            batch_size=batch_size,
            panel=task.recipe.panel,
            delta=task.recipe.delta,
            run_dir=where,
            ledger=self._ledger,
            name=f"{self.facts.title}: {name}",
            **declared,
            **attached,
        )

    def run(self, progress: Progress) -> None:
        """Train the annotator, then critic and generator in turns."""
        before = 0
        if self.annotation is not None:
            for step in self.annotation:
                progress(step.number, self.steps, "training the annotator")
            before = self.annotation.plan.steps
            self.annotate = partial(predict, self.annotation.model)
        self.game.refresh(draws=self.draws)
        for step in self.critic:
            if step.number % self.chosen["critic_steps"] == 0:
                self.game.improve(draws=self.draws)
            self.game.refresh(draws=self.draws)
            progress(before + step.number, self.steps, "training critic and generator")
        self.game.settle()
        self.facts = self.facts.with_status(self.critic.status)
        self._write()

    def _write(self) -> None:
        write_run(self.folder, self.task.recipe, self.facts, parts=self.parts)

    @staticmethod
    def label(run: Run, delta: float) -> Label:
        """Return the label of the critic's training, or of both trainings composed.

        Raises:
            PrivacyError: If the run's files contradict its ledger or each other.
        """
        ledger_place = ledger_path(run.recipe.get("ledger"), run.folder)
        annotated, facts = _annotated(run), run.facts
        critic = standing_of_run(run.folder / "critic", ledger_place=ledger_place)
        kind = "unlabelled, with a private annotator" if annotated else "conditional"
        rows = (("Generator", f"private-wgan, {kind}; gradient penalty inside each record's loss"),)
        if annotated:
            annotator = standing_of_run(run.folder / "annotator", ledger_place=ledger_place)
            fresh = tuple(dict.fromkeys((*critic.facts.fresh, *annotator.facts.fresh)))
            return _composed_label(critic, annotator, rows, replace(facts, fresh=fresh), delta)
        own = replace(
            critic.facts, title=facts.title, purpose=facts.purpose, metrics=facts.metrics, ledger=facts.ledger
        )
        label = replace(critic, facts=own).label(delta)
        shown = replace(label.readings or Readings(), facts=owner_rows(facts))
        label = replace(label, mechanism=(*rows, *label.mechanism), readings=shown)
        return label.resting_on(assume("after-release"))


def _annotated(run: Run) -> bool:
    """Return whether there were two trainings; what the files say of it must agree, and agree with the ledger."""
    parts, recipe = len(run.document()["parts"]), run.recipe
    if len({bool(recipe.get("annotator")), parts == 2, (run.folder / "annotator").exists()}) > 1:
        raise PrivacyError("The files of this run do not agree on whether an annotator was trained.")
    if not recipe.get("ledger"):
        with Ledger.open(ledger_path(None, run.folder)) as ledger:
            if len(ledger.runs()) != parts:
                raise PrivacyError(
                    "The run's own ledger holds more, or fewer, trainings than its label would speak of."
                )
    return parts == 2


def _composed_label(critic: Standing, annotator: Standing, rows: Pairs, facts: RunFacts, delta: float) -> Label:
    """Return the label of a critic and an annotator that were trained on the same records."""
    parts = {"Critic": critic, "Annotator": annotator}
    alone = {name: part.worst(delta / 2.0) for name, part in parts.items()}
    typical = [part.readings(delta / 2.0, alone[name]).typical for name, part in parts.items()]
    worst = composed([(p.plan.sample_rate, p.plan.noise_multiplier, p.end) for p in parts.values()], delta=delta)
    mechanism = tuple(
        (f"{name}: {row.lower()}", value)
        for name, part in parts.items()
        for row, value in (*part.mechanism, run_rows(part.facts)[0])
    )
    figures = tuple(
        (f"{name} alone", f"epsilon {round_up_text(own.epsilon)} at delta {round_up_text(own.delta)}")
        for name, own in alone.items()
    )
    return build(
        facts,
        worst,
        rests_on=(*critic.rests_on, assume("parts-composed"), assume("after-release")),
        mechanism=(*rows, *mechanism, *figures, run_rows(facts)[1]),
        not_hardened=not_hardened(facts),
        readings=_summed(typical, worst, facts),
    )


def _summed(typical: Sequence[tuple[Guarantee, ...]], worst: Guarantee, facts: RunFacts) -> Readings:
    """Return the owner's readings: the typical figures of both parts, added and capped by the worst case."""
    if not all(typical):
        return readings(facts, "No records were followed, so there is no typical figure.")
    total = typical[0][0] + typical[1][0]
    if total.epsilon > worst.epsilon:
        total = capped(total, worst)
    panels = "Records were followed through both trainings; the two figures, each at half of delta, are added."
    return readings(facts, panels, typical=(total,))


def require_budget(ledger: Ledger, parts: Sequence[Part]) -> None:
    """Refuse trainings that are of use only together, and that the ledger's budget does not pay for to the end.

    Nothing is charged or reserved here: what others charge later may still stop a run before its end.

    Args:
        ledger: Where they would be charged.
        parts: Sample rate, noise multiplier and number of steps of each.

    Raises:
        BudgetExceeded: If all steps of all parts would bring the total past the budget.
    """
    state = LedgerState()
    for row in ledger.rows():
        state.apply(row)
    if state.budget is None:
        return
    epsilon, delta = state.budget
    totals, floor = state.totals, floor_for(state.budget, ledger.gaussian_share)
    for rate, noise, steps in parts:
        costs = most_spent(None, steps=steps, orders=DECLARED, sample_rate=rate, noise_multiplier=noise)
        rounded = tuple(units + steps for units in cost_units(costs))
        curve = worst_profile(sample_rate=rate, noise_multiplier=noise, steps=steps)
        squared, fails = distance_units(curve, floor=floor)
        totals += Totals(rounded, pure=math.inf, squared=squared, fails=fails)
    after = totals.epsilon(delta, gaussian_share=ledger.gaussian_share)
    if not after <= epsilon:
        raise BudgetExceeded(
            f"Critic and annotator together would bring the ledger's total to epsilon {round_up_text(after)} at delta "
            f"{delta:g}, and the budget is {epsilon:g}. Nothing was charged: ask for a smaller epsilon, or let the "
            "budget's owner raise it."
        )


def second_seed(seed: int | None) -> int | None:
    """Return a seed for the second mechanism of one run, different from anybody's first."""
    return None if seed is None else int(np.random.SeedSequence([seed, 1]).generate_state(1, np.uint64)[0] >> 1)
