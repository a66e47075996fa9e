"""A federation without writing a loop: real data split over clients, in this process or in Flower's simulation."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacita import _check
from tacita.accounting import calibrate
from tacita.data import Dataset, load
from tacita.federated import splits
from tacita.federated.client import Local, Part
from tacita.federated.local import KIND, Federation, client_name
from tacita.federated.plan import LEVELS, FederationPlan, federation_plan
from tacita.federated.server import Round, Server
from tacita.label import Label
from tacita.runs import Run
from tacita.training.records import Records

ENGINES = ("local", "flower")
SPLITS = ("even", "class", "dirichlet")
IMAGES = ("digits", "mnist", "fashion-mnist")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `tacita federate` does. Nothing in it is learned from the data.

    Attributes:
        data: The name of a built-in dataset.
        split: `even` (every client alike), `class` (two classes a client), or `dirichlet` (in between).
        clients: How many.
        rounds: How many.
        level: client, parallel, sequential or joint.
        client_rate: The chance with which a client takes part in a round.
        epsilon: Worst-case target of the level's larger unit, instead of the noise below.
        noise_multiplier: For clients, at levels client and joint.
        record_noise_multiplier: For records, at levels parallel and sequential.
        record_rate: The chance with which a record enters its client's step.
        clip_norm: The largest norm of an update.
        record_clip_norm: The largest norm of a record's gradient.
        local_steps: Steps inside a client, at level parallel.
        learning_rate: The server's; at level parallel the clients'.
        momentum: The server's.
        delta: Total failure probability.
        dropout: The chance that a client does not answer (local engine).
        seed: For runs that can be repeated; not secure.
    """

    data: str = "digits"
    split: str = "even"
    clients: int = 20
    rounds: int = 30
    level: str = "joint"
    client_rate: float = 0.5
    epsilon: float | None = None
    noise_multiplier: float = 1.2
    record_noise_multiplier: float = 1.0
    record_rate: float = 0.5
    clip_norm: float = 1.0
    record_clip_norm: float = 2.0
    local_steps: int = 1
    learning_rate: float = 0.5
    momentum: float = 0.5
    delta: float = 1e-4
    dropout: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check.one_of("split", self.split, SPLITS)
        _check.one_of("level", self.level, LEVELS)
        _check.count("clients", self.clients, low=2, high=100_000)
        _check.count("rounds", self.rounds, high=1_000_000)


@dataclass(frozen=True)
class Ready:
    """A recipe made ready: the data, who holds what, and what was declared."""

    dataset: Dataset
    pool: Records
    parts: list[Any]
    plan: FederationPlan
    local: Local

    def model(self) -> nn.Module:
        """Return a linear classifier that knows nothing: small, and easy to teach under noise."""
        inputs = int(np.prod(self.dataset.inputs.shape[1:]))
        outputs = nn.Linear(inputs, len(self.dataset.classes or ()))
        nn.init.zeros_(outputs.weight)
        nn.init.zeros_(outputs.bias)
        return nn.Sequential(nn.Flatten(), outputs)

    def accuracy(self, model: nn.Module) -> float:
        """Return the accuracy on the test set. For the owner."""
        with torch.no_grad():
            guesses = model(torch.from_numpy(self.dataset.test_inputs)).argmax(1)
        return float((guesses == torch.from_numpy(self.dataset.test_targets)).float().mean())


@lru_cache(maxsize=2)
def ready(recipe: Recipe) -> Ready:
    """Make a recipe ready: load, split, declare."""
    dataset = load(_check.one_of("dataset", recipe.data, IMAGES))
    labels, size = dataset.targets, len(dataset.targets)
    each = size // recipe.clients
    if each < 2:
        raise ValueError(f"{recipe.clients} clients are too many for {size} records.")
    parts = deal(labels, recipe.split, recipe.clients, each)
    pool = Records((torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.targets)))
    rate = recipe.learning_rate if recipe.level == "parallel" else 1.0
    return Ready(dataset, pool, parts, _plan(recipe, each), Local(learning_rate=rate))


def deal(labels: Any, split: str, clients: int, each: int, *, seed: int = 0) -> list[Any]:
    """Return the positions of every client's records by the rule `split`; who holds what is public here."""
    coins = np.random.default_rng(seed)
    rules: dict[str, Callable[[], list[Any]]] = {
        "even": lambda: splits.even(len(labels), clients, each, rng=coins),
        "class": lambda: splits.shards(labels, clients, shard=each // 2, each=2, rng=coins),
        "dirichlet": lambda: splits.uneven(labels, clients, alpha=0.5, each=each, rng=coins),
    }
    return rules[_check.one_of("split", split, SPLITS)]()


def _plan(recipe: Recipe, each: int) -> FederationPlan:
    client_rate = 1.0 if recipe.level == "sequential" else recipe.client_rate
    declared: dict[str, Any] = {
        "level": recipe.level,
        "clients": recipe.clients,
        "client_rate": client_rate,
        "rounds": recipe.rounds,
        "clip_norm": 10.0 * recipe.clip_norm if recipe.level == "parallel" else recipe.clip_norm,
        "delta": recipe.delta,
    }
    if recipe.level != "client":
        batch = max(1.0, round(recipe.record_rate * each))
        declared |= {"record_clip_norm": recipe.record_clip_norm, "local_batch": batch}
        declared |= {"local_size": batch / _check.rate("record_rate", recipe.record_rate)}
    if recipe.level == "parallel":
        declared["local_steps"] = recipe.local_steps
    clients = recipe.level in ("client", "joint")
    name = "noise_multiplier" if clients else "record_noise_multiplier"
    noise = getattr(recipe, name)
    if recipe.epsilon is not None:
        steps = recipe.rounds * (recipe.local_steps if recipe.level == "parallel" else 1)
        rate = client_rate if clients else recipe.record_rate
        spare = recipe.delta * (1.0 - 1e-6)  # what level joint sets aside
        noise = calibrate(epsilon=recipe.epsilon, delta=spare, sample_rate=rate, steps=steps).noise_multiplier
    return federation_plan(**declared, **{name: noise})


def start(recipe: Recipe, run_dir: str | Path) -> Federation:
    """Return a federation in this process, ready to run."""
    this = ready(recipe)
    model = this.model()
    made = Federation(
        model,
        nn.functional.cross_entropy,
        _holdings(this),
        this.plan,
        local=this.local,
        optimizer=_optimizer(recipe, model),
        dropout=recipe.dropout,
        run_dir=run_dir,
        rng=recipe.seed,
        **_words(recipe),
    )
    _keep(recipe, run_dir, "local")
    return made


def _keep(recipe: Recipe, run_dir: str | Path, engine: str) -> None:
    Run(Path(run_dir)).write(recipe=asdict(recipe), engine=engine)


def recipe_of(run_dir: str | Path) -> tuple[Recipe, str]:
    """Return the recipe of a run and the engine that it was started with."""
    run = Run.open(run_dir, KIND)
    with run.reading():
        return Recipe(**run.recipe), _check.one_of("engine", run.document()["engine"], ENGINES)


def restart(recipe: Recipe, run_dir: str | Path) -> Federation:
    """Return an interrupted federation of the local engine, ready to go on."""
    this = ready(recipe)
    model = this.model()
    return Federation.resume(
        run_dir,
        model,
        nn.functional.cross_entropy,
        _holdings(this),
        local=this.local,
        optimizer=_optimizer(recipe, model),
        dropout=recipe.dropout,
    )


def finish(federation: Federation, recipe: Recipe, progress: Callable[[Round, float], None] | None = None) -> Label:
    """Take the remaining rounds and return the label, which the run directory gets too."""
    this = ready(recipe)
    for now in federation:
        if progress is not None:
            progress(now, this.accuracy(federation.model))
    return federation.label(metrics=_measured(this, federation.model))


def run_flower(recipe: Recipe, run_dir: str | Path, progress: Callable[[Server, float], None] | None = None) -> Label:
    """Run the same federation in Flower's simulation, one supernode a client, and return its label."""
    from tacita.federated.flower import PrivateStrategy  # isort: skip  # tells if Flower is missing
    from tacita.federated.flower_client import instance_privacy, local_training  # isort: skip
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg, FedAvgM

    this = ready(recipe)
    client_app = ClientApp(
        mods=[
            instance_privacy(
                this.plan,
                model=this.model,
                loss_fn=nn.functional.cross_entropy,
                data=_Holding(recipe),
                learning_rate=this.local.learning_rate,
                panel=64,  # server and clients are one process, which reports to nobody else
                rng=recipe.seed,
            )
        ]
    )

    @client_app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        loss = nn.functional.cross_entropy
        return local_training(message, context, this.plan, this.model(), loss, _Holding(recipe), rng=recipe.seed)

    inner: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": recipe.clients}
    momentum, rate = _server_rates(recipe)
    plain = momentum == 0.0 and rate == 1.0
    with quiet_flower():
        strategy = PrivateStrategy(
            FedAvg(**inner) if plain else FedAvgM(**inner, server_learning_rate=rate, server_momentum=momentum),
            plan=this.plan,
            run_dir=run_dir,
            panel=64,
            named=True,
            rng=recipe.seed,
            **_words(recipe),
        )
        server_app, model, made = ServerApp(), this.model(), list[Label]()

        @server_app.main()  # type: ignore[untyped-decorator]
        def main(grid: Grid, context: Context) -> None:
            def show(number: int, arrays: ArrayRecord) -> None:
                model.load_state_dict(arrays.to_torch_state_dict())
                if progress is not None and number > begun and strategy.server is not None:
                    progress(strategy.server, this.accuracy(model))

            arrays = strategy.open(ArrayRecord(model.state_dict()))
            begun = strategy.server.taken if strategy.server is not None else 0
            _keep(recipe, run_dir, "flower")
            strategy.start(grid, arrays, evaluate_fn=show)
            made.append(strategy.label(metrics=_measured(this, model)))

        simulate(server_app, client_app, recipe.clients)
    if not made:
        raise RuntimeError("Flower's simulation ended early; its log says why.")
    return made[0]


def simulate(server_app: Any, client_app: Any, clients: int, *, cores: int = 2) -> None:
    """Run Flower's simulation on a few cores, without its dashboard."""
    from flwr.simulation import run_simulation

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"num_cpus": min(cores, os.cpu_count() or 1), "include_dashboard": False, "log_to_driver": False}
    config: Any = {"client_resources": resources, "init_args": {**init, "logging_level": "ERROR"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(server_app, client_app, num_supernodes=clients, backend_config=config)


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Telemetry off, a home of its own, and warnings only, while Flower runs."""
    import logging

    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    with tempfile.TemporaryDirectory(prefix="tacita-flower-") as home:
        changed: Mapping[str, str] = {**quiet, "FLWR_HOME": home, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        log = logging.getLogger("flwr")
        level, log.level = log.level, logging.ERROR
        try:
            yield
        finally:
            log.level = level
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@dataclass(frozen=True)
class _Holding:
    """What a Flower client holds, by its partition."""

    recipe: Recipe

    def __call__(self, context: Any) -> Part:
        this = ready(self.recipe)
        return Part(this.pool, this.parts[int(context.node_config["partition-id"])])


def _holdings(this: Ready) -> dict[str, Part]:
    return {client_name(i): Part(this.pool, positions) for i, positions in enumerate(this.parts)}


def _server_rates(recipe: Recipe) -> tuple[float, float]:
    """Return the server's momentum and learning rate; at level parallel the clients have moved the model already."""
    return (0.0, 1.0) if recipe.level == "parallel" else (recipe.momentum, recipe.learning_rate)


def _optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    momentum, rate = _server_rates(recipe)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)


def _words(recipe: Recipe) -> dict[str, Any]:
    how = {"even": "all alike", "class": "two classes each", "dirichlet": "in uneven mixes"}[recipe.split]
    name = f"{recipe.data.capitalize()} over {recipe.clients} clients, {how}"
    return {"name": name, "purpose": "A linear classifier, trained where the data are by a federation."}


def _measured(this: Ready, model: nn.Module) -> dict[str, str]:
    return {"accuracy": f"{this.accuracy(model):.2%} on the test set"}
