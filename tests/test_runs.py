"""Run directories: one form for every kind, and what is refused."""

import json

import pytest
import torch

from tacita.cli.kinds import KINDS, Kind, _function, attack_of, declare_end, kind_of, label_of, require_kind
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.runs import Run, RunError


def test_entries_are_added_and_kept(tmp_path):
    run = Run.create(tmp_path / "run")
    run.write(kind="toy", family="toy", recipe={"steps": 3})
    run.write(facts=RunFacts("a", "b", seeded=False).to_dict(), ledgers=["ledger.sqlite", "/elsewhere/shared.sqlite"])
    found = Run.open(tmp_path / "run", "toy")
    assert (found.kind, found.recipe, found.facts.title) == ("toy", {"steps": 3}, "a")
    assert found.ledgers == [tmp_path / "run" / "ledger.sqlite", Run(tmp_path).folder.root / found.ledgers[1]]
    assert found.place(tmp_path / "run" / "ledger.sqlite") == "ledger.sqlite"
    assert set(found.document()["versions"]) == {"tacita", "torch"}


def test_runs_of_other_versions_and_families_are_refused_and_never_read_as_empty(tmp_path):
    run = Run.create(tmp_path / "run")
    (run.folder / "run.json").write_text(json.dumps({"schema": 1, "plan": {}, "status": "done"}))
    for read in (lambda: Run.open(run.folder), run.document, lambda: run.finished, lambda: run.write(kind="toy")):
        with pytest.raises(RunError, match="another version"):
            read()
    (run.folder / "run.json").unlink()
    run.write(kind="toy", family="toy")
    with pytest.raises(RunError, match="is a run of kind 'toy'"):
        Run.open(run.folder, "training")
    with pytest.raises(RunError, match="has no recipe"):
        _ = run.recipe
    with pytest.raises(RunError, match="damaged"):
        _ = run.facts


def test_a_checkpoint_keeps_tensors_and_plain_data_apart(tmp_path):
    run = Run.create(tmp_path / "run")
    state = {"model": {"w": torch.arange(3.0)}, "list": [1, {"x": torch.ones(2)}], "none": None}
    for step in (1, 2, 3):
        run.save(step, state, {"clean": True})
    found, document = run.load()
    assert document["step"] == 3
    assert document["clean"] is True
    assert torch.equal(found["model"]["w"], torch.arange(3.0))
    assert torch.equal(found["list"][1]["x"], torch.ones(2))
    assert len(list((run.folder / "checkpoints").iterdir())) == 4  # the last two, two files each
    with pytest.raises(ValueError, match="Cannot save set"):
        run.save(4, {"odd": {1, 2}}, {})


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_names_functions_that_exist(name):
    kind = KINDS[name]
    for place in (kind.label, kind.end, kind.attack, kind.weights):
        if place:
            assert callable(_function(place))
    assert bool(kind.attack) != bool(kind.unattacked)


def toy_label(run, *, delta=None):
    worst = Guarantee(kind="worst_case", epsilon=1.0, delta=delta or 1e-5, method="toy", publishable=True)
    return Label(title=Run(run).facts.title, purpose="A toy.", worst=worst)


def test_a_new_kind_is_one_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "toy", Kind("a toy", f"{__name__}:toy_label", resume="toy", unattacked="it is a toy"))
    monkeypatch.setattr("tacita.cli.kinds.import_module", lambda name: __import__("sys").modules[toy_label.__module__])
    run = Run.create(tmp_path / "run")
    run.write(kind="toy", family="toy", facts=RunFacts("Toy", "b", seeded=False).to_dict())
    assert label_of(run.folder, delta=1e-3).worst.delta == 1e-3
    assert kind_of(run.folder).words == "a toy"
    for refused in (attack_of, lambda where: declare_end(where, "x"), lambda where: require_kind(where, "training")):
        with pytest.raises(RunError, match="a toy"):
            refused(run.folder)
    run.write(kind="unheard-of")
    with pytest.raises(RunError, match="does not know"):
        kind_of(run.folder)
