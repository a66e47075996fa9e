"""The page on the papers is what its script makes of the committed results."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "papers"


def script(name):
    spec = importlib.util.spec_from_file_location(f"papers_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_made_of_the_committed_results():
    page = script("page")
    made = page.page(page.load(), page.SECTIONS.read_text())
    assert made == page.PAGE.read_text(), "run `make papers`"
    for figure in ("5.1", "5.2", "5.3", "5.4", "5.5"):
        assert f"papers-figure-{figure}.svg" in made
        assert (page.DOCS / "assets" / f"papers-figure-{figure}.svg").is_file()


def test_a_hole_in_the_sections_that_nothing_fills_is_refused():
    page = script("page")
    with pytest.raises(ValueError, match=r"sections\.md asks for"):
        page.page(page.load(), "{{figure 9.9}}")


def test_bounds_are_rounded_up_and_other_figures_to_the_nearest():
    page = script("page")
    assert [page.bound(x) for x in (0.05511, 0.0551, 1.0, 2.0001, 116.2)] == ["0.0552", "0.0551", "1.00", "2.01", "117"]
    assert [page.digits(x) for x in (0.05511, 9.995, 1234.4)] == ["0.0551", "9.99", "1,234"]


def test_rows_are_skipped_once_they_are_measured(tmp_path, monkeypatch, capsys):
    run = script("run")
    monkeypatch.setattr(run, "HERE", tmp_path)
    run.main(["variance*"])
    first = (tmp_path / "results.jsonl").read_text()
    assert len(first.splitlines()) == 3
    run.main(["variance*"])
    assert (tmp_path / "results.jsonl").read_text() == first
    assert {"seeds", "cpu_seconds", "settings"} < set(json.loads(first.splitlines()[0]))
    assert set(run.rows(quick=False)) == set(script("page").load())
