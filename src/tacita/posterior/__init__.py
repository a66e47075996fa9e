"""Conjugate posteriors of private data, released with exact noise that the posterior takes into account.

The names below are loaded when first used, so models and mechanisms are described without any numerical library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacita.posterior.mechanisms import best as best
    from tacita.posterior.mechanisms import exponential as exponential
    from tacita.posterior.mechanisms import gaussian as gaussian
    from tacita.posterior.mechanisms import geometric as geometric
    from tacita.posterior.mechanisms import laplace as laplace
    from tacita.posterior.models import beta as beta
    from tacita.posterior.models import dirichlet as dirichlet
    from tacita.posterior.models import normal as normal
    from tacita.posterior.releases import Release as Release
    from tacita.posterior.releases import release as release

_MODULES = {
    "tacita.posterior.mechanisms": ("best", "exponential", "gaussian", "geometric", "laplace"),
    "tacita.posterior.models": ("beta", "dirichlet", "normal"),
    "tacita.posterior.releases": ("Release", "release"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_MOVED = ("Bool", "Category", "Program", "ProgramError", "Real")
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _MOVED:
        raise ImportError(f"tacita.posterior.{name} is tacita.programs.{name} now: from tacita.programs import {name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tacita.posterior' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
