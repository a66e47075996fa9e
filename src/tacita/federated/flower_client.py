"""The client's side of a private Flower app: mods in front of the app's own training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita.federated.client import Client, Local, Memory, Task, Training
from tacita.federated.client_ledger import ClientLedger, Standing, enforced_plan
from tacita.federated.flower_messages import (
    ANSWER,
    ASK,
    check_digits,
    fingerprint,
    parameters_of,
    record_like,
    refuse_buffers,
    request_of,
)
from tacita.federated.masking import Masker
from tacita.federated.plan import FederationPlan
from tacita.ledger.rows import budget_body, name_text
from tacita.training.records import check_model

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
except ImportError as error:
    raise _check.missing("Flower is not installed", "federated") from error

_STATE, _MEMORY, _CHARGED = "tacita", "tacita-memory", "tacita-ledger"  # records of a client's own state
_LOG = logging.getLogger("flwr")
App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
Name = str | Callable[[Context], str]
LedgerPath = str | Path | Callable[[Context], str | Path]


@_check.renamed("rng")
def instance_privacy(
    plan: FederationPlan | Callable[[Context], FederationPlan],
    *,
    model: Callable[[], torch.nn.Module],
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    data: Callable[[Context], Any],
    learning_rate: float = 1.0,
    panel: int = 0,
    seed: int | None = None,
    name: Name | None = None,
    ledger: LedgerPath | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    allow_evaluation: bool = False,
) -> Mod:
    """Return a Flower mod that trains privately in the place of the app's own train function.

    At levels parallel, sequential and joint what a client sends protects each of its records, with the noise of the
    plan. At level client the app's own function trains, and its update leaves the client unprotected: the server clips
    it and adds the noise, so the server must be trusted. At every level the mod refuses whatever is not a well-formed
    request under its own plan, which must be the one that the server's `PrivateStrategy` has. A server without
    `PrivateStrategy` gets error replies to its train, evaluate and query messages, and the app's functions do not run.
    Give the mod to the whole app, `ClientApp(mods=[...])`: one that is given to a single function guards that function.

    Args:
        plan: From `FederationPlan.declare`, the same on both sides; or a function of Flower's context that returns it.
        model: Returns the model; its parameters' names are those of the server's arrays.
        loss_fn: As in PyTorch, the mean over a batch; None at level client, where the app trains.
        data: Returns this client's records, from Flower's context; called for every message, so keep what is slow.
        learning_rate: Of the steps inside the client, at level parallel.
        panel: How many of its records a client follows, for the server's typical figures. 0, the default, follows none
            and reports nothing, at level joint no norms either: the client then counts at the worst case. Costs are
            computed from the records and reported masked, without noise. A hostile server that plays the other
            clients can unmask them; no ledger is charged for them, and no figure covers them.
        seed: None, the default, is seeded by the operating system.
        name: The client's name, the same after every restart: a string, or a function of Flower's context. By default
            `client-id` or `partition-id` of the node's configuration. A client without a name says so, and the server
            counts it as if it had taken part in every round.
        ledger: Where the client keeps account of its records over all runs and servers: a path, a database's URL, or a
            function of Flower's context. Every answer is charged there, on disk, before it is computed, with what the
            client enforces by itself: its own noise and its own sampling. Not for level client, where it enforces
            nothing.
        epsilon: With `delta`, the budget of a ledger that is created. An answer that would pass the budget is refused.
        delta: See `epsilon`.
        allow_evaluation: Whether evaluate messages reach the app's own function. What it sends is computed from the
            records without noise, is charged nowhere, and is covered by no figure; not together with a ledger.
    """
    return _Guard(
        plan=plan,
        model=model,
        loss_fn=loss_fn,
        data=data,
        local=Local(learning_rate=learning_rate),
        panel=_check.count("panel", panel, low=0, high=10**6),
        seed=seed,
        name=name,
        ledger=ledger,
        budget=_budget(epsilon, delta),
        allow_evaluation=allow_evaluation,
    )


def _budget(epsilon: float | None, delta: float | None) -> tuple[float, float] | None:
    if epsilon is None and delta is None:
        return None
    checked = budget_body(epsilon, delta)
    return checked["epsilon"], checked["delta"]


@dataclass(kw_only=True)
class _Guard:
    """The mod: it answers private requests under its plan, and refuses everything else.

    It creates this node's client for every message; what the client remembers is in Flower's state.
    """

    plan: FederationPlan | Callable[[Context], FederationPlan]
    model: Callable[[], torch.nn.Module]
    loss_fn: Callable[[Any, Any], torch.Tensor] | None
    data: Callable[[Context], Any]
    local: Local
    panel: int
    seed: int | None
    name: Name | None
    ledger: LedgerPath | None = field(repr=False)  # a URL may hold a password
    budget: tuple[float, float] | None
    allow_evaluation: bool
    task: Task | None = None
    warned: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.name, str):
            name_text("name", self.name)
        if self.ledger is None and self.budget is not None:
            raise ValueError("epsilon and delta are the budget of a ledger: give ledger= as well.")
        if self.ledger is not None and self.allow_evaluation:
            raise PrivacyError(
                "allow_evaluation sends what no ledger is charged for: leave it out, or leave ledger out."
            )
        if self.ledger is not None and isinstance(self.plan, FederationPlan):
            enforced_plan(self.plan)

    def __call__(self, message: Message, context: Context, call_next: App) -> Message:
        with _redacted(allow=PrivacyError):
            if self.allow_evaluation and message.metadata.message_type.split(".")[0] == "evaluate":
                with _redacted():
                    return call_next(message, context)
            asked = request_of(message)
            plan = self.plan(context) if callable(self.plan) else self.plan
            if not plan.privacy_level.units:
                raise PrivacyError("This plan protects nobody: nothing is sent.")
            if asked["ask"] == "name":
                if "arrays" in asked:  # what cannot work is refused before it is charged
                    _check_parameters(self.model(), asked["arrays"], plan)
                return _name_reply(message, *identity_of(context, self.name))
            _require_plan(asked, plan)
            if self.ledger is not None:
                enforced_plan(plan)
            if plan.privacy_level.protects_records:
                return self._answer(message, context, plan, asked)
            if asked["ask"] != "update":
                raise PrivacyError(
                    f"At level {plan.level!r} a client answers requests for its name and its update only."
                )
            with _redacted():
                return call_next(message, context)

    def _answer(self, message: Message, context: Context, plan: FederationPlan, asked: Mapping[str, Any]) -> Message:
        with _redacted():
            self.task = self.task or Task(self.model(), self.loss_fn, self.local)
            name, _ = identity_of(context, self.name)
            client = Client(name, self.task, self.data(context), plan, panel=self.panel, seed=self.seed)
            _restore_client(client, context)
        if asked["ask"] == "update":
            answer = _update_reply(client, message, asked["round"], lambda: self._charge(client, context))
            if self.panel and "exchange" in asked:
                answer.content[ANSWER] = ConfigRecord({"key": client.key(asked["exchange"])})
        elif asked["ask"] == "key":  # without one a client takes no part in the exchange
            answer = _reply(message, {"key": client.key(asked["exchange"])} if self.panel else {})
        elif not self.panel:
            raise PrivacyError("This client reports no costs: its owner gave it no panel.")
        elif client.masker is None or client.masker.exchange != asked["exchange"]:
            raise PrivacyError("This exchange was not begun, or was answered: ask for this client's key first.")
        else:
            keys = dict(zip(asked["names"], asked["keys"], strict=True))
            words = client.costs(keys, what=asked["what"], steps=asked["steps"])
            answer = _reply(message, {"words": words.astype("<u8").tobytes()})
        _keep_client(client, context)
        return answer

    def _charge(self, client: Client, context: Context) -> None:
        """Charge one answer to the client's ledger, and keep the new standing in Flower's state."""
        if self.ledger is None:
            if not self.warned and _STATE not in context.state.config_records:
                _LOG.warning("Tacita: without ledger= this client does not count what its records spend in other runs.")
            self.warned = True
            return
        ties, kept = _ties(client.plan, context), context.state.config_records.get(_CHARGED)
        last = Standing() if kept is None else Standing(str(kept["run"]), int(kept["steps"]), str(kept["head"]))
        if kept is not None and not _tied(kept, ties):
            last = Standing(head=last.head)  # a new run in the same ledger, which must still know the last charge
        try:
            where = self.ledger(context) if callable(self.ledger) else self.ledger
            ledger = ClientLedger(where, self.budget)
            now = ledger.charge(client.plan, last, title=f"flower {context.run_id}", seed_mark=client.seed_mark)
        except PrivacyError as error:  # its message says what was spent elsewhere
            _LOG.error("Tacita: the ledger refuses this answer. %s", error)
            raise PrivacyError("This client's ledger refuses another answer: nothing was computed.") from None
        context.state[_CHARGED] = ConfigRecord({"run": now.run, "steps": now.steps, "head": now.head, **ties})


@contextmanager
def _redacted(allow: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Replace errors by their type alone: Flower sends their text to the server, and it may quote a record.

    What ends the process (an interrupt, an exit with a number) carries no text, and passes.
    """
    try:
        yield
    except _RedactedError:
        raise
    except allow:
        raise
    except BaseException as error:
        stops = isinstance(error, KeyboardInterrupt | SystemExit)
        if stops and all(isinstance(part, int) for part in error.args):
            raise
        _LOG.exception("Tacita: this client cannot answer")
        raise _RedactedError(f"the client could not answer ({type(error).__name__}); its own log says why") from None


class _RedactedError(RuntimeError):
    """An error in place of another one, without its text."""


def local_training(
    message: Message,
    context: Context,
    plan: FederationPlan,
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    data: Callable[[Context], Any],
    local: Local | Training | None = None,
    seed: int | None = None,
) -> Message:
    """Answer a train message with plain local training, for level client: the same as the local engine does.

    What a `Training` remembers is kept in Flower's state, which stays with the client.

    Args:
        message: The server's message.
        context: Flower's context.
        plan: What the federation declared.
        model: The model; its parameters are overwritten.
        loss_fn: As in PyTorch, the mean over a batch; None with a `Training`.
        data: Returns this client's records, from Flower's context.
        local: Settings of plain SGD, or a `Training`.
        seed: None, the default, is seeded by the operating system.

    Returns:
        The reply, with the client's update, which nothing protects before the server has clipped and noised it.
    """
    asked = request_of(message)
    if asked["ask"] != "update":
        raise PrivacyError("Local training answers requests for an update only.")
    _require_plan(asked, plan)
    client = Client(identity_of(context)[0], Task(model, loss_fn, local), data(context), plan, seed=seed)
    client.memory = kept_memory(context)
    answer = _update_reply(client, message, asked["round"])
    if client.memory:
        context.state[_MEMORY] = ArrayRecord(dict(client.memory))
    return answer


def kept_memory(context: Context) -> Memory:
    """Return what a client's training remembers; nothing before its first round."""
    kept = context.state.array_records.get(_MEMORY)
    return {} if kept is None else dict(kept.to_torch_state_dict())


def named_client(message: Message, context: Context, call_next: App) -> Message:
    """A Flower mod that reports the client's name, for `PrivateStrategy(named=True)` at level client.

    It protects nothing: every other message, from any server, reaches the app's functions unchanged. Use
    `instance_privacy` for a client that refuses servers without its plan.

    Args:
        message: The server's message.
        context: Flower's context.
        call_next: The app, or the next mod.
    """
    asked = message.content.config_records.get(ASK)
    if asked is not None and asked.get("ask") == "name":
        return _name_reply(message, *identity_of(context))
    return call_next(message, context)


def identity_of(context: Context, name: Name | None = None) -> tuple[str, bool]:
    """Return a client's name, and whether it was declared: a node's number changes at every restart."""
    if name is not None:
        return name_text("name", name(context) if callable(name) else name), True
    for key in ("client-id", "partition-id"):
        value = context.node_config.get(key)
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:06d}", True
        if isinstance(value, str) and value:
            return name_text(key, value), True
    return str(context.node_id), False


def _require_plan(asked: Mapping[str, Any], plan: FederationPlan) -> None:
    if asked["plan"] != fingerprint(plan):
        raise PrivacyError("The server's plan is not this client's: nothing is sent.")


def _update_reply(client: Client, message: Message, number: int, charge: Callable[[], None] = lambda: None) -> Message:
    """Answer with the update of a round; `charge` is called before anything is computed from the records."""
    records, own = message.content.array_records, client.task.parameters
    key, arrays = next(iter(records.items()), ("", ArrayRecord()))
    current = parameters_of(arrays)
    if len(records) != 1 or any(n not in current or current[n].shape != p.shape for n, p in own.items()):
        raise PrivacyError("The server's arrays are not the parameters of this client's model: nothing is sent.")
    _check_parameters(client.task.model, list(arrays), client.plan)
    check_digits(current, client.plan, own)
    client.require_next(number)
    charge()
    with _redacted():
        update = client.update({name: current[name].to(p.dtype) for name, p in own.items()}, number)
    moved = {k: a.numpy() + update[k].numpy() if k in update else a.numpy() for k, a in arrays.items()}
    content = RecordDict({key: record_like(moved, arrays), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


def _check_parameters(model: torch.nn.Module, names: Iterable[str], plan: FederationPlan) -> None:
    """Refuse names of a server's arrays that are buffers of this client's model, and a model that cannot be trained."""
    sent = set(names)
    buffers = sent & {name for name, _ in model.named_buffers()}
    if buffers:
        refuse_buffers(buffers)
    if not plan.privacy_level.protects_records:
        return  # the app trains, in its own way
    check_model(model)
    own = dict(model.named_parameters())  # a tied weight once, whatever a state dict holds
    wrong = sorted({*sent - set(own), *({name for name, p in own.items() if p.requires_grad} - sent)})
    if wrong:
        raise PrivacyError(
            f"{wrong[0]!r} is not both among the server's arrays and this client's parameters: the server must send "
            "ArrayRecord(dict(model.named_parameters())) of the same model."
        )


def _keep_client(client: Client, context: Context) -> None:
    """Keep what a client must remember between messages in Flower's state, which stays with the client."""
    masker = client.masker
    context.state[_STATE] = ConfigRecord(
        {
            **_ties(client.plan, context),
            "answered": client.answered,
            "account": json.dumps(client.account.state()) if client.account is not None else "",
            "histogram": json.dumps(client.histogram.tolist()),
            "exchange": masker.exchange if masker is not None and not masker.used else "",
            "key": masker.key.private_bytes_raw() if masker is not None and not masker.used else b"",
        }
    )


def _restore_client(client: Client, context: Context) -> None:
    kept = context.state.config_records.get(_STATE)
    if kept is None:
        return
    ties = _ties(client.plan, context)
    if kept.get("flower", ties["flower"]) == ties["flower"]:  # no round twice in one run, whatever the plan
        client.answered = int(kept["answered"])
    if not _tied(kept, ties):
        return
    client.histogram = np.array(json.loads(str(kept["histogram"])), dtype=np.int64)
    if kept["account"] and client.account is not None:
        client.restore(json.loads(str(kept["account"])))
    if kept["key"]:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = X25519PrivateKey.from_private_bytes(bytes(kept["key"]))
        client.masker = Masker(client.name, key, str(kept["exchange"]))


def _ties(plan: FederationPlan, context: Context) -> dict[str, str]:
    """Return what a client's memory belongs to: Flower may hand a node's state on to a later run."""
    return {"of": fingerprint(plan), "flower": str(context.run_id)}


def _tied(kept: ConfigRecord, ties: Mapping[str, str]) -> bool:
    return all(kept.get(key) == value for key, value in ties.items())


def _name_reply(message: Message, name: str, declared: bool) -> Message:
    return _reply(message, {"name": name, "declared": declared})


def _reply(message: Message, answer: Mapping[str, Any]) -> Message:
    return Message(RecordDict({ANSWER: ConfigRecord(dict(answer))}), reply_to=message)
