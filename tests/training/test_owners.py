"""One owner of a run folder, and every step under a claim: pauses, crashes, copies, two objects, two processes."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from tacita import PrivacyError
from tacita.ledger import Ledger
from tacita.training import PrivateTraining
from tacita.training.labels import standing_of_run

LOSS = nn.functional.cross_entropy


def start(where, blobs, **settings):
    model = nn.Linear(4, 2)
    settings = {"sample_rate": 0.1, "batch_size": 30, "noise_multiplier": 1.0, "steps": 400, "panel": 0, **settings}
    return PrivateTraining(
        model, LOSS, blobs, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), run_dir=where, **settings
    )  # blocks of four steps


def again(where, blobs, **settings):
    model = nn.Linear(4, 2)
    return PrivateTraining.resume(
        where, model, LOSS, blobs, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **settings
    )


def take(private, steps):
    """Take some steps in a loop, and leave it: a clean pause."""
    last = None
    for _, step in zip(range(steps), private, strict=False):
        last = step.number
    return last


def charged(where):
    with Ledger.open(where / "ledger.sqlite") as ledger:
        (run,) = ledger.runs()
        return ledger.charged(run)


@pytest.mark.parametrize("started", [True, False])
def test_f22_a_step_after_a_pause_claims_the_checkpoint_however_it_is_taken(started, blobs, tmp_path):
    """Break, advance, crash: the steps since the pause are released, so nobody resumes from before them."""
    private = start(tmp_path / "run", blobs)
    assert take(private, 5) == 5
    if started:
        assert private.advance().number == 6
    else:
        unstarted = iter(private)
        assert private.advance().number == 6
        del unstarted
    assert private.advance().number == 7
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")  # as a crash leaves it
    assert standing_of_run(tmp_path / "crashed").taken >= 7
    resumed = again(tmp_path / "crashed", blobs)
    assert resumed.taken == charged(tmp_path / "crashed") == 8


def test_f22_a_pause_that_fails_halfway_is_claimed_all_the_same(blobs, tmp_path, monkeypatch):
    """The clean checkpoint is on disk, and run.json is not written any more: the next step must claim it."""
    private = start(tmp_path / "run", blobs)
    private.advance()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tacita.runs.write_json", full)
        with pytest.raises(OSError, match="No space"):
            private.pause()
    private.advance()
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")
    assert standing_of_run(tmp_path / "crashed").taken >= 2


def test_l13_a_folder_whose_run_is_being_stepped_is_not_resumed(blobs, tmp_path):
    private = start(tmp_path / "run", blobs)
    with pytest.raises(PrivacyError, match="in use"):  # not even begun
        again(tmp_path / "run", blobs)
    steps = iter(private)
    next(steps)
    with pytest.raises(PrivacyError, match="in use") as refused:
        again(tmp_path / "run", blobs)
    assert "\n" not in str(refused.value)
    assert next(steps).number == 2  # the owner goes on
    assert standing_of_run(tmp_path / "run").taken == 4  # reading needs no lock
    steps.close()
    assert again(tmp_path / "run", blobs).taken == 2


def test_l13_an_object_that_was_left_behind_is_refused_in_one_line(blobs, tmp_path):
    """Paused, and resumed by another: the older object neither steps nor labels any more."""
    private = start(tmp_path / "run", blobs)
    take(private, 2)
    other = again(tmp_path / "run", blobs)
    with pytest.raises(PrivacyError, match="in use"):
        private.advance()
    take(other, 3)  # a clean pause lets go of the folder, and keeps the run
    for call in (private.advance, private.label, lambda: next(iter(private))):
        with pytest.raises(PrivacyError, match="resumed elsewhere") as refused:
            call()
        assert "\n" not in str(refused.value)
    assert private.taken == 2
    assert other.advance().number == 6


def test_l13_what_is_gone_holds_nothing(blobs, tmp_path):
    private = start(tmp_path / "run", blobs)
    private.advance()
    del private
    gc.collect()
    resumed = again(tmp_path / "run", blobs)
    assert resumed.advance().number == 5  # the rest of the block may have been released
    resumed.pause()
    assert again(tmp_path / "run", blobs).taken == 5
    resumed.pause()  # again is nothing
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        resumed.advance()


def test_l13_two_copies_of_a_folder_share_one_ledger(blobs, tmp_path):
    """A copy has another lock file; the token in the shared ledger keeps the older owner out."""
    one = start(tmp_path / "one", blobs, ledger=tmp_path / "shared.sqlite")
    take(one, 2)
    one.advance()  # within the block of four
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    two = again(tmp_path / "two", blobs)
    assert two.taken == 4
    assert two.advance().number == 5
    assert one.advance().number == 4  # charged before
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        one.advance()
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        one.pause()  # its checkpoint must not pass for a clean one
    assert take(one, 0) is None  # and leaving a loop is quiet
    del one
    gc.collect()
    two.pause()
    third = again(tmp_path / "one", blobs)
    assert third.taken == 8  # all that is charged: what the copy did is not known here


def test_l13_a_filesystem_without_locks_is_refused(blobs, tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("tacita.owner.fcntl.flock", unsupported)
    with pytest.raises(PrivacyError, match="cannot be locked"):
        start(tmp_path / "run", blobs)


def test_l14_a_ledger_that_its_user_closed_is_checked_where_it_is(blobs, tmp_path):
    with Ledger.create(tmp_path / "shared.sqlite") as ledger:
        private = start(tmp_path / "run", blobs, ledger=ledger, steps=4)
        private.run()
    private.label()
    (tmp_path / "shared.sqlite").unlink()
    with pytest.raises(PrivacyError, match="no ledger"):
        private.label()


PROCESS = textwrap.dedent("""
    import sys, torch
    from torch import nn
    from tacita.training import PrivateTraining
    torch.set_num_threads(1)
    where, mode = sys.argv[1:3]
    generator = torch.Generator().manual_seed(7)
    data = torch.randn(300, 4, generator=generator), torch.randint(0, 2, (300,), generator=generator)
    model = nn.Linear(4, 2)
    common = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    loss = nn.functional.cross_entropy
    if mode == "start":
        private = PrivateTraining(model, loss, data, sample_rate=0.1, batch_size=30, noise_multiplier=1.0, steps=400,
                                  panel=0, run_dir=where, **common)
    else:
        private = PrivateTraining.resume(where, model, loss, data, **common)
    for step in private:
        print("released", step.number, flush=True)
        sys.stdin.readline()
""")


def launch(where, mode):
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    command = [sys.executable, "-c", PROCESS, str(where), mode]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def test_l13_two_processes_and_kill_9(tmp_path):
    """A second process is refused while the first steps; after kill -9 of the first it goes on."""
    first = launch(tmp_path / "run", "start")
    assert first.stdout.readline() == "released 1\n"
    second = launch(tmp_path / "run", "resume")
    _, errors = second.communicate(timeout=100)
    assert second.returncode != 0
    assert "in use" in errors.splitlines()[-1]
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    third = launch(tmp_path / "run", "resume")
    assert third.stdout.readline() == "released 5\n"
    third.kill()
    third.communicate()


@pytest.mark.parametrize("how", ["removed", "replaced", "older copy", "wal removed"])
@pytest.mark.parametrize("when", ["charge", "label", "resume"])
def test_l14_a_ledger_file_that_is_taken_away_stops_the_run(how, when, blobs, tmp_path):
    run = tmp_path / "run"
    private = start(run, blobs)
    take(private, 3)
    shutil.copytree(run, tmp_path / "before")
    private.advance()
    if when == "resume":
        private.pause()
    file = run / "ledger.sqlite"
    if how == "wal removed":
        file.with_name("ledger.sqlite-wal").unlink()
    else:
        file.unlink()
    if how == "replaced":
        Ledger.create(file).close()
    if how == "older copy":
        shutil.copyfile(tmp_path / "before" / "ledger.sqlite", file)
    call = {"charge": private.run, "label": private.label, "resume": private.advance}[when]
    with pytest.raises(PrivacyError, match=r"ledger.*removed or replaced") as refused:
        call()
    assert "\n" not in str(refused.value)
    assert private.taken <= 8
