"""Several processes, one mechanism."""

import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from tacita.ledger import Ledger
from tacita.training import PrivateTraining

BEGIN = textwrap.dedent("""
    import os, signal, sys, torch, torch.distributed as dist
    from datetime import timedelta
    from torch import nn
    from tacita.training import PrivateTraining
    torch.set_num_threads(1)
    rank, where, wait = int(sys.argv[1]), sys.argv[2], timedelta(seconds=float(sys.argv[3]))
    dist.init_process_group("gloo", init_method=f"file://{where}/{sys.argv[4]}", rank=rank, world_size=2, timeout=wait)
    data = torch.arange(300.0).reshape(100, 3) / 300.0, torch.zeros(100, dtype=torch.long)
    sizes = {"sample_rate": 0.1, "batch_size": 10, "noise_multiplier": 2.0, "panel": 8}
""")

# Now and then gloo's threads abort a process that Python leaves in its usual way.
LEAVE = "sys.stdout.flush(); os._exit(0)"

TEAM = (
    BEGIN
    + textwrap.dedent("""
    import numpy as np
    from tacita.ledger import Ledger

    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((20000,), float(rank)))
            self.register_buffer("fixed", torch.full((2,), float(rank)))
        def forward(self, x):
            return torch.zeros(len(x), 2) + 0.0 * self.w.sum() + (x.sum(1, keepdim=True) * self.w[0] * 0.0)

    def train(name, data=data, model=None, **settings):
        model = nn.Linear(3, 2) if model is None else model
        ledger = settings.pop("ledger", f"{where}/{name}.sqlite")
        return PrivateTraining(model, nn.functional.cross_entropy, data, **{**sizes, "steps": 4, **settings},
                               optimizer=torch.optim.SGD(model.parameters(), lr=1.0), ledger=ledger)

    def attempt(act):
        try:
            return act()
        except Exception as error:
            print(type(error).__name__, str(error).split(":")[0])

    private = train("noise", model=nn.parallel.DistributedDataParallel(Still()))
    start = private.model.w.detach().clone()
    private.run().label()
    np.save(f"{where}/moved{rank}.npy", ((private.model.w.detach() - start) * 10.0).numpy())
    print(private.taken, private.status, private.model.fixed.tolist())

    budget = Ledger.create(f"{where}/budget.sqlite", epsilon=1.5, delta=1e-5) if rank == 0 else None
    private = train("budget", ledger=budget, steps=100)
    private.run()
    print(private.status, private.taken)

    private = train("broken")
    private.advance()
    if rank == 1:
        private.mechanism.records.marked = lambda places, **_: [][0]
    attempt(private.advance)
    print(private.status, private.taken)

    attempt(lambda: train("records", (data[0] + rank, data[1])))
    attempt(lambda: train("plans", steps=4 + rank))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        books = [Ledger.open(f"{where}/{name}.sqlite").runs() for name in ("noise", "broken", "budget")]
        print(*(sum(run["charged"] for run in book.values()) for book in books))
""")
    + LEAVE
)

DYING = BEGIN + textwrap.dedent("""
    model = nn.Linear(3, 2)
    def loss_fn(output, target):
        if rank == 1 and private is not None and private.taken == 2 and not sent:
            sent.append(1)
            os.kill(os.getpid(), getattr(signal, sys.argv[5]))
        return nn.functional.cross_entropy(output, target)
    private, sent = None, []
    private = PrivateTraining(model, loss_fn, data, **sizes, steps=6, run_dir=f"{where}/run",
                              optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    try:
        private.run()
    except (Exception, KeyboardInterrupt) as error:
        print(type(error).__name__, private.taken, private.status, str(error)[:42], sep="|")
""")

RESUMING = (
    BEGIN
    + textwrap.dedent("""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining.resume(f"{where}/run", model, nn.functional.cross_entropy, data, optimizer=optimizer)
    print(private.status, private.taken, len(list(private)), private.status, private.taken)
    print([round(float(p.sum()), 6) for p in model.parameters()])
    dist.barrier()
    dist.destroy_process_group()
""")
    + LEAVE
)

SHARDED = BEGIN + textwrap.dedent("""
    from torch.distributed.fsdp import fully_shard
    model = fully_shard(nn.Linear(3, 2), mesh=dist.init_device_mesh("cpu", (2,)))
    try:
        PrivateTraining(model, nn.functional.cross_entropy, data, **sizes, steps=6,
                        optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    except Exception as error:
        print(type(error).__name__, error)
""")


def start(script, where, *, timeout=60, meet="meet", extra=()):
    """Start a script in two processes; it gets its rank, a folder, its timeout and where to meet the other."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    arguments = [[str(rank), str(where), str(timeout), meet, *extra] for rank in (0, 1)]
    return [subprocess.Popen([*command, *own], **pipes) for own in arguments]


def pair(script, where, **settings):
    """Run a script in two processes; return what each prints and the codes they exit with."""
    both = start(script, where, **settings)
    outputs = [process.communicate(timeout=120) for process in both]
    return [out for out, _ in outputs], [process.returncode for process in both], [err for _, err in outputs]


def charged(where):
    return sum(run["charged"] for run in Ledger.open(where / "run" / "ledger.sqlite").runs().values())


def test_f14_two_processes_make_one_noise_and_one_charge_and_agree_on_how_they_ended(tmp_path):
    printed, codes, errors = pair(TEAM, tmp_path)
    assert codes == [0, 0], errors
    one, two = (np.load(tmp_path / f"moved{rank}.npy") for rank in (0, 1))
    assert np.array_equal(one, two)
    assert np.std(one) == pytest.approx(2.0 * math.sqrt(4), rel=0.02)  # four steps of noise, standard deviation 2 each
    first, second = (text.splitlines() for text in printed)
    assert first[0] == second[0] == "4 done [0.0, 0.0]"
    status, taken = first[1].split()
    assert first[1] == second[1]
    assert status == "budget-spent"
    assert 0 < int(taken) < 100
    assert first[2] == "RuntimeError Process 1 of this run failed. IndexError"
    assert second[2] == "IndexError list index out of range"
    assert first[3] == second[3] == "failed 2"
    refused = "PrivacyError The processes of this run have different records or plans. Each takes"
    for text in (*first[4:6], *second[4:6]):
        assert text.startswith(refused)
    assert first[6] == f"4 2 {taken}"


@pytest.mark.slow
@pytest.mark.parametrize("resumed_by", [1, 2])
def test_a_run_whose_second_process_is_killed_in_a_step_fails_at_once_and_is_resumed(tmp_path, resumed_by):
    printed, codes, errors = pair(DYING, tmp_path, extra=["SIGKILL"])
    assert codes == [0, -9], errors
    assert printed[0].strip() == "RuntimeError|3|failed|Another process of this run is gone, or di"
    assert charged(tmp_path) == 3
    if resumed_by == 2:
        printed, codes, errors = pair(RESUMING, tmp_path, meet="again")
        assert codes == [0, 0], errors
        assert printed[0] == printed[1]  # also the parameters
        assert printed[0].startswith("resumed 3 3 done 6")
    else:
        model = nn.Linear(3, 2)
        data = torch.arange(300.0).reshape(100, 3) / 300.0, torch.zeros(100, dtype=torch.long)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = PrivateTraining.resume(
            tmp_path / "run", model, nn.functional.cross_entropy, data, optimizer=optimizer
        )
        assert (private.taken, len(list(private)), private.status) == (3, 3, "done")
    assert charged(tmp_path) == 6  # for the two steps before, the one that was lost, and the three after


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_given_up_after_the_timeout(tmp_path):
    first, second = start(DYING, tmp_path, timeout=5, extra=["SIGSTOP"])
    try:
        out, err = first.communicate(timeout=60)
    finally:
        second.kill()
        second.communicate()
    assert out.strip() == "RuntimeError|3|failed|Another process of this run is gone, or di", err


@pytest.mark.slow
def test_ctrl_c_in_one_process_stops_all_after_the_same_step(tmp_path):
    printed, codes, errors = pair(DYING, tmp_path, extra=["SIGINT"])
    assert codes == [0, 0], errors
    assert [text.strip() for text in printed] == ["KeyboardInterrupt|3|interrupted|"] * 2
    printed, codes, errors = pair(RESUMING, tmp_path, meet="again")
    assert codes == [0, 0], errors
    assert printed[0] == printed[1]
    assert printed[0].startswith("resumed 3 3 done 6")
    assert charged(tmp_path) == 6


@pytest.mark.slow
def test_a_sharded_model_is_refused_with_the_reason(tmp_path):
    printed, codes, errors = pair(SHARDED, tmp_path)
    assert codes == [0, 0], errors
    for text in printed:
        assert text.startswith("PrivacyError The model is sharded (FSDP or DTensor)")
