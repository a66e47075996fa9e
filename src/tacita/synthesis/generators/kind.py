"""What a kind of generator is: a protocol that every entry of `GENERATORS` satisfies, and what the kinds share.

run.json         what was asked for, its plan, the status
ledger.sqlite    the run's own ledger, unless it shares one
checkpoints/     the noisy embedding, or a generator without a guarantee
critic/          the private training of a critic, with its generator
annotator/       the private training of a classifier that labels what an unlabelled generator makes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from tacita._progress import Progress
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee
from tacita.label import Label, Pairs, Readings, status_rows
from tacita.ledger import name_of
from tacita.runs import Run
from tacita.synthesis.gan import Game, adam
from tacita.synthesis.networks import Generator, make_critic, make_generator

if TYPE_CHECKING:
    from tacita.synthesis.recipes import Recipe, Task

Annotate = Callable[[Tensor], Tensor] | None

COMMON = frozenset({"data", "name", "generator", "delta", "samples", "holdout_rate", "nominal_size", "seed"})
WIDTHS = {"small images": 64, "images": 32, "table": 64}  # of the generators


class Maker(Protocol):
    """A kind of generator; an instance is one generator in the making.

    To add a kind, write a file with such a class and a line in `GENERATORS`.

    Attributes:
        purpose: What is made, in a sentence, for the label.
        private: Whether it gives a guarantee that is calibrated to a target, and charged to a ledger.
        entries: The recipe entries that it takes besides `COMMON`; others are refused.
        task: What is asked for, with the data.
        generator: The network; trained once `run` has returned.
        untrained: The network as it was before any training, for a control.
        steps: How many steps there are to show progress by.
        shares: The chance of each class in a release; None for even ones.
        annotate: Labels for records of a generator that knows no classes; None for one that does.
        facts: What the run knows about itself.
    """

    purpose: ClassVar[str]
    private: ClassVar[bool]
    entries: ClassVar[frozenset[str]]
    task: Task
    generator: Generator
    untrained: Generator
    steps: int
    shares: Any
    annotate: Annotate
    facts: RunFacts

    def __init__(self, task: Task, folder: Path, *, resume: bool) -> None:
        """Begin a run in a new directory, or take up an interrupted one; nothing new has been charged on return."""

    def run(self, progress: Progress) -> None:
        """Take the remaining steps; an interrupted run can be resumed."""

    @staticmethod
    def label(run: Run, delta: float) -> Label:
        """Return the label of a run directory at this delta; the data are not needed.

        Raises:
            PrivacyError: If the run's files contradict its ledger or each other.
        """


def facts_of(task: Task, purpose: str) -> RunFacts:
    """Return what a run knows about itself before its first step."""
    recipe = task.recipe
    return RunFacts(
        title=recipe.name or f"Synthetic {task.dataset.name}",
        purpose=purpose,
        seeded=recipe.seed is not None,
        trained=task.sizes[0],
        held_out=task.sizes[1],
        ledger=name_of(recipe.ledger) if recipe.ledger else "",
    )


def write_run(folder: Path, recipe: Recipe, facts: RunFacts, **more: Any) -> None:
    """Write run.json.

    Args:
        folder: The run directory.
        recipe: What was asked for.
        facts: What the run knows about itself.
        more: Further entries.
    """
    run = Run(folder)
    ledgers = [run.place(ledger_path(recipe.ledger, folder))] if recipe.private else []
    run.write(generator=recipe.generator, ledgers=ledgers, facts=facts.to_dict(), **more)


def ledger_path(shared: str | None, folder: Path) -> str:
    """Return where a run is charged: a shared ledger, or its own."""
    return shared or str(folder / "ledger.sqlite")


def settings(task: Task, defaults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the default settings for a kind of data, with those of the recipe in their place."""
    chosen = dict(defaults[task.kind])
    asked = {name: getattr(task.recipe, name, None) for name in chosen}
    return {**chosen, **{name: value for name, value in asked.items() if value is not None}}


def new_game(task: Task, chosen: Mapping[str, Any], classes: int, *, layer_noise: float = 0.0) -> Game:
    """Return an untrained critic and generator.

    Args:
        task: What is asked for, with the data.
        chosen: The settings `batch_size`, `learning_rate` and `width`.
        classes: How many classes the generator knows; 0 for none.
        layer_noise: Of a noisy critic layer; 0 for none.

    Returns:
        Both networks, with random weights.
    """
    seed_weights(task.recipe.seed)
    generator = make_generator(task.shape, classes, blocks=task.blocks, width=WIDTHS[task.kind])
    critic = make_critic(task.shape, classes, width=chosen["width"], layer_noise=layer_noise)
    pool = max(8, chosen["batch_size"] // max(1, classes))  # generated records of a class: about as many as real ones
    return Game(critic, generator, adam(generator.parameters(), chosen["learning_rate"]), pool=pool)


def require_signal(noise_multiplier: float, records: float, what: str) -> None:
    """Refuse a target so small that noise outweighs all records together. Nothing here depends on the data.

    Args:
        noise_multiplier: The noise that the target takes.
        records: How many records are added up.
        what: The sentence that says so, with {} for their number.

    Raises:
        ValueError: If there are fewer records than the noise is worth.
    """
    if noise_multiplier > records:
        raise ValueError(
            f"epsilon or target is too small for these data: it takes noise of {noise_multiplier:,.0f} times what "
            f"one record may add, and {what.format(f'{records:,.0f}')}. Nothing but noise would be released: ask for a "
            "larger epsilon, or a weaker target."
        )


def seed_weights(seed: int | None) -> None:
    """Make the networks' first weights repeatable, where a seed was chosen."""
    if seed is not None:
        torch.manual_seed(seed)


def owner_rows(facts: RunFacts) -> Pairs:
    """Return the facts that the label shows to the data's owner."""
    return (
        ("Training records", str(facts.trained)),
        ("Held-out records", str(facts.held_out)),
        *status_rows(facts),
    )


def readings(facts: RunFacts, panels: str, *, typical: tuple[Guarantee, ...] = ()) -> Readings:
    """Return the owner's part of a label.

    Args:
        facts: What the run knows about itself.
        panels: Who was followed, in words.
        typical: The typical case, if anybody was.

    Returns:
        What the label shows to the owner alone.
    """
    return Readings(typical=typical, panels=panels, metrics=facts.metrics, facts=owner_rows(facts))
