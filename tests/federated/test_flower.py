"""The strategy and the mod behind Flower's own messages: called directly, in the simulation, and in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx  # noqa: E402

from tacita import PrivacyError  # noqa: E402
from tacita.assumptions import assume  # noqa: E402
from tacita.federated import Federation, Local, PrivateStrategy, federation_plan, instance_privacy, named_client  # noqa: E402
from tacita.federated.flower import client_metrics  # noqa: E402
from tacita.federated.flower_client import ANSWER, ASK, fingerprint, local_training  # noqa: E402
from tacita.federated.labels import rests_on  # noqa: E402
from tacita.ledger import Ledger  # noqa: E402

CLIENTS = 6
LOSS = torch.nn.functional.cross_entropy
RECORDS = {"record_clip_norm": 1.0, "record_rate": 0.5, "local_batch": 10}
LEVELS = {
    "client": {"noise_multiplier": 1.0},
    "parallel": {"record_noise_multiplier": 1.0, "clip_norm": 10.0, "local_steps": 2, **RECORDS},
    "sequential": {"record_noise_multiplier": 1.0, "client_rate": 1.0, **RECORDS},
    "joint": {"noise_multiplier": 1.0, **RECORDS},
}


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """This process plays the server and all clients, so it needs the identity that Flower gives its processes."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def records(partition: int):
    generator = torch.Generator().manual_seed(partition)
    return torch.randn(20, 4, generator=generator), torch.randint(0, 3, (20,), generator=generator)


def held(context: Context):
    return records(int(context.node_config["partition-id"]))


def plan_for(level: str, **changes):
    return federation_plan(
        **{"level": level, "clients": CLIENTS, "client_rate": 0.7, "rounds": 3, **LEVELS[level], **changes}
    )


class DirectGrid(Grid):
    """Flower's grid without a network: every message is handled by the client app itself, at once."""

    def __init__(self, app: ClientApp, clients: int = CLIENTS, tamper=None) -> None:
        self.app, self.tamper, self.log = app, tamper, []
        self.contexts = {
            100 + i: Context(7, 100 + i, {"partition-id": i, "num-partitions": clients}, RecordDict(), {})
            for i in range(clients)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.log.append(message)
            reply = self._one(message)
            changed = reply if self.tamper is None else self.tamper(message, reply)
            replies += changed if isinstance(changed, list) else [changed] if changed is not None else []
        return replies

    def _one(self, message):
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)

    def set_run(self, *args, **kwargs): ...
    def push_messages(self, messages): ...
    def pull_messages(self, message_ids): ...
    def create_message(self, *args, **kwargs): ...

    @property
    def run(self):
        return None


def app_for(plan, *, seed: int | None = 3, panel: int = 2) -> ClientApp:
    mod = instance_privacy(plan, model=model, loss_fn=LOSS, data=held, learning_rate=0.5, panel=panel, seed=seed)
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return local_training(
            message, context, plan, model(), LOSS, held, Local(batch_size=5, learning_rate=0.5), seed=seed
        )

    return app


def strategy_for(plan, inner=None, **options) -> PrivateStrategy:
    wrapped = inner or FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    return PrivateStrategy(wrapped, **{"plan": plan, "seed": 3, "named": True, "record_panel": 2, **options})


def initial() -> ArrayRecord:
    return ArrayRecord(model().state_dict())


def same(one: ArrayRecord, other: ArrayRecord) -> bool:
    return all(np.array_equal(a.numpy(), other[k].numpy()) for k, a in one.items())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", [None, 3])
def test_whether_clients_chose_a_seed_is_an_open_check_where_they_add_the_noise(level, seed):
    strategy = strategy_for(plan_for(level), seed=seed)
    strategy.open(initial())
    found = rests_on(strategy.server, strategy._kept.facts)
    states = {"holds": [], "open": [], "warning": []}
    for check in found:
        states[check.state].append(check.text)
    assert (assume("fresh-noise").text in states["holds"]) == (level == "client" and seed is None)
    assert any("Clients seed their sampling" in text for text in states["open"]) == (level != "client")
    assert any("chosen seed: reproducible" in text for text in states["warning"]) == (seed is not None)


def test_every_level_gives_the_model_and_the_figures_of_the_local_engine():
    for level in LEVELS:
        plan = plan_for(level)
        strategy = strategy_for(plan, panel=4)
        result = strategy.start(DirectGrid(app_for(plan)), initial())
        network = model()
        clients = {f"{i:06d}": records(i) for i in range(CLIENTS)}
        local = Local(batch_size=5 if level == "client" else None, learning_rate=0.5)
        federation = Federation(network, LOSS, clients, plan, local=local, panel=4, record_panel=2, seed=3).run()
        for name, array in result.arrays.items():
            np.testing.assert_allclose(array.numpy(), network.state_dict()[name].numpy(), atol=1e-6, err_msg=level)
        one, other = strategy.label(), federation.label()
        figures = [replace(label.worst, assumptions=()) for label in (one, other)]  # theirs differ by a check
        assert figures[0] == figures[1], level
        assert one.readings.typical == other.readings.typical, level


@pytest.mark.parametrize(
    "inner",
    [
        lambda **k: FedAdam(**k, eta=0.1),
        lambda **k: FedAvgM(**k, server_momentum=0.9),
        lambda **k: FedProx(**k, proximal_mu=0.1),
    ],
)
def test_the_inner_strategy_moves_the_model_along_the_private_mean(inner, tmp_path):
    plan = plan_for("client", rounds=2)
    grid = DirectGrid(app_for(plan))
    made = inner(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    result = strategy_for(plan, made, run_dir=tmp_path / "run").start(grid, initial())
    plain = strategy_for(plan).start(DirectGrid(app_for(plan)), initial())
    assert all(np.isfinite(a.numpy()).all() for a in result.arrays.values())
    same = all(
        np.array_equal(a.numpy(), b.numpy()) for a, b in zip(result.arrays.values(), plain.arrays.values(), strict=True)
    )
    assert same == isinstance(made, FedProx)  # which only changes what it sends
    if isinstance(made, FedProx):
        assert grid.log[-1].content["config"]["proximal-mu"] == 0.1


def test_a_killed_server_goes_on_and_charges_the_lost_round_once(tmp_path):
    plan = plan_for("client", rounds=5)
    inner = FedAdam(fraction_evaluate=0.0, min_available_nodes=CLIENTS, eta=0.1)
    strategy = strategy_for(plan, inner, run_dir=tmp_path / "run")
    strategy.start(DirectGrid(app_for(plan)), initial(), num_rounds=2)
    moments = {k: v.copy() for k, v in inner.m_t.items()}
    strategy.configure_train(3, strategy._arrays, ConfigRecord(), DirectGrid(app_for(plan)))
    del strategy  # and the process is gone
    again = strategy_for(
        plan, FedAdam(fraction_evaluate=0.0, min_available_nodes=CLIENTS, eta=0.1), run_dir=tmp_path / "run", seed=None
    )
    again.open(initial())
    assert (again.server.taken, again.server.lost) == (3, 1)
    assert all(np.array_equal(again.inner.m_t[k], v) for k, v in moments.items())
    again.start(DirectGrid(app_for(plan)), initial())
    assert again.server.taken == 5
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.charged(again.server.identity) == 5
    assert again.label().worst.epsilon == plan.client_worst(5, plan.delta).epsilon


def test_l13_a_second_server_on_one_run_directory_is_refused(tmp_path, monkeypatch):
    """Two servers stepped in turns would release two means for every charge."""
    from tacita.federated import server

    released, noisy_mean = [], server.noisy_mean
    monkeypatch.setattr(server, "noisy_mean", lambda *a, **k: released.append(1) or noisy_mean(*a, **k))
    plan, run = plan_for("client", rounds=4), tmp_path / "run"
    grid = DirectGrid(app_for(plan))
    first, second = (strategy_for(plan, run_dir=run) for _ in range(2))

    def one_round(strategy, number):
        replies = grid.send_and_receive(strategy.configure_train(number, initial(), ConfigRecord(), grid))
        return strategy.aggregate_train(number, replies)

    one_round(first, 1)
    for call in (lambda: one_round(second, 1), lambda: second.start(grid, initial())):
        with pytest.raises(PrivacyError, match="in use") as refused:
            call()
        assert "\n" not in str(refused.value)
    one_round(first, 2)
    first.start(grid, initial(), num_rounds=1)  # its end lets go of the folder
    second.start(grid, initial(), num_rounds=1)
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        one_round(first, 4)
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        first.label()
    assert len(released) == charged(run) == 4


def test_a_run_directory_of_another_plan_is_refused(tmp_path):
    strategy_for(plan_for("client"), run_dir=tmp_path / "run").start(DirectGrid(app_for(plan_for("client"))), initial())
    with pytest.raises(PrivacyError, match="another plan"):
        strategy_for(plan_for("client", rounds=9), run_dir=tmp_path / "run").start(None, initial())


def test_a_node_that_restarts_is_the_same_client_under_a_new_number():
    plan = plan_for("client", client_rate=1.0)
    grid = DirectGrid(app_for(plan))
    strategy = strategy_for(plan)
    strategy.start(grid, initial(), num_rounds=1)
    grid.contexts[777] = Context(7, 777, grid.contexts.pop(100).node_config, RecordDict(), {})
    strategy.start(grid, initial(), num_rounds=1)
    assert strategy.server.participations == {f"{i:06d}": 2 for i in range(CLIENTS)}
    assert dict(strategy.label().readings.facts)["Clients"] == str(CLIENTS)


def test_a_client_refuses_a_server_with_another_plan():
    plan = plan_for("parallel")
    strategy = strategy_for(plan_for("parallel", record_noise_multiplier=0.5))
    grid = DirectGrid(app_for(plan))
    before = initial()
    result = strategy.start(grid, before, num_rounds=1)
    assert all(
        np.array_equal(a.numpy(), b.numpy()) for a, b in zip(before.values(), result.arrays.values(), strict=True)
    )


def test_a_client_answers_a_round_once_even_if_asked_again():
    plan = plan_for("parallel")
    grid = DirectGrid(app_for(plan))
    strategy_for(plan).start(grid, initial(), num_rounds=1)
    asked = next(m for m in grid.log if m.content[ASK]["ask"] == "update")
    assert "answered once" in grid._one(asked).error.reason


def test_what_a_client_fails_with_does_not_reach_the_server():
    def broken(context):
        raise ValueError("patient 42 has diabetes")

    plan = plan_for("parallel")
    app = ClientApp(mods=[instance_privacy(plan, model=model, loss_fn=LOSS, data=broken)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise AssertionError

    grid = DirectGrid(app)
    strategy = strategy_for(plan)
    seen = []
    grid.tamper = lambda message, reply: seen.append(reply) or reply
    strategy.start(grid, initial(), num_rounds=1)
    reasons = [r.error.reason for r in seen if r.has_error()]
    assert reasons
    assert not any("42" in reason for reason in reasons)


def wrong(kind: str, message, reply):
    """Return a reply as a broken or lying client would send it."""
    arrays = {k: a.numpy().copy() for k, a in reply.content["arrays"].items()}
    first = next(iter(arrays))
    if kind in ("nan", "inf", "huge"):
        arrays[first][...] = {"nan": np.nan, "inf": np.inf, "huge": 1e30}[kind]
    elif kind == "shape":
        arrays[first] = arrays[first][:1]
    elif kind == "scalar":
        arrays[first] = np.zeros((1,), dtype=np.float32)
    elif kind == "integers":
        arrays[first] = arrays[first].astype(np.int64)
    elif kind == "missing":
        del arrays[first]
    elif kind == "extra":
        arrays["more"] = np.zeros(3, dtype=np.float32)
    content = {"arrays": ArrayRecord({k: flwr.app.Array(v) for k, v in arrays.items()})}
    if kind == "two":
        content["again"] = content["arrays"]
    if kind == "none":
        content = {"metrics": MetricRecord({"num-examples": 1e300})}
    made = Message(RecordDict(content), reply_to=message)
    return [made, reply] if kind == "twice" else None if kind == "late" else made


KINDS = ("nan", "inf", "huge", "shape", "scalar", "integers", "missing", "extra", "two", "none", "twice", "late")


def test_l10_twelve_malicious_messages():
    for level in LEVELS:
        plan = plan_for(level, rounds=2, client_rate=1.0)
        honest = strategy_for(plan, record_panel=0).start(DirectGrid(app_for(plan, panel=0)), initial()).arrays
        for kind in KINDS if level in ("client", "joint") else KINDS[::3]:

            def tamper(message, reply, kind=kind):
                attacked = message.metadata.dst_node_id == 100 and not reply.has_error() and "arrays" in reply.content
                return wrong(kind, message, reply) if attacked else reply

            strategy = strategy_for(plan, record_panel=0)
            result = strategy.start(DirectGrid(app_for(plan, panel=0), tamper=tamper), initial())
            assert all(np.isfinite(a.numpy()).all() for a in result.arrays.values()), (level, kind)
            far = max(float(np.abs(a.numpy() - honest[k].numpy()).max()) for k, a in result.arrays.items())
            assert far < 50.0, (level, kind, far)
            assert strategy.server.taken == 2
            assert strategy.label().worst.epsilon >= plan.headline.worst(2, plan.delta - plan.failure).epsilon * 0.999


def test_lying_costs_are_counted_at_the_worst_case():
    for lie in (b"", b"\xff" * 8, b"\xff" * 8 * 257, b"\x00" * 8 * 257, b"abc"):

        def tamper(message, reply, lie=lie):
            if message.metadata.dst_node_id == 100 and message.content[ASK]["ask"] == "costs":
                return Message(RecordDict({ANSWER: ConfigRecord({"words": lie})}), reply_to=message)
            return reply

        plan = plan_for("joint", client_rate=1.0)
        strategy = strategy_for(plan)
        grid = DirectGrid(app_for(plan), tamper=tamper)
        strategy.start(grid, initial())
        assert any(message.content[ASK]["ask"] == "costs" for message in grid.log)
        label = strategy.label()
        assert label.readings.typical[0].epsilon == label.worst.epsilon


def test_clients_metrics_are_dropped_unless_declared():
    plan = plan_for("client", client_rate=1.0)
    assert not strategy_for(plan).start(DirectGrid(app_for(plan)), initial()).train_metrics_clientapp
    told = plan_for("client", client_rate=1.0, client_metrics=True)
    strategy = strategy_for(told)
    assert strategy.start(DirectGrid(app_for(told)), initial()).train_metrics_clientapp
    assert any("no figure on this label covers them" in c.text for c in strategy.label().public().checks)


def test_metrics_of_one_client_that_cannot_be_weighed_are_dropped(caplog):
    plan = plan_for("client", client_rate=1.0, rounds=1, client_metrics=True)
    inner = FedAvg(fraction_evaluate=1.0, min_available_nodes=CLIENTS)
    strategy, grid = strategy_for(plan, inner), DirectGrid(app_for(plan))
    odd = [{"odd": 1.0}, {"num-examples": float("nan")}, {"num-examples": [1.0]}, {"num-examples": -5.0}]

    def tamper(message, reply):
        asked = ASK in message.content and message.content[ASK]["ask"] == "update"
        if message.metadata.message_type == "train" and not asked:
            return reply
        which = message.metadata.dst_node_id - 100
        told = {"num-examples": 2, "loss": float(which)} if which >= len(odd) else odd[which]
        arrays = {} if message.metadata.message_type == "evaluate" else {"arrays": reply.content["arrays"]}
        return Message(RecordDict({**arrays, "metrics": MetricRecord(told)}), reply_to=message)

    grid.tamper = tamper
    result = strategy.start(grid, initial())
    for found in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp):
        assert dict(found[1]) == {"loss": 4.5}
    answers = [Message(RecordDict({"metrics": MetricRecord({"num-examples": 0})}), dst_node_id=1, message_type="train")]
    assert client_metrics(strategy.inner, answers) is None  # nothing to divide by
    unlike = [MetricRecord({"num-examples": 1, name: 1.0}) for name in "ab"]
    replies = [Message(RecordDict({"metrics": m}), dst_node_id=1, message_type="evaluate") for m in unlike]
    assert strategy.aggregate_evaluate(1, replies) is None
    assert "metrics are dropped" in caplog.text


@pytest.mark.parametrize("level", ["parallel", "sequential", "joint"])
def test_a_strategy_that_sends_other_arrays_than_the_model_is_refused_before_the_charge(level, tmp_path):
    """The server takes a reply's difference from the model; from another point it would hold what is not clipped."""

    class Sends(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            record = RecordDict({**made(arrays), "config": config})
            return [Message(record, dst_node_id=n, message_type="train") for n in grid.get_node_ids()]

    def changed(arrays, change):
        return ArrayRecord({k: torch.from_numpy(change(a.numpy())) for k, a in arrays.items()})

    plan = plan_for(level, rounds=1)
    ways = [
        lambda a: {},
        lambda a: {"arrays": changed(a, lambda v: v + 0.15)},
        lambda a: {"arrays": a, "more": a},
        lambda a: {"arrays": changed(a, lambda v: v.astype("float64"))},
    ]
    for number, way in enumerate(ways):
        made, run = way, tmp_path / str(number)
        strategy = strategy_for(plan, Sends(fraction_evaluate=0.0, min_available_nodes=CLIENTS), run_dir=run)
        with pytest.raises(PrivacyError, match="other arrays than the model's") as refused:
            strategy.configure_train(1, strategy.open(initial()), ConfigRecord(), DirectGrid(app_for(plan)))
        assert "\n" not in str(refused.value)
        assert charged(run) == strategy.server.taken == 0
        strategy.server.owner.close()
    made = lambda a: {"arrays": changed(a, np.copy)}  # noqa: E731
    strategy = strategy_for(plan, Sends(fraction_evaluate=0.0, min_available_nodes=CLIENTS))
    strategy.configure_train(1, initial(), ConfigRecord(), DirectGrid(app_for(plan)))
    assert strategy.server.open_round.number == 1


@pytest.mark.parametrize("level", ["sequential", "joint"])
def test_shares_of_noise_that_would_round_away_are_refused_on_both_sides_before_a_charge(level, tmp_path):
    plan = plan_for(level, client_rate=1.0, rounds=1)

    def typed(dtype, value):
        return ArrayRecord({k: flwr.app.Array(np.full(a.numpy().shape, value, dtype)) for k, a in initial().items()})

    for number, (dtype, value, why) in enumerate(
        [("float16", 0.0, "half precision"), ("float32", 1e7, "round away"), ("float32", np.inf, "round away")]
    ):
        with pytest.raises(PrivacyError, match=why) as refused:
            strategy_for(plan).configure_train(1, typed(dtype, value), ConfigRecord(), DirectGrid(app_for(plan)))
        assert "\n" not in str(refused.value)
        path = tmp_path / f"{number}.sqlite"
        mod = instance_privacy(plan, model=model, loss_fn=LOSS, data=held, ledger=path)
        app = ClientApp(mods=[mod])
        app.train()(lambda message, context: None)
        question = {"ask": "update", "round": 1, "plan": fingerprint(plan)}
        content = RecordDict({"arrays": typed(dtype, value), ASK: ConfigRecord(question)})
        reply = DirectGrid(app)._one(Message(content, dst_node_id=100, message_type="train"))
        assert why in reply.error.reason
        assert not path.exists()
    strategy = strategy_for(plan, run_dir=tmp_path / "run")
    strategy.open(initial())
    with pytest.raises(PrivacyError, match="round away"):  # the model grew in the meantime
        strategy.configure_train(1, typed("float32", 1e7), ConfigRecord(), DirectGrid(app_for(plan)))
    assert charged(tmp_path / "run") == 0
    strategy.server.owner.close()
    assert strategy_for(plan).configure_train(1, typed("float64", 1e7), ConfigRecord(), DirectGrid(app_for(plan)))


def test_a_model_of_half_precision_adds_no_share_of_noise():
    plan = plan_for("joint", client_rate=1.0, rounds=1)
    mod = instance_privacy(plan, model=lambda: model().half(), loss_fn=LOSS, data=held)
    app = ClientApp(mods=[mod])
    app.train()(lambda message, context: None)
    question = {"ask": "update", "round": 1, "plan": fingerprint(plan)}
    content = RecordDict({"arrays": initial(), ASK: ConfigRecord(question)})
    reply = DirectGrid(app)._one(Message(content, dst_node_id=100, message_type="train"))
    assert "half precision" in reply.error.reason


def test_names_that_nobody_can_read_are_not_enrolled(caplog):
    plan = plan_for("parallel", client_rate=1.0, rounds=1)
    odd = dict(zip(range(100, 104), ["", "x\nINFO: all fine\x1b[2J", "a" * 201, "\x00"], strict=True))

    def tamper(message, reply):
        answer = reply.content.config_records.get(ANSWER, {})
        if "name" in answer and message.metadata.dst_node_id in odd:
            answer["name"] = odd[message.metadata.dst_node_id]
        return reply

    strategy, grid = strategy_for(plan, record_panel=0), DirectGrid(app_for(plan, panel=0), tamper=tamper)
    with caplog.at_level("WARNING", "flwr"):
        messages = strategy.configure_train(1, strategy.open(initial()), ConfigRecord(), grid)
    assert sorted(m.metadata.dst_node_id for m in messages) == [104, 105]
    lines = [r.getMessage() for r in caplog.records if "printable" in r.getMessage()]
    assert len(lines) == len(odd)
    assert all(line.isprintable() and len(line) < 200 and "all fine" not in line for line in lines)


def test_a_used_up_budget_stops_the_training_and_says_so(tmp_path, caplog):
    plan = plan_for("client", rounds=3)
    spent = plan.client_worst(1, 1e-5).epsilon * 1.8
    with Ledger.create(tmp_path / "l.sqlite", unit="client", epsilon=spent, delta=1e-5) as ledger:
        strategy = strategy_for(plan, ledger=ledger)
        result = strategy.start(DirectGrid(app_for(plan)), initial())
        assert 1 <= strategy.server.taken < 3
        assert "stopped by the ledger's budget" in strategy.label().readings.facts[-1][1]
        assert result.arrays
    with Ledger.create(tmp_path / "m.sqlite", unit="client", epsilon=0.01, delta=1e-5) as ledger:
        strategy = strategy_for(plan, ledger=ledger)
        with pytest.raises(PrivacyError, match="budget"):
            strategy.start(DirectGrid(app_for(plan)), initial())


def test_a_ledger_of_another_unit_is_refused(tmp_path):
    plan = plan_for("client")
    with Ledger.create(tmp_path / "l.sqlite", unit="record") as ledger:
        strategy = strategy_for(plan, ledger=ledger)
        with pytest.raises(PrivacyError, match="counts records"):
            strategy.start(DirectGrid(app_for(plan)), initial())


def test_too_few_nodes_end_with_one_line():
    plan = plan_for("client")
    with pytest.raises(PrivacyError, match="0 of 6 nodes came"):
        strategy_for(plan, patience=0.1).start(DirectGrid(app_for(plan), clients=0), initial())


def test_without_the_mod_a_level_for_records_says_what_is_missing():
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": initial()}), reply_to=message)

    with pytest.raises(PrivacyError, match="instance_privacy"):
        strategy_for(plan_for("parallel"), named=None).start(DirectGrid(app), initial())


def test_a_usual_app_needs_nothing_but_the_strategy_at_level_client():
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = {k: v + 0.01 for k, v in arrays.items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    strategy = PrivateStrategy(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS),
        clip_norm=1.0, noise_multiplier=1.1, client_rate=0.5, rounds=4, level="client",
    )  # fmt: skip
    result = strategy.start(DirectGrid(app), initial())
    assert strategy.plan.clients == CLIENTS
    assert result.arrays
    assert strategy.label().worst.unit == "client"


def test_the_name_mod_passes_everything_else_on():
    app = ClientApp(mods=[named_client])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    strategy = strategy_for(plan_for("client"))
    strategy.start(DirectGrid(app), initial(), num_rounds=1)
    assert set(strategy.server.participations) <= {f"{i:06d}" for i in range(CLIENTS)}
    with pytest.raises(TypeError, match="not both"):
        PrivateStrategy(FedAvg(), plan=plan_for("client"), rounds=3)


# Real processes.

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
ENGINES = """
import json, sys, torch
from functools import partial
from pathlib import Path
torch.set_num_threads(1)
from tacita import runs
from tacita.federated.engines import ENGINES
from tacita.federated.recipes import Recipe, ready
level, folder = sys.argv[1], Path(sys.argv[2])
recipe = Recipe(level=level, rounds=3, clients=5, client_rate=0.8, seed=7)
make = partial(ready, recipe)
labels = [ENGINES[name].prepare(make, folder / name, resume=False).run() for name in ("local", "flower")]
models = []
for name in ("local", "flower"):
    models.append(runs.Run(folder / name).load()[0]["model"])
print(json.dumps({
    "far": max(float((models[0][k] - models[1][k]).abs().max()) for k in models[0]),
    "size": max(float(v.abs().max()) for v in models[0].values()),
    "worst": [label.worst.epsilon for label in labels],
    "typical": [[g.epsilon for g in label.readings.typical] for label in labels],
}))
"""


def both_engines(level: str, folder: Path) -> dict:
    command = [sys.executable, "-c", ENGINES, level, str(folder)]
    done = subprocess.run(command, env={**os.environ, **QUIET}, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_same(found: dict) -> None:
    assert found["far"] <= 1e-6 < found["size"]
    assert found["worst"][0] == found["worst"][1]
    assert found["typical"][0] == found["typical"][1]


@pytest.mark.flower
@pytest.mark.parametrize("level", list(LEVELS))
def test_flowers_simulation_agrees_at_every_level(level, tmp_path):
    assert_same(both_engines(level, tmp_path))


EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_digits"


@pytest.mark.flower
def test_a_real_deployment_gives_a_label(tmp_path):
    from tests.federated.fleet import deployment

    with deployment(tmp_path / "fleet", nodes=3) as fleet:
        config = {"clients": 3, "rounds": 2, "level": "joint", "client-rate": 1.0, "run-dir": str(tmp_path / "run")}
        done = fleet.run(EXAMPLE, config, deadline=500)
    assert done.status.endswith("completed"), done.log[-3000:]
    label = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert label["worst"]["unit"] == "client"
    assert (tmp_path / "run" / "label.html").exists()
    assert {g["unit"] for g in label["readings"]["typical"]} == {"client"}  # no client opted in to tell of its records


@pytest.mark.flower
def test_the_example_runs_in_flowers_own_simulation(tmp_path):
    from tests.federated.fleet import deployment

    with deployment(tmp_path / "fleet", simulation=True) as fleet:
        config = {"clients": 4, "rounds": 2, "level": "client", "run-dir": str(tmp_path / "run")}
        done = fleet.run(EXAMPLE, config, federation="num-supernodes=4", deadline=500)
    assert done.status.endswith("completed"), done.log[-3000:]
    assert (tmp_path / "run" / "label.html").exists()


@pytest.mark.flower
def test_l12_the_server_process_is_killed_mid_round_and_started_again(tmp_path):
    from tests.federated.fleet import deployment

    run = tmp_path / "run"
    config = {"clients": 3, "rounds": 4, "level": "parallel", "client-rate": 1.0, "run-dir": str(run)}
    with deployment(tmp_path / "fleet", nodes=3) as fleet:
        first = fleet.begin(EXAMPLE, config)
        deadline = time.monotonic() + 300
        while charged(run) < 2:  # the second round has been charged and is on its way
            assert time.monotonic() < deadline
            assert first.poll() is None
            time.sleep(0.1)
        before = [pid for pid, command in fleet.pids().items() if "flwr-serverapp" in command]
        assert before
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        first.kill()
        first.wait()
        seen = charged(run)
        done = fleet.run(EXAMPLE, config, deadline=500)
    assert done.status.endswith("completed"), done.log[-3000:]
    assert "resumed after round" in done.log
    document = json.loads((run / "run.json").read_text())
    assert charged(run) == document["plan"]["rounds"] == 4 >= seen
    label = json.loads((run / "guarantee.json").read_text())
    assert dict(map(tuple, label["readings"]["facts"]))["Rounds lost to interruptions"] == "1"


@pytest.mark.flower
def test_l13_a_second_server_process_on_a_live_run_directory_is_refused(tmp_path):
    from tests.federated.fleet import deployment

    run = tmp_path / "run"
    config = {"clients": 3, "rounds": 4, "level": "client", "client-rate": 1.0, "run-dir": str(run)}
    with deployment(tmp_path / "fleet", nodes=3) as fleet:
        first = fleet.begin(EXAMPLE, config)
        deadline = time.monotonic() + 300
        while charged(run) < 1:
            assert time.monotonic() < deadline
            assert first.poll() is None
            time.sleep(0.1)
        servers = [pid for pid, command in fleet.pids().items() if "flwr-serverapp" in command]
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)  # alive, and it may go on at any time
        seen = charged(run)
        second = fleet.run(EXAMPLE, config, deadline=500)
        assert not second.status.endswith("completed")
        assert "is in use" in second.log
        assert charged(run) == seen
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        first.kill()
        first.wait()
        third = fleet.run(EXAMPLE, config, deadline=500)
    assert third.status.endswith("completed"), third.log[-3000:]
    assert "resumed after round" in third.log
    assert charged(run) == 4


def charged(run: Path) -> int:
    path = run / "ledger.sqlite"
    if not path.exists() or not (run / "run.json").exists():
        return 0
    with Ledger.open(path) as ledger:
        return sum(r["charged"] for r in ledger.runs().values())
