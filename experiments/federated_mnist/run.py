"""Federated learning with privacy for clients, records or both: chapter 6 of the thesis (Triastcyn & Faltings 2019).

    python -m experiments.federated_mnist.choose             # candidates of every setting, on held-out training images
    python -m experiments.federated_mnist.run                # every row that results.jsonl does not hold
    python -m experiments.federated_mnist.run "table 6.2 *"  # some of them
    python -m experiments.federated_mnist.run --quick        # everything tiny, into quick.jsonl

One row per setting and seed. The noise follows from the worst-case epsilon that is aimed at. Settings come from
`choices.jsonl`: run `choose` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from experiments.federated_mnist.federations import noise_multiplier, started, trained
from experiments.federated_mnist.growth import growth
from experiments.federated_mnist.settings import FOLDER, RECORD_DELTA, Setting, chosen, tables
from experiments.rows import Jobs, Row, main
from tacita.accounting import NORM_LEVELS, BayesianAccountant
from tacita.accounting.levels import TOP
from tacita.federated import Federation, FederationPlan
from tacita.federated.participation import hidden_participation
from tacita.papers import product_figure

SEEDS = (0, 1, 2)
HOW = "chosen on the last sixth of the training images, which is not paid for; then trained on all of them"
ONLY = "one candidate, set beforehand; nothing was chosen"


def measure(setting: Setting, seed: int, how: str) -> Row:
    """Train one federation, and say what it costs by every account; typical figures with the first seed only."""
    follow = setting.panel if seed == SEEDS[0] and setting.scheme == "client" else 0
    made, data, own = started(setting, seed, panel=follow)
    rounds, curve = _fresh_each_round(made) if follow else None, []
    if rounds is None:
        curve = trained(made, data, points=50)
    else:
        every = max(1, setting.rounds // 50)
        for now in made:
            rounds.step(NORM_LEVELS[made.server.measured.panels["training"].levels])
            if now.number % every == 0 or now.number == setting.rounds:
                curve.append((now.number, data.accuracy(made.model)))
    row = {"seeds": [seed], "settings": how, **asdict(setting), "accuracy": curve[-1][1], "curve": curve}
    if made.plan.noise_multiplier is not None:
        row["noise_multiplier"] = made.plan.noise_multiplier
        row["worst_pld"] = made.plan.client_worst(made.server.taken, setting.delta).epsilon
        row["worst_rdp"] = made.plan.client_worst(made.server.taken, setting.delta, method="rdp").epsilon
    if rounds is not None:
        row |= typical_figures(made, rounds, setting.delta)
    if setting.scheme == "joint":
        found = {(g.unit, g.estimator): g.epsilon for g in made.label().readings.typical}
        row["hoelder_bernstein"] = found.get(("client", "bernstein"))
        row["not_a_bound_product"] = found.get(("client", "student"))
    protected = own or (made.plan if setting.scheme == "joint" else None)
    return row | (record_figures(protected) if protected is not None else {})


def record_figures(plan: FederationPlan) -> Row:
    """Return what an image costs, over all clients that hold it."""
    return {
        "record_clip": plan.record_clip_norm,
        "record_noise_multiplier": plan.record_noise_multiplier,
        "record_copies": plan.copies,
        "record_worst": hidden_participation(plan, plan.rounds, RECORD_DELTA).epsilon,
    }


def _fresh_each_round(made: Federation) -> BayesianAccountant:
    return BayesianAccountant(
        sample_rate=made.plan.client_rate,
        noise_multiplier=made.plan.noise_multiplier or 0.0,
        composition="hoelder",
        steps=made.plan.rounds,
    )


def typical_figures(made: Federation, rounds: BayesianAccountant, delta: float) -> Row:
    """Return the sound typical figures of the followed clients, and the papers' estimates, which are no bounds."""
    panel = made.server.measured.panels["training"]
    account = panel.account(delta)
    own = account.percentiles(delta=delta, percents=(10, 50, 90))
    typical = account.guarantee
    return {
        "followed": len(panel.indices),
        "at_the_bound": round(float(np.mean(account.counts[:, TOP])) / made.server.taken, 3),
        "mean_norm": round(float(panel.mean_norms.mean()), 3),
        "band": typical(delta=delta).epsilon,
        "hoelder_bernstein": rounds.guarantee(delta=delta, estimator="bernstein", notion="weak").epsilon,
        "not_a_bound_student": typical(delta=delta, estimator="student").epsilon,
        "not_a_bound_product": product_figure(rounds, delta=delta).epsilon,
        "own_percentiles": {f"{p:g}": e for p, e in own.items()},
    }


def tiny(setting: Setting) -> Setting:
    """Return a setting for a smoke test."""
    few = min(setting.clients, 60)
    return replace(setting, rounds=2, clients=few, rate=0.2, panel=4, each=min(setting.each, 60), directions=10)


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    torch.set_num_threads(1)
    named: dict[str, Callable[[], Row]] = {}
    for seed in (0,) if quick else SEEDS:
        for name, (_, candidates) in tables().items():

            def job(name: str = name, seed: int = seed, how: str = HOW if len(candidates) > 1 else ONLY) -> Row:
                setting = chosen(name)
                return measure(tiny(setting) if quick else setting, seed, how)

            named[f"{name} seed {seed}"] = job
        named[f"same noise 8 seed {seed}"] = lambda seed=seed: same_noise(seed, quick)
        for split in ("iid", "shards"):
            for clients in (100, 1000):
                given: dict[str, Any] = {"split": split, "clients": clients, "seed": seed, "quick": quick}
                named[f"figure 6.1 {split} {clients} seed {seed}"] = lambda given=given: growth(**given)
    return named


def same_noise(seed: int, quick: bool) -> Row:
    """Measure table 6.2's row at 2 with a wider C, so that the same noise has a worst case of 8."""
    tight = chosen("table 6.2 features 100 2")
    wide = replace(tight, epsilon=8.0)
    ratio = noise_multiplier(tight) / noise_multiplier(wide)
    setting = replace(wide, clip=tight.clip * ratio)
    return measure(tiny(setting) if quick else setting, seed, "those of table 6.2 at 2, with a wider C")


if __name__ == "__main__":
    main(FOLDER, rows)
