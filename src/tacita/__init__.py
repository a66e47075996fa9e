"""Tacita: data-aware privacy for machine learning.

The names below are loaded when first used; importing the package is fast and needs nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tacita._check import PrivacyError as PrivacyError
    from tacita.accounting import BayesianAccountant as BayesianAccountant
    from tacita.accounting import calibrate as calibrate
    from tacita.accounting import moments_budget as moments_budget
    from tacita.accounting import token_budget as token_budget
    from tacita.accounting import token_profile as token_profile
    from tacita.accounting import worst_case as worst_case
    from tacita.guarantee import Guarantee as Guarantee
    from tacita.guarantee import attack_success as attack_success
    from tacita.guarantee import group as group
    from tacita.guarantee import outlier_probability as outlier_probability
    from tacita.guarantee import share_above as share_above

_HOMES = {
    "PrivacyError": "tacita._check",
    "BayesianAccountant": "tacita.accounting",
    "calibrate": "tacita.accounting",
    "moments_budget": "tacita.accounting",
    "token_budget": "tacita.accounting",
    "token_profile": "tacita.accounting",
    "worst_case": "tacita.accounting",
    "Guarantee": "tacita.guarantee",
    "attack_success": "tacita.guarantee",
    "group": "tacita.guarantee",
    "outlier_probability": "tacita.guarantee",
    "share_above": "tacita.guarantee",
}
_LAYERS = (
    "accounting",
    "audit",
    "data",
    "federated",
    "inference",
    "ledger",
    "posterior",
    "programs",
    "report",
    "synthesis",
    "training",
)  # `import tacita` is enough
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _LAYERS:
        return import_module(f"tacita.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tacita' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
