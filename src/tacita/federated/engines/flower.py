"""Engine flower: Flower's simulation, one supernode for each client."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from tacita.federated.client import Part
from tacita.federated.engines.engine import Engine, Progress, Rounds
from tacita.federated.recipes import Recipe, books_for, holdout_metrics, keep_recipe, ready, server_rates
from tacita.label import Label


def prepare(recipe: Recipe, run_dir: str | Path, *, resume: bool = False) -> Rounds:
    """Return a federation in Flower's simulation, ready to take its rounds and return its label.

    Args:
        recipe: What to run.
        run_dir: Where the run is written.
        resume: The strategy goes on with the run that is there, if any, in either case.
    """
    import tacita.federated.flower  # noqa: F401  # fail early if Flower is missing

    ready(recipe)
    return partial(_simulated, recipe, run_dir)


def _simulated(recipe: Recipe, run_dir: str | Path, progress: Progress | None = None) -> Label:
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp

    this, made = ready(recipe), list[Label]()
    with quiet_flower():
        server_app, model, strategy = ServerApp(), this.model(), _strategy(recipe, run_dir)

        @server_app.main()  # type: ignore[untyped-decorator]
        def main(grid: Grid, context: Context) -> None:
            def show(number: int, arrays: ArrayRecord) -> None:
                model.load_state_dict(arrays.to_torch_state_dict())
                if progress is not None and number > begun and strategy.server is not None:
                    progress(strategy.server, this.accuracy(model))

            arrays = strategy.open(ArrayRecord(model.state_dict()))
            begun = strategy.server.taken if strategy.server is not None else 0
            keep_recipe(recipe, run_dir, "flower")
            strategy.start(grid, arrays, evaluate_fn=show)
            made.append(strategy.label(metrics=holdout_metrics(this, model)))

        simulate(server_app, _client_app(recipe), recipe.clients)
    if not made:
        raise RuntimeError("Flower's simulation ended early; its log says why.")
    return made[0]


def _strategy(recipe: Recipe, run_dir: str | Path) -> Any:
    from flwr.serverapp.strategy import FedAvg, FedAvgM

    from tacita.federated.flower import PrivateStrategy

    inner: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": recipe.clients}
    momentum, rate = server_rates(recipe)
    plain = momentum == 0.0 and rate == 1.0
    return PrivateStrategy(
        FedAvg(**inner) if plain else FedAvgM(**inner, server_learning_rate=rate, server_momentum=momentum),
        plan=ready(recipe).plan,
        panel=64,
        named=True,
        books=books_for(recipe, run_dir),
    )


def _client_app(recipe: Recipe) -> Any:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from tacita.federated.flower_client import instance_privacy, local_training

    this, loss = ready(recipe), nn.functional.cross_entropy

    def held(context: Context) -> Part:
        return ready(recipe).held_by(int(context.node_config["partition-id"]))

    app = ClientApp(
        mods=[
            instance_privacy(
                this.plan,
                model=this.model,
                loss_fn=loss,
                data=held,
                learning_rate=this.local.learning_rate,
                panel=64,  # server and clients are one process, which reports to nobody else
                seed=recipe.seed,
            )
        ]
    )

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        return local_training(message, context, this.plan, this.model(), loss, held, seed=recipe.seed)

    return app


def simulate(server_app: Any, client_app: Any, clients: int, *, cores: int = 2) -> None:
    """Run Flower's simulation on a few cores, without its dashboard.

    Args:
        server_app: Flower's server app.
        client_app: Flower's client app.
        clients: How many clients.
        cores: At most so many cores are used.
    """
    from flwr.simulation import run_simulation

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"num_cpus": min(cores, os.cpu_count() or 1), "include_dashboard": False, "log_to_driver": False}
    config: Any = {"client_resources": resources, "init_args": {**init, "logging_level": "ERROR"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(server_app, client_app, num_supernodes=clients, backend_config=config)


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Turn telemetry off, use a temporary home and log errors only, while Flower runs."""
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


FLOWER = Engine(name="flower", prepare=prepare)
