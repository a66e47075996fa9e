"""`tacita check` and `tacita run`."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacita.cli.app import app
from tacita.ledger import BudgetExceeded, Ledger
from tests.cli.command import tacita
from tests.programs.surveys import SMOKERS

SURVEY = """\
from tacita.programs import Program, Bool, Category, Real, beta, dirichlet, geometric, best
p = Program(schema=dict(smoker=Bool(), job=Category(3), age=Real()), n=1000, epsilon=1.5, delta=0.0)
smoking = p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
jobs    = p.release(p.column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=0.5))
age     = p.release(p.column("age").clamp(0, 100, step=1).mean(), geometric(epsilon=0.5))
"""


def tacita_check(*arguments, cwd):
    return tacita("check", *arguments, cwd=cwd)


@pytest.fixture
def survey(tmp_path):
    (tmp_path / "survey.py").write_text(SURVEY)
    return tmp_path


def test_check_shows_every_release_and_the_budget(survey):
    result = tacita_check("survey.py", cwd=survey)
    assert result.returncode == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "survey.py: 1000 records, of which one may be replaced by another"
    rows = [line.split("  ") for line in lines[3:6]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["smoking", "posterior of 'smoker', beta(1, 1)", "L1 1", "geometric(epsilon=0.5)", "epsilon 0.5"],
        ["jobs", "posterior of 'job', dirichlet(1, 1, 1)", "L1 2", "best(epsilon=0.5)", "epsilon 0.5"],
        ["age", "mean of 'age'", "L1 100", "geometric(epsilon=0.5)", "epsilon 0.5"],
    ]
    assert "total: epsilon 1.5 of 1.5" in lines


VISITS = """\
from tacita.programs import Program, Bool, Category, geometric
p = Program(schema=dict(ill=Bool(), ward=Category(2)), epsilon=1, person="patient", rows_per_person=3)
ill = p.release(p.column("ill").count(), geometric(epsilon=0.5))
wards = p.release(p.column("ward").histogram(), geometric(epsilon=0.5))
"""


def test_a_program_about_people_is_checked_run_and_labelled(tmp_path):
    (tmp_path / "visits.py").write_text(VISITS)
    (tmp_path / "d.csv").write_text("patient,ward,ill\n" + "Ada,0,yes\nBen,1,no\nAda,1,no\n" * 20)
    checked = tacita_check("visits.py", cwd=tmp_path).stdout.splitlines()
    assert checked[0] == "visits.py: people, of whom one may come or go with up to 3 rows"
    assert "one person moves it by" in checked[2]
    assert [re.split("  +", row)[2] for row in checked[3:5]] == ["L1 3"] * 2
    document = json.loads(tacita_check("visits.py", "--json", cwd=tmp_path).stdout)
    assert (document["n"], document["neighbours"], document["unit"]) == (None, "add_remove", "person")
    assert (document["person"], document["rows_per_person"]) == ("patient", 3)
    assert tacita("run", "visits.py", "--data", "d.csv", cwd=tmp_path).returncode == 0
    with Ledger.open(tmp_path / "d.csv.ledger.sqlite") as ledger:
        assert (ledger.unit, ledger.neighbours, ledger.spent(1e-5).unit) == ("person", "add_remove", "person")
    inspected = tacita("run", "visits.py", "--data", "d.csv", "--inspect", cwd=tmp_path)
    assert "its rows that count" in inspected.stdout
    (tmp_path / "d.csv").write_text("patient,ward,ill\n,0,yes\n")
    refused = tacita("run", "visits.py", "--data", "d.csv", cwd=tmp_path)
    assert refused.returncode != 0
    assert "A record has no id in 'patient'" in refused.stderr


def test_check_prints_one_json_document(survey):
    (survey / "survey.py").write_text(SURVEY + "print('hello')\nok = p.derive(lambda a: a, age)\n")
    result = tacita_check("survey.py", "--json", cwd=survey)
    document = json.loads(result.stdout)
    assert result.returncode == 0
    assert document["ok"]
    assert document["total"] == {"epsilon": 1.5, "delta": 0.0}
    assert [release["name"] for release in document["releases"]] == ["smoking", "jobs", "age"]
    assert document["releases"][2]["sensitivity"] == {"metric": "l1", "stay": 100, "cross": 0}
    assert document["derived"] == [{"name": "ok", "from": ["age"]}]
    assert result.stderr == "hello\n"


@pytest.mark.parametrize("name", ["nothing.py", "."])
def test_a_missing_file_is_one_line_and_code_2(survey, name):
    result = tacita_check(name, cwd=survey)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert name in result.stderr


def command(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_command_shows_and_keeps_the_results(folder):
    first = command("run", "survey.py", "--data", "people.csv")
    assert first.exit_code == 0, first.output
    for text in ("smoking", "jobs: a", "jobs: c", "█", "ratio = ", "epsilon 1.5 at delta 0", "Kept in runs/survey-1"):
        assert text in first.stdout
    names = {"results.json", "results.txt", "posteriors.svg", "run.json"}
    pages = {"guarantee.json", "label.html", "label-owner.html"}
    assert {f.name for f in (folder / "runs/survey-1").iterdir()} == names | pages
    second = command("run", "survey.py", "--data", "people.csv", "--json")
    document = json.loads(second.stdout)
    assert document["spent"]["epsilon"] == 3.0
    assert document == json.loads((folder / "runs/survey-2/results.json").read_text())
    assert document["results"]["smoking"]["guarantee"]["neighbours"] == "replace_one"
    with Ledger.open(folder / "people.csv.ledger.sqlite") as ledger:
        assert [release["name"] for release in ledger.releases()] == ["survey", "survey"]
    shown = command("ledger", "show", "people.csv.ledger.sqlite").stdout
    assert "replaced by another" in shown
    assert "release survey: 3 releases of 400 records" in shown


def test_a_ledger_that_is_spent_stops_the_command_and_leaves_nothing(folder):
    command("ledger", "create", "b.sqlite", "--epsilon", "1", "--delta", "1e-6", "--neighbours", "replace_one")
    result = command("run", "survey.py", "--data", "people.csv", "--ledger", "b.sqlite", "--run-dir", "kept")
    assert isinstance(result.exception, BudgetExceeded)
    assert not (folder / "kept").exists()


def test_the_owner_may_look_at_how_the_file_fits(folder):
    text = (folder / "people.csv").read_text().splitlines()
    text[3] = "old,maybe,d"
    (folder / "people.csv").write_text("\n".join(text))
    result = command("run", "survey.py", "--data", "people.csv", "--inspect")
    assert result.exit_code == 0
    assert "smoker: cells that are not a truth value: 1, each counts as False" in result.stdout
    assert "job: cells that are not one of 3 categories: 1, each counts as 'a'" in result.stdout
    assert not (folder / "people.csv.ledger.sqlite").exists()
    counted = json.loads(command("run", "survey.py", "--data", "people.csv", "--inspect", "--json").stdout)
    assert counted["unreadable"] == {"smoker": 1, "job": 1, "age": 1}
    assert counted["publishable"] is False


@pytest.mark.parametrize(
    "mistake",
    [
        "if smoking: pass",
        "p.column('smoker').count() > 3",
        "p.run('people.csv')",
        "p.release(p.column('age'), best(epsilon=1))",
    ],
)
def test_an_ill_typed_program_never_looks_for_its_data(folder, mistake):
    (folder / "survey.py").write_text(SMOKERS + mistake)
    (folder / "people.csv").unlink()
    result = command("run", "survey.py", "--data", "people.csv")
    assert result.exit_code == 1
    assert result.output.startswith("error[T")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nowhere.csv"), "does not exist"),
        (("--data", "."), "is a folder"),
        (("--data", "people.csv", "--run-dir", "."), "is not empty"),
    ],
)
def test_bad_use_of_the_command(folder, arguments, message):
    result = command("run", "survey.py", *arguments)
    assert message in str(result.exception)


def test_the_tutorial_on_the_adult_census(tmp_path, monkeypatch):
    """The program of docs/tutorials/adult-program.md on the real file, through the command."""
    source = Path(os.environ.get("TACITA_DATA", "nowhere")) / "adult" / "adult.data.gz"
    if not source.is_file():
        pytest.skip("needs the Adult census: set TACITA_DATA")
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "adult-program.md").read_text()
    header = re.search(r"--header (\S+)", page).group(1)
    (tmp_path / "income.py").write_text(re.search(r'```py title="income.py"\n(.*?)```', page, re.DOTALL).group(1))
    monkeypatch.chdir(tmp_path)
    result = command("run", "income.py", "--data", str(source), "--header", header, "--ledger", "b.sqlite", "--json")
    document = json.loads(result.stdout)
    assert document["guarantee"]["epsilon"] == document["spent"]["epsilon"] == 1.0
    with gzip.open(source) as lines:
        rows = [line.decode().strip().split(", ") for line in lines if line.strip()]
    rich = [row for row in rows if row[14] == ">50K"]
    inside = 0
    for job in {row[6] for row in rows}:
        share = sum(row[6] == job for row in rich) / sum(row[6] == job for row in rows)
        low, high = document["results"][job]["interval_95"][0]
        inside += low <= share <= high
    assert inside >= 9  # 14.25 of 15 expected; fewer than 9 has a chance below 1e-6
    hours = sum(int(row[12]) for row in rich) / len(rich)
    assert document["results"]["mean_rich_hours"]["value"] == pytest.approx(hours, abs=1.5)


def test_a_delta_on_a_ledger_without_a_budget_is_shown(folder):
    text = SMOKERS.replace("epsilon=1.5)", "epsilon=1.5, delta=1e-3)").replace(
        "geometric(epsilon=0.5))\njobs", "gaussian(epsilon=0.5, delta=1e-4))\njobs"
    )
    (folder / "survey.py").write_text(text)
    result = command("run", "survey.py", "--data", "people.csv")
    assert result.exit_code == 0, result.output
    said = [float(epsilon) for epsilon in re.findall(r"epsilon ([\d.]+) at delta 0.00001\.", result.stdout)]
    assert len(said) == 1
    assert 1.5 < said[0] < 3.0  # the whole curve was charged, so it has an epsilon at a delta below its own
    assert (folder / "runs/survey-1/results.txt").exists()


def test_a_failed_calculation_is_an_error_of_the_command_but_loses_nothing(folder):
    (folder / "survey.py").write_text(SMOKERS + "broken = p.derive(lambda s: s.nothing, smoking)\n")
    result = command("run", "survey.py", "--data", "people.csv", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["results"]["broken"] == {"error": "AttributeError: 'Release' object has no attribute 'nothing'"}
    assert document["results"]["ratio"]["value"] > 0.0
    assert (folder / "runs/survey-1/results.json").exists()


def test_a_refused_run_leaves_nothing_behind(folder):
    with (folder / "people.csv").open("a") as file:
        file.write("1,yes,a\n")
    before = {path.name for path in folder.iterdir()}
    result = command("run", "survey.py", "--data", "people.csv")
    assert "give the program the true n" in str(result.exception)
    assert {path.name for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_made_says_what_to_do(folder):
    (folder / "file").write_text("")
    result = command("run", "survey.py", "--data", "people.csv", "--run-dir", "file/inside")
    assert "cannot hold a run: " in str(result.exception)
