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

TEAM = textwrap.dedent("""
    import sys, numpy as np, torch, torch.distributed as dist
    from torch import nn
    from tacita.training import PrivateTraining
    from tacita.ledger import Ledger
    torch.set_num_threads(1)
    rank, where = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=2)
    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((20000,), float(rank)))
        def forward(self, x):
            return torch.zeros(len(x), 2) + 0.0 * self.w.sum() + (x.sum(1, keepdim=True) * self.w[0] * 0.0)
    model = nn.parallel.DistributedDataParallel(Still())
    data = torch.randn(100, 3), torch.zeros(100, dtype=torch.long)
    private = PrivateTraining(model, nn.functional.cross_entropy, data, sample_rate=0.1, batch_size=10, steps=4,
                              noise_multiplier=2.0,
                              optimizer=torch.optim.SGD(model.parameters(), lr=1.0), panel=8,
                              ledger=f"{where}/b.sqlite" if rank == 0 else None)
    start = private.model.w.detach().clone()
    for step in private:
        pass
    moved = (private.model.w.detach() - start) * 10.0
    np.save(f"{where}/moved{rank}.npy", moved.numpy())
    print(private.taken, private.status)
    if rank == 0:
        private.label()
        print(sum(r["charged"] for r in Ledger.open(f"{where}/b.sqlite").runs().values()))
    dist.destroy_process_group()
""")


DYING = textwrap.dedent("""
    import os, sys, torch, torch.distributed as dist
    from torch import nn
    from tacita.training import PrivateTraining
    torch.set_num_threads(1)
    rank, where = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=2)
    model = nn.Linear(3, 2)
    data = torch.arange(300.0).reshape(100, 3) / 300.0, torch.zeros(100, dtype=torch.long)
    private = PrivateTraining(model, nn.functional.cross_entropy, data, sample_rate=0.1, batch_size=10, steps=6,
                              noise_multiplier=2.0, panel=8, run_dir=f"{where}/run",
                              optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    try:
        for step in private:
            if rank == 1 and step.number == 2:
                os._exit(7)
    except Exception as error:
        print(type(error).__name__, private.taken, private.status)
""")
SHARDED = textwrap.dedent("""
    import sys, torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from tacita.training import PrivateTraining
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meet", rank=int(sys.argv[1]), world_size=2)
    model = fully_shard(nn.Linear(3, 2), mesh=dist.init_device_mesh("cpu", (2,)))
    data = torch.zeros(100, 3), torch.zeros(100, dtype=torch.long)
    try:
        PrivateTraining(model, nn.functional.cross_entropy, data, sample_rate=0.1, batch_size=10, steps=6,
                        noise_multiplier=2.0, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    except Exception as error:
        print(type(error).__name__, error)
""")


def pair(script, where):
    """Run a script in two processes; return what each prints and the codes they exit with."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    both = [subprocess.Popen([*command, str(rank), str(where)], **pipes) for rank in (0, 1)]
    outputs = [process.communicate(timeout=120) for process in both]
    return [out for out, _ in outputs], [process.returncode for process in both], [err for _, err in outputs]


def test_f14_two_processes_make_one_noise_and_one_charge(tmp_path):
    printed, codes, errors = pair(TEAM, tmp_path)
    assert codes == [0, 0], errors
    one, two = (np.load(tmp_path / f"moved{rank}.npy") for rank in (0, 1))
    assert np.array_equal(one, two)
    assert np.std(one) == pytest.approx(2.0 * math.sqrt(4), rel=0.02)  # four steps of noise, standard deviation 2 each
    assert printed[0].split() == ["4", "done", "4"]
    assert printed[1].split() == ["4", "done"]


@pytest.mark.slow
def test_a_run_whose_second_process_dies_is_resumed_by_one(tmp_path):
    printed, codes, errors = pair(DYING, tmp_path)
    assert codes == [0, 7], errors
    # Whether the first process notices before the third step or in it is a race; in it, the step counts as released.
    assert printed[0].split() in (["RuntimeError", "2", "interrupted"], ["RuntimeError", "3", "failed"])
    model = nn.Linear(3, 2)
    data = torch.arange(300.0).reshape(100, 3) / 300.0, torch.zeros(100, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining.resume(
        tmp_path / "run", model, nn.functional.cross_entropy, data, optimizer=optimizer
    ).run()
    assert (private.taken, private.status) == (6, "done")
    ledger = Ledger.open(tmp_path / "run" / "ledger.sqlite")
    assert sum(run["charged"] for run in ledger.runs().values()) == 6


@pytest.mark.slow
def test_a_sharded_model_is_refused_with_the_reason(tmp_path):
    printed, codes, errors = pair(SHARDED, tmp_path)
    assert codes == [0, 0], errors
    for text in printed:
        assert text.startswith("PrivacyError The model is sharded (FSDP or DTensor)")
