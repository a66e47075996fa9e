"""F22: random sequences of public calls, crashes and kills; what is released is never more than what is charged.

A release is counted, in a file, by the function that adds the noise, before its result can go anywhere. Crashes are
objects that are dropped without their clean-up, their locks closed as the kernel would, or real processes that kill -9
themselves in between.
"""

import os
import shutil
import signal
from contextlib import suppress

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tacita[torch]')")

from torch import nn  # noqa: E402

from tacita.accounting.filters import token_budget  # noqa: E402
from tacita.federated import Federation, federation_plan, server  # noqa: E402
from tacita.federated.storage import Kept  # noqa: E402
from tacita.ledger import Ledger  # noqa: E402
from tacita.runs import Run  # noqa: E402
from tacita.training import PrivateTraining, mechanism  # noqa: E402
from tacita.training.labels import standing_of_run  # noqa: E402

LOSS = nn.functional.cross_entropy
X, Y = torch.tensor([[1.0, 2.0], [-2.0, 1.0], [3.0, -1.0]] * 2), torch.tensor([0, 1, 0, 1, 0, 1])
TOKENS = 6


class Counted:
    """How often functions were called, over all processes: one byte in a file for each."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def __call__(self):
        return self.path.stat().st_size

    def one_more(self):
        with self.path.open("ab", buffering=0) as file:
            file.write(b".")


class World:
    """A run folder, everybody who has it open, and what each random call does to them."""

    CALLS = ("loop", "hold", "unstarted", "advance", "pause", "label", "resume", "crash", "kill", "fail", "copy")
    OUTSIDE = ("keep", "take back")  # with a ledger outside the folder only: inside it would be taken back as well

    def __init__(self, folder, rng, released):
        self.folder, self.rng, self.released = folder, rng, released
        self.run, self.outside = folder / "run", bool(rng.integers(2))
        self.ledger = folder / "books" / "ledger.sqlite" if self.outside else self.run / "ledger.sqlite"
        self.ledger.parent.mkdir(parents=True)
        if not self.outside:
            self.run.rmdir()
        self.people, self.loops, self.dead = [self.start()], [], []

    def play(self, calls):
        names = self.CALLS + (self.OUTSIDE if self.outside else ())
        history = []
        for _ in range(calls):
            name = str(self.rng.choice(names))
            history.append(name)
            with suppress(ValueError, RuntimeError):  # PrivacyError and RunError are ValueErrors
                getattr(self, name.replace(" ", "_"))()
            self.check(history)
        for one in self.loops + self.dead:
            with suppress(Exception):
                one.close()

    def check(self, history):
        released, charged = self.released(), self.charged()
        assert released <= charged, (history, released, charged)
        assert released <= self.claimed(), (history, released, self.claimed())

    def charged(self):
        with Ledger.open(self.ledger) as ledger:
            return max((run["charged"] for run in ledger.runs().values()), default=0)

    @property
    def someone(self):
        return self.people[int(self.rng.integers(len(self.people)))]

    def loop(self):
        for _, _ in zip(range(int(self.rng.integers(1, 5))), self.someone, strict=False):
            pass

    def hold(self):
        self.loops.append(iter(self.someone))
        for _ in range(int(self.rng.integers(1, 4))):
            next(self.loops[-1], None)

    def unstarted(self):
        self.loops.append(iter(self.someone))

    def advance(self):
        for _ in range(int(self.rng.integers(1, 4))):
            self.someone.advance()

    def pause(self):
        self.someone.pause()

    def resume(self):
        self.people.append(self.again(self.run))

    def crash(self):
        one = self.people.pop(int(self.rng.integers(len(self.people))))
        self.owner(one).close()
        self.dead += [one, *self.loops]  # kept: letting them go would pause them
        self.loops = []
        if not self.people:
            self.resume()

    def kill(self):
        """Go on in a process of its own, which is killed somewhere."""
        steps = int(self.rng.integers(1, 5))
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            one = self.again(self.run)
            for _ in range(steps):
                one.advance()
            next(iter(one))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def copy(self):
        """Somebody else takes a copy of the folder."""
        if self.outside:
            where = self.folder / f"copy-{len(list(self.folder.iterdir()))}"
            shutil.copytree(self.run, where)
            self.people.append(self.again(where))

    def keep(self):
        shutil.rmtree(self.folder / "kept", ignore_errors=True)
        shutil.copytree(self.run, self.folder / "kept")

    def take_back(self):
        if (self.folder / "kept").exists():
            shutil.rmtree(self.run)
            shutil.copytree(self.folder / "kept", self.run)

    def fail(self):
        one = self.someone
        step = one.optimizer.step

        def failing(*args):
            step(*args)
            raise RuntimeError("out of memory")

        one.optimizer.step = failing
        try:
            one.advance()
        finally:
            one.optimizer.step = step

    @staticmethod
    def parts():
        model = nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


class Training(World):
    """Blocks of three steps; sometimes everybody may take six steps only."""

    def start(self):
        self.budget = token_budget({1.0: TOKENS}) if self.rng.integers(2) else None
        model, optimizer = self.parts()
        return PrivateTraining(
            model,
            LOSS,
            (X, Y),
            optimizer=optimizer,
            sample_rate=1.0,
            batch_size=6,
            steps=300,
            clip_norm=1e-3,  # so that every record is at the clip bound
            noise_multiplier=20.0,
            panel=2,
            individual_every=2 if self.budget else None,
            record_budget=self.budget,
            run_dir=self.run,
            ledger=self.ledger if self.outside else None,
        )

    def again(self, where):
        model, optimizer = self.parts()
        return PrivateTraining.resume(where, model, LOSS, (X, Y), optimizer=optimizer)

    def owner(self, one):
        return one._stepper.keeper.owner if isinstance(one, PrivateTraining) else one._owner

    def label(self):
        one, before = self.someone, self.released()
        label = one.label()
        assert before == 0 or label.worst.epsilon >= one.plan.worst(before, one.plan.delta).epsilon

    def claimed(self):
        try:
            return standing_of_run(self.run).taken
        except ValueError as error:
            if "nothing to label" in str(error):
                return 0
            raise


class Rounds(World):
    """Every round is charged and kept by itself."""

    def start(self):
        level = ("client", "joint")[int(self.rng.integers(2))]
        settings = {"record_clip_norm": 1.0, "record_rate": 0.5, "local_batch": 1} if level == "joint" else {}
        plan = federation_plan(level=level, clients=2, client_rate=1.0, rounds=30, noise_multiplier=20.0, **settings)
        model, optimizer = self.parts()
        books = {"ledger": self.ledger, "record_ledger": self.ledger.with_name("records.sqlite")}
        return Federation(
            model,
            LOSS,
            [(X, Y)] * 2,
            plan,
            optimizer=optimizer,
            panel=0,
            record_panel=0,
            run_dir=self.run,
            **(books if self.outside else {}),
        )

    def again(self, where):
        model, optimizer = self.parts()
        return Federation.resume(where, model, LOSS, [(X, Y)] * 2, optimizer=optimizer, record_panel=0)

    def owner(self, one):
        return one.server.owner

    def label(self):
        one, before = self.someone, self.released()
        label = one.label()
        assert before == 0 or label.worst.epsilon >= one.plan.client_worst(before, one.plan.delta).epsilon

    def claimed(self):
        try:
            return Kept.restore(Run(self.run), {})[0].server.taken
        except ValueError as error:
            if "not in the ledger" in str(error):
                return 0
            raise


def counted(monkeypatch, folder):
    """Count releases of both kinds, and those of them into which any record may have gone."""
    folder.mkdir()
    released, spent = Counted(folder / "released"), Counted(folder / "spent")
    for module in (mechanism, server):
        noisy_mean = module.noisy_mean

        def noisy(*args, noisy_mean=noisy_mean, **kwargs):
            released.one_more()
            return noisy_mean(*args, **kwargs)

        monkeypatch.setattr(module, "noisy_mean", noisy)
    clipped_sum = mechanism.clipped_sum

    def clipped(loss, parameters, records, limits, **kwargs):
        if bool((limits > 0).any()):
            spent.one_more()
        return clipped_sum(loss, parameters, records, limits, **kwargs)

    monkeypatch.setattr(mechanism, "clipped_sum", clipped)
    return released, spent


SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 3 else []) for seed in range(250)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [Training, Rounds])
def test_f22_random_calls_and_kills_release_nothing_uncharged(kind, seed, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    released, spent = counted(monkeypatch, tmp_path / "counts")
    world = kind(tmp_path / "world", np.random.default_rng(seed), released)
    world.play(14)
    if isinstance(world, Training) and world.budget is not None:
        assert spent() <= TOKENS
