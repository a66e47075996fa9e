"""Speed of a private inference step as a ratio: against a step of Pyro's own SVI, interleaved in one run.

Logistic regression of 4,000 records on 20 features with an intercept, batches of 400, one thread, CPU time. Ours is
what `tacita.inference.fit` does in a step: Poisson sampling, every record's gradient through the Pyro model, clipping,
noise, the guide's update, ledger on disk; without followed records (their gradients are extra, and shown apart). Pyro's
is an AutoDiagonalNormal guide, Trace_ELBO and Adam on a minibatch that the model's plate scales up.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor
from turns import median_seconds

from tacita.inference.methods.private_steps import Noisy
from tacita.inference.request import Settings
from tacita.inference.separation import separate
from tacita.training import PrivateTraining

ROUNDS, WARM_UP, RECORDS, FEATURES, RATE = 200, 20, 4000, 20, 0.1


def data() -> tuple[Tensor, Tensor]:
    """Return records that a logistic regression fits."""
    x = torch.randn(RECORDS, FEATURES)
    return x, torch.bernoulli(torch.sigmoid(x @ torch.linspace(-1.0, 1.0, FEATURES)))


def logistic(x: Tensor, y: Tensor) -> None:
    """Logistic regression, as for the whole data."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def scaled(x: Tensor, y: Tensor) -> None:
    """The same model for Pyro's SVI, whose plate scales a minibatch up to all records."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
    with pyro.plate("records", RECORDS, subsample=torch.arange(len(x))):
        pyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def svi(*, checked: bool) -> Callable[[], object]:
    """Return a step of Pyro's SVI on a minibatch of 400, as Pyro is by default or without its checks of values."""
    x, y = data()
    guide = AutoDiagonalNormal(scaled, init_scale=0.1)
    run = SVI(scaled, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())

    def step() -> None:
        batch = torch.randint(0, RECORDS, (int(RATE * RECORDS),))
        with pyro.validation_enabled(checked):
            run.step(x[batch], y[batch])

    return step


def ours(folder: Path, panel: int) -> Callable[[], object]:
    """Return a step of the shipped fit, whose batches vary around 400."""
    tensors = data()
    settings = Settings(sample_rate=RATE, steps=10_000)
    evidence, optimizer = Noisy().parts(separate(logistic, tensors), settings, 0)
    private = PrivateTraining(
        evidence,
        None,
        tensors,
        optimizer=optimizer,
        sample_rate=RATE,
        steps=settings.steps,
        noise_multiplier=10.0,
        batch_size=1.0,
        panel=panel,
        ledger=folder / f"ledger-{panel}.sqlite",
    )
    return iter(private).__next__


def main() -> None:
    """Print medians and ratios."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        steps = {"Pyro SVI": svi(checked=True), "Pyro SVI, unchecked": svi(checked=False)}
        steps |= {"ours": ours(where, 0), "ours, 256 followed": ours(where, 256)}
        medians = median_seconds(steps, time.process_time, rounds=ROUNDS, warm_up=WARM_UP)
    for name, value in medians.items():
        print(f"{name:20} {1e3 * value:7.2f} ms   {value / medians['Pyro SVI']:5.2f} of Pyro SVI")


if __name__ == "__main__":
    main()
