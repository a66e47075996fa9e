"""Which strategies `PrivateStrategy` may be put around, and what is kept of them.

An inner strategy gets one reply a round, the model moved by the private mean. That is right for strategies that average
and then step, and wrong for those that compare clients. Either way nothing leaks: it is work on a private mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError

try:
    from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
except ImportError as error:
    raise _check.missing("Flower is not installed", "federated") from error

SUPPORTED: dict[type[Strategy], str] = {
    FedAvg: "adds the private mean to the model",
    FedAvgM: "steps along the private mean, with momentum and a learning rate of the server",
    FedProx: "adds the private mean; tells clients how far to stray, at level client",
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


def check_strategy(strategy: object, *, level: str, one_reply: bool) -> None:
    """Refuse a strategy that is not right with the private mean as its one reply.

    A class of one's own is accepted if it leaves `aggregate_train` to a class of the table, or if `one_reply` declares
    that it is right with one reply.

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
    if isinstance(strategy, FedProx) and level != "client" and getattr(strategy, "proximal_mu", None):
        raise PrivacyError(
            f"{name} tells clients a proximal term, which they do not have at level {level!r}: use FedAvg."
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
        if isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
            found[name] = {k: torch.from_numpy(np.array(v)) for k, v in value.items()}
        elif isinstance(value, list) and value and all(isinstance(v, np.ndarray) for v in value):
            found[name] = [torch.from_numpy(np.array(v)) for v in value]
    return found


def restore_inner(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Put back what `inner_state` returned."""
    for name, value in state.items():
        plain = value
        if isinstance(value, dict):
            plain = {k: v.numpy() for k, v in value.items()}
        elif isinstance(value, list):
            plain = [v.numpy() for v in value]
        setattr(strategy, name, plain)
