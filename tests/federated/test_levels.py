"""Every privacy level of the table, and one that is registered here: declarations, rounds and label."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tacita._check import PrivacyError
from tacita.assumptions import assume
from tacita.federated import LEVELS, Client, Federation, FederationPlan, RecordSettings, Server
from tacita.federated.engines import ENGINES
from tacita.federated.levels.client import CLIENT
from tacita.federated.recipes import Recipe, ready
from tacita.ledger import Ledger

NAMES = (*LEVELS, "toy")


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    """A new level is one value and one entry."""
    monkeypatch.setitem(LEVELS, "toy", replace(CLIENT, name="toy"))


def declare(name, **settings):
    """Declare a plan by what the level says about itself alone."""
    level = LEVELS[name]
    given = {"clients": 4, "client_rate": 1.0 if level.everybody_answers else 0.9, "rounds": 2}
    if level.protects_records:
        given |= {"record_clip_norm": 1.0, "local_batch": 5, "local_size": 10}
    return FederationPlan.declare(level=name, **{**given, level.declared_noise: 2.0, **settings})


def held():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(10, 3, generator=generator), torch.arange(10) % 2) for _ in range(4)]


def federation(name, **settings):
    given = {"panel": 2, "record_panel": 3, "seed": 5}
    model = torch.nn.Linear(3, 2)
    return Federation(model, torch.nn.functional.cross_entropy, held(), declare(name), **{**given, **settings})


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_protects_the_units_of_its_level_and_no_others(name):
    level, plan = LEVELS[name], declare(name)
    assert level.name == name == plan.level
    protected = {"client": plan.of_clients, "record": plan.of_records}
    assert {unit for unit, seen in protected.items() if seen is not None} == set(level.units)
    assert plan.headline.unit == level.units[0]
    assert FederationPlan.from_dict(plan.to_dict()) == plan
    for worst, unit in ((plan.client_worst, "client"), (plan.record_worst, "record")):
        if unit in level.units:
            assert worst(1, 1e-3).unit == unit
        else:
            with pytest.raises(PrivacyError, match="does not protect"):
                worst(1, 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_shares_make_up_the_promised_noise(name):
    level, plan = LEVELS[name], declare(name)
    assert plan.shares * plan.share_noise**2 == pytest.approx(plan.total_noise**2 if plan.shares else 0.0)
    if level.protects_records and plan.shares:  # what a client enforces by itself is its share
        assert level.enforced_noise(plan) * plan.record_reach == pytest.approx(plan.share_noise)
    assert plan.total_noise > 0.0 or not level.protects_clients


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_are_charged_to_every_unit_and_labelled(name, tmp_path):
    level, made = LEVELS[name], federation(name, run_dir=tmp_path / "run").run()
    label = made.label()
    assert label.worst.unit == level.units[0]
    codes = [assumption.code for assumption in label.worst.assumptions]
    assert assume(level.trust).code in codes
    assert ("clipped-inside" in codes) == level.protects_records
    assert dict(label.mechanism)["Level"] == name
    assert label.readings.typical
    assert tuple(ledger.unit for ledger in made.server.ledgers) == level.units
    for ledger in made.server.ledgers:
        with Ledger.open(ledger.path) as book:
            assert [run["charged"] for run in book.runs().values()] == [2]
    again = Federation.resume(tmp_path / "run", torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, held())
    assert again.server.taken == 2
    assert again.plan == made.plan


@pytest.mark.parametrize("name", NAMES)
def test_looking_at_an_open_round_changes_nothing(name, monkeypatch):
    made = federation(name)
    made.advance()
    for client in made.clients.values():
        monkeypatch.setattr(client, "update", lambda parameters, number: 1 / 0)
    with pytest.raises(RuntimeError, match="No client could compute"):
        made.advance()

    def standing():
        server = made.server
        tensors, document = server.state()
        arrays = {kind: {k: np.asarray(v).tolist() for k, v in part.items()} for kind, part in tensors.items()}
        private = {n: c.account.state() for n, c in made.clients.items() if c.account is not None}
        return document, arrays, private, server.open_round, server.next_round, made.status, made.plan

    before = standing()
    first, second = made.label(), made.label()
    repr(made), repr(made.server), made.status
    assert standing() == before
    assert first == second
    assert made.server.open_round is not None
    assert dict(first.readings.facts)["Rounds taken"].startswith("2 of 2")  # the open one counts as charged


def test_a_level_of_the_table_is_a_level_of_recipes(tmp_path):
    recipe = Recipe(level="toy", clients=3, rounds=2, seed=1)
    label = ENGINES["local"].prepare(partial(ready, recipe), tmp_path / "run", resume=False).run()
    assert dict(label.mechanism)["Level"] == "toy"


def test_the_old_name_of_a_level_is_refused_with_the_new_one():
    with pytest.raises(ValueError, match="called 'parallel'"):
        FederationPlan.declare(level="instance", clients=3, client_rate=0.5, rounds=1)


def test_records_come_as_a_group_or_one_by_one_and_not_both():
    inside = RecordSettings(record_clip_norm=1.0, record_noise_multiplier=2.0, local_batch=5, local_size=10)
    given = {"level": "parallel", "clients": 4, "client_rate": 0.9, "rounds": 2}
    assert FederationPlan.declare(**given, records=inside) == declare("parallel")
    with pytest.raises(TypeError, match="not both"):
        FederationPlan.declare(**given, records=inside, copies=2)
    with pytest.raises(TypeError, match="no setting loudness"):
        declare("parallel", loudness=2.0)


def test_a_seed_under_its_old_name_is_refused_with_the_new_one():
    flower = pytest.importorskip("tacita.federated.flower_client")
    for made in (Federation, Server, Client, flower.instance_privacy):
        with pytest.raises(TypeError, match="rng is called seed now"):
            made(rng=3)
