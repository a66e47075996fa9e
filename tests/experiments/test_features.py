"""The page on CIFAR-10 and Fashion-MNIST is what its script makes of the committed results."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "features"


def script():
    spec = importlib.util.spec_from_file_location("features_page", FOLDER / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_made_of_the_committed_results():
    page = script()
    template = (FOLDER / "page.md").read_text()
    made = page.page(page.load("results.jsonl"), page.load("choices.jsonl"), template)
    assert made == page.PAGE.read_text(), "run experiments/features/page.py"
    assert "{{" not in made


def test_bounds_are_rounded_up():
    page = script()
    assert [page.up(x) for x in (1.0, 0.9999, 0.3411, 2.99)] == ["1.00", "1.00", "0.35", "2.99"]
    assert page.up(55.01, 1) == "55.1"
