"""The evidence folder: seeds never get into it, and a missing ledger is not passed over."""

import json

import pytest

from tacita.evidence import write_evidence
from tacita.ledger import Ledger
from tacita.runs import Run, RunError
from tests.report.test_registry import label


@pytest.fixture
def run(tmp_path):
    made = Run.create(tmp_path / "run")
    Ledger.create(made.folder / "ledger.sqlite").close()
    recipe = {"seed": 904771230551, "name": "x", "inner": [{"coins": 904771230551}]}
    made.write(kind="training", family="training", plan={"steps": 3}, recipe=recipe, coins="904771230551")
    made.write(ledgers=["ledger.sqlite"], own={"seed": 904771230551})
    return made


def test_no_seed_and_no_coins(run, tmp_path):
    write_evidence(tmp_path / "out", run, label())
    texts = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any("904771230551" in text for text in texts)
    plan = json.loads((tmp_path / "out/confidential/plan.json").read_text())
    assert plan == {"kind": "training", "plan": {"steps": 3}, "recipe": {"name": "x", "inner": [{}]}}
    assert "there is no audit.json" in (tmp_path / "out/README.txt").read_text()


def test_an_audit_is_filed(run, tmp_path):
    (run.folder / "audit.json").write_text('{"steps": 3}')
    write_evidence(tmp_path / "out", run, label())
    assert json.loads((tmp_path / "out/confidential/audit.json").read_text()) == {"steps": 3}


def test_a_missing_ledger_and_a_used_folder_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="not an empty folder"):
        write_evidence(run.folder, run, label())
    (run.folder / "ledger.sqlite").unlink()
    with pytest.raises(RunError, match="is not there"):
        write_evidence(tmp_path / "out", run, label())
    assert not (tmp_path / "out").exists()
