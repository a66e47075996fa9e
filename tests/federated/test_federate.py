"""`tacita federate` as a person would type it, with wrong input too."""

import json
import sys
from unittest import mock

import pytest

from tacita.federated import recipes
from tacita.ledger import Ledger
from tacita.runs import Run
from tests.cli.command import tacita as federate

SMALL = ("--clients", "5", "--rounds", "2", "--seed", "1")


def test_the_demo_gives_a_label_with_both_units(tmp_path):
    done = federate("federate", "--demo", *SMALL, "--run-dir", tmp_path / "run")
    assert done.returncode == 0
    assert "round 2/2: accuracy" in done.stderr
    for words in ("ANY ONE CLIENT (worst case)", "ANY ONE RECORD (worst case)", "neither follows from the other"):
        assert words in done.stdout
    run = tmp_path / "run"
    assert {"label.html", "label-owner.html", "guarantee.json", "run.json"} <= {p.name for p in run.iterdir()}
    shown = federate("label", run)
    assert shown.stdout == done.stdout
    public = (run / "label.html").read_text()
    assert "accuracy" not in public
    with Ledger.open(run / "ledger.sqlite") as clients, Ledger.open(run / "record-ledger.sqlite") as records:
        assert (clients.unit, records.unit) == ("client", "record")
        assert [sum(r["charged"] for r in book.runs().values()) for book in (clients, records)] == [2, 2]


@pytest.mark.parametrize("level", ["client", "sequential"])
def test_json_is_one_document(level, tmp_path):
    run = tmp_path / f"federate-{level}"
    done = federate("federate", "--demo", *SMALL, "--level", level, "--split", "class", "--run-dir", run, "--json")
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert document["label"]["worst"]["unit"] == ("client" if level == "client" else "record")
    assert document["run"] == str(run)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    plain = recipes.accuracy
    seen = []

    def interrupt(*model_and_data):
        seen.append(1)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return plain(*model_and_data)

    monkeypatch.setattr(recipes, "accuracy", interrupt)
    run = tmp_path / "run"
    done = federate("federate", "--demo", "--clients", "5", "--rounds", "3", "--level", "client", "--run-dir", run)
    assert done.returncode == 130
    assert "round 1 of 3 is kept" in done.stderr
    again = federate("federate", "--resume", run)
    assert again.returncode == 0
    assert "Rounds taken: 3 of 3" in again.stdout
    assert "Rounds lost to interruptions: 0" in again.stdout
    assert "is finished" not in again.stderr
    (line,) = federate("federate", "--resume", run).stderr.splitlines()
    assert "is finished" in line
    assert f"tacita label {run}" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either --demo"),
        (("--demo", "--engine", "mqtt"), "--engine must be one of"),
        (("--demo", "--level", "world"), "level must be one of"),
        (("--demo", "--split", "odd"), "split must be one of"),
        (("--demo", "--clients", "5000"), "too many for 1437 records"),
        (("--demo", "--clients", "1"), "clients must be"),
        (("--demo", "--data", "adult"), "data must be one of"),
        (("--demo", "--epsilon", "0"), "epsilon must be"),
        (("--demo", "--client-rate", "2"), "each client takes part"),
        (("--demo", "--dropout", "3"), "dropout must be"),
        (("--demo", "--engine", "flower", "--dropout", "0.5"), "--dropout is for --engine local"),
        (("--resume", "nowhere"), "leave out --run-dir"),
    ],
)
def test_wrong_input_ends_with_one_line(arguments, words, tmp_path):
    done = federate("federate", *arguments, "--run-dir", tmp_path / "run")
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_federations_run_is_no_training_run(tmp_path):
    run = tmp_path / "run"
    assert "not a run directory" in federate("federate", "--resume", run).stderr
    federate("federate", "--demo", *SMALL, "--level", "client", "--run-dir", run)
    for command in (("audit", run), ("train", "--resume", run)):
        done = federate(*command)
        assert done.returncode == 2
        assert "is a federation" in done.stderr
    Run(run).write(kind="training")
    assert "is a training; go on with: tacita train --resume" in federate("federate", "--resume", run).stderr


def test_flower_missing_is_told_in_one_line(tmp_path):
    hidden = {name: None for name in list(sys.modules) if name.split(".")[0] == "flwr"}
    with mock.patch.dict(sys.modules, {**hidden, "flwr": None}):
        sys.modules.pop("tacita.federated.flower", None)
        sys.modules.pop("tacita.federated.flower_client", None)
        done = federate("federate", "--demo", "--engine", "flower", "--run-dir", tmp_path / "run")
    assert done.returncode == 2
    assert "pip install -e '.[federated]'" in done.stderr
    assert done.stderr.count("\n") == 1
