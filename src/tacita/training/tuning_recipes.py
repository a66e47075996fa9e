"""Tuning without writing code: a recipe whose [tune] table says what is tuned, and how it is scored and paid for."""

from __future__ import annotations

import json
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from tacita import _check
from tacita.accounting.tuned_noise import tuned_noise_multipliers
from tacita.accounting.tuning import NegativeBinomial, Poisson, Trials, tuned_worst_case
from tacita.guarantee import Guarantee
from tacita.runs import Run, RunError, read_json, write_once
from tacita.training.jobs import Job, sizes_of, training_of
from tacita.training.labels import label_of_run
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan
from tacita.training.recipes import Parts, Recipe, check_words, dataset_of, read_recipe
from tacita.training.tuning import RECIPE, Tuning, declared, listed, tune

VARIES = (
    *("learning_rate", "clip_norm", "steps", "batch_size", "noise_multiplier"),
    *("optimizer", "momentum", "model", "prior"),
)
_OF_ONE_RUN = (
    *("stops", "individual_every", "panel", "panel_rate", "record_profile", "rungs", "certificate_profile"),
    *("tolerated", "seed", "reservation"),
)
LAWS: dict[str, Callable[[float], Trials]] = {
    "logarithmic": NegativeBinomial.expecting,
    "geometric": lambda expected: NegativeBinomial.expecting(expected, eta=1.0),
    "poisson": Poisson,
}


@dataclass(frozen=True, kw_only=True)
class Tune:
    """The [tune] table of a recipe.

    Attributes:
        space: What varies: lists of values by entry, for all combinations, or a list of tables.
        expected: How many runs are expected. Their number is drawn, and stays secret.
        score: `public`: how well the model does on the data's test part, which you declare to be public. `private`: how
            many records of the test part, or of those held out, are classified correctly, with noise.
        score_noise: The noise of a private score, such as 20.0 records.
        law: Of the number of runs: `logarithmic`, `geometric` or `poisson`.
    """

    space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
    expected: float
    score: str
    score_noise: float | None = None
    law: str = "logarithmic"

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Tune:
        """Check the parsed table; unknown words are refused with the nearest known one."""
        known = [entry.name for entry in fields(cls)]
        for word in table:
            if word not in known:
                near = get_close_matches(str(word), known, 1)
                raise ValueError(f"[tune] has no entry {word!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
        for word in ("space", "expected", "score"):
            if word not in table:
                raise ValueError(f"[tune] needs {word}: see the guide on tuning.")
        made = cls(**table)
        _check.one_of("[tune] law", made.law, tuple(LAWS))
        _check.one_of("[tune] score", made.score, ("public", "private"))
        if (made.score == "private") != (made.score_noise is not None):
            raise ValueError(
                '[tune] score_noise is that of a private score: give it with score = "private", such as 20.0, and '
                "leave it out with a public one."
            )
        if made.score_noise is not None:
            _check.in_range("[tune] score_noise", made.score_noise, 1e-3, 1e6)
        if isinstance(made.space, Mapping):
            for word, values in made.space.items():
                if not isinstance(values, list):
                    raise ValueError(f"[tune.space] {word} must be a list of values, got {values!r}.")
        _ = made.trials
        return made

    @property
    def trials(self) -> Trials:
        """The law of the number of runs."""
        low = 1.0 if self.law == "poisson" else 1.001
        return LAWS[self.law](_check.in_range("[tune] expected", self.expected, low, 1e4))

    @property
    def paid(self) -> dict[str, Any]:
        """How the score is paid for."""
        return {} if self.score_noise is None else {"score_noise": self.score_noise, "score_apart": True}


@dataclass(frozen=True, kw_only=True)
class TuningRecipe(Recipe):
    """What `tacita tune` does: a training recipe, whose epsilon or target is that of the whole tuning.

    Attributes:
        tune: What is tuned, and how; see `Tune`.
    """

    tune: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> TuningRecipe:
        """Check a parsed TOML document, every setting of its space included."""
        check_words(cls, table)
        if "tune" not in table:
            raise ValueError("A recipe for tacita tune needs a [tune] table; without one, use tacita train.")
        unused = [word for word in _OF_ONE_RUN if word in table]
        if unused:
            raise ValueError(f"{unused[0]} is about one run and does not hold for the best of several: leave it out.")
        recipe = cls(**table)
        Tune.from_dict(recipe.tune)
        _ = recipe.of_settings
        return recipe

    @classmethod
    def read(cls, path: str | Path) -> TuningRecipe:
        """Read a TOML file. Relative paths in it are taken from the file's own folder."""
        return cls.from_dict(read_recipe(path, cls))

    @property
    def about(self) -> Tune:
        """The [tune] table."""
        return Tune.from_dict(self.tune)

    @property
    def choices(self) -> list[dict[str, Any]]:
        """All settings of the space."""
        return listed(self.about.space)

    @property
    def of_settings(self) -> list[Recipe]:
        """A training recipe for each setting, not calibrated."""
        base = {entry.name: getattr(self, entry.name) for entry in fields(Recipe)}
        return [self._with(base, settings) for settings in self.choices]

    def _with(self, base: Mapping[str, Any], settings: Mapping[str, Any]) -> Recipe:
        for word in settings:
            if word not in VARIES:
                near = get_close_matches(str(word), VARIES, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"what may vary is {', '.join(VARIES)}."
                raise ValueError(f"[tune.space] cannot vary {word!r}; {hint}")
        try:
            return Recipe.from_dict({**base, **settings, "panel": 0})
        except ValueError as error:
            said = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            raise ValueError(f"[tune.space] with {said}: {error}") from None


class TuningJob:
    """A recipe for a tuning made ready: it makes and scores the trials, also in another process.

    Args:
        recipe: What is tuned.
        coins: The secret seed of who is held out.
        noises: The noise multiplier of each setting, if it was calibrated before.
    """

    def __init__(self, recipe: TuningRecipe, coins: int, noises: Sequence[float | None] | None = None) -> None:
        self.recipe, self.coins = recipe, coins
        self.choices, self.about = recipe.choices, recipe.about
        self.dataset = dataset_of(recipe.data)
        self._parts: dict[tuple[str | None, str], Parts] = {}
        self._jobs: weakref.WeakKeyDictionary[nn.Module, Job] = weakref.WeakKeyDictionary()
        self._require_score()
        self.noises = self._calibrated() if noises is None else list(noises)

    def __reduce__(self) -> tuple[Any, ...]:
        return TuningJob, (self.recipe, self.coins, self.noises)

    def _require_score(self) -> None:
        if self.about.score == "public" and not len(self.dataset.test_targets):
            raise ValueError(
                '[tune] score = "public" needs a test part that is public: give [data] a test file, or take '
                'score = "private".'
            )
        if self.about.score == "private" and self.dataset.classes is None:
            raise ValueError(
                '[tune] score = "private" counts right answers, and predicted numbers are not right or '
                'wrong: take score = "public".'
            )

    def _calibrated(self) -> list[float | None]:
        """Return the noise of each setting, so that all cost about the same, if the recipe has a target."""
        recipes, goal = self.recipe.of_settings, self.recipe.goal
        if goal is None:
            return [recipe.noise_multiplier for recipe in recipes]
        sampled = [(self._rate(recipe), recipe.steps) for recipe in recipes]
        return list(tuned_noise_multipliers(self.about.trials, sampled, target=goal, **self.about.paid))

    def _rate(self, recipe: Recipe) -> float:
        sizes = sizes_of(recipe, self.dataset)
        return float(sizes["sample_rate"] or recipe.batch_size / sizes["nominal_size"])

    def make_run(self, settings: dict[str, Any], run_dir: Path | None) -> PrivateTraining:
        """Return the training of one setting, in a run directory or nowhere."""
        place = self.choices.index(settings)
        plain = self.recipe.of_settings[place]
        recipe = replace(plain, epsilon=None, target=None, noise_multiplier=self.noises[place], ledger=None)
        kind = (recipe.model, recipe.prior)
        job = Job(recipe, self.coins, self.dataset, self._parts.get(kind))
        self._parts[kind] = (job.train, job.held, job.groups)
        self._jobs[job.model] = job
        private = training_of(job, run_dir)
        if self.about.score == "private" and private.plan.unit != "record":
            raise ValueError(
                f'[tune] score = "private" counts records, and a {private.plan.unit} may have several: '
                'take score = "public".'
            )
        return private

    def score(self, model: nn.Module) -> float:
        """Return how good a model is: the larger, the better."""
        job = self._jobs[model]
        if self.about.score == "private":
            return job.right_answers()
        name, value = job.score()
        return value if name == "accuracy" else -value

    def metrics(self, model: nn.Module) -> dict[str, str]:
        """Return what was measured of the best model, for the owner."""
        return self._jobs[model].measured()


def prepared(recipe: TuningRecipe, folder: Path | None) -> TuningJob:
    """Make a tuning ready; one that was begun in the folder goes on with the coins that it began with.

    Args:
        recipe: What is tuned.
        folder: Of the tuning; None to look at it alone.

    Raises:
        RunError: If the tuning in the folder was begun with another recipe.
    """
    if folder is None:
        return TuningJob(recipe, secrets.randbits(128))
    asked = json.loads(json.dumps({entry.name: getattr(recipe, entry.name) for entry in fields(recipe)}, default=str))
    if not (folder / RECIPE).exists():
        if folder.exists() and any(folder.iterdir()):
            raise RunError(f"{str(folder)!r} is not empty, and holds no tuning of a recipe; choose another folder.")
        job = TuningJob(recipe, secrets.randbits(128))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if write_once(folder, RECIPE, {"recipe": asked, "coins": str(job.coins), "noises": job.noises}):
            return job
    kept = read_json(folder, RECIPE)
    if kept.get("recipe") != asked:
        raise RunError(
            f"The tuning in {str(folder)!r} was begun with another recipe: go on with the same one, or give another "
            "--run-dir, where a new tuning begins and is charged anew."
        )
    return TuningJob(recipe, int(kept["coins"]), kept["noises"])


def expected_cost(job: TuningJob) -> tuple[list[Plan], Guarantee]:
    """Return the plan of every setting, and the worst case of the tuning; nothing is drawn, charged or trained."""
    plans, best = declared(job.make_run, job.choices, job.about.trials, **job.about.paid)
    return plans, tuned_worst_case(best, delta=job.recipe.delta, unit=plans[0].unit)


def run(job: TuningJob, folder: Path, *, processes: int = 1) -> Tuning | None:
    """Tune as a recipe says, or go on with it, and return the best run; None if the law drew no run at all.

    Args:
        job: The tuning made ready.
        folder: Its folder.
        processes: How many trials are trained at once.
    """
    recipe = job.recipe
    found = tune(
        job.make_run,
        job.choices,
        trials=job.about.trials,
        score=job.score,
        delta=recipe.delta,
        folder=folder,
        ledger=recipe.ledger,
        target=recipe.goal,
        processes=processes,
        **job.about.paid,
    )
    if found is None:
        return None
    best = Run(found.run_dir)
    best.write(facts=best.facts.with_metrics(job.metrics(found.model)).to_dict())
    label = label_of_run(found.run_dir, delta=recipe.delta)
    best.write_owner_label(label)
    return replace(found, label=label)
