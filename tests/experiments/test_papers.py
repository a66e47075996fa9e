"""The page on the papers is what its script makes of the committed results."""

import importlib
import json

import pytest

from experiments import rows, tables
from experiments.papers import page, run


def test_the_committed_page_is_made_of_the_committed_results():
    made = page.page(page.sections())
    assert made == page.PAGE.read_text(), "run `python -m experiments.papers.page`"


def test_every_figure_of_the_page_is_there():
    shown = [part.split(")")[0] for part in page.PAGE.read_text().split("](../assets/")[1:]]
    assert len(shown) >= 5
    assert all((page.DOCS / "assets" / name).is_file() for name in shown)


def test_a_hole_in_the_sections_that_nothing_fills_is_refused():
    with pytest.raises(ValueError, match=r"figure 9\.9"):
        page.page("{{figure 9.9}}")


def test_bounds_are_rounded_up_and_other_figures_to_the_nearest():
    found = [tables.bound(x) for x in (0.05511, 0.0551, 1.0, 2.0001, 116.2)]
    assert found == ["0.0552", "0.0551", "1.00", "2.01", "117"]
    assert [tables.digits(x) for x in (0.05511, 9.995, 1234.4)] == ["0.0551", "9.99", "1,234"]
    assert [tables.up(x) for x in (1.0, 0.9999, 0.3411, 2.99)] == ["1.00", "1.00", "0.35", "2.99"]
    assert tables.up(55.01, 1) == "55.1"


def test_rows_are_skipped_once_they_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rows, "HERE", tmp_path)
    (tmp_path / "papers").mkdir()
    rows.main("papers", run.rows, ["variance*"])
    first = (tmp_path / "papers" / "results.jsonl").read_text()
    assert len(first.splitlines()) == 3
    rows.main("papers", run.rows, ["variance*"])
    assert (tmp_path / "papers" / "results.jsonl").read_text() == first
    assert {"row", "seeds", "cpu_minutes", "settings"} < set(json.loads(first.splitlines()[0]))
    with pytest.raises(SystemExit, match="no row of papers matches"):
        rows.main("papers", run.rows, ["variances"])


@pytest.mark.parametrize("folder", page.FOLDERS)
def test_every_measured_row_says_its_seeds_its_cost_and_how_its_settings_were_chosen(folder):
    names = importlib.import_module(f"experiments.{folder}.run").rows(False)
    for name, row in rows.load(folder).items():
        assert name in names, f"{folder}: {name} is measured by nothing"
        assert {"seeds", "cpu_minutes", "settings"} < set(row), (folder, name)
