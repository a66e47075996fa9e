"""All attacks on one run: in Python and as a command, what they leave, and that they change nothing."""

import json
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from tacita import audit
from tacita.cli import main
from tacita.data import load
from tacita.ledger import Ledger
from tacita.runs import RunError
from tacita.training import PrivateTraining, label_of_run
from tacita.training.recipes import default_model

DELTA = 1e-5
loss_fn = nn.functional.cross_entropy


@pytest.fixture(scope="module", autouse=True)
def _few_canaries():
    with mock.patch("tacita.audit.replay._MOST", 5000):
        yield


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return torch.from_numpy(data.inputs), torch.from_numpy(data.targets)


def train(digits, *, count=400, held=200, model=None, **settings):
    x, y = digits
    torch.manual_seed(1)
    model = model or default_model(x.shape[1:], 10)
    settings = {"steps": 12, "noise_multiplier": 1.0, "panel": 40, "seed": 5, **settings}
    holdout = (x[count : count + held], y[count : count + held]) if held else None
    private = PrivateTraining(
        model,
        loss_fn,
        (x[:count], y[:count]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        sample_rate=0.1,
        batch_size=40,
        holdout=holdout,
        delta=DELTA,
        **settings,
    )
    return private.run()


@pytest.fixture(scope="module")
def made(digits, tmp_path_factory):
    """A run made in Python, audited once with everything."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("audit") / "run"
    private = train(digits, run_dir=folder)
    private.label()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    state = {name: p.detach().clone() for name, p in private.model.state_dict().items()}
    dice = torch.random.get_rng_state()
    found = audit.run(private, seed=7, references=2)
    same = torch.equal(dice, torch.random.get_rng_state())
    return private, folder, before, state, found, same


def test_every_attack_is_made_and_kept(made):
    private, folder, _, _, found, _ = made
    assert found.skipped == ()
    assert set(found.results) == set(audit.ATTACKS)
    assert {f.key for f in found.findings} == {"canaries", "leak", "membership", "inversion"}
    document = json.loads((folder / "audit.json").read_text())
    assert document["steps"] == private.taken == 12
    assert document["results"]["canaries"]["verdict"] == "not refuted"
    assert document["broken"] is found.broken is False
    assert label_of_run(folder).readings.audit == found.findings
    assert private.label().readings.audit == found.findings
    page = (folder / "label-owner.html").read_text()
    assert "What attacks found" in page
    assert "Does the mechanism leak more than it claims?" in page
    for text in ("Proved, 99.95%", "A record like those trained on", "not refuted"):
        assert text in str(found)
    assert repr(found).startswith("<Audit of 12 steps: canaries not-refuted, leak ")
    assert found._repr_html_().startswith("<pre>")


def test_nothing_is_charged_or_changed(made):
    private, folder, before, state, _, same = made
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"audit.json", "label-owner.html", "guarantee.json"}
    assert after["label.html"] == before["label.html"]  # S5: the public page does not know of it
    for name, value in private.model.state_dict().items():
        assert torch.equal(value, state[name])
    assert same  # the global RNG was left untouched
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert len(ledger.runs()) == 1


def test_lower_bounds_stay_below_their_claims(made):
    _, _, _, _, found, _ = made
    for name in ("canaries", "typical"):
        result = found.results[name]
        assert 0 < result["lower"]["0.95"] <= result["epsilon"]
    assert found.results["typical"]["epsilon"] <= found.results["canaries"]["epsilon"]


def test_an_audit_is_not_shown_for_other_steps(made, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(made[1], folder)
    document = json.loads((folder / "audit.json").read_text())
    (folder / "audit.json").write_text(json.dumps({**document, "steps": 3}))
    label = label_of_run(folder)
    assert label.readings.audit == ()
    assert any("audit" in check.text for check in label.readings.checks)
    (folder / "audit.json").write_text(json.dumps({**document, "findings": [{"key": "x"}]}))
    with pytest.raises(RunError, match=r"Delete audit\.json"):
        label_of_run(folder)
    with pytest.raises(RunError, match=r"Delete audit\.json"):
        audit.run(folder, attacks=["canaries"])


def test_a_run_directory_without_recipe_gets_the_replay(made, capsys, monkeypatch):
    folder = made[1]
    monkeypatch.setattr(sys, "argv", ["tacita", "audit", str(folder), "--seed", "3", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert dict(document["skipped"])["membership"].startswith("the run was made in Python")
    assert document["results"]["canaries"]["canaries"] == 5000
    assert "membership" in document["results"]  # of the audit before


@pytest.mark.parametrize(
    ("settings", "attack", "why"),
    [
        ({"held": 0}, "membership", "holdout"),
        ({"panel": 0}, "typical", "nobody was followed"),
        ({"held": 10}, "leak", "at least 20"),
        ({"held": 8}, "membership", "At least 10 others"),
        ({"held": 30}, "inversion", "five held-out records a class"),
    ],
)
def test_attacks_that_do_not_fit_say_why(digits, settings, attack, why):
    private = train(digits, steps=2, **settings)
    found = audit.run(private, attacks=[attack], seed=1)
    assert found.findings == ()
    assert why in dict(found.skipped)[attack]
    assert f"Skipped: {attack}" in str(found)


def test_regression_and_time(digits):
    x, y = digits[0].flatten(1)[:300], digits[1][:300] / 10.0
    model = nn.Linear(64, 1)
    private = PrivateTraining(
        model,
        lambda out, target: (out.flatten() - target).square().mean(),
        (x[:200], y[:200]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        sample_rate=0.1,
        batch_size=20,
        steps=3,
        noise_multiplier=1.0,
        holdout=(x[200:], y[200:]),
        panel=20,
    ).run()
    found = audit.run(private, attacks=["membership", "inversion"])
    assert {why for _, why in found.skipped} == {"it attacks classifiers of records (inputs, class)"}
    late = audit.run(private, minutes=0)
    assert dict(late.skipped) == dict.fromkeys(audit.ATTACKS, "time ran out")
    with pytest.raises(ValueError, match="attacks"):
        audit.run(private, attacks=["guessing"])


def test_the_public_page_is_not_rewritten(digits, tmp_path):
    from tacita.runs import Run

    private = train(digits, run_dir=tmp_path / "run", steps=3)
    label = private.label(metrics={"accuracy": "50%"})
    Run(tmp_path / "run").write_label(label, include=["accuracy"])
    public = (tmp_path / "run" / "label.html").read_bytes()
    assert b"50%" in public
    audit.run(tmp_path / "run", attacks=["canaries"], seed=1)
    assert (tmp_path / "run" / "label.html").read_bytes() == public
    assert label_of_run(tmp_path / "run").readings.audit
    assert label_of_run(tmp_path / "run", delta=1e-6).readings.audit == ()


# The command.


@pytest.fixture
def tacita(monkeypatch, capsys, tmp_path):
    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["tacita", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


def test_the_command_on_a_recipes_run(tacita, tmp_path, bugs):
    code, _, _ = tacita("demo", "--steps", 4, "--seed", 1, "--json")
    assert code == 0
    folder = tmp_path / "runs" / "demo-digits-1"
    public = (folder / "label.html").read_bytes()
    code, out, err = tacita("audit", folder, "--only", "canaries", "--only", "membership", "--references", 2)
    assert code == 0
    assert "not refuted" in out
    assert "Can an outsider tell who was trained on?" in out
    lines = err.splitlines()
    assert lines[0] == "canaries: the training loop on records made to be found"
    assert "membership: models to compare with, to tell who was trained on" in lines
    assert all(line.startswith(("canaries: ", "membership: ")) for line in lines)  # how far it is, and nothing else
    code, out, _ = tacita("label", folder)
    assert "WHAT ATTACKS FOUND: No claim was broken." in out
    assert (folder / "label.html").read_bytes() == public
    with bugs.planted("noise x 0.5"):
        code, out, _ = tacita("audit", folder, "--only", "canaries", "--seed", 2)
    assert code == 1
    assert "claim broken" in out
    assert "A claim was broken" in (folder / "label-owner.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "not a run directory"),
        (("nowhere", "--only", "guessing"), "--only must be one of"),
        (("nowhere", "--minutes", "-1"), "minutes"),
    ],
)
def test_wrong_input_ends_in_one_line(tacita, arguments, words):
    code, out, err = tacita("audit", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_interrupted_audits_keep_what_they_found(tacita, tmp_path, monkeypatch):
    tacita("demo", "--steps", 4, "--seed", 2, "--json")
    folder = tmp_path / "runs" / "demo-digits-1"

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tacita.audit.leak_attack.leak_test", interrupt)
    code, _, err = tacita("audit", folder, "--seed", 3)
    assert code == 130
    assert "kept" in err
    document = json.loads((folder / "audit.json").read_text())
    assert list(document["results"]) == ["canaries"]
    assert np.isfinite(document["results"]["canaries"]["epsilon"])
