"""Which strategies `PrivateStrategy` takes, and what it does with their arrays, round numbers, attributes and nodes."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import strategy as flowers  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Strategy  # noqa: E402

from tacita import PrivacyError  # noqa: E402
from tacita.federated import PrivateStrategy, federation_plan, instance_privacy  # noqa: E402
from tacita.federated.flower_strategies import REFUSED, SUPPORTED  # noqa: E402
from tests.federated.test_flower import (  # noqa: E402
    CLIENTS,
    LOSS,
    DirectGrid,
    app_for,
    held,
    identity,  # noqa: F401  # a fixture for every test here
    initial,
    model,
    plan_for,
    strategy_for,
)
from tests.federated.test_local import standing  # noqa: E402

NODES = {"fraction_evaluate": 0.0, "min_available_nodes": CLIENTS}
QUIET = {"clip_norm": 1.0, "noise_multiplier": 0.01, "client_rate": 1.0}  # little noise: what is added can be told


def adds_a_tenth() -> ClientApp:
    """A usual app: every client moves every number by a tenth, and its metrics have names of their own."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = {k: v + 0.1 for k, v in message.content["arrays"].to_torch_state_dict().items()}
        told = MetricRecord({"num-examples": 5, "loss": 0.25})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": told}), reply_to=message)

    return app


def quiet_plan(**changes):
    return federation_plan(**{"level": "client", "clients": CLIENTS, "rounds": 3, **QUIET, **changes})


def private(inner: Strategy, plan=None, **options) -> PrivateStrategy:
    return PrivateStrategy(inner, **{"plan": plan or quiet_plan(), "rng": 3, **options})


def one_round(strategy: PrivateStrategy, grid: DirectGrid, look=None) -> ArrayRecord:
    """Take a round as Flower's loop does, without the label that `start` ends with."""
    arrays = strategy.open(initial())
    replies = grid.send_and_receive(list(strategy.configure_train(1, arrays, ConfigRecord(), grid)))
    if look is not None:
        look()
    return strategy.aggregate_train(1, replies)[0]


# Which strategies.


def exported() -> dict[str, type]:
    found = {n: c for n, c in vars(flowers).items() if inspect.isclass(c) and issubclass(c, Strategy)}
    assert len(found) > 10
    return {n: c for n, c in found.items() if c is not Strategy}


def any_instance(cls: type) -> Strategy:
    """Return an instance without the arguments that its constructor asks for: the table looks at its class."""
    made = cls.__new__(cls)
    vars(made).update(min_available_nodes=CLIENTS)
    return made


def test_every_strategy_of_flower_is_supported_or_refused_with_a_reason():
    assert set(exported()) == {c.__name__ for c in SUPPORTED} | set(REFUSED)
    assert not {c.__name__ for c in SUPPORTED} & set(REFUSED)
    for name, cls in exported().items():
        if cls in SUPPORTED:
            private(any_instance(cls))
        else:
            for declared in (False, True):
                with pytest.raises(PrivacyError, match=name) as caught:
                    private(any_instance(cls), one_reply=declared)
                assert REFUSED[name] in str(caught.value)
                assert "\n" not in str(caught.value)


def test_the_guide_has_the_table():
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "federate.md").read_text()
    table = guide[guide.index("### Which strategies") : guide.index("### Private clients")]
    for name in (*REFUSED, *(c.__name__ for c in SUPPORTED)):
        assert f"`{name}`" in table or name.startswith("DifferentialPrivacy")


@pytest.mark.parametrize("cls", list(SUPPORTED), ids=lambda c: c.__name__)
def test_a_supported_strategy_does_with_the_private_mean_what_it_does_with_one_reply(cls, tmp_path):
    made, alone = cls(**NODES), cls(**NODES)
    strategy = private(made, quiet_plan(rounds=2), run_dir=tmp_path / "run")
    result = strategy.start(DirectGrid(adds_a_tenth()), initial())
    replies, arrays = [0.1, 0.1], initial()
    for number, step in enumerate(replies, 1):
        list(alone.configure_train(number, arrays, ConfigRecord(), DirectGrid(adds_a_tenth())))
        moved = ArrayRecord({k: torch.tensor(a.numpy() + step) for k, a in arrays.items()})
        one = RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 1.0})})
        arrays, _ = alone.aggregate_train(number, [Message(one, dst_node_id=0, message_type="train")])
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), arrays[name].numpy(), atol=0.01)
        assert np.abs(array.numpy() - initial()[name].numpy()).min() > 0.015


@pytest.mark.parametrize("start", ["float32", "float64"])
def test_float64_of_a_strategy_or_of_the_arrays_does_not_silence_clients(start):
    """FedAdam computes in float64; a float32 model raises on such parameters, and a record that raises is zero."""
    plan, far = plan_for("parallel", client_rate=1.0, record_noise_multiplier=0.01), []
    strategy, grid = strategy_for(plan, FedAdam(**NODES)), DirectGrid(app_for(plan))
    arrays = strategy.open(ArrayRecord({k: flwr.app.Array(a.numpy().astype(start)) for k, a in initial().items()}))

    def note(message, reply):
        far.append(np.abs(reply.content["arrays"]["bias"].numpy() - message.content["arrays"]["bias"].numpy()).max())
        return reply

    for _ in range(2):
        messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
        grid.tamper = note
        arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
        grid.tamper = None
    assert {a.numpy().dtype for a in arrays.values()} == {np.dtype(start)}
    assert len(far) == 2 * CLIENTS
    assert min(far) > 0.01  # the noise is a tenth of that


def test_a_strategy_of_a_later_flower_is_refused_rather_than_guessed():
    new = type("FedNew", (FedAvg,), {"__module__": "flwr.serverapp.strategy.fednew"})
    for cls in (new, type("Own", (new,), {})):
        with pytest.raises(PrivacyError, match=r"FedNew.* not known"):
            private(any_instance(cls), one_reply=True)


class Decays(FedAvg):
    """Sends a learning rate that depends on the round, and remembers something."""

    best = 0

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.5**server_round
        return super().configure_train(server_round, arrays, config, grid)

    def summary(self):
        raise AssertionError


class Keeps(FedAdam):
    """Looks at what comes out, as the guides of Flower do to keep the best model."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.seen = [*getattr(self, "seen", []), (server_round, len(replies))]
        return super().aggregate_train(server_round, replies)


class Own(Strategy):
    """A strategy from scratch."""

    def configure_train(self, server_round, arrays, config, grid):
        record = RecordDict({"arrays": arrays, "config": config})
        return [Message(record, dst_node_id=n, message_type="train") for n in grid.get_node_ids()]

    def aggregate_train(self, server_round, replies):
        return next(iter(replies)).content["arrays"], None

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self): ...


def test_a_subclass_is_taken_unless_it_combines_replies_and_then_by_declaration():
    private(Decays(**NODES))
    for made in (Keeps(**NODES), Own()):
        with pytest.raises(PrivacyError, match=rf"{type(made).__name__}.*one_reply=True"):
            private(made)
    kept = Keeps(**NODES)
    private(kept, one_reply=True).start(DirectGrid(adds_a_tenth()), initial())
    assert kept.seen == [(1, 1), (2, 1), (3, 1)]
    result = private(Own(), quiet_plan(rounds=1), one_reply=True).start(DirectGrid(adds_a_tenth()), initial())
    assert result.arrays
    patched = FedAvg(**NODES)
    patched.aggregate_train = lambda server_round, replies: (None, None)
    with pytest.raises(PrivacyError, match="one_reply=True"):
        private(patched)


def test_a_subclass_of_a_refused_strategy_and_what_is_no_strategy_are_refused():
    with pytest.raises(PrivacyError, match="FedMedian"):
        private(any_instance(type("Mine", (flowers.FedMedian,), {})), one_reply=True)
    with pytest.raises(PrivacyError, match="FedMedian"):  # whose aggregate_train it has
        private(any_instance(type("Mixed", (flowers.FedProx, flowers.FedMedian), {})))
    with pytest.raises(PrivacyError, match="private already"):
        private(private(FedAvg(**NODES)), one_reply=True)
    with pytest.raises(TypeError, match=r"flwr\.serverapp\.strategy"):
        private(object())


@pytest.mark.parametrize("level", ["client", "parallel", "joint"])
def test_a_proximal_term_is_refused_where_clients_do_not_have_it(level):
    private(FedProx(**NODES), plan_for(level))
    if level == "client":
        private(FedProx(**NODES, proximal_mu=0.1), plan_for(level))
    else:
        with pytest.raises(PrivacyError, match=r"proximal term.*FedAvg"):
            private(FedProx(**NODES, proximal_mu=0.1), plan_for(level))


def test_a_strategy_that_sends_clients_different_things_is_refused_before_the_charge(tmp_path):
    class Different(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                told = ConfigRecord({"lr": message.metadata.dst_node_id / 10})
                content = RecordDict({"arrays": arrays, "config": told})
                yield Message(content, dst_node_id=message.metadata.dst_node_id, message_type="train")

    strategy = private(Different(**NODES), run_dir=tmp_path / "run")
    with pytest.raises(PrivacyError, match="different messages"):
        strategy.start(DirectGrid(adds_a_tenth()), initial())
    assert charged(strategy) == 0


def test_a_metrics_function_of_the_app_does_not_meet_the_stand_in():
    def losses(contents, key):
        return MetricRecord({"loss": max(c["metrics"]["loss"] for c in contents)})

    inner = FedAvg(**NODES, train_metrics_aggr_fn=losses)
    result = private(inner).start(DirectGrid(adds_a_tenth()), initial())
    assert not result.train_metrics_clientapp
    told = private(inner, quiet_plan(client_metrics=True)).start(DirectGrid(adds_a_tenth()), initial())
    assert told.train_metrics_clientapp[3]["loss"] == 0.25
    assert inner.train_metrics_aggr_fn is losses


def charged(strategy: PrivateStrategy) -> int:
    return sum(run["charged"] for run in strategy.server.ledgers[0].runs().values())


# Arrays that are no parameters.


def normalised() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


class Centred(torch.nn.Linear):
    """A layer with a floating-point buffer, which the server cannot tell from a parameter."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(4, 3)
        self.register_buffer("centre", torch.ones(4))

    def forward(self, x):
        return super().forward(x - self.centre)


class Tied(torch.nn.Module):
    """Two layers with one weight, which a state dict holds twice."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.front, self.back, self.top = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        self.back.weight = self.front.weight

    def forward(self, x):
        return self.top(self.back(self.front(x)))


class Words(torch.nn.Module):
    """An embedding, a frozen layer and a trained one."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.table, self.fixed, self.top = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        return self.top(self.fixed(self.table(x.round().abs().long().clamp(max=8)).mean(1)))


@pytest.mark.parametrize("level", ["client", "parallel"])
def test_buffers_are_refused_by_name_before_a_round_is_charged(level, tmp_path):
    strategy = strategy_for(plan_for(level), run_dir=tmp_path / "run")
    with pytest.raises(PrivacyError, match=r"1\.running_mean") as caught:
        strategy.start(DirectGrid(app_for(plan_for(level))), ArrayRecord(normalised().state_dict()))
    assert "named_parameters" in str(caught.value)
    assert not (tmp_path / "run").exists()
    counts = ArrayRecord({"weight": torch.zeros(2), "position_ids": torch.arange(3)})
    with pytest.raises(PrivacyError, match="position_ids"):
        strategy_for(plan_for(level)).configure_train(1, counts, ConfigRecord(), DirectGrid(app_for(plan_for(level))))


def test_the_parameters_of_a_model_with_buffers_are_trained_without_them():
    arrays = ArrayRecord(dict(normalised().named_parameters()))
    result = private(FedAvg(**NODES)).start(DirectGrid(adds_a_tenth()), arrays)
    assert set(result.arrays) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_a_client_that_answers_with_buffers_all_the_same_is_dropped_and_the_log_says_so(caplog):
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord(normalised().state_dict())}), reply_to=message)

    strategy = private(FedAvg(**NODES))
    strategy.open(ArrayRecord(dict(normalised().named_parameters())))
    with caplog.at_level("WARNING", "flwr"):
        one_round(strategy, DirectGrid(app))
    assert len([r for r in caplog.records if "other arrays than the model's" in r.getMessage()]) == CLIENTS


def app_of(plan, network) -> ClientApp:
    app = ClientApp(mods=[instance_privacy(plan, model=network, loss_fn=LOSS, data=held, panel=2, rng=3)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise AssertionError

    return app


@pytest.mark.parametrize(
    ("arrays", "network", "told"),
    [
        (lambda: ArrayRecord(Centred().state_dict()), Centred, "centre"),
        (lambda: ArrayRecord({"weight": model().weight}), model, "bias"),
        (lambda: ArrayRecord(Tied().state_dict()), Tied, r"back\.weight"),
        (lambda: ArrayRecord(dict(normalised().named_parameters())), normalised, "BatchNorm1d at '1'"),
    ],
    ids=["a buffer", "a parameter missing", "a tied weight twice", "a layer that mixes records"],
)
def test_what_only_clients_can_see_is_refused_by_them_before_a_round_is_charged(arrays, network, told, tmp_path):
    plan = plan_for("parallel")
    strategy = strategy_for(plan, run_dir=tmp_path / "run")
    with pytest.raises(PrivacyError, match=told):
        strategy.start(DirectGrid(app_of(plan, network)), arrays())
    assert charged(strategy) == 0


def test_a_client_that_is_asked_to_train_buffers_keeps_no_trace_and_sends_nothing():
    plan = plan_for("parallel")
    grid, arrays = DirectGrid(app_of(plan, Centred)), ArrayRecord(dict(Centred().named_parameters()))
    asked = next(iter(strategy_for(plan).configure_train(1, arrays, ConfigRecord(), grid)))
    asked.content["arrays"] = ArrayRecord(Centred().state_dict())
    assert "centre" in grid._one(asked).error.reason
    assert not grid.contexts[asked.metadata.dst_node_id].state
    asked.content["arrays"] = arrays
    assert not grid._one(asked).has_error()


@pytest.mark.parametrize("level", ["parallel", "joint"])
def test_frozen_parameters_and_embeddings_are_no_buffers(level):
    plan = plan_for(level, client_rate=1.0, rounds=1)
    before, grid = ArrayRecord(Words().state_dict()), DirectGrid(app_of(plan, Words))
    strategy = strategy_for(plan, record_panel=0)
    strategy.open(before)
    arrays = one_round(strategy, grid)
    moved = {k for k, a in arrays.items() if not np.array_equal(a.numpy(), before[k].numpy())}
    assert {"table.weight", "top.weight", "top.bias"} <= moved
    assert level == "joint" or "fixed.weight" not in moved


# A strategy's own start, attributes and round numbers.


def test_a_strategy_with_a_start_of_its_own_is_refused():
    class Starts(FedAvg):
        def start(self, *args, **kwargs):
            raise AssertionError

    for declared in (False, True):
        with pytest.raises(PrivacyError, match=r"start.*evaluate_fn"):
            private(Starts(**NODES), one_reply=declared)


def test_attributes_of_the_inner_strategy_are_read_and_set_through_the_wrapper():
    inner = FedAdam(**NODES, eta=0.5)
    strategy = private(inner)
    assert strategy.eta == 0.5
    strategy.eta = 0.25
    assert (inner.eta, "eta" in vars(strategy)) == (0.25, False)
    strategy.timeout = 7.0
    assert not hasattr(inner, "timeout")
    with pytest.raises(AttributeError, match="no_such_name"):
        strategy.no_such_name  # noqa: B018
    assert copy.copy(strategy).eta == 0.25


def told(into: list) -> DirectGrid:
    """Return a grid that notes what clients are told, in every round once: Flower's loop uses one config for all."""

    def note(message, reply):
        if "config" in message.content and message.metadata.dst_node_id == 100:
            into.append((message.content["config"]["server-round"], message.content["config"]["lr"]))
        return reply

    return DirectGrid(adds_a_tenth(), tamper=note)


def test_round_numbers_and_schedules_go_on_after_a_resume(tmp_path):
    plan, shown = quiet_plan(rounds=4, client_metrics=True), []

    class Both(Decays, Keeps):
        def aggregate_evaluate(self, server_round, replies):
            shown.append(("evaluate", server_round))

    def show(number, arrays):
        shown.append(("shown", number))
        return MetricRecord({"number": number})

    first, second, sent = Both(**NODES), Both(**NODES), []
    options = {"run_dir": tmp_path / "run", "one_reply": True}
    private(first, plan, **options).start(told(sent), initial(), num_rounds=2)
    result = private(second, plan, **options, rng=None).start(told(sent), initial(), evaluate_fn=show)
    assert sent == [(1, 0.5), (2, 0.25), (3, 0.125), (4, 0.0625)]
    assert (first.seen, second.seen) == ([(1, 1), (2, 1)], [(3, 1), (4, 1)])
    assert [n for what, n in shown if what == "shown"] == [2, 3, 4]
    assert [n for what, n in shown if what == "evaluate"] == [1, 2, 3, 4]
    assert {k: v["number"] for k, v in result.evaluate_metrics_serverapp.items()} == {2: 2, 3: 3, 4: 4}
    assert list(result.train_metrics_clientapp) == [3, 4]


def test_numbers_that_a_strategy_changes_from_round_to_round_are_kept(tmp_path):
    class Shrinks(FedAvgM):
        def aggregate_train(self, server_round, replies):
            self.server_learning_rate *= 0.5
            return super().aggregate_train(server_round, replies)

    plan, options = quiet_plan(rounds=4), {"run_dir": tmp_path / "run", "one_reply": True}
    private(Shrinks(**NODES), plan, **options).start(DirectGrid(adds_a_tenth()), initial(), num_rounds=2)
    again = Shrinks(**NODES, server_momentum=0.5)
    private(again, plan, **options, rng=None).open(initial())
    assert (again.server_learning_rate, again.server_momentum) == (0.25, 0.5)


# More nodes than the plan has clients.


@pytest.mark.parametrize("named", [False, True])
def test_nodes_above_the_plans_number_are_not_enrolled_and_those_known_stay(named, tmp_path, caplog):
    plan = plan_for("client", client_rate=1.0, rounds=4)
    small, large = (DirectGrid(app_for(plan), clients=n) for n in (CLIENTS, CLIENTS + 2))
    large.contexts = {50: large.contexts.pop(107), **large.contexts}  # a new node whose number sorts first
    first = strategy_for(plan, named=named, run_dir=tmp_path / "run")
    one_round(first, small)
    known = set(first.server.participations)
    del first  # the process that had the folder is gone
    again = strategy_for(plan, named=named, run_dir=tmp_path / "run", rng=None)
    with caplog.at_level("WARNING", "flwr"):
        one_round(again, large)
        one_round(again, large)
    assert (again.server.taken, again.server.participations) == (3, dict.fromkeys(known, 3))
    assert len([r for r in caplog.records if "not enrolled" in r.getMessage()]) == 1
    del large.contexts[100]  # a place becomes free, and one of those who wait takes it
    one_round(again, large)
    assert len(again.server.participations) == CLIENTS + 1
    assert sum(again.server.participations.values()) == 4 * CLIENTS


# Looking at a label in the middle of a round.


@pytest.mark.parametrize("level", ["client", "joint"])
def test_l18_a_label_in_an_open_round_changes_nothing(level, tmp_path):
    plan, after = plan_for(level, client_rate=1.0), []
    for looks in (False, True):
        grid = DirectGrid(app_for(plan))
        strategy = strategy_for(plan, panel=3, run_dir=tmp_path / f"run{looks}")

        def look(strategy=strategy, grid=grid):
            before, asked = standing(strategy.server), len(grid.log)
            label = strategy.label()
            strategy.summary()
            assert standing(strategy.server) == before
            assert len(grid.log) == asked
            assert dict(label.readings.facts)["Rounds taken"].startswith(f"2 of {plan.rounds}")  # it was charged

        one_round(strategy, grid)
        arrays = one_round(strategy, grid, look if looks else None)
        assert (strategy.server.taken, strategy.server.lost) == (2, 0)
        found = standing(strategy.server)
        del found["heads"]  # of two ledgers
        after.append((found, {k: a.numpy() for k, a in arrays.items()}))
    np.testing.assert_equal(after[0], after[1])
