"""Private programs: a typed language whose releases are checked, and priced, before any data are read.

The names below are loaded when first used, so a program is checked without loading any numerical library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacita.data.domains import Bool as Bool
    from tacita.data.domains import Category as Category
    from tacita.data.domains import Real as Real
    from tacita.posterior.mechanisms import best as best
    from tacita.posterior.mechanisms import exponential as exponential
    from tacita.posterior.mechanisms import gaussian as gaussian
    from tacita.posterior.mechanisms import geometric as geometric
    from tacita.posterior.mechanisms import laplace as laplace
    from tacita.posterior.models import beta as beta
    from tacita.posterior.models import dirichlet as dirichlet
    from tacita.posterior.models import normal as normal
    from tacita.programs.errors import ProgramError as ProgramError
    from tacita.programs.program import Program as Program

_MODULES = {
    "tacita.data.domains": ("Bool", "Category", "Real"),
    "tacita.posterior.mechanisms": ("best", "exponential", "gaussian", "geometric", "laplace"),
    "tacita.posterior.models": ("beta", "dirichlet", "normal"),
    "tacita.programs.errors": ("ProgramError",),
    "tacita.programs.program": ("Program",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacita.programs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
