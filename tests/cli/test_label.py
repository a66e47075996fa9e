"""`tacita label`: the issuer, and the documents that institutions ask for."""

import hashlib
import json
from datetime import date

import pytest
import torch
from torch import nn

import tacita as package
from tests.cli.command import tacita
from tests.programs.surveys import SMOKERS


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("label")
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    model = nn.Linear(4, 2)
    package.PrivateTraining(
        model, nn.CrossEntropyLoss(), (x, y), optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=20, nominal_size=60, steps=2, noise_multiplier=2.0, panel=8, run_dir=folder / "run",
    ).run()  # fmt: skip
    return folder / "run", model


def test_the_issuer_is_kept_and_shown(trained):
    run, model = trained
    before = tacita("label", run)
    assert "Issuer: not stated" in before.stdout
    assert "Declared size of the data: 60 records" in before.stdout
    stated = ("--issuer", "City <Hospital>", "--contact", "dpo@example.org", "--model", "m", "--issued", "2026-01-31")
    assert tacita("label", run, *stated).returncode == 0
    again = tacita("label", run, "--model-version", "2", "--json")
    found = json.loads(again.stdout)["label"]["publication"]
    assert found == {
        "issuer": "City <Hospital>",
        "contact": "dpo@example.org",
        "model": "m",
        "model_version": "2",
        "issued": "2026-01-31",
    }
    page = (run / "label.html").read_text()
    assert "City &lt;Hospital&gt;" in page
    digest, name = (run / "weights.sha256").read_text().split()
    assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest
    assert digest not in page
    from safetensors.torch import load_file

    assert all(torch.equal(part, model.state_dict()[key]) for key, part in load_file(run / name).items())


def test_documents(trained, tmp_path):
    run, _ = trained
    entry, card, folder = tmp_path / "entry.yaml", tmp_path / "README.md", tmp_path / "evidence"
    asked = ("--registry", entry, "--model-card", card, "--evidence", folder)
    done = tacita("label", run, *asked, "--state", "intended_use=Research", "--state", "actors=Nobody")
    assert done.returncode == 0
    assert "Left to you in the registry entry" in done.stdout
    assert 'intended_use: "Research"' in entry.read_text()
    assert "dp-sgd" in card.read_text()
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*sums, "SHA256SUMS"}
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    assert "confidential/label-owner.html" not in files
    assert (folder / "public/label.html").read_bytes() == (run / "label.html").read_bytes()
    ledger = json.loads((folder / "confidential/ledger.json").read_text())["ledgers"][0]
    assert ledger["rows"][-1]["hash"] == ledger["head"]
    again = tacita("label", run, *asked)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "exists already" in again.stderr


def test_a_program_too_and_the_owners_label_on_request(tmp_path, folder):
    (folder / "smokers.py").write_text(SMOKERS)
    assert tacita("run", "smokers.py", "--data", "people.csv", "--run-dir", "run").returncode == 0
    done = tacita("label", "run", "--evidence", "evidence", "--owner-label", "--registry", "entry.yaml", "--json")
    assert json.loads(done.stdout)["written"] == ["entry.yaml", "evidence"]
    assert (folder / "evidence/confidential/label-owner.html").is_file()
    assert (folder / "evidence/confidential").stat().st_mode & 0o777 == 0o700
    assert f'publication_date: "{date.today().year}' in (folder / "entry.yaml").read_text()
    assert not (folder / "run/weights.sha256").exists()


def published(run, place):
    """Return every document for the public that the command writes, by name."""
    place.mkdir()
    asked = ("--registry", place / "entry.yaml", "--model-card", place / "README.md", "--evidence", place / "evidence")
    assert tacita("label", run, *asked, "--issuer", "X", "--issued", "2026-01-31").returncode == 0
    files = [run / "label.html", place / "entry.yaml", place / "README.md", *(place / "evidence/public").iterdir()]
    return {path.name: path.read_bytes() for path in files}


def test_b1_documents_for_the_public_are_identical_for_neighbours(tmp_path):
    """One record more, one less, one far out; declared stops and rungs. The weights differ and are named nowhere."""
    x, y = torch.randn(61, 4, generator=torch.Generator().manual_seed(0)), torch.arange(61) % 2
    found, owners, weights = [], set(), set()
    for size in (60, 59, 61):
        data = (x[:size].clone(), y[:size])
        data[0][3] *= 1000.0 if size == 61 else 1.0
        model, run = nn.Linear(4, 2), tmp_path / f"run {size}"
        package.PrivateTraining(
            model, nn.CrossEntropyLoss(), data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch_size=20,
            nominal_size=60, steps=4, stops=(2,), individual_every=2, rungs=(0.5, 1.0), noise_multiplier=2.0, panel=8,
            name="a run", run_dir=run,
        ).run()  # fmt: skip
        found.append(published(run, tmp_path / f"papers {size}"))
        owners.add((run / "label-owner.html").read_bytes())
        weights.add((run / "weights.sha256").read_text().split()[0])
    assert found[0].keys() == {"label.html", "entry.yaml", "README.md", "label.json", "guarantees.json"}
    assert found[0] == found[1] == found[2]
    assert len(owners) == len(weights) == 3
    assert not any(digest.encode() in document for digest in weights for document in found[0].values())


def test_b1_a_program_shows_the_same_for_a_replaced_record_and_knows_its_size(tmp_path, folder):
    """Neighbours have one size there, which the program declares: a table of another size is refused."""
    (folder / "smokers.py").write_text(SMOKERS)
    head, first, *rest = (folder / "people.csv").read_text().splitlines()
    found = []
    for number, rows in enumerate(([first, *rest], [rest[0], *rest])):
        (folder / "people.csv").write_text("\n".join((head, *rows)) + "\n")
        run = folder / f"run {number}"
        assert tacita("run", "smokers.py", "--data", "people.csv", "--run-dir", run).returncode == 0
        found.append(published(run, tmp_path / str(number)))
    (folder / "people.csv").write_text("\n".join((head, *rest)) + "\n")
    assert tacita("run", "smokers.py", "--data", "people.csv", "--run-dir", folder / "fewer").returncode != 0
    assert found[0].keys() == found[1].keys()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--issuer", "a\nb"], "issuer must be one line"),
        (["--issued", "tomorrow"], "issued must be a day"),
        (["--state", "actors=x"], "pass --registry FILE too"),
        (["--owner-label"], "pass --evidence FOLDER too"),
        (["--registry", "new.yaml", "--state", "colour=red"], "is not asked for"),
        (["--registry", "new.yaml", "--state", "actors"], "must be FIELD=TEXT"),
        (["--registry", "no/where.yaml"], "there is no such folder"),
        (["--registry", "new.yaml", "--include", "colour"], "not a metric"),
        (["--registry", "new.yaml", "--model-card", "./new.yaml"], "must be different places"),
        (["--evidence", "."], "is not an empty folder"),
    ],
)
def test_wrong_input_is_one_line_and_changes_nothing(trained, tmp_path, options, said):
    (tmp_path / "something").touch()
    kept = {path.name: path.read_bytes() for path in trained[0].iterdir() if path.suffix in (".json", ".html")}
    done = tacita("label", trained[0], *options, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert kept == {path.name: path.read_bytes() for path in trained[0].iterdir() if path.suffix in (".json", ".html")}
    assert not (tmp_path / "new.yaml").exists()
