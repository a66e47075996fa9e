"""Training without writing a loop: a recipe says what to train on what, and how."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import attempt, held
from tacita.accounting import token_profile
from tacita.data import Dataset, Schema, load, read_table
from tacita.label import Label
from tacita.runs import Run, RunError
from tacita.training.loop import PrivateTraining, Step
from tacita.training.records import Records

_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `tacita train` does. Every entry but `data` has a default; none is learned from the data.

    Attributes:
        data: A name (`digits`, `mnist`, …) under "name", or a schema with "file".
        name: The run's name.
        purpose: What is made, in a sentence, for the label.
        model: `module:attr`, a function of nothing that returns an `nn.Module`, or a module class. None takes a
            small CNN for images and a linear model for tables.
        epsilon: Worst-case target, together with `delta`. Or give `noise_multiplier`.
        noise_multiplier: Noise standard deviation over the clip norm.
        delta: Total failure probability.
        batch_size: The planned batch: the noisy sum is divided by it.
        nominal_size: The public size of the data, from which the sample rate is made. Built-in sets know theirs.
        sample_rate: Instead of `nominal_size`; the label then says that it was your choice.
        steps: How many steps.
        stops: Further declared ends, such as [100, 200], or {"100" = 0.2, …} with shares of delta.
        clip_norm: The largest norm of one record's gradient.
        optimizer: sgd, adam or adamw.
        learning_rate: Its learning rate.
        momentum: For sgd.
        individual_every: Give every record its own bound, measured once in so many steps. 0 for none.
        panel: How many records are followed if not all are measured.
        holdout: Chance with which a record is held out, where the data have no test part.
        record_profile: {fraction of the clip norm: share of the steps}: what a record may spend.
        certificate_profile: The same, for a conformal certificate.
        tolerated: How many followed records may pass the certificate's budget.
        ledger: A shared ledger's path.
        seed: For runs that can be repeated; not secure.
    """

    data: Mapping[str, Any]
    name: str = ""
    purpose: str = ""
    model: str | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    batch_size: int = 256
    nominal_size: int | None = None
    sample_rate: float | None = None
    steps: int = 500
    stops: list[int] | Mapping[str, float] = ()  # type: ignore[assignment]
    clip_norm: float = 1.0
    optimizer: str = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.9
    individual_every: int = 0
    panel: int = 256
    holdout: float = 0.1
    record_profile: Mapping[str, float] | None = None
    certificate_profile: Mapping[str, float] | None = None
    tolerated: int = 0
    ledger: str | None = None
    seed: int | None = None

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Recipe:
        """Check a parsed TOML document; unknown words are refused with the nearest known one."""
        check_words(cls, table)
        recipe = cls(**table)
        if (recipe.epsilon is None) == (recipe.noise_multiplier is None):
            raise ValueError("Give either epsilon or noise_multiplier, and not both.")
        _check.one_of("optimizer", recipe.optimizer, tuple(_OPTIMIZERS))
        _check.count("steps", recipe.steps)
        _check.count("batch_size", recipe.batch_size)
        _check.in_range("holdout", recipe.holdout, 0.0, 0.9)
        _check.in_range("learning_rate", recipe.learning_rate, 0.0, 1e6)
        _check.in_range("momentum", recipe.momentum, 0.0, 1e6)
        _check.count("individual_every", recipe.individual_every, low=0)
        return recipe

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a TOML file. Relative paths in it are taken from the file's own folder."""
        return cls.from_dict(read_recipe(path, cls))


def check_words(recipe: type, table: Mapping[str, Any]) -> None:
    """Refuse entries that a recipe does not know or of another type, and a recipe without data."""
    known = [f.name for f in fields(recipe)]
    renamed: Mapping[str, str] = getattr(recipe, "RENAMED", {})
    for word in table:
        if word in renamed:
            raise ValueError(f"{word} is called {renamed[word]} now: rename the entry of the recipe.")
        if word not in known:
            raise ValueError(f"{word!r} is not an entry of a recipe{_meant(get_close_matches(str(word), known, 1))}")
    if not isinstance(table.get("data"), Mapping):
        raise ValueError("A recipe needs a [data] table, with a name or a file.")
    for entry in fields(recipe):
        value = table.get(entry.name)
        if value is not None and str(entry.type).startswith("str") and not isinstance(value, str):
            raise ValueError(f"{entry.name} must be text in quotes, got {value!r}.")
        if value is not None and str(entry.type).startswith("Mapping") and not isinstance(value, Mapping):
            raise ValueError(f"{entry.name} must be a table, got {value!r}.")
    seed = table.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise ValueError(f"seed must be a whole number in [0, 2**63), got {seed!r}.")


def read_recipe(path: str | Path, recipe: type) -> dict[str, Any]:
    """Read a recipe's TOML file; relative paths are taken from its own folder, and its name is the default name."""
    file = Path(path)
    try:
        table = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ValueError(f"There is no file {str(file)!r}.") from None
    except IsADirectoryError:
        raise ValueError(f"{str(file)!r} is a folder; pass a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(file)!r} is not TOML: {error}.") from None
    check_words(recipe, table)
    data = dict(table["data"])
    for entry in ("file", "test"):
        if isinstance(data.get(entry), str):
            data[entry] = os.path.join(file.parent, data[entry])
    if isinstance(table.get("ledger"), str):
        table["ledger"] = os.path.join(file.parent, table["ledger"])
    return {**table, "data": data, "name": table.get("name") or file.stem}


DEMOS = {
    "digits": Recipe(
        data={"name": "digits"},
        name="Handwritten digits, 8x8",
        purpose="A small convolutional network that reads handwritten digits.",
        epsilon=3.0,
        batch_size=256,
        steps=100,
        learning_rate=0.5,
        individual_every=5,
    ),
    "mnist": Recipe(
        data={"name": "mnist"},
        name="Handwritten digits, MNIST",
        purpose="A small convolutional network that reads handwritten digits.",
        epsilon=2.0,
        batch_size=512,
        steps=400,
        panel=128,
    ),
    "fashion-mnist": Recipe(
        data={"name": "fashion-mnist"},
        name="Clothes, Fashion-MNIST",
        purpose="A small convolutional network that tells clothes apart.",
        epsilon=2.0,
        batch_size=512,
        steps=400,
        panel=128,
    ),
    "adult": Recipe(
        data={"name": "adult"},
        name="Income, Adult census",
        purpose="A logistic regression that tells incomes above 50,000 dollars from census answers.",
        epsilon=1.0,
        batch_size=1024,
        steps=300,
        clip_norm=0.5,
        learning_rate=1.0,
        individual_every=1,
    ),
    "abalone": Recipe(
        data={"name": "abalone"},
        name="Age of abalones",
        purpose="A logistic regression that tells older abalones from measurements of their shells.",
        epsilon=1.0,
        batch_size=512,
        steps=300,
        clip_norm=0.5,
        learning_rate=1.0,
        individual_every=1,
    ),
}


@dataclass
class Job:
    """A recipe made ready: data, model and training."""

    recipe: Recipe
    dataset: Dataset
    model: nn.Module
    private: PrivateTraining
    held: tuple[Tensor, Tensor] = field(repr=False)

    def score(self) -> tuple[str, float]:
        """Return what is measured on held-out records, and its value. For the owner.

        A record on which the model fails is a wrong answer; where numbers are predicted it is left out.
        """
        self.model.eval()
        with torch.no_grad(), held():
            errors = attempt(self._errors, *self.held)
            if errors is None:  # one of them fails: all others are still measured
                own = [attempt(self._errors, x[None], y[None]) for x, y in zip(*self.held, strict=True)]
                failed = torch.ones(int(self.dataset.classes is not None))
                errors = torch.cat([failed[:0], *(failed if one is None else one for one in own)])
        self.model.train()
        if self.dataset.classes is None:
            return "root mean squared error (scaled)", float(errors.mean().sqrt())
        return "accuracy", 1.0 - float(errors.mean())

    def _errors(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return each record's squared error, or whether its class is wrong."""
        outputs: Tensor = self.model(inputs)
        if self.dataset.classes is None:
            return (outputs.flatten() - targets).square()
        return (outputs.argmax(1) != targets).float()

    def run(self, progress: Callable[[Step, Job], None] | None = None) -> Label:
        """Take the remaining steps and return the label, which the run directory gets too."""
        for step in self.private:
            if progress is not None:
                progress(step, self)
        name, value = self.score()
        text = f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
        where = "the test set" if len(self.dataset.test_targets) else "records held out"
        return self.private.label(delta=self.recipe.delta, metrics={name: f"{text} on {where}"})


def start(recipe: Recipe, run_dir: str | Path) -> Job:
    """Make a recipe ready to run in a new run directory."""
    coins = secrets.randbits(128) if recipe.seed is None else recipe.seed
    dataset, model, loss, optimizer, (train, held, groups) = _prepare(recipe, coins)
    profile = _profile(recipe.record_profile, recipe.steps)
    private = PrivateTraining(
        model,
        loss,
        train,
        optimizer=optimizer,
        **_sizes(recipe, dataset),
        steps=recipe.steps,
        stops=_stops(recipe.stops),
        clip_norm=recipe.clip_norm,
        noise_multiplier=recipe.noise_multiplier,
        target=None if recipe.epsilon is None else (recipe.epsilon, recipe.delta),
        individual_every=recipe.individual_every or None,
        record_budget=profile,
        certificate=_profile(recipe.certificate_profile, recipe.steps),
        tolerated=recipe.tolerated,
        panel=recipe.panel,
        holdout=held,
        groups=groups,
        ledger=recipe.ledger,
        run_dir=run_dir,
        seed=recipe.seed,
        delta=recipe.delta,
        name=recipe.name or dataset.name,
        purpose=recipe.purpose,
    )
    Run(Path(run_dir)).write(recipe=asdict(recipe), coins=str(coins))
    return Job(recipe, dataset, model, private, held)


def restart(run_dir: str | Path) -> Job:
    """Make an interrupted run of a recipe ready to go on."""
    recipe, coins = _recipe_of(run_dir)
    dataset, model, loss, optimizer, (train, held, _) = _prepare(recipe, coins)
    private = PrivateTraining.resume(run_dir, model, loss, train, optimizer=optimizer, holdout=held)
    return Job(recipe, dataset, model, private, held)


@dataclass(frozen=True)
class Trained:
    """A recipe's run as it stands, to look at: nothing is charged or changed.

    Attributes:
        dataset: What it was trained on.
        model: With the newest checkpoint's parameters.
        loss: Its loss function.
        train: Inputs and targets trained on.
        held: Inputs and targets held out.
        remake: Returns the model and the optimiser as before the first step, and no scheduler.
    """

    dataset: Dataset
    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    train: tuple[Tensor, Tensor] = field(repr=False)
    held: tuple[Tensor, Tensor] = field(repr=False)
    remake: Callable[[], tuple[nn.Module, torch.optim.Optimizer, None]]


def reopen(run_dir: str | Path) -> Trained:
    """Return the model and the records of a recipe's run."""
    recipe, coins = _recipe_of(run_dir)
    state, saved = Run.open(run_dir, "training").load()
    dataset, model, loss, _, (train, held, _) = _prepare(recipe, coins)
    if saved.get("data") != Records(train).fingerprint():
        raise PrivacyError("These are not the records that the run was started on: it is another dataset.")
    try:
        model.load_state_dict(state["model"])
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise RunError(f"The checkpoint does not fit the recipe's model: {error}") from error

    def remake() -> tuple[nn.Module, torch.optim.Optimizer, None]:
        with torch.random.fork_rng(devices=[]):
            _, fresh, _, optimizer, _ = _prepare(recipe, coins, dataset)
        return fresh, optimizer, None

    return Trained(dataset, model, loss, train, held, remake)


def _recipe_of(run_dir: str | Path) -> tuple[Recipe, int]:
    run = Run.open(run_dir, "training")
    with run.reading():
        return Recipe.from_dict(run.recipe), int(run.document()["coins"])


def _prepare(
    recipe: Recipe, coins: int, dataset: Dataset | None = None
) -> tuple[Dataset, nn.Module, Any, torch.optim.Optimizer, Any]:
    dataset = dataset or dataset_of(recipe.data)
    if recipe.seed is not None:
        torch.manual_seed(recipe.seed)
    outputs = len(dataset.classes) if dataset.classes is not None else 1
    model = _custom(recipe.model) if recipe.model else default_model(dataset.inputs.shape[1:], outputs)
    loss = nn.functional.cross_entropy if dataset.classes is not None else _squared_error
    options: dict[str, Any] = {"momentum": recipe.momentum} if recipe.optimizer == "sgd" else {}
    optimizer = _OPTIMIZERS[recipe.optimizer](model.parameters(), lr=recipe.learning_rate, **options)
    return dataset, model, loss, optimizer, parts_of(dataset, recipe.holdout, coins)


def dataset_of(table: Mapping[str, Any]) -> Dataset:
    """Return the data that a recipe's [data] table names."""
    if "name" in table:
        extra = set(table) - {"name", "target"}
        if extra:
            raise ValueError(f"[data] with a name takes no {sorted(extra)}; columns go with a file.")
        return load(str(table["name"]), target=table.get("target"))
    if "file" not in table:
        raise ValueError("[data] needs a name (one of the built-in sets) or a file.")
    described = {k: v for k, v in table.items() if k not in ("file", "test")}
    schema = Schema.from_dict(described, within="data.")
    for entry in ("file", "test"):
        if entry in table and not Path(str(table[entry])).is_file():
            raise ValueError(f"[data] names a {entry} that is not there: {str(table[entry])!r}.")
    return read_table(table["file"], schema, test=table.get("test"))


def parts_of(
    dataset: Dataset, holdout: float, coins: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], dict[str, Any]]:
    """Return training and held-out tensors, and the groups of the training records.

    Without a test part every record is held out by its own coin. The coins' seed is secret, and kept in the run
    directory for resuming: independent coins that nobody knows belong to records, not to positions, so one
    record's presence moves no other. With a public seed, removing a record would shift everyone's coin.
    """
    groups = dict(dataset.groups)
    if dataset.classes is not None:
        groups = {"class": np.array(dataset.classes)[dataset.targets.astype(int)], **groups}
    inputs, targets = torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)
    if len(dataset.test_targets):
        held = (torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_targets))
        return (inputs, targets), held, groups
    out = np.random.default_rng(coins).random(len(targets)) < holdout
    if not out.any() or out.all():
        raise ValueError("holdout leaves no records to train on, or none to hold out; change it or give a test file.")
    kept = torch.from_numpy(~out)
    return (inputs[kept], targets[kept]), (inputs[~kept], targets[~kept]), {k: v[~out] for k, v in groups.items()}


def _sizes(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    sizes: dict[str, Any] = {"batch_size": recipe.batch_size}
    if recipe.sample_rate is not None:
        return {**sizes, "sample_rate": recipe.sample_rate, "nominal_size": recipe.nominal_size}
    size = recipe.nominal_size or dataset.nominal_size
    if size is None:
        raise ValueError("Declare nominal_size, the public size of the data, or sample_rate; it is not counted.")
    return {**sizes, "nominal_size": size}


def _stops(stops: list[int] | Mapping[str, float]) -> list[int] | dict[int, float]:
    """Return declared ends; a TOML table has texts for keys."""
    if not isinstance(stops, Mapping):
        return list(stops)
    try:
        return {int(stop): share for stop, share in stops.items()}
    except ValueError:
        raise ValueError(f"stops must map steps to shares of delta, got {', '.join(map(repr, stops))}.") from None


def _profile(shares: Mapping[str, float] | None, steps: int) -> Any:
    if shares is None:
        return None
    try:
        return token_profile({float(level): share for level, share in shares.items()}, steps=steps)
    except ValueError as error:
        raise ValueError(f"A profile maps fractions of the clip norm to shares of the steps: {error}") from None


def default_model(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a small CNN for images and a linear model for tables."""
    if len(shape) == 1:
        return nn.Linear(shape[0], outputs)
    channels = shape[0]
    if min(shape[1:]) < 28:
        front = nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten())
        back: tuple[nn.Module, ...] = ()
    else:
        first, second = nn.Conv2d(channels, 16, 8, 2, padding=3), nn.Conv2d(16, 32, 4, 2)
        pool = nn.MaxPool2d(2, 1)
        front = nn.Sequential(first, nn.Tanh(), pool, second, nn.Tanh(), pool, nn.Flatten())
        back = (nn.LazyLinear(32), nn.Tanh())
    model = nn.Sequential(*front, *back, nn.LazyLinear(outputs))
    with torch.no_grad():
        model(torch.zeros(1, *shape))
    return model


def _custom(reference: str) -> nn.Module:
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"model must be 'module:attr', got {reference!r}.")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module_name), attribute)
        model = made() if callable(made) and not isinstance(made, nn.Module) else made
    except Exception as error:  # it is the user's own file: anything may be wrong in it, and no data are in it yet
        raise ValueError(f"model {reference!r} cannot be loaded: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(os.getcwd())
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {reference!r} must give a torch.nn.Module, got {type(model).__name__}.")
    return model


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output.flatten() - target).square().mean()


def _meant(near: list[str]) -> str:
    return f"; did you mean {near[0]!r}?" if near else "."
