"""The page on CIFAR-10 and Fashion-MNIST is what its script makes of the committed results."""

import importlib

import pytest

from experiments import rows

page = importlib.import_module("experiments.features.page")


def test_the_committed_page_is_made_of_the_committed_results():
    found, chosen = rows.load("features"), rows.load("features", "choices.jsonl")
    made = page.page(found, chosen, (page.HERE / "page.md").read_text())
    assert made == page.PAGE.read_text(), "run python -m experiments.features.page"
    assert "{{" not in made


@pytest.mark.parametrize("name", page.TABLES)
def test_tables_for_other_pages_need_no_row_and_no_seed(name, monkeypatch):
    some = dict(list(rows.load("features").items())[:1])
    for found in ({}, some):
        monkeypatch.setattr(page.measured, "load", lambda folder, found=found: found)
        assert isinstance(page.TABLES[name](), str)
