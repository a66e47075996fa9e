"""One release from end to end: fit a generator, write the set, measure it, write the label and the pages."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacita import runs
from tacita._progress import Progress, quiet
from tacita.data import load
from tacita.label import Label
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.synthesis.features import measuring_features
from tacita.synthesis.gan import sample
from tacita.synthesis.generators import GENERATORS
from tacita.synthesis.generators.kind import Maker
from tacita.synthesis.influence import AverageCase, average_case
from tacita.synthesis.inspection import write_inspection
from tacita.synthesis.labels import label_of_run
from tacita.synthesis.networks import Generator
from tacita.synthesis.quality import write_quality
from tacita.synthesis.recipes import Recipe, prepare, recipe_of, write_recipe
from tacita.synthesis.release import release, write_release
from tacita.synthesis.students import Labelled

if TYPE_CHECKING:
    from tacita.synthesis.fedgp import FedGP

_MEASURED = 5_000  # records of the average-case measure
_GAMMA = 1e-15  # as in chapter 4
_UNMEASURED = "quality.txt"  # why there is no quality page


@dataclass
class Job:
    """A prepared recipe: data, generator and run directory."""

    maker: Maker
    folder: Path
    owner: Owner = field(default_factory=Owner)

    def run(self, progress: Progress = quiet, *, quality: bool = True) -> Label:
        """Take the remaining steps, release the set and return the label.

        Args:
            progress: Called as the work goes on.
            quality: Whether to measure the set's utility and what it leaks.

        Returns:
            The owner's label.
        """
        self.owner.hold()
        try:
            self.maker.run(progress)
            synthetic = release(self.maker, self.folder)
            write_inspection(self.folder, self.folder / "inspect.html", title=self.maker.facts.title)
            label = self._label()  # before measuring: what goes wrong there depends on the records
            if quality:
                self._measure(synthetic, progress)
                label = self._label()
        finally:
            self.owner.close()
        return label

    def _label(self) -> Label:
        label = label_of_run(self.folder)
        runs.Run(self.folder).write_label(label)
        return label

    def _measure(self, synthetic: Labelled, progress: Progress) -> None:
        """Write the quality page; records that do not allow it end this with the same line for every reason."""

        def report(doing: str) -> None:
            progress(0, 0, f"measuring: {doing}")

        try:
            write_quality(self.folder, self.maker, synthetic, report)
        except Exception as error:  # a single record can cause any: the reason is for the owner
            runs.write_text(self.folder, _UNMEASURED, f"Not measured ({type(error).__name__}): {error}\n")
            report(f"it ends here, as these records do not allow more; {_UNMEASURED} says why, to the owner")


def synthesise(recipe: Recipe, run_dir: str | Path, *, quality: bool = True, progress: Progress = quiet) -> Label:
    """Fit a generator, release synthetic records in a new run directory, and return the owner's label.

    Args:
        recipe: What to do; see `Recipe.from_dict` and `Recipe.read`.
        run_dir: Where to write the run: an empty folder, or one that does not exist.
        quality: Whether to measure the set's utility and what it leaks, for the owner.
        progress: Called as the work goes on.

    Returns:
        The label. The records are in `released/`.

    Raises:
        ValueError: If the data do not fit the recipe, or the target leaves nothing but noise.
        BudgetExceeded: If the ledger's budget does not pay for it.

    Guarantee:
        The label's worst case; infinite for a generator that gives none.
    """
    return start(recipe, run_dir).run(progress, quality=quality)


def resume(run_dir: str | Path, *, quality: bool = True, progress: Progress = quiet) -> Label:
    """Finish an interrupted run: the same plan, the same guarantee, fresh noise.

    Args:
        run_dir: The run directory.
        quality: As in `synthesise`.
        progress: As in `synthesise`.

    Returns:
        The owner's label.

    Raises:
        RunError: If it is not the run of a generator, or damaged.
    """
    return restart(run_dir).run(progress, quality=quality)


def start(recipe: Recipe, folder: str | Path) -> Job:
    """Prepare a recipe in a new run directory; nothing has been charged yet when this returns."""
    page_template()  # fail early if an extra is missing
    task = prepare(recipe)
    where = runs.Run.create(folder).folder
    owner = Owner(where).hold()
    write_recipe(where, task)
    try:
        return Job(GENERATORS[recipe.generator](task, where, resume=False), where, owner)
    except Exception:
        shutil.rmtree(where)  # nothing was charged or released, so there is nothing to resume
        raise


def restart(folder: str | Path) -> Job:
    """Prepare an interrupted run to be resumed."""
    recipe, coins = recipe_of(folder)
    where = Path(folder)
    task = prepare(recipe, coins)
    with Owner(where).opening() as owner:
        return Job(GENERATORS[recipe.generator](task, where, resume=True), where, owner)


def release_federated(generator: Generator, recipe: FedGP, folder: Path, count: int) -> AverageCase:
    """Draw and write the set of a federated generator, and return its average-case measure as in chapter 4.

    The measure looks at all clients' records together, which only this process can: it is for the owner.

    Args:
        generator: The trained generator.
        recipe: What was asked for.
        folder: The run directory.
        count: How many records to release.

    Returns:
        The measure, for the owner.
    """
    from tacita.synthesis.fedgp import held_records, ready

    dataset, real = load(recipe.data), held_records(ready(recipe))[0]
    drawn = sample(generator, count, rng=np.random.default_rng(recipe.seed))
    write_release(folder, drawn, dataset)
    write_inspection(folder, folder / "inspect.html", title=f"FedGP on {recipe.data}")
    rng = np.random.default_rng(recipe.seed)
    some = torch.from_numpy(rng.permutation(len(real))[:_MEASURED])
    features = measuring_features(real.shape[1:])
    return average_case(real[some], drawn[0][:_MEASURED], features=features, gamma=_GAMMA)
