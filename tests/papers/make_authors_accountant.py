"""Write authors_accountant.json with the ICML authors' own accountant. Not run by the tests: it needs their code.

    git clone https://github.com/AlekseiTriastcyn/bayesian-differential-privacy theirs
    python make_authors_accountant.py theirs

Their code (of 2020, commit 4514879) is run unchanged; it uses three names that numpy has since removed, which are put
back first. `cost_per_step` is what one call of `accumulate` adds, `epsilon` is `get_privacy` after `steps` equal calls,
and `paths` hold `get_privacy` after each call with other distances. Their costs are computed in single precision.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

ORDERS = [1, 2, 4, 8, 16, 24, 32]
SETTINGS = [  # steps, sample rate, noise, records, clipped
    (50, 0.05, 1.0, 25, True),
    (1000, 0.05, 0.8, 55, True),
    (50, 0.001, 0.8, 55, True),
    (400, 64 / 60000, 0.8, 58, True),
    (100, 0.01, 2.0, 27, True),
    (100, 0.001, 2.2, 200, False),
    (100, 0.001, 8.6, 200, False),
    (100, 0.02, 300.0, 40, False),
]


def accountant(steps, gamma):
    from bayesian_privacy_accountant import BayesianPrivacyAccountant

    return BayesianPrivacyAccountant(powers=np.array(ORDERS), total_steps=steps, conf=1 - gamma)


def add(theirs, distances, case):
    left = torch.tensor(distances, dtype=torch.float64)[:, None]
    noise = case["stddev"]
    theirs.accumulate((left, noise), (torch.zeros_like(left), noise), q=case["sample_rate"], steps=1)


def draw(rng, records, clipped):
    sizes = rng.weibull(0.5, records)
    return [round(float(size), 6) for size in (np.minimum(sizes / 4.0, 1.0) if clipped else sizes)]


def main():
    rng = np.random.default_rng(20260101)
    cases, paths = [], []
    for steps, rate, noise, records, clipped in SETTINGS:
        case = {"steps": steps, "sample_rate": rate, "stddev": noise, "gamma": 1e-15, "orders": ORDERS}
        case |= {"clipped": clipped, "distances": draw(rng, records, clipped)}
        one = accountant(steps, case["gamma"])
        add(one, case["distances"], case)
        whole = accountant(steps, case["gamma"])
        for _ in range(steps):
            add(whole, case["distances"], case)
        epsilons = {str(delta): float(whole.get_privacy(target_delta=delta)[0]) for delta in (1e-5, 1e-10)}
        cases.append(case | {"cost_per_step": one.privacy_cost.tolist(), "epsilon": epsilons})
    for clipped in (True, False):
        case = {"sample_rate": 0.01, "stddev": 1.0 if clipped else 20.0, "gamma": 1e-15, "orders": ORDERS}
        case |= {"clipped": clipped, "distances": [draw(rng, 30, clipped) for _ in range(6)], "epsilon": []}
        theirs = accountant(6, case["gamma"])
        for distances in case["distances"]:
            add(theirs, distances, case)
            case["epsilon"].append(float(theirs.get_privacy(target_delta=1e-5)[0]))
        paths.append(case)
    source = "BayesianPrivacyAccountant of github.com/AlekseiTriastcyn/bayesian-differential-privacy, commit 4514879"
    record = {"source": source, "made_by": Path(__file__).name, "rtol": 1e-6, "cases": cases, "paths": paths}
    text = json.dumps(record, separators=(",", ":")).replace('{"s', '\n{"s')
    Path(__file__).with_name("authors_accountant.json").write_text(text + "\n")


if __name__ == "__main__":
    vars(np).update(float_=np.float64, float=float, asscalar=lambda array: np.asarray(array).item())
    sys.path.insert(0, sys.argv[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
