"""Ways to follow records compared: the table in the guide is that of the committed results."""

import importlib

from experiments import rows

run = importlib.import_module("experiments.panel.run")
GUIDE = run.measured.HERE.parent / "docs" / "how-to" / "train.md"


def test_the_table_in_the_guide_is_made_of_the_committed_results():
    assert run.compared(rows.load("panel")) in GUIDE.read_text(), "run python -m experiments.panel.run --table"
