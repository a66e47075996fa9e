"""How each generator is made in a run directory: what is charged, what is kept, and how it goes on after a stop.

run.json         what was asked for, its plan, the status
ledger.sqlite    the run's own ledger, unless it shares one
checkpoints/     the noisy embedding, or a generator without a guarantee
critic/          the private training of a critic, with its generator
annotator/       the private training of a classifier that labels what an unlabelled generator makes
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tacita._check import PrivacyError
from tacita._guard import Interrupts
from tacita.accounting import BayesianAccountant, calibrate_composed, calibrate_gaussian, most_spent
from tacita.facts import RunFacts
from tacita.guarantee import round_up_text
from tacita.ledger import DECLARED, BudgetExceeded, Ledger
from tacita.ledger.costs import cost_units, total_epsilon
from tacita.ledger.rows import LedgerState
from tacita.owner import Owner
from tacita.runs import Run, RunError
from tacita.synthesis import embedding as embeddings
from tacita.synthesis.gan import Game, Wgan, WganTraining, adam, game_records, quickest_chunk
from tacita.synthesis.networks import Generator, make_critic, make_generator
from tacita.synthesis.recipes import Recipe, Task, fix_weights, fresh_generator
from tacita.training.charges import Charges, ledger_at
from tacita.training.loop import PrivateTraining
from tacita.training.panel import Panel
from tacita.training.plan import Plan
from tacita.training.randomness import randomness
from tacita.training.recipes import default_model

Progress = Callable[[int, str], None]
Annotate = Callable[[Tensor], Tensor] | None
Part = tuple[float, float, int]  # sample rate, noise multiplier, steps

CRITICS: dict[str, dict[str, Any]] = {  # for private critics, by kind of data
    "small images": {"steps": 600, "batch_size": 256, "learning_rate": 2e-3, "critic_steps": 2, "width": 4},
    "images": {"steps": 1000, "batch_size": 256, "learning_rate": 1e-3, "critic_steps": 2, "width": 8},
    "table": {"steps": 600, "batch_size": 512, "learning_rate": 1e-3, "critic_steps": 2, "width": 8},
}
PLAIN: dict[str, dict[str, Any]] = {  # for generators without a guarantee
    "small images": {"steps": 4000, "batch_size": 64, "learning_rate": 2e-3, "critic_steps": 3, "width": 32},
    "images": {"steps": 6000, "batch_size": 64, "learning_rate": 1e-3, "critic_steps": 2, "width": 16},
    "table": {"steps": 6000, "batch_size": 128, "learning_rate": 1e-3, "critic_steps": 3, "width": 32},
}
WIDTHS = {"small images": 64, "images": 32, "table": 64}  # of the generators
ANNOTATOR: dict[str, Any] = {"steps": 200, "batch_size": 512, "learning_rate": 0.5}
LAYER_NOISE = 1.5
_FOLLOWED = 2000  # records whose contribution to an embedding is kept for the typical case
PAPERS = {"clip_norm": 0.5, "noise": 0.01}


class Maker(Protocol):
    """One generator on its way.

    Attributes:
        task: What is asked for, with the data.
        generator: The network; trained once `run` has returned.
        untrained: The network as it was before any training, for a control.
        steps: How many steps there are to show progress by.
        shares: The chance of each class in a release; None for even ones.
        annotate: Labels for records of a generator that knows no classes; None for one that does.
        facts: What the run knows about itself.
    """

    task: Task
    generator: Generator
    untrained: Generator
    steps: int
    shares: Any
    annotate: Annotate
    facts: RunFacts

    def run(self, progress: Progress) -> None:
        """Do what is left to do; interrupting leaves something to go on with."""


def make(task: Task, folder: Path) -> Maker:
    """Begin a run in a new directory: nothing has been charged yet when this returns."""
    maker: Maker = _KINDS[task.recipe.generator](task, folder, resume=False)
    return maker


def remake(task: Task, folder: Path) -> Maker:
    """Take up a run where it was left."""
    maker: Maker = _KINDS[task.recipe.generator](task, folder, resume=True)
    return maker


def settings(task: Task, defaults: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of a kind of data, with what the recipe says instead."""
    chosen = dict(defaults[task.kind])
    asked = {name: getattr(task.recipe, name, None) for name in chosen}
    return {**chosen, **{name: value for name, value in asked.items() if value is not None}}


def _facts(task: Task) -> RunFacts:
    words = {
        "mean-embedding": "Synthetic records from a generator fitted to one noisy release of mean features.",
        "private-wgan": "Synthetic records from a Wasserstein GAN whose critic was trained with DP-SGD.",
        "wgan-gp": "Synthetic records from a Wasserstein GAN that was trained without privacy.",
        "papers-wgan": "Synthetic records from a Wasserstein GAN clipped and noised as the thesis words it.",
    }
    return RunFacts(
        title=task.recipe.name or f"Synthetic {task.dataset.name}",
        purpose=words[task.recipe.generator],
        seeded=task.recipe.seed is not None,
        trained=len(task.train[1]),
        held_out=len(task.held[1]),
    )


def write_run(folder: Path, task: Task, facts: RunFacts, **more: Any) -> None:
    """Write run.json."""
    run = Run(folder)
    ledgers = [run.place(ledger_path(task.recipe, folder))] if task.recipe.private else []
    run.write(generator=task.recipe.generator, ledgers=ledgers, facts=facts.to_dict(), **more)


def _pool(batch_size: int, classes: int) -> int:
    """Return how many made records of each class a step has to choose from: about as many as there are real ones."""
    return max(8, batch_size // max(1, classes))


def ledger_path(recipe: Recipe, folder: Path) -> Path:
    """Return where a run is charged."""
    return Path(recipe.ledger) if recipe.ledger else folder / "ledger.sqlite"


def require_budget(ledger: Ledger, parts: Sequence[Part]) -> None:
    """Refuse trainings that are of use only together, and that the ledger's budget does not pay for to the end.

    Nothing is charged or kept back here: what others charge later may still stop a run before its end.

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
    totals = state.totals
    for rate, noise, steps in parts:
        costs = most_spent(None, steps=steps, orders=DECLARED, sample_rate=rate, noise_multiplier=noise)
        totals = tuple(t + units + steps for t, units in zip(totals, cost_units(costs), strict=True))  # rounding, too
    after = total_epsilon(totals, state.deltas, delta=delta)
    if not after <= epsilon:
        raise BudgetExceeded(
            f"Critic and annotator together would bring the ledger's total to epsilon {round_up_text(after)} at delta "
            f"{delta:g}, and the budget is {epsilon:g}. Nothing was charged: ask for a smaller epsilon, or let the "
            "budget's owner raise it."
        )


def require_signal(task: Task, noise: float, records: float, what: str) -> None:
    """Refuse a budget so small that noise outweighs all records together. Nothing here depends on the data."""
    if noise > records:
        raise ValueError(
            f"epsilon {task.recipe.epsilon:g} is too small for these data: it takes noise of {noise:,.0f} times what "
            f"one record may add, and {what.format(f'{records:,.0f}')}. Nothing but noise would be released: ask for a "
            "larger epsilon."
        )


def second_seed(seed: int | None) -> int | None:
    """Return a seed for a second mechanism of one run, unlike anybody's first."""
    return None if seed is None else int(np.random.SeedSequence([seed, 1]).generate_state(1, np.uint64)[0] >> 1)


@dataclass
class EmbeddingMaker:
    """One noisy release of class-conditional mean features, charged, kept, and then fitted at no further cost."""

    task: Task
    folder: Path
    resume: bool

    def __post_init__(self) -> None:
        recipe, task = self.task.recipe, self.task
        self.settings = embeddings.settings(task.kind, steps=recipe.steps, learning_rate=recipe.learning_rate)
        self.features = embeddings.default_features(task.shape, task.kind)
        fix_weights(recipe.seed)
        self.generator = embeddings.default_generator(task.shape, len(task.classes), task.blocks, task.kind)
        self.untrained = copy.deepcopy(self.generator)
        self.annotate: Annotate = None
        self.shares: Any = None
        self.fitted = False
        self.steps = self.settings["steps"] + 1  # the release, then the fit
        self._released: embeddings.Embedding | None = None
        self.owner = Owner()  # for its token; the job holds the folder
        self._begin() if not self.resume else self._go_on()

    def _begin(self) -> None:
        task = self.task
        noise = task.recipe.noise
        if noise is None:
            target = task.recipe.epsilon or 1.0
            noise = calibrate_gaussian(epsilon=target, delta=task.recipe.delta).noise_multiplier
            require_signal(task, noise, task.size / len(task.classes), "a class of these data has about {} records")
        self.plan = Plan(
            clip_norm=1.0,
            noise_multiplier=noise,
            sample_rate=1.0,
            steps=1,
            batch_size=1.0,
            delta=task.recipe.delta,
        )
        self.identity, self.facts = secrets.token_hex(8), _facts(task)
        self.random = randomness(task.recipe.seed)
        with ledger_at(ledger_path(task.recipe, self.folder)) as ledger:
            self.facts = self.facts.with_ledger(ledger.path.name, shared=task.recipe.ledger is not None)
            Charges(ledger, self.identity, self.plan, owner=self.owner.token).open(self.random)
            self.head = ledger.head
        self._write()

    def _go_on(self) -> None:
        run = Run(self.folder)
        document = run.document()
        with run.reading():
            self.plan, self.identity = Plan.from_dict(document["plan"]), str(document["id"])
            self.head, self.facts = str(document["head"]), run.facts
        self.random = randomness(None)
        if run.has_checkpoint:
            self._take()

    def _take(self) -> None:
        state, saved = Run(self.folder).load()
        try:
            self._released = embeddings.Embedding.from_tensors(state["embedding"])
            self.panels = {
                name: Panel.restore(None, part, saved["panels"][name], budget=None)
                for name, part in state["panels"].items()
            }
            if state["generator"]:
                self.generator.load_state_dict(state["generator"])
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise RunError(f"The checkpoint does not fit this generator: {error}") from error
        self.shares, self.fitted = self._released.proportions.numpy(), bool(state["generator"])

    def run(self, progress: Progress) -> None:
        """Release once, then fit; a stop during the fit costs nothing but the fit."""
        if self._released is None:
            self._release(progress)
        if not self.fitted and self._released is not None:
            progress(1, "fitting the generator")
            rng = fresh_generator(self.task.recipe.seed)
            embeddings.fit_generator(
                self.generator,
                self._released,
                self.features,
                **self.settings,
                rng=rng,
                progress=lambda step: progress(1 + step, "fitting the generator"),
            )
            self._keep(2)
        self.fitted, self.facts = True, self.facts.with_status("done")
        self._write()

    def _release(self, progress: Progress) -> None:
        """Add everybody up, charge, and only then let the noisy sum leave this function."""
        progress(0, "computing features")
        inputs, labels = self.task.train
        total = embeddings.embedding_sum(inputs, labels, len(self.task.classes), self.features)
        self.panels = {name: self._followed(part[0]) for name, part in self._parts.items()}
        with Ledger.open(ledger_path(self.task.recipe, self.folder)) as ledger:
            if not ledger.contains(self.head):
                raise PrivacyError("This is not the ledger that the run was opened in, or it was rolled back.")
            charges = Charges(ledger, self.identity, self.plan, owner=self.owner.token)
            charges.open(self.random)
            if charges.charged:
                raise PrivacyError(
                    "This run's release was charged, and lost before it was kept. It is neither repeated nor refunded: "
                    "start a new run."
                )
            charges.grant(0)
        self._released = embeddings.add_noise(total, noise_multiplier=self.plan.noise_multiplier, rng=self.random.noise)
        self.shares, self.fitted = self._released.proportions.numpy(), False
        self._keep(1)

    @property
    def _parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {"training": self.task.train, "held-out": self.task.held}

    def _followed(self, inputs: Tensor) -> Panel:
        """Return some records with what they add, as the accountant follows records."""
        everyone = np.arange(len(inputs))
        some = np.sort(self.random.sampling.choice(everyone, min(_FOLLOWED, len(inputs)), replace=False))
        accountant = BayesianAccountant(sample_rate=1.0, noise_multiplier=self.plan.noise_multiplier, steps=1)
        panel = Panel(None, some, accountant)
        panel.measure(embeddings.contribution_norms(inputs[some], self.features).numpy(), period=1)
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
        write_run(self.folder, self.task, self.facts, id=self.identity, plan=self.plan.to_dict(), head=self.head)


@dataclass
class GanMaker:
    """A critic trained with DP-SGD and a generator fitted to it; without labels, also a private annotator."""

    task: Task
    folder: Path
    resume: bool

    def __post_init__(self) -> None:
        task, recipe = self.task, self.task.recipe
        self.chosen = settings(task, CRITICS)
        self.facts, self.shares = _facts(task), None
        self.annotate: Annotate = None
        fix_weights(recipe.seed)
        known = 0 if recipe.annotator else len(task.classes)
        self.generator = make_generator(task.shape, known, blocks=task.blocks, width=WIDTHS[task.kind])
        self.untrained = copy.deepcopy(self.generator)
        critic = make_critic(task.shape, known, width=self.chosen["width"])
        optimizer = adam(self.generator.parameters(), self.chosen["learning_rate"])
        self.game = Game(critic, self.generator, optimizer, pool=_pool(self.chosen["batch_size"], known))
        self.draws = torch.Generator().manual_seed(int(fresh_generator(recipe.seed).integers(2**62)))
        self.labeller = default_model(task.shape, len(task.classes)) if recipe.annotator else None
        if not self.resume:
            self.parts = self._plan()
            with ledger_at(ledger_path(recipe, self.folder)) as ledger:  # it exists before any part is begun
                if recipe.annotator:
                    require_budget(ledger, self.parts)
            self._write()
        else:
            self.parts = [(rate, noise, steps) for rate, noise, steps in Run(self.folder).document()["parts"]]
        self.critic = self._critic()
        self.annotation = self._annotation() if recipe.annotator else None
        self.steps = self.critic.plan.steps + (self.annotation.plan.steps if self.annotation else 0)

    def _plan(self) -> list[Part]:
        recipe, size = self.task.recipe, self.task.size
        noise = recipe.noise or 1.0
        parts = [(min(1.0, self.chosen["batch_size"] / size), noise, self.chosen["steps"])]
        if recipe.annotator:
            parts.append((min(1.0, ANNOTATOR["batch_size"] / size), noise, ANNOTATOR["steps"]))
        if recipe.epsilon is not None:
            parts = list(calibrate_composed(parts, epsilon=recipe.epsilon, delta=recipe.delta))
            require_signal(self.task, parts[0][1], self.chosen["batch_size"], "a step looks at about {} records")
        return parts

    def _critic(self) -> PrivateTraining:
        task, where = self.task, self.folder / "critic"
        records, held = game_records(*task.train), game_records(*task.held)
        optimizer = adam(self.game.critic.parameters(), self.chosen["learning_rate"])
        common: dict[str, Any] = {
            "optimizer": optimizer,
            "holdout": held,
            "companions": {"generator": self.game.companion()},
            "chunk": quickest_chunk(self.game, 128),
        }
        if self.resume and where.exists():
            ledger = Ledger.open(ledger_path(task.recipe, self.folder))
            return PrivateTraining.resume(where, self.game, None, records, ledger=ledger, **common)
        _, noise, steps = self.parts[0]
        return PrivateTraining(
            self.game,
            None,
            records,
            nominal_size=max(task.size, self.chosen["batch_size"]),
            noise_multiplier=noise,
            steps=steps,
            batch_size=self.chosen["batch_size"],
            clip_norm=task.recipe.clip_norm or 1.0,
            panel=task.recipe.panel,
            delta=task.recipe.delta,
            seed=task.recipe.seed,
            run_dir=where,
            ledger=ledger_path(task.recipe, self.folder),
            name=f"{self.facts.title}: critic",
            **common,
        )

    def _annotation(self) -> PrivateTraining:
        task, where = self.task, self.folder / "annotator"
        if self.labeller is None:
            raise ValueError("This run has no annotator.")
        common: dict[str, Any] = {
            "optimizer": torch.optim.SGD(self.labeller.parameters(), lr=ANNOTATOR["learning_rate"], momentum=0.9),
            "holdout": task.held,
        }
        if self.resume and where.exists():
            common["ledger"] = Ledger.open(ledger_path(task.recipe, self.folder))
            return PrivateTraining.resume(where, self.labeller, nn.functional.cross_entropy, task.train, **common)
        _, noise, steps = self.parts[1]
        return PrivateTraining(
            self.labeller,
            nn.functional.cross_entropy,
            task.train,
            nominal_size=max(task.size, ANNOTATOR["batch_size"]),
            noise_multiplier=noise,
            steps=steps,
            batch_size=ANNOTATOR["batch_size"],
            panel=task.recipe.panel,
            delta=task.recipe.delta,
            seed=second_seed(task.recipe.seed),
            run_dir=where,
            ledger=ledger_path(task.recipe, self.folder),
            name=f"{self.facts.title}: annotator",
            **common,
        )

    def run(self, progress: Progress) -> None:
        """Train the annotator, then critic and generator in turns."""
        before = 0
        if self.annotation is not None:
            for step in self.annotation:
                progress(step.number, "training the annotator")
            before = self.annotation.plan.steps
            self.annotate = self._labels
        self.game.refresh(draws=self.draws)
        for step in self.critic:
            if step.number % self.chosen["critic_steps"] == 0:
                self.game.improve(draws=self.draws)
            self.game.refresh(draws=self.draws)
            progress(before + step.number, "training critic and generator")
        self.game.settle()
        self.facts = self.facts.with_status(self.critic.status)
        self._write()

    @torch.no_grad()
    def _labels(self, inputs: Tensor) -> Tensor:
        if self.labeller is None:
            raise ValueError("This run has no annotator.")
        answers: Tensor = self.labeller(inputs)
        return answers.argmax(1)

    def _write(self) -> None:
        write_run(self.folder, self.task, self.facts, parts=self.parts)


@dataclass
class PlainMaker:
    """A generator without a guarantee: plain, with a noisy critic layer, or clipped as a whole as in the thesis."""

    task: Task
    folder: Path
    resume: bool

    def __post_init__(self) -> None:
        task, recipe = self.task, self.task.recipe
        chosen = settings(task, PLAIN)
        self.facts, self.shares = _facts(task), None
        self.annotate: Annotate = None
        fix_weights(recipe.seed)
        self.generator = make_generator(task.shape, len(task.classes), blocks=task.blocks, width=WIDTHS[task.kind])
        self.untrained = copy.deepcopy(self.generator)
        noise = LAYER_NOISE if recipe.dp_critic else 0.0
        critic = make_critic(task.shape, len(task.classes), width=chosen["width"], layer_noise=noise)
        pool = _pool(chosen["batch_size"], len(task.classes))
        game = Game(critic, self.generator, adam(self.generator.parameters(), chosen["learning_rate"]), pool=pool)
        self.plan = Wgan(
            steps=chosen["steps"],
            batch_size=chosen["batch_size"],
            size=task.size,
            critic_steps=chosen["critic_steps"],
            learning_rate=chosen["learning_rate"],
            clip_norm=(recipe.clip_norm or PAPERS["clip_norm"]) if recipe.generator == "papers-wgan" else None,
            noise=(recipe.noise or PAPERS["noise"]) if recipe.generator == "papers-wgan" else 0.0,
        )
        rng = np.random.default_rng(None if self.resume else recipe.seed)
        self.training = WganTraining(self.plan, game, *task.train, rng=rng, run_dir=self.folder)
        if self.resume and Run(self.folder).has_checkpoint:
            self.training.restore()
        self.steps = self.plan.steps
        self._write()

    def run(self, progress: Progress) -> None:
        """Train critic and generator in turns; Ctrl-C lets a step finish."""
        with Interrupts() as interrupts:
            for step in self.training:
                progress(step, "training critic and generator")
                if interrupts.seen:
                    self.facts = replace(self.facts, status="interrupted")
                    raise KeyboardInterrupt
        self.training.game.settle()
        self.facts = self.facts.with_status("done")
        self._write()

    def _write(self) -> None:
        plan = {**asdict(self.plan), "sample_rate": self.plan.sample_rate}
        write_run(self.folder, self.task, self.facts, plan=plan)


_KINDS: dict[str, Any] = {
    "mean-embedding": EmbeddingMaker,
    "private-wgan": GanMaker,
    "wgan-gp": PlainMaker,
    "papers-wgan": PlainMaker,
}
