"""Every attack of the table runs and becomes a finding, a new one takes a function and a line; what runs give them."""

import importlib
import json
import pkgutil
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from typer.main import get_command

from tacita import BayesianAccountant, audit
from tacita.audit.attack import _record_epsilons, target_of
from tacita.cli import app
from tacita.data import load
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
    fewer = mock.patch("tacita.audit.replay._MOST", 2000), mock.patch("tacita.audit.inversion_attack._PLAIN_STEPS", 40)
    with fewer[0], fewer[1], torch.random.fork_rng(devices=[]):
        document, finding = attack.run(replace(session, progress=lambda done, total, _: calls.append((done, total))))
        assert attack.run(session) == (document, finding)  # the seed decides
    assert all(0 < done <= total for done, total in calls)
    assert json.loads(json.dumps(document, allow_nan=False))["state"] == finding.state
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict(), allow_nan=False))) == finding
    assert isinstance(attack.activity, str)


def test_an_attack_that_lacks_something_says_what(session):
    gone = dict.fromkeys(("model", "loss_fn", "train", "holdout", "remake"))
    bare = replace(session, target=replace(session.target, why="the records are gone", **gone))
    for name in audit.ATTACKS.keys() - {"canaries"}:  # which replays the mechanism and needs no records
        with pytest.raises(audit.SkippedError, match="the records are gone"):
            audit.ATTACKS[name].run(bare)


def toy(session):
    """Guess by a coin who took part."""
    if session.target.steps < 3:
        raise audit.SkippedError("it needs three steps")
    right = int(session.rng(1000).binomial(10, 0.5))
    return {"right": right}, Finding(key="toy", heading="Is a coin right?", state="open", sentence="By chance.")


def test_a_new_attack_is_a_function_and_a_line(private, monkeypatch):
    monkeypatch.setitem(audit.ATTACKS, "toy", audit.Attack("coins are tossed", toy))
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


# What an audit takes from a run.


def test_equal_records_get_equal_epsilons_inside_and_outside():
    accountants = {}
    for name, norms in (("training", np.ones(64)), ("held-out", np.append(np.ones(63), 0.9))):
        accountants[name] = BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0)
        accountants[name].step(norms, steps=20)
    inside, outside = _record_epsilons(accountants, 1e-5)
    assert set(inside) == set(outside[:63])


def test_a_run_is_made_again_as_it_began():
    digits = load("digits")
    x, y = torch.from_numpy(digits.inputs), torch.from_numpy(digits.targets)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    first = model[1].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 / (1 + step))
    private = PrivateTraining(
        model, nn.functional.cross_entropy, (x[:200], y[:200]), optimizer=optimizer, scheduler=scheduler,
        sample_rate=0.1, batch_size=20,
        steps=5, noise_multiplier=1.0, panel=0,
    )  # fmt: skip
    begun = optimizer.param_groups[0]["lr"]
    private.run()
    again, fresh, schedule = private.remake()
    assert torch.equal(again[1].weight, first)
    assert not torch.equal(model[1].weight, first)
    assert fresh.param_groups[0]["lr"] == begun != optimizer.param_groups[0]["lr"]
    assert not fresh.state
    assert schedule.last_epoch == 0
    assert schedule.optimizer is fresh
