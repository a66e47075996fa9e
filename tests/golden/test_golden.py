"""One run of every kind, compared with the label, the guarantee and the run's document that are kept beside this file.

The files pin behaviour; that the numbers are right is shown by other tests, against oracles. After a deliberate change
write them anew by `pytest tests/golden --golden-write`, read the difference, and name it in the changelog.
"""

import json
import re
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from click.testing import CliRunner
from typer.main import get_command

from tacita.cli import app
from tacita.inference import fit

FOLDER = Path(__file__).parent
RTOL = 1e-4  # training on another processor may move a norm by a rounding error, and with it a followed record's level
CHANGING = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+]+|[0-9a-f]{16,}|[0-9a-f]{8}-[0-9a-f-]{27}")
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
LEFT_OUT = {
    "versions",
    "torch",
    "python",
    "tacita",
    "head",
    "seed",
    "id",
    "created",
    "percentiles",
    "points",
    "metrics",
    "profile",
    "successes",
}

SURVEY = """
from tacita.programs import Bool, Category, Program, Real, best, beta, dirichlet, gaussian, geometric
p = Program(schema=dict(smoker=Bool(), job=Category(3), age=Real()), n=40, epsilon=2.5, delta=1e-6)
smoking = p.release(p.column("smoker").posterior(beta(1, 1)), geometric(epsilon=0.5))
jobs = p.release(p.column("job").posterior(dirichlet(1, 1, 1)), best(epsilon=0.5))
age = p.release(p.column("age").clamp(0, 100, step=1).mean(), gaussian(epsilon=0.5, delta=1e-7))
"""
PEOPLE = "smoker,job,age\n" + "yes,0,36\nno,1,41\nno,2,52\nno,0,29\n" * 10

TRAIN = ("demo", "--steps", "6", "--seed", "1")
FEDERATE = ("federate", "--demo", "--clients", "6", "--rounds", "3", "--epsilon", "8", "--seed", "1", "--level")
SYNTHESISE = ("synthesise", "--data", "digits", "--no-quality", "--samples", "40", "--seed", "1")
FEDGP = ("synthesise", "--data", "digits", "--clients", "4", "--rounds", "2", "--samples", "40", "--seed", "1")
RUNS = {
    "train": TRAIN,
    "federate-client": (*FEDERATE, "client"),
    "federate-parallel": (*FEDERATE, "parallel"),
    "federate-sequential": (*FEDERATE, "sequential"),
    "federate-joint": (*FEDERATE, "joint"),
    "synthesise-mean-embedding": (*SYNTHESISE, "--generator", "mean-embedding", "--steps", "3"),
    "synthesise-private-wgan": (*SYNTHESISE, "--generator", "private-wgan", "--steps", "3"),
    "synthesise-annotator": (*SYNTHESISE, "--generator", "private-wgan", "--steps", "3", "--annotator"),
    "synthesise-wgan-gp": (*SYNTHESISE, "--generator", "wgan-gp", "--steps", "3"),
    "synthesise-papers-wgan": (*SYNTHESISE, "--generator", "papers-wgan", "--steps", "3"),
    "synthesise-fedgp": FEDGP,
    "synthesise-fedgp-private": (*FEDGP, "--epsilon", "8"),
}
ACCOUNT = ("account", "--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "60", "--example")
DOCUMENTS = {
    "account": (*ACCOUNT, "--json"),
    "account-papers": (*ACCOUNT, "--composition", "independent", "--json"),
    "account-text": ACCOUNT,
    "calibrate": ("calibrate", "--epsilon", "2", "--sample-rate", "0.01", "--steps", "60", "--json"),
}


def tacita(*arguments):
    """Run the command and return what it prints."""
    result = CliRunner().invoke(get_command(app), arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def plain(value):
    """Return a document without what changes from run to run."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if name not in LEFT_OUT}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return CHANGING.sub("…", value.replace(str(Path.cwd()), "HERE"))
    return value


def approximately(value):
    """Return a document in which numbers, those inside of texts too, may differ by a rounding error."""
    if isinstance(value, dict):
        return {name: approximately(part) for name, part in value.items()}
    if isinstance(value, list):
        return [approximately(part) for part in value]
    if isinstance(value, float):
        return pytest.approx(value, rel=RTOL)
    return Words(value) if isinstance(value, str) else value


class Words(str):
    """A text that equals another if the words do, and the decimal fractions up to their last digit or two."""

    def __eq__(self, other):
        if not isinstance(other, str) or NUMBER.sub("#", self) != NUMBER.sub("#", other):
            return False
        return np.allclose(*([float(n) for n in NUMBER.findall(text)] for text in (self, other)), rtol=3e-3)

    __hash__ = str.__hash__


def compare(request, name, document):
    """Compare a document with the kept one, or keep it."""
    file, found = FOLDER / f"{name}.json", plain(document)
    if request.config.getoption("--golden-write"):
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert list(found) == list(kept)
    for part in kept:
        assert found[part] == approximately(kept[part]), f"{part} of {name}"


def of_run(folder):
    """Return everything that is pinned of a run directory."""
    label = json.loads((folder / "guarantee.json").read_text(encoding="utf-8"))
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    text = tacita("label", str(folder)).replace(str(folder), "RUN").splitlines()
    text = [line for line in text if "accuracy:" not in line]
    files = sorted(path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm")))
    return {"text": text, "label": label, "run": run, "files": files}


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    torch.manual_seed(0)


# Slow: other runs cover the parts of a critic with an annotator (wgan-gp) and of noise in FedGP (client).
SLOW = ("synthesise-annotator", "synthesise-private-wgan", "synthesise-fedgp-private")


@pytest.mark.parametrize("name", [pytest.param(run, marks=[pytest.mark.slow] * (run in SLOW)) for run in RUNS])
def test_runs(name, request):
    tacita(*RUNS[name])
    (folder,) = Path("runs").iterdir()
    compare(request, name, of_run(folder))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name, request):
    out = tacita(*DOCUMENTS[name])
    compare(request, name, {"text": out.splitlines()} if name.endswith("text") else json.loads(out))


def test_program(request, tmp_path):
    (tmp_path / "survey.py").write_text(SURVEY, encoding="utf-8")
    (tmp_path / "people.csv").write_text(PEOPLE, encoding="utf-8")
    checked = json.loads(tacita("check", "survey.py", "--json"))
    ran = json.loads(tacita("run", "survey.py", "--data", "people.csv", "--json"))
    ledger = json.loads(tacita("ledger", "show", "people.csv.ledger.sqlite", "--json"))
    ran["results"] = {name: sorted(result) for name, result in ran["results"].items()}  # values are noise
    compare(
        request, "program", {"check": checked, "run": ran, "ledger": ledger, "label": of_run(Path("runs/survey-1"))}
    )


def model(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("people", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("name", ["infer-gradients", "infer-final-samples"])
def test_inference(name, request, tmp_path):
    data = torch.from_numpy(np.random.default_rng(0).normal(1.0, 1.0, 120)).float()
    options = {"noise_multiplier": 4.0, "steps": 8, "panel": 20}
    if name == "infer-final-samples":
        options = {"method": "final-samples", "samples": 3, "steps": 4, "panel": 4}
    fit(model, data, seed=1, sample_rate=0.2, run_dir=tmp_path / "run", **options)
    compare(request, name, of_run(tmp_path / "run"))
