"""A private release without writing a loop: a recipe says which generator is fitted to what, and how."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita.accounting import Target, goal_of
from tacita.data import Dataset
from tacita.data.ids import MOST_RECORDS, capped
from tacita.ledger import kept_place, on_server
from tacita.runs import Run
from tacita.synthesis.generators import GENERATORS
from tacita.synthesis.generators.kind import COMMON
from tacita.synthesis.networks import SMALL
from tacita.training.plan import declared_kind
from tacita.training.recipes import check_words, dataset_of, parts_of, persons_of, read_recipe
from tacita.training.step import check_clip_norm

if TYPE_CHECKING:
    from tacita._check import Counts

KIND = "synthesis"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `tacita synthesise` does. Nothing in it is learned from the data.

    Attributes:
        data: A name (`digits`, `mnist`, `adult`, …) under "name", or a schema with "file".
        name: The run's name.
        generator: One of `GENERATORS`: mean-embedding, private-wgan, wgan-gp (no guarantee) or papers-wgan (the
            thesis's own clipping). What it does not take, of what follows, is refused.
        epsilon: Worst-case target; for the two private generators.
        target: What an attacker may achieve instead: {attack_success = 0.55}, {tpr = [0.02, 0.01]}, {secret = [0.10,
            0.15]} or {mu = [0.5, 1e-5]}; see `tacita.accounting.Target`.
        delta: Total failure probability.
        samples: How many records to release; by default as many as the public size of the data, but 10,000 to 60,000.
        steps: Steps of the fit, or of the critic. Each generator has its default.
        batch_size: Records that a step looks at, planned; the noisy sum is divided by it.
        learning_rate: Of the generator, and of the critic.
        critic_steps: Steps of the critic for each of the generator.
        clip_norm: The largest norm of one record's gradient; in papers-wgan of the whole batch's.
        noise_multiplier: Noise standard deviation over the most that a record may add, instead of `epsilon`; in
            papers-wgan over the clip norm.
        dp_critic: For wgan-gp: clip the critic's features and add noise to them, as in the thesis's chapter 3. It
            regularises, and guarantees nothing.
        annotator: For private-wgan: a generator without labels, and a private classifier that labels what it makes.
        panel: For private-wgan: how many records are followed for the typical case.
        width: How wide the networks are.
        holdout_rate: Chance with which a record is held out, where the data have no test part.
        nominal_size: The public size of the data, if it is not known; how many people, where they have several records.
        records_per_person: For mean-embedding, with `person` in `data`: how many records of a person count, at most.
        ledger: A shared ledger's path, or its URL without a password.
        seed: For runs that can be repeated; not secure.
        noise: For mean-embedding: float, or exact for noise and contributions in whole numbers on a public grid.
    """

    data: Mapping[str, Any]
    name: str = ""
    generator: str = "mean-embedding"
    epsilon: float | None = None
    target: Mapping[str, Any] | str | None = None
    delta: float = 1e-5
    samples: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    critic_steps: int | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    dp_critic: bool = False
    annotator: bool = False
    panel: int = 128
    width: int | None = None
    holdout_rate: float = 0.1
    nominal_size: int | None = None
    records_per_person: int | None = None
    ledger: str | None = None
    seed: int | None = None
    noise: str = "float"

    @property
    def private(self) -> bool:
        """Whether it comes with a guarantee that is calibrated, and charged to a ledger."""
        return GENERATORS[self.generator].private

    @property
    def goal(self) -> tuple[float, float] | Target | None:
        """What the noise is calibrated to; None if it is given."""
        return goal_of(self.epsilon, self.delta, self.target)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Recipe:
        """Check a parsed TOML document; what does not belong together is refused in one line.

        Raises:
            ValueError: If an entry is unknown, out of range, or not for this generator.
        """
        declared_kind(table.get("noise", "float"))  # before its type: a number was once called that
        check_words(cls, table)
        recipe = cls(**table)
        _check.one_of("generator", recipe.generator, tuple(GENERATORS))
        _check_entries(recipe)
        _ = recipe.ledger and kept_place(recipe.ledger)
        for name in ("samples", "steps", "batch_size", "critic_steps", "width", "nominal_size"):
            if getattr(recipe, name) is not None:
                _check.count(name, getattr(recipe, name))
        _check_people(recipe)
        ranges = {
            "epsilon": (1e-3, 500.0),
            "learning_rate": (1e-9, 1e3),
            "noise_multiplier": (0.01 if recipe.private else 1e-3, 1e4),  # less cannot be accounted for
            "holdout_rate": (0.0, 0.9),
        }
        if recipe.clip_norm is not None:
            check_clip_norm(recipe.clip_norm)
        for name, (low, high) in ranges.items():
            if getattr(recipe, name) is not None:
                _check.in_range(name, getattr(recipe, name), low, high)
        _check.probability("delta", recipe.delta)
        return recipe

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a TOML file. Relative paths in it are taken from the file's own folder."""
        return cls.from_dict(read_recipe(path, cls))


def _check_entries(recipe: Recipe) -> None:
    """Refuse entries that the generator would ignore, and a private one without a target or with two."""
    name, kind = recipe.generator, GENERATORS[recipe.generator]
    for entry in fields(recipe):
        if entry.name in COMMON | kind.entries or getattr(recipe, entry.name) == entry.default:
            continue
        takers = " or ".join(other for other, taker in GENERATORS.items() if entry.name in taker.entries)
        if entry.name in ("epsilon", "target", "ledger"):
            raise ValueError(
                f"{name} gives no guarantee, so {entry.name} does not apply: leave it out, or choose {takers}."
            )
        raise ValueError(f"{entry.name} is for {takers}, not for {name}.")
    if kind.private and (recipe.goal is None) == (recipe.noise_multiplier is None):
        raise ValueError(
            f"{name} needs epsilon, the worst case to stay within, or target, or noise_multiplier, and not both."
        )


def _check_people(recipe: Recipe) -> None:
    """Refuse people with several records where they are not protected, or where it is not said how many count."""
    takers = [name for name, kind in GENERATORS.items() if "records_per_person" in kind.entries]
    if "person" in recipe.data and recipe.generator not in takers:
        raise ValueError(
            f"[data] person is for {' or '.join(takers)}: {recipe.generator} protects one record, not a person with "
            "several."
        )
    if ("person" in recipe.data) != (recipe.records_per_person is not None):
        raise ValueError("[data] person, the column of ids, and records_per_person go together: give both or neither.")
    if recipe.records_per_person is not None:
        _check.count("records_per_person", recipe.records_per_person, high=MOST_RECORDS)


@dataclass(frozen=True, eq=False)
class Task:
    """A recipe with its data at hand. Everything but the records, and whose they are, is public.

    Attributes:
        recipe: What was asked for.
        dataset: The data.
        train: Inputs and labels to learn from.
        held: Inputs and labels that were held out.
        coins: What held them out.
        persons: Whose the records of `train` and of `held` are; None if one record is one person.
    """

    recipe: Recipe
    dataset: Dataset
    train: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    coins: int
    persons: tuple[Counts, Counts] | None = None

    def one_each(self, rng: np.random.Generator) -> Task:
        """Return the task with one record of each person, drawn at random: attacks and tests count on independence."""
        if self.persons is None:
            return self
        parts = []
        for (inputs, labels), whose in zip((self.train, self.held), self.persons, strict=True):
            kept = torch.from_numpy(capped(whose, 1, coins=rng.random(len(whose))))
            parts.append((inputs[kept], labels[kept]))
        return replace(self, train=parts[0], held=parts[1], persons=None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.dataset.inputs.shape[1:])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.dataset.classes or ()

    @property
    def blocks(self) -> tuple[int, ...]:
        """For tables: how many features each column has."""
        schema = self.dataset.schema
        return () if schema is None else tuple(len(column.features) for column in schema.columns)

    @property
    def size(self) -> int:
        """The public size of the data."""
        size = self.recipe.nominal_size or self.dataset.nominal_size
        if size is None:
            raise ValueError("Declare nominal_size, the public size of the data; it is not counted.")
        return size

    @property
    def kind(self) -> str:
        """`small images`, `images` or `table`: what default settings go by."""
        if len(self.shape) == 1:
            return "table"
        return "small images" if min(self.shape[1:]) < SMALL else "images"

    @property
    def sizes(self) -> tuple[int, int]:
        """How many records, or people, there are to learn from, and how many were held out. Private."""
        if self.persons is None:
            return len(self.train[1]), len(self.held[1])
        return len(np.unique(self.persons[0])), len(np.unique(self.persons[1]))

    @property
    def samples(self) -> int:
        """How many records are released."""
        return self.recipe.samples or min(max(self.size, 10_000), 60_000)


def prepare(recipe: Recipe, coins: int | None = None) -> Task:
    """Load a recipe's data and check that a generator can be fitted to them."""
    if recipe.ledger is not None and not on_server(recipe.ledger):  # resumed anywhere, it finds the same file
        recipe = replace(recipe, ledger=str(Path(recipe.ledger).resolve()))
    if coins is None:
        coins = secrets.randbits(128) if recipe.seed is None else recipe.seed
    dataset = dataset_of(recipe.data, persons=True)
    if dataset.classes is None:
        raise ValueError("Generators make records of classes: choose a target with classes, not a range.")
    shape = dataset.inputs.shape[1:]
    if len(shape) not in (1, 3) or (len(shape) == 3 and min(shape[1:]) >= SMALL and any(s % 4 for s in shape[1:])):
        raise ValueError(f"Records must be images with sides that 4 divides, or rows of a table; got shape {shape}.")
    train, held, _ = parts_of(dataset, recipe.holdout_rate, coins)
    return Task(recipe, dataset, train, held, coins, persons_of(dataset, recipe.holdout_rate, coins))


def write_recipe(folder: Path, task: Task) -> None:
    """Keep the recipe, and the coins that held records out."""
    asked = asdict(task.recipe)
    if task.recipe.records_per_person is None:  # documents of recipes without people stay as they were
        del asked["records_per_person"]
    Run(folder).write(kind=KIND, family=KIND, recipe=asked, coins=str(task.coins))


def recipe_of(folder: str | Path) -> tuple[Recipe, int]:
    """Read back what `write_recipe` wrote."""
    run = Run.open(folder, KIND)
    with run.reading():
        return Recipe.from_dict(run.recipe), int(run.document()["coins"])
