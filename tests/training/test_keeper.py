"""Charges, checkpoints and resuming: what is on disk, when, and what a crash leaves."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacita
from tacita._check import PrivacyError
from tacita.ledger import Ledger
from tacita.training import PrivateTraining, label_of_run
from tacita.training.randomness import randomness
from tests.training.trainings import again, loss_fn, start, train


def test_f16_the_mechanism_is_frozen_in_the_ledger(blobs, tmp_path):
    book = tmp_path / "budget.sqlite"
    private = train(blobs, ledger=book, steps=20)
    frozen = next(iter(Ledger.open(book).runs().values()))["mechanism"]
    assert frozen["noise_multiplier"] == 1.0
    assert (frozen["steps"], frozen["clip_norm"], frozen["sample_rate"]) == (20, 1.0, 0.1)
    private.run()
    with pytest.raises(AttributeError):
        private.plan.noise_multiplier = 0.5


def test_a_step_is_on_disk_before_the_parameters_change(blobs, tmp_path):
    private = train(blobs, ledger=tmp_path / "b.sqlite", steps=7)
    observed = []
    original = private.mechanism.update
    private.mechanism.update = lambda *args, **options: (
        observed.append(Ledger.open(tmp_path / "b.sqlite").charged(private._stepper.keeper.charges.identity)),
        original(*args, **options),
    )
    private.run()
    assert all(charged >= number for number, charged in enumerate(observed, 1))


def test_a_shared_budget_stops_a_run_before_it_is_passed(blobs, tmp_path):
    book = tmp_path / "b.sqlite"
    Ledger.create(book, epsilon=6.0, delta=1e-5).close()
    first = train(blobs, ledger=book, steps=300, panel=0)
    taken = sum(1 for _ in first)
    assert 0 < taken < 300
    with Ledger.open(book) as ledger:
        assert ledger.spent().epsilon <= 6.0
    with pytest.raises(PrivacyError, match="budget"):
        train(blobs, ledger=book, steps=300, panel=0).run()
    assert first.label().worst.epsilon <= 6.0


def test_a_step_that_fails_halfway_is_counted_and_its_parameters_are_not_kept(blobs, tmp_path):
    """The noisy gradient may have reached the parameters: it must not be released under an unused step's charge."""
    private, model = start(tmp_path / "run", blobs)
    original = private.optimizer.step

    def failing(*args):
        original(*args)
        if private.taken == 13:
            raise RuntimeError("out of memory")

    private.optimizer.step = failing
    with pytest.raises(RuntimeError, match="out of memory"):
        private.run()
    assert private.taken == 14
    assert dict(private.label().worst.mechanism)["steps"] == 40  # when it failed is not told
    resumed, copy = again(tmp_path / "run", blobs)
    assert resumed.taken >= 14
    assert not torch.equal(copy.weight, model.weight)
    assert resumed.accountants["training"].taken == resumed.taken


def test_looking_at_a_failed_training_changes_nothing(blobs, tmp_path):
    """Its label speaks of the whole plan; neither the steps counted nor a record's account may follow it there."""
    private, _ = start(tmp_path / "run", blobs)
    private.advance()
    private.optimizer.step = None
    with pytest.raises(TypeError):
        private.advance()

    def seen():
        counts = {name: accountant.counts.tolist() for name, accountant in private.accountants.items()}
        ledger = private._stepper.keeper.charges.ledger
        files = {p: p.read_bytes() for p in (tmp_path / "run" / "checkpoints").iterdir()}
        return private.taken, private.status, counts, ledger.head, (tmp_path / "run/run.json").read_text(), files

    before = seen()
    first = private.label()
    assert before[:2] == (2, "failed")
    assert seen() == before
    assert private.label() == first
    assert label_of_run(tmp_path / "run").public() == first.public()
    assert seen() == before


def test_an_interrupted_run_goes_on_with_the_same_guarantee(blobs, tmp_path):
    private, model = start(tmp_path / "run", blobs)
    for step in private:
        if step.number == 17:
            break
    weights = model.weight.detach().clone()
    resumed, copy = again(tmp_path / "run", blobs)
    assert torch.equal(weights, copy.weight)
    assert resumed.taken == 17
    resumed.run()
    assert resumed.taken == 40
    assert resumed._stepper.keeper.charges.charged == 40
    label = resumed.label()
    assert label.worst.epsilon == tacita.worst_case(sample_rate=0.1, noise_multiplier=1.0, steps=40, delta=1e-5).epsilon
    assert label_of_run(tmp_path / "run").worst == label.worst
    assert (resumed.accountants["training"].counts.sum(1) == 40).all()


def test_l7_a_resumed_run_never_repeats_its_noise(blobs, tmp_path):
    """Resumed twice, after a seeded start: all noise differs, and the ledger knows every stream."""
    private, _ = start(tmp_path / "run", blobs, seed=3, panel=0)
    for step in private:
        if step.number == 5:
            break
    parts = [private, again(tmp_path / "run", blobs)[0]]
    parts[1].pause()
    parts.append(again(tmp_path / "run", blobs)[0])
    assert len({part._stepper.random.fingerprint for part in parts}) == 3
    draws = [part._stepper.random.noise.standard_normal(4) for part in parts[1:]] + [
        randomness(3).noise.standard_normal(400)
    ]
    assert len(np.unique(np.concatenate(draws))) == 408
    assert any("not secure" in c.text for c in parts[2].label().checks)
    with pytest.raises(PrivacyError, match="seed"):
        parts[2]._stepper.keeper.charges.ledger.open_run(
            "another", mechanism={"steps": 1}, seed_fingerprint=parts[2]._stepper.random.fingerprint, seeded=False
        )


def test_an_edited_plan_is_refused(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs)
    for step in private:
        if step.number == 5:
            break
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    document["plan"]["noise_multiplier"] = 10.0
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    with pytest.raises(PrivacyError, match="another mechanism"):
        again(tmp_path / "run", blobs)
    with pytest.raises(PrivacyError, match="froze before the first step"):
        label_of_run(tmp_path / "run")


def test_two_iterators_never_share_a_charge(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, steps=400, panel=0)
    one = iter(private)
    next(one)
    two = iter(private)
    numbers = [next(two).number for _ in range(6)]
    assert numbers == [2, 3, 4, 5, 6, 7]
    with pytest.raises(StopIteration):
        next(one)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    assert again(tmp_path / "killed", blobs)[0].taken >= 7


def test_a_forked_process_cannot_go_on(blobs):
    private = train(blobs, steps=500, panel=0)
    steps = iter(private)
    next(steps)
    private._stepper.state.process += 1  # as os.fork would leave it
    with pytest.raises(PrivacyError, match="forked"):
        next(steps)


def test_a_ledger_of_another_name_in_the_run_directory(blobs, tmp_path):
    (tmp_path / "books").mkdir()
    private, _ = start(tmp_path / "run", blobs, ledger=tmp_path / "books" / "mine.sqlite")
    next(iter(private))
    assert again(tmp_path / "run", blobs)[0].taken == 1


def test_a_checkpoint_resumed_twice_does_not_get_its_steps_twice(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, steps=400)  # blocks of four steps
    for step in private:
        if step.number == 6:
            break
    one, _ = again(tmp_path / "run", blobs)
    assert one.taken == 6
    del one  # as a crash leaves it
    two, _ = again(tmp_path / "run", blobs)
    assert two.taken == 8  # the rest of the block may have been released by the other
    assert two.accountants["training"].taken == 8


def test_going_on_in_the_same_process(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, steps=400, panel=0)
    for step in private:
        if step.number == 6:
            break
    numbers = []
    for step in private:
        numbers.append(step.number)
        if step.number >= 12:
            break
    assert numbers == [7, 8, 9, 10, 11, 12]


FAULTS = ["flip", "truncate", "missing", "pickle", "foreign", "newer", "json", "rolled back"]


@pytest.mark.parametrize(("part", "fault"), [("sensitive", f) for f in FAULTS] + [("weights", f) for f in FAULTS[:4]])
def test_l5_a_damaged_checkpoint_is_refused_in_one_line(blobs, tmp_path, part, fault):
    private, _ = start(tmp_path / "run", blobs)
    for step in private:
        if step.number == 20:
            break
    private._stepper.keeper.charges.ledger.close()
    newest = max((tmp_path / "run" / "checkpoints").glob(f"*.{part}.safetensors"))
    document = newest.parent / "step-00000020.sensitive.json"
    if fault == "flip":
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(bytes(data))
    elif fault == "truncate":
        newest.write_bytes(newest.read_bytes()[:-10])
    elif fault == "missing":
        newest.unlink()
    elif fault == "pickle":
        torch.save({"model": {}}, newest)
    elif fault == "json":
        document.write_text("{" * 100_000)
    elif fault == "rolled back":
        fresh = tmp_path / "other"
        start(fresh, blobs)[0]._stepper.keeper.charges.ledger.close()
        (fresh / "ledger.sqlite").replace(tmp_path / "run" / "ledger.sqlite")
    else:
        plain = json.loads(document.read_text())
        plain |= {"id": "somebody else's"} if fault == "foreign" else {"step": 39}
        document.write_text(json.dumps(plain))
        for file in list(document.parent.glob("step-00000020.*")) if fault == "newer" else ():
            file.rename(file.with_name(file.name.replace("20", "39")))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        again(tmp_path / "run", blobs)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) > 20


def test_another_model_or_dataset_is_refused(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs, panel=300)
    next(iter(private))
    wide = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="does not fit this model"):
        PrivateTraining.resume(tmp_path / "run", wide, loss_fn, blobs, optimizer=torch.optim.Adam(wide.parameters()))
    with pytest.raises(PrivacyError, match="another dataset"):
        again(tmp_path / "run", (blobs[0][:50], blobs[1][:50]))
    with pytest.raises(ValueError, match="no such folder"):
        again(tmp_path / "nothing", blobs)
    with pytest.raises(ValueError, match="not an empty folder"):
        start(tmp_path / "run", blobs)


SCRIPT = textwrap.dedent("""
    import sys, torch
    from torch import nn
    from tacita.training import PrivateTraining
    torch.set_num_threads(1)
    where, mode = sys.argv[1:3]
    generator = torch.Generator().manual_seed(7)
    y = torch.randint(0, 2, (300,), generator=generator)
    x = torch.randn(300, 4, generator=generator)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy
    if mode == "start":
        private = PrivateTraining(model, loss, (x, y), optimizer=optimizer, sample_rate=0.1, batch_size=30, steps=4000,
                                  noise_multiplier=1.0, panel=4, run_dir=where)
    else:
        private = PrivateTraining.resume(where, model, loss, (x, y), optimizer=optimizer)
    print("ready", private.taken, flush=True)
    for step in private:
        print("released", step.number, flush=True)
""")


def launch(where, mode):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(where), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def released(process, stop_after):
    numbers = []
    for line in process.stdout:
        if line.startswith("released"):
            numbers.append(int(line.split()[1]))
            if len(numbers) >= stop_after:
                return numbers
    return numbers


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_l1_a_killed_training_never_released_an_uncharged_step(tmp_path, kills):
    rng = np.random.default_rng(0)
    where, seen, mode = tmp_path / "run", [], "start"
    for _ in range(kills):
        process = launch(where, mode)
        numbers = released(process, int(rng.integers(3, 90)))
        os.kill(process.pid, signal.SIGKILL)
        numbers += [int(n) for n in re.findall(r"released (\d+)", process.communicate()[0])]
        with Ledger.open(where / "ledger.sqlite") as ledger:
            (run,) = ledger.runs()
            assert ledger.charged(run) >= max(numbers)
        assert not seen or min(numbers) > max(seen)  # a step's number is released once
        seen += numbers
        mode = "resume"
    assert len(seen) == len(set(seen))


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path):
    process = launch(tmp_path / "run", "start")
    released(process, 10)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    numbers = [int(n) for n in re.findall(r"released (\d+)", rest)]
    last = max(numbers, default=10)
    status = json.loads((tmp_path / "run" / "run.json").read_text())["facts"]["status"]
    assert status == "interrupted"
    process = launch(tmp_path / "run", "resume")
    first = released(process, 1)
    process.kill()
    process.communicate()
    assert first[0] in (last + 1, last + 2)  # the interrupted step may not have been printed


def test_s1_nothing_unpickles():
    source = "".join(p.read_text() for p in Path(tacita.__file__).parent.rglob("*.py"))
    for word in (
        "import pickle",
        "torch.load",
        "weights_only=False",
        "allow_pickle=True",
        "joblib",
        " eval(",
        " exec(",
    ):
        assert word not in source


def test_s2_a_crafted_checkpoint_is_refused_at_once(blobs, tmp_path):
    """A pickle that would create a file, in the place of the tensors, with a matching checksum."""
    import hashlib
    import pickle
    import time

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "boom",))

    private, _ = start(tmp_path / "run", blobs)
    next(iter(private))
    newest = max((tmp_path / "run" / "checkpoints").glob("*.sensitive.safetensors"))
    payload = pickle.dumps(Bomb())
    newest.write_bytes(payload)
    document = json.loads(newest.with_suffix(".json").read_text())
    document["sha256"]["sensitive"] = hashlib.sha256(payload).hexdigest()
    newest.with_suffix(".json").write_text(json.dumps(document))
    began = time.monotonic()
    with pytest.raises(ValueError, match="damaged"):
        again(tmp_path / "run", blobs)
    assert time.monotonic() - began < 5.0
    assert not (tmp_path / "boom").exists()
