"""One release from end to end: fit a generator, write the set, measure it, write the label and the pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tacita import runs
from tacita.data import Dataset, Real, load
from tacita.label import Label
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.synthesis.alarm import Alarm, alarms
from tacita.synthesis.features import measuring_features
from tacita.synthesis.gan import sample
from tacita.synthesis.generators import GENERATORS
from tacita.synthesis.generators.kind import Maker, Progress, fresh_generator
from tacita.synthesis.influence import AverageCase, average_case
from tacita.synthesis.inspection import inspection_page
from tacita.synthesis.labels import label_of_run, typical_of_run
from tacita.synthesis.networks import Generator
from tacita.synthesis.quality import measure, outlier_control, write_quality
from tacita.synthesis.recipes import Recipe, prepare, recipe_of, write_recipe
from tacita.synthesis.release import release, released_dataset, write_release
from tacita.synthesis.students import Labelled

if TYPE_CHECKING:
    from tacita.synthesis.fedgp_recipe import FedGP

_MEASURED = 5_000  # records of the average-case measure
_GAMMA = 1e-15  # as in chapter 4
_UNMEASURED = "quality.txt"  # why there is no quality page


@dataclass
class Job:
    """A prepared recipe: data, generator and run directory."""

    maker: Maker
    folder: Path
    owner: Owner = field(default_factory=Owner)

    def run(self, progress: Progress, *, quality: bool = True, report: Callable[[str], None] | None = None) -> Label:
        """Take the remaining steps, release the set and return the label.

        Args:
            progress: Called with the step and what is being done.
            quality: Whether to measure the set's utility and what it leaks.
            report: Called with what is being measured.

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
                self._measure(synthetic, report or (lambda _: None))
                label = self._label()
        finally:
            self.owner.close()
        return label

    def _label(self) -> Label:
        label = label_of_run(self.folder)
        runs.Run(self.folder).write_label(label)
        return label

    def _measure(self, synthetic: Labelled, report: Callable[[str], None]) -> None:
        """Write the quality page; records that do not allow it end this with the same line for every reason."""
        try:
            self._write_quality(synthetic, report)
        except Exception as error:  # a single record can cause any: the reason is for the owner
            runs.write_text(self.folder, _UNMEASURED, f"Not measured ({type(error).__name__}): {error}\n")
            report(f"it ends here, as these records do not allow more; {_UNMEASURED} says why, to the owner")

    def _write_quality(self, synthetic: Labelled, report: Callable[[str], None]) -> None:
        task, label = self.maker.task, label_of_run(self.folder)
        found = measure(
            task,
            synthetic,
            epsilon=label.worst.epsilon,
            annotator=self.maker.annotate,
            untrained=self._control,
            progress=report,
        )
        run = runs.Run(self.folder)
        run.write(facts=run.facts.with_metrics(found.metrics).to_dict())
        typical = typical_of_run(self.folder)
        outliers = None if typical is None else outlier_control(typical)
        write_quality(self.folder, task, synthetic, found, label, outliers)

    def _control(self, count: int) -> Labelled:
        return sample(self.maker.untrained, count, rng=fresh_generator(self.maker.task.recipe.seed))


def synthesise(recipe: Recipe, run_dir: str | Path, *, quality: bool = True, progress: Progress | None = None) -> Label:
    """Fit a generator, release synthetic records in a new run directory, and return the owner's label.

    Args:
        recipe: What to do; see `Recipe.from_dict` and `Recipe.read`.
        run_dir: Where to write the run: an empty folder, or one that does not exist.
        quality: Whether to measure the set's utility and what it leaks, for the owner.
        progress: Called with the step and what is being done.

    Returns:
        The label. The records are in `released/`.

    Raises:
        ValueError: If the data do not fit the recipe, or the target leaves nothing but noise.
        BudgetExceeded: If the ledger's budget does not pay for it.

    Guarantee:
        The label's worst case; infinite for a generator that gives none.
    """
    return start(recipe, run_dir).run(progress or (lambda step, doing: None), quality=quality)


def resume(run_dir: str | Path, *, quality: bool = True, progress: Progress | None = None) -> Label:
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
    return restart(run_dir).run(progress or (lambda step, doing: None), quality=quality)


def start(recipe: Recipe, folder: str | Path) -> Job:
    """Prepare a recipe in a new run directory; nothing has been charged yet when this returns."""
    page_template()  # fail early if an extra is missing
    task = prepare(recipe)
    where = runs.Run.create(folder).folder
    owner = Owner(where).hold()
    write_recipe(where, task)
    try:
        return Job(GENERATORS[recipe.generator].make(task, where), where, owner)
    except Exception:
        shutil.rmtree(where)  # nothing was charged or released, so there is nothing to resume
        raise


def restart(folder: str | Path) -> Job:
    """Prepare an interrupted run to be resumed."""
    recipe, coins = recipe_of(folder)
    where = Path(folder)
    task = prepare(recipe, coins)
    with Owner(where).opening() as owner:
        return Job(GENERATORS[recipe.generator].resume(task, where), where, owner)


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
    from tacita.synthesis.fedgp_recipe import ready

    dataset, real = load(recipe.data), ready(recipe).train[0]
    drawn = sample(generator, count, rng=fresh_generator(recipe.seed))
    write_release(folder, drawn, dataset)
    write_inspection(folder, folder / "inspect.html", title=f"FedGP on {recipe.data}")
    rng = fresh_generator(recipe.seed)
    some = torch.from_numpy(rng.permutation(len(real))[:_MEASURED])
    features = measuring_features(real.shape[1:])
    return average_case(real[some], drawn[0][:_MEASURED], features=features, gamma=_GAMMA, rng=rng)


def write_inspection(run: Path, page: Path, *, title: str, reference: Path | None = None) -> None:
    """Write a page about a released set, made from it alone, beside an earlier release that is trusted.

    Args:
        run: A run directory, or a folder with a released set.
        page: The file to write.
        title: The page's heading.
        reference: An earlier release that is trusted.
    """
    found, trusted = _compared(run, reference)
    text = inspection_page(
        _labelled(found), found.classes or (), reference=trusted, features=found.feature_names, title=title
    )
    runs.write_text(page.parent, page.name, text)


def alarms_of(run: Path, reference: Path | None = None) -> tuple[Alarm, ...]:
    """Return the alarms that a released set raises, by itself or beside an earlier release that is trusted."""
    found, trusted = _compared(run, reference)
    return alarms(_labelled(found), found.classes or (), reference=trusted, features=found.feature_names)


def _compared(run: Path, reference: Path | None) -> tuple[Dataset, Labelled | None]:
    """Read a release and the one to compare it with; sets that do not hold the same things are refused."""
    found = released_dataset(run)
    if reference is None:
        return found, None
    trusted = released_dataset(reference)
    for what, names in (("shapes of a record", _shape), ("names of the classes", _classes), ("columns", _columns)):
        for new, old in zip_longest(names(found), names(trusted), fillvalue="nothing"):
            if new != old:
                raise ValueError(
                    f"These two releases cannot be compared: their {what} differ, {new} in {str(run)!r} and {old} in "
                    f"{str(reference)!r}."
                )
    return found, _labelled(trusted)


def _shape(dataset: Dataset) -> list[str]:
    return [str(dataset.inputs.shape[1:])]


def _classes(dataset: Dataset) -> list[str]:
    return [repr(name) for name in dataset.classes or ()]


def _columns(dataset: Dataset) -> list[str]:
    """Return the features of a table; those of numbers with the range that they stand for."""
    if dataset.schema is None:
        return [repr(name) for name in dataset.feature_names]
    return [
        f"{name!r} from {column.domain.low:g} to {column.domain.high:g} ({column.domain.scale})"
        if isinstance(column.domain, Real)
        else repr(name)
        for column in dataset.schema.columns
        for name in column.features
    ]


def _labelled(dataset: Dataset) -> Labelled:
    return torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)
