"""Which strategies `PrivateStrategy` may be put around, and what is kept of them.

An inner strategy gets one reply a round, the model moved by the private mean. That is right for strategies that average
and then step, and wrong for those that compare clients. Either way nothing leaks: it is work on a private mean.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from tacita import _check
from tacita._check import PrivacyError
from tacita.federated.flower_messages import record_like
from tacita.federated.plan import FederationPlan
from tacita.training.gradients import Parameters

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
except ImportError as error:
    raise _check.missing("Flower is not installed", "federated") from error

_LOG = logging.getLogger("flwr")
SUPPORTED: dict[type[Strategy], str] = {
    FedAvg: "adds the private mean to the model",
    FedAvgM: "steps along the private mean, with momentum and a learning rate of the server",
    FedProx: "adds the private mean; limits how far clients move from the model, at level client",
    FedAdagrad: "steps along the private mean, adaptively",
    FedAdam: "steps along the private mean, adaptively",
    FedYogi: "steps along the private mean, adaptively",
}

_ROBUST = (
    "it compares the updates of single clients, and gets one private mean, so its robustness would be gone; use FedAvg "
    "at level 'client', where clipping bounds what one client can do"
)
_TREES = "trees cannot be clipped and averaged with noise; train a model that has parameters, with FedAvg"
_NOISED = "it would clip and add noise once more, under no account of Tacita; wrap the strategy that is inside it"
REFUSED = {
    "Bulyan": _ROBUST,
    "FedMedian": _ROBUST,
    "FedTrimmedAvg": _ROBUST,
    "Krum": _ROBUST,
    "MultiKrum": _ROBUST,
    "QFedAvg": "it weighs clients by their losses, which are computed from private data and not sent; use FedAvg",
    "FedXgbBagging": _TREES,
    "FedXgbCyclic": _TREES,
    "DifferentialPrivacyClientSideAdaptiveClipping": _NOISED,
    "DifferentialPrivacyClientSideFixedClipping": _NOISED,
    "DifferentialPrivacyServerSideAdaptiveClipping": _NOISED,
    "DifferentialPrivacyServerSideFixedClipping": _NOISED,
}

_BASES = {base for cls in SUPPORTED for base in cls.__mro__}


def check_strategy(strategy: object, plan: FederationPlan, *, one_reply: bool) -> None:
    """Refuse a strategy that is not right with the private mean as its one reply.

    A subclass is accepted if it leaves `aggregate_train` to a class of the table.

    Args:
        strategy: The strategy to wrap.
        plan: What was declared.
        one_reply: Declares that a strategy with its own `aggregate_train` is right with one reply.

    Raises:
        TypeError: If it is no strategy of `flwr.serverapp.strategy`.
        PrivacyError: If it is one of those refused, or one that is not known.
    """
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy must be one of flwr.serverapp.strategy, got {type(strategy).__name__}.")
    classes = type(strategy).__mro__
    for cls in classes:
        if cls not in _BASES and cls.__module__.partition(".")[0] == "flwr":
            usable = ", ".join(c.__name__ for c in SUPPORTED)
            reason = REFUSED.get(cls.__name__, f"it is not known to this version of Tacita; use one of {usable}")
            raise PrivacyError(f"PrivateStrategy does not take {cls.__name__}: {reason}.")
    name = type(strategy).__name__
    if type(strategy).start is not Strategy.start or "start" in vars(strategy):
        raise PrivacyError(
            f"{name} has a start() of its own, which would not be called: do what it does around "
            "PrivateStrategy.start(), or in its evaluate_fn, which is called after every round."
        )
    if isinstance(strategy, FedProx) and plan.privacy_level.protects_records and getattr(strategy, "proximal_mu", None):
        raise PrivacyError(
            f"{name} sends clients a proximal term, which they do not use at level {plan.level!r}: use FedAvg."
        )
    combines = next(cls for cls in classes if "aggregate_train" in vars(cls))
    if (combines not in SUPPORTED or "aggregate_train" in vars(strategy)) and not one_reply:
        raise PrivacyError(
            f"{name} has an aggregate_train() of its own, which gets one reply, the model moved by the private mean: "
            "declare one_reply=True if that is right."
        )


def plain_numbers(strategy: Strategy) -> dict[str, float]:
    """Return a strategy's attributes that are finite numbers, such as learning rates."""
    found = {name: value for name, value in vars(strategy).items() if isinstance(value, int | float)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def inner_state(strategy: Strategy, first: Mapping[str, float]) -> dict[str, Any]:
    """Return what a strategy remembers: arrays, such as FedAdam's moments, and numbers that changed since the `first`.

    Numbers that did not change are settings, which a run that goes on takes from the app.
    """
    found: dict[str, Any] = {n: v for n, v in plain_numbers(strategy).items() if first.get(n) != v}
    for name, value in vars(strategy).items():
        leaves = tree_leaves(value) if isinstance(value, dict | list) else []
        if leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves):
            found[name] = tree_map(lambda leaf: torch.from_numpy(np.array(leaf)), value)
    return found


def restore_inner(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Put back what `inner_state` returned."""
    for name, value in state.items():
        setattr(strategy, name, tree_map_only(torch.Tensor, lambda leaf: leaf.numpy(), value))


def content_for(
    strategy: Strategy, plan: FederationPlan, number: int, arrays: ArrayRecord, config: ConfigRecord
) -> RecordDict:
    """Return what a strategy would send to a client.

    Args:
        strategy: The inner strategy.
        plan: What was declared.
        number: The round.
        arrays: The model.
        config: Flower's settings of the round.

    Raises:
        PrivacyError: If clients would get different messages, or other arrays than the model's where they add noise.
    """
    with _quiet():
        messages = list(strategy.configure_train(number, arrays, config, _Roll(strategy)))
    if not messages:
        config["server-round"] = number
        return RecordDict({"arrays": arrays, "config": config})
    first, name = messages[0].content, type(strategy).__name__
    if any(m.content is not first and m.content != first for m in messages):
        raise PrivacyError(
            f"{name} has different messages for different clients, and who gets which would be lost: send the same to "
            "all."
        )
    if plan.privacy_level.protects_records and not _holds(first, arrays):
        raise PrivacyError(
            f"{name} sends other arrays than the model's, and the differences of the replies from the model would not "
            f"be what clients clipped: at level {plan.level!r} send the arrays that configure_train gets."
        )
    return RecordDict(dict(first.items()))


def moved_by(strategy: Strategy, number: int, mean: Parameters, current: ArrayRecord) -> ArrayRecord | None:
    """Give a strategy the private mean as its one reply, and return its new arrays, of the same types.

    Args:
        strategy: The inner strategy.
        number: The round.
        mean: The private mean of the updates.
        current: The model.

    Returns:
        The new model; None if the strategy returns none.
    """
    moved = {k: a.numpy() + mean[k].numpy() for k, a in current.items()}
    weight, key = getattr(strategy, "weighted_by_key", "num-examples"), getattr(strategy, "arrayrecord_key", "arrays")
    one = RecordDict({key: record_like(moved, current), "metrics": MetricRecord({weight: 1.0})})
    with _quiet(), _without_metrics(strategy):
        arrays, _ = strategy.aggregate_train(number, [Message(one, dst_node_id=0, message_type="train")])
    if not arrays:
        return None
    found = {k: a.numpy() for k, a in arrays.items()}
    if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in moved.items()}:
        raise PrivacyError(f"{type(strategy).__name__} returned arrays of other names or shapes than the model's.")
    return record_like(found, current)


class _Roll:
    """As many nodes as the inner strategy wants to see, so that it returns what it would send without waiting."""

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
    """The stand-in has no metrics, and their aggregate would be dropped: the app's function is not called."""
    own = vars(inner).get("train_metrics_aggr_fn")
    if own is not None:
        inner.train_metrics_aggr_fn = lambda contents, weight: MetricRecord()
    try:
        yield
    finally:
        if own is not None:
            inner.train_metrics_aggr_fn = own


def _holds(content: RecordDict, arrays: ArrayRecord) -> bool:
    """Return whether a message holds these arrays and no others."""
    sent = [{k: a.numpy() for k, a in record.items()} for record in content.array_records.values()]
    own = {k: a.numpy() for k, a in arrays.items()}
    return [list(found) for found in sent] == [list(own)] and all(
        sent[0][k].dtype == v.dtype and np.array_equal(sent[0][k], v, equal_nan=True) for k, v in own.items()
    )
