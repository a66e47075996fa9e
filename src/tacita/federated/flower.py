"""Privacy for Flower apps, on the server: a strategy around the app's own. The clients' side is `flower_client`.

Flower carries messages. Coins, clipping, noise and accounts are those of `tacita.federated.server` and `.client`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita.facts import RunFacts, Status
from tacita.federated.flower_client import (
    ANSWER,
    ASK,
    check_arrays,
    check_digits,
    fingerprint,
    parameters_of,
    record_like,
)
from tacita.federated.flower_strategies import check_strategy, inner_state, plain_numbers, restore_inner
from tacita.federated.labels import federation_label, figures
from tacita.federated.local import KIND, ledger_place, plan_of, restore_federation, save_federation
from tacita.federated.plan import FederationPlan, federation_plan
from tacita.federated.server import Exchange, Server, first_attempt
from tacita.guarantee import round_up_text
from tacita.label import Label
from tacita.ledger.rows import name_text
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run
from tacita.training.gradients import Parameters

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
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
        plan: From `federation_plan`; or give its arguments (`level`, `client_rate`, `rounds`, …) here. `clients` is by
            default the inner strategy's `min_available_nodes`.
        ledger: A path, or a `tacita.ledger.Ledger`, to charge; made if it does not exist.
        record_ledger: The same for records, at level joint.
        run_dir: Where to write the run: checkpoints, ledger and label. If it holds a run of this plan, that is resumed.
        panel: How many clients are followed, at level client; 0 takes the norms of those who take part.
        record_panel: How many records each client follows, at the other levels: the `panel` of their mod. Clients whose
            owners gave none report nothing, and count at the worst case.
        named: Ask clients for the names that they declare, which their mod reports; needed for a stable identity across
            restarts. By default at all levels but client, and with `client_rates`.
        one_reply: Declares that a strategy with an `aggregate_train` of its own is right with one reply, the model
            moved by the private mean. Without it such a strategy is refused.
        patience: Seconds to wait for `min_available_nodes` before the first round.
        rng: A seed. None, the default, is seeded by the operating system.
        name: The run's name on its label.
        purpose: What is made, in a sentence, for its label.
        declared: The arguments of `federation_plan`.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        plan: FederationPlan | None = None,
        ledger: Ledger | str | Path | None = None,
        record_ledger: Ledger | str | Path | None = None,
        run_dir: str | Path | None = None,
        panel: int = 0,
        record_panel: int = 64,
        named: bool | None = None,
        one_reply: bool = False,
        patience: float = 300.0,
        rng: int | None = None,
        name: str = "",
        purpose: str = "",
        **declared: Any,
    ) -> None:
        if isinstance(strategy, PrivateStrategy):
            raise PrivacyError("This strategy is private already: wrap the one that is inside it.")
        if run_dir is not None:
            page_template()
        self.timeout = 3600.0
        if plan is None:
            plan = federation_plan(**{"clients": getattr(strategy, "min_available_nodes", 2), **declared})
        elif declared:
            raise TypeError(f"Give a plan, or {', '.join(sorted(declared))}, and not both.")
        check_strategy(strategy, level=plan.level, one_reply=one_reply)
        self.plan = plan
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._books = (ledger, record_ledger)
        self._panel, self._record_panel, self._patience, self._rng = panel, record_panel, patience, rng
        self._named = plan.level != "client" or bool(plan.client_rates) if named is None else named
        if plan.client_rates and not self._named:
            raise PrivacyError("client_rates go by the names that clients declare: leave out named=False.")
        self._facts = RunFacts(
            title=name or (self.run_dir.name if self.run_dir else "Private federation"),
            purpose=purpose or f"A model trained by a Flower federation with {type(strategy).__name__}.",
            seeded=rng is not None,
            client_noise=plan.level != "client",
        )
        self.server: Server | None = None
        self._arrays: ArrayRecord | None = None
        self._nodes: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._unnamed: set[str] = set()  # nodes that did not declare whose they are
        self._sent: list[Message] = []
        self._grid: Grid | None = None
        self._told: Status | None = None
        self._waiting: frozenset[str] = frozenset()
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

    def start(  # noqa: D102
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
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
        """Charge the round, toss the coins and return the messages to those who take part."""
        self._grid = grid
        if self.server is None:
            arrays = self.open(arrays)
        self._arrays = arrays
        check_digits(parameters_of(arrays), self.plan)
        names = self._enrolled(grid)
        content = self._content(self._core.next_round, arrays, config)  # before the charge: it may fail
        now = self._core.begin(names, unnamed=self._unnamed)
        if now is None:
            if self._told is None:
                self._told = self._core.status
                _LOG.warning("Tacita: no further round is trained (%s)", self._told)
                self._facts = self._facts.with_status(self._told)
                self._save(arrays)
            return []
        asked = {"ask": "update", "round": now.number, "plan": fingerprint(self.plan)}
        if self._tells_norms:
            asked["exchange"] = first_attempt(self._core.norms_exchange(now))
        content[ASK] = ConfigRecord(asked)
        self._sent = [self._message(self._nodes[n], content) for n in now.asked]
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum and noise what came back, and let the inner strategy move the model along the private mean."""
        now, current = self._core.open_round, self._arrays
        if now is None or current is None:
            return None, None
        answers = list(replies)
        mean = self._core.finish(self._updates(answers, current))
        self._report(answers)
        if self._tells_norms:
            followed = self._record_panel if self.plan.level == "sequential" else 1
            self._core.hear_norms(now, self._exchange(self._keys(answers)), followed=followed)
        arrays = self._moved(now.number, mean, current)
        self._facts = self._facts.with_status(self._core.status)
        self._save(arrays or current)
        worst = ", ".join(f"{unit} {round_up_text(e)}" for unit, e in figures(self._core).items())
        _LOG.info("Tacita: round %s of %s, worst-case epsilon of the plan: %s", now.number, self.plan.rounds, worst)
        return arrays, self._client_metrics(answers)

    def _moved(self, number: int, mean: Parameters, current: ArrayRecord) -> ArrayRecord | None:
        """Give the inner strategy the private mean as its one reply, and return its new arrays, of the same types."""
        inner, moved = self.inner, {k: a.numpy() + mean[k].numpy() for k, a in current.items()}
        weight, key = getattr(inner, "weighted_by_key", "num-examples"), getattr(inner, "arrayrecord_key", "arrays")
        one = RecordDict({key: record_like(moved, current), "metrics": MetricRecord({weight: 1.0})})
        with _quiet(), _without_metrics(inner):
            arrays, _ = inner.aggregate_train(number, [Message(one, dst_node_id=0, message_type="train")])
        if not arrays:
            return None
        found = {k: a.numpy() for k, a in arrays.items()}
        if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in moved.items()}:
            raise PrivacyError(f"{type(inner).__name__} returned arrays of other names or shapes than the model's.")
        return record_like(found, current)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody, unless metrics were asked for: what clients measure is computed from private data."""
        if not self.plan.client_metrics:
            return []
        messages: Iterable[Message] = self.inner.configure_evaluate(self._core.taken, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Pass on the inner strategy's answer if metrics were asked for."""
        if not self.plan.client_metrics:
            return None
        key = getattr(self.inner, "weighted_by_key", "num-examples")
        usable = [reply for reply in replies if reply.has_error() or _weighed(reply, key)]
        return _metrics(lambda: self.inner.aggregate_evaluate(self._core.taken, usable))

    # What users call.

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label of the rounds taken so far, and write it to the run directory.

        An open round counts as charged and stays open. Between rounds clients are asked for figures of the owner's
        that they have not told yet; nothing else changes, but for `metrics`, which are kept.
        """
        core = self._core
        if core.taken == 0:
            raise PrivacyError("No round was taken yet: there is nothing to label.")
        core.check()
        if self._may_ask_records:
            core.hear_records(self._exchange())
        self._facts = self._facts.with_metrics(metrics or {})
        facts = self._facts.with_status(core.status)
        label = federation_label(core, facts, self.plan.delta if delta is None else delta)
        if self._arrays is not None:
            self._save(self._arrays)
        if self.run_dir is not None:
            Run(self.run_dir).write_label(label)
        return label

    def end(self, reason: str) -> None:
        """End the federation here, declaring that this depended on nothing private; see `Federation.end`."""
        self._core.end(reason)

    @property
    def _may_ask_records(self) -> bool:
        """Whether clients can be asked for their records' costs; in a round that would end its exchange of norms."""
        if self._grid is None or not self._record_panel or self.plan.level not in ("parallel", "joint"):
            return False
        return bool(self._core.untold) and self._core.open_round is None

    # Opening, and keeping.

    @property
    def _core(self) -> Server:
        if self.server is None:
            raise PrivacyError("The federation has not begun: call start, or configure_train first.")
        return self.server

    def open(self, arrays: ArrayRecord) -> ArrayRecord:
        """Make the server for these arrays, or take up the run that the run directory holds; `start` does it, too."""
        if self.server is not None and self._arrays is not None:
            return self._arrays
        check_arrays(arrays, self.plan)
        like = parameters_of(arrays)
        if self.run_dir is not None and Run(self.run_dir).exists:
            run = Run.open(self.run_dir, KIND)
            if plan_of(run) != self.plan:
                raise PrivacyError(f"{str(self.run_dir)!r} holds a run of another plan: choose another run_dir.")
            with Owner(self.run_dir).opening() as owner:
                self.server, facts, state, _ = restore_federation(run, like, owner=owner)
                self._facts = facts.with_status("resumed")
                restore_inner(self.inner, state["inner"])
                _LOG.info("Tacita: resumed after round %s of %s", self.server.taken, self.plan.rounds)
                kept = {name: value.numpy() for name, value in state["model"].items()}
                self._arrays = record_like(kept, arrays)
            return self._arrays
        if self.run_dir is not None:
            Run.create(self.run_dir)
        own, records = self._books
        self.server = Server(
            self.plan,
            like,
            panel=self._panel,
            ledger=ledger_place(own, self.run_dir, "ledger.sqlite"),
            record_ledger=ledger_place(records, self.run_dir, "record-ledger.sqlite"),
            rng=self._rng,
            owner=Owner(self.run_dir).hold(),
        )
        self._facts = self._facts.with_ledger(self.server.ledgers[0].path.name, shared=own is not None)
        self._save(arrays)
        return arrays

    def _save(self, arrays: ArrayRecord) -> None:
        self._arrays = arrays
        if self.run_dir is None:
            return
        panels, document = self._core.state()
        model = {k: torch.from_numpy(np.array(a.numpy())) for k, a in arrays.items()}
        state = {"model": model, "inner": inner_state(self.inner, self._first), "panels": panels}
        save_federation(Run(self.run_dir), self._core, self._facts, state, document)

    # Who is there, and what they say.

    def _enrolled(self, grid: Grid) -> list[str]:
        """Return the names of the nodes that are there; before the first round wait until there are enough."""
        wanted = getattr(self.inner, "min_available_nodes", 1)
        deadline = time.monotonic() + self._patience
        while len(nodes := sorted(grid.get_node_ids())) < wanted and not self._nodes:
            if time.monotonic() > deadline:
                raise PrivacyError(f"{len(nodes)} of {wanted} nodes came within {self._patience:g} seconds.")
            time.sleep(0.2)
        self._names = {n: name for n, name in self._names.items() if n in nodes}  # a node that restarts is another one
        self._learn_names(grid, [n for n in nodes if n not in self._names])
        self._nodes = self._places({self._names[n]: n for n in nodes if n in self._names})
        self._facts = replace(self._facts, trained=max(self._facts.trained, len(self._nodes)))
        return list(self._nodes)

    def _places(self, nodes: dict[str, int]) -> dict[str, int]:
        """Return as many nodes as the plan has clients: those of earlier rounds first, then by name, never by data."""
        core = self._core
        known = {*self._nodes, *core.participations, *(n for members in core.members.values() for n in members)}
        order = sorted(nodes, key=lambda name: (name not in known, name))
        waiting = frozenset(order[self.plan.clients :])
        if waiting - self._waiting:
            _LOG.warning(
                "Tacita: %s nodes are not enrolled, since the plan is for %s clients", len(waiting), self.plan.clients
            )
        self._waiting = waiting
        return {name: nodes[name] for name in sorted(order[: self.plan.clients])}

    def _learn_names(self, grid: Grid, nodes: list[int]) -> None:
        if not self._named:
            self._names.update({n: str(n) for n in nodes})
            self._unnamed.update(str(n) for n in nodes)
            return
        question: dict[str, Any] = {"ask": "name"}
        if self.plan.level != "client":
            question["arrays"] = list(self._core.like)  # for a client to refuse before anything is charged
        asked, errors = [self._ask(node, question) for node in nodes], list[str]()
        for reply in grid.send_and_receive(asked, timeout=self.timeout) if asked else ():
            node, answer = reply.metadata.src_node_id, _answer(reply)
            if reply.has_error():
                errors.append(_reason(reply))
                _LOG.warning("Tacita: node %s is not enrolled (%s)", node, errors[-1])
            elif node in nodes and isinstance(answer.get("name"), str):
                self._enrol(node, answer["name"] if answer.get("declared") is True else None)
        if not self._names:
            raise PrivacyError(
                f"No client told its name. Level {self.plan.level!r} needs the mod: "
                "ClientApp(mods=[tacita.federated.instance_privacy(...)])."
                + (f" The first error: {errors[0]}" if errors else "")
            )

    def _enrol(self, node: int, name: str | None) -> None:
        """Take up a node under the name that it declared, or under its number; a name gets one coin."""
        if name is not None and not _readable(name):
            _LOG.warning("Tacita: node %s declares a name that is not 1 to 200 printable characters; not asked", node)
        elif name is None and self.plan.client_rates:
            _LOG.warning("Tacita: node %s declares no name, so its rate is not known, and it is not asked", node)
        elif name in self._names.values():
            _LOG.warning("Tacita: node %s declares the name of another node, and is not asked", node)
        else:
            self._names[node] = str(node) if name is None else name
            self._unnamed.update([str(node)] if name is None else [])

    def _content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """Return what the inner strategy would send to a client."""
        with _quiet():
            messages = list(self.inner.configure_train(server_round, arrays, config, _Roll(self.inner)))
        if messages:
            first = messages[0].content
            if any(m.content is not first and m.content != first for m in messages):
                raise PrivacyError(
                    f"{type(self.inner).__name__} has different messages for different clients, and who gets which "
                    "would be lost: send the same to all."
                )
            if self.plan.level != "client" and not _holds(first, arrays):
                raise PrivacyError(
                    f"{type(self.inner).__name__} sends other arrays than the model's, and the differences of the "
                    f"replies from the model would not be what clients clipped: at level {self.plan.level!r} send the "
                    "arrays that configure_train gets."
                )
            return RecordDict(dict(first.items()))
        config["server-round"] = server_round
        return RecordDict({"arrays": arrays, "config": config})

    def _updates(self, replies: Iterable[Message], current: ArrayRecord) -> dict[str, object]:
        """Return by how much each client moved the parameters; a client's first answer counts."""
        found: dict[str, object] = {}
        for reply in replies:
            name = self._names.get(reply.metadata.src_node_id)
            if name is None or name in found:
                continue
            found[name] = _update(reply, current) if not reply.has_error() else None
            if found[name] is None and not reply.has_error():
                _LOG.warning("Tacita: client %s sent other arrays than the model's; they are dropped", name)
        return found

    def _report(self, replies: Iterable[Message]) -> None:
        """Tell the server's owner, in one line each, which clients failed."""
        sent = {m.metadata.message_id: self._names.get(m.metadata.dst_node_id, "?") for m in self._sent}
        for reply in replies:
            if reply.has_error():
                name = sent.get(reply.metadata.reply_to_message_id, "?")
                _LOG.warning("Tacita: client %s failed (%s)", name, _reason(reply))

    def _client_metrics(self, replies: list[Message]) -> MetricRecord | None:
        if not self.plan.client_metrics:
            return None
        key = getattr(self.inner, "weighted_by_key", "num-examples")
        contents = [r.content for r in replies if not r.has_error() and _weighed(r, key)]
        aggregate = getattr(self.inner, "train_metrics_aggr_fn", None)
        return _metrics(lambda: aggregate(contents, key)) if aggregate and contents else None

    @property
    def _tells_norms(self) -> bool:
        return self.plan.level == "joint" or (self.plan.level == "sequential" and self._record_panel > 0)

    def _keys(self, replies: Iterable[Message]) -> dict[str, bytes]:
        """Return the keys for the cost exchange that came along with the updates."""
        found = {self._names.get(r.metadata.src_node_id, ""): _answer(r).get("key") for r in replies}
        return {n: key for n, key in found.items() if isinstance(key, bytes)}

    def _message(self, node: int, content: RecordDict) -> Message:
        return Message(content, dst_node_id=node, message_type="train", ttl=self.timeout)

    def _ask(self, node: int, question: Mapping[str, Any]) -> Message:
        return self._message(node, RecordDict({ASK: ConfigRecord(dict(question))}))

    def _exchange(self, sent: Mapping[str, bytes] | None = None) -> Exchange:
        """Return a cost exchange over Flower's messages; keys that were `sent` already need not be asked for."""
        grid, core = self._grid, self._core
        if grid is None:
            raise PrivacyError("There is no grid to ask over.")

        def ask(questions: dict[str, dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
            messages = [self._ask(self._nodes[n], question) for n, question in questions.items() if n in self._nodes]
            replies = grid.send_and_receive(messages, timeout=self.timeout) if messages else ()
            answers = {self._names.get(r.metadata.src_node_id, ""): _answer(r) for r in replies}
            return {n: answer for n, answer in answers.items() if n in questions}

        def keys(names: tuple[str, ...], exchange: str) -> Mapping[str, bytes]:
            if sent is not None and exchange == first_attempt(exchange):
                return sent
            question = {"ask": "key", "plan": fingerprint(self.plan), "exchange": exchange}
            answers = ask({n: question for n in names if n in self._nodes})
            return {n: a["key"] for n, a in answers.items() if isinstance(a.get("key"), bytes)}

        def costs(keys: Mapping[str, bytes], exchange: str, what: str) -> dict[str, Any]:
            everyone = {"names": list(keys), "keys": list(keys.values())}
            question = {"ask": "costs", "plan": fingerprint(self.plan), "exchange": exchange, "what": what, **everyone}
            answers = ask({n: {**question, "steps": core.steps_of(n)} for n in keys})
            return {n: words for n, a in answers.items() if (words := _words(a.get("words"))) is not None}

        return Exchange(keys, costs)


class _Roll:
    """As many nodes as the inner strategy wants to see, so that it says what it would send without waiting."""

    def __init__(self, strategy: Strategy) -> None:
        self._count = max(getattr(strategy, n, 1) for n in ("min_available_nodes", "min_train_nodes"))

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


@contextmanager
def _quiet() -> Iterator[None]:
    """The inner strategy sees one stand-in; what it logs about it would mislead."""
    level = _LOG.level
    _LOG.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _LOG.setLevel(level)


@contextmanager
def _without_metrics(inner: Strategy) -> Iterator[None]:
    """The stand-in has no metrics, and what a function of the app's makes of it would be dropped: it is not called."""
    own = vars(inner).get("train_metrics_aggr_fn")
    if own is not None:
        inner.train_metrics_aggr_fn = lambda contents, weight: MetricRecord()
    try:
        yield
    finally:
        if own is not None:
            inner.train_metrics_aggr_fn = own


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


def _readable(name: str) -> bool:
    try:
        return bool(name_text("name", name))
    except ValueError:
        return False


def _reason(reply: Message) -> str:
    """Return a client's error in one line that can be printed."""
    return "".join(c for c in " ".join(str(reply.error.reason).split()) if c.isprintable())[:200]


def _holds(content: RecordDict, arrays: ArrayRecord) -> bool:
    """Return whether a message holds these arrays and no others."""
    sent = [{k: a.numpy() for k, a in record.items()} for record in content.array_records.values()]
    own = {k: a.numpy() for k, a in arrays.items()}
    return [list(found) for found in sent] == [list(own)] and all(
        sent[0][k].dtype == v.dtype and np.array_equal(sent[0][k], v, equal_nan=True) for k, v in own.items()
    )


def _weighed(reply: Message, key: str) -> bool:
    """Return whether a reply has one record of metrics, with a weight that can be one."""
    records = list(reply.content.metric_records.values())
    weight = records[0].get(key) if len(records) == 1 else None
    return isinstance(weight, int | float) and 0.0 <= weight < float("inf")


def _answer(reply: Message) -> Mapping[str, Any]:
    if reply.has_error():
        return {}
    return dict(reply.content.config_records.get(ANSWER, {}))


def _words(value: object) -> Any:
    if not isinstance(value, bytes) or len(value) % 8:
        return None
    return np.frombuffer(value, dtype="<u8").astype(np.uint64)


def _update(reply: Message, current: ArrayRecord) -> Parameters | None:
    try:
        records = list(reply.content.array_records.values())
        sent = parameters_of(records[0]) if len(records) == 1 else {}
        own = parameters_of(current)
        if {k: v.shape for k, v in sent.items()} != {k: v.shape for k, v in own.items()}:
            return None
        return {name: sent[name].double() - value.double() for name, value in own.items()}
    except Exception:  # a client may send anything
        return None
