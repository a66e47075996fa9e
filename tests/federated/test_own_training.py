"""A training of one's own in the place of plain SGD: what a client remembers stays with it, and costs nothing more."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import norm
from torch import nn

import tacita
from tacita import PrivacyError, runs
from tacita.federated import Federation, Task, federation_plan
from tacita.federated.storage import kept_memory
from tests.cli.command import tacita as tacita_command

CLIENTS = 4


class Counting:
    """Moves every parameter by a hundredth for each round it was in, and remembers how many those were."""

    def __call__(self, parameters, records, memory, random):
        times = memory.get("times", torch.zeros(())) + 1.0
        last = torch.full((3,), random.random())
        return {n: torch.full_like(p, 0.01 * float(times)) for n, p in parameters.items()}, {
            "times": times,
            "last": last,
        }


def model():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def holdings(names=range(CLIENTS)):
    return {str(n): (torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64)) for n in names}


def plan(**changes):
    settings = {"level": "client", "clients": CLIENTS, "client_rate": 0.5, "rounds": 6, "noise_multiplier": 1.0}
    return federation_plan(**{**settings, **changes})


def times(federation):
    return {n: int(c.memory.get("times", 0)) for n, c in federation.clients.items()}


def federation(network=None, **changes):
    options = {"plan": plan(), "clients": holdings(), "run_dir": None, **changes}
    return Federation(network or model(), None, local=Counting(), panel=0, seed=1, **options)


def test_a_client_remembers_the_rounds_that_it_was_in():
    made = federation().run()
    assert times(made) == {n: made.server.participations.get(n, 0) for n in holdings()}
    assert len(set(times(made).values())) > 1


def test_what_clients_remember_is_theirs_and_outlives_a_stop(tmp_path):
    folder = tmp_path / "run"
    made = federation(plan=plan(client_rate=1.0), run_dir=folder)
    for now in made:
        if now.number == 2:
            break
    assert not any(word in repr(runs.Run(folder).load()[0]) for word in ("times", "last"))
    assert {int(kept_memory(folder, n)["times"]) for n in holdings()} == {2}
    assert len({float(kept_memory(folder, n)["last"][0]) for n in holdings()}) == CLIENTS
    again = Federation.resume(folder, model(), None, holdings(), local=Counting())
    assert times(again) == dict.fromkeys(holdings(), 2)
    again.run()
    assert times(again) == dict.fromkeys(holdings(), 6)


def test_a_clients_name_is_no_path(tmp_path):
    names = ("../../outside", "a/b", "..", "x" * 300)
    federation(clients=holdings(names), plan=plan(client_rate=1.0, rounds=1), run_dir=tmp_path / "run").run()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert all(kept_memory(tmp_path / "run", name)["times"] == 1.0 for name in names)


def test_the_weights_of_a_federation_are_written_alone(tmp_path):
    """When it is finished, and on request from the first round on; what clients remember is not in them."""
    made = federation(plan=plan(rounds=2), run_dir=tmp_path / "run")
    assert tacita_command("export", tmp_path / "run").returncode == 2  # nothing was released
    made.advance()
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert tacita_command("export", tmp_path / "run", tmp_path / "w").returncode == 0
    made.run()
    assert load_file(tmp_path / "w").keys() == made.model.state_dict().keys()
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in made.model.state_dict().items())


def test_damaged_memory_is_refused(tmp_path):
    federation(plan=plan(client_rate=1.0), run_dir=tmp_path / "run").advance()
    damaged = next((tmp_path / "run" / "clients").rglob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(runs.RunError, match="damaged"):
        Federation.resume(tmp_path / "run", model(), None, holdings(), local=Counting())


def test_it_is_for_level_client_and_a_loss_is_needed_without_it():
    records = {"record_clip_norm": 1.0, "record_rate": 0.5, "local_batch": 3}
    with pytest.raises(PrivacyError, match="is for level 'client'"):
        federation(plan=plan(level="parallel", noise_multiplier=None, record_noise_multiplier=1.0, **records))
    with pytest.raises(TypeError, match="loss_fn is needed"):
        Task(model(), None)
    with pytest.raises(PrivacyError, match="no loss"):
        Task(model(), None, Counting()).loss(dict(model().named_parameters()), (torch.zeros(4), torch.zeros(())))


def test_the_worst_case_holds_for_a_client_whose_updates_depend_on_when_it_was_drawn():
    """Two rounds by numerical integration: the second update is chosen by whether the first round had the client."""
    p, sigma, delta = 0.4, 0.8, 1e-3
    claimed = tacita.worst_case(sample_rate=p, noise_multiplier=sigma, steps=2, delta=delta).epsilon
    y = np.linspace(-9.0, 10.0, 1200)
    cell = (y[1] - y[0]) ** 2
    density = {u: norm.pdf(y, u, sigma) for u in (-1.0, 0.0, 0.3, 1.0)}
    without = np.outer(density[0.0], density[0.0])
    reached = []
    for was_in, was_out in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 0.0), (0.3, 1.0)):
        second = {u: (1 - p) * density[0.0] + p * density[u] for u in (was_in, was_out)}
        within = (1 - p) * np.outer(density[0.0], second[was_out]) + p * np.outer(density[1.0], second[was_in])
        assert within.sum() * cell == pytest.approx(1.0, abs=1e-9)
        for one, other in ((within, without), (without, within)):
            reached.append(float(np.maximum(one - np.exp(claimed) * other, 0.0).sum() * cell))
    assert max(reached) <= delta * (1 + 1e-6)
    assert max(reached) > 0.9 * delta  # the same update every time is the worst, and is met


def test_flower_keeps_it_in_the_clients_own_state_and_agrees_with_the_local_engine(monkeypatch):
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    from tacita.federated import PrivateStrategy, named_client
    from tacita.federated.flower_client import kept_memory as kept_in
    from tacita.federated.flower_client import local_training
    from tests.federated.test_flower import DirectGrid

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    names = [f"{i:06d}" for i in range(CLIENTS)]
    app = ClientApp(mods=[named_client])

    @app.train()
    def train(message, context):
        return local_training(message, context, plan(), model(), None, lambda _: holdings()["0"], Counting(), seed=1)

    seen = []
    grid = DirectGrid(app, CLIENTS, tamper=lambda _, reply: seen.append(reply) or reply)
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy = PrivateStrategy(inner, plan=plan(), named=True, seed=1)
    result = strategy.start(grid, ArrayRecord(model().state_dict()))
    network = model()
    local = federation(network, clients=holdings(names)).run()
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), network.state_dict()[name].numpy(), atol=1e-6)
    memories = [kept_in(context) for context in grid.contexts.values()]
    assert [int(m.get("times", 0)) for m in memories] == list(times(local).values())
    arrays = [a for reply in seen for record in reply.content.array_records.values() for a in record.items()]
    assert arrays
    assert {name for name, _ in arrays} == set(network.state_dict())
