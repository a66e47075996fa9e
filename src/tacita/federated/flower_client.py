"""The client's side of a private Flower app: mods in front of the app's own training."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from tacita._check import PrivacyError
from tacita.federated.client import Client, Local, Memory, Task, Training
from tacita.federated.masking import Masker
from tacita.federated.plan import FederationPlan
from tacita.training.gradients import Parameters
from tacita.training.records import check_model

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
except ImportError as error:
    raise ImportError("Flower is not installed: pip install 'tacita[federated]'") from error

ASK, ANSWER = "tacita-ask", "tacita-answer"  # records of a message
_STATE, _MEMORY = "tacita", "tacita-memory"  # records of a client's own state
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of layers that are no parameters
_LOG = logging.getLogger("flwr")


def instance_privacy(
    plan: FederationPlan | Callable[[Context], FederationPlan],
    *,
    model: Callable[[], torch.nn.Module],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    data: Callable[[Context], Any],
    learning_rate: float = 1.0,
    panel: int = 64,
    rng: int | None = None,
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Return a Flower mod that trains privately in the place of the app's own train function.

    What a client sends then protects each of its records, at the level and with the noise of the plan, which must be
    the one that the server's `PrivateStrategy` has: a client refuses another. At level client the app's own function
    trains, and the mod tells the client's name.

    Args:
        plan: From `federation_plan`, the same on both sides; or a function of Flower's context that returns it.
        model: Returns the model; its parameters' names are those of the server's arrays.
        loss_fn: As in PyTorch, the mean over a batch.
        data: Returns this client's records, from Flower's context; called for every message, so keep what is slow.
        learning_rate: Of the steps inside the client, at level parallel.
        panel: How many of its records a client follows, for typical figures; 0 follows none.
        rng: A seed. None, the default, is seeded by the operating system.
    """
    local, tasks = Local(learning_rate=learning_rate), list[Task]()

    def client(context: Context, declared: FederationPlan) -> Client:
        if not tasks:
            tasks.append(Task(model(), loss_fn, local))
        made = Client(client_name_of(context), tasks[0], data(context), declared, panel=panel, rng=rng)
        _restore_client(made, context)
        return made

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        asked = message.content.config_records.get(ASK)
        if asked is None:
            return call_next(message, context)
        declared = plan(context) if callable(plan) else plan
        if asked["ask"] == "name":
            if "arrays" in asked:  # before the first round: what cannot work is refused before it is charged
                _check_parameters(_made(model), asked["arrays"], declared)
            return _reply(message, {"name": client_name_of(context)})
        if declared.level == "client":
            return call_next(message, context)
        try:
            this = client(context, declared)
            answer = _answers(this, message, dict(asked))
        except PrivacyError:
            raise
        except Exception as error:  # Flower passes its words on to the server, and they may quote a record
            _LOG.exception("Tacita: this client cannot answer")
            raise RuntimeError(f"the client could not answer ({type(error).__name__}); its own log says why") from None
        _keep_client(this, context)
        return answer

    return mod


def local_training(
    message: Message,
    context: Context,
    plan: FederationPlan,
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    data: Callable[[Context], Any],
    local: Local | Training | None = None,
    rng: int | None = None,
) -> Message:
    """Answer a train message with plain local training, for level client: the same as the local engine does.

    What a `Training` remembers is kept in Flower's own state, which stays with the client.
    """
    client = Client(client_name_of(context), Task(model, loss_fn, local), data(context), plan, rng=rng)
    client.memory = kept_memory(context)
    answer = _answers(client, message, dict(message.content.config_records[ASK]))
    keep_memory(context, client.memory)
    return answer


def keep_memory(context: Context, memory: Memory) -> None:
    """Keep what a client's training remembers in Flower's own state."""
    if memory:
        context.state[_MEMORY] = ArrayRecord(dict(memory))


def kept_memory(context: Context) -> Memory:
    """Return what a client's training remembers; nothing before its first round."""
    kept = context.state.array_records.get(_MEMORY)
    return {} if kept is None else dict(kept.to_torch_state_dict())


def named_client(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A Flower mod that tells the client's name (`partition-id`), for `PrivateStrategy(named=True)` at level client."""
    asked = message.content.config_records.get(ASK)
    if asked is not None and asked["ask"] == "name":
        return _reply(message, {"name": client_name_of(context)})
    return call_next(message, context)


def client_name_of(context: Context) -> str:
    """Return a client's name: its partition, or its node where it has none."""
    partition = context.node_config.get("partition-id")
    return f"{int(partition):06d}" if isinstance(partition, int) else str(context.node_id)


def fingerprint(plan: FederationPlan) -> str:
    """Return a hash by which both sides tell whether they speak of the same plan."""
    return hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode()).hexdigest()


def _answers(client: Client, message: Message, asked: dict[str, Any]) -> Message:
    if asked["ask"] == "update":
        if asked["plan"] != fingerprint(client.plan):
            raise PrivacyError("The server's plan is not this client's: nothing is sent.")
        key, arrays = next(iter(message.content.array_records.items()))
        _check_parameters(client.task.model, list(arrays), client.plan)
        current = parameters_of(arrays)
        own = {name: current[name].to(p.dtype) for name, p in client.task.parameters.items()}
        update = client.update(own, int(asked["round"]))
        moved = {k: a.numpy() + update[k].numpy() if k in update else a.numpy() for k, a in arrays.items()}
        content = RecordDict({key: record_like(moved, arrays), "metrics": MetricRecord({"num-examples": 1})})
        if "exchange" in asked:
            content[ANSWER] = ConfigRecord({"key": client.key(str(asked["exchange"]))})
        return Message(content, reply_to=message)
    if asked["ask"] == "key":
        return _reply(message, {"key": client.key(str(asked["exchange"]))})
    if asked["ask"] == "costs":
        keys = dict(zip(asked["names"], asked["keys"], strict=True))
        words = client.costs(keys, what=str(asked["what"]), steps=int(asked["steps"]))
        return _reply(message, {"words": words.astype("<u8").tobytes()})
    raise PrivacyError(f"The server asked for {asked['ask']!r}, which this client does not know.")


def _made(model: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    try:
        return model()
    except Exception as error:
        _LOG.exception("Tacita: this client cannot make its model")
        raise RuntimeError(f"the client could not make its model ({type(error).__name__}); see its own log") from None


def _check_parameters(model: torch.nn.Module, names: Iterable[str], plan: FederationPlan) -> None:
    """Refuse names of a server's arrays that are buffers of this client's model, and a model that cannot be trained."""
    told = set(names)
    buffers = told & {name for name, _ in model.named_buffers()}
    if buffers:
        _refuse_buffers(buffers)
    if plan.level == "client":
        return  # the app trains, in its own way
    check_model(model)
    own = dict(model.named_parameters())  # a tied weight once, whatever a state dict holds
    wrong = sorted({*told - set(own), *({name for name, p in own.items() if p.requires_grad} - told)})
    if wrong:
        raise PrivacyError(
            f"{wrong[0]!r} is not both among the server's arrays and this client's parameters: the server must send "
            "ArrayRecord(dict(model.named_parameters())) of the same model."
        )


def _keep_client(client: Client, context: Context) -> None:
    """Keep what a client must remember between messages in Flower's own state, which stays with the client."""
    masker = client.masker
    context.state[_STATE] = ConfigRecord(
        {
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
    client.answered = int(kept["answered"])
    client.histogram = np.array(json.loads(str(kept["histogram"])), dtype=np.int64)
    if kept["account"] and client.account is not None:
        client.restore(json.loads(str(kept["account"])))
    if kept["key"]:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = X25519PrivateKey.from_private_bytes(bytes(kept["key"]))
        client.masker = Masker(client.name, key, str(kept["exchange"]))


def _reply(message: Message, answer: Mapping[str, Any]) -> Message:
    return Message(RecordDict({ANSWER: ConfigRecord(dict(answer))}), reply_to=message)


def parameters_of(arrays: ArrayRecord) -> Parameters:
    """Return the floating-point arrays as tensors: what updates are about. Counters and the like stay as they are."""
    values = {name: np.array(array.numpy()) for name, array in arrays.items()}
    return {name: torch.from_numpy(v) for name, v in values.items() if np.issubdtype(v.dtype, np.floating)}


def record_like(values: Mapping[str, Any], like: ArrayRecord) -> ArrayRecord:
    """Return arrays with the names, order and types of others."""
    return ArrayRecord({k: Array(np.ascontiguousarray(values[k], dtype=a.numpy().dtype)) for k, a in like.items()})


def check_arrays(arrays: ArrayRecord) -> None:
    """Refuse arrays that are no parameters, by name, as far as a server can tell: running statistics and integers."""
    wrong = [
        name
        for name, array in arrays.items()
        if name.rpartition(".")[2] in _STATISTICS or not np.issubdtype(array.numpy().dtype, np.floating)
    ]
    if wrong:
        _refuse_buffers(wrong)


def _refuse_buffers(names: Iterable[str]) -> None:
    """Raise the error for arrays that are no parameters."""
    found = sorted(names)
    some = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise PrivacyError(
        f"The arrays hold buffers, which noise would spoil: {some}. Send the parameters alone, as "
        "ArrayRecord(dict(model.named_parameters())); GroupNorm in the place of BatchNorm needs no buffers."
    )
