"""Every engine of the table, and one that is registered here."""

from dataclasses import replace
from functools import partial

import pytest

from tacita.federated.engines import ENGINES
from tacita.federated.engines.local import LOCAL
from tacita.federated.recipes import Recipe, ready, recipe_of
from tests.cli.command import tacita

SMALL = ("--level", "client", "--clients", "3", "--rounds", "2")


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_entered_under_its_name_and_prepares_a_run_without_charging_it(name, tmp_path):
    if name == "flower":
        pytest.importorskip("flwr")
    engine = ENGINES[name]
    assert engine.name == name
    make = partial(ready, Recipe(level="client", clients=3, rounds=1))
    assert callable(engine.prepare(make, tmp_path / "run", resume=False).run)


def test_an_engine_of_the_table_is_one_of_the_command(tmp_path, monkeypatch):
    begun = []

    def prepare(make, run_dir, *, resume):
        begun.append(resume)
        return LOCAL.prepare(make, run_dir, resume=resume)

    monkeypatch.setitem(ENGINES, "toy", replace(LOCAL, name="toy", prepare=prepare))
    done = tacita("federate", "--demo", "--engine", "toy", *SMALL, "--run-dir", tmp_path / "run")
    assert done.returncode == 0
    assert begun == [False]
    assert recipe_of(tmp_path / "run", Recipe)[0] == Recipe(level="client", clients=3, rounds=2)
