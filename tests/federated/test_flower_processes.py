"""A private client in real processes: servers that ask for no privacy, nodes that restart, and its ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

flwr = pytest.importorskip("flwr")

from tacita.federated import federation_plan  # noqa: E402
from tacita.ledger import Ledger  # noqa: E402

pytestmark = pytest.mark.flower

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "hospitals"
version = "1.0.0"
description = "Two hospitals."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tacita"

[tool.flwr.app.components]
serverapp = "hospitals.server_app:app"
clientapp = "hospitals.client_app:app"

[tool.flwr.app.config]
level = "parallel"
server = "private"
rounds = 1
folder = ""
run-dir = ""
out = ""
epsilon = 0.0
"""

TASK = """
import torch
from tacita.federated import federation_plan

def plan(context):
    level = str(context.run_config["level"])
    declared = {"level": level, "clients": 2, "client_rate": 1.0, "rounds": 2}
    if level == "client":
        return federation_plan(**declared, noise_multiplier=1.0)
    return federation_plan(**declared, record_noise_multiplier=1.0, clip_norm=10.0, record_clip_norm=1.0,
                           record_rate=0.5, local_batch=10)

def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)

def data(context):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 4, generator=generator), torch.randint(0, 3, (20,), generator=generator)
"""

CLIENT = """
from pathlib import Path
import torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from hospitals.task import data, model, plan
from tacita.federated import instance_privacy

def mod(message, context, call_next):
    config, options = context.run_config, {}
    if config["epsilon"]:
        place = Path(str(config["folder"])) / f"{context.node_config['client-id']}.sqlite"
        options = {"ledger": place, "epsilon": float(config["epsilon"]), "delta": 1e-5}
    made = instance_privacy(plan, model=model, loss_fn=torch.nn.functional.cross_entropy, data=data, panel=0, **options)
    return made(message, context, call_next)

app = ClientApp(mods=[mod])

@app.train()
@app.evaluate()
@app.query()
def unprotected(message, context):
    (Path(str(context.run_config["folder"])) / "the-apps-own-function-ran").touch()
    content = {"arrays": ArrayRecord({"mean": data(context)[0].mean(0)}), "metrics": MetricRecord({"num-examples": 20})}
    return Message(RecordDict(content), reply_to=message)
"""

SERVER = """
import json
from pathlib import Path
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from hospitals.task import model, plan
from tacita.federated import PrivateStrategy

app = ServerApp()
INNER = {"min_available_nodes": 2, "min_train_nodes": 2, "min_evaluate_nodes": 2}

class Nosy(FedAvg):
    heard = []
    def hear(self, kind, replies):
        replies = list(replies)
        self.heard += [[kind, "" if not r.has_error() else str(r.error.reason)] for r in replies]
        return replies
    def aggregate_train(self, number, replies):
        return super().aggregate_train(number, self.hear("train", replies))
    def aggregate_evaluate(self, number, replies):
        return super().aggregate_evaluate(number, self.hear("evaluate", replies))

@app.main()
def main(grid, context):
    config, arrays = context.run_config, ArrayRecord(model().state_dict())
    if config["server"] == "plain":
        nosy = Nosy(fraction_evaluate=1.0, **INNER)
        nosy.start(grid, arrays, num_rounds=1, timeout=300)
        asked = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in grid.get_node_ids()]
        nosy.hear("query", grid.send_and_receive(asked, timeout=300))
        found = nosy.heard
    else:
        inner = FedAvg(fraction_evaluate=0.0, **INNER)
        strategy = PrivateStrategy(inner, plan=plan(context), run_dir=str(config["run-dir"]), record_panel=0)
        strategy.start(grid, arrays, num_rounds=int(config["rounds"]), timeout=300)
        found = {"participations": strategy.server.participations, "worst": strategy.label().worst.epsilon}
    Path(str(config["out"])).write_text(json.dumps(found))
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Write the app of two hospitals whose own functions would send their records' mean."""
    package = tmp_path / "app" / "hospitals"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "task": TASK, "client_app": CLIENT, "server_app": SERVER}.items():
        (package / f"{name}.py").write_text(text)
    return package.parent


def run(fleet, app: Path, folder: Path, **config):
    """Run the app on a fleet and return what its server wrote."""
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    done = fleet.run(app, {"folder": str(folder), "out": str(out), **config}, deadline=500)
    assert done.status.endswith("completed"), done.log[-3000:]
    return json.loads(out.read_text())


def test_l16_a_server_without_private_strategy_gets_nothing_in_real_processes(app, tmp_path):
    from tests.federated.fleet import deployment

    with deployment(tmp_path / "fleet", nodes=2) as fleet:
        for level in ("parallel", "client"):
            heard = run(fleet, app, tmp_path, level=level, server="plain")
            kinds = [kind for kind, _ in heard]
            assert kinds.count("train") == kinds.count("evaluate") == 2, (level, heard)
            assert kinds.count("query") == 2, (level, heard)
            assert all("well-formed private requests only" in reason for _, reason in heard), (level, heard)
            assert not (tmp_path / "the-apps-own-function-ran").exists()


def test_l15_l17_nodes_that_restart_keep_their_name_and_their_ledger(app, tmp_path):
    from tests.federated.fleet import deployment

    plan = federation_plan(
        level="parallel", clients=2, client_rate=1.0, rounds=2, record_noise_multiplier=1.0, clip_norm=10.0,
        record_clip_norm=1.0, record_rate=0.5, local_batch=10,
    )  # fmt: skip
    with deployment(tmp_path / "fleet", nodes=0) as fleet:
        for names, epsilon in ((("north", "south"), 12.0), ((), 0.0)):
            configurations = [f'client-id="{name}"' for name in names] or ["", ""]
            run_dir = tmp_path / f"run-{len(names)}"
            for _ in range(2):
                nodes = [fleet.start_node(i, 2, config=c) for i, c in enumerate(configurations)]
                found = run(fleet, app, tmp_path, epsilon=epsilon, **{"run-dir": str(run_dir)})
                for node in nodes:
                    fleet.stop_node(node)
            assert found["worst"] == plan.record_worst(2, plan.delta).epsilon
            if names:
                assert found["participations"] == {"north": 2, "south": 2}
            else:
                assert list(found["participations"].values()) == [1, 1, 1, 1]
        for name in ("north", "south"):
            with Ledger.open(tmp_path / f"{name}.sqlite") as ledger:
                assert [r["charged"] for r in ledger.runs().values()] == [1, 1]
                assert ledger.spent().epsilon <= 12.0
