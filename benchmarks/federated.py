"""CPU time of federated rounds: against Apple's pfl on the same inputs, and against Flower's simulation.

    make bench-federated

Ratios are of runs that take turns in one sitting, since the machine may be shared. A round is 100 of 10,000 clients
with 600 records each and the CNN of 26,010 parameters, on one thread. The parts: both libraries at one local epoch of
small batches and at one full-batch step (FedSGD); what share of a round is not training (coins, clipping, noise,
charges, accounts, at level joint also masking); whether memory grows with rounds; Flower's simulation against the
local engine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tacita.federated import Federation, Local, federation_plan
from tacita.federated.client import Client, Part
from tacita.training.recipes import default_model
from tacita.training.records import Records

HERE = Path(__file__).parent
CLIENTS, COHORT, HELD, POOL = 10_000, 100, 600, 60_000
LOSS = torch.nn.functional.cross_entropy


def pool() -> Records:
    """Return the records that both sides draw from."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(POOL, 1, 28, 28, generator=generator)
    return Records((images, torch.randint(0, 10, (POOL,), generator=generator)))


def holdings(records: Records, clients: int) -> dict[str, Part]:
    """Return what each client holds."""
    return {f"{k:06d}": Part(records, (k * HELD + np.arange(HELD)) % POOL) for k in range(clients)}


def federation(batch: int, level: str = "client") -> Federation:
    """Return the federation to time."""
    declared: dict[str, object] = {"level": level, "clients": CLIENTS, "client_rate": COHORT / CLIENTS, "rounds": 1000}
    declared |= {"noise_multiplier": 1.0}
    if level == "joint":
        declared |= {"record_clip_norm": 1.0, "record_rate": 1.0, "local_batch": HELD}
    torch.manual_seed(0)
    local = Local(batch_size=None if batch >= HELD else batch, learning_rate=0.1)
    return Federation(
        default_model((1, 28, 28), 10),
        LOSS,
        holdings(pool(), CLIENTS),
        federation_plan(**declared),  # type: ignore[arg-type]
        local=local,
        panel=0,
        record_panel=0,
        seed=0,
    )


def measure(batch: int, rounds: int, level: str = "client") -> dict[str, object]:
    """Return the CPU time of a round of 100 clients, the share that is not training, and memory early and late."""
    made, training = federation(batch, level), [0.0]
    plain = Client.update

    def timed(self: Client, *args: object) -> object:
        start = time.process_time()
        update = plain(self, *args)  # type: ignore[arg-type]
        training[0] += time.process_time() - start
        return update

    Client.update = timed  # type: ignore[method-assign,assignment]
    try:
        made.advance()
        early, training[0], each, drawn = _memory(), 0.0, [], 0
        for _ in range(rounds):
            start = time.process_time()
            now = made.advance()
            spent = time.process_time() - start
            each.append(spent * COHORT / max(1, len(now.drawn) if now else 0))
            drawn += len(now.drawn) if now else 0
    finally:
        Client.update = plain  # type: ignore[method-assign]
    whole = sum(each) * drawn / rounds / COHORT
    return {
        "cpu_seconds_per_round": statistics.median(each),
        "not_training": 1.0 - training[0] / whole,
        "memory_mib": [early, _memory()],
    }


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_turns(batch: int, python: str, turns: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return seconds of both libraries, each run in a fresh process, taking turns."""
    ours, theirs = [], []
    for _ in range(turns):
        peer = [python, str(HERE / "federated_pfl.py"), "--batch", str(batch), "--rounds", str(rounds)]
        own = [sys.executable, __file__, "--one", str(batch), "--rounds", str(rounds)]
        for command, found in ((peer, theirs), (own, ours)):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(float(json.loads(done.stdout.splitlines()[-1])["cpu_seconds_per_round"]))
    return ours, theirs


def _held(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's own records, made anew: what a worker of the simulation would have to read."""
    generator = torch.Generator().manual_seed(partition)
    return torch.randn(HELD, 1, 28, 28, generator=generator), torch.randint(0, 10, (HELD,), generator=generator)


NETWORK = partial(default_model, (1, 28, 28), 10)


def flower_seconds(rounds: int) -> float:
    """Return the wall-clock seconds of a round of 100 clients in Flower's simulation, on one core."""
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    from tacita.federated.engines.flower import quiet_flower, simulate
    from tacita.federated.flower import PrivateStrategy
    from tacita.federated.flower_client import local_training, named_client

    plan = federation_plan(level="client", clients=COHORT, client_rate=1.0, rounds=rounds + 1, noise_multiplier=1.0)
    client, server, ends = ClientApp(mods=[named_client]), ServerApp(), list[float]()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        held = _held(int(context.node_config["partition-id"]))
        return local_training(message, context, plan, NETWORK(), LOSS, lambda _: held, Local(learning_rate=0.1))

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = PrivateStrategy(FedAvg(fraction_evaluate=0.0, min_available_nodes=COHORT), plan=plan, named=True)
        strategy.start(
            grid, ArrayRecord(NETWORK().state_dict()), evaluate_fn=lambda *_: ends.append(time.perf_counter())
        )

    with quiet_flower():
        simulate(server, client, COHORT, cores=1)
    return statistics.median(np.diff(ends)[1:])


def local_seconds(rounds: int) -> float:
    """Return the wall-clock seconds of the same rounds in this process."""
    plan = federation_plan(level="client", clients=COHORT, client_rate=1.0, rounds=rounds + 1, noise_multiplier=1.0)
    clients = {f"{k:06d}": _held(k) for k in range(COHORT)}
    made, ends = Federation(NETWORK(), LOSS, clients, plan, local=Local(learning_rate=0.1), panel=0), list[float]()
    for _ in range(rounds + 1):
        made.advance()
        ends.append(time.perf_counter())
    return statistics.median(np.diff(ends))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pfl", help="the Python of an environment with pfl 0.6")
    options.add_argument("--one", type=int, help="time this batch size alone, as JSON")
    options.add_argument("--flower", action="store_true", help="time Flower's simulation alone")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.one is not None:
        print(json.dumps(measure(chosen.one, chosen.rounds)))
        return
    if chosen.flower:
        _print_flower(chosen.rounds)
        return
    if chosen.pfl:
        for batch in (50, 600):
            ours, theirs = in_turns(batch, chosen.pfl, chosen.turns, chosen.rounds)
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            seconds = f"tacita {statistics.median(ours):.2f} s, pfl {statistics.median(theirs):.2f} s of CPU a round"
            print(f"batch {batch}: {seconds}; ratio {ratio:.2f}", flush=True)
    for level in ("client", "joint"):
        found = measure(HELD, chosen.rounds, level)
        early, late = found["memory_mib"]  # type: ignore[misc]
        share = f"{found['not_training']:.1%} of a round is not training"
        print(f"level {level}: {share}; memory {early:.0f} MiB after one round, {late:.0f} at the end", flush=True)
    _print_flower(chosen.rounds)


def _print_flower(rounds: int) -> None:
    flower, local = flower_seconds(rounds), local_seconds(rounds)
    print(f"Flower's simulation: {flower:.2f} s a round, local engine {local:.2f} s; ratio {flower / local:.2f}")


if __name__ == "__main__":
    main()
