"""How tight the canary audit is, that it keeps quiet on correct steps, and which planted bugs it finds.

    make audit-experiment

One line of JSON for every case. Each audit goes through `PrivateTraining`; see docs/explanation/audit.md for the table.
The planted bugs are those of the tests: `tests/audit` must be on the path.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from bugs import BUGS, SAMPLING, STEPS, planted

from tacita.audit import Replay, canaries
from tacita.training import Plan

DELTA = 1e-5
SHAPES = [(16, 1, 3, 3), (16,), (10, 256), (10,)]  # the digits network
SETTINGS = {
    "every record, one step": (1.0, 1),
    "one in ten, 50 steps": (0.1, 50),
    "one in a hundred, 1000 steps": (0.01, 1000),
}


def plan_for(epsilon: float, rate: float, steps: int) -> Plan:
    """Return the plan whose worst case is epsilon."""
    return Plan.declare(
        stops=(),
        nominal_size=None,
        sample_rate=rate,
        steps=steps,
        clip_norm=2.0,
        noise_multiplier=None,
        target=(epsilon, DELTA),
        budget=None,
        batch_size=100,
        delta=DELTA,
        individual_every=None,
        record_budget=None,
        certificate=None,
        tolerated=0,
    )


def audits(plan: Plan, seeds: range, count: int | None, bug: str | None = None) -> dict[str, Any]:
    """Audit one plan once a seed, and return figures."""
    ratios: dict[float, list[float]] = {0.95: [], 0.9995: []}
    broken, guessed, seconds, kinds = 0, 0, [], Counter()
    claim = plan.worst(plan.steps, DELTA).epsilon
    for seed in seeds:
        start = time.process_time()
        with planted(bug) if bug else nullcontext():
            replay = Replay(plan, SHAPES, seed=2 * seed, count=count)
            found = canaries(
                replay,
                sample_rate=plan.sample_rate,
                noise_multiplier=plan.noise_multiplier,
                steps=plan.steps,
                delta=DELTA,
                epsilon=claim,
                count=replay.count,
                parts=replay.parts,
                seed=seed,
            )
        seconds.append(time.process_time() - start)
        broken += found.broken
        guessed += found.guessed
        kinds.update(test.kind for test in found.faults)
        for confidence, values in ratios.items():
            values.append(found.lower[confidence] / claim)
    return {
        "epsilon": round(claim, 4),
        "audits": len(seeds),
        "canaries": found.canaries,
        "broken": broken,
        "by_guesses": guessed,
        "by_tests": dict(kinds),
        "median_95": round(statistics.median(ratios[0.95]), 3),
        "median_99.95": round(statistics.median(ratios[0.9995]), 3),
        "largest_99.95": round(max(ratios[0.9995]), 3),
        "cpu_seconds": round(statistics.median(seconds), 2),
    }


def main() -> None:
    """Print one line for every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--bug-seeds", type=int, default=50)
    parser.add_argument("--canaries", type=int, help="by default as many as an audit takes")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for setting in chosen.setting or SETTINGS:
        rate, steps = SETTINGS[setting]
        for epsilon in chosen.epsilon or (1.0, 4.0, 8.0):
            plan = plan_for(epsilon, rate, steps)
            row = audits(plan, range(chosen.seeds), chosen.canaries)
            print(json.dumps({"setting": setting, "bug": None, **row}), flush=True)
            for bug in BUGS:
                if (rate == 1.0 and bug in SAMPLING) or (steps == 1 and bug in STEPS):
                    continue
                row = audits(plan, range(chosen.bug_seeds), chosen.canaries, bug)
                print(json.dumps({"setting": setting, "bug": bug, **row}), flush=True)


if __name__ == "__main__":
    main()
