"""`tacita tune`: what a recipe may tune, what is shown, how it goes on, and that its score is what it says."""

import json
import pickle
import re
import sys
import textwrap

import pytest
import torch

from tacita.cli import main
from tacita.ledger import Ledger
from tacita.runs import read_json
from tacita.training.labels import label_of_run
from tacita.training.tuning_recipes import TuningRecipe, prepared

CSV = "age,job,smoker\n" + "\n".join(
    f"{20 + i % 60},{['clerk', 'nurse', 'other'][i % 3]},{'yes' if i % 60 > 25 else 'no'}" for i in range(200)
)
TOML = textwrap.dedent("""
    name = "Smokers"
    epsilon = 1.0
    batch_size = 20
    nominal_size = 200
    steps = 3

    [data]
    file = "people.csv"
    target = "smoker"
    [data.columns.age]
    type = "real"
    low = 0
    high = 100
    [data.columns.job]
    type = "category"
    values = ["clerk", "nurse", "other"]
    [data.columns.smoker]
    type = "bool"
""")
PLAIN = TOML.replace("epsilon = 1.0", "noise_multiplier = 2.0")  # nothing to calibrate
TUNE = textwrap.dedent("""
    [tune]
    expected = 2
    score = "private"
    score_noise = 10.0
    [tune.space]
    learning_rate = [0.5, 2.0]
""")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "people.csv").write_text(CSV)
    (tmp_path / "survey.toml").write_text(TOML + TUNE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tacita(monkeypatch, capsys):
    """Run a command in this process; returns what it printed."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["tacita", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        assert (ended.value.code or 0) == code, output.err
        return output

    return run


def test_one_command_tunes_within_the_epsilon_and_goes_on(folder, tacita):
    """The first call stops where the ledger does not pay; the second one begins with the same draws and coins."""
    (folder / "survey.toml").write_text('ledger = "study.sqlite"\n' + TOML + TUNE)
    with Ledger.create(folder / "study.sqlite", epsilon=0.3, delta=1e-5) as ledger:
        assert "budget" in tacita("tune", "--config", "survey.toml", code=2).err
        files = [read_json(folder / "runs/survey-tuned", f"{name}.sensitive.json") for name in ("recipe", "tuning")]
        ledger.set_budget(4.0, 1e-5, allow_increase=True)
        said = tacita("tune", "--config", "survey.toml")
        assert len(ledger.releases()) == 1
        assert ledger.runs() == {}
    kept = [read_json(folder / "runs/survey-tuned", f"{name}.sensitive.json") for name in ("recipe", "tuning")]
    assert kept[0] == files[0]
    assert kept[1]["drawn"] == files[1]["drawn"]
    assert said.err == ""
    assert "runs/survey-tuned/best/label.html" in said.out
    label = label_of_run("runs/survey-tuned/best")
    assert 0.99 < label.worst.epsilon <= 1.0
    codes = {assumption.code for assumption in label.checks}
    assert {"tuning-accounted", "private-score", "score-apart", "chosen-blindly-beside-tuning"} <= codes
    assert "accuracy" in (folder / "runs/survey-tuned/best/label-owner.html").read_text()
    assert "on records held out" not in (folder / "runs/survey-tuned/best/label.html").read_text()
    again = tacita("tune", "--config", "survey.toml")
    assert "is finished" in again.err
    (folder / "survey.toml").write_text(TOML + TUNE)
    assert "another recipe" in tacita("tune", "--config", "survey.toml", code=2).err


def test_a_check_says_what_it_costs_and_does_nothing(folder, tacita):
    (folder / "survey.toml").write_text(TOML + TUNE + "steps = [3, 6]\n")
    found = json.loads(tacita("tune", "--config", "survey.toml", "--check", "--json").out)
    assert 0.98 < found["worst"]["epsilon"] <= 1.0
    noises = {row["settings"]["steps"]: row["noise_multiplier"] for row in found["settings"]}
    assert len(found["settings"]) == 4
    assert noises[3] < noises[6]
    (folder / "survey.toml").write_text(PLAIN + TUNE)
    assert "2 settings" in tacita("tune", "--config", "survey.toml", "--check").out
    assert not (folder / "runs").exists()


def test_a_private_score_counts_every_held_out_record_by_itself(folder):
    (folder / "survey.toml").write_text(PLAIN + TUNE)
    job = prepared(TuningRecipe.read(folder / "survey.toml"), None)
    model = job.make_run(job.choices[0], None).model
    inner = job._jobs[model]
    whole, (x, y) = job.score(model), inner.held
    with torch.no_grad():
        right = [int(model(one[None]).argmax() == answer) for one, answer in zip(x, y, strict=True)]
    assert whole == sum(right)
    for i in range(len(y)):
        kept = torch.arange(len(y)) != i
        inner.held = (x[kept], y[kept])
        assert whole - job.score(model) == right[i]
    inner.held = (torch.cat([x, torch.full_like(x[:1], float("nan"))]), torch.cat([y, y[:1]]))
    assert whole <= job.score(model) <= whole + 1


def test_a_public_score_needs_a_test_part_and_takes_the_mean_error_of_numbers(folder):
    public = TUNE.replace("private", "public").replace("score_noise = 10.0\n", "")
    (folder / "survey.toml").write_text(PLAIN + public)
    with pytest.raises(ValueError, match="test file"):
        prepared(TuningRecipe.read(folder / "survey.toml"), None)
    (folder / "other.csv").write_text(CSV)
    (folder / "survey.toml").write_text(PLAIN.replace('"people.csv"', '"people.csv"\ntest = "other.csv"') + public)
    job = prepared(TuningRecipe.read(folder / "survey.toml"), None)
    assert 0.0 <= job.score(job.make_run(job.choices[0], None).model) <= 1.0
    numbers = PLAIN.replace('"people.csv"', '"people.csv"\ntest = "other.csv"').replace('"smoker"', '"age"', 1)
    (folder / "survey.toml").write_text(numbers + public)
    job = prepared(TuningRecipe.read(folder / "survey.toml"), None)
    assert job.score(job.make_run(job.choices[0], None).model) < 0.0
    (folder / "survey.toml").write_text(numbers + TUNE)
    with pytest.raises(ValueError, match="not right or wrong"):
        prepared(TuningRecipe.read(folder / "survey.toml"), None)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("expected = 2\n", "", r"\[tune\] needs expected"),
        ("expected = 2", "expected = 1", r"\[tune\] expected must be in"),
        ("expected = 2", 'expected = 2\nlaw = "normal"', r"\[tune\] law must be one of"),
        ("expected = 2", "expects = 2\nexpected = 2", "did you mean 'expected'"),
        ('"private"', '"secret"', r"\[tune\] score must be one of"),
        ("score_noise = 10.0\n", "", "score_noise is that of a private score"),
        ("score_noise = 10.0", "score_noise = -1.0", r"\[tune\] score_noise must be"),
        ("learning_rate = [0.5", "learning_rates = [0.5", "did you mean 'learning_rate'"),
        ("learning_rate", "delta", "cannot vary 'delta'"),
        (
            "learning_rate = [0.5",
            "learning_rate = [-0.5",
            r"\[tune.space\] with learning_rate = -0.5: lea",
        ),
        ("learning_rate = [0.5, 2.0]", "learning_rate = 0.5", r"\[tune.space\] learning_rate must be a list"),
        ("learning_rate = [0.5", "noise_multiplier = [0.5", "Give either epsilon"),
        ("steps = 3\n", "steps = 3\nstops = [2]\n", "stops is about one run"),
        ("steps = 3\n", "steps = 3\nseed = 2\n", "seed is about one run"),
        ("steps = 3\n", "steps = 3\nreservation = 'june'\n", "reservation is about one run"),
        ("[tune]", "[tuned]", "'tuned' is not an entry of a recipe; did you mean 'tune'"),
        ("nominal_size = 200\n", "", "Declare nominal_size"),
    ],
)
def test_what_is_wrong_is_named(folder, tacita, before, after, said):
    assert before in TOML + TUNE
    (folder / "survey.toml").write_text((TOML + TUNE).replace(before, after, 1))
    output = tacita("tune", "--config", "survey.toml", "--check", code=2)
    assert output.err.count("\n") == 1

    assert re.search(said, output.err), output.err


def test_a_recipe_of_a_tuning_is_not_one_of_a_training(folder, tacita):
    assert "tacita tune" in tacita("train", "--config", "survey.toml", code=2).err
    (folder / "plain.toml").write_text(TOML)
    assert "[tune] table" in tacita("tune", "--config", "plain.toml", code=2).err


def test_noise_may_be_tuned_and_costs_what_the_least_noise_costs(folder):
    own = TOML.replace("epsilon = 1.0\n", "") + TUNE + "noise_multiplier = [1.0, 4.0]\n"
    (folder / "survey.toml").write_text(own)
    job = prepared(TuningRecipe.read(folder / "survey.toml"), None)
    assert job.noises == [1.0, 4.0, 1.0, 4.0]


def test_another_process_makes_and_scores_the_same(folder):
    (folder / "survey.toml").write_text(PLAIN + TUNE)
    job = prepared(TuningRecipe.read(folder / "survey.toml"), None)
    other = pickle.loads(pickle.dumps(job))
    for choice in job.choices:
        one, two = job.make_run(choice, None), other.make_run(choice, None)
        assert one.plan == two.plan
        two.model.load_state_dict(one.model.state_dict())
        assert job.score(one.model) == other.score(two.model)


@pytest.mark.slow
def test_processes_tune_a_recipe(folder, tacita):
    (folder / "survey.toml").write_text(PLAIN + TUNE.replace("expected = 2", "expected = 5"))
    said = tacita("tune", "--config", "survey.toml", "--processes", "2", "--run-dir", "here", "--json")
    assert json.loads(said.out)["run"] == "here/best"
    assert said.err == ""
