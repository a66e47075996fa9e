"""One noisy release of class-conditional mean features, charged, kept, and then fitted at no further cost."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tacita._check import PrivacyError
from tacita._progress import Progress
from tacita.accounting import BayesianAccountant, Target, calibrate_gaussian, gaussian_release, least_noise_for
from tacita.assumptions import Assumption, assume
from tacita.data.ids import capped
from tacita.label import Label, build, noise_assumption, not_hardened, run_rows
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.profile import Profile
from tacita.runs import Run, RunError
from tacita.synthesis import embedding as embeddings
from tacita.synthesis.features import Moments
from tacita.synthesis.generators.kind import (
    Annotate,
    facts_of,
    ledger_path,
    require_signal,
    seed_weights,
    settings,
    write_run,
)
from tacita.training.charges import Charges, ledger_at
from tacita.training.labels import Standing
from tacita.training.panel import Panel
from tacita.training.plan import Plan
from tacita.training.randomness import randomness

if TYPE_CHECKING:
    from tacita._check import Counts
    from tacita.synthesis.recipes import Task

_FOLLOWED = 2000  # records whose contribution to an embedding is kept for the typical case


@dataclass
class MeanEmbedding:
    """One Gaussian release of sensitivity 1, and a generator fitted to it."""

    purpose: ClassVar[str] = "Synthetic records from a generator fitted to one noisy release of mean features."
    private: ClassVar[bool] = True
    entries: ClassVar[frozenset[str]] = frozenset(
        {"epsilon", "target", "noise_multiplier", "noise", "ledger", "steps", "learning_rate", "records_per_person"}
    )

    task: Task
    folder: Path
    resume: bool

    def __post_init__(self) -> None:
        recipe, task = self.task.recipe, self.task
        self.settings = settings(task, embeddings.DEFAULTS)
        self.features = Moments(task.shape, **embeddings.FEATURES[task.kind])
        seed_weights(recipe.seed)
        self.generator = embeddings.new_generator(self.features, len(task.classes), task.blocks)
        self.untrained = copy.deepcopy(self.generator)
        self.annotate: Annotate = None
        self.shares: Any = None
        self.fitted = False
        self.steps = self.settings["steps"] + 1  # the release, then the fit
        self._released: embeddings.Embedding | None = None
        self.owner = Owner()  # for its token; the job holds the folder
        self._ledger = ledger_path(recipe.ledger, self.folder)
        self._restore() if self.resume else self._begin()

    def _begin(self) -> None:
        task, recipe = self.task, self.task.recipe
        noise = recipe.noise_multiplier
        if noise is None:
            noise = _calibrated(recipe.goal or (1.0, recipe.delta))
            who = "records" if task.persons is None else "people"
            require_signal(noise, task.size / len(task.classes), f"a class of these data has about {{}} {who}")
        self.plan = Plan(
            clip_norm=1.0,
            noise_multiplier=noise,
            sample_rate=1.0,
            steps=1,
            batch_size=1.0,
            delta=recipe.delta,
            unit="record" if task.persons is None else "person",
            noise=recipe.noise,
        )
        if self.plan.grid is not None and task.persons is not None:  # the grid also fails early if it does not exist
            raise PrivacyError(
                "noise = 'exact' is for data in which one record is one person: leave person out of data."
            )
        self.identity, self.facts = secrets.token_hex(8), facts_of(task, self.purpose)
        self.random = randomness(recipe.seed)
        with ledger_at(self._ledger, unit=self.plan.unit) as ledger:
            Charges(ledger, self.identity, self.plan, owner=self.owner.token).open(self.random)
            self.head, self.facts = ledger.head, replace(self.facts, fresh=ledger.fresh)
        self._write()

    def _restore(self) -> None:
        run = Run(self.folder)
        document = run.document()
        with run.reading():
            self.plan, self.identity = Plan.from_dict(document["plan"]), str(document["id"])
            self.head, self.facts = str(document["head"]), run.facts
        self.random = randomness(None)
        if not run.has_checkpoint:
            return
        state, saved = run.load()
        try:
            self._released = embeddings.Embedding.from_tensors(state["embedding"])
            self.panels = _panels(state, saved)
            if state["generator"]:
                self.generator.load_state_dict(state["generator"])
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise RunError(f"The checkpoint does not fit this generator: {error}") from error
        self.shares, self.fitted = self._released.proportions.numpy(), bool(state["generator"])

    def run(self, progress: Progress) -> None:
        """Release once, then fit; an interruption of the fit costs nothing but the fit."""
        released = self._released or self._release(progress)
        if not self.fitted:
            progress(1, self.steps, "fitting the generator")
            embeddings.fit_generator(
                self.generator,
                released,
                self.features,
                **self.settings,
                rng=np.random.default_rng(self.task.recipe.seed),
                progress=lambda step, _, doing: progress(1 + step, self.steps, doing),
            )
            self._keep(2)
        self.fitted, self.facts = True, self.facts.with_status("done")
        self._write()

    def _release(self, progress: Progress) -> embeddings.Embedding:
        """Sum all contributions, charge, and only then return the noisy sum."""
        progress(0, self.steps, "computing features")
        task = self.task
        grid = self.plan.grid
        total = self._summed()
        whose = task.persons or (None, None)
        followed = zip(("training", "held-out"), (task.train[0], task.held[0]), whose, strict=True)
        self.panels = {name: self._followed(inputs, persons) for name, inputs, persons in followed}
        with Ledger.open(self._ledger) as ledger:
            _require_same_ledger(ledger, self.head)
            charges = Charges(ledger, self.identity, self.plan, owner=self.owner.token)
            charges.open(self.random)
            if charges.charged:
                raise PrivacyError(
                    "This run's release was charged, and lost before it was kept. It is neither repeated nor refunded: "
                    "start a new run."
                )
            charges.grant(0)
        noise: dict[str, Any] = {"noise_multiplier": self.plan.noise_multiplier, "rng": self.random.noise}
        if grid is None:
            released = embeddings.add_noise(total, **noise)
        else:
            released = embeddings.add_whole_noise(total, grid=grid, **noise)
        self._released, self.shares = released, released.proportions.numpy()
        self._keep(1)
        return released

    def _summed(self) -> Tensor:
        """Return the sum without noise, of some records of each person where they have too many."""
        (inputs, labels), classes = self.task.train, len(self.task.classes)
        most = self.task.recipe.records_per_person
        if self.plan.grid is not None:
            if self.task.persons is not None:
                raise PrivacyError("noise = 'exact' is for data in which one record is one person.")
            return embeddings.whole_embedding_sum(inputs, labels, classes, self.features, grid=self.plan.grid)
        if self.task.persons is None or most is None:
            return embeddings.embedding_sum(inputs, labels, classes, self.features)
        persons = self.task.persons[0]
        kept = capped(persons, most, coins=self.random.sampling.random(len(persons)))
        rows = torch.from_numpy(kept)
        return embeddings.embedding_sum(inputs[rows], labels[rows], classes, self.features, persons=persons[kept])

    def _followed(self, inputs: Tensor, persons: Counts | None) -> Panel:
        """Return some records with what they add, as the accountant follows records; or people with the most they may.

        Which records of a person were added is hidden, so the longest of all of them counts.
        """
        everyone = np.arange(len(inputs)) if persons is None else np.unique(persons)
        some = np.sort(self.random.sampling.choice(everyone, min(_FOLLOWED, len(everyone)), replace=False))
        rows = some if persons is None else np.flatnonzero(np.isin(persons, some))
        found = embeddings.contribution_norms(inputs[torch.from_numpy(rows)], self.features).numpy()
        norms = np.zeros(len(some))
        np.maximum.at(norms, np.arange(len(some)) if persons is None else np.searchsorted(some, persons[rows]), found)
        accountant = BayesianAccountant(sample_rate=1.0, noise_multiplier=self.plan.noise_multiplier, steps=1)
        panel = Panel(some, accountant)
        panel.measure(norms, period=1)
        panel.tick()
        return panel

    def _keep(self, step: int) -> None:
        if self._released is None:
            return
        followed = {name: panel.state() for name, panel in self.panels.items()}
        state = {
            "embedding": self._released.to_tensors(),
            "generator": self.generator.state_dict() if step > 1 else {},
            "panels": {name: tensors for name, (tensors, _) in followed.items()},
        }
        plain = {name: document for name, (_, document) in followed.items()}
        Run(self.folder).save(step, state, {"panels": plain, "id": self.identity})

    def _write(self) -> None:
        plan = self.plan.to_dict()
        write_run(self.folder, self.task.recipe, self.facts, id=self.identity, plan=plan, head=self.head)

    @staticmethod
    def label(run: Run, delta: float) -> Label:
        """Return the label of the one release.

        Raises:
            PrivacyError: If nothing was released, or files and ledger contradict each other.
        """
        document, facts = run.document(), run.facts
        plan, name = Plan.from_dict(document["plan"]), str(document["id"])
        _check_charged(ledger_path(run.recipe.get("ledger"), run.folder), name, plan, str(document["head"]))
        state, saved = run.load()
        if saved["id"] != name or float(state["embedding"]["settings"][0]) != plan.noise_multiplier:
            raise PrivacyError("The kept release belongs to another run.")
        worst = replace(gaussian_release(noise_multiplier=plan.noise_multiplier, delta=delta), unit=plan.unit)
        exact = plan.grid is not None
        also = map(assume, ("whole-numbers", "others-still") if exact else ())
        adds, whose, added = _protected(run.recipe, plan)
        codes = ("one-release", "embedding-fixed-beforehand", "release-charged")
        asked = ("generator-chosen-blindly", "nothing-else")
        rests_on = [
            adds,
            *map(assume, codes),
            noise_assumption(facts, exact=exact),
            *also,
            assume("after-release"),
            *whose,
        ]
        readings = Standing(plan, 1, _panels(state, saved), facts, {}).readings(delta, worst)
        return build(
            facts,
            worst,
            rests_on=[*rests_on, *map(assume, asked)],
            curve=((1, worst.epsilon),),
            mechanism=(
                ("Generator", "mean-embedding: one noisy sum of class-conditional features"),
                ("Sensitivity", f"1, for one {added} added or removed"),
                ("Noise standard deviation", f"{plan.noise_multiplier:.6g}"),
                *([] if plan.grid is None else [("Noise", f"exact, on a grid of {plan.grid.step:.6g}")]),
                ("Releases", "1"),
                *run_rows(facts),
            ),
            not_hardened=not_hardened(facts, "how long it takes depends on how many records there are", exact=exact),
            bare_rate=plan.bare_rate,
            readings=replace(readings, typical=tuple(replace(g, unit=plan.unit) for g in readings.typical)),
        )


def _protected(recipe: Mapping[str, Any], plan: Plan) -> tuple[Assumption, list[Assumption], str]:
    """Return what a record or a person adds, whose records they are, and what is added or removed, in words."""
    if plan.unit == "record":
        return assume("unit-vectors"), [assume("record-is-person")], "record"
    alone = [assume("rows-alone")] if recipe["data"].get("missing_person") == "own" else []
    most = int(recipe["records_per_person"])
    return assume("person-vectors", rows=most), [assume("ids-are-people"), *alone], "person with all records"


def _calibrated(goal: tuple[float, float] | Target) -> float:
    if isinstance(goal, Target):
        return least_noise_for(goal, lambda noise: Profile.gaussian(1.0 / noise))
    epsilon, delta = goal
    return calibrate_gaussian(epsilon=epsilon, delta=delta).noise_multiplier


def _check_charged(place: str, name: str, plan: Plan, head: str) -> None:
    """Refuse to label what the ledger does not know as charged by this plan."""
    with Ledger.open(place) as ledger:
        _require_same_ledger(ledger, head)
        if name not in ledger.runs() or ledger.runs()[name]["mechanism"] != plan.frozen():
            raise PrivacyError("The run's plan is not the one that its ledger froze before the release.")
        if ledger.charged(name) == 0:
            raise PrivacyError("Nothing was released yet: there is nothing to label.")


def _require_same_ledger(ledger: Ledger, head: str) -> None:
    if not ledger.contains(head):
        raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")


def _panels(state: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Panel]:
    found = state["panels"].items()
    return {name: Panel.restore(part, saved["panels"][name], budget=None) for name, part in found}
