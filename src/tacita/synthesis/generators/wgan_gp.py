"""A Wasserstein GAN with a gradient penalty, without privacy; optionally with the thesis's noisy critic layer."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacita._guard import Interrupts
from tacita._progress import Progress
from tacita.assumptions import assume
from tacita.label import Label, build, no_guarantee
from tacita.runs import Run
from tacita.synthesis.gan import Wgan, WganTraining
from tacita.synthesis.generators.kind import (
    Annotate,
    facts_of,
    new_game,
    readings,
    settings,
    write_run,
)
from tacita.training.randomness import secure_generator

if TYPE_CHECKING:
    from tacita.synthesis.recipes import Recipe, Task

DEFAULTS: dict[str, dict[str, Any]] = {  # by kind of data
    "small images": {"steps": 4000, "batch_size": 64, "learning_rate": 2e-3, "critic_steps": 3, "width": 32},
    "images": {"steps": 6000, "batch_size": 64, "learning_rate": 1e-3, "critic_steps": 2, "width": 16},
    "table": {"steps": 6000, "batch_size": 128, "learning_rate": 1e-3, "critic_steps": 3, "width": 32},
}
ENTRIES = frozenset({"steps", "batch_size", "learning_rate", "critic_steps", "width"})
LAYER_NOISE = 1.5


@dataclass
class WganGp:
    """Trains critic and generator in turns. No guarantee: the data are used without noise."""

    purpose: ClassVar[str] = "Synthetic records from a Wasserstein GAN that was trained without privacy."
    private: ClassVar[bool] = False
    entries: ClassVar[frozenset[str]] = ENTRIES | {"dp_critic"}

    task: Task
    folder: Path
    resume: bool

    def __post_init__(self) -> None:
        task, chosen = self.task, settings(self.task, DEFAULTS)
        layer_noise = LAYER_NOISE if task.recipe.dp_critic else 0.0
        self.facts, self.shares = facts_of(task, self.purpose), None
        self.annotate: Annotate = None
        game = new_game(task, chosen, len(task.classes), layer_noise=layer_noise)
        self.generator, self.untrained = game.generator, copy.deepcopy(game.generator)
        del chosen["width"]
        self.plan = Wgan(**chosen, size=task.size, **self.clipping(task.recipe))
        seed = None if self.resume else task.recipe.seed
        rng = secure_generator() if seed is None else np.random.default_rng(seed)
        self.training = WganTraining(self.plan, game, *task.train, rng=rng, run_dir=self.folder)
        if self.resume and Run(self.folder).has_checkpoint:
            self.training.restore()
        self.steps = self.plan.steps
        self._write()

    def clipping(self, recipe: Recipe) -> dict[str, Any]:
        """Return how a batch's gradient is clipped and noised: not at all."""
        return {}

    def run(self, progress: Progress) -> None:
        """Train critic and generator in turns; Ctrl-C lets a step finish."""
        with Interrupts() as interrupts:
            for step in self.training:
                progress(step, self.steps, "training critic and generator")
                if interrupts.seen:
                    self.facts = replace(self.facts, status="interrupted")
                    raise KeyboardInterrupt
        self.training.game.settle()
        self.facts = self.facts.with_status("done")
        self._write()

    def _write(self) -> None:
        plan = {**asdict(self.plan), "sample_rate": self.plan.sample_rate}
        write_run(self.folder, self.task.recipe, self.facts, plan=plan)

    @staticmethod
    def label(run: Run, delta: float) -> Label:
        """Return a label with an infinite worst case."""
        facts, layer = run.facts, bool(run.recipe.get("dp_critic"))
        declared = (
            "No guarantee: the data were used without noise. Anything below was measured, for the owner; a measurement "
            "bounds nothing.",
            "The critic clips its features to length one and adds noise of 1.5 to them (the thesis's DP critic). That "
            "hides neither the critic's weights nor the gradients that shape the generator: it is a regulariser.",
        )
        return build(
            facts,
            no_guarantee(delta=delta),
            rests_on=(assume("generator-unlimited"),),
            mechanism=(("Generator", f"wgan-gp{', with the DP critic layer' if layer else ''}"),),
            declared=declared if layer else declared[:1],
            readings=readings(facts, "No records were followed: there is no noise to account for."),
        )
