"""`tacita synthesise`: what it prints, writes and refuses."""

import json
import shutil

import pytest

from tacita.ledger import Ledger
from tacita.synthesis.labels import label_of_run
from tacita.synthesis.release import released_dataset
from tests.synthesis.short_runs import CSV, TOML, UNMEASURED, run, tacita


@pytest.fixture(scope="module")
def embedding_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "embedding"
    return folder, run(folder, epsilon=2.0)


def test_a_finished_run_can_be_taken_up_and_charges_nothing_more(embedding_run, tmp_path):
    folder, label = embedding_run
    before = (folder / "released" / "samples.npz").read_bytes()
    again = tacita("synthesise", "--resume", folder, "--no-quality", "--json")
    assert "is finished" in again.stderr
    assert f"tacita label {folder}" in again.stderr
    assert json.loads(again.stdout)["label"]["worst"] == label.to_dict()["worst"]
    assert len(before) > 0
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.charged(next(iter(ledger.runs()))) == 1


def test_a_table_of_ones_own_is_released_as_csv(tmp_path):
    (tmp_path / "people.csv").write_text(CSV)
    (tmp_path / "people.toml").write_text(TOML)
    done = tacita("synthesise", "--config", tmp_path / "people.toml", "--run-dir", tmp_path / "run", "--no-quality")
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "run" / "released" / "samples.csv").read_text().splitlines()
    assert lines[0] == "age,job,happy"
    assert len(lines) == 51
    ages = [float(line.split(",")[0]) for line in lines[1:]]
    assert all(0 <= age <= 100 and age == int(age) for age in ages)
    found = released_dataset(tmp_path / "run")
    assert found.feature_names == ("age", "job=a", "job=b", "job=c")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Pass one of --data"),
        (("--data", "digits", "--resume", "x"), "Pass one of --data"),
        (("--data", "numbers"), "name must be one of"),
        (("--data", "digits", "--epsilon", "-1"), "epsilon must be in"),
        (("--resume", "nowhere"), "no such folder"),
        (("inspect", "nowhere"), "holds no released set"),
    ],
)
def test_bad_commands_end_in_one_line(words, message):
    done = tacita("synthesise", *words)
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert len(str(done.exception).splitlines()) == 1


def test_label_and_inspect_read_a_run_again(embedding_run, tmp_path):
    folder, label = embedding_run
    done = tacita("label", folder, "--json")
    assert json.loads(done.output)["label"]["worst"]["epsilon"] == label.worst.epsilon
    done = tacita("synthesise", "inspect", folder, "--page", tmp_path / "look.html")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "look.html").is_file()


def test_releases_of_other_things_are_not_compared(embedding_run, tmp_path):
    folder, _ = embedding_run
    (tmp_path / "other").mkdir()
    schema = (folder / "released" / "schema.toml").read_text()
    (tmp_path / "other" / "schema.toml").write_text(schema.replace('"9"', '"nine"'))
    shutil.copy(folder / "released" / "samples.npz", tmp_path / "other")
    page = tmp_path / "page.html"
    done = tacita("synthesise", "inspect", folder, "--reference", tmp_path / "other", "--page", page)
    assert "classes differ, '9' in the new one and 'nine' in the trusted one" in str(done.exception)
    assert not page.exists()
    done = tacita("synthesise", "inspect", folder, "--reference", folder, "--page", page, "--json")
    assert json.loads(done.output) == {"schema": 1, "page": str(page), "alarms": []}


def test_a_generators_run_is_not_trained_or_attacked(embedding_run):
    folder, _ = embedding_run
    for words in (("train", "--resume", folder), ("audit", folder)):
        done = tacita(*words)
        assert "is a generator" in str(done.exception)


@pytest.mark.parametrize("generator", ["mean-embedding", "private-wgan"])
def test_a_budget_that_leaves_nothing_but_noise_is_refused_in_a_line(generator, tmp_path):
    asked = ("--data", "digits", "--generator", generator, "--epsilon", 0.001, "--run-dir", tmp_path / "run")
    done = tacita("synthesise", *asked)
    assert isinstance(done.exception, ValueError)
    assert "larger epsilon" in str(done.exception)
    assert not (tmp_path / "run").exists()  # and there is nothing to go on with


def test_data_of_one_class_end_with_a_label_and_a_line_instead_of_a_quality_page(tmp_path):
    """The budget is of the command, as the recipe has none."""
    (tmp_path / "people.csv").write_text(CSV.replace(",no\n", ",yes\n"))
    (tmp_path / "people.toml").write_text(TOML.replace("epsilon = 2.0\n", ""))
    asked = ("--config", tmp_path / "people.toml", "--epsilon", 3, "--run-dir", tmp_path / "run")
    done = tacita("synthesise", *asked, "--ledger", tmp_path / "new.sqlite")
    assert done.exit_code == 0, done.exception
    assert UNMEASURED in done.output
    assert "one class" not in done.output
    assert "new ledger, without a budget" in done.output
    assert "Their quality" not in done.output
    folder = tmp_path / "run"
    assert 2.9 < label_of_run(folder).worst.epsilon <= 3.0
    assert (folder / "label.html").is_file()
    assert not (folder / "quality.html").exists()


def test_records_without_a_promise_are_not_called_safe(tmp_path):
    asked = ("--data", "digits", "--generator", "wgan-gp", "--steps", 3, "--samples", 20, "--no-quality")
    done = tacita("synthesise", *asked, "--run-dir", tmp_path / "run")
    assert "released (not protected" in done.output


@pytest.mark.slow
def test_b1_public_pages_of_a_generator_are_identical_for_neighbours(tmp_path):
    """One record less, one more and far out of what was declared."""
    pages = set()
    for name, text in (("fewer", CSV[: CSV.rindex("\n", 0, -1) + 1]), ("more", CSV + "5000,a,yes\n")):
        place = tmp_path / name
        place.mkdir()
        (place / "people.csv").write_text(text)
        (place / "people.toml").write_text(TOML)
        done = tacita("synthesise", "--config", place / "people.toml", "--run-dir", place / "run", "--no-quality")
        assert done.exit_code == 0, done.output
        pages.add((place / "run" / "label.html").read_bytes())
    assert len(pages) == 1
