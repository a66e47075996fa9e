"""What the messages between a private strategy and its clients carry, for both sides: requests, answers, arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita.federated.plan import FederationPlan
from tacita.training.gradients import Parameters

try:
    from flwr.app import Array, ArrayRecord, Message
except ImportError as error:
    raise _check.missing("Flower is not installed", "federated") from error

ASK, ANSWER = "tacita-ask", "tacita-answer"  # records of a message
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of layers that are no parameters
_UPDATE: dict[str, type] = {"plan": str, "round": int}
_KEY: dict[str, type] = {"plan": str, "exchange": str}
_REQUESTS: dict[str, tuple[dict[str, type], ...]] = {  # what a server may ask for, each with its exact fields
    "name": ({}, {"arrays": list}),  # the names of the server's arrays, before the first round
    "update": (_UPDATE, {**_UPDATE, "exchange": str}),
    "key": (_KEY,),
    "costs": ({**_KEY, "what": str, "names": list, "keys": list, "steps": int},),
}
_COSTS = ("records", "norms")


def request_of(message: Message) -> dict[str, Any]:
    """Return the private request that a message carries; anything else is refused."""
    asked: dict[str, Any] = {}
    if message.metadata.message_type == "train":
        asked = dict(message.content.config_records.get(ASK, {}))
    kind = asked.get("ask")
    fields = {field: type(value) for field, value in asked.items() if field != "ask"}
    known = _REQUESTS.get(kind, ()) if isinstance(kind, str) else ()
    if fields not in known or asked.get("what", "records") not in _COSTS:
        raise PrivacyError(
            "This client answers well-formed private requests only, and this message is none: nothing is sent. "
            "The server needs tacita.federated.PrivateStrategy with the client's plan."
        )
    return asked


def answer_of(reply: Message) -> Mapping[str, Any]:
    """Return what a client answered; nothing if it failed."""
    if reply.has_error():
        return {}
    return dict(reply.content.config_records.get(ANSWER, {}))


def words_of(value: object) -> Any:
    """Return the masked numbers of an answer; None if they are damaged."""
    if not isinstance(value, bytes) or len(value) % 8:
        return None
    return np.frombuffer(value, dtype="<u8").astype(np.uint64)


def update_of(reply: Message, current: ArrayRecord) -> Parameters | None:
    """Return by how much a client moved the parameters; None if it sent something else."""
    try:
        records = list(reply.content.array_records.values())
        sent = parameters_of(records[0]) if len(records) == 1 else {}
        own = parameters_of(current)
        if {k: v.shape for k, v in sent.items()} != {k: v.shape for k, v in own.items()}:
            return None
        return {name: sent[name].double() - value.double() for name, value in own.items()}
    except Exception:  # a client may send anything
        return None


def reason_of(reply: Message) -> str:
    """Return a client's error in one line that can be printed."""
    return "".join(c for c in " ".join(str(reply.error.reason).split()) if c.isprintable())[:200]


def fingerprint(plan: FederationPlan) -> str:
    """Return a hash by which both sides check that they have the same plan."""
    return hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode()).hexdigest()


def parameters_of(arrays: ArrayRecord) -> Parameters:
    """Return the floating-point arrays as tensors: what updates are about. Counters and the like stay as they are."""
    values = {name: np.array(array.numpy()) for name, array in arrays.items()}
    return {name: torch.from_numpy(v) for name, v in values.items() if np.issubdtype(v.dtype, np.floating)}


def record_like(values: Mapping[str, Any], like: ArrayRecord) -> ArrayRecord:
    """Return arrays with the names, order and types of others."""
    return ArrayRecord({k: Array(np.ascontiguousarray(values[k], dtype=a.numpy().dtype)) for k, a in like.items()})


def check_arrays(arrays: ArrayRecord, plan: FederationPlan) -> None:
    """Refuse arrays that are no parameters, by name, as far as a server can tell: running statistics and integers.

    Parameters in which shares of the noise would round away are refused as well.
    """
    wrong = [
        name
        for name, array in arrays.items()
        if name.rpartition(".")[2] in _STATISTICS or not np.issubdtype(array.numpy().dtype, np.floating)
    ]
    if wrong:
        refuse_buffers(wrong)
    check_digits(parameters_of(arrays), plan)


def check_digits(arrays: Parameters, plan: FederationPlan, own: Parameters | None = None) -> None:
    """Refuse parameters in which a client's share of the noise would round away.

    A client sends parameters plus update plus noise, rounded to their type. Where the promised noise is the sum of
    all shares, each must survive that: with steps of a sixteenth of a share or less, the sum of the rounded shares is
    as good as Gaussian. At level parallel a client's noise protects that client alone, and rounding a noisy result is
    work on what is private already. At level client the server adds the noise itself, to differences in float64.

    Args:
        arrays: The server's parameters.
        plan: What was declared.
        own: The client's parameters, in whose type its update and its share are computed.
    """
    if not plan.shares:
        return
    numbers = [
        (name, value.dtype, float(value.abs().max()) if value.numel() else 0.0) for name, value in arrays.items()
    ]
    numbers += [(name, value.dtype, 0.0) for name, value in (own or {}).items()]
    for name, kind, largest in numbers:
        digits = torch.finfo(kind)
        if digits.bits < 32:
            raise PrivacyError(
                f"{name!r} has half precision, and at level {plan.level!r} a client's share of the noise would be lost "
                "in it: use float32."
            )
        if not digits.eps * (largest + plan.clip_norm) <= plan.share_noise / 16:  # nor if it is not a number
            raise PrivacyError(
                f"{name!r} is so large that a client's share of the noise would round away in it: use float64 "
                "parameters, or keep them smaller."
            )


def refuse_buffers(names: Iterable[str]) -> None:
    """Raise the error for arrays that are no parameters."""
    found = sorted(names)
    some = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise PrivacyError(
        f"The arrays hold buffers, which noise would spoil: {some}. Send the parameters alone, as "
        "ArrayRecord(dict(model.named_parameters())); GroupNorm in the place of BatchNorm needs no buffers."
    )
