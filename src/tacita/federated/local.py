"""A federation in one process: the same client and server functions as behind Flower, without messages."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import Interrupts, Stopped, held
from tacita.facts import RunFacts, Status
from tacita.federated.client import Client, Local, Memory, Part, Task, Training
from tacita.federated.labels import federation_label
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Exchange, Round, Server
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, RunError
from tacita.training.gradients import Parameters
from tacita.training.records import Records, trainable

KIND = "federation"


class Federation:
    """Train a model over many clients with privacy, in this process, and say what it leaks.

    Args:
        model: Any module of per-record layers.
        loss_fn: As in PyTorch: the mean over a batch of the model's output and the target. None with a `Training`.
        clients: What each client holds, as `PrivateTraining` takes it; by name, or in a row. Or (dataset, positions).
        plan: From `federation_plan`: level, noise, rates, rounds.
        local: What a client does where nothing inside it is protected, and its learning rate; or, at level client, a
            `tacita.federated.client.Training` of your own.
        optimizer: The server's optimiser of the model's parameters, on the private mean; by default the mean is added.
        held_out: Names of clients that are followed and never drawn.
        panel: How many clients are followed, at level client; 0 takes the norms of those who take part.
        record_panel: How many records each client follows, at the other levels.
        dropout: The chance that a client does not answer, to try it out.
        costs_every: Rounds between two exchanges of the records' typical costs; by default there is one at the end.
        ledger: A path, or a `Ledger` of the plan's larger unit. Without one the run directory gets its own.
        record_ledger: The same for records, at level joint.
        run_dir: Where to write the run. None writes nothing, and the run cannot be resumed.
        rng: A seed, for everybody's coins and noise. None, the default, is seeded by the operating system.
        name: The run's name on its label.
        purpose: What is made, in a sentence, for its label.

    Examples:
        >>> import torch
        >>> from tacita.federated import Federation, federation_plan
        >>> data = [(torch.randn(30, 4), torch.randint(0, 2, (30,))) for _ in range(10)]
        >>> plan = federation_plan(level="client", clients=10, client_rate=0.5, rounds=3, noise_multiplier=2.0)
        >>> federation = Federation(torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, data, plan)
        >>> for now in federation:
        ...     pass
        >>> now.number, federation.label().worst.unit
        (3, 'client')
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        clients: Any,
        plan: FederationPlan,
        *,
        local: Local | Training | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        held_out: Sequence[str] = (),
        panel: int = 64,
        record_panel: int = 64,
        dropout: float = 0.0,
        costs_every: int | None = None,
        ledger: Ledger | str | Path | None = None,
        record_ledger: Ledger | str | Path | None = None,
        run_dir: str | Path | None = None,
        rng: int | None = None,
        name: str | None = None,
        purpose: str = "",
    ) -> None:
        if run_dir is not None:
            page_template()  # a missing extra is told now, not after the work
        self._attach(model, loss_fn, clients, plan, local, optimizer, record_panel, dropout, costs_every, rng)
        self.run_dir = None if run_dir is None else Run.create(run_dir).folder
        self.server = Server(
            plan,
            self._parameters(),
            panel=panel,
            held_out=held_out,
            ledger=ledger_place(ledger, self.run_dir, "ledger.sqlite"),
            record_ledger=ledger_place(record_ledger, self.run_dir, "record-ledger.sqlite"),
            rng=rng,
            owner=Owner(self.run_dir).hold(),
        )
        self._facts = RunFacts(
            title=name or (Path(run_dir).name if run_dir else "Private federation"),
            purpose=purpose or f"A {type(model).__name__} model trained by a federation.",
            seeded=rng is not None,
            trained=len(self.clients) - len(held_out),
            held_out=len(held_out),
            form_taken=any(client.records.form_taken for client in self.clients.values()),
        ).with_ledger(self.server.ledgers[0].path.name, shared=ledger is not None)
        self._save()

    def _attach(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        clients: Any,
        plan: FederationPlan,
        local: Local | Training | None,
        optimizer: torch.optim.Optimizer | None,
        record_panel: int,
        dropout: float,
        costs_every: int | None,
        rng: int | None,
    ) -> None:
        self.model, self.plan = model, plan
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
        self._moved = trainable(model, self.optimizer)
        twin = copy.deepcopy(model)
        for name, parameter in twin.named_parameters():
            parameter.requires_grad_(name in self._moved)  # what the optimiser does not move is frozen for clients too
        self._task = Task(twin, loss_fn, local)
        self._record_panel = _check.count("record_panel", record_panel, low=0)
        self.clients = {
            name: Client(name, self._task, data, plan, panel=self._record_panel, rng=rng)
            for name, data in named(clients).items()
        }
        held = [client.records for client in self.clients.values()]
        self._task.try_one(next((records for records in held if len(records)), held[0]))
        self._dropout = _check.in_range("dropout", dropout, 0.0, 1.0)
        self._absent = np.random.default_rng(rng)
        self._costs_every = costs_every or plan.rounds

    # What users call.

    def __iter__(self) -> Iterator[Round]:
        """Take the remaining rounds one by one. Interrupting leaves a run that can be resumed."""
        with Interrupts() as interrupts:
            try:
                while (now := self.advance()) is not None:
                    yield now
                    if interrupts.seen:
                        self._note("interrupted")
                        raise KeyboardInterrupt
            finally:
                self.pause()

    def advance(self) -> Round | None:
        """Take one round and return it; None if no round, or no budget, is left."""
        now = self.server.begin(self.clients)
        if now is None:
            self._note(self.server.status)
            return None
        parameters = self._parameters()
        answered = [n for n in now.asked if not self._drops_out()]
        replies = self._replies(now, parameters, answered)
        self._remember(now, answered)
        mean = self.server.finish(replies)
        self._tell_costs(now, set(answered))
        apply(mean, self._moved, self.optimizer)
        self._note(self.server.status)
        return now

    def run(self) -> Federation:
        """Take all remaining rounds."""
        for _ in self:
            pass
        return self

    def pause(self) -> None:
        """Let go of the run directory, as leaving a loop does; every round is kept as it ends.

        Until then nobody else can resume the run. The next round goes on, unless somebody else has resumed it.
        """
        self.server.owner.close()

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label of the federation, and write it to the run directory.

        The headline is that of the declared end which covers the rounds taken: the plan's, unless `stops` were
        declared, or the owner's `end`, or the budget of a ledger that had one from its first charge on. A round that is
        open, since a client raised in it, counts as charged and stays open. Clients report figures of the owner's that
        they have not reported yet; nothing else changes, but for `metrics`, which are kept.
        """
        if self.server.taken == 0:
            raise PrivacyError("No round was taken yet: there is nothing to label.")
        self.server.check()
        self._facts = self._facts.with_metrics(metrics or {})
        if self.server.untold and self._follows_records and self.server.open_round is None:
            self.server.hear_records(self._exchange(set(self.server.untold)))
        facts = self._facts.with_status(self.server.status)
        label = federation_label(self.server, facts, self.plan.delta if delta is None else delta)
        self._save()
        if self.run_dir is not None:
            Run(self.run_dir).write_label(label)
        return label

    def end(self, reason: str) -> None:
        """End the federation here, declaring that this depended on nothing private: no record, no released output.

        The label then speaks of the rounds taken, with your reason as an open assumption. No round can follow.

        Args:
            reason: What ended it, such as "the machine was needed elsewhere"; shown on the public label.
        """
        self.server.end(reason)

    @property
    def status(self) -> Status:
        """`running`, `done`, `interrupted`, `resumed` or `stopped …`."""
        return self._facts.status if self._facts.status in ("interrupted", "resumed") else self.server.status

    # A round's parts.

    def _replies(self, now: Round, parameters: Parameters, names: Sequence[str]) -> dict[str, Parameters]:
        """Return the updates of those who could compute one: what a client's records raise stops nobody else."""
        replies, failed = dict[str, Parameters](), list[str]()
        for name in names:
            try:
                with held():
                    replies[name] = self.clients[name].update(parameters, now.number)
            except Stopped:
                raise
            except Exception as error:
                failed.append(type(error).__name__)
        if failed and not replies:
            raise RuntimeError(f"No client could compute its update ({', '.join(sorted(set(failed)))}).") from None
        return replies

    def _parameters(self) -> Parameters:
        return {name: p.detach().clone() for name, p in self._moved.items()}

    def _drops_out(self) -> bool:
        return self._dropout > 0.0 and bool(self._absent.random() < self._dropout)

    @property
    def _follows_records(self) -> bool:
        return self.plan.level in ("parallel", "joint") and self._record_panel > 0

    def _tell_costs(self, now: Round, here: set[str]) -> None:
        if self.plan.level == "joint" or (self.plan.level == "sequential" and self._record_panel):
            followed = self._record_panel if self.plan.level == "sequential" else 1
            self.server.hear_norms(now, self._exchange(here), followed=followed)
        if self._follows_records and now.number % self._costs_every == 0:
            self.server.hear_records(self._exchange(here))

    def _exchange(self, here: set[str]) -> Exchange:
        def keys(names: tuple[str, ...], exchange: str) -> dict[str, bytes]:
            return {n: self.clients[n].key(exchange) for n in names if n in here}

        def costs(keys: Mapping[str, bytes], exchange: str, what: str) -> dict[str, Any]:
            return {n: self.clients[n].costs(keys, what=what, steps=self.server.steps_of(n)) for n in keys}

        return Exchange(keys, costs)

    # Keeping.

    def _remember(self, now: Round, names: Sequence[str]) -> None:
        if self.run_dir is not None:
            for name in names:
                keep_memory(self.run_dir, name, now.number, self.clients[name].memory)

    def _note(self, status: Status) -> None:
        self._facts = self._facts.with_status(status)
        self._save()

    def _save(self) -> None:
        if self.run_dir is None:
            return
        panels, document = self.server.state()
        accounts = {n: c.account.state() for n, c in self.clients.items() if c.account and c.account.accountant.taken}
        save_federation(
            Run(self.run_dir),
            self.server,
            self._facts,
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "panels": panels},
            {**document, "accounts": accounts},
        )

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        clients: Any,
        *,
        local: Local | Training | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        held_out: Sequence[str] = (),
        record_panel: int = 64,
        dropout: float = 0.0,
        costs_every: int | None = None,
    ) -> Federation:
        """Go on with an interrupted federation: the same plan, the same guarantee, fresh coins and noise.

        A round that was charged after the last checkpoint may have been released, so it is lost: it counts among the
        planned ones, at its bound.
        """
        run = Run.open(run_dir, KIND)
        folder, plan = run.folder, plan_of(run)
        made = cls.__new__(cls)
        made.run_dir = folder
        made._attach(model, loss_fn, clients, plan, local, optimizer, record_panel, dropout, costs_every, None)
        with Owner(folder).opening() as owner:
            made.server, made._facts, state, saved = restore_federation(run, made._parameters(), held_out, owner=owner)
            try:
                model.load_state_dict(state["model"])
                made.optimizer.load_state_dict(state["optimizer"])
                for name, account in saved["accounts"].items():
                    made.clients[name].restore(account)
            except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
                raise RunError(f"The checkpoint does not fit this model, optimizer or clients: {error}") from error
            for name, client in made.clients.items():
                client.answered, client.memory = made.server.taken, kept_memory(folder, name)
            made._note("resumed")
        return made


def named(clients: Any) -> dict[str, Any]:
    """Return what each client holds, by name; a row of clients is numbered, so that names sort like numbers."""
    if isinstance(clients, Mapping):
        held = {str(name): data for name, data in clients.items()}
    elif isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[1], list):
        pool = Records(clients[0])
        held = {client_name(i): Part(pool, positions) for i, positions in enumerate(clients[1])}
    else:
        held = {client_name(i): data for i, data in enumerate(clients)}
    if not held:
        raise ValueError("A federation needs at least one client.")
    return held


def client_name(number: int) -> str:
    """Return the name of a numbered client.

    Examples:
        >>> client_name(7)
        '000007'
    """
    return f"{number:06d}"


def apply(mean: Parameters, moved: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Let the server's optimiser move the parameters along the private mean."""
    optimizer.zero_grad(set_to_none=True)  # nobody else's gradient may move a parameter
    for name, parameter in moved.items():
        parameter.grad = -mean[name].to(parameter.dtype)
    optimizer.step()
    if not all(bool(torch.isfinite(p).all()) for p in moved.values()):
        raise ValueError("The parameters are not finite after this round: lower the learning rates and start anew.")


def keep_memory(folder: Path, client: str, number: int, memory: Memory) -> None:
    """Write what a client remembers after a round to a folder of its own, apart from the server's checkpoints."""
    if memory:
        own = _own_folder(folder, client)
        (own / "checkpoints").mkdir(parents=True, exist_ok=True)
        Run(own).save(number, memory, {"client": client})


def kept_memory(folder: Path, client: str) -> Memory:
    """Return what a client remembers; nothing if it never took part."""
    own = _own_folder(folder, client)
    return dict(Run(own).load()[0]) if own.is_dir() else {}


def _own_folder(folder: Path, client: str) -> Path:
    return folder / "clients" / hashlib.sha256(client.encode()).hexdigest()[:16]  # a name may be no name for a file


def plan_of(run: Run) -> FederationPlan:
    """Return the plan of a federation's run."""
    with run.reading():
        return FederationPlan.from_dict(run.document()["plan"])


def save_federation(
    run: Run, server: Server, facts: RunFacts, state: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    """Write a checkpoint and the run's document."""
    run.save(server.taken, state, {"id": server.identity, **document})
    if not run.exists:
        run.write(kind=KIND, family=KIND)
    run.write(
        id=server.identity,
        plan=server.plan.to_dict(),
        facts=facts.to_dict(),
        ledgers=[run.place(ledger.path) for ledger in server.ledgers],
        seed_fingerprint=server.random.fingerprint,
    )


def restore_federation(
    run: Run, like: Parameters, held_out: Sequence[str] = (), *, owner: Owner | None = None
) -> tuple[Server, RunFacts, dict[str, Any], dict[str, Any]]:
    """Return the server of a run directory as it stands, its facts, and the checkpoint's state and document.

    With an `owner`, who holds the folder, the run is resumed; without one it is only read.
    """
    state, saved = run.load()
    with run.reading():
        if not all(file.is_file() for file in run.ledgers):
            raise PrivacyError("The run's ledger is not where it was: what was charged cannot be known.")
        places = [Ledger.open(file) for file in run.ledgers]
        server = Server(
            plan_of(run),
            like,
            held_out=held_out,
            ledger=places[0],
            record_ledger=places[-1],
            identity=str(run.document()["id"]),
            owner=owner,
        )
        server.restore(state["panels"], saved, resume=owner is not None)
    return server, run.facts, state, saved


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a federation's run directory, from its newest checkpoint; the data are not needed."""
    server, facts, _, _ = restore_federation(Run.open(folder, KIND), {})
    if server.taken == 0:
        raise PrivacyError("No round was taken yet: there is nothing to label.")
    return federation_label(server, facts, server.plan.delta if delta is None else _check.probability("delta", delta))


def declare_end(folder: str | Path, reason: str) -> None:
    """End the federation of a run directory, declaring that this depended on nothing private."""
    run = Run.open(folder, KIND)
    with Owner(run.folder).opening() as owner:
        restore_federation(run, {})[0].end(reason)
    owner.close()


def ledger_place(ledger: Ledger | str | Path | None, folder: Path | None, name: str) -> Ledger | str | Path:
    """Return the ledger asked for, else the run directory's own, else one in memory."""
    if ledger is not None:
        return ledger
    return ":memory:" if folder is None else folder / name
