"""Every attack of the table satisfies the protocol, and a new one takes a class and a line."""

import importlib
import json
import pkgutil
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from typer.main import get_command

from tacita import audit
from tacita.audit.target import target_of
from tacita.cli import app
from tacita.report import Finding
from tacita.training import PrivateTraining


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """A private classifier of 120 bright and dark images, with 40 held out."""
    torch.manual_seed(0)
    classes = torch.arange(160) % 2
    images = 0.3 * torch.rand(160, 1, 8, 8) + 0.7 * classes[:, None, None, None]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    return PrivateTraining(
        model,
        nn.functional.cross_entropy,
        (images[:120], classes[:120]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        sample_rate=0.2,
        batch_size=24,
        steps=3,
        noise_multiplier=1.0,
        panel=20,
        holdout=(images[120:], classes[120:]),
        seed=1,
        run_dir=tmp_path_factory.mktemp("table") / "run",
    ).run()


@pytest.fixture(scope="module")
def session(private):
    return audit.Session(target=target_of(private)[0], references=2, base_seed=3)


@pytest.mark.parametrize("name", audit.ATTACKS)
def test_every_attack_runs_and_becomes_a_finding(name, session):
    attack, calls = audit.ATTACKS[name], []
    with mock.patch("tacita.audit.replay._MOST", 2000), torch.random.fork_rng(devices=[]):
        assert attack.check(session.target) is None
        result = attack.run(replace(session, progress=lambda done, of: calls.append((done, of))))
        document = result.to_dict()
        assert attack.run(session).to_dict() == document  # the seed decides
    assert all(0 < done <= of for done, of in calls)
    assert json.loads(json.dumps(document, allow_nan=False))["state"] in ("not-refuted", "open", "warning")
    finding = attack.finding(result, replace(session, results={name: document}))
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict(), allow_nan=False))) == finding
    assert isinstance(attack.activity, str)


def test_an_attack_that_lacks_something_says_what(session):
    gone = dict.fromkeys(("model", "loss_fn", "train", "holdout", "remake"))
    bare = replace(session.target, why="the records are gone", **gone)
    for name, attack in audit.ATTACKS.items():
        if name == "canaries":  # it replays the mechanism and needs no records
            attack.check(bare)
            continue
        with pytest.raises(audit.SkippedError, match="the records are gone"):
            attack.check(bare)


@dataclass(frozen=True)
class Guesses:
    right: int

    def to_dict(self):
        return {"right": self.right}


class Toy:
    """Guess by a coin who took part."""

    activity = "coins are tossed"

    def check(self, target):
        if target.steps < 3:
            raise audit.SkippedError("it needs three steps")

    def run(self, session):
        return Guesses(right=int(session.rng(1000).binomial(10, 0.5)))

    def finding(self, result, session):
        state, said = ("warning", f"{result.right} of 10.") if result.right > 20 else ("open", "No more than chance.")
        return Finding(key="toy", heading="Is a coin right?", state=state, sentence=said)


def test_a_new_attack_is_a_class_and_a_line(private, monkeypatch):
    monkeypatch.setitem(audit.ATTACKS, "toy", Toy())
    found = audit.run(private, attacks=["toy"], seed=1)
    assert 0 <= found.results["toy"]["right"] <= 10
    assert [f.key for f in found.findings] == [f.key for f in private.label().readings.audit] == ["toy"]
    assert not found.broken
    result = CliRunner().invoke(get_command(app), ["audit", str(private.run_dir), "--only", "toy", "--seed", "1"])
    assert result.exit_code == 0, result.output
    assert "Is a coin right? [No verdict]" in result.output
    assert "toy: coins are tossed" in result.output
    assert "Is a coin right?" in (private.run_dir / "label-owner.html").read_text(encoding="utf-8")
    assert "Is a coin right?" not in (private.run_dir / "label.html").read_text(encoding="utf-8")


def test_no_function_shadows_a_module():
    for module in pkgutil.iter_modules(audit.__path__):
        assert getattr(audit, module.name, None) in (None, importlib.import_module(f"tacita.audit.{module.name}"))


@pytest.mark.parametrize("function", [audit.run, audit.canaries, audit.typical_canaries, audit.Replay])
def test_old_names_of_arguments_are_refused_with_the_new_one(function):
    with pytest.raises(TypeError, match="rng is called seed now"):
        function(None, rng=1)
