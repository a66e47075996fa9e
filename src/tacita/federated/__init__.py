"""Federated learning with privacy for clients, for their records, or for both.

`PrivateStrategy`, `instance_privacy` and `named_client` are for Flower, and loaded with it when first used.
"""

from typing import TYPE_CHECKING, Any

from tacita import _check

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _check.missing("Federations need PyTorch", "federated") from error

from tacita.federated.client import Client as Client
from tacita.federated.client import Local as Local
from tacita.federated.client import Task as Task
from tacita.federated.levels import LEVELS as LEVELS
from tacita.federated.levels import Level as Level
from tacita.federated.local import Federation as Federation
from tacita.federated.masking import Exchange as Exchange
from tacita.federated.masking import largest as largest
from tacita.federated.masking import masker as masker
from tacita.federated.masking import summed as summed
from tacita.federated.plan import FederationPlan as FederationPlan
from tacita.federated.plan import RecordSettings as RecordSettings
from tacita.federated.plan import federation_plan as federation_plan
from tacita.federated.server import Round as Round
from tacita.federated.server import Server as Server

if TYPE_CHECKING:
    from tacita.federated.flower import PrivateStrategy as PrivateStrategy
    from tacita.federated.flower_client import instance_privacy as instance_privacy
    from tacita.federated.flower_client import named_client as named_client


def __getattr__(name: str) -> Any:
    if name in ("PrivateStrategy", "instance_privacy", "named_client"):
        from tacita.federated import flower, flower_client

        return getattr(flower if name == "PrivateStrategy" else flower_client, name)
    raise AttributeError(f"module 'tacita.federated' has no attribute {name!r}")
