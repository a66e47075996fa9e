"""Engine local: all clients in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tacita._progress import Progress, quiet
from tacita.federated.engines.engine import Engine, Make
from tacita.federated.local import Federation
from tacita.federated.server import Server
from tacita.label import Label


class LocalRun:
    """A job in this process, ready to take its rounds and return its label.

    Args:
        make: Creates the job.
        run_dir: Where the run is written.
        resume: Whether it goes on with the run that is there.
    """

    def __init__(self, make: Make, run_dir: Path, *, resume: bool) -> None:
        job = self.job = make()
        self.model = job.model()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=job.server_rate, momentum=job.momentum)
        settings: dict[str, Any] = {"local": job.local, "optimizer": optimizer, "dropout": job.dropout}
        if resume:
            self._federation = Federation.resume(run_dir, self.model, job.loss_fn, job.holdings, **settings)
            return
        settings |= {"panel": job.panel, "books": job.books(run_dir)}
        self._federation = Federation(self.model, job.loss_fn, job.holdings, job.plan, **settings)
        job.keep(run_dir, LOCAL.name)

    @property
    def server(self) -> Server:
        """The federation's server."""
        return self._federation.server

    def run(self, progress: Progress = quiet) -> Label:
        """Take the remaining rounds and return the label."""
        for now in self._federation:
            progress(now.number, self.job.plan.rounds, "round")
        return self._federation.label(metrics=self.job.score(self.model))


LOCAL = Engine(name="local", prepare=LocalRun, simulates_dropout=True)
