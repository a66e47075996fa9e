"""A torch-free program that charges, then releases; and a nursery that starts many of them after one import.

The nursery reads one JSON line of jobs, forks a process for each, prints their ids, waits, prints their exit codes.
"""

import contextlib
import json
import os
import resource
import sys
from pathlib import Path

from tacita._check import PrivacyError
from tacita.ledger import BudgetExceeded, Ledger

with contextlib.suppress(ImportError):
    import psycopg  # noqa: F401  # before the forks, as it takes longer than many charges

EXCEEDED, FAILED = 2, 3


def say(**answer):
    os.write(1, (json.dumps(answer) + "\n").encode())  # one write: other processes speak on the same pipe


def note(file, text):
    file.write(text + "\n")
    file.flush()
    os.fsync(file.fileno())


def write(job):
    """Charge blocks and release their steps until stopped, out of budget, or out of luck."""
    if "size_limit" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["size_limit"], job["size_limit"]))
    if "user" in job:
        os.setuid(job["user"])
    costs = {int(order): cost for order, cost in job["costs"].items()}
    run, block, checkpoint = job["run"], job["block"], Path(job["released"] + ".checkpoint")
    with Ledger.open(job["ledger"], analyst=job.get("analyst")) as ledger, open(job["released"], "a") as released:
        ledger.open_run(run, mechanism={"steps": job.get("reserve", 10**6)}, seed_fingerprint=None, seeded=False)
        if "reserve" in job:
            ledger.reserve(run, costs={order: cost * job["reserve"] for order, cost in costs.items()})
        step = ledger.charged(run)
        if checkpoint.exists():
            done, head = checkpoint.read_text().split()
            step = ledger.resume(run, step=int(done), head=head, clean=False)
        while True:
            if job.get("careless"):  # planted: releases before it charges
                note(released, f"released {step}")
            head = ledger.charge(run, first=step, steps=block, costs=costs)
            for k in range(step, step + block):
                note(released, f"released {k}")
            step += block
            checkpoint.with_suffix(".new").write_text(f"{step} {head}")
            checkpoint.with_suffix(".new").replace(checkpoint)


def main(job):
    try:
        write(job)
    except BudgetExceeded:
        return EXCEEDED
    except PrivacyError as error:
        say(error=str(error))
        return FAILED
    return 0


def spawn(job):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = main(job)
        finally:
            os._exit(code)
    return pid


if __name__ == "__main__":
    for line in sys.stdin:
        pids = [spawn(job) for job in json.loads(line)]
        say(pids=pids)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        say(codes=codes)
