"""Training without writing a loop: a recipe says what to train on what, and how."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita.accounting import Target, goal_of
from tacita.data import Dataset, Schema, load, read_table
from tacita.features import GradientHistograms, PublicLinear, picture_features
from tacita.features.priors import PRIORS
from tacita.ledger import kept_place, on_server
from tacita.publication import Publication
from tacita.training.plan import declared_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacita._check import Counts

Parts = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], dict[str, Any]]  # to train on, held out, groups
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `tacita train` does. Every entry but `data` has a default; none is learned from the data.

    Attributes:
        data: A name (`digits`, `mnist`, …) under "name", or a schema with "file".
        name: The run's name.
        purpose: What is made, in a sentence, for the label.
        model: `module:attr`, a function of nothing that returns an `nn.Module`, or a module class; or a
            linear model on public features: `histograms` for grey images (`tacita.features.GradientHistograms`), or
            `patches` for images from eight pixels a side (`tacita.features.picture_features`), which are computed once,
            before the first step. None takes a small CNN for images and a linear model for tables.
        prior: For `patches`: what the images are like, as far as is publicly known: `dead_leaves` for photographs,
            `silhouettes` for single objects on a plain ground, `strokes` for handwriting.
        epsilon: Worst-case target, together with `delta`. Or give `target` or `noise_multiplier`.
        target: What an attacker may achieve: {attack_success = 0.55}, {tpr = [0.02, 0.01]}, {secret = [0.10, 0.15]} or
            {mu = [0.5, 1e-5]}; see `tacita.accounting.Target`.
        noise_multiplier: Noise standard deviation over the clip norm.
        delta: Total failure probability.
        batch_size: The planned batch: the noisy sum is divided by it.
        nominal_size: The public size of the data, from which the sample rate is made. Built-in sets know theirs.
        sample_rate: Instead of `nominal_size`; the label then says that it was your choice.
        steps: How many steps.
        stops: Further declared ends, such as [100, 200], or {"100" = 0.2, …} with shares of delta.
        clip_norm: The largest norm of one record's gradient, or "auto": every gradient is normalised.
        optimizer: sgd, adam or adamw.
        learning_rate: Its learning rate.
        momentum: For sgd.
        individual_every: Give every record its own bound, measured once in so many steps. 0 for none.
        records_per_person: How many records of a person are in one step, where `person` in `data` names the column of
            ids: persons are then drawn, clipped and accounted for as one, and `batch_size` and `nominal_size` count
            them.
        panel: How many records are followed if not all are measured.
        panel_rate: The chance with which they are measured at a step, such as 1.0; by default as many as
            add an eighth to a run's gradients.
        holdout_rate: Chance with which a record is held out, where the data have no test part.
        record_profile: {fraction of the clip norm: share of the steps}: what a record may spend.
        rungs: Fractions of the plan, such as [0.125, 0.25, 0.5, 1.0]; these with `individual_every`, [] for none.
        certificate_profile: The same, for a conformal certificate.
        tolerated: How many followed records may pass the certificate's budget.
        ledger: A shared ledger's path, or its URL without a password.
        reservation: The name under which budget is held in it for this run; see `tacita ledger reserve`.
        seed: For runs that can be repeated; not secure.
        noise: float, or exact for noise and contributions in whole numbers on a public grid, which no attack on their
            low digits reads; a step takes about four times as long.
        publication: What the label says of its issuer: issuer, contact, model, model_version, issued.
    """

    data: Mapping[str, Any]
    name: str = ""
    purpose: str = ""
    model: str | None = None
    prior: str = "dead_leaves"
    epsilon: float | None = None
    target: Mapping[str, Any] | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    batch_size: int = 256
    nominal_size: int | None = None
    sample_rate: float | None = None
    steps: int = 500
    stops: list[int] | Mapping[str, float] = ()  # type: ignore[assignment]
    clip_norm: float | str = 1.0
    optimizer: str = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.9
    individual_every: int = 0
    records_per_person: int | None = None
    panel: int = 200
    panel_rate: float | None = None
    holdout_rate: float = 0.1
    record_profile: Mapping[str, float] | None = None
    rungs: list[float] | None = None
    certificate_profile: Mapping[str, float] | None = None
    tolerated: int = 0
    ledger: str | None = None
    reservation: str = ""
    seed: int | None = None
    noise: str = "float"
    publication: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Recipe:
        """Check a parsed TOML document; unknown words are refused with the nearest known one."""
        declared_kind(table.get("noise", "float"))  # before its type: a number was once called that
        check_words(cls, table)
        recipe = cls(**table)
        if sum(given is not None for given in (recipe.epsilon, recipe.target, recipe.noise_multiplier)) != 1:
            raise ValueError("Give either epsilon or noise_multiplier or target, and one of them only.")
        _ = recipe.goal
        _ = recipe.ledger and kept_place(recipe.ledger)
        Publication.from_table(recipe.publication)
        _check.one_of("prior", recipe.prior, PRIORS)
        _check.one_of("optimizer", recipe.optimizer, tuple(OPTIMIZERS))
        _check.count("steps", recipe.steps)
        _check.count("batch_size", recipe.batch_size)
        _check.in_range("holdout_rate", recipe.holdout_rate, 0.0, 0.9)
        _check.in_range("learning_rate", recipe.learning_rate, 0.0, 1e6)
        _check.in_range("momentum", recipe.momentum, 0.0, 1e6)
        _check.count("individual_every", recipe.individual_every, low=0)
        if ("person" in recipe.data) != (recipe.records_per_person is not None):
            raise ValueError(
                "[data] person, the column of ids, and records_per_person go together: give both or neither."
            )
        return recipe

    @property
    def goal(self) -> tuple[float, float] | Target | None:
        """What the noise is calibrated to; None if it is given."""
        return goal_of(self.epsilon, self.delta, self.target)

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a TOML file. Relative paths in it are taken from the file's own folder."""
        return cls.from_dict(read_recipe(path, cls))


def check_words(recipe: type, table: Mapping[str, Any]) -> None:
    """Refuse entries that a recipe does not know or of another type, and a recipe without data."""
    hints = get_type_hints(recipe)
    for word in table:
        if word not in hints and _check.RENAMED.get(word) in hints:
            raise ValueError(f"{word!r} is called {_check.RENAMED[word]!r} now.")
        if word == "tune" and word not in hints:
            raise ValueError("A recipe with a [tune] table is one for `tacita tune`, which pays for the tuning.")
        if word not in hints:
            near = get_close_matches(str(word), list(hints), 1)
            raise ValueError(
                f"{word!r} is not an entry of a recipe" + (f"; did you mean {near[0]!r}?" if near else ".")
            )
    if not isinstance(table.get("data"), Mapping):
        raise ValueError("A recipe needs a [data] table, with a name or a file.")
    for name, hint in hints.items():
        value, kinds = table.get(name), get_args(hint) if isinstance(hint, UnionType) else (hint,)
        plain = {get_origin(kind) or kind for kind in kinds}
        if value is not None and str in plain and not plain & {Mapping, float} and not isinstance(value, str):
            raise ValueError(f"{name} must be text in quotes, got {value!r}.")
        if value is not None and Mapping in plain and not plain & {list, str} and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a table, got {value!r}.")
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
    if isinstance(table.get("ledger"), str) and not on_server(table["ledger"]):
        table["ledger"] = os.path.join(file.parent, table["ledger"])
    return {**table, "data": data, "name": table.get("name") or file.stem}


DEMOS = {
    "digits": Recipe(
        data={"name": "digits"},
        name="Handwritten digits, 8x8",
        purpose="A linear model on public features that reads handwritten digits.",
        model="histograms",
        epsilon=2.0,
        batch_size=359,
        steps=60,
        learning_rate=1.0,
        momentum=0.8,
        individual_every=1,
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


def dataset_of(table: Mapping[str, Any], *, persons: bool = False) -> Dataset:
    """Return the data that a recipe's [data] table names.

    Args:
        table: The parsed table.
        persons: Whether a column of ids may be named: whether people with several records are protected.
    """
    if "person" in table and not persons:
        raise ValueError(
            "[data] person: people with several records are protected by private programs, trainings and "
            "mean-embedding, not here, where one record is one person. Leave person out if that is so."
        )
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


def parts_of(dataset: Dataset, holdout_rate: float, coins: int) -> Parts:
    """Return training and held-out tensors, and the groups of the training records.

    Without a test part every record is held out by its own coin, or by its person's. The coins' seed is secret, and
    kept in the run directory for resuming: independent coins that nobody knows belong to records, not to positions, so
    one record's presence moves no other. With a public seed, removing a record would shift everyone's coin.

    Args:
        dataset: The data.
        holdout_rate: Chance with which a record is held out.
        coins: The secret seed.
    """
    groups = dict(dataset.groups)
    if dataset.classes is not None:
        groups = {"class": np.array(dataset.classes)[dataset.targets.astype(int)], **groups}
    inputs, targets = torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)
    if len(dataset.test_targets):
        held = (torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_targets))
        return (inputs, targets), held, groups
    out = held_out(dataset, holdout_rate, coins)
    kept = torch.from_numpy(~out)
    return (inputs[kept], targets[kept]), (inputs[~kept], targets[~kept]), {k: v[~out] for k, v in groups.items()}


def persons_of(dataset: Dataset, holdout_rate: float, coins: int) -> tuple[Counts, Counts] | None:
    """Return whose the training and the held-out records of `parts_of` are; None if one record is one person."""
    if dataset.persons is None or dataset.test_persons is None:
        return None
    if len(dataset.test_targets):
        return dataset.persons, dataset.test_persons
    out = held_out(dataset, holdout_rate, coins)
    return dataset.persons[~out], dataset.persons[out]


def held_out(dataset: Dataset, holdout_rate: float, coins: int) -> NDArray[np.bool_]:
    """Return which records are held out, by a coin each; by one for all records of a person, where they are known."""
    whose = np.arange(len(dataset.targets)) if dataset.persons is None else dataset.persons
    out: NDArray[np.bool_] = (np.random.default_rng(coins).random(1 + int(whose.max(initial=-1))) < holdout_rate)[whose]
    if not out.any() or out.all():
        raise ValueError(
            "holdout_rate leaves no records to train on, or none to hold out; change it or give a test file."
        )
    return out


def histograms_model(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a linear model, zero at first, on gradient histograms of grey images."""
    features = GradientHistograms(shape)
    linear = nn.Linear(features.features, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(features, linear)


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


def patches_model(shape: tuple[int, ...], outputs: int, prior: str) -> PublicLinear:
    """Return a linear model, zero at first, on patches and scattering."""
    return PublicLinear(picture_features(shape, prior=prior), outputs)


MODELS: dict[str | None, Callable[[tuple[int, ...], int, Recipe], nn.Module]] = {  # by name in a recipe
    None: lambda shape, outputs, _: default_model(shape, outputs),
    "histograms": lambda shape, outputs, _: histograms_model(shape, outputs),
    "patches": lambda shape, outputs, recipe: patches_model(shape, outputs, recipe.prior),
}
