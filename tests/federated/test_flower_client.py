"""The client's side of a Flower federation: what it refuses, who it says it is, and what it charges to its ledger."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from tacita import PrivacyError  # noqa: E402
from tacita.federated import FederationPlan, instance_privacy, named_client  # noqa: E402
from tacita.federated.client_ledger import ClientLedger, Standing, enforced_plan  # noqa: E402
from tacita.federated.flower_client import ANSWER, ASK, fingerprint, identity_of, local_training  # noqa: E402
from tacita.federated.masking import masker  # noqa: E402
from tacita.federated.server import Server  # noqa: E402
from tacita.ledger import Ledger  # noqa: E402
from tests.federated.test_flower import (  # noqa: E402
    CLIENTS,
    LEVELS,
    LOSS,
    DirectGrid,
    held,
    identity,  # noqa: F401  # a fixture
    initial,
    model,
    plan_for,
    records,
    same,
    strategy_for,
)

BUDGET_DELTA = 1e-5


def whole_app(mod, ran: list[str]) -> ClientApp:
    """Return an app whose own functions send what the records are, and note that they ran."""
    app = ClientApp(mods=[mod])

    def answered(message: Message, context: Context) -> Message:
        ran.append(message.metadata.message_type)
        arrays = ArrayRecord({k: v + 1.0 for k, v in model().state_dict().items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 20})}), reply_to=message)

    app.train()(answered)
    app.train("other")(answered)
    app.evaluate()(answered)
    app.query()(answered)
    return app


def mod_for(plan, **options):
    return instance_privacy(plan, **{"model": model, "loss_fn": LOSS, "data": held, "panel": 0, **options})


def told(message: Message, content: dict | None = None, kind: str = "train", arrays: ArrayRecord | None = None):
    """Return a message to node 100 with a request of any shape."""
    records = {"arrays": initial() if arrays is None else arrays}
    if content is not None:
        records[ASK] = ConfigRecord(content)
    return Message(RecordDict(records), dst_node_id=100, message_type=kind)


def ask(app: ClientApp, content: dict | None, kind: str = "train", grid: DirectGrid | None = None, **more) -> Message:
    return (grid or DirectGrid(app))._one(told(None, content, kind, **more))


def update(plan, number: int = 1, **changes) -> dict:
    return {"ask": "update", "round": number, "plan": fingerprint(plan), **changes}


# L16: whatever is not a private request under the client's plan is refused.


@pytest.mark.parametrize("level", LEVELS)
def test_l16_a_plain_fedavg_server_gets_nothing(level):
    ran, replies = [], []
    grid = DirectGrid(whole_app(mod_for(plan_for(level)), ran))
    grid.tamper = lambda message, reply: replies.append(reply) or reply
    strategy = FedAvg(fraction_evaluate=1.0, min_available_nodes=CLIENTS)
    result = strategy.start(grid, initial(), num_rounds=2)
    grid.send_and_receive([told(None, kind=kind) for kind in ("query", "train.other")])
    kinds = [m.metadata.message_type for m in grid.log]
    assert kinds.count("train") == kinds.count("evaluate") == 2 * CLIENTS
    assert kinds[-2:] == ["query", "train.other"]
    assert ran == []
    assert all(reply.has_error() for reply in replies)
    assert all("well-formed private requests only" in reply.error.reason for reply in replies)
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp


def malformed(plan) -> dict[str, dict]:
    good, exchange = update(plan), {"plan": fingerprint(plan), "exchange": "a attempt 1"}
    costs = {"ask": "costs", **exchange, "what": "norms", "names": ["a"], "keys": [b"k"], "steps": 1}
    return {
        "empty": {},
        "no ask": {"round": 1},
        "unknown": {"ask": "weights"},
        "a list": {"ask": ["update"]},
        "a name with more": {"ask": "name", "round": 1},
        "no plan": {"ask": "update", "round": 1},
        "no round": {"ask": "update", "plan": fingerprint(plan)},
        "another plan": {**good, "plan": fingerprint(plan_for(plan.level, rounds=4))},
        "round as text": {**good, "round": "1"},
        "round as float": {**good, "round": 1.0},
        "round as bool": {**good, "round": True},
        "round 0": {**good, "round": 0},
        "round too late": {**good, "round": plan.rounds + 1},
        "more": {**good, "train": "plainly"},
        "exchange as bytes": {**good, "exchange": b"x"},
        "key without plan": {"ask": "key", "exchange": "a attempt 1"},
        "costs not begun": costs,
        "unknown costs": {**costs, "what": "gradients"},
        "names as text": {**costs, "names": "a"},
        "costs under another plan": {**costs, "plan": "0" * 64},
    }


@pytest.mark.parametrize("level", LEVELS)
def test_l16_a_malformed_request_is_refused_and_nothing_runs(level):
    plan, ran = plan_for(level), []
    app = whole_app(mod_for(plan), ran)
    by_server = {"round 0", "round too late"} if level == "client" else set()  # the app's own function trains there
    for kind, content in malformed(plan).items():
        if kind not in by_server:
            assert ask(app, content).has_error(), kind
    for kind in ("evaluate", "query", "train.other"):
        assert ask(app, update(plan), kind).has_error(), kind
    assert ran == []


@pytest.mark.parametrize("level", ["parallel", "joint"])
def test_l16_arrays_that_are_not_the_models_are_refused_before_the_charge(level, tmp_path):
    plan = plan_for(level)
    app = whole_app(mod_for(plan, ledger=tmp_path / "l.sqlite"), [])
    zeros = {k: torch.zeros_like(v) for k, v in model().state_dict().items()}
    for arrays in ({}, {"weight": zeros["weight"]}, {**zeros, "weight": zeros["weight"].T.contiguous()}):
        assert "not the parameters" in ask(app, update(plan), arrays=ArrayRecord(arrays)).error.reason
    assert not (tmp_path / "l.sqlite").exists()


def test_l16_at_level_client_the_apps_function_runs_for_the_same_plan_only():
    plan, ran = plan_for("client"), []
    app = whole_app(mod_for(plan), ran)
    assert ask(app, update(plan_for("client", noise_multiplier=0.5))).has_error()
    assert ran == []
    assert not ask(app, update(plan)).has_error()
    assert ran == ["train"]
    key = {"ask": "key", "plan": fingerprint(plan), "exchange": "a attempt 1"}
    assert "update only" in ask(app, key).error.reason


def test_l16_a_plan_that_protects_nobody_is_refused():
    ran, plan = [], FederationPlan.without_guarantee(clients=CLIENTS, client_rate=1.0, rounds=2)
    app = whole_app(mod_for(plan), ran)
    assert ask(app, update(plan)).has_error()
    assert not ran


def test_l16_evaluation_is_opened_by_the_client_alone():
    for level in LEVELS:
        plan, ran = plan_for(level, client_metrics=True), []
        app = whole_app(mod_for(plan, allow_evaluation=True), ran)
        assert not ask(app, None, "evaluate").has_error()
        assert ask(app, None, "query").has_error()
        assert ask(app, None, "train").has_error()
        assert ran == ["evaluate"]
        assert ask(whole_app(mod_for(plan), ran), None, "evaluate").has_error()


def test_l16_what_the_apps_own_functions_fail_with_does_not_reach_the_server():
    plan = plan_for("client")
    app = ClientApp(mods=[mod_for(plan, allow_evaluation=True)])

    def broken(message: Message, context: Context) -> Message:
        raise ValueError("patient 42 has diabetes")

    app.train()(broken)
    app.evaluate()(broken)
    for reply in (ask(app, update(plan)), ask(app, None, "evaluate")):
        assert "could not answer (ValueError)" in reply.error.reason
        assert "42" not in reply.error.reason


@pytest.mark.parametrize("level", ["client", "parallel"])
def test_l16_not_even_the_words_of_a_privacy_error_about_the_records_reach_the_server(level):
    def broken(*_):
        raise PrivacyError("patient 42 has diabetes")

    plan = plan_for(level)
    app = ClientApp(mods=[mod_for(plan, data=broken)])
    app.train()(broken)
    reason = ask(app, update(plan)).error.reason
    assert "could not answer (PrivacyError)" in reason
    assert "42" not in reason


def test_local_training_answers_an_update_of_its_plan_only():
    plan, app = plan_for("client"), ClientApp(mods=[named_client])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return local_training(message, context, plan, model(), LOSS, held)

    key = {"ask": "key", "plan": fingerprint(plan), "exchange": "a attempt 1"}
    for content in (None, key, update(plan_for("client", rounds=9))):
        assert "PrivacyError" in ask(app, content).error.reason
    assert not ask(app, update(plan)).has_error()


# L15: who a client is.


def nodes(app: ClientApp, configurations: list[dict]) -> DirectGrid:
    grid = DirectGrid(app, len(configurations))
    for node, configuration in zip(list(grid.contexts), configurations, strict=True):
        grid.contexts[node] = Context(7, node, configuration, RecordDict(), {})
    return grid


def restarted(grid: DirectGrid) -> None:
    """Give every node a new number and a fresh state, as a restart does."""
    for node in list(grid.contexts):
        grid.contexts[node + 1000] = Context(7, node + 1000, grid.contexts.pop(node).node_config, RecordDict(), {})


def by_number(context: Context):
    return records(context.node_id % 1000)


PARALLEL = {"rounds": 6, "client_rate": 1.0, "local_steps": 1}


def train(strategy, grid: DirectGrid, rounds: int = 1):
    """Train a few rounds, without the label that `start` ends with."""
    for _ in range(rounds):
        messages = strategy.configure_train(1, strategy.open(initial()), ConfigRecord(), grid)
        strategy.aggregate_train(1, grid.send_and_receive(messages))
    return strategy


def restarting(plan, configurations: list[dict], **options):
    """Run a federation whose nodes all restart after every round."""
    grid = nodes(whole_app(mod_for(plan, **{"data": by_number, **options}), []), configurations)
    strategy = strategy_for(plan, FedAvg(fraction_evaluate=0.0, min_available_nodes=len(configurations)))
    for _ in range(plan.rounds):
        train(strategy, grid)
        restarted(grid)
    return strategy


def test_l15_a_client_without_a_name_counts_in_every_round():
    plan = plan_for("parallel", **{**PARALLEL, "rounds": 3})
    strategy = restarting(plan, [{}, {"partition-id": ""}, {"partition-id": 1.5}, {"partition-id": True}], panel=2)
    assert max(strategy.server.participations.values()) == 1  # every restart looks like another client
    label = strategy.label()
    assert label.worst.epsilon == plan.record_worst(3, plan.delta).epsilon
    assert all(g.epsilon == label.worst.epsilon for g in label.readings.typical)
    assert any("not every client declared its identity" in line for line in label.public().declared)


@pytest.mark.parametrize(
    ("configurations", "names", "options"),
    [
        ([{"partition-id": i} for i in range(3)], ["000000", "000001", "000002"], {}),
        ([{"partition-id": str(i)} for i in range(3)], ["000000", "000001", "000002"], {}),
        ([{"partition-id": n} for n in ("north", "south", "west")], ["north", "south", "west"], {}),
        ([{"client-id": n, "partition-id": 0} for n in ("north", "south")], ["north", "south"], {}),
        ([{"city": n} for n in ("north", "south")], ["north", "south"], {"name": lambda c: c.node_config["city"]}),
    ],
)
def test_l15_a_client_that_declares_its_name_is_the_same_after_a_restart(configurations, names, options):
    plan = plan_for("parallel", **{**PARALLEL, "rounds": 2})
    strategy = restarting(plan, configurations, **options)
    assert strategy.server.participations == dict.fromkeys(names, 2)
    assert not strategy.server.unnamed_took_part


def test_l15_two_nodes_with_one_name_get_one_coin(caplog):
    plan = plan_for("parallel", **PARALLEL)
    app = whole_app(mod_for(plan, data=by_number), [])
    grid = nodes(app, [{"client-id": "north"}, {"client-id": "north"}, {"client-id": "south"}])
    strategy = strategy_for(plan, FedAvg(fraction_evaluate=0.0, min_available_nodes=3))
    with caplog.at_level(logging.WARNING, "flwr"):
        train(strategy, grid, 2)
    asked = [m.metadata.dst_node_id for m in grid.log if m.content[ASK]["ask"] == "update"]
    assert sorted(asked) == [100, 100, 102, 102]
    assert strategy.server.participations == {"north": 2, "south": 2}
    assert "declares the name of another node" in caplog.text
    del grid.contexts[100]  # and the second takes over when the first is gone
    train(strategy, grid)
    assert strategy.server.participations == {"north": 3, "south": 3}


def test_l15_rates_of_single_clients_need_declared_names():
    plan = plan_for("parallel", **PARALLEL, client_rates={"000001": 0.1})
    grid = nodes(whole_app(mod_for(plan, data=by_number), []), [{"partition-id": 0}, {}])
    strategy = strategy_for(plan, FedAvg(fraction_evaluate=0.0, min_available_nodes=2))
    train(strategy, grid)
    assert list(strategy.server.participations) == ["000000"]
    rated = plan_for("client", client_rates={"000001": 0.1})
    with pytest.raises(PrivacyError, match="named=False"):
        strategy_for(rated, named=False)
    assert strategy_for(rated, named=None)._named


def test_l15_a_clients_word_that_it_has_no_name_is_not_a_name():
    app, context = ClientApp(mods=[named_client]), Context(7, 100, {}, RecordDict(), {})
    app.train()(lambda message, context: None)
    reply = app(told(None, {"ask": "name"}), context)
    assert dict(reply.content["tacita-answer"]) == {"name": "100", "declared": False}
    assert identity_of(context, "north") == ("north", True)
    with pytest.raises(ValueError, match="printable"):
        mod_for(plan_for("parallel"), name="")


def test_l15_the_server_remembers_who_had_no_name():
    plan = plan_for("parallel", **PARALLEL, copies=2)
    server = Server(plan, dict(model().named_parameters()))
    for number in range(3):
        server.begin(["north", str(number)], unnamed=[str(number)])
        server.finish({})
    assert server.most_steps == 3 * 2
    assert server.steps_of("0") == server.steps_of("north") == 3
    tensors, document = server.state()
    again = Server(plan, dict(model().named_parameters()), ledger=server.ledgers[0], identity=server.identity)
    again.restore(tensors, document, resume=True)
    assert again.most_steps == 6
    older = {k: v for k, v in document.items() if k != "unnamed"}
    again.restore(tensors, older, resume=True)
    assert again.most_steps == 6


def test_l15_at_level_client_restarts_do_not_move_the_figures_below_those_of_stable_names():
    plan = plan_for("client", client_rate=1.0, rounds=2)
    figures = []
    for named in (True, False):
        grid = nodes(whole_app(mod_for(plan), []), [{"partition-id": i} for i in range(4)])
        strategy = strategy_for(
            plan, FedAvg(fraction_evaluate=0.0, min_available_nodes=4), named=named, panel=4, record_panel=0
        )
        for _ in range(plan.rounds):
            train(strategy, grid)
            restarted(grid)
        label = strategy.label()
        figures.append([label.worst.epsilon, *(g.epsilon for g in label.readings.typical)])
    assert len(figures[0]) == len(figures[1]) > 1
    assert figures[0][0] == figures[1][0] == plan.client_worst(2, plan.delta).epsilon
    assert all(b >= a for a, b in zip(*figures, strict=True))


# L17: the client's ledger.


def one_run(mod, plan, run_id: int) -> list[Message]:
    """Be one server that asks a client with fresh state for every round of the plan, and return its replies."""
    app, context = whole_app(mod, []), Context(run_id, 100, {"partition-id": 0}, RecordDict(), {})
    grid = DirectGrid(app, 1)
    grid.contexts = {100: context}
    return [ask(app, update(plan, number), grid=grid) for number in range(1, plan.rounds + 1)]


def spent_by(path, delta: float = BUDGET_DELTA) -> float:
    with Ledger.open(path) as ledger:
        return ledger.spent(delta).epsilon


@pytest.mark.parametrize("level", ["parallel", "sequential", "joint"])
def test_l17_three_runs_add_up_and_what_passes_the_budget_is_refused(level, tmp_path):
    plan = plan_for(level, rounds=2)
    free = tmp_path / "free.sqlite"
    for run in (1, 2, 3):
        replies = one_run(mod_for(plan, ledger=free), plan, run)
        assert not any(reply.has_error() for reply in replies)
    with Ledger.open(free) as ledger:
        assert [r["charged"] for r in ledger.runs().values()] == [2 * plan.local_steps] * 3
    whole, calls = spent_by(free), []

    def counted(*arguments):
        calls.append(1)
        return LOSS(*arguments)

    path = tmp_path / "own.sqlite"
    mod = mod_for(plan, ledger=lambda context: path, epsilon=whole * 0.999, delta=BUDGET_DELTA, loss_fn=counted)
    replies = [reply for run in (1, 2) for reply in one_run(mod, plan, run)]
    assert not any(reply.has_error() for reply in replies)
    first, last = one_run(mod, plan, 3)
    assert first.has_error() == (level == "joint")  # there the curve of a whole run is cheaper, and it is one charge
    before = len(calls)
    assert "ledger refuses" in last.error.reason
    assert "epsilon" not in last.error.reason
    assert str(tmp_path) not in last.error.reason
    assert all(reply.has_error() for reply in one_run(mod, plan, 4)[1:])
    assert len(calls) <= before + 1
    assert spent_by(path) < whole * 0.999


def test_l17_a_refused_answer_computes_nothing(tmp_path):
    plan, calls = plan_for("parallel"), []

    def counted(*arguments):
        calls.append(1)
        return LOSS(*arguments)

    mod = mod_for(plan, ledger=tmp_path / "l.sqlite", epsilon=0.01, delta=BUDGET_DELTA, loss_fn=counted)
    assert all(reply.has_error() for reply in one_run(mod, plan, 1))
    assert calls == []
    assert not any(reply.has_error() for reply in one_run(mod_for(plan, loss_fn=counted), plan, 1))
    assert calls


def test_l17_what_is_charged_is_what_the_client_enforces_alone(tmp_path):
    for level, noise in (("parallel", 1.0), ("sequential", 1.0 / np.sqrt(CLIENTS)), ("joint", None)):
        plan = plan_for(level, rounds=2, copies=1)
        own = enforced_plan(plan)
        assert own.noise_multiplier == pytest.approx(noise or plan.share_noise * 10.0)  # a record moves a mean by 1/10
        assert (own.sample_rate, own.steps) == (0.5, 2 * plan.local_steps)
        one_run(mod_for(plan, ledger=tmp_path / f"{level}.sqlite"), plan, 1)
        assert spent_by(tmp_path / f"{level}.sqlite") >= own.running(own.steps, BUDGET_DELTA)
    copied = plan_for("parallel", copies=3)
    assert enforced_plan(copied).steps == copied.rounds * copied.local_steps  # others count their own copies
    with pytest.raises(ValueError, match="this client's share"):
        enforced_plan(plan_for("sequential", clients=10**6, record_noise_multiplier=1.0))


def test_l17_at_level_client_a_ledger_is_refused_with_the_reason(tmp_path):
    plan, ran = plan_for("client"), []
    with pytest.raises(PrivacyError, match="the server adds the noise"):
        mod_for(plan, ledger=tmp_path / "l.sqlite")
    app = whole_app(mod_for(lambda context: plan, ledger=tmp_path / "l.sqlite"), ran)
    assert "the server adds the noise" in ask(app, update(plan)).error.reason
    assert ran == []


def test_l17_arguments_that_do_not_go_together_are_refused(tmp_path):
    plan = plan_for("parallel")
    with pytest.raises(ValueError, match="give ledger="):
        mod_for(plan, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="both epsilon and delta"):
        mod_for(plan, ledger=tmp_path / "l.sqlite", epsilon=1.0)
    with pytest.raises(PrivacyError, match="allow_evaluation"):
        mod_for(plan, ledger=tmp_path / "l.sqlite", allow_evaluation=True)


def test_l17_a_round_that_is_asked_again_after_a_restart_is_charged_again(tmp_path):
    plan, path = plan_for("parallel"), tmp_path / "l.sqlite"
    app = whole_app(mod_for(plan, ledger=path), [])
    grid = DirectGrid(app, 1)
    assert not ask(app, update(plan, 2), grid=grid).has_error()
    assert "answered once" in ask(app, update(plan, 2), grid=grid).error.reason
    with Ledger.open(path) as ledger:
        assert [r["charged"] for r in ledger.runs().values()] == [plan.local_steps]
    again = DirectGrid(app, 1)  # the same run, and the client's state is gone
    assert not ask(app, update(plan, 2), grid=again).has_error()
    assert not ask(app, update(plan, 3), grid=again).has_error()
    with Ledger.open(path) as ledger:
        assert sorted(r["charged"] for r in ledger.runs().values()) == [plan.local_steps, 2 * plan.local_steps]


def test_l17_an_answer_that_fails_after_its_charge_stays_charged(tmp_path):
    plan, path, fails = plan_for("parallel"), tmp_path / "l.sqlite", [True]

    def loss(*arguments):
        if fails:
            fails.clear()
            raise MemoryError("patient 42")
        return LOSS(*arguments)

    app = whole_app(mod_for(plan, ledger=path, loss_fn=loss), [])
    grid = DirectGrid(app, 1)
    replies = [ask(app, update(plan, number), grid=grid) for number in (1, 1, 2)]
    answered = sum(not reply.has_error() for reply in replies)
    with Ledger.open(path) as ledger:
        assert sum(r["charged"] for r in ledger.runs().values()) >= answered * plan.local_steps > 0


def test_l17_a_chosen_seed_is_used_in_one_run_only(tmp_path):
    plan, path = plan_for("parallel"), tmp_path / "l.sqlite"
    assert not any(reply.has_error() for reply in one_run(mod_for(plan, ledger=path, seed=3), plan, 1))
    assert all("ledger refuses" in r.error.reason for r in one_run(mod_for(plan, ledger=path, seed=3), plan, 2))
    assert not any(reply.has_error() for reply in one_run(mod_for(plan, ledger=path, seed=4), plan, 3))


def test_l17_a_ledger_that_was_replaced_between_two_answers_is_refused(tmp_path):
    plan, path = plan_for("parallel"), tmp_path / "l.sqlite"
    app = whole_app(mod_for(plan, ledger=path), [])
    grid = DirectGrid(app, 1)
    assert not ask(app, update(plan, 1), grid=grid).has_error()
    for file in tmp_path.glob("l.sqlite*"):
        file.unlink()
    assert "ledger refuses" in ask(app, update(plan, 2), grid=grid).error.reason
    Ledger.create(path).close()
    assert "ledger refuses" in ask(app, update(plan, 2), grid=grid).error.reason


def test_l17_the_ledgers_own_budget_is_not_changed_by_the_app(tmp_path):
    plan, path = plan_for("parallel"), tmp_path / "l.sqlite"
    Ledger.create(path, epsilon=1.0, delta=BUDGET_DELTA).close()
    with pytest.raises(PrivacyError, match="another budget"):
        ClientLedger(path, (99.0, BUDGET_DELTA)).charge(plan, Standing())
    with pytest.raises(PrivacyError, match="budget"):
        ClientLedger(path).charge(plan, Standing())  # two steps cost more than 1
    Ledger.create(tmp_path / "free.sqlite").close()
    with pytest.raises(PrivacyError, match="budget"):
        ClientLedger(tmp_path / "free.sqlite", (0.5, BUDGET_DELTA)).charge(plan, Standing())
    Ledger.create(tmp_path / "clients.sqlite", unit="client").close()
    with pytest.raises(PrivacyError, match="must be a file"):
        ClientLedger(":memory:").charge(plan, Standing())
    with pytest.raises(PrivacyError, match="one client"):
        ClientLedger(tmp_path / "clients.sqlite").charge(plan, Standing())


def test_l17_two_answers_at_once_are_both_charged_or_refused(tmp_path):
    plan = plan_for("parallel")
    ledger, first = ClientLedger(tmp_path / "l.sqlite"), Standing()
    one = ledger.charge(plan, first)
    two, other = ledger.charge(plan, one), ledger.charge(plan, one)  # both remember the first charge only
    assert (two.run, two.steps) == (one.run, 2 * plan.local_steps)
    assert other.run != one.run
    with Ledger.open(tmp_path / "l.sqlite") as opened:
        assert sum(r["charged"] for r in opened.runs().values()) == 3 * plan.local_steps
    seeded = ledger.charge(plan, first, seed_mark="a")
    ledger.charge(plan, seeded, seed_mark="a")
    with pytest.raises(PrivacyError, match="used this seed"):
        ledger.charge(plan, seeded, seed_mark="a")


def reads_alone(plan, level: str, **options) -> Message:
    """Be a server that plays all other clients, and return what a client tells it of its costs, or its refusal."""
    what = "records" if level == "parallel" else "norms"
    mod = instance_privacy(plan, model=model, loss_fn=LOSS, data=held, **options)
    app = whole_app(mod, [])
    grid, exchange = DirectGrid(app, 1), {"plan": fingerprint(plan), "exchange": "e"}
    first = ask(app, update(plan, exchange="e"), grid=grid)
    assert not first.has_error()
    answers = [first, ask(app, {"ask": "key", **exchange}, grid=grid)]
    told_keys = [dict(a.content.config_records.get(ANSWER, {})).get("key") for a in answers if not a.has_error()]
    own = next((key for key in reversed(told_keys) if key), bytes(32))
    keys = {"000000": own, **{name: masker(name, "e").public for name in ("zz1", "zz2")}}
    names, given = list(keys), list(keys.values())
    return ask(app, {"ask": "costs", **exchange, "what": what, "names": names, "keys": given, "steps": 1}, grid=grid)


@pytest.mark.parametrize("level", ["parallel", "sequential", "joint"])
def test_a_client_reports_costs_only_if_its_owner_gave_a_panel(level, tmp_path):
    """A server that plays the other clients unmasks them, so they are never reported by default."""
    plan = plan_for(level, rounds=1)
    for options in ({}, {"panel": 0}, {"ledger": tmp_path / "l.sqlite"}):
        reply = reads_alone(plan, level, **options)
        assert "reports no costs" in reply.error.reason
    assert not reads_alone(plan, level, panel=2).has_error()


@pytest.mark.parametrize("level", ["parallel", "sequential", "joint"])
def test_a_federation_whose_clients_report_nothing_counts_at_the_worst_case(level, caplog):
    plan = plan_for(level, client_rate=1.0, rounds=1)
    grid = DirectGrid(whole_app(mod_for(plan), []))
    strategy, replies = strategy_for(plan), []
    grid.tamper = lambda message, reply: replies.append(reply) or reply
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(grid, initial())
    label = strategy.label()
    assert all(g.epsilon > 0.999 * label.worst.epsilon for g in label.readings.typical)
    assert not any(reply.has_error() or "key" in reply.content.config_records.get(ANSWER, {}) for reply in replies)
    asked = [message.content[ASK]["ask"] for message in grid.log]
    assert "costs" not in asked
    assert asked.count("key") == (0 if level == "sequential" else 2 * CLIENTS)  # once for each label
    assert "failed" not in caplog.text


@pytest.mark.parametrize("ledger", [False, True])
def test_what_a_client_remembers_belongs_to_one_plan_and_one_run(ledger, tmp_path):
    """Flower may hand a node's state on to a later run: its account must not pass for that run's."""
    quiet, loud = (plan_for("parallel", local_steps=1, record_noise_multiplier=z) for z in (30.0, 1.0))
    more = {"ledger": tmp_path / "l.sqlite"} if ledger else {}
    state, plans = RecordDict(), {7: quiet, 8: loud, 9: loud}
    app = whole_app(mod_for(lambda context: plans[context.run_id], panel=4, **more), [])
    grid = DirectGrid(app, 1)

    def begin(run):
        grid.contexts = {100: Context(run, 100, {"partition-id": 0}, state, {})}

    begin(7)
    for number in (1, 2):
        assert not ask(app, update(quiet, number), grid=grid).has_error()
    key = ask(app, {"ask": "key", "plan": fingerprint(quiet), "exchange": "e"}, grid=grid)
    assert not key.has_error()
    for run in (8, 9):  # another plan; then the same plan in another run
        begin(run)
        assert not ask(app, update(loud, 1), grid=grid).has_error()
        kept = json.loads(state["tacita"]["account"])["accountant"]
        assert (kept["noise_multiplier"], kept["taken"]) == (1.0, 1)
        assert not state["tacita"]["key"]
        assert "answered once" in ask(app, update(loud, 1), grid=grid).error.reason
    plans[9] = quiet  # another plan under the same run answers no round again
    assert "answered once" in ask(app, update(quiet, 1), grid=grid).error.reason
    assert not ask(app, update(quiet, 2), grid=grid).has_error()


@pytest.mark.parametrize("error", [SystemExit("Smith"), KeyboardInterrupt("Smith"), BaseException("Smith")])
def test_nothing_that_data_raises_leaves_the_client_with_its_text(error):
    def data(context):
        raise error

    app = whole_app(mod_for(plan_for("parallel"), data=data), [])
    with pytest.raises(RuntimeError, match=type(error).__name__) as raised:
        app(told(None, update(plan_for("parallel"))), DirectGrid(app, 1).contexts[100])
    assert "Smith" not in str(raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), SystemExit()])
def test_a_client_can_still_be_stopped(error):
    def data(context):
        raise error

    app = whole_app(mod_for(plan_for("parallel"), data=data), [])
    with pytest.raises(type(error)):
        app(told(None, update(plan_for("parallel"))), DirectGrid(app, 1).contexts[100])


def test_l17_without_a_ledger_the_client_warns_once(caplog, tmp_path):
    plan = plan_for("parallel")
    mod = mod_for(plan)
    with caplog.at_level(logging.WARNING, "flwr"):
        one_run(mod, plan, 1)
        one_run(mod, plan, 2)
    assert caplog.text.count("does not count what its records spend in other runs") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        one_run(mod_for(plan, ledger=tmp_path / "l.sqlite"), plan, 1)
    assert "other runs" not in caplog.text


def test_a_protected_federation_still_trains_with_ledgers_on_every_client(tmp_path):
    plan = plan_for("parallel", client_rate=1.0)
    app = whole_app(mod_for(plan, ledger=lambda c: tmp_path / f"{c.node_id}.sqlite", epsilon=50.0, delta=1e-5), [])
    strategy = train(strategy_for(plan), DirectGrid(app))
    assert not same(strategy._arrays, initial())
    for node in range(100, 100 + CLIENTS):
        assert 0.0 < spent_by(tmp_path / f"{node}.sqlite") <= 50.0
