"""Privacy for Flower apps, on the server: a strategy around the app's own. The clients' side is `flower_client`.

Flower carries messages. Coins, clipping, noise and accounts are those of `tacita.federated.server` and `.client`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita.facts import Status
from tacita.federated.flower_messages import (
    ASK,
    check_arrays,
    check_digits,
    fingerprint,
    parameters_of,
    record_like,
)
from tacita.federated.flower_roster import Roster, message_to
from tacita.federated.flower_strategies import (
    check_strategy,
    content_for,
    inner_state,
    moved_by,
    plain_numbers,
    restore_inner,
)
from tacita.federated.labels import figures
from tacita.federated.masking import Exchange, first_attempt
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.federated.storage import KIND, Kept, plan_of
from tacita.label import Label
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run
from tacita.training.settings import Books, grouped

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy
except ImportError as error:
    raise _check.missing("Flower is not installed", "federated") from error

if TYPE_CHECKING:
    from tacita.ledger import Ledger

_LOG = logging.getLogger("flwr")


class PrivateStrategy(Strategy):  # type: ignore[misc]  # Flower's types are not checked
    """A Flower strategy, on private aggregates: clients by independent coins, clipped, noised, charged, accounted.

    The inner strategy's `aggregate_train` gets one reply, the private mean, so its server optimiser works as before.
    Its way of sampling is not used. Metrics that clients send are computed from private data: they are dropped, and
    clients are not asked to evaluate, unless the plan has `client_metrics=True`. Round numbers are the plan's, so they
    go on after a resume. Attributes of the inner strategy are read and set through this one.

    Args:
        strategy: The strategy to wrap, such as `FedAvg(min_available_nodes=100)` or `FedAdam(...)`: one of
            `tacita.federated.flower_strategies.SUPPORTED`, or a subclass.
        plan: From `FederationPlan.declare`; or give its arguments (`level`, `client_rate`, `rounds`, …) here. By
            default `clients` is the inner strategy's `min_available_nodes`.
        record_ledger: A path, a database's URL or a `tacita.ledger.Ledger` of records, at level joint.
        panel: How many clients are followed, at level client; 0 takes the norms of those who take part.
        record_panel: How many records each client follows, at the other levels: the `panel` of their mod. Clients whose
            owners gave none report nothing, and count at the worst case.
        named: Ask clients for the names that they declare, which their mod reports; needed for a stable identity across
            restarts. By default at all levels but client, and with `client_rates`.
        one_reply: Declares that a strategy with an `aggregate_train` of its own is right with one reply, the model
            moved by the private mean. Without it such a strategy is refused.
        patience: Seconds to wait for `min_available_nodes` before the first round.
        books: Where the run is kept; or the fields of `tacita.training.settings.Books` (`ledger`, `run_dir`, `seed`,
            `name`, `purpose`) as keywords. If `run_dir` holds a run of this plan, that is resumed.
        settings: Single settings of `books`, and the arguments of `FederationPlan.declare`.

    Guarantee:
        That of `Server`, for whatever clients send. At levels with noise on the clients it needs their mod.
    """

    @_check.renamed("rng")
    def __init__(
        self,
        strategy: Strategy,
        *,
        plan: FederationPlan | None = None,
        record_ledger: Ledger | str | Path | None = None,
        panel: int = 0,
        record_panel: int = 64,
        named: bool | None = None,
        one_reply: bool = False,
        patience: float = 300.0,
        books: Books | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(strategy, PrivateStrategy):
            raise PrivacyError("This strategy is private already: wrap the one that is inside it.")
        self._books: Books = grouped("books", Books, books, settings)
        if self._books.run_dir is not None:
            page_template()  # fail early if an extra is missing
        self.timeout = 3600.0
        if plan is None:
            plan = FederationPlan.declare(**{"clients": getattr(strategy, "min_available_nodes", 2), **settings})
        elif settings:
            raise TypeError(f"Give a plan, or {', '.join(sorted(settings))}, and not both.")
        check_strategy(strategy, plan, one_reply=one_reply)
        self.plan = plan
        self.run_dir = None if self._books.run_dir is None else Path(self._books.run_dir)
        self._kept: Kept | None = None
        self._panel, self._record_panel, self._record_ledger = panel, record_panel, record_ledger
        self._named = plan.privacy_level.protects_records or bool(plan.client_rates) if named is None else named
        if plan.client_rates and not self._named:
            raise PrivacyError("client_rates go by the names that clients declare: leave out named=False.")
        self._roster = Roster(plan, named=self._named, patience=patience)
        self._arrays: ArrayRecord | None = None
        self._sent: list[Message] = []
        self._grid: Grid | None = None
        self._reported: Status | None = None  # why no further round is trained, once that was logged
        self._first = plain_numbers(strategy)
        self.inner = strategy  # last: from here on names that only it has are set there

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "inner" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        own = name in vars(self) or hasattr(type(self), name) or not hasattr(vars(self).get("inner"), name)
        if own:
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    # What Flower calls.

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Take the plan's remaining rounds, as Flower's `Strategy.start`, and write the label.

        Args:
            grid: Flower's grid.
            initial_arrays: The model's parameters.
            num_rounds: At most so many rounds; by default all that remain.
            timeout: Seconds to wait for replies.
            train_config: Settings for clients' training.
            evaluate_config: Settings for clients' evaluation.
            evaluate_fn: Called on the server after every round, with the plan's number of the round.
        """
        self.timeout = timeout
        arrays = self.open(initial_arrays)
        done = self._core.next_round - 1
        left = self.plan.rounds - done
        rounds = left if num_rounds is None else min(num_rounds, left)
        shown = None if evaluate_fn is None else lambda number, now: evaluate_fn(done + number, now)
        try:
            result = super().start(grid, arrays, rounds, timeout, train_config, evaluate_config, shown)
            _count_from(result, done)
            if not result.arrays:
                result.arrays = arrays
            if self._core.taken:
                self.label()
        finally:
            self._core.owner.close()
        return result

    def summary(self) -> None:
        """Log what was declared. How the inner strategy would sample is not used, so it is not shown."""
        plan = self.plan
        _LOG.info("\t├──> Around %s", type(self.inner).__name__)
        _LOG.info("\t├──> Privacy: level %s, %s rounds, delta %g", plan.level, plan.rounds, plan.delta)
        for unit, worst in (figures(self.server) if self.server is not None else {}).items():
            _LOG.info("\t│\t└── worst case for a %s: epsilon %s", unit, round_up_text(worst))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Charge the round, toss the coins and return the messages to those who take part.

        Args:
            server_round: Flower's number of the round; not used.
            arrays: The model's parameters.
            config: Settings for clients.
            grid: Flower's grid.
        """
        self._grid = grid
        if self._kept is None:
            arrays = self.open(arrays)
        self._arrays, kept = arrays, self._run
        check_digits(parameters_of(arrays), self.plan)
        wanted = getattr(self.inner, "min_available_nodes", 1)
        names = self._roster.enrol(grid, self._core, wanted=wanted, timeout=self.timeout)
        kept.facts = replace(kept.facts, trained=max(kept.facts.trained, len(names)))
        content = content_for(self.inner, self.plan, self._core.next_round, arrays, config)  # before the charge
        now = self._core.begin(names, unnamed=self._roster.unnamed)
        if now is None:
            if self._reported is None:
                self._reported = self._core.status
                _LOG.warning("Tacita: no further round is trained (%s)", self._reported)
                kept.note(self._reported)
                self._save(arrays)
            return []
        asked = {"ask": "update", "round": now.number, "plan": fingerprint(self.plan)}
        if self._norms_per_client:
            asked["exchange"] = first_attempt(self._core.measured.norms_exchange(now))
        content[ASK] = ConfigRecord(asked)
        self._sent = [message_to(self._roster.nodes[n], content, self.timeout) for n in now.asked]
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum and noise what came back, and let the inner strategy move the model along the private mean."""
        now, current = self._core.open_round, self._arrays
        if now is None or current is None:
            return None, None
        answers = list(replies)
        mean = self._core.finish(self._roster.updates(answers, current))
        self._roster.log_failures(answers, self._sent)
        if self._norms_per_client:
            exchange = self._exchange(self._roster.keys(answers))
            self._core.measured.collect_norms(now, exchange, per_client=self._norms_per_client)
        arrays = moved_by(self.inner, now.number, mean, current)
        self._run.note(self._core.status)
        self._save(arrays or current)
        worst = ", ".join(f"{unit} {round_up_text(e)}" for unit, e in figures(self._core).items()) or "infinite"
        _LOG.info("Tacita: round %s of %s, worst-case epsilon of the plan: %s", now.number, self.plan.rounds, worst)
        return arrays, client_metrics(self.inner, answers) if self.plan.client_metrics else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody, unless the plan has `client_metrics`: they are computed from private data."""
        if not self.plan.client_metrics:
            return []
        messages: Iterable[Message] = self.inner.configure_evaluate(self._core.taken, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the inner strategy's aggregate if the plan has `client_metrics`."""
        if not self.plan.client_metrics:
            return None
        key = getattr(self.inner, "weighted_by_key", "num-examples")
        usable = [reply for reply in replies if reply.has_error() or _weighed(reply, key)]
        return _metrics(lambda: self.inner.aggregate_evaluate(self._core.taken, usable))

    # What users call.

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label of the rounds taken so far, and write it to the run directory.

        An open round counts as charged and stays open. Between rounds clients are asked for figures of the owner's
        that they have not reported yet; nothing else changes, but for `metrics`, which are kept.
        """
        label = self._run.label(delta, metrics, self._collect_unreported)
        if self._arrays is not None:
            self._save(self._arrays)
        return label

    def end(self, reason: str) -> None:
        """End the federation here, declaring that this depended on nothing private; see `Federation.end`."""
        self._core.charges.end(reason)

    @property
    def server(self) -> Server | None:
        """The federation's server; None before `open`."""
        return None if self._kept is None else self._kept.server

    def _collect_unreported(self) -> None:
        """Ask clients for their records' costs, where they can be: in a round that would end its exchange of norms."""
        core, follows = self._core, self._record_panel and self.plan.privacy_level.record_bound is not None
        if self._grid is not None and follows and core.measured.unreported and core.open_round is None:
            core.measured.collect_costs(self._exchange(), core.taken)

    @property
    def _norms_per_client(self) -> int:
        return self.plan.privacy_level.norms_per_client(self._record_panel)

    def _exchange(self, sent: Mapping[str, bytes] | None = None) -> Exchange:
        if self._grid is None:
            raise PrivacyError("There is no grid to ask over.")
        return self._roster.exchange(self._grid, self._core, timeout=self.timeout, sent=sent)

    # Opening, and keeping.

    @property
    def _run(self) -> Kept:
        if self._kept is None:
            raise PrivacyError("The federation has not begun: call start, or configure_train first.")
        return self._kept

    @property
    def _core(self) -> Server:
        return self._run.server

    def open(self, arrays: ArrayRecord) -> ArrayRecord:
        """Create the server for these arrays, or resume the run in the run directory; `start` calls it."""
        if self._kept is not None and self._arrays is not None:
            return self._arrays
        check_arrays(arrays, self.plan)
        like = parameters_of(arrays)
        if self.run_dir is not None and Run(self.run_dir).exists:
            run = Run.open(self.run_dir, KIND)
            if plan_of(run) != self.plan:
                raise PrivacyError(f"{str(self.run_dir)!r} holds a run of another plan: choose another run_dir.")
            with Owner(self.run_dir).opening() as owner:
                self._kept, state, _ = Kept.restore(run, like, owner=owner)
                self._kept.note("resumed")
                restore_inner(self.inner, state["inner"])
                _LOG.info("Tacita: resumed after round %s of %s", self._core.taken, self.plan.rounds)
                kept = {name: value.numpy() for name, value in state["model"].items()}
                self._arrays = record_like(kept, arrays)
            return self._arrays
        self._kept = Kept.begin(
            self.plan,
            like,
            self._books,
            record_ledger=self._record_ledger,
            panel=self._panel,
            purpose=f"A model trained by a Flower federation with {type(self.inner).__name__}.",
            client_noise=self.plan.privacy_level.protects_records,
        )
        self._save(arrays)
        return arrays

    def _save(self, arrays: ArrayRecord) -> None:
        self._arrays = arrays
        model = {k: torch.from_numpy(np.array(a.numpy())) for k, a in arrays.items()}
        self._run.save({"model": model, "inner": inner_state(self.inner, self._first)})


def client_metrics(inner: Strategy, replies: Iterable[Message]) -> MetricRecord | None:
    """Return the inner strategy's aggregate of the metrics that came along with updates."""
    key = getattr(inner, "weighted_by_key", "num-examples")
    contents = [r.content for r in replies if not r.has_error() and _weighed(r, key)]
    aggregate = getattr(inner, "train_metrics_aggr_fn", None)
    return _metrics(lambda: aggregate(contents, key)) if aggregate and contents else None


def _metrics(aggregate: Callable[[], MetricRecord | None]) -> MetricRecord | None:
    """Return aggregated metrics; None where clients sent what cannot be aggregated, which must not end the run."""
    try:
        return aggregate()
    except Exception as error:
        _LOG.warning("Tacita: the clients' metrics are dropped, they cannot be aggregated (%s)", type(error).__name__)
        return None


def _count_from(result: Result, done: int) -> None:
    """Count the rounds of a result from those that were done before."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        setattr(result, name, {done + number: found for number, found in getattr(result, name).items()})


def _weighed(reply: Message, key: str) -> bool:
    """Return whether a reply has one record of metrics, with a weight that can be one."""
    records = list(reply.content.metric_records.values())
    weight = records[0].get(key) if len(records) == 1 else None
    return isinstance(weight, int | float) and 0.0 <= weight < float("inf")
