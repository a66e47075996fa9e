"""Speed of a private step as ratios to plain SGD, beside Opacus's hooks and ghost clipping, interleaved in one run.

One thread, CPU time, medians, a batch of fixed size. Ours is the shipped loop: sampling (at rate one), per-record
clipping, noise, optimiser, ledger on disk; also with followed training records, and held-out ones, as by default.

Memory is what a process of its own takes at its peak in three steps, beyond what it took once the model and the batch
were there. A kind that needs more than 16 GB fails, and is not timed.

    python benchmarks/training.py [part of a network's name]
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from networks import NETWORKS, Network
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn
from turns import median_seconds

from tacita.training import PrivateTraining

WARM_UP = 2
MOST = 16 * 2**30  # bytes of addresses that a process may take whose memory is measured


def plain(network: Network) -> Callable[[], object]:
    """Return a step of ordinary SGD."""
    model, (*inputs, target) = network.fresh()
    optimizer = torch.optim.SGD(_moved(model), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(*inputs), target).backward()
        optimizer.step()

    return step


def hooks(network: Network) -> Callable[[], object]:
    """Return a step of Opacus in hooks mode."""
    model, (*inputs, target) = network.fresh()
    model = GradSampleModule(model)
    optimizer = DPOptimizer(torch.optim.SGD(_moved(model), lr=0.01), **_noise(len(target)))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(*inputs), target).backward()
        optimizer.step()

    return step


def ghost(network: Network) -> Callable[[], object]:
    """Return a step of Opacus with ghost clipping."""
    model, (*inputs, target) = network.fresh()
    model = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(_moved(model), lr=0.01), **_noise(len(target)))
    loss = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        loss(model(*inputs), target).backward()
        optimizer.step()

    return step


def ours(network: Network, folder: Path, **follow: Any) -> Callable[[], object]:
    """Return a step of the shipped loop, in a run of 2,000 steps."""
    model, records = network.fresh()
    count = len(records[-1])
    private = PrivateTraining(
        model,
        nn.functional.cross_entropy,
        records,
        optimizer=torch.optim.SGD(_moved(model), lr=0.01),
        batch_size=count,
        nominal_size=count,
        steps=2000,
        noise_multiplier=1.0,
        **follow,
        ledger=Path(tempfile.mkdtemp(dir=folder)) / "ledger.sqlite",
    )
    return iter(private).__next__


def _moved(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _noise(count: int) -> dict[str, Any]:
    return {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": count}


def peak(name: str, kind: str) -> float:
    """Return the megabytes that three steps take at most beyond the model and its batch; for a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    model, records = NETWORKS[name].fresh()
    with tempfile.TemporaryDirectory() as folder:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak of imports and of building
        before = _status("VmRSS")
        step = _kinds(Path(folder))[kind](replace(NETWORKS[name], build=lambda: model, records=lambda: records))
        for _ in range(3):
            step()
        return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """Return how many kilobytes of memory this process takes (VmRSS), or has taken at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _kinds(folder: Path) -> dict[str, Callable[[Network], Callable[[], object]]]:
    return {
        "plain SGD": plain,
        "Opacus hooks": hooks,
        "Opacus ghost": ghost,
        "ours": lambda network: ours(network, folder, panel=0),
        "ours, panel": lambda network: ours(network, folder),
        "ours, panels": lambda network: ours(network, folder, holdout=network.fresh()[1]),
    }


def _peaks(name: str, folder: Path) -> dict[str, float]:
    """Return the peak of each kind that works, each from a fresh process."""
    peaks = {}
    for kind in _kinds(folder):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            try:
                peaks[kind] = process.submit(peak, name, kind).result()
            except Exception as error:
                print(f"{name:34} {kind:14} fails: {type(error).__name__}: {error}"[:160])
    return peaks


def main(wanted: str = "") -> None:
    """Print medians, peaks and ratios."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'':50} {'CPU time':>11} {'of plain':>8} {'memory':>11} {'of ghost':>8}")
    for name, network in NETWORKS.items():
        if wanted.lower() not in name.lower():
            continue
        with tempfile.TemporaryDirectory() as folder:
            peaks = _peaks(name, Path(folder))
            steps = {kind: build(network) for kind, build in _kinds(Path(folder)).items() if kind in peaks}
            medians = median_seconds(steps, time.process_time, rounds=network.rounds, warm_up=WARM_UP)
        for kind, value in medians.items():
            seconds = f"{1e3 * value:8.1f} ms {value / medians['plain SGD']:8.2f}"
            print(f"{name:34} {kind:14} {seconds} {peaks[kind]:8.0f} MB", end=" ")
            print(f"{peaks[kind] / peaks['Opacus ghost']:8.2f}" if "Opacus ghost" in peaks else "", flush=True)
        del steps
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
