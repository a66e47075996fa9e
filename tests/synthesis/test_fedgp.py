"""FedGP: critics stay with their clients, updates are clipped, noised and charged, or nothing is promised."""

import copy
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from typer.main import get_command

import tacita
from tacita import runs
from tacita._check import PrivacyError
from tacita.cli import app
from tacita.federated import Federation, FederationPlan, Server, federation_plan
from tacita.federated.recipes import Recipe
from tacita.federated.storage import declare_end, kept_memory
from tacita.federated.updates import norm_of
from tacita.ledger import Ledger
from tacita.synthesis import fedgp
from tacita.synthesis.fedgp import FedGP, federate_generator, held_records, ready, resume_generator
from tacita.synthesis.fedgp_client import GanTraining, OwnClasses
from tacita.synthesis.gan import sample
from tacita.synthesis.influence import average_case
from tacita.synthesis.students import student
from tacita.training.records import Records

SMALL = FedGP(clients=4, size=40, rounds=2, batch_size=8, critic_steps=1, width=3, seed=3)
PRIVATE = replace(SMALL, noise_multiplier=1.5, client_rate=0.75, clip_norm=0.2)
STEPS = 5  # of a critic in a round: 40 records in batches of 8


def flat(parameters):
    return torch.cat([p.detach().double().flatten() for p in parameters])


def critics_of(folder, recipe=SMALL):
    return {name: kept_memory(folder, name) for name in ready(recipe).holdings}


def accuracy(generator, recipe, count=1000):
    data = ready(recipe).dataset
    test = torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets)
    made = sample(generator, count, rng=np.random.default_rng(1))
    return student(made, test, 10, rng=np.random.default_rng(2), steps=60)


def charged(folder):
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return sum(run["charged"] for run in ledger.runs().values())


# What a client does.


def a_round(memory=None, recipe=SMALL, client="000000", seed=0):
    this = ready(recipe)
    parameters = {n: p.detach() for n, p in this.model().named_parameters()}
    random = np.random.default_rng(seed)
    return this.local(parameters, this.holdings[client], memory or {}, random)


def test_a_critic_goes_on_where_it_was_left():
    first = a_round()[1]
    second = a_round(first)[1]
    assert {float(v) for k, v in first.items() if k.startswith("step.")} == {STEPS}
    assert {float(v) for k, v in second.items() if k.startswith("step.")} == {2 * STEPS}
    still = replace(SMALL, learning_rate=1e-9)
    kept = a_round(first, still, seed=5)[1]
    anew = a_round({}, still, seed=5)[1]
    critic = [name for name in first if name.startswith("critic.")]
    assert all(torch.allclose(kept[n], first[n], atol=1e-6) for n in critic)
    assert not any(torch.allclose(anew[n], first[n], atol=1e-3) for n in critic)


def test_a_client_takes_as_many_steps_as_it_is_told():
    memory = a_round(recipe=replace(SMALL, local_steps=3, critic_steps=2))[1]
    assert {float(v) for k, v in memory.items() if k.startswith("step.")} == {6.0}
    with pytest.raises(ValueError, match="local_steps"):
        replace(SMALL, local_steps=0)


def test_moments_of_the_critics_optimiser_are_taken_up():
    first = a_round()[1]
    wrong = {n: torch.full_like(v, 1e6) if n.startswith("exp_avg_sq") else v for n, v in first.items()}
    after = a_round(wrong)[1]
    far = max(float((after[n] - first[n]).abs().max()) for n in first if n.startswith("critic."))
    assert 0.0 < far < 1e-4  # such moments stop it


def test_updates_are_by_how_much_the_generator_moved_and_not_the_critic():
    update, memory = a_round()
    parameters = dict(ready(SMALL).model().named_parameters())
    assert {n: u.shape for n, u in update.items()} == {n: p.shape for n, p in parameters.items()}
    assert 0.0 < norm_of(update) < 10.0
    assert not set(update) & set(memory)


def test_a_client_trains_on_its_own_classes_alone(monkeypatch):
    recipe = replace(SMALL, split="class")
    asked = set()
    forward = OwnClasses.forward

    def spy(self, z, labels):
        asked.update(self.own[labels].tolist())
        return forward(self, z, labels)

    monkeypatch.setattr(OwnClasses, "forward", spy)
    for client, records in ready(recipe).holdings.items():
        asked.clear()
        own = set(records.take(np.arange(len(records)))[1].tolist())
        memory = a_round(recipe=recipe, client=client)[1]
        assert asked == own == set(memory["classes"].tolist())
        assert 1 <= len(own) <= 2
        assert memory["critic.of_class.weight"].shape[1] == len(own)


def test_a_client_whose_classes_changed_begins_a_new_critic():
    two = a_round(recipe=replace(SMALL, split="class"))[1]
    again = a_round(two)[1]
    assert {float(v) for k, v in again.items() if k.startswith("step.")} == {STEPS}


def test_a_training_that_falls_apart_moves_nothing_and_is_forgotten():
    training, memory = ready(SMALL).local, a_round()[1]
    inputs, labels = torch.full((20, 1, 8, 8), math.nan), torch.arange(20) % 10
    parameters = {n: p.detach() for n, p in ready(SMALL).model().named_parameters()}
    update, kept = training(parameters, Records((inputs, labels)), memory, np.random.default_rng(0))
    assert norm_of(update) == 0.0
    assert kept is memory


@pytest.mark.parametrize(("shape", "blocks"), [((7,), (1, 4, 2)), ((1, 16, 16), ())])
def test_tables_and_larger_images(shape, blocks):
    training = GanTraining(SMALL, shape, 3, blocks)
    generator = training.generator(np.random.default_rng(0))
    inputs, labels = sample(generator, 30, rng=np.random.default_rng(1))
    parameters = {n: p.detach() for n, p in generator.named_parameters()}
    update, _ = training(parameters, Records((inputs, labels)), {}, np.random.default_rng(2))
    assert 0.0 < norm_of(update) < 10.0


def test_a_clients_round_leaves_torchs_own_randomness_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    a_round()
    assert torch.equal(torch.rand(1), expected)


# With noise: a guarantee for clients.


@pytest.fixture(scope="module")
def private_run(tmp_path_factory):
    """One private run, with what the ledger had been charged whenever a client was asked."""
    folder, seen = tmp_path_factory.mktemp("private") / "run", []
    with pytest.MonkeyPatch.context() as patch:
        call = GanTraining.__call__
        patch.setattr(GanTraining, "__call__", lambda self, *a: seen.append(charged(folder)) or call(self, *a))
        rounds = []
        generator, label = federate_generator(PRIVATE, folder, progress=lambda n, *_: rounds.append(n))
    return folder, generator, label, seen, rounds


def test_the_label_is_that_of_the_client_level_mechanism(private_run):
    _, _, label, _, _ = private_run
    oracle = tacita.worst_case(sample_rate=0.75, noise_multiplier=1.5, steps=2, delta=PRIVATE.delta)
    assert (label.worst.unit, label.worst.epsilon, label.worst.delta) == ("client", oracle.epsilon, PRIVATE.delta)
    texts = [check.text for check in label.public().checks]
    assert any("stay with their clients" in text for text in texts)
    assert any("server is trusted" in text for text in texts)


def test_the_label_of_the_folder_is_the_one_that_was_written(private_run):
    folder, _, label, _, _ = private_run
    pages = {name: (folder / name).read_bytes() for name in ("guarantee.json", "label.html", "label-owner.html")}
    done = CliRunner().invoke(get_command(app), ["label", str(folder), "--json"])
    assert json.loads(done.output)["label"] == label.to_dict()
    assert dict(label.mechanism)["Generator"].startswith("fedgp")
    assert {name: (folder / name).read_bytes() for name in pages} == pages
    assert fedgp.label_of_run(folder, delta=1e-7).worst.epsilon > label.worst.epsilon


def test_rounds_are_charged_before_anybody_is_asked(private_run):
    folder, _, _, seen, rounds = private_run
    assert rounds == [1, 2]
    assert set(seen) == {1, 2}
    assert seen == sorted(seen)
    assert charged(folder) == 2


def test_critics_are_on_their_clients_and_nowhere_else(private_run):
    folder, generator, _, _, _ = private_run
    critics = {name: memory for name, memory in critics_of(folder).items() if memory}
    assert len(critics) >= 2
    weights = [memory["critic.score.weight"] for memory in critics.values()]
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    state, _ = runs.Run(folder).load()
    files = [load_file(file) for file in (folder / "checkpoints").glob("*.safetensors")]
    assert set(state["model"]) == set(generator.state_dict())
    held = {
        memory[name].numpy().tobytes() for memory in critics.values() for name in memory if memory[name].numel() > 1
    }
    server = b"".join(tensor.numpy().tobytes() for tensors in files for tensor in tensors.values())
    assert held
    assert not any(value in server for value in held)


def test_f20_one_client_moves_the_sum_by_at_most_the_clip_norm():
    """The same coins and noise with and without a client, in the first round and in one that remembers it."""
    this = ready(replace(PRIVATE, client_rate=1.0))
    start = this.model().state_dict()

    def sums(holdings):
        generator = this.model()
        made = Federation(generator, None, holdings, this.plan, local=this.local, panel=0, seed=3)
        found = []
        for _ in range(2):
            made.advance()
            found.append((flat(generator.parameters()) - flat(start.values())) * this.plan.divisor)
            generator.load_state_dict(start)  # so that both rounds begin where they would without the client
        return found

    everyone = sums(this.holdings)
    moved = []
    for removed in this.holdings:
        fewer = sums({name: held for name, held in this.holdings.items() if name != removed})
        moved += [float((one - other).norm()) for one, other in zip(everyone, fewer, strict=True)]
    assert max(moved) <= 0.2 * (1 + 1e-4)
    assert min(moved) > 0.19  # updates are longer than the bound, and are cut to it


def test_an_epsilon_is_kept_and_nearly_used():
    plan = ready(replace(SMALL, epsilon=4.0)).plan
    oracle = tacita.worst_case(sample_rate=1.0, noise_multiplier=plan.noise_multiplier, steps=2, delta=SMALL.delta)
    assert 3.9 < oracle.epsilon <= 4.0


@pytest.mark.parametrize("noise", [None, 1.5])
def test_an_interrupted_run_goes_on_with_its_critics(noise, tmp_path):
    recipe = replace(PRIVATE, rounds=3, client_rate=1.0, noise_multiplier=noise, seed=None)

    def stop(done, *_):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate_generator(recipe, tmp_path / "run", progress=stop)
    assert dict(fedgp.label_of_run(tmp_path / "run").readings.facts)["Rounds taken"].startswith("1 of 3")
    before = critics_of(tmp_path / "run", recipe)
    rounds = []
    _, label = resume_generator(tmp_path / "run", progress=lambda *done: rounds.append(done))
    after = critics_of(tmp_path / "run", recipe)
    assert rounds == [(2, 3, "round"), (3, 3, "round")]
    if noise is None:
        found = fedgp.label_of_run(tmp_path / "run", delta=1e-7)
        assert (found.worst.epsilon, found.worst.delta, found.worst.unit) == (math.inf, 1e-7, "client")
        assert fedgp.label_of_run(tmp_path / "run") == label
    else:
        assert charged(tmp_path / "run") == 3
        assert label.worst.epsilon == ready(recipe).plan.client_worst(3, recipe.delta).epsilon
    for name in before:
        assert float(before[name]["step.score.bias"]) == STEPS
        assert float(after[name]["step.score.bias"]) == 3 * STEPS


# Without noise: a measure at most.


def test_without_noise_nothing_is_promised(tmp_path):
    _, label = federate_generator(SMALL, tmp_path / "run")
    assert math.isinf(label.worst.epsilon)
    assert not label.comparisons
    assert label.readings is not None
    assert not label.readings.typical
    assert any("No guarantee" in line for line in label.public().declared)
    assert all(check.state == "warning" for check in label.checks)
    assert not list((tmp_path / "run").glob("*.sqlite"))
    written = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert written["worst"]["epsilon"] == "infinity"
    assert "Nothing is promised" in (tmp_path / "run" / "label.html").read_text()


def test_without_noise_the_mean_of_updates_is_weighted_by_records(tmp_path):
    recipe = replace(SMALL, split="dirichlet", least=6, rounds=1)
    this, updates = ready(recipe), []

    def spy(self, parameters, records, memory, random):
        found = replace(self, counts_as_one=None), (parameters, records, memory, copy.deepcopy(random))
        updates.append((len(records), flat(call(found[0], *found[1])[0].values())))
        return call(self, parameters, records, memory, random)

    call = GanTraining.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GanTraining, "__call__", spy)
        generator, _ = federate_generator(recipe, tmp_path / "run")
    sizes = np.array([size for size, _ in updates])
    mean = sum(size * update for size, update in updates) / sizes.sum()
    assert len(set(sizes.tolist())) > 1
    moved = flat(generator.parameters()) - flat(this.model().parameters())
    assert torch.allclose(moved, 2.0 * mean, atol=1e-5)  # the server's rate for uneven mixes


@pytest.mark.parametrize("split", ["even", "class", "dirichlet"])
@pytest.mark.parametrize("noise", [None, 1.5])
def test_clients_may_hold_different_numbers_of_records(split, noise, tmp_path):
    recipe = replace(SMALL, split=split, least=6, noise_multiplier=noise, rounds=1)
    sizes = [len(held) for held in ready(recipe).holdings.values()]
    assert len(set(sizes)) > 1
    assert 6 <= min(sizes) <= max(sizes) <= 40
    federate_generator(recipe, tmp_path / "run")
    steps = [float(memory["step.score.bias"]) for memory in critics_of(tmp_path / "run", recipe).values()]
    assert steps == [math.ceil(size / 8) for size in sizes]  # one pass over what each has, in batches of 8
    held = held_records(ready(recipe))
    ready.cache_clear()  # another process deals out the same records, with or without a seed
    assert all(torch.equal(a, b) for a, b in zip(held, held_records(ready(recipe)), strict=True))


def test_no_other_plan_is_without_noise(tmp_path):
    plan = ready(SMALL).plan
    assert (plan.level, plan.privacy_level.units, plan.total_noise) == ("none", (), 0.0)
    given = {"clients": 4, "client_rate": 1.0, "rounds": 2}
    for settings in ({"level": "none"}, {"level": "client", "noise_multiplier": 0.0}, {"level": "client"}):
        with pytest.raises(ValueError, match=r"level must be|noise_multiplier"):
            federation_plan(**given, **settings)
    with pytest.raises(ValueError, match="level must be"):
        Recipe(level="none")
    for hand_made in ({"level": "client"}, {"level": "joint", "noise_multiplier": 1.0}):
        with pytest.raises(PrivacyError, match=r"lacks noise|protects nobody"):
            Server(FederationPlan(**given, clip_norm=1.0, **hand_made), {})
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        FederationPlan(**given, clip_norm=1.0, level="client", noise_multiplier=0.0)
    with pytest.raises(ValueError, match="share out no more"):
        FederationPlan(**given, clip_norm=1.0, level="client", noise_multiplier=1.0, stops=((1, 1.0), (2, 1.0)))
    federate_generator(replace(SMALL, rounds=1), tmp_path / "run")
    with pytest.raises(PrivacyError, match="no end to declare"):
        declare_end(tmp_path / "run", "the machine was needed")
    document = {**plan.to_dict(), "level": "client", "noise_multiplier": 1.0}
    runs.Run(tmp_path / "run").write(plan=document)  # a plan with noise has a ledger
    with pytest.raises(PrivacyError, match="cannot be known"):
        fedgp.label_of_run(tmp_path / "run")


def test_a_few_clients_make_a_generator_that_teaches(tmp_path):
    recipe = FedGP(clients=4, rounds=4, critic_steps=1, seed=1)
    untrained = accuracy(ready(recipe).model(), recipe)
    generator, _ = federate_generator(recipe, tmp_path / "run")
    assert untrained < 0.3
    assert accuracy(generator, recipe) > 0.7
    made = sample(generator, 500, rng=np.random.default_rng(3))[0]
    found = average_case(held_records(ready(recipe))[0][:100], made, gamma=1e-15)
    assert 0.0 < found.mean < found.student < found.chebyshev < math.inf
    assert "a measure, not a guarantee" in found.sentence


@pytest.mark.slow
def test_clients_of_two_classes_make_a_generator_of_all(tmp_path):
    recipe = FedGP(clients=10, rounds=12, split="class", seed=1)
    assert set(held_records(ready(recipe))[1].tolist()) == set(range(10))
    generator, _ = federate_generator(recipe, tmp_path / "run")
    assert accuracy(generator, recipe) > 0.65


# Wrong input.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split": "odd"}, "split must be one of"),
        ({"clients": 1}, "clients must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"size": 0}, "size must be"),
        ({"least": 0}, "least must be"),
        ({"batch_size": 0.5}, "batch_size must be"),
        ({"client_rate": 0.0}, "takes part in a round"),
        ({"learning_rate": math.nan}, "learning_rate must be"),
        ({"server_rate": 0.0}, "server_rate must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "not both"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(changes, words):
    with pytest.raises(ValueError, match=words) as caught:
        replace(SMALL, **changes)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match="engine must be"):
        federate_generator(SMALL, folder, engine="mqtt")
    with pytest.raises(ValueError, match="do not fit 1437 records"):
        federate_generator(replace(SMALL, size=5000), folder)
    with pytest.raises(ValueError, match="least must be"):
        federate_generator(replace(SMALL, least=41), folder)
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        federate_generator(replace(SMALL, noise_multiplier=0.0), folder)
    assert not folder.exists()
    folder.mkdir()
    runs.Run(folder).write(kind="training", family="training")
    with pytest.raises(runs.RunError, match="not an empty folder"):
        federate_generator(SMALL, folder)
    with pytest.raises(runs.RunError, match="is not one of federation"):
        resume_generator(folder)
    runs.Run(folder).write(family="federation")
    with pytest.raises(runs.RunError, match="not the run of a federated generator"):
        resume_generator(folder)
    runs.Run(folder).write(kind="federated-generator", engine="local", recipe={"colour": 1})
    with pytest.raises(runs.RunError, match="damaged"):
        resume_generator(folder)


# Flower's own messages.

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, RecordDict  # noqa: E402

from tacita.federated.engines.flower import FlowerRun, client_app  # noqa: E402
from tacita.federated.flower_client import kept_memory as kept_in  # noqa: E402
from tests.federated.test_flower import DirectGrid  # noqa: E402


@pytest.fixture
def grid_of(monkeypatch):
    """Return a grid that hands messages to the clients' app at once, and records all of them, and every critic."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)

    def make(recipe):
        grid = DirectGrid(client_app(partial(ready, recipe)), recipe.clients)
        grid.seen, grid.critics = [], []

        def record(message, reply):
            grid.seen += [message, reply]
            grid.critics += [memory for context in grid.contexts.values() if (memory := kept_in(context))]
            return reply

        grid.tamper = record
        return grid

    return make


def run_in(folder, recipe):
    return FlowerRun(partial(ready, recipe), folder, resume=False)


def leaks(message, critics, generator):
    """Return what a message holds of a critic: by name, by shape or by value."""
    own = {name: tuple(p.shape) for name, p in generator.state_dict().items()}
    theirs = {name: value for memory in critics for name, value in memory.items()}
    shapes = {tuple(value.shape) for value in theirs.values() if value.dim()} - set(own.values())
    assert shapes
    found = []
    for record in message.content.array_records.values():
        for name, array in record.items():
            value = array.numpy()
            found += [name] if own.get(name) != value.shape or name in theirs or value.shape in shapes else []
            found += [
                k for m in critics for k, v in m.items() if v.numel() > 1 and v.numpy().tobytes() in value.tobytes()
            ]
    for record in message.content.config_records.values():
        found += [k for k, v in record.items() if isinstance(v, list | bytes)]
    return found


@pytest.mark.parametrize("recipe", [SMALL, PRIVATE], ids=["plain", "private"])
def test_no_message_holds_anything_of_a_critic(recipe, grid_of, tmp_path):
    grid, running = grid_of(recipe), run_in(tmp_path / "run", recipe)
    running.serve(grid)
    generator = running.model
    trained = [m for m in grid.seen if m.content.array_records]
    assert len(trained) >= 2 * recipe.rounds
    assert not any(m.has_error() for m in grid.seen)
    assert not any(leaks(m, grid.critics, generator) for m in grid.seen)
    numbers = [k for m in grid.seen for record in m.content.metric_records.values() for k in record]
    assert set(numbers) == {"num-examples"}
    # It would be seen: by its name, by its shape, and by its value under the name of a part of the generator.
    memory = grid.critics[-1]
    name, value = "critic.score.weight", memory["critic.score.weight"]
    part = next(iter(generator.state_dict()))
    for arrays in ({name: value}, {part: value}, {"net.4.weight": memory["critic.describe.weight"]}):
        assert leaks(Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=grid.seen[0]), [memory], generator)


@pytest.mark.parametrize("recipe", [replace(SMALL, split="class", least=9), PRIVATE], ids=["plain", "private"])
def test_flower_gives_the_generator_and_the_label_of_the_local_engine(recipe, grid_of, tmp_path):
    running = run_in(tmp_path / "flower", recipe)
    label, generator = fedgp.of_generator(running.serve(grid_of(recipe))), running.model
    local, other = federate_generator(recipe, tmp_path / "local")
    moved = flat(local.parameters()) - flat(ready(recipe).model().parameters())
    far = flat(local.parameters()) - flat(generator.parameters())
    assert float(far.norm()) < 1e-2 * float(moved.norm())  # sums in another order, and Adam magnifies
    assert label.worst.epsilon == other.worst.epsilon
    assert label.worst.unit == other.worst.unit == "client"
    assert fedgp.label_of_run(tmp_path / "flower") == label
    assert not (tmp_path / "flower" / "clients").exists()  # the server's folder; clients have their own state


def test_critics_of_flowers_clients_go_on_and_differ(grid_of, tmp_path):
    grid = grid_of(SMALL)
    run_in(tmp_path / "run", SMALL).serve(grid)
    memories = [kept_in(context) for context in grid.contexts.values()]
    assert {float(m["step.score.bias"]) for m in memories} == {SMALL.rounds * STEPS}
    weights = [m["critic.score.weight"] for m in memories]
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])


def test_a_flower_server_that_was_stopped_goes_on(grid_of, tmp_path):
    for name, recipe in (("plain", replace(SMALL, rounds=3)), ("private", replace(PRIVATE, rounds=3, seed=None))):
        grid = grid_of(recipe)

        def stop(number, *_):
            if number == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path / name, recipe).serve(grid, stop)
        rounds = []
        label = run_in(tmp_path / name, recipe).serve(grid, lambda n, *_, rounds=rounds: rounds.append(n))
        assert rounds == [3]
        assert dict(label.readings.facts)["Status"] == "done"


SIMULATION = """
import json, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from tacita.synthesis import FedGP, federate_generator
folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
recipe = FedGP(**settings)
made = {engine: federate_generator(recipe, folder / engine, engine=engine) for engine in ("local", "flower")}
flat = {k: torch.cat([p.detach().flatten() for p in g.parameters()]) for k, (g, _) in made.items()}
print(json.dumps({
    "far": float((flat["local"] - flat["flower"]).norm() / flat["local"].norm()),
    "worst": [str(label.worst.epsilon) for _, label in made.values()],
}))
"""


@pytest.mark.flower
@pytest.mark.parametrize("recipe", [SMALL, replace(PRIVATE, split="class")], ids=["plain", "private"])
def test_flowers_simulation_agrees(recipe, tmp_path):
    settings = json.dumps(vars(recipe))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SIMULATION, str(tmp_path), settings]
    done = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["far"] < 1e-3
    assert found["worst"][0] == found["worst"][1]
    assert (tmp_path / "flower" / "label.html").exists()
