"""Limits that are really hit: a full disk, too little memory, many steps."""

import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

import tacita
from tacita.ledger import Ledger
from tacita.training import label_of_run
from tests.training.trainings import again, start

PREPARED = textwrap.dedent("""
    import os, resource, sys, torch
    from pathlib import Path
    from torch import nn
    from tacita import PrivacyError
    from tacita.runs import Run
    from tacita.training import PrivateTraining, label_of_run
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]) / "run"
    x, y = torch.randn(300, 4), torch.arange(300) % 2
    def parts(width=2000):
        model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    def train(model, optimizer, **settings):
        settings = {"batch_size": 30, "nominal_size": 300, "noise_multiplier": 1.0, "panel": 0, **settings}
        return PrivateTraining(model, nn.functional.cross_entropy, (x, y), optimizer=optimizer, run_dir=folder,
            **settings)
    def fill():
        with open(folder.parent / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError as error:
                assert error.errno == 28, error
    def free():
        (folder.parent / "filler").unlink()
""")


def on_a_small_disk(folder, code):
    """Run code with a disk of a megabyte at `folder`, in a mount namespace of its own."""
    within = f'mount -t tmpfs -o size=1m none "{folder}" && exec "$0" "$@"'
    command = ["unshare", "-rm", "sh", "-c", within]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode != 0:
        pytest.skip("this system lets nobody mount a disk of their own (unshare -rm)")
    done = subprocess.run(
        [*command, sys.executable, "-c", PREPARED + textwrap.dedent(code), str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_a_disk_that_fills_at_the_last_save_keeps_the_checkpoint_before(tmp_path):
    found = on_a_small_disk(
        tmp_path,
        """
        model, optimizer = parts()
        private = train(model, optimizer, steps=45)  # kept at every tenth, and at the end
        try:
            for step in private:
                if step.number == 45:
                    fill()
        except OSError as error:
            print(error.errno)
        assert not list(folder.rglob("*.part"))
        before = Run(folder).load()[1]["step"]
        assert before == 40, before
        assert dict(label_of_run(folder).worst.mechanism)["steps"] == 45
        free()
        private.pause()  # once more, now that there is room
        state, document = Run(folder).load()
        assert (document["step"], document["clean"]) == (45, True)
        assert torch.equal(state["model"]["0.weight"], model[0].weight)
        private.export(folder.parent / "model.safetensors")
        print(Run(folder).facts.status)
        """,
    )
    assert found == ["28", "done"]


@pytest.mark.slow
def test_a_disk_that_is_full_at_a_charge_takes_no_step(tmp_path):
    found = on_a_small_disk(
        tmp_path,
        """
        model, optimizer = parts(4)
        private = train(model, optimizer, steps=400)  # charged in blocks of four
        for _ in range(8):
            private.advance()
        before = [p.detach().clone() for p in model.parameters()]
        fill()
        try:
            private.advance()
        except Exception as error:
            print(type(error).__name__)
        assert private.taken == 8
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
        free()
        print(private.advance().number)
        """,
    )
    assert found[1:] == ["9"]
    assert found[0] in ("OSError", "PrivacyError")


def limited(folder, code):
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + textwrap.dedent(code), str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
def test_a_step_that_finds_too_little_memory_fails_the_run_which_goes_on_elsewhere(tmp_path):
    """The limit is the kernel's. A step needs some memory whatever the records hold; too little ends the run."""
    found = limited(
        tmp_path,
        """
        model, optimizer = parts()
        private = train(model, optimizer, steps=40)
        for _ in range(5):
            private.advance()
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        original = optimizer.step
        def step():
            resource.setrlimit(resource.RLIMIT_AS, (used, -1))
            try:
                torch.zeros(2**30)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        optimizer.step = step
        try:
            private.advance()
        except RuntimeError as error:
            print("allocate" in str(error))
        optimizer.step = original
        try:
            private.advance()
        except PrivacyError as error:
            print("failed" in str(error))
        model, optimizer = parts()
        again = PrivateTraining.resume(folder, model, nn.functional.cross_entropy, (x, y), optimizer=optimizer)
        assert again.taken >= 6
        again.run()
        print(again.taken, dict(again.label().worst.mechanism)["steps"])
        """,
    )
    assert found == ["True", "True", "40", "40"]


@pytest.mark.slow
def test_twelve_thousand_steps_are_charged_labelled_and_resumed(blobs, tmp_path):
    settings = {"steps": 12_000, "noise_multiplier": 4.0, "panel": 16}
    private, _ = start(tmp_path / "run", blobs, **settings)
    for step in private.steps(curve=False):
        if step.number == 7_011:
            break
    resumed, model = again(tmp_path / "run", blobs)
    assert resumed.taken == 7_011
    for _ in resumed.steps(curve=False):
        pass
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.charged(next(iter(ledger.runs()))) == resumed.taken == 12_000
    worst = tacita.worst_case(sample_rate=0.1, noise_multiplier=4.0, steps=12_000, delta=1e-5)
    assert resumed.label().worst.epsilon == label_of_run(tmp_path / "run").worst.epsilon == worst.epsilon
    assert (resumed.accountants["training"].counts.sum(1) == 12_000).all()
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 6
    assert all(torch.isfinite(p).all() for p in model.parameters())
