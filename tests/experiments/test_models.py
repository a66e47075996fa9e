"""The page of models is what its script makes of the committed results, and these are what Tacita does now."""

import importlib

import pytest

from experiments import rows

for library in ("torch", "transformers", "peft", "opacus"):
    pytest.importorskip(library)
page = importlib.import_module("experiments.models.page")
run = importlib.import_module("experiments.models.run")

FOUND = rows.load("models")
TELLING = (
    "BERT",
    "GPT-2",
    "ConvNeXT",
    "LoRA on DistilBERT",
    "GRU, packed sequences",
    "Embedding stored transposed, `padding_idx`",
)


def test_the_committed_page_is_made_of_the_committed_results():
    made = page.page(FOUND, (page.HERE / "page.md").read_text())
    assert made == page.PAGE.read_text(), "run python -m experiments.models.page"
    assert "{{" not in made
    assert list(FOUND) == list(run.BUILDS), "run python -m experiments.models.run, after deleting what is no model"


def test_every_model_runs_right_or_is_refused_by_name_or_warned_of():
    cells = {name: page.ours(name, row["ours"]) for name, row in FOUND.items()}
    assert len(cells) >= 58
    refused = {name for name, cell in cells.items() if not cell.startswith("right")}
    words = ("BatchNorm", "ResNet", "MobileViT", "spectral norm", "max_norm", "contrastive")
    assert all(any(word in name for word in words) for name in refused)
    assert page.ours("any", {"way": "together", "layers": 1.0, "apart": 1.1e-5}) == "**wrong** by 0.0011%"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in TELLING)) for name in run.BUILDS]
)
def test_a_model_does_what_the_page_says(name):
    assert page.ours(name, run.measured_ours(name)) == page.ours(name, FOUND[name]["ours"])
