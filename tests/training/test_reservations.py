"""A recipe whose budget was reserved: asked about, held, used by the training that names it, and by no other."""

import json

import pytest

from tacita._check import PrivacyError
from tacita.ledger import Ledger
from tacita.training import Plan, PrivateTraining
from tacita.training.charges import reserve, would_fit
from tests.cli.command import tacita

torch = pytest.importorskip("torch")

SETTINGS = {"nominal_size": 40, "batch_size": 10, "steps": 6, "noise_multiplier": 2.0}
RECIPE = """
noise_multiplier = 4.0
steps = 3
batch_size = 128
panel = 0
model = "histograms"
ledger = "l.sqlite"
{more}
[data]
name = "digits"
"""


def training(ledger, run_dir=None, **more):
    model = torch.nn.Linear(3, 2)
    records = torch.randn(40, 3), torch.randint(2, (40,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.cross_entropy
    settings = {**SETTINGS, "panel": 0, "ledger": ledger, "run_dir": run_dir, **more}
    return PrivateTraining(model, loss, records, optimizer=optimizer, **settings)


def test_a_training_uses_what_was_reserved_for_its_plan(tmp_path):
    plan, file = Plan.declare(**SETTINGS), tmp_path / "l.sqlite"
    with Ledger.create(file, epsilon=2.2, delta=1e-5) as ledger:
        assert would_fit(plan, ledger).times == 1
        reserve(plan, ledger, "june")
        spent = ledger.spent()
        assert not would_fit(plan, ledger).fits
        with pytest.raises(PrivacyError, match="has a reservation, or has begun"):
            reserve(plan, ledger, "june")
        with pytest.raises(PrivacyError, match="another mechanism"):
            training(file, reservation="june", steps=5)
        with pytest.raises(PrivacyError, match="'july' is not in the ledger, was used or was cancelled"):
            training(file, reservation="july")
        private = training(file, tmp_path / "run", reservation="june")
        while private.advance():
            pass
        private.pause()
        assert (ledger.charged("june"), ledger.spent(), ledger.reservations()) == (6, spent, {})
        with pytest.raises(PrivacyError, match="was used"):
            training(file, reservation="june")
    assert private.label().worst.epsilon < spent.epsilon


def test_a_reservation_that_was_cancelled_can_be_made_again():
    plan = Plan.declare(**SETTINGS)
    with Ledger.create(":memory:", epsilon=3.0, delta=1e-5) as ledger:
        reserve(plan, ledger, "june")
        ledger.cancel("june")
        reserve(plan, ledger, "june")
        assert list(ledger.reservations()) == ["june"]


def test_the_commands_reserve_a_recipe_and_train_it(tmp_path):
    Ledger.create(tmp_path / "l.sqlite", epsilon=9.0, delta=1e-5).close()
    (tmp_path / "run.toml").write_text(RECIPE.format(more='reservation = "june"'))
    (tmp_path / "other.toml").write_text(RECIPE.format(more=""))
    where = (tmp_path / "l.sqlite",)
    ask = ("ledger", "fits", *where, "--config", tmp_path / "run.toml", "--json")
    enough = 1.2 * json.loads(tacita(*ask).stdout)["after"]
    tacita("ledger", "budget", *where, "--epsilon", enough, "--delta", "1e-5")
    asked = json.loads(tacita(*ask).stdout)
    assert (asked["fits"], asked["times"]) == (True, 1)
    early = tacita("train", "--config", tmp_path / "run.toml", "--run-dir", tmp_path / "early")
    assert (early.returncode, "Make one with: tacita ledger reserve" in early.stderr) == (2, True)
    held = tacita("ledger", "reserve", *where, "june", "--config", tmp_path / "run.toml")
    assert held.stdout.startswith("Reserved for run june: 3 steps, epsilon "), held.stderr
    assert "reserved for run june: 3 steps, none charged" in tacita("ledger", "show", *where).stdout
    other = tacita("train", "--config", tmp_path / "other.toml", "--run-dir", tmp_path / "other")
    assert (other.returncode, "and the budget is" in other.stderr) == (2, True)
    done = tacita("train", "--config", tmp_path / "run.toml", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    late = tacita("ledger", "cancel", *where, "june")
    assert (late.returncode, "all its steps are charged" in late.stderr) == (2, True)
    for options in ((), ("--epsilon", "1", "--steps", "3"), ("--steps", "3"), ("--epsilon", "0.1", "--config", "x")):
        assert tacita("ledger", "fits", *where, *options).returncode == 2
