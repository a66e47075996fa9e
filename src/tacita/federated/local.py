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
from tacita._guard import Interrupts, Stopped, held
from tacita.facts import Status
from tacita.federated.client import Client, Local, Part, Task, Training
from tacita.federated.masking import Exchange
from tacita.federated.plan import FederationPlan, refuse_unknown
from tacita.federated.server import Round, Server
from tacita.federated.storage import KIND, Kept, keep_memory, kept_memory, plan_of
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
        record_ledger: A path, a database's URL or a `Ledger` of records, at level joint. Without one the run directory
            gets its own.
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

    @_check.renamed("rng")
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
        self.model, self.plan = model, plan
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
        self._moved = trainable(model, self.optimizer)
        twin = copy.deepcopy(model)
        for name, parameter in twin.named_parameters():
            parameter.requires_grad_(name in self._moved)  # what the optimiser does not move is frozen for clients too
        task = Task(twin, loss_fn, local)
        self._record_panel = _check.count("record_panel", record_panel, low=0)
        self.clients = {
            name: Client(name, task, data, plan, panel=self._record_panel, seed=kept.seed)
            for name, data in named(clients).items()
        }
        task.try_one(max((client.records for client in self.clients.values()), key=lambda held: len(held) > 0))
        self._dropout = _check.in_range("dropout", dropout, 0.0, 1.0)
        self._absent = np.random.default_rng(kept.seed)
        self._costs_every = costs_every or plan.rounds
        self._kept = Kept.begin(
            plan,
            self._parameters(),
            kept,
            record_ledger=record_ledger,
            panel=panel,
            held_out=held_out,
            purpose=f"A {type(model).__name__} model trained by a federation.",
            trained=len(self.clients) - len(held_out),
            form_taken=any(client.records.form_taken for client in self.clients.values()),
        )
        self._save()

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
        answered = [n for n in now.asked if not (self._dropout and self._absent.random() < self._dropout)]
        replies = _replies([self.clients[n] for n in answered], parameters, now.number)
        if self.run_dir is not None:
            for name in answered:
                keep_memory(self.run_dir, name, now.number, self.clients[name].memory)
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
        label = self._kept.label(delta, metrics, self._collect_unreported)
        self._save()
        return label

    def end(self, reason: str) -> None:
        """End the federation here, declaring that this depended on nothing private: no record, no released output.

        The label then speaks of the rounds taken, with your reason as an open assumption. No round can follow.

        Args:
            reason: What ended it, such as "the machine was needed elsewhere"; shown on the public label.
        """
        self.server.charges.end(reason)

    @property
    def server(self) -> Server:
        """The federation's server."""
        return self._kept.server

    @property
    def run_dir(self) -> Path | None:
        """Where the run is kept; None if it is not."""
        return None if self._kept.run is None else self._kept.run.folder

    @property
    def status(self) -> Status:
        """How the run stands, such as `running`, `done`, `interrupted` or `resumed`."""
        found = self._kept.facts.status
        return found if found in ("interrupted", "resumed") else self.server.status

    # A round's parts.

    def _parameters(self) -> Parameters:
        return {name: p.detach().clone() for name, p in self._moved.items()}

    @property
    def _follows_records(self) -> bool:
        return self.plan.privacy_level.record_bound is not None and self._record_panel > 0

    def _collect(self, now: Round, here: set[str]) -> None:
        per_client = self.plan.privacy_level.norms_per_client(self._record_panel)
        if per_client:
            self.server.measured.collect_norms(now, _exchange(self.clients, self.server, here), per_client=per_client)
        if self._follows_records and now.number % self._costs_every == 0:
            self._collect_costs(here)

    def _collect_unreported(self) -> None:
        unreported = set(self.server.measured.unreported)
        if unreported and self._follows_records and self.server.open_round is None:
            self._collect_costs(unreported)

    def _collect_costs(self, here: set[str]) -> None:
        self.server.measured.collect_costs(_exchange(self.clients, self.server, here), self.server.taken)

    # Keeping.

    def _note(self, status: Status) -> None:
        self._kept.note(status)
        self._save()

    def _save(self) -> None:
        accounts = {n: c.account.state() for n, c in self.clients.items() if c.account and c.account.accountant.taken}
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self._kept.save(state, {"accounts": accounts})

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
        made = cls(  # in memory, until the run is read
            model,
            loss_fn,
            clients,
            plan_of(run),
            local=local,
            optimizer=optimizer,
            record_panel=record_panel,
            dropout=dropout,
            costs_every=costs_every,
        )
        with Owner(run.folder).opening() as owner:
            made._kept, state, saved = Kept.restore(run, made._parameters(), held_out, owner=owner)
            try:
                model.load_state_dict(state["model"])
                made.optimizer.load_state_dict(state["optimizer"])
                for name, account in saved["accounts"].items():
                    made.clients[name].restore(account)
            except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
                raise RunError(f"The checkpoint does not fit this model, optimizer or clients: {error}") from error
            for name, client in made.clients.items():
                client.answered, client.memory = made.server.taken, kept_memory(run.folder, name)
            made._note("resumed")
        return made


def named(clients: Any) -> dict[str, Any]:
    """Return what each client holds, by name; a list of clients is numbered, so that names sort like numbers."""
    if isinstance(clients, Mapping):
        held = {str(name): data for name, data in clients.items()}
    elif isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[1], list):
        held = holdings(*clients)
    else:
        held = {client_name(i): data for i, data in enumerate(clients)}
    if not held:
        raise ValueError("A federation needs at least one client.")
    return held


def holdings(dataset: Any, parts: Sequence[Any]) -> dict[str, Part]:
    """Return what each of many clients holds of one dataset, by name, from their records' positions."""
    pool = Records(dataset)
    return {client_name(i): Part(pool, np.asarray(positions)) for i, positions in enumerate(parts)}


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
