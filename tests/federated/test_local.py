"""A federation in one process: seeds, run directories, kills, labels."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from tacita import runs
from tacita._check import PrivacyError
from tacita.federated import Client, Federation, Local, Task, federation_plan
from tacita.federated.labels import rests_on
from tacita.federated.local import client_name, named
from tacita.federated.storage import label_of_run
from tacita.ledger import Ledger

loss_fn = nn.functional.cross_entropy
LEVELS = ("client", "parallel", "sequential", "joint")


def make_data(clients=5, records=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = [torch.randint(0, 2, (records,), generator=generator) for _ in range(clients)]
    return [(torch.randn(records, 4, generator=generator) + 2.0 * (2 * y[:, None] - 1), y) for y in labels]


def make_plan(level, **settings):
    given = {"clients": 5, "client_rate": 1.0, "rounds": 3}
    if level != "client":
        given |= {"record_clip_norm": 1.0, "record_rate": 0.05, "local_batch": 10}
    noise = "noise_multiplier" if level in ("client", "joint") else "record_noise_multiplier"
    return federation_plan(level=level, **{**given, noise: 2.0, **settings})


def make(level, data=None, *, model=None, **settings):
    torch.manual_seed(0)
    plan = settings.pop("plan", None) or make_plan(level)
    given = {"seed": 4, "panel": 3, "record_panel": 4, "local": Local(learning_rate=0.1)}
    return Federation(model or nn.Linear(4, 2), loss_fn, data or make_data(), plan, **{**given, **settings})


def weights(federation):
    return torch.cat([p.detach().flatten() for p in federation.model.parameters()]).numpy()


@pytest.mark.parametrize("level", LEVELS)
def test_a_seed_repeats_a_federation_and_another_does_not(level):
    plan = make_plan(level, client_rate=1.0 if level == "sequential" else 0.6)
    one, same, other = (make(level, plan=plan, seed=seed, dropout=0.2, record_panel=0).run() for seed in (4, 4, 5))
    assert np.array_equal(weights(one), weights(same))
    assert not np.array_equal(weights(one), weights(other))
    assert one.server.participations == same.server.participations
    unseeded = [weights(make(level, seed=None, record_panel=0).run()) for _ in range(2)]
    assert not np.array_equal(*unseeded)


@pytest.mark.parametrize("level", LEVELS)
def test_f12_constants_are_bit_identical_for_neighbouring_data(level):
    """One record less in a client, or one client less: nothing that is declared or shown to the public changes."""
    plan, data = make_plan(level), make_data()
    fewer = [(data[0][0][1:], data[0][1][1:]), *data[1:]] if level in ("parallel", "sequential") else data[1:]
    federations = [make(level, d, plan=plan, panel=0, record_panel=0).run() for d in (data, fewer)]
    for field in ("divisor", "shares", "total_noise", "share_noise", "client_rate", "rounds"):
        assert len({getattr(f.plan, field) for f in federations}) == 1
    one, other = (f.label().public().to_dict() for f in federations)
    assert one == other


@pytest.mark.parametrize("level", LEVELS)
def test_a_client_that_loses_its_only_record_stops_nothing_and_shows_on_no_page(level):
    pages = []
    for kept in (1, 0):
        data = make_data(clients=3)
        data[0] = tuple(t[:kept] for t in data[0])
        federation = make(level, data, plan=make_plan(level, clients=3), seed=None).run()
        assert federation.server.taken == 3
        if level == "sequential":  # the quickest label
            pages.append(federation.label().public().to_dict())
    assert all(page == pages[0] for page in pages)


@pytest.mark.parametrize("empty", [[], (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))])
@pytest.mark.parametrize("level", LEVELS)
def test_a_client_without_records_sends_noise_alone_or_zeros(level, empty):
    plan = make_plan(level)
    task = Task(nn.Linear(4, 2), loss_fn)
    client = Client("a", task, empty, plan, panel=4, seed=3)
    update = torch.cat([v.flatten() for v in client.update(task.parameters, 1).values()])
    assert bool((update == 0).all()) == (level == "client")
    if level in ("parallel", "joint"):
        assert client.account.epsilons(1) == [0.0, 0.0]


@pytest.mark.parametrize("level", LEVELS)
def test_a_label_is_the_same_from_the_run_directory(level, tmp_path):
    federation = make(level, run_dir=tmp_path / "run").run()
    label = federation.label()
    assert label_of_run(tmp_path / "run") == label
    assert label.worst.unit == ("client" if level in ("client", "joint") else "record")
    assert (tmp_path / "run" / "label.html").is_file()
    if level == "joint":
        for name, unit in (("ledger.sqlite", "client"), ("record-ledger.sqlite", "record")):
            with Ledger.open(tmp_path / "run" / name) as ledger:
                assert (ledger.unit, ledger.charged(federation.server.identity)) == (unit, 3)


@pytest.mark.parametrize("level", ["client", "joint"])
def test_an_interrupted_federation_goes_on_and_a_clean_one_loses_nothing(level, tmp_path):
    federation = make(level, run_dir=tmp_path / "run")
    federation.advance()
    before, members = weights(federation), federation.server.measured.members
    del federation
    again = Federation.resume(
        tmp_path / "run", nn.Linear(4, 2), loss_fn, make_data(), local=Local(learning_rate=0.1), record_panel=4
    )
    assert np.array_equal(weights(again), before)
    assert (again.server.taken, again.server.lost, again.server.measured.members) == (1, 0, members)
    again.run()
    assert (again.server.taken, again.server.lost, again.status) == (3, 0, "done")
    assert [ledger.charged(again.server.identity) for ledger in again.server.ledgers] == [3] * len(again.server.ledgers)


KILLED = """
import os, sys
import torch
from torch import nn
from tacita.federated import Client, Federation, federation_plan

torch.manual_seed(0)
torch.set_num_threads(1)
where, level = sys.argv[1:]
settings = {"noise_multiplier": 2.0} if level in ("client", "joint") else {"record_noise_multiplier": 2.0}
if level != "client":
    settings |= {"record_clip_norm": 1.0, "record_rate": 0.05, "local_batch": 10}
plan = federation_plan(level=level, clients=5, client_rate=1.0, rounds=3, **settings)
data = [(torch.randn(12, 4), torch.randint(0, 2, (12,))) for _ in range(5)]
loss_fn = nn.functional.cross_entropy
federation = Federation(nn.Linear(4, 2), loss_fn, data, plan, run_dir=where, panel=0, record_panel=0)
federation.advance()
update = Client.update

def killed(self, parameters, number):
    if self.name.endswith("3"):
        os._exit(9)
    return update(self, parameters, number)

Client.update = killed
federation.advance()
"""


@pytest.mark.parametrize("level", [pytest.param("client", marks=pytest.mark.slow), "joint"])
def test_l12_a_server_that_dies_in_a_round_charges_it_once_and_loses_it(level, tmp_path):
    where = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(KILLED), str(where), level]
    assert subprocess.run(command, env=environment, timeout=300, check=False).returncode == 9
    names = ["ledger.sqlite", "record-ledger.sqlite"] if level == "joint" else ["ledger.sqlite"]
    identity = runs.read_json(where, "run.json")["id"]
    for name in names:
        with Ledger.open(where / name) as ledger:
            assert ledger.charged(identity) == 2  # on disk before any client was asked
    assert dict(label_of_run(where).readings.facts)["Rounds taken"].startswith("2 of 3")
    federation = Federation.resume(where, nn.Linear(4, 2), loss_fn, make_data(), record_panel=0)
    assert (federation.server.taken, federation.server.lost) == (2, 1)
    assert federation.plan.rounds == 3
    federation.run()
    assert (federation.server.taken, federation.server.lost, federation.status) == (3, 1, "done")
    assert [ledger.charged(identity) for ledger in federation.server.ledgers] == [3] * len(names)
    assert federation.advance() is None
    label = federation.label()
    assert label.worst.epsilon == federation.plan.client_worst(3, 1e-5).epsilon  # the lost round counts
    if level == "joint":
        assert label.comparisons[0].epsilon == federation.plan.record_worst(3, 1e-5).epsilon
    assert dict(label.readings.facts)["Rounds lost to interruptions"] == "1"


def test_l5_an_edited_plan_is_refused(tmp_path):
    make("client", run_dir=tmp_path / "run", panel=0).run()
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    document["plan"]["noise_multiplier"] = 50.0
    runs.write_json(tmp_path / "run", "run.json", document)
    with pytest.raises(PrivacyError, match="froze"):
        label_of_run(tmp_path / "run")
    with pytest.raises(PrivacyError, match="froze"):
        Federation.resume(tmp_path / "run", nn.Linear(4, 2), loss_fn, make_data())


def test_l7_a_resumed_federation_has_other_noise(tmp_path):
    """Two resumptions of one seeded run: neither repeats the seed's next round, in which all noise is the clients'."""
    federation = make("sequential", run_dir=tmp_path / "run", record_panel=0)
    federation.advance()
    for copy in ("one", "two"):
        shutil.copytree(tmp_path / "run", tmp_path / copy)
    federation.advance()
    ends = [weights(federation)]
    for copy in ("one", "two"):
        again = Federation.resume(tmp_path / copy, nn.Linear(4, 2), loss_fn, make_data(), record_panel=0)
        again.advance()
        ends.append(weights(again))
    assert not any(np.allclose(ends[i], ends[j], atol=1e-4) for i, j in ((0, 1), (0, 2), (1, 2)))


class Noise(nn.Module):
    """A model whose loss is zero for every record: it moves by noise alone."""

    def __init__(self, size=2000):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return torch.zeros(len(x), 2) + 0.0 * self.w.sum()


@pytest.mark.stat
@pytest.mark.parametrize("dropout", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("level", ["client", "sequential", "joint"])
@pytest.mark.filterwarnings("ignore:The gradient is exactly zero")  # noise is looked at alone
def test_l11_the_model_moves_by_the_promised_noise(level, dropout):
    """Real clients, with drop-outs: the noise in every round's mean is the plan's, divided by the declared divisor."""
    plan, model = make_plan(level, rounds=8, clip_norm=1.5), Noise()
    data = [(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))] * 5
    federation = make(level, data, plan=plan, model=model, dropout=dropout, panel=0, record_panel=0)
    last, squares = torch.zeros(2000), 0.0
    for _ in federation:
        moved = (model.w.detach() - last).double() * plan.divisor / plan.total_noise
        last, squares = model.w.detach().clone(), squares + float(moved.square().sum())
    assert 1e-6 < chi2.cdf(squares, 8 * 2000) < 1 - 1e-6
    assert chi2.cdf(0.9 * 8 * 2000, 8 * 2000) < 1e-6  # a tenth less variance would be seen


def test_parallel_counts_those_who_were_drawn_though_they_never_answer():
    federation = make("parallel", dropout=1.0, record_panel=0).run()
    assert set(federation.server.participations.values()) == {3}
    assert federation.label().worst.epsilon == federation.plan.record_worst(3, 1e-5).epsilon
    assert not np.isnan(weights(federation)).any()


def test_sequential_is_centralised_training_on_all_records():
    """Records by a coin of 1, hardly any noise: the model moves as by one clipped gradient step over the federation."""
    data = make_data()
    plan = make_plan("sequential", rounds=1, record_rate=1.0, record_noise_multiplier=0.01, clip_norm=100.0, divisor=6)
    federation = make("sequential", data, plan=plan)
    model = nn.Linear(4, 2)
    model.load_state_dict(federation.model.state_dict())
    total = torch.zeros(10)
    for x, y in ((x, y) for part in data for x, y in zip(*part, strict=True)):
        gradients = torch.autograd.grad(loss_fn(model(x[None]), y[None]), list(model.parameters()))
        one = torch.cat([g.flatten() for g in gradients])
        total += one / max(1.0, float(one.norm()))
    before = weights(federation)
    federation.run()
    noise = 0.01 * 1.0 / 10 / 6
    assert weights(federation) - before == pytest.approx(-total.numpy() / 10 / 6, abs=6 * noise)


def test_shared_ledgers_add_up_over_federations(tmp_path):
    for seed in (1, 2):
        make("client", ledger=tmp_path / "shared", seed=seed).run()
    with Ledger.open(tmp_path / "shared") as ledger:
        assert sum(run["charged"] for run in ledger.runs().values()) == 6
        assert ledger.spent(1e-5).unit == "client"
    with pytest.raises(PrivacyError, match="used this seed"):
        make("client", ledger=tmp_path / "shared", seed=1).run()
    with pytest.raises(PrivacyError, match="use another ledger"):
        make("parallel", ledger=tmp_path / "shared")


def checks_of(federation):
    """Return what the label rests on, without its figures, which take seconds."""
    return rests_on(federation.server, federation._kept.facts)


def test_a_label_says_which_charges_are_in_memory_only(tmp_path):
    def said(**settings):
        return next(c for c in checks_of(make("joint", **settings)) if c.text.startswith("Every round was charged"))

    own = tmp_path / "clients.sqlite"
    half = said(ledger=own)
    assert half.state == "open"
    assert "for records in memory only" in half.text
    assert said(ledger=own, record_ledger=tmp_path / "records.sqlite").state == "holds"


def test_a_form_that_was_taken_from_clients_records_is_an_open_check():
    pairs = [list(zip(*held, strict=True)) for held in make_data()]
    whole = [record for held in pairs for record in held]
    for clients, taken in ((make_data(), False), (pairs, True), ((whole, [np.arange(9), np.arange(9, 60)]), True)):
        federation = make("parallel", clients)
        assert [c.state for c in checks_of(federation) if c.code == "form-taken"] == ["open"] * taken


def test_clients_come_by_name_in_a_row_or_as_positions():
    data = make_data(2)
    assert list(named(data)) == [client_name(0), client_name(1)]
    assert list(named({"x": data[0]})) == ["x"]
    x, y = data[0]
    parts = named(((x, y), [np.array([0, 3]), np.array([5])]))
    assert [len(part) for part in parts.values()] == [2, 1]
    with pytest.raises(ValueError, match="at least one client"):
        named({})


def test_nothing_to_label_before_the_first_round():
    with pytest.raises(PrivacyError, match="nothing to label"):
        make("client").label()


def test_a_run_of_another_kind_is_refused(tmp_path):
    make("client", run_dir=tmp_path / "run", panel=0).run()
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    runs.write_json(tmp_path / "run", "run.json", {**document, "family": "training"})
    with pytest.raises(runs.RunError, match="not one of federation"):
        label_of_run(tmp_path / "run")


def test_a_client_that_fails_is_one_that_does_not_answer(monkeypatch):
    federation = make("joint", record_panel=0)
    broken = federation.clients[client_name(2)]
    monkeypatch.setattr(broken, "update", lambda parameters, number: 1 / 0)
    federation.advance()
    monkeypatch.undo()
    federation.run()
    assert (federation.server.taken, federation.server.lost) == (3, 0)
    assert federation.label().worst.epsilon == federation.plan.client_worst(3, 1e-5).epsilon


@pytest.mark.slow
def test_more_clients_than_one_exchange_takes_are_asked_in_groups(monkeypatch):
    monkeypatch.setattr("tacita.federated.measurements.MOST_CLIENTS", 4)
    declared = {"record_clip_norm": 1.0, "record_rate": 0.5, "local_batch": 5, "record_noise_multiplier": 2.0}
    plan = federation_plan(level="parallel", clients=9, client_rate=1.0, rounds=1, **declared)
    data = [(torch.randn(10, 3), torch.randint(0, 2, (10,))) for _ in range(9)]
    model = torch.nn.Linear(3, 2)
    federation = Federation(model, torch.nn.functional.cross_entropy, data, plan, record_panel=2, seed=0).run()
    label = federation.label()
    assert not federation.server.measured.unreported
    assert {g.unit for g in label.readings.typical} == {"record"}


class Viewed(nn.Module):
    """Flattens by `view`, which does not work where channels are laid out last."""

    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Conv2d(2, 3, 2), nn.Linear(27, 2)

    def forward(self, images):
        found = self.front(images)
        return self.back(found.view(len(found), -1))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Viewed, (2, 4, 4)),
        (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 2)), (1, 3, 3, 3)),
        (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 2)), (2, 4, 4)),
    ],
)
def test_models_of_all_layouts_train(make, shape):
    data = [(torch.randn(6, *shape), torch.randint(0, 2, (6,))) for _ in range(3)]
    plan = federation_plan(level="client", clients=3, client_rate=1.0, rounds=1, clip_norm=1e3, noise_multiplier=0.01)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = Task(deepcopy(model), nn.functional.cross_entropy)
    update = Client("000000", task, data[0], plan, seed=0).update(task.parameters, 1)
    nn.functional.cross_entropy(model(data[0][0]), data[0][1]).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(update[name], -parameter.grad, rtol=1e-4, atol=1e-6)
        assert torch.equal(before[name], parameter.detach())


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


class Counts(nn.Linear):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def test_buffers_do_not_move_and_those_that_would_are_refused():
    for model, told in ((Counts(), "Buffer 'calls' changes"), (normalised(), "BatchNorm1d at '1'")):
        with pytest.raises(PrivacyError, match=told):
            make("client", model=model)
    fixed = normalised().eval()
    before = {name: buffer.clone() for name, buffer in fixed.named_buffers()}
    make("client", model=fixed).run()
    assert all(torch.equal(buffer, before[name]) for name, buffer in fixed.named_buffers())


@pytest.mark.parametrize("level", ["client", "joint"])
def test_what_the_optimizer_does_not_hold_is_frozen(level):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    before = {name: p.clone() for name, p in model.named_parameters()}
    top = torch.optim.SGD(model[1].parameters(), lr=1.0)
    make(level, model=model, optimizer=top).run()
    assert {n for n, p in model.named_parameters() if not torch.equal(p, before[n])} == {"1.weight", "1.bias"}


def standing(server):
    """Return everything that a server knows, to compare."""
    tensors, document = server.state()
    panels = {kind: {name: value.tolist() for name, value in part.items()} for kind, part in tensors.items()}
    return {"followed": panels, "open": server.open_round, **deepcopy(document)}


def test_b5_clients_whose_norms_change_along_their_enrolment_are_warned_about():
    def run(seed, drift):
        size = torch.linspace(0.2, 1.0, 40) if drift else torch.ones(40)
        data = [(size[i] * x, y) for i, (x, y) in enumerate(make_data(40, seed=seed))]
        plan = make_plan("client", clients=40, clip_norm=5.0, rounds=1)
        return make("client", data, plan=plan, panel=40, seed=seed).run()

    def ordered(made):
        return made.server.measured.panels["training"].ordered()

    assert all(ordered(run(seed, drift=True)) for seed in range(5))
    assert sum(ordered(run(seed, drift=False)) for seed in range(5)) <= 1
    assert [check.state for check in run(0, drift=True).label().readings.checks] == ["warning"]


def test_l18_looking_at_a_label_closes_no_round_and_changes_no_status(tmp_path):
    broken = []

    def training(parameters, records, memory, random):
        if broken:
            raise OSError
        return {name: torch.full_like(p, 0.1) for name, p in parameters.items()}, memory

    plan = make_plan("client", rounds=4)
    federation = Federation(nn.Linear(4, 2), None, make_data(), plan, local=training, run_dir=tmp_path / "run", seed=3)
    federation.advance()
    broken.append(True)
    with pytest.raises(RuntimeError, match=r"No client could compute its update \(OSError\)"):
        federation.advance()
    before = standing(federation.server)
    labels = [federation.label() for _ in range(2)]
    assert labels[0] == labels[1]
    assert dict(labels[0].readings.facts)["Rounds taken"].startswith("2 of 4")  # the open round was charged
    assert standing(federation.server) == before
    broken.clear()
    assert federation.advance().number == 3
    assert (federation.server.taken, federation.server.lost) == (3, 1)
    federation.pause()
    again = Federation.resume(tmp_path / "run", nn.Linear(4, 2), None, make_data(), local=training)
    again.label()
    assert again.status == "resumed"
    assert again.run().status == "done"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["facts"]["status"] == "done"
