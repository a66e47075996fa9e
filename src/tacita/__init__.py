"""Tacita: data-aware privacy for machine learning.

The names below are loaded when first used; importing the package is fast and needs nothing else.

- Train: `PrivateTraining`, with `Plan`, `Follow` and `Books` to group its settings.
- Federate: `Federation`, `FederationPlan`; for Flower see `tacita.federated.PrivateStrategy`.
- Infer: `fit` a Pyro model; `release` a conjugate posterior; write a `Program` about a table.
- Synthesise: `tacita.synthesis`. Attack: `tacita.audit.run`.
- Account: `worst_case`, `calibrate`, `calibrate_to` a `Target`, `BayesianAccountant`, `Guarantee`, `Profile`.
  Keep budgets: `Ledger`.
- Read what was made: `Label`, `Run`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tacita._version import __version__ as __version__

if TYPE_CHECKING:
    from tacita._check import PrivacyError as PrivacyError
    from tacita.accounting import BayesianAccountant as BayesianAccountant
    from tacita.accounting import Target as Target
    from tacita.accounting import calibrate as calibrate
    from tacita.accounting import calibrate_to as calibrate_to
    from tacita.accounting import moments_budget as moments_budget
    from tacita.accounting import token_budget as token_budget
    from tacita.accounting import token_profile as token_profile
    from tacita.accounting import worst_case as worst_case
    from tacita.federated import Federation as Federation
    from tacita.federated import FederationPlan as FederationPlan
    from tacita.guarantee import Guarantee as Guarantee
    from tacita.guarantee import attack_success as attack_success
    from tacita.guarantee import group as group
    from tacita.guarantee import outlier_probability as outlier_probability
    from tacita.guarantee import share_above as share_above
    from tacita.inference import fit as fit
    from tacita.label import Label as Label
    from tacita.ledger import Ledger as Ledger
    from tacita.posterior import release as release
    from tacita.profile import Profile as Profile
    from tacita.programs import Program as Program
    from tacita.runs import Run as Run
    from tacita.training import Books as Books
    from tacita.training import Follow as Follow
    from tacita.training import Plan as Plan
    from tacita.training import PrivateTraining as PrivateTraining

_NAMES = {
    "_check": ("PrivacyError",),
    "accounting": (
        "BayesianAccountant",
        "Target",
        "calibrate",
        "calibrate_to",
        "moments_budget",
        "token_budget",
        "token_profile",
        "worst_case",
    ),
    "federated": ("Federation", "FederationPlan"),
    "guarantee": ("Guarantee", "attack_success", "group", "outlier_probability", "share_above"),
    "inference": ("fit",),
    "label": ("Label",),
    "ledger": ("Ledger",),
    "posterior": ("release",),
    "profile": ("Profile",),
    "programs": ("Program",),
    "runs": ("Run",),
    "training": ("Books", "Follow", "Plan", "PrivateTraining"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_LAYERS = (
    "accounting",
    "audit",
    "data",
    "features",
    "federated",
    "inference",
    "ledger",
    "posterior",
    "programs",
    "report",
    "synthesis",
    "training",
)  # `import tacita` is enough
__all__ = ["__version__", *_HOMES, *_LAYERS]


def __getattr__(name: str) -> object:
    if name in _LAYERS:
        return import_module(f"tacita.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tacita' has no attribute {name!r}")
    return getattr(import_module(f"tacita.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
