"""What takes the rounds of a recipe's federation: one file an engine, and one entry in `ENGINES`."""

from pathlib import Path

from tacita import _check
from tacita.federated.engines.engine import Engine as Engine
from tacita.federated.engines.flower import FLOWER
from tacita.federated.engines.local import LOCAL
from tacita.federated.recipes import Recipe
from tacita.federated.storage import KIND
from tacita.runs import Run

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (LOCAL, FLOWER)}


def recipe_of(run_dir: str | Path) -> tuple[Recipe, Engine]:
    """Return the recipe of a run and the engine that it was started with."""
    run = Run.open(run_dir, KIND)
    with run.reading():
        return Recipe(**run.recipe), ENGINES[_check.one_of("engine", run.document()["engine"], tuple(ENGINES))]
