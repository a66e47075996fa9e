"""Processes that charge and release, for tests that kill them: `writer.py` run as a nursery, and what it is told."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tacita.ledger import DECLARED

WRITER = Path(__file__).with_name("writer.py")
EXCEEDED, FAILED = 2, 3


class Nursery:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, jobs):
        self.process.stdin.write(json.dumps(jobs) + "\n")
        self.errors = []
        return self.answer("pids")

    def answer(self, key):
        """Return the answer named `key`; keep the errors that came before it."""
        for line in self.process.stdout:
            answer = json.loads(line)
            if key in answer:
                return answer[key]
            self.errors.append(answer["error"])
        raise AssertionError("the nursery died")

    def wait(self):
        return self.answer("codes"), self.errors

    def run(self, jobs):
        self.start(jobs)
        return self.wait()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def job(folder, run="a", block=3, **more):
    released = str(folder / f"{run}.released")
    return {
        "ledger": str(folder / "l.sqlite"),
        "released": released,
        "run": run,
        "block": block,
        "costs": {"7": 1e-9},
    } | more


def released_steps(folder, run="a"):
    text = (folder / f"{run}.released").read_text()
    return [int(line.split()[1]) for line in text.split("\n")[:-1]]


def kill_at_random(nursery, rng, folder, kills, **more):
    """Kill every other writer at any moment from its start, the rest at any moment after it released something."""
    released = folder / "a.released"
    released.touch()
    for i in range(kills):
        size = released.stat().st_size
        (pid,) = nursery.start([job(folder, **more)])
        while i % 2 and released.stat().st_size == size:
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.04))
        os.kill(pid, signal.SIGKILL)
        assert nursery.wait() == ([-signal.SIGKILL], [])


def grants_allowed(cost, order, epsilon, delta):
    """How many charges of `cost` at one order fit, from the rule as written, not from the ledger's code."""
    unit = math.ceil(cost * 2**40)
    log_factor = order * math.log(order) - (order + 1) * math.log(order + 1)
    room = order * epsilon + math.log(delta / (len(DECLARED) + 1)) - log_factor
    return math.floor(room * 2**40 / unit)
