"""CPU time of a round of federated averaging with client-level central DP in Apple's pfl, as one line of JSON.

pfl wants an older dp-accounting than this project, so this file imports nothing of the project and runs in an
environment of its own:

    python -m venv pfl && pfl/bin/pip install "pfl[pytorch]==0.6.*" torch==2.13.0
    pfl/bin/python benchmarks/federated_pfl.py --batch 50    # one local epoch of small batches
    pfl/bin/python benchmarks/federated_pfl.py --batch 600   # one full-batch step, i.e. FedSGD

A 28x28 CNN of 26,010 parameters, one thread, plain SGD with a learning rate of 0.1. Each client's update is clipped
to an L2 norm of 1 and the sum gets Gaussian noise. These are the fastest settings found for pfl: every client is
made before the clock starts, as views of one pool of records in memory; nothing is evaluated or printed; and the
weights are laid out channels last, for a faster max-pool in torch (`--layout contiguous` shows its default).
Compiling the loss, torch's data loader and fused or foreach optimisers were no faster.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
import warnings
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import nn

LAYOUTS = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}
POOL, LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER = 60_000, 0.1, 1.0, 1.0


class Classifier(nn.Sequential):
    """The CNN, with the two methods that pfl asks of a model."""

    def __init__(self) -> None:
        """Build the layers."""
        pool = nn.MaxPool2d(2, 1)
        front = nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), pool, nn.Conv2d(16, 32, 4, 2), nn.Tanh(), pool
        super().__init__(*front, nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return nn.functional.cross_entropy(self(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, object]:
        """Return no metrics: pfl always evaluates in its first round, and this makes that free."""
        return {}


class Clock(TrainingProcessCallback):
    """Reads the process's CPU time, user and system, between rounds."""

    def on_train_begin(self, *, model: object) -> Metrics:
        """Note when training starts."""
        self.readings = [time.process_time()]
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: object, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note when a round ends, after the server's update."""
        self.readings.append(time.process_time())
        return False, Metrics()


def federation(clients: int, records: int) -> FederatedDataset:
    """Return clients that share one pool of random records; a client that does not wrap around is a view of it."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(POOL, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (POOL,), generator=generator)

    def client(number: int) -> PyTorchTensorDataset:
        first = number * records % POOL
        fits = first + records <= POOL
        held = slice(first, first + records) if fits else (first + torch.arange(records)) % POOL
        return PyTorchTensorDataset((images[held], labels[held]))

    made = [client(number) for number in range(clients)]
    return FederatedDataset(made.__getitem__, get_user_sampler("minimize_reuse", range(clients)))


def measure(rounds: int, cohort: int, clients: int, records: int, batch: int, layout: str) -> dict[str, object]:
    """Return the CPU time of each round but the first, the peak of memory, and the setting."""
    torch.manual_seed(0)
    network = Classifier().to(memory_format=LAYOUTS[layout])
    data, clock = federation(clients, records), Clock()
    mechanism = GaussianMechanism(CLIP_NORM, NOISE_MULTIPLIER)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]),
        PyTorchModel(
            network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
        ),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=batch),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    seconds = [end - start for start, end in zip(clock.readings[1:], clock.readings[2:], strict=False)]
    return {
        "library": f"pfl {version('pfl')}",
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "clients": clients,
        "records": records,
        "cohort": cohort,
        "batch": batch,
        "layout": layout,
        "cpu_seconds_per_round": statistics.median(seconds),
        "cpu_seconds": seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print one line of JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7, help="timed rounds, after one to warm up")
    options.add_argument("--cohort", type=int, default=100, help="clients a round")
    options.add_argument("--clients", type=int, default=10_000, help="clients in all")
    options.add_argument("--records", type=int, default=600, help="records a client")
    options.add_argument("--batch", type=int, default=50, help="records a local step")
    options.add_argument("--layout", choices=LAYOUTS, default="channels-last", help="how the weights lie in memory")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps(measure(**vars(options.parse_args()))))


if __name__ == "__main__":
    main()
