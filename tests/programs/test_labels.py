"""The label of a program's run."""

import pytest

from tacita import PrivacyError
from tacita.cli.kinds import label_of
from tacita.ledger import Ledger
from tacita.programs import Bool, Program, geometric
from tacita.programs.labels import label_of_run, write_run
from tacita.runs import Run


@pytest.fixture
def run(tmp_path):
    program = Program(schema={"smoker": Bool()}, n=4, epsilon=1.0)
    program.release(program.column("smoker").count(), geometric(epsilon=0.75), name="smokers")
    with Ledger.create(tmp_path / "ledger.sqlite", neighbours="replace_one") as ledger:
        program.run({"smoker": [True, False, False, True]}, ledger=ledger)
        made = Run.create(tmp_path / "run")
        write_run(made, program, title="smokers", ledger=ledger)
    return made, program


def test_a_programs_label_says_what_the_program_promises(run):
    made, program = run
    label = label_of(made.folder)
    assert label.worst.epsilon == program.guarantee().epsilon == 0.75
    assert label.worst.neighbours == "replace_one"
    assert {"public-size", "exact-noise", "program-charged"} <= {a.code for a in label.checks}
    assert ("Release smokers", "count of 'smoker', by geometric(epsilon=0.75)") in label.mechanism
    made.write_label(label)
    assert "4, public" in (made.folder / "label.html").read_text()


def test_another_delta_and_another_ledger_are_refused(run, tmp_path):
    made, _ = run
    with pytest.raises(ValueError, match="declared in it"):
        label_of_run(made.folder, delta=1e-3)
    (tmp_path / "ledger.sqlite").unlink()
    with Ledger.create(tmp_path / "ledger.sqlite", neighbours="replace_one"):
        pass
    with pytest.raises(PrivacyError, match="not the ledger"):
        label_of_run(made.folder)
