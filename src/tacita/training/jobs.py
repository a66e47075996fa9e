"""A recipe made ready: data, model and optimiser, started, resumed or looked at."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacita._check import PrivacyError
from tacita._guard import attempt, held
from tacita._progress import Progress, quiet
from tacita.accounting import token_profile
from tacita.data import Dataset
from tacita.features import PublicLinear
from tacita.label import Label
from tacita.runs import Run, RunError
from tacita.training.loop import PrivateTraining
from tacita.training.persons import parted
from tacita.training.plan import Plan
from tacita.training.recipes import MODELS, OPTIMIZERS, Parts, Recipe, dataset_of, parts_of, persons_of
from tacita.training.records import Records
from tacita.training.settings import Whose
from tacita.training.stepping import Step


class Job:
    """A recipe made ready: data, model, loss and optimiser; `start` and `restart` add the training.

    Args:
        recipe: What to train on what.
        coins: The secret seed of who is held out.
        dataset: The recipe's data, if they were loaded before.
        parts: Training and held-out records and groups, if they were made before.
    """

    private: PrivateTraining
    last: Step | None = None  # taken by `run`

    def __init__(self, recipe: Recipe, coins: int, dataset: Dataset | None = None, parts: Parts | None = None) -> None:
        self.recipe, self.coins = recipe, coins
        self.dataset = dataset or dataset_of(recipe.data, persons=True)
        if recipe.seed is not None:
            torch.manual_seed(recipe.seed)
        classes = self.dataset.classes
        shape, outputs = self.dataset.inputs.shape[1:], 1 if classes is None else len(classes)
        named = MODELS.get(recipe.model)
        self.model = _custom(str(recipe.model)) if named is None else named(shape, outputs, recipe)
        self.loss: Callable[[Any, Any], Tensor] = _squared_error if classes is None else nn.functional.cross_entropy
        options: dict[str, Any] = {"momentum": recipe.momentum} if recipe.optimizer == "sgd" else {}
        kind = OPTIMIZERS[recipe.optimizer]
        self.optimizer = kind(self.model.parameters(), lr=recipe.learning_rate, **options)
        self.train, self.held, self.groups = parts or self._parts()
        self.whose = self._whose()

    def _parts(self) -> Parts:
        """Return training and held-out records and groups; features of images are computed here, once."""
        train, held, groups = parts_of(self.dataset, self.recipe.holdout_rate, self.coins)
        if not isinstance(self.model, PublicLinear):
            return train, held, groups
        blocks = self.model.feature_map.blocks
        (x, y), (x_held, y_held) = train, held
        return (blocks(x, torch.float16), y), (blocks(x_held, torch.float16), y_held), groups

    def _whose(self) -> Whose:
        """Return whose the records are, if the schema names the column of ids."""
        persons = persons_of(self.dataset, self.recipe.holdout_rate, self.coins)
        return (
            Whose()
            if persons is None
            else Whose(
                person=persons[0],
                holdout_person=persons[1],
                missing_person=str(self.recipe.data.get("missing_person", "refuse")),
            )
        )

    def remake(self) -> tuple[nn.Module, torch.optim.Optimizer, None]:
        """Return the model and the optimiser as before the first step, and no scheduler."""
        with torch.random.fork_rng(devices=[]):
            fresh = Job(self.recipe, self.coins, self.dataset, (self.train, self.held, self.groups))
        return fresh.model, fresh.optimizer, None

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

    def right_answers(self) -> int:
        """Return how many held-out records are classified correctly: one record changes it by at most 1.

        Each is measured by itself, as round-off in a batch could let one record change the answers for others.
        """
        if self.dataset.classes is None:
            raise ValueError("Predicted numbers are not right or wrong: there is nothing to count.")
        self.model.eval()
        with torch.no_grad(), held():
            errors = [attempt(self._errors, x[None], y[None]) for x, y in zip(*self.held, strict=True)]
        self.model.train()
        return sum(error is not None and float(error) == 0.0 for error in errors)

    def _errors(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return each record's squared error, or whether its class is wrong."""
        outputs: Tensor = self.model(inputs)
        if self.dataset.classes is None:
            return (outputs.flatten() - targets).square()
        return (outputs.argmax(1) != targets).float()

    def run(self, progress: Progress = quiet) -> Label:
        """Take the remaining steps and return the label, which the run directory gets too."""
        for step in self.private:
            self.last = step
            progress(step.number, self.private.plan.steps, "step")
        return self.private.label(delta=self.recipe.delta, metrics=self.measured())

    def measured(self) -> dict[str, str]:
        """Return the score with its name, as the owner's label has it."""
        name, value = self.score()
        text = f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
        return {name: f"{text} on {'the test set' if len(self.dataset.test_targets) else 'records held out'}"}


def start(recipe: Recipe, run_dir: str | Path) -> Job:
    """Make a recipe ready to run in a new run directory."""
    job = Job(recipe, secrets.randbits(128) if recipe.seed is None else recipe.seed)
    job.private = training_of(job, run_dir)
    return job


def sizes_of(recipe: Recipe, dataset: Dataset | None = None) -> dict[str, Any]:
    """Return the declared sizes of a recipe, by which its sample rate is known.

    Args:
        recipe: What to train on what.
        dataset: Its data, if they are loaded; else they are read where their declared size is needed.
    """
    if recipe.sample_rate is not None:
        return {"nominal_size": recipe.nominal_size, "sample_rate": recipe.sample_rate}
    size = recipe.nominal_size or (dataset or dataset_of(recipe.data)).nominal_size
    if size is None:
        raise ValueError("Declare nominal_size, the public size of the data, or sample_rate; it is not counted.")
    return {"nominal_size": size, "sample_rate": None}


def plan_of(recipe: Recipe, dataset: Dataset | None = None) -> Plan:
    """Return what a recipe declares.

    Args:
        recipe: What to train on what.
        dataset: Its data, if they are loaded.
    """
    return Plan.declare(
        **sizes_of(recipe, dataset),
        batch_size=recipe.batch_size,
        steps=recipe.steps,
        stops=_stops(recipe.stops),
        clip_norm=recipe.clip_norm,
        noise_multiplier=recipe.noise_multiplier,
        target=recipe.goal,
        noise=recipe.noise,
        individual_every=recipe.individual_every or None,
        record_budget=_profile(recipe.record_profile, recipe.steps),
        rungs=recipe.rungs,
        certificate=_profile(recipe.certificate_profile, recipe.steps),
        tolerated=recipe.tolerated,
        records_per_person=recipe.records_per_person,
        delta=recipe.delta,
    )


def training_of(job: Job, run_dir: str | Path | None) -> PrivateTraining:
    """Return the training of a recipe that is made ready; its run directory keeps the recipe.

    Args:
        job: The recipe made ready.
        run_dir: A new run directory, or None to write nothing.
    """
    recipe = job.recipe
    private = PrivateTraining(
        job.model,
        job.loss,
        job.train,
        optimizer=job.optimizer,
        plan=plan_of(recipe, job.dataset),
        panel=recipe.panel,
        panel_rate=recipe.panel_rate,
        whose=job.whose,
        holdout=job.held,
        groups=job.groups,
        ledger=recipe.ledger,
        run_dir=run_dir,
        seed=recipe.seed,
        name=recipe.name or job.dataset.name,
        purpose=recipe.purpose,
        reservation=recipe.reservation,
    )
    if run_dir is not None:
        asked = asdict(recipe)
        if recipe.records_per_person is None:  # documents of recipes without people stay as they were
            del asked["records_per_person"]
        Run(Path(run_dir)).write(recipe=asked, coins=str(job.coins))
    return private


def restart(run_dir: str | Path) -> Job:
    """Make an interrupted run of a recipe ready to go on."""
    job = _job_of(run_dir)
    job.private = PrivateTraining.resume(
        run_dir, job.model, job.loss, job.train, optimizer=job.optimizer, holdout=job.held, whose=job.whose
    )
    return job


def reopen(run_dir: str | Path) -> Job:
    """Return a recipe's run as it stands, to look at, with the newest checkpoint's parameters in its model.

    Nothing is charged or changed, and there is no training in it.
    """
    state, saved = Run.open(run_dir, "training").load()
    job = _job_of(run_dir)
    plain = {"training": Records(job.train), "held-out": Records(job.held)}
    if not parted(plain, job.whose)["training"].matches(str(saved.get("data"))):
        raise PrivacyError("These are not the records that the run was started on: it is another dataset.")
    try:
        job.model.load_state_dict(state["model"])
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise RunError(f"The checkpoint does not fit the recipe's model: {error}") from error
    return job


def _job_of(run_dir: str | Path) -> Job:
    run = Run.open(run_dir, "training")
    with run.reading():
        recipe, coins = Recipe.from_dict(run.recipe), int(run.document()["coins"])
    return Job(recipe, coins)


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


def _custom(reference: str) -> nn.Module:
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"model must be 'histograms', 'patches' or 'module:attr', got {reference!r}.")
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
