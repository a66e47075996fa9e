"""Recipes, and the commands demo, train, label and ledger, as a user types them."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch

from tacita.cli import main
from tacita.training import label_of_run, recipes
from tacita.training.jobs import reopen, start
from tacita.training.recipes import DEMOS, Recipe, default_model

CSV = "age,job,smoker\n" + "\n".join(
    f"{20 + i % 60},{['clerk', 'nurse', 'other'][i % 3]},{'yes' if i % 60 > 25 else 'no'}" for i in range(400)
)
TOML = textwrap.dedent("""
    name = "Smokers"
    purpose = "A logistic regression that guesses who smokes."
    epsilon = 3.0
    batch_size = 40
    nominal_size = 400
    steps = 12
    individual_every = 4

    [data]
    file = "people.csv"
    target = "smoker"
    groups = ["job"]
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


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "people.csv").write_text(CSV)
    (tmp_path / "run.toml").write_text(TOML)
    return tmp_path


@pytest.fixture
def tacita(monkeypatch, capsys):
    """Run a command in this process, in a folder; returns what it printed."""

    def run(folder, *arguments, code=0):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["tacita", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        assert (ended.value.code or 0) == code, output.err
        return output

    return run


@pytest.fixture
def refused(folder, tacita):
    """Run a command that must end with one line and exit code 2. Returns the line."""

    def run(*arguments):
        output = tacita(folder, *arguments, code=2)
        assert output.out == ""
        assert output.err.startswith("tacita: ")
        assert output.err.strip().count("\n") == 0
        return output.err

    return run


def test_train_from_a_table_label_it_and_share_a_ledger(folder, tacita):
    tacita(folder, "ledger", "create", "budget.sqlite", "--epsilon", "20", "--delta", "1e-5", "--data", "people")
    (folder / "run.toml").write_text(TOML.replace("[data]", 'ledger = "budget.sqlite"\n[data]', 1))
    done = tacita(folder, "train", "--config", "run.toml", "--json")
    document = json.loads(done.out)
    assert document["label"]["title"] == "Smokers"
    assert document["label"]["worst"]["epsilon"] <= 3.0
    groups = {(g["column"], g["value"]) for g in document["label"]["readings"]["groups"]}
    assert ("job", "nurse") in groups
    assert ("class", "true") in groups
    run = folder / document["run"]
    public = (run / "label.html").read_text()
    assert "accuracy" not in public
    again = json.loads(tacita(folder, "label", str(run), "--delta", "1e-6", "--include", "accuracy", "--json").out)
    assert again["label"]["worst"]["delta"] == 1e-6
    assert again["label"]["worst"]["epsilon"] > document["label"]["worst"]["epsilon"]
    assert "accuracy" in (run / "label.html").read_text()
    shown = json.loads(tacita(folder, "ledger", "show", "budget.sqlite", "--json").out)
    assert [r["charged"] for r in shown["runs"].values()] == [12]
    assert shown["spent"]["epsilon"] < 20
    text = tacita(folder, "ledger", "budget", "budget.sqlite", "--epsilon", "4", "--delta", "1e-5").out
    assert "epsilon 4 at delta 0.00001" in text
    wrong = tacita(folder, "ledger", "budget", "budget.sqlite", "--epsilon", "40", "--delta", "1e-5", code=2)
    assert wrong.err.count("\n") == 1
    assert "pass --raise" in wrong.err
    assert "allow_increase" not in wrong.err
    again = tacita(folder, "train", "--resume", str(run))
    (line,) = again.err.splitlines()
    assert "is finished" in line
    assert f"tacita label {run}" in line
    wrong = tacita(folder, "label", str(run), "--include", "shoe size", code=2)
    assert "shoe size" in wrong.err


@pytest.mark.parametrize("target", ["smoker", "age"])
def test_a_held_out_record_on_which_the_model_fails_does_not_end_the_command(folder, monkeypatch, target):
    """It counts as wrong where classes are told apart, and is left out where numbers are predicted."""
    outputs = 2 if target == "smoker" else 1
    (folder / f"moody_{target}.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n"
        f"    def __init__(self):\n        super().__init__(4, {outputs})\n"
        "    def forward(self, x):\n"
        "        if not self.training and bool((x == 7.0).any()):\n            raise KeyError('the record')\n"
        "        return super().forward(x)\n"
    )
    model = f'steps = 2\nmodel = "moody_{target}:Net"'
    asked = TOML.replace('target = "smoker"', f'target = "{target}"').replace("steps = 12", model)
    (folder / "run.toml").write_text(asked)
    monkeypatch.chdir(folder)
    job = start(Recipe.read("run.toml"), folder / "run")
    inputs, targets = (t.clone() for t in job.held)
    inputs[0], job.held = 7.0, (inputs, targets)
    name, value = job.score()
    job.held = tuple(t[1:] for t in (inputs, targets))
    others = job.score()[1]
    assert value == pytest.approx(others * (len(inputs) - 1) / len(inputs) if name == "accuracy" else others)


def test_a_model_of_ones_own_and_a_resumed_command(folder):
    (folder / "mine.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))\n"
    )
    long = TOML.replace("epsilon = 3.0", "noise_multiplier = 3.0").replace(
        "steps = 12", 'steps = 3000\nmodel = "mine:net"'
    )
    (folder / "run.toml").write_text(long.replace("individual_every = 4\n", ""))
    command = [sys.executable, "-c", "from tacita.cli import main; main()", "train", "--config", "run.toml"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step"):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    where = re.search(r"tacita train --resume (\S+)", errors).group(1)
    saved = json.loads((folder / where / "run.json").read_text())
    assert saved["facts"]["status"] == "interrupted"
    taken = int(re.search(r"step (\d+) of", errors).group(1))
    process = subprocess.Popen(
        [*command[:-2], "--resume", where], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.startswith("step"):
            break
    process.kill()
    process.communicate()
    assert int(re.search(r"step (\d+)", line).group(1)) > taken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epsilon = 3.0", "epsilom = 3.0"), "did you mean 'epsilon'"),
        (("epsilon = 3.0", ""), "either epsilon or noise_multiplier"),
        (("epsilon = 3.0", "target = {attack_success = 0.4}"), "above what guessing achieves"),
        (("epsilon = 3.0", "target = {success = 0.6}"), "target must be a table such as"),
        (("epsilon = 3.0", "target = {}"), "Give one target"),
        (("epsilon = 3.0", "epsilon = 3.0\ntarget = {mu = [1, 1e-5]}"), "one of them only"),
        (("nominal_size = 400", ""), "nominal_size"),
        (('file = "people.csv"', 'file = "nobody.csv"'), "nobody.csv"),
        (('target = "smoker"', 'target = "smokes"'), "smokes"),
        (("steps = 12", 'model = "no.where:net"'), "cannot be loaded"),
        (("steps = 12", "steps = -1"), "steps must be"),
        (("[data]", "[date]"), "did you mean 'data'"),
        (("name", "name ="), "is not TOML"),
        (("steps = 12", 'optimizer = "sdg"'), "optimizer must be one of"),
        (("steps = 12", "model = 3"), "model must be text"),
        (("steps = 12", "prior = 'photographs'"), "prior must be one of"),
        (("steps = 12", "ledger = 3"), "ledger must be text"),
        (("steps = 12", "record_profile = 3"), "record_profile must be a table"),
        (("steps = 12", "momentum = 'much'"), "momentum must be a number"),
        (("steps = 12", "seed = 'x'"), "seed must be a whole number"),
        (("steps = 12", "seed = -1"), "seed must be a whole number"),
        (("steps = 12", f"seed = {2**63}"), "seed must be a whole number"),
        (('name = "Smokers"', "name = 3"), "name must be text"),
        (('purpose = "A logistic regression that guesses who smokes."', "purpose = ['a']"), "purpose must be text"),
        (('type = "real"', 'type = "rael"'), "data.columns.age: type must be one of"),
        (("[data.columns.", "[date.columns."), "'date' is not an entry of a recipe; did you mean 'data'?"),
        ((TOML[TOML.index("[data.columns") :], ""), "in a table [data.columns.NAME]."),
        (("groups", "inputs = 3\ngroups"), "[data.inputs] low, high, shape and [data.targets] classes."),
    ],
)
def test_a_wrong_recipe_gets_one_clear_line(folder, refused, change, words):
    (folder / "run.toml").write_text(TOML.replace(*change, 1))
    assert words in refused("train", "--config", "run.toml")


@pytest.mark.parametrize("body", ["def net(:", "raise KeyError('x')", "def net():\n    return {}['x']", "net = open"])
def test_a_model_that_cannot_be_made_gives_one_line(folder, refused, body):
    name = f"mine_{abs(hash(body))}"  # a module is imported once
    (folder / f"{name}.py").write_text(body)
    (folder / "run.toml").write_text(TOML.replace("steps = 12", f'model = "{name}:net"'))
    assert f"model '{name}:net'" in refused("train", "--config", "run.toml")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "either --config"),
        (["train", "--config", "."], "'.' is a folder; pass a TOML file."),
        (["demo", "--seed", "-1"], "'--seed'"),
        (["demo", "--seed", "9" * 30], "'--seed'"),
        (["train", "--config", "nothing.toml"], "no file"),
        (["train", "--resume", "nothing"], "no such folder"),
        (["label", "nothing"], "no such folder"),
        (["ledger", "show", "nothing.sqlite"], "make one with: tacita ledger create nothing.sqlite"),
        (["ledger", "show", "."], "is a folder"),
        (["ledger", "create", "people.csv"], "tacita ledger show people.csv"),
        (["ledger", "create", ":memory:"], "choose a file"),
        (["train", "--config", "run.toml", "--run-dir", "people.csv"], "--run-dir 'people.csv' cannot hold a run"),
        (["train", "--config", "run.toml", "--run-dir", "people.csv/x"], "--run-dir 'people.csv/x' cannot hold a run"),
        (["train", "--config", "run.toml", "--run-dir", "/proc/nothing"], "cannot be created"),
        (["demo", "--run-dir", "people.csv"], "--run-dir 'people.csv' cannot hold a run"),
        (["federate", "--demo", "--run-dir", "people.csv"], "--run-dir 'people.csv' cannot hold a run"),
        (["synthesise", "--data", "digits", "--run-dir", "people.csv"], "--run-dir 'people.csv' cannot hold a run"),
        (["synthesise", "--data", "digits", "--clients", "3", "--run-dir", "people.csv"], "cannot hold a run"),
        (["train", "--resume", "x", "--run-dir", "y"], "leave out --run-dir"),
        (["federate", "--resume", "x", "--run-dir", "y"], "leave out --run-dir"),
        (["federate", "--resume", "x", "--rounds", "9", "--client-rate", "1"], "leave out --rounds, --client-rate"),
        (["synthesise", "--config", "run.toml", "--clients", "3"], "leave out --config"),
        (["synthesise", "--data", "digits", "--clients", "3", "--delta", "0.1"], "leave out --delta"),
        (["synthesise", "--data", "digits", "--rounds", "3"], "leave out --rounds"),
        (["label", "people.csv"], "it is a file"),
        (["audit", "nothing", "--only", "luck"], "--only must be one of"),
        (["audit", "nothing", "--references", "0"], "'--references'"),
        (["audit", "nothing", "--seed", "-1"], "'--seed'"),
        (["ledger", "show", "people.csv"], "people.csv"),
        (["demo", "--run-dir", "."], "'.' cannot hold a run"),
        (["demo", "--dataset", "digits"], "--dataset is called --data now: digits (built in), mnist"),
        (["federate", "--demo", "--dir", "runs"], "--dir is called --run-dir now: A new folder for the run"),
        (["run", "x.py", "--data", "people.csv", "--out", "x"], "--out is called --run-dir now"),
        (["audit", "nothing", "--dataset", "digits"], "No such option '--dataset'"),
        (["demo", "--data", "cats"], "must be one of 'digits'"),
    ],
)
def test_wrong_commands_get_one_clear_line(refused, arguments, words):
    assert words in refused(*arguments)


def test_the_demo_trains_on_digits_and_writes_its_label(tmp_path, tacita):
    done = tacita(tmp_path, "demo", "--steps", "20")
    assert "accuracy" in done.err
    assert "ANYONE" in done.out
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "label.html").exists()
    assert (run / "label-owner.html").exists()


def test_demo_data_that_cannot_be_had_give_one_line(tmp_path, tacita, monkeypatch):
    nowhere = "http://127.0.0.1:9"
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), "http_proxy": nowhere, "https_proxy": nowhere}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TACITA_DATA", raising=False)
    done = tacita(tmp_path, "demo", "--data", "abalone", code=2)
    assert "TACITA_DATA" in done.err


@pytest.mark.skipif(not os.environ.get("TACITA_DATA"), reason="needs TACITA_DATA, a folder with the datasets")
@pytest.mark.parametrize(
    "name", ["abalone", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adult", "mnist"))]
)
def test_the_other_demos_run(tmp_path, name, tacita):
    document = json.loads(tacita(tmp_path, "demo", "--data", name, "--steps", "3", "--json").out)
    assert document["label"]["worst"]["epsilon"] <= DEMOS[name].epsilon


def test_default_models_fit_their_data():
    import torch

    for shape in ((10,), (1, 8, 8), (1, 28, 28), (3, 28, 28), (1, 64, 64)):
        assert default_model(shape, 5)(torch.zeros(2, *shape)).shape == (2, 5)
    assert sum(p.numel() for p in default_model((1, 28, 28), 10).parameters()) == 26010


def test_a_recipe_declares_rungs(folder):
    assert start(Recipe.read(folder / "run.toml"), folder / "a").private.plan.rungs == (0.125, 0.25, 0.5, 1.0)
    (folder / "run.toml").write_text("rungs = [0.5, 1.0]\n" + TOML)
    assert start(Recipe.read(folder / "run.toml"), folder / "b").private.plan.rungs == (0.5, 1.0)
    (folder / "run.toml").write_text("rungs = []\n" + TOML)
    assert start(Recipe.read(folder / "run.toml"), folder / "c").private.plan.rungs == ()


def test_records_are_held_out_by_secret_coins(folder):
    """Coins of a public seed belong to positions, and removing a record would shift them: each run draws its own."""
    recipe = Recipe.read(folder / "run.toml")
    held = [set(start(recipe, folder / name).held[0][:, 0].tolist()) for name in ("one", "two")]
    coins = [json.loads((folder / name / "run.json").read_text())["coins"] for name in ("one", "two")]
    assert coins[0] != coins[1]
    assert held[0] != held[1]
    assert (folder / "one").stat().st_mode & 0o077 == 0


def test_a_recipe_on_patches_computes_features_once_and_says_so(monkeypatch, tmp_path):
    small = partial(recipes.picture_features, filters=5, directions=10)
    monkeypatch.setattr(recipes, "picture_features", small)
    table = {"data": {"name": "digits"}, "model": "patches", "prior": "strokes", "noise_multiplier": 2.0, "panel": 8}
    job = start(Recipe.from_dict({**table, "batch_size": 359, "steps": 4, "learning_rate": 5.0}), tmp_path / "run")
    assert job.train[0].shape == (1437, job.model.feature_map.features)
    assert job.train[0].dtype == torch.float16
    label = job.run()
    assert job.score()[1] > 0.6
    (found,) = [assumption for assumption in label.worst.assumptions if assumption.code == "public-features"]
    assert "dead_leaves, strokes" in found.text
    images = torch.from_numpy(job.dataset.test_inputs[:5])
    torch.testing.assert_close(job.model(images), job.model(job.held[0][:5]), rtol=0.0, atol=1e-2)
    monkeypatch.setattr(type(job.model.feature_map), "blocks", None)  # nothing is computed again
    assert job.remake()[0].linear.weight.abs().sum() == 0


def test_a_recipe_names_the_column_of_ids_and_protects_people(folder, tacita, refused):
    header, *rows = CSV.splitlines()
    whose = ["" if i < 4 else f"p{i % 80}" for i in range(400)]
    lines = [f"{header},who", *(f"{row},{who}" for row, who in zip(rows, whose, strict=True))]
    (folder / "people.csv").write_text("\n".join(lines))
    mine = TOML.replace('target = "smoker"', 'target = "smoker"\nperson = "who"')
    (folder / "run.toml").write_text(mine)
    assert "go together" in refused("train", "--config", "run.toml")
    mine = f"records_per_person = 3\n{mine}".replace("_size = 400", "_size = 100")
    (folder / "run.toml").write_text(mine)
    assert "has no id" in refused("train", "--config", "run.toml")
    (folder / "run.toml").write_text(mine.replace('person = "who"', 'person = "who"\nmissing_person = "own"'))
    run = folder / json.loads(tacita(folder, "train", "--config", "run.toml", "--json").out)["run"]
    label = label_of_run(run)
    assert label.worst.unit == "person"
    assert {"ids-are-people", "rows-alone"} <= {a.code for a in label.worst.assumptions}
    people = [int(dict(label.readings.facts)[f"{part} persons"]) for part in ("Training", "Held-out")]
    assert sum(people) == 84
    job = reopen(run)
    assert not set(job.whose.person) & set(job.whose.holdout_person)
    assert len(job.train[0]) > 2 * people[0]
