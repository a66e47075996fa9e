"""Several processes, one mechanism."""

import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

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
    model = Still()
    data = torch.randn(100, 3), torch.zeros(100, dtype=torch.long)
    private = PrivateTraining(model, nn.functional.cross_entropy, data, sample_rate=0.1, batch_size=10, steps=4,
                              noise_multiplier=2.0,
                              optimizer=torch.optim.SGD(model.parameters(), lr=1.0), panel=8,
                              ledger=f"{where}/b.sqlite" if rank == 0 else None)
    start = model.w.detach().clone()
    for step in private:
        pass
    moved = (model.w.detach() - start) * 10.0
    np.save(f"{where}/moved{rank}.npy", moved.numpy())
    if rank == 0:
        private.label()
        print(sum(r["charged"] for r in Ledger.open(f"{where}/b.sqlite").runs().values()))
    dist.destroy_process_group()
""")


def test_f14_two_processes_make_one_noise_and_one_charge(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", TEAM]
    pair = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs
    one, two = (np.load(tmp_path / f"moved{rank}.npy") for rank in (0, 1))
    assert np.array_equal(one, two)
    assert np.std(one) == pytest.approx(2.0 * math.sqrt(4), rel=0.02)  # four steps of noise, standard deviation 2 each
    assert outputs[0][0].strip() == "4"
