"""Records and people: the same training with either as the unit, and what each promises a person with many records.

    python examples/people.py

4,000 simulated people come to a clinic between 1 and 40 times, and a linear model learns an outcome from what is
measured at a visit. Accuracy is that on the visits of 1,000 other people.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from tacita.guarantee import Guarantee
from tacita.training import Plan, PrivateTraining

PEOPLE, OTHERS, FEATURES, MOST = 4000, 1000, 20, 40
DELTA, STEPS = 1e-5, 150
RECORDS = 32_000  # the declared number of visits

Visits = tuple[torch.Tensor, torch.Tensor, np.ndarray]


def visits(people: int, rng: np.random.Generator) -> Visits:
    """Return measurements, outcomes and whose they are; people differ, and so does how often they come."""
    counts = np.minimum(MOST, rng.geometric(1.0 / 8.0, people))
    who = np.repeat(np.arange(people), counts)
    x = 0.8 * rng.normal(size=(people, FEATURES))[who] + 0.6 * rng.normal(size=(len(who), FEATURES))
    weights = np.linspace(-1.0, 1.0, FEATURES)
    y = x @ weights + rng.normal(size=people)[who] + rng.normal(size=len(who)) > 0.0
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y.astype(np.int64)), who


def trained(data: Visits, plan: Plan) -> nn.Module:
    """Return a model trained by a plan, with people as the unit if that is the plan's."""
    x, y, who = data
    model = nn.Linear(FEATURES, 2)
    nn.init.zeros_(model.weight)
    ids = {"person": who} if plan.unit == "person" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.5)
    PrivateTraining(model, nn.functional.cross_entropy, (x, y), optimizer=optimizer, plan=plan, panel=0, **ids).run()
    return model


def for_group(guarantee: Guarantee, size: int) -> float:
    """Return the epsilon at DELTA that a promise to one record gives to somebody with so many of them.

    Of each point (epsilon, delta) of its curve, (size * epsilon, size * exp(size * epsilon) * delta) holds for a group.
    """
    found = [
        size * epsilon
        for epsilon in (guarantee.curve.epsilon(delta) for delta in 10.0 ** np.arange(-40.0, -5.0, 0.05))
        if guarantee.curve.delta(epsilon) * size * math.exp(min(700.0, size * epsilon)) <= DELTA
    ]
    return min(found, default=math.inf)


def main(repeats: int = 3) -> None:
    """Train with each unit and print a table."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    data, (x, y, _) = visits(PEOPLE, rng), visits(OTHERS, rng)
    shared = {"steps": STEPS, "delta": DELTA}
    plans = {
        "records, epsilon 1": Plan.declare(batch_size=3200, nominal_size=RECORDS, target=(1.0, DELTA), **shared),
        **{
            f"people, epsilon 1, k = {k}": Plan.declare(
                batch_size=400, nominal_size=PEOPLE, target=(1.0, DELTA), records_per_person=k, **shared
            )
            for k in (1, 4, MOST)
        },
        f"records, noise for {MOST} of them": Plan.declare(
            batch_size=3200,
            nominal_size=RECORDS,
            target=(1.0 / MOST, DELTA / MOST / math.e),
            **shared,
        ),
    }
    print(f"{'unit':<28} {'1 visit':>9} {'10 visits':>10} {f'{MOST} visits':>10} {'accuracy':>9}")
    for name, plan in plans.items():
        worst = plan.worst(STEPS, DELTA)
        sizes = (1, 10, MOST)
        figures = [worst.epsilon if plan.unit == "person" or s == 1 else for_group(worst, s) for s in sizes]
        scores = []
        for seed in range(repeats):
            torch.manual_seed(seed)
            scores.append(float((trained(data, plan)(x).argmax(1) == y).float().mean()))
        shown = " ".join(f"{f:>9.2f}" if f < 1000 else f"{'none':>9}" for f in figures)
        print(f"{name:<28} {shown} {np.mean(scores):>9.1%}", flush=True)


if __name__ == "__main__":
    main()
