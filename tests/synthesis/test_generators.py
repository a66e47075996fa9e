"""Every entry of `GENERATORS` keeps to the protocol, and a new one takes a class and a line."""

import copy
import math
import pkgutil
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import pytest

from tacita import runs, synthesis
from tacita.assumptions import assume
from tacita.label import Label, build, no_guarantee
from tacita.ledger import Ledger
from tacita.synthesis.generators import GENERATORS
from tacita.synthesis.generators.kind import COMMON, facts_of, readings, write_run
from tacita.synthesis.jobs import restart, start
from tacita.synthesis.labels import label_of_run
from tacita.synthesis.networks import Generator, make_generator
from tacita.synthesis.recipes import Recipe
from tacita.synthesis.release import released_dataset


@dataclass
class Toy:
    """An untrained generator, which never reads a record."""

    purpose = "Synthetic records from an untrained generator."
    private = False
    entries = frozenset({"width"})
    steps, shares, annotate = 1, None, None

    task: Any
    folder: Any
    resume: bool

    def __post_init__(self):
        self.generator = make_generator(self.task.shape, len(self.task.classes), width=self.task.recipe.width or 8)
        self.untrained = copy.deepcopy(self.generator)
        self.facts = facts_of(self.task, self.purpose)

    def run(self, progress):
        progress(1, 1, "nothing")
        self.facts = self.facts.with_status("done")
        write_run(self.folder, self.task.recipe, self.facts)

    @staticmethod
    def label(run, delta):
        return build(
            run.facts,
            no_guarantee(delta=delta),
            rests_on=(assume("generator-unlimited"),),
            mechanism=(("Generator", "toy"),),
            readings=readings(run.facts, "Nobody was followed."),
        )


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    monkeypatch.setitem(GENERATORS, "toy", Toy)


def recipe(name):
    kind = GENERATORS[name]
    asked = {"steps": 2, "noise_multiplier": 2.0, "panel": 40, "batch_size": 16, "width": 4, "clip_norm": 100.0}
    asked = {entry: value for entry, value in asked.items() if entry in kind.entries}
    return Recipe.from_dict({"data": {"name": "digits"}, "generator": name, "samples": 20, "seed": 1, **asked})


@pytest.mark.parametrize("name", [*GENERATORS, "toy"])
def test_every_generator_is_made_released_labelled_and_resumed(name, tmp_path):
    kind, said = GENERATORS[name], []
    job = start(recipe(name), tmp_path / "run")
    assert isinstance(job.maker.generator, Generator)
    label = job.run(lambda step, _, doing: said.append((step, doing)), quality=False)
    assert said
    assert max(step for step, _ in said) <= job.maker.steps
    assert all(doing for _, doing in said)
    assert label.purpose == kind.purpose
    assert label.title == "Synthetic digits"
    names = [row for row, _ in label.mechanism]
    assert names[0] == "Generator"
    assert names[-1] == "Released records"
    assert len(set(names)) == len(names)
    assert len(released_dataset(tmp_path / "run").inputs) == 20
    assert Label.from_dict(label.to_dict()) == label == label_of_run(tmp_path / "run")
    assert label_of_run(tmp_path / "run", delta=1e-7).worst.delta == pytest.approx(1e-7)
    assert (label.readings.shares is not None) == (name == "private-wgan")  # digits are as long as the embedding allows
    ledger = tmp_path / "run" / "ledger.sqlite"
    assert runs.Run(tmp_path / "run").ledgers == ([ledger] if kind.private else [])
    before = charged(ledger) if kind.private else {}
    again = restart(tmp_path / "run").run(quality=False)
    assert again.worst == label.worst
    if kind.private:
        assert math.isfinite(label.worst.epsilon)
        assert {"epsilon", "noise_multiplier", "ledger"} <= kind.entries
        assert sum(before.values()) > 0
        assert charged(ledger) == before  # a finished run spends nothing more


def charged(ledger):
    with Ledger.open(ledger) as opened:
        return {run: opened.charged(run) for run in opened.runs()}


@pytest.mark.parametrize("name", [*GENERATORS, "toy"])
def test_a_generator_refuses_what_it_would_ignore(name):
    kind, entries = GENERATORS[name], {entry.name: entry for entry in fields(Recipe)}
    assert kind.entries <= set(entries) - COMMON
    for entry in set(entries) - COMMON - kind.entries:
        asked = {"ledger": "x.sqlite", "noise": "exact"}.get(entry, True if entry in ("dp_critic", "annotator") else 3)
        with pytest.raises(ValueError, match=rf"{entry} (is for|does not apply)"):
            Recipe.from_dict({"data": {"name": "digits"}, "generator": name, entry: asked})


def test_every_entry_of_a_recipe_is_taken_by_some_generator():
    taken = COMMON.union(*(kind.entries for kind in GENERATORS.values()))
    assert taken == {entry.name for entry in fields(Recipe)}


def test_no_public_name_shadows_a_module():
    for module in pkgutil.iter_modules(synthesis.__path__):
        assert isinstance(getattr(synthesis, module.name, synthesis), ModuleType)


def test_a_release_takes_one_call_and_is_resumed_by_another(tmp_path):
    seen = []
    label = synthesis.synthesise(recipe("toy"), tmp_path / "run", quality=False, progress=lambda *now: seen.append(now))
    assert seen == [(1, 1, "nothing")]
    assert synthesis.resume(tmp_path / "run", quality=False).worst == label.worst
