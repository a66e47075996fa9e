"""Which clients are behind Flower's grid, and how they are asked for names, keys and masked numbers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.federated.flower_messages import ASK, answer_of, fingerprint, reason_of, update_of, words_of
from tacita.federated.masking import Exchange, first_attempt
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.ledger.rows import name_text

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise _check.missing("Flower is not installed", "federated") from error

_LOG = logging.getLogger("flwr")


class Roster:
    """The enrolled clients of a Flower federation, by name and by node.

    Args:
        plan: What was declared.
        named: Whether clients are asked for the names that they declare.
        patience: Seconds to wait for enough nodes before the first round.
    """

    def __init__(self, plan: FederationPlan, *, named: bool, patience: float) -> None:
        self.plan, self._named, self._patience = plan, named, patience
        self.nodes: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.unnamed: set[str] = set()  # nodes that did not declare whose they are
        self._waiting: frozenset[str] = frozenset()

    def enrol(self, grid: Grid, core: Server, *, wanted: int, timeout: float) -> list[str]:
        """Return the names of the nodes that are there; before the first round wait until there are enough.

        Args:
            grid: Flower's grid.
            core: The federation's server.
            wanted: How many nodes are enough.
            timeout: Seconds until a question for a name expires.
        """
        deadline = time.monotonic() + self._patience
        while len(nodes := sorted(grid.get_node_ids())) < wanted and not self.nodes:
            if time.monotonic() > deadline:
                raise PrivacyError(f"{len(nodes)} of {wanted} nodes came within {self._patience:g} seconds.")
            time.sleep(0.2)
        self.names = {n: name for n, name in self.names.items() if n in nodes}  # a node that restarts is another one
        self._learn_names(grid, core, [n for n in nodes if n not in self.names], timeout)
        self.nodes = self._places(core, {self.names[n]: n for n in nodes if n in self.names})
        return list(self.nodes)

    def _places(self, core: Server, nodes: dict[str, int]) -> dict[str, int]:
        """Return as many nodes as the plan has clients: those of earlier rounds first, then by name, never by data."""
        followed = (n for members in core.measured.members.values() for n in members)
        known = {*self.nodes, *core.participations, *followed}
        order = sorted(nodes, key=lambda name: (name not in known, name))
        waiting = frozenset(order[self.plan.clients :])
        if waiting - self._waiting:
            _LOG.warning(
                "Tacita: %s nodes are not enrolled, since the plan is for %s clients", len(waiting), self.plan.clients
            )
        self._waiting = waiting
        return {name: nodes[name] for name in sorted(order[: self.plan.clients])}

    def _learn_names(self, grid: Grid, core: Server, nodes: list[int], timeout: float) -> None:
        if not self._named:
            self.names.update({n: str(n) for n in nodes})
            self.unnamed.update(str(n) for n in nodes)
            return
        question: dict[str, Any] = {"ask": "name"}
        if self.plan.privacy_level.protects_records:
            question["arrays"] = list(core.like)  # for a client to refuse before anything is charged
        asked, errors = [_question_to(node, question, timeout) for node in nodes], list[str]()
        for reply in grid.send_and_receive(asked, timeout=timeout) if asked else ():
            node, answer = reply.metadata.src_node_id, answer_of(reply)
            if reply.has_error():
                errors.append(reason_of(reply))
                _LOG.warning("Tacita: node %s is not enrolled (%s)", node, errors[-1])
            elif node in nodes and isinstance(answer.get("name"), str):
                self._add(node, answer["name"] if answer.get("declared") is True else None)
        if not self.names:
            raise PrivacyError(
                f"No client reported its name. Level {self.plan.level!r} needs the mod: "
                "ClientApp(mods=[tacita.federated.instance_privacy(...)])."
                + (f" The first error: {errors[0]}" if errors else "")
            )

    def _add(self, node: int, name: str | None) -> None:
        """Take up a node under the name that it declared, or under its number; a name gets one coin."""
        if name is not None and not _readable(name):
            _LOG.warning("Tacita: node %s declares a name that is not 1 to 200 printable characters; not asked", node)
        elif name is None and self.plan.client_rates:
            _LOG.warning("Tacita: node %s declares no name, so its rate is not known, and it is not asked", node)
        elif name in self.names.values():
            _LOG.warning("Tacita: node %s declares the name of another node, and is not asked", node)
        else:
            self.names[node] = str(node) if name is None else name
            self.unnamed.update([str(node)] if name is None else [])

    def updates(self, replies: Iterable[Message], current: ArrayRecord) -> dict[str, object]:
        """Return by how much each client moved the `current` parameters; a client's first answer counts."""
        found: dict[str, object] = {}
        for reply in replies:
            name = self.names.get(reply.metadata.src_node_id)
            if name is None or name in found:
                continue
            found[name] = update_of(reply, current) if not reply.has_error() else None
            if found[name] is None and not reply.has_error():
                _LOG.warning("Tacita: client %s sent other arrays than the model's; they are dropped", name)
        return found

    def log_failures(self, replies: Iterable[Message], sent: Iterable[Message]) -> None:
        """Log in one line each which clients failed to answer the messages `sent`."""
        asked = {m.metadata.message_id: self.names.get(m.metadata.dst_node_id, "?") for m in sent}
        for reply in replies:
            if reply.has_error():
                name = asked.get(reply.metadata.reply_to_message_id, "?")
                _LOG.warning("Tacita: client %s failed (%s)", name, reason_of(reply))

    def keys(self, replies: Iterable[Message]) -> dict[str, bytes]:
        """Return the keys for the cost exchange that came along with the updates."""
        answers = {self.names.get(r.metadata.src_node_id, ""): answer_of(r) for r in replies}
        return {n: answer["key"] for n, answer in answers.items() if "key" in answer}

    def exchange(
        self, grid: Grid, core: Server, *, timeout: float, sent: Mapping[str, bytes] | None = None
    ) -> Exchange:
        """Return a cost exchange over Flower's messages.

        Args:
            grid: Flower's grid.
            core: The federation's server.
            timeout: Seconds until a question expires.
            sent: Keys that clients have sent already, which need not be asked for.
        """

        def ask(questions: dict[str, dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
            messages = [_question_to(self.nodes[n], q, timeout) for n, q in questions.items() if n in self.nodes]
            replies = grid.send_and_receive(messages, timeout=timeout) if messages else ()
            answers = {self.names.get(r.metadata.src_node_id, ""): answer_of(r) for r in replies}
            return {n: answer for n, answer in answers.items() if n in questions}

        def keys(names: tuple[str, ...], exchange: str) -> Mapping[str, bytes]:
            if sent is not None and exchange == first_attempt(exchange):
                return sent
            question = {"ask": "key", "plan": fingerprint(self.plan), "exchange": exchange}
            return {n: answer["key"] for n, answer in ask(dict.fromkeys(names, question)).items() if "key" in answer}

        def costs(keys: Mapping[str, bytes], exchange: str, what: str) -> dict[str, Any]:
            everyone = {"names": list(keys), "keys": list(keys.values())}
            question = {"ask": "costs", "plan": fingerprint(self.plan), "exchange": exchange, "what": what, **everyone}
            answers = ask({n: {**question, "steps": core.steps_of(n)} for n in keys})
            return {n: words for n, a in answers.items() if (words := words_of(a.get("words"))) is not None}

        return Exchange(keys, costs)


def message_to(node: int, content: RecordDict, timeout: float) -> Message:
    """Return a message to a node.

    Args:
        node: Its number.
        content: What to send.
        timeout: Seconds until the message expires.
    """
    return Message(content, dst_node_id=node, message_type="train", ttl=timeout)


def _question_to(node: int, question: Mapping[str, Any], timeout: float) -> Message:
    return message_to(node, RecordDict({ASK: ConfigRecord(dict(question))}), timeout)


def _readable(name: str) -> bool:
    try:
        return bool(name_text("name", name))
    except ValueError:
        return False
