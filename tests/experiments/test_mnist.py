"""The page on MNIST is what its script makes of the committed results."""

import importlib

from experiments import rows

page = importlib.import_module("experiments.mnist_dpsgd.page")


def test_the_committed_page_is_made_of_the_committed_results():
    found = rows.load("mnist_dpsgd")
    made = page.page(found, (page.HERE / "page.md").read_text())
    assert made == page.PAGE.read_text(), "run python -m experiments.mnist_dpsgd.page"
    assert "{{" not in made


def test_tables_need_no_row_and_no_seed():
    assert "–" in page.page({}, "{{results}}{{certified}}{{accuracy of filter}}")
