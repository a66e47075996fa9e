"""Figure 6.1: how epsilon grows over rounds for images, by the levels that hold and by the paper's two accounts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from experiments.federated_mnist.federations import fresh, held, loss, read, times_held
from experiments.federated_mnist.settings import RECORD_DELTA, Setting
from experiments.rows import Row
from tacita.accounting import ORDERS, epsilon_from_costs
from tacita.accounting.levels import TOP
from tacita.estimators import student
from tacita.federated import Federation, federation_plan
from tacita.federated.participation import hidden_participation
from tacita.papers import printed_cost_table

RATE, NOISE, CLIP, PANEL = 0.1, 2.0, 2.0, 16
ROUNDS = 300
SHOWN = (1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 300)
HOW = "one candidate, set beforehand; nothing was chosen"


def growth(split: str, clients: int, seed: int, quick: bool) -> Row:
    """Follow images at level parallel, and return the figures of both levels, and the paper's, at some rounds.

    About 100 clients answer a round. Sequentially the same noise lies in the sum: all clients answer, each image has
    its own coin, and its chance to enter a round is the same.
    """
    rounds, answer = 2 if quick else ROUNDS, min(1.0, (10 if quick else 100) / clients)
    setting = Setting(split, clients, None, RECORD_DELTA, rate=answer, rounds=rounds, learning_rate=0.5)
    data, batch = read(setting, choosing=False), RATE * setting.each
    inside: dict[str, Any] = {"record_clip_norm": CLIP, "delta": RECORD_DELTA, "clients": clients, "rounds": rounds}
    inside |= {"local_batch": batch}
    parallel = federation_plan(
        level="parallel", client_rate=answer, record_noise_multiplier=NOISE, record_rate=RATE, **inside
    )
    sequential = federation_plan(
        level="sequential",
        client_rate=1.0,
        record_noise_multiplier=NOISE * (answer * clients) ** 0.5,
        record_rate=RATE * answer,
        **inside,
    )
    model = fresh(setting, data, seed)
    made = Federation(
        model,
        loss,
        ((data.x, data.y), held(setting, data, setting.each, seed)),
        parallel,
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate),
        record_panel=PANEL,
        costs_every=rounds + 1,
        seed=seed,
    )
    papers, points = Papers(made), []
    for now in made:
        papers.hear(now.drawn)
        if now.number in SHOWN or now.number == rounds:
            points.append(
                {
                    "round": now.number,
                    "parallel_worst": parallel.record_worst(made.server.most_steps, RECORD_DELTA).epsilon,
                    "parallel_hidden": hidden_participation(parallel, now.number, RECORD_DELTA).epsilon,
                    "sequential_worst": sequential.record_worst(now.number, RECORD_DELTA).epsilon,
                    "not_a_bound_parallel": papers.epsilon(papers.parallel),
                    "not_a_bound_sequential": papers.epsilon(papers.sequential),
                    "busiest": made.server.most_steps,
                    "accuracy": data.accuracy(model),
                }
            )
    about = {"split": split, "clients": clients, "delta": RECORD_DELTA, "copies": times_held(setting)}
    return {"seeds": [seed], "settings": HOW, **about, "points": points}


class Papers:
    """The federated paper's two accounts of the same run, for comparison: neither is a bound.

    Both multiply rounds as if they were independent. Parallel adds up each round's largest cost of any client;
    sequential takes a client's batch for a share of all images of the federation, and adds up the clients' costs.
    """

    def __init__(self, made: Federation) -> None:
        self._made, self._seen = made, dict.fromkeys(made.clients, 0)
        rates = (RATE, RATE / made.plan.clients)
        self._tables = tuple(printed_cost_table(rate, NOISE, ORDERS) for rate in rates)
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
        """Return the paper's epsilon of some costs."""
        return float(epsilon_from_costs(costs, ORDERS, delta=RECORD_DELTA, notion="strong"))
