"""Engine local: all clients in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacita.federated.engines.engine import Engine, Progress, Rounds
from tacita.federated.local import Federation, client_name
from tacita.federated.recipes import Recipe, books_for, holdout_metrics, keep_recipe, ready, server_rates
from tacita.label import Label


def prepare(recipe: Recipe, run_dir: str | Path, *, resume: bool = False) -> Rounds:
    """Return a federation in this process, ready to take its rounds and return its label.

    Args:
        recipe: What to run.
        run_dir: Where the run is written.
        resume: Whether it goes on with the run that is there.
    """
    this = ready(recipe)
    model = this.model()
    momentum, rate = server_rates(recipe)
    clients = {client_name(i): this.held_by(i) for i in range(recipe.clients)}
    settings: dict[str, Any] = {
        "local": this.local,
        "optimizer": torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum),
        "dropout": recipe.dropout,
    }
    loss = nn.functional.cross_entropy
    if resume:
        federation = Federation.resume(run_dir, model, loss, clients, **settings)
    else:
        federation = Federation(model, loss, clients, this.plan, books=books_for(recipe, run_dir), **settings)
        keep_recipe(recipe, run_dir, "local")

    def run(progress: Progress | None = None) -> Label:
        for _ in federation:
            if progress is not None:
                progress(federation.server, this.accuracy(model))
        return federation.label(metrics=holdout_metrics(this, model))

    return run


LOCAL = Engine(name="local", prepare=prepare, simulates_dropout=True)
