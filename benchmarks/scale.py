"""How time and memory grow with records, parameters, clients and writers of a ledger.

    python benchmarks/scale.py
    python benchmarks/scale.py postgresql://alice@localhost/postgres   # ledgers in new databases of that server alone

Prints the tables of docs/explanation/scale.md: CPU seconds on one thread and bytes, in about two minutes. Rows marked
with a star are not measured but follow from the largest measured one by the formula under the table.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psycopg
import torch
from torch import nn

from tacita import BayesianAccountant
from tacita.accounting import NORM_LEVELS
from tacita.accounting.shares import own_epsilons, own_successes
from tacita.accounting.worst import worst_case
from tacita.federated import Federation, Local, federation_plan
from tacita.federated.client import Part
from tacita.ledger import DECLARED, Ledger
from tacita.mechanisms import sampled_gaussian_cost
from tacita.training import PrivateTraining, poisson_sample
from tacita.training.recipes import default_model
from tacita.training.records import Records

STEPS, EVERY, BATCH = 1000, 10, 1024


def cpu(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the fewest CPU seconds of a few runs: what else the machine does only adds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def sampling() -> None:
    """One step's coins."""
    print("\n| records | coins of a step, s | as doubles, s |\n|---|---|---|")
    rng = np.random.default_rng(0)
    for size in (10**5, 10**6, 10**7, 10**8):
        rate = BATCH / size
        ours = cpu(lambda n=size, q=rate: poisson_sample(n, q, rng=rng))
        plain = f"{cpu(lambda n=size, q=rate: np.flatnonzero(rng.random(n) < q)):.2g}" if size <= 10**7 else "-"
        print(f"| {size:,} | {ours:.2g} | {plain} |")


def drifting(records: int) -> BayesianAccountant:
    """Return an account of norms that are log-normal and fall: nearly every record has a history of its own."""
    rng = np.random.default_rng(1)
    accountant = BayesianAccountant(sample_rate=0.00512, noise_multiplier=1.0, steps=STEPS)
    own = 0.8 * rng.normal(size=records)
    for step in range(0, STEPS, EVERY):
        norms = np.exp(-0.2 - 1.5 * step / STEPS + own + 0.4 * rng.normal(size=records))
        accountant.step(np.minimum(norms, 1.0), steps=EVERY)
    return accountant


def figures(accountant: BayesianAccountant) -> None:
    """Compute what a label says of followed records: typical figures, and each one's epsilon and attack success."""
    accountant._curves = None  # as if it were asked for the first time
    for estimator in ("band", "student"):
        accountant.guarantee(delta=1e-5, estimator=estimator)
    worst = accountant.worst_case(delta=1e-5)
    own_epsilons(accountant, worst)
    own_successes(accountant, worst)


def individual_accounts() -> None:
    """Every record's own account over 1000 steps: charging, memory, checkpoint, and the label's figures."""
    print("\n| records | counts, MB | in int64, MB | one charge, s | figures of a label, s | peak of them, MB |")
    print("|---|---|---|---|---|---|")
    worst_case(sample_rate=0.00512, noise_multiplier=1.0, steps=STEPS, delta=1e-5)  # the same for any number
    seconds, megabytes = {}, {}
    for size in (2000, 20_000, 200_000):
        accountant = drifting(size)
        spare = BayesianAccountant(sample_rate=0.00512, noise_multiplier=1.0, steps=STEPS)
        norms = np.random.default_rng(2).random(size)
        charge = cpu(lambda a=spare, n=norms: a.step(n))
        seconds[size] = cpu(lambda a=accountant: figures(a), 2)
        tracemalloc.start()
        figures(accountant)
        megabytes[size] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        _account_row(f"{size:,}", size, charge, seconds[size], megabytes[size])
    each = [(found[200_000] - found[20_000]) / 180_000 for found in (seconds, megabytes)]
    for size in (10**6, 10**7, 10**8):
        more = size - 200_000
        own = (charge * size / 200_000, seconds[200_000] + each[0] * more, megabytes[200_000] + each[1] * more)
        _account_row(f"{size:,} *", size, *own)
    print(f"\n* figures: {1e6 * each[0]:.0f} µs and {1e6 * each[1]:.0f} bytes for each further record")


def _account_row(name: str, size: int, *found: float) -> None:
    charge, seconds, megabytes = found
    counts = size * len(NORM_LEVELS) / 1e6
    print(f"| {name} | {2 * counts:,.0f} | {8 * counts:,.0f} | {charge:.2g} | {seconds:.3g} | {megabytes:,.0f} |")


def _training(model: nn.Module, images: torch.Tensor, **settings: object) -> PrivateTraining:
    labels = torch.randint(0, 10, (len(images),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    declared: dict[str, object] = {"clip_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 256, "steps": STEPS}
    declared |= {"nominal_size": len(images), "panel": 0, **settings}
    return PrivateTraining(model, nn.CrossEntropyLoss(), (images, labels), optimizer=optimizer, **declared)


def measuring() -> None:
    """All records' norms, against one epoch of plain training in shuffled batches of 256."""
    print("\n| model | parameters | norms of 10,000, s | a plain epoch, s | ratio |\n|---|---|---|---|---|")
    images = torch.randn(10_000, 1, 28, 28)
    models = {
        "CNN": default_model((1, 28, 28), 10),
        "MLP": nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
    }
    for name, model in models.items():
        private = _training(model, images, individual_every=EVERY)
        places = np.arange(len(images))

        def norms(private: PrivateTraining = private, places: np.ndarray = places) -> None:
            private.mechanism.norms("training", places, rng=np.random.default_rng(0))

        def epoch(model: nn.Module = model) -> None:
            labels = torch.randint(0, 10, (len(images),))
            for some in torch.randperm(len(images)).split(256):
                model.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(model(images[some]), labels[some]).backward()

        turns = [(cpu(norms, 1), cpu(epoch, 1)) for _ in range(4)]
        ours, plain = (min(times) for times in zip(*turns, strict=True))
        print(f"| {name} | {_size(model):,} | {ours:.3f} | {plain:.3f} | {ours / plain:.2f} |")


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def parameters() -> None:
    """A private step of 256 records, against a plain one, and the largest files of a checkpoint."""
    print("\n| parameters | private step, s | plain step, s | checkpoint, MB |\n|---|---|---|---|")
    images = torch.randn(5000, 1, 28, 28)
    for width in (100, 1000, 4000):
        layers = (nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def plain(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(images[:256]), torch.zeros(256, dtype=torch.long)).backward()
            optimizer.step()

        with tempfile.TemporaryDirectory() as folder:
            private = _training(model, images, run_dir=f"{folder}/run")
            ours, theirs = cpu(private.advance, 4), cpu(plain, 4)
            files = sum(file.stat().st_size for file in Path(folder).glob("run/checkpoints/step-*"))
            private._stepper.pause()  # which lets go of the folder
        print(f"| {_size(model):,} | {ours:.3f} | {theirs:.3f} | {files / 1e6:.1f} |")


def clients() -> None:
    """A round of 20 clients of many, in one process; each holds 50 records of a shared pool."""
    print("\n| clients | setting up, s | a round of about 20, s | memory, MB |\n|---|---|---|---|")
    images, labels = torch.randn(10_000, 16), torch.randint(0, 10, (10_000,))
    pool = Records((images, labels))
    for count in (100, 1000, 10_000, 100_000):
        tracemalloc.start()
        parts = {f"{k:08d}": Part(pool, (50 * k + np.arange(50)) % 10_000) for k in range(count)}
        plan = federation_plan(
            level="client", clients=count, client_rate=20 / count, rounds=100, clip_norm=1.0, noise_multiplier=1.0
        )
        start = time.process_time()
        made = Federation(
            nn.Linear(16, 10),
            nn.functional.cross_entropy,
            parts,
            plan,
            local=Local(batch_size=None, learning_rate=0.1),
            panel=0,
            record_panel=0,
            seed=0,
        )
        setting_up = time.process_time() - start
        memory = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.stop()
        made.advance()
        print(f"| {count:,} | {setting_up:.2f} | {cpu(made.advance, 5):.3f} | {memory:.1f} |")


def _write(path: str, name: str, charges: int) -> None:
    costs = _step_costs()
    with Ledger.open(path) as ledger:
        ledger.open_run(name, mechanism={"steps": charges}, seed_fingerprint=None, seeded=False)
        for first in range(charges):
            ledger.charge(name, first=first, steps=1, costs=costs)


def _step_costs() -> np.ndarray:
    """Return the cost of one step at every order that a ledger keeps."""
    return np.array([float(sampled_gaussian_cost(order, sample_rate=0.01, ratio=1.0)) for order in DECLARED])


def writers(server: str | None = None) -> None:
    """Charges a second of one ledger, with several processes that write to it, and how long opening it takes then.

    Args:
        server: URL of a PostgreSQL server for the ledgers, whose user may make databases; files if there is none.
    """
    print("\n| writers | rows | charges a second (wall) | opening it afterwards, s |\n|---|---|---|---|")
    context = multiprocessing.get_context("fork")
    for count, each in ((1, 300), (2, 150), (8, 40), (1, 3000)):
        with new_database(server) if server else new_file() as place:
            Ledger.create(place).close()
            started = time.perf_counter()
            own = [context.Process(target=_write, args=(place, f"run-{k}", each)) for k in range(count)]
            for process in own:
                process.start()
            for process in own:
                process.join()
            spent = time.perf_counter() - started
            opening = cpu(lambda place=place: Ledger.open(place).close(), 2)
        print(f"| {count} | {count * each} | {count * each / spent:.0f} | {opening:.3f} |")


@contextmanager
def new_file() -> Iterator[str]:
    """Yield where to make a ledger, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "ledger.sqlite")


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Yield the URL of a new database, which is dropped afterwards."""
    name, parts = f"tacita_scale_{os.getpid()}", urlsplit(server)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield parts._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) > 1:
        sys.exit(writers(sys.argv[1]))
    writers()
    sampling()
    individual_accounts()
    measuring()
    parameters()
    clients()
