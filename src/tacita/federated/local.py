"""A federation in one process: the same client and server functions as behind Flower, without messages."""

from __future__ import annotations

import copy
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
from tacita.federated.client import Client, Local, Part, Task, Training
from tacita.federated.exchange import Exchange
from tacita.federated.labels import federation_label
from tacita.federated.plan import FederationPlan, refuse_unknown
from tacita.federated.server import Round, Server
from tacita.federated.storage import (
    KIND,
    keep_memory,
    kept_memory,
    ledger_place,
    plan_of,
    restore_federation,
    save_federation,
)
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, RunError
from tacita.training.gradients import Parameters
from tacita.training.records import Records, trainable
from tacita.training.settings import Books, grouped


class Federation:
    """Train a model over many clients with privacy, in this process, and report what it leaks.

    Args:
        model: Any module of per-record layers.
        loss_fn: As in PyTorch: the mean over a batch of the model's output and the target. None with a `Training`.
        clients: What each client holds, as `PrivateTraining` takes it; by name, or in a list. Or (dataset, positions).
        plan: From `FederationPlan.declare`: level, noise, rates, rounds.
        local: What a client does at levels without privacy inside it, and its learning rate; or, at level client, your
            own `tacita.federated.client.Training`.
        optimizer: The server's optimiser of the model's parameters, on the private mean; by default the mean is added.
        held_out: Names of clients that are followed and never drawn.
        panel: How many clients are followed, at level client; 0 takes the norms of those who take part.
        record_panel: How many records each client follows, at the other levels.
        dropout: The chance that a client does not answer, to try it out.
        costs_every: Rounds between two exchanges of the records' typical costs; by default there is one at the end.
        record_ledger: A path, or a `Ledger` of records, at level joint. Without one the run directory gets its own.
        books: Where the run is kept; or the fields of `tacita.training.settings.Books` as keywords: `ledger` (of the
            plan's larger unit), `run_dir`, `seed` (for everybody's coins and noise), `name`, `purpose`.
        settings: Single settings of `books`.

    Guarantee:
        That of `Server` and `Client`: a round is charged before anybody is asked, and the label's figures hold for the
        plan's level.

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
        record_ledger: Ledger | str | Path | None = None,
        books: Books | None = None,
        **settings: Any,
    ) -> None:
        kept: Books = grouped("books", Books, books, settings)
        refuse_unknown(settings)
        if kept.run_dir is not None:
            page_template()  # fail early if an extra is missing
        self._attach(model, loss_fn, clients, plan, local, optimizer, record_panel, dropout, costs_every, kept.seed)
        self.run_dir = None if kept.run_dir is None else Run.create(kept.run_dir).folder
        self.server = Server(
            plan,
            self._parameters(),
            panel=panel,
            held_out=held_out,
            ledger=ledger_place(kept.ledger, self.run_dir, "ledger.sqlite"),
            record_ledger=ledger_place(record_ledger, self.run_dir, "record-ledger.sqlite"),
            seed=kept.seed,
            owner=Owner(self.run_dir).hold(),
        )
        self._facts = RunFacts(
            title=kept.name or (Path(kept.run_dir).name if kept.run_dir else "Private federation"),
            purpose=kept.purpose or f"A {type(model).__name__} model trained by a federation.",
            seeded=kept.seed is not None,
            trained=len(self.clients) - len(held_out),
            held_out=len(held_out),
            form_taken=any(client.records.form_taken for client in self.clients.values()),
        ).with_ledger(self.server.ledgers[0].path.name, shared=kept.ledger is not None)
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
        seed: int | None,
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
            name: Client(name, self._task, data, plan, panel=self._record_panel, seed=seed)
            for name, data in named(clients).items()
        }
        held = [client.records for client in self.clients.values()]
        self._task.try_one(next((records for records in held if len(records)), held[0]))
        self._dropout = _check.in_range("dropout", dropout, 0.0, 1.0)
        self._absent = np.random.default_rng(seed)
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
        replies = _replies([self.clients[n] for n in answered], parameters, now.number)
        self._remember(now, answered)
        mean = self.server.finish(replies)
        self._collect(now, set(answered))
        apply(mean, self._moved, self.optimizer)
        self._note(self.server.status)
        return now

    def run(self) -> Federation:
        """Take all remaining rounds."""
        for _ in self:
            pass
        return self

    def pause(self) -> None:
        """Release the run directory, as leaving a loop does; every round is kept as it ends.

        Until then nobody else can resume the run. The next round continues, unless somebody else has resumed the run.
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
        unreported = set(self.server.measured.unreported)
        if unreported and self._follows_records and self.server.open_round is None:
            self.server.collect_costs(_exchange(self.clients, self.server, unreported))
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
        """How the run stands, such as `running`, `done`, `interrupted` or `resumed`."""
        return self._facts.status if self._facts.status in ("interrupted", "resumed") else self.server.status

    # A round's parts.

    def _parameters(self) -> Parameters:
        return {name: p.detach().clone() for name, p in self._moved.items()}

    def _drops_out(self) -> bool:
        return self._dropout > 0.0 and bool(self._absent.random() < self._dropout)

    @property
    def _follows_records(self) -> bool:
        return self.plan.privacy_level.record_bound is not None and self._record_panel > 0

    def _collect(self, now: Round, here: set[str]) -> None:
        per_client = self.plan.privacy_level.norms_per_client(self._record_panel)
        if per_client:
            self.server.collect_norms(now, _exchange(self.clients, self.server, here), per_client=per_client)
        if self._follows_records and now.number % self._costs_every == 0:
            self.server.collect_costs(_exchange(self.clients, self.server, here))

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
        """Continue an interrupted federation: the same plan, the same guarantee, fresh coins and noise.

        A round that was charged after the last checkpoint may have been released, so it is lost: it counts among the
        planned ones, at its bound.

        Args:
            run_dir: The run directory.
            model: A module like the one that was trained; its parameters are replaced.
            loss_fn: As for `Federation`, like the arguments that follow.
            clients: What each client holds.
            local: What a client does at levels without privacy inside it.
            optimizer: The server's optimiser of the model's parameters.
            held_out: Further clients that are followed and never drawn.
            record_panel: How many records each client follows.
            dropout: The chance that a client does not answer.
            costs_every: Rounds between two exchanges of the records' typical costs.

        Raises:
            RunError: If the checkpoint does not fit.
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
    """Return what each client holds, by name; a list of clients is numbered, so that names sort like numbers."""
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


def _replies(clients: Sequence[Client], parameters: Parameters, number: int) -> dict[str, Parameters]:
    """Return the updates of the clients that could compute one: an error in one client does not stop the others."""
    replies, failed = dict[str, Parameters](), list[str]()
    for client in clients:
        try:
            with held():
                replies[client.name] = client.update(parameters, number)
        except Stopped:
            raise
        except Exception as error:
            failed.append(type(error).__name__)
    if failed and not replies:
        raise RuntimeError(f"No client could compute its update ({', '.join(sorted(set(failed)))}).") from None
    return replies


def _exchange(clients: Mapping[str, Client], server: Server, here: set[str]) -> Exchange:
    def keys(names: tuple[str, ...], exchange: str) -> dict[str, bytes]:
        return {n: clients[n].key(exchange) for n in names if n in here}

    def costs(keys: Mapping[str, bytes], exchange: str, what: str) -> dict[str, Any]:
        return {n: clients[n].costs(keys, what=what, steps=server.steps_of(n)) for n in keys}

    return Exchange(keys, costs)


def apply(mean: Parameters, moved: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Let the server's optimiser move the parameters along the private mean.

    Args:
        mean: The private mean of the updates.
        moved: The parameters.
        optimizer: The server's optimiser.
    """
    optimizer.zero_grad(set_to_none=True)  # no stale gradient may move a parameter
    for name, parameter in moved.items():
        parameter.grad = -mean[name].to(parameter.dtype)
    optimizer.step()
    if not all(bool(torch.isfinite(p).all()) for p in moved.values()):
        raise ValueError("The parameters are not finite after this round: lower the learning rates and start anew.")
