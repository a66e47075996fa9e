"""Engine flower: Flower's simulation, one supernode for each client."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita._check import PrivacyError
from tacita._progress import Progress, quiet
from tacita.federated.client import Part
from tacita.federated.engines.engine import Engine, Make
from tacita.federated.server import Server
from tacita.label import Label

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message


class FlowerRun:
    """A job in Flower's simulation, ready to take its rounds and return its label.

    Args:
        make: Creates the job, in the workers too.
        run_dir: Where the run is written; one that is there is resumed.
        resume: As for every engine; the strategy looks for itself.
    """

    def __init__(self, make: Make, run_dir: Path, *, resume: bool) -> None:
        from tacita.federated.flower import PrivateStrategy  # fails early if Flower is missing

        from flwr.serverapp.strategy import FedAvg, FedAvgM  # isort: skip

        job = self.job = make()
        self._make, self._folder, self.model = make, run_dir, job.model()
        inner: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": job.plan.clients}
        rates = {"server_learning_rate": job.server_rate, "server_momentum": job.momentum}
        plain = job.momentum == 0.0 and job.server_rate == 1.0
        self.strategy = PrivateStrategy(
            FedAvg(**inner) if plain else FedAvgM(**inner, **rates),
            plan=job.plan,
            panel=job.panel,
            named=True,
            books=job.books(run_dir),
        )

    @property
    def server(self) -> Server:
        """The federation's server."""
        if self.strategy.server is None:
            raise PrivacyError("The federation has not begun.")
        return self.strategy.server

    def run(self, progress: Progress = quiet) -> Label:
        """Take the remaining rounds in a simulation and return the label."""
        from flwr.serverapp import ServerApp

        made, server_app = list[Label](), ServerApp()

        @server_app.main()  # type: ignore[untyped-decorator]
        def main(grid: Any, context: Context) -> None:
            made.append(self.serve(grid, progress))

        with quiet_flower():
            simulate(server_app, client_app(self._make), self.job.plan.clients)
        if not made:
            raise RuntimeError("Flower's simulation ended early; its log says why.")
        return made[0]

    def serve(self, grid: Any, progress: Progress = quiet) -> Label:
        """Be the server of a Flower app: take the remaining rounds over a grid's nodes and return the label."""
        from flwr.app import ArrayRecord

        def show(number: int, arrays: ArrayRecord) -> None:
            self.model.load_state_dict(arrays.to_torch_state_dict())
            if number > begun:
                progress(number, self.job.plan.rounds, "round")

        arrays = self.strategy.open(ArrayRecord(self.model.state_dict()))
        begun = self.server.taken
        self.job.keep(self._folder, FLOWER.name)
        self.strategy.start(grid, arrays, evaluate_fn=show)
        return self.strategy.label(metrics=self.job.score(self.model))


def client_app(make: Make) -> Any:
    """Return the clients' app: guarded by the plan's mod, or by nothing where the plan protects nobody."""
    from tacita.federated.flower_client import instance_privacy, local_training, named_client

    from flwr.clientapp import ClientApp  # isort: skip

    job = make()
    plan, loss, seed = job.plan, job.loss_fn, job.seed
    rate = getattr(job.local, "learning_rate", 1.0)

    def held(context: Context) -> Part:
        return list(make().holdings.values())[int(context.node_config["partition-id"])]

    guard: Any = named_client
    if plan.privacy_level.units:
        guard = instance_privacy(
            plan,
            model=lambda: make().model(),
            loss_fn=loss,
            data=held,
            learning_rate=rate,
            panel=64,  # server and clients are one process, which reports to nobody else
            seed=seed,
        )
    app = ClientApp(mods=[guard])

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        here = make()
        return local_training(message, context, plan, here.model(), loss, held, here.local, seed=seed)

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


FLOWER = Engine(name="flower", prepare=FlowerRun)
