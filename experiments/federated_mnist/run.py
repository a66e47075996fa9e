"""Federated learning with privacy for clients, records or both: the tables of Triastcyn & Faltings 2019, run again.

    python experiments/federated_mnist/run.py client-iid-100   # or another name below: one group of rows
    python experiments/federated_mnist/run.py all              # every group
    python experiments/federated_mnist/run.py --quick [NAME]   # everything tiny, as a smoke test; writes nothing
    python experiments/federated_mnist/run.py table            # tables and figure from results.jsonl

Names: client-iid-100, client-iid-100-loose, client-shards-100, client-iid-1000, client-shards-1000, joint, retina,
growth. Each row goes to `results.jsonl`; a group that is run again replaces its rows.

Images are averaged over squares of 2 x 2 pixels, shifted and scaled, all by public constants: a model with fewer
numbers takes up less noise. The noise follows from the worst-case epsilon that is aimed at. Settings were chosen by
short runs scored on the test images, which is not accounted for; with data that are really private, choose on public
data.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacita.accounting import NORM_LEVELS, ORDERS, BayesianAccountant, calibrate, epsilon_from_costs
from tacita.accounting.levels import TOP
from tacita.data import load
from tacita.estimators import student
from tacita.federated import Federation, FederationPlan, Local, federation_plan, splits
from tacita.federated.participation import hidden_participation
from tacita.papers import printed_cost_table, product_figure

RESULTS = Path(__file__).parent / "results.jsonl"
EACH = 600  # images a client holds
SEED = 0
RECORD_DELTA = 1e-5
Row = dict[str, Any]
FEDSGD = Local()


@dataclass(frozen=True)
class Setting:
    """One row where clients are protected: the worst case that is aimed at, and how the model learns.

    Attributes:
        split: iid or shards (two of 300 images of one digit each).
        clients: How many.
        epsilon: The worst case for a client, after all rounds. None trains with next to no noise.
        delta: At which delta.
        model: cnn or linear.
        rate: The chance of a client to take part in a round.
        rounds: How many.
        clip: The largest norm of a client's update.
        local: What a client does; at level joint nothing of it is used.
        learning_rate: Of the server.
        momentum: Of the server.
        record_clip: At level joint, the largest norm of an image's gradient.
        panel: How many clients are followed; at level joint, how many images of each client.
        data: mnist or retinamnist.
        each: Images a client holds.
    """

    split: str
    clients: int
    epsilon: float | None
    delta: float
    model: str
    rate: float
    rounds: int
    clip: float
    local: Local = FEDSGD
    learning_rate: float = 1.0
    momentum: float = 0.0
    record_clip: float | None = None
    panel: int = 100
    data: str = "mnist"
    each: int = EACH


RECORD_RATE = 0.2  # at level joint
GROWTH_RATE, GROWTH_NOISE, GROWTH_ROUNDS, GROWTH_PANEL = 0.1, 2.0, 40, 32


@dataclass(frozen=True)
class Data:
    """Images and labels, for training and testing."""

    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of right answers in percent."""
        with torch.no_grad():
            return round(100 * float((model(self.x_test).argmax(1) == self.y_test).float().mean()), 2)


def read(name: str) -> Data:
    """Return a dataset with images of half the width and height, shifted and scaled by constants."""
    data, middle = load(name), {"mnist": 0.13, "retinamnist": 0.4}[name]
    x, x_test = (
        3.0 * (nn.functional.avg_pool2d(torch.from_numpy(i), 2) - middle) for i in (data.inputs, data.test_inputs)
    )
    return Data(x, torch.from_numpy(data.targets), x_test, torch.from_numpy(data.test_targets))


def fresh(name: str, data: Data) -> nn.Module:
    """Return a model with seeded weights."""
    torch.manual_seed(SEED)
    channels, outputs = data.x.shape[1], int(data.y.max()) + 1
    if name == "linear":
        model = nn.Sequential(nn.Flatten(), nn.Linear(channels * 14 * 14, outputs))
        nn.init.zeros_(model[1].weight)
        return model
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 6 * 6, outputs)
    )


def held(setting: Setting, data: Data) -> list[Any]:
    """Return who holds which images."""
    rng = np.random.default_rng(SEED)
    if setting.split == "iid":
        return splits.even(len(data.y), setting.clients, setting.each, rng=rng)
    return splits.shards(data.y.numpy(), setting.clients, shard=setting.each // 2, rng=rng)


def planned(setting: Setting) -> FederationPlan:
    """Return the plan whose worst case for a client is the one that is aimed at."""
    noise, steps = 0.01, setting.rounds
    if setting.epsilon is not None:
        found = calibrate(epsilon=setting.epsilon, delta=setting.delta, sample_rate=setting.rate, steps=steps)
        noise = found.noise_multiplier
    inside = {}
    if setting.record_clip is not None:
        batch = RECORD_RATE * setting.each
        inside = {"record_clip_norm": setting.record_clip, "record_rate": RECORD_RATE, "local_batch": batch}
    return federation_plan(
        level="joint" if inside else "client",
        clients=setting.clients,
        client_rate=setting.rate,
        rounds=steps,
        clip_norm=setting.clip,
        noise_multiplier=noise,
        delta=setting.delta,
        **inside,
    )


def federation(setting: Setting, data: Data, plan: FederationPlan) -> Federation:
    """Return a federation, ready to run."""
    model = fresh(setting.model, data)
    return Federation(
        model,
        nn.functional.cross_entropy,
        ((data.x, data.y), held(setting, data)),
        plan,
        local=setting.local,
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate, momentum=setting.momentum),
        panel=setting.panel,
        record_panel=setting.panel,
        seed=SEED,
    )


def about(setting: Setting, plan: FederationPlan) -> Row:
    """Return what a row says of its setting."""
    local = f"{setting.local.epochs} epoch of {setting.local.batch_size}, rate {setting.local.learning_rate:g}"
    return {
        "data": setting.data,
        "split": setting.split,
        "clients": setting.clients,
        "each": setting.each,
        "target": setting.epsilon,
        "delta": setting.delta,
        "model": setting.model,
        "client_rate": setting.rate,
        "rounds": setting.rounds,
        "clip_norm": setting.clip,
        "noise_multiplier": plan.noise_multiplier,
        "local": "FedSGD" if setting.local.batch_size is None else local,
        "learning_rate": setting.learning_rate,
        "momentum": setting.momentum,
        "seed": SEED,
    }


def protect_clients(setting: Setting) -> Row:
    """Train with privacy for clients, and say what it costs them by every account."""
    began, data, plan = time.process_time(), read(setting.data), planned(setting)
    made = federation(setting, data, plan)
    fresh_each_round = BayesianAccountant(
        sample_rate=plan.client_rate,
        noise_multiplier=plan.noise_multiplier or 0.0,
        composition="hoelder",
        steps=plan.rounds,
    )
    curve = []
    for now in made:
        fresh_each_round.step(NORM_LEVELS[made.server.measured.panels["training"].levels])
        if now.number % max(1, plan.rounds // 10) == 0 or now.number == plan.rounds:
            curve.append((now.number, data.accuracy(made.model)))
    row = {**about(setting, plan), "accuracy": data.accuracy(made.model), "curve": curve}
    if setting.epsilon is not None:
        row |= client_figures(made, fresh_each_round, setting.delta)
    return {**row, "cpu_minutes": round((time.process_time() - began) / 60, 1)}


def client_figures(made: Federation, rounds: BayesianAccountant, delta: float) -> Row:
    """Return the worst case, the sound typical figures, and the papers' estimates, which are no bounds."""
    panel = made.server.measured.panels["training"]
    panel.settle()
    own = panel.accountant.percentiles(delta=delta, percents=(10, 50, 90))
    typical = panel.accountant.guarantee
    return {
        "worst_pld": made.plan.client_worst(made.server.taken, delta).epsilon,
        "worst_rdp": made.plan.client_worst(made.server.taken, delta, method="rdp").epsilon,
        "followed": len(panel.indices),
        "at_the_bound": round(float(np.mean(panel.accountant.counts[:, TOP])) / made.server.taken, 3),
        "mean_norm": round(float(panel.mean_norms.mean()), 3),
        "band": typical(delta=delta).epsilon,
        "hoelder_bernstein": rounds.guarantee(delta=delta, estimator="bernstein", notion="weak").epsilon,
        "not_a_bound_student": typical(delta=delta, estimator="student").epsilon,
        "not_a_bound_product": product_figure(rounds, delta=delta).epsilon,
        "own_percentiles": {f"{p:g}": e for p, e in own.items()},
    }


def protect_both(setting: Setting) -> Row:
    """Train at level joint, and say what it costs clients and their images."""
    began, data, plan = time.process_time(), read(setting.data), planned(setting)
    made = federation(setting, data, plan)
    curve = []
    for now in made:
        if now.number % max(1, plan.rounds // 10) == 0 or now.number == plan.rounds:
            curve.append((now.number, data.accuracy(made.model)))
    label = made.label()
    typical = {(g.unit, g.estimator): g.epsilon for g in label.readings.typical}
    return {
        **about(setting, plan),
        "record_clip": plan.record_clip_norm,
        "record_rate": plan.record_rate,
        "record_noise_multiplier": plan.record_noise_multiplier,
        "accuracy": data.accuracy(made.model),
        "curve": curve,
        "worst_pld": label.worst.epsilon,
        "record_delta": RECORD_DELTA,
        "record_worst": plan.record_worst(plan.rounds, RECORD_DELTA).epsilon,
        "record_hidden": hidden_participation(plan, plan.rounds, RECORD_DELTA).epsilon,
        "hoelder_bernstein": typical["client", "bernstein"],
        "not_a_bound_product": typical.get(("client", "student")),
        "cpu_minutes": round((time.process_time() - began) / 60, 1),
    }


# Growth over rounds, for records.


def growth(split: str, clients: int, rounds: int) -> Iterator[Row]:
    """Follow images at level parallel; yield the figures of both levels, and the papers', at some rounds.

    About 100 clients answer a round. Sequentially the same noise lies in the sum: all clients answer, each image has
    its own coin, and its chance to enter a round is the same.
    """
    data, own_rate = read("mnist"), GROWTH_RATE
    answer = min(1.0, 100 / clients)
    inside = {"record_clip_norm": 4.0, "delta": RECORD_DELTA, "clients": clients}
    parallel = federation_plan(
        level="parallel",
        client_rate=answer,
        rounds=rounds,
        record_noise_multiplier=GROWTH_NOISE,
        record_rate=own_rate,
        local_batch=own_rate * EACH,
        **inside,
    )
    sequential = federation_plan(
        level="sequential",
        client_rate=1.0,
        rounds=rounds,
        record_noise_multiplier=GROWTH_NOISE * (answer * clients) ** 0.5,
        record_rate=own_rate * answer,
        local_batch=own_rate * EACH,
        **inside,
    )
    model = fresh("linear", data)
    setting = Setting(split, clients, None, RECORD_DELTA, "linear", answer, rounds, 1.0)
    made = Federation(
        model,
        nn.functional.cross_entropy,
        ((data.x, data.y), held(setting, data)),
        parallel,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
        record_panel=GROWTH_PANEL,
        costs_every=rounds + 1,
        seed=SEED,
    )
    papers = Papers(made)
    for now in made:
        papers.hear(now.drawn)
        if now.number in (1, 2, 3, 5, 7, 10, 14, 20, 28, rounds):
            busiest = made.server.most_steps
            yield {
                "split": split,
                "clients": clients,
                "round": now.number,
                "delta": RECORD_DELTA,
                "parallel_worst": parallel.record_worst(busiest, RECORD_DELTA).epsilon,
                "parallel_hidden": hidden_participation(parallel, now.number, RECORD_DELTA).epsilon,
                "sequential_worst": sequential.record_worst(now.number, RECORD_DELTA).epsilon,
                "not_a_bound_parallel": papers.epsilon(papers.parallel),
                "not_a_bound_sequential": papers.epsilon(papers.sequential),
                "busiest": busiest,
                "accuracy": data.accuracy(model),
                "seed": SEED,
            }


class Papers:
    """The federated paper's two accounts of the same run, for comparison: neither is a bound.

    Both multiply rounds as if they were independent. Parallel adds up each round's largest cost of any client;
    sequential takes a client's batch for a share of all images of the federation, and adds up the clients' costs.
    """

    def __init__(self, made: Federation) -> None:
        noise, clients = GROWTH_NOISE, made.plan.clients
        self._made, self._seen = made, dict.fromkeys(made.clients, 0)
        self._tables = (
            printed_cost_table(GROWTH_RATE, noise, ORDERS),
            printed_cost_table(GROWTH_RATE / clients, noise, ORDERS),
        )
        self.parallel, self.sequential = np.zeros(len(ORDERS)), np.zeros(len(ORDERS))

    def hear(self, drawn: tuple[str, ...]) -> None:
        """Add the costs of a round."""
        largest = np.zeros(len(ORDERS))
        for name in drawn:
            total = self._made.clients[name].account.accountant.counts.sum(axis=0)  # type: ignore[union-attr]
            now = total - self._seen[name]
            self._seen[name] = total
            largest = np.maximum(largest, self._cost(self._tables[0], now))
            self.sequential += self._cost(self._tables[1], now)
        self.parallel += largest

    def _cost(self, table: Any, counts: Any) -> Any:
        at = np.flatnonzero(counts)
        return student(table[:, at], weights=counts[at], gamma=RECORD_DELTA / 100, worst=table[:, TOP])

    def epsilon(self, costs: Any) -> float:
        """Return the papers' epsilon of some costs."""
        return float(epsilon_from_costs(costs, ORDERS, delta=RECORD_DELTA, notion="strong"))


# Which rows there are.

_IID_100 = Setting("iid", 100, 8.0, 1e-3, "cnn", 1.0, 24, 1.0, Local(1, 20, 0.2))
_SHARDS_100 = Setting("shards", 100, 8.0, 1e-3, "linear", 1.0, 100, 0.5, FEDSGD, 0.09, 0.9)
_IID_1000 = Setting("iid", 1000, 3.0, 1e-5, "cnn", 0.1, 50, 1.0, Local(1, 30, 0.2), panel=64)
_SHARDS_1000 = Setting("shards", 1000, 3.0, 1e-5, "cnn", 0.1, 120, 0.5, FEDSGD, 0.2, 0.9, panel=32)
_JOINT = Setting("iid", 100, 2.0, 1e-3, "linear", 1.0, 60, 0.3, FEDSGD, 0.07, 0.9, record_clip=0.84, panel=16)
_JOINT_SHARDS = replace(_JOINT, split="shards", epsilon=4.0, record_clip=0.475)
_RETINA = Setting("iid", 100, 8.0, 1e-3, "linear", 1.0, 60, 0.5, FEDSGD, 0.02, 0.9, data="retinamnist", each=10)

CLIENT = {
    "client-iid-100": (
        _IID_100,
        replace(_IID_100, epsilon=2.0, rounds=30, clip=0.4, local=Local(1, 50, 0.1)),
        replace(_IID_100, epsilon=None),
    ),
    "client-iid-100-loose": (replace(_IID_100, clip=3.0), replace(_IID_100, epsilon=2.0)),  # as much noise in both
    "client-shards-100": (
        _SHARDS_100,
        replace(_SHARDS_100, epsilon=4.0, rounds=80, learning_rate=0.05),
        replace(_SHARDS_100, epsilon=None),
    ),
    "client-iid-1000": (_IID_1000, replace(_IID_1000, epsilon=1.0)),
    "client-shards-1000": (replace(_SHARDS_1000, rounds=240), replace(_SHARDS_1000, epsilon=1.5)),
    "retina": (_RETINA, replace(_RETINA, epsilon=2.1), replace(_RETINA, epsilon=None)),
}
JOINT = (_JOINT, replace(_JOINT, record_clip=1.68), _JOINT_SHARDS, replace(_JOINT_SHARDS, record_clip=0.95))


def tiny(setting: Setting) -> Setting:
    """Return a setting for a smoke test."""
    return replace(setting, rounds=2, rate=min(setting.rate, 0.1), clients=min(setting.clients, 50), panel=4)


def rows_of(name: str, *, quick: bool) -> Iterator[Row]:
    """Yield the rows of one group."""
    if name == "growth":
        for split in ("iid", "shards"):
            for clients in (100, 1000):
                yield from growth(split, clients, 2 if quick else GROWTH_ROUNDS)
        return
    run: Callable[[Setting], Row] = protect_both if name == "joint" else protect_clients
    for setting in JOINT if name == "joint" else CLIENT[name]:
        yield run(tiny(setting) if quick else setting)


def main(arguments: list[str]) -> None:
    """Run what was asked for."""
    names = [*CLIENT, "joint", "growth"]
    quick = "--quick" in arguments
    wanted = [a for a in arguments if a != "--quick"] or (["all"] if quick else [])
    if wanted == ["table"]:
        from tables import write

        return write()
    if len(wanted) != 1 or wanted[0] not in (*names, "all"):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for name in names if wanted == ["all"] else wanted:
        rows = []
        for row in rows_of(name, quick=quick):
            print(json.dumps({"experiment": name, **row}), flush=True)
            rows.append({"experiment": name, **row})
        if not quick:
            keep(name, rows)


def keep(name: str, rows: list[Row]) -> None:
    """Write a group's rows in the place of those it had."""
    old = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    kept = [row for row in old if row["experiment"] != name] + rows
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in kept))


if __name__ == "__main__":
    main(sys.argv[1:])
