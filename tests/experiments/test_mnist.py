"""The page on MNIST is what its script makes of the committed results."""

import importlib

from experiments import rows

page = importlib.import_module("experiments.mnist_dpsgd.page")


def test_the_committed_page_is_made_of_the_committed_results():
    found = rows.load("mnist_dpsgd")
    made = page.page(found, (page.HERE / "page.md").read_text())
    assert made == page.PAGE.read_text(), "run python -m experiments.mnist_dpsgd.page"
    assert "{{" not in made


def test_the_readme_tells_the_largest_of_the_runs():
    certified = [row["attack_success"] for row in page.runs(rows.load("mnist_dpsgd"), "cnn")]
    anyone, half = (max(found) for found in zip(*((s["anyone"], s["shares"]["50.0"]) for s in certified), strict=True))
    readme = (page.HERE.parents[1] / "README.md").read_text()
    assert f"is right at most {page.up(100 * anyone, 1)} times in 100" in readme
    assert f"it is at most {page.up(100 * half, 1)} times" in readme


def test_tables_need_no_row_and_no_seed():
    assert "–" in page.page({}, "{{results}}{{certified}}{{accuracy of filter}}")
