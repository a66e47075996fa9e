"""MNIST tuned within one epsilon: the table in the guide is that of the committed results, which keep to it."""

import importlib

import pytest
import torch
from torch import nn

from experiments import rows

run = importlib.import_module("experiments.tuning.run")
GUIDE = run.measured.HERE.parent / "docs" / "how-to" / "tune.md"


def test_the_table_in_the_guide_is_made_of_the_committed_results():
    made = run.accuracies(rows.load("tuning"), rows.load("mnist_dpsgd"))
    assert made in GUIDE.read_text(), "run python -m experiments.tuning.run --table"


def test_every_tuned_row_kept_to_its_epsilon_as_a_whole():
    tuned = {name: row for name, row in rows.load("tuning").items() if name.startswith("tuned")}
    assert tuned
    for name, row in tuned.items():
        assert row["worst"] <= float(name.split()[1]), name


def test_the_score_changes_by_at_most_one_with_a_record():
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 3), torch.randn(40, 5), torch.randint(0, 3, (40,))
    whole = run.right_answers(model, x, y)
    assert whole == int((model(x).argmax(1) == y).sum())
    for i in range(len(y)):
        kept = torch.arange(len(y)) != i
        assert whole - run.right_answers(model, x[kept], y[kept]) in (0, 1)


@pytest.mark.parametrize("quick", [False, True])
def test_every_row_has_a_name_of_its_own_and_all_settings_of_the_space_are_tuned(quick):
    jobs = run.rows(quick)
    assert {name.split()[0] for name in jobs} == {"tuned", "alone"}
    assert len(run.Sizes().settings) == 16
