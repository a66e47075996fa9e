"""Private programs and posteriors: what is believed after seeing private data, released with exact noise.

The names below are loaded when first used, so that a program is checked without loading any numerical library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacita.posterior.domains import Bool as Bool
    from tacita.posterior.domains import Category as Category
    from tacita.posterior.domains import Real as Real
    from tacita.posterior.errors import ProgramError as ProgramError
    from tacita.posterior.models import beta as beta
    from tacita.posterior.models import dirichlet as dirichlet
    from tacita.posterior.models import normal as normal
    from tacita.posterior.program import Program as Program
    from tacita.posterior.releases import Release as Release
    from tacita.posterior.releases import release as release
    from tacita.posterior.requests import best as best
    from tacita.posterior.requests import exponential as exponential
    from tacita.posterior.requests import gaussian as gaussian
    from tacita.posterior.requests import geometric as geometric
    from tacita.posterior.requests import laplace as laplace

_HOMES = {
    "Bool": "domains",
    "Category": "domains",
    "Program": "program",
    "ProgramError": "errors",
    "Real": "domains",
    "Release": "releases",
    "best": "requests",
    "beta": "models",
    "dirichlet": "models",
    "exponential": "requests",
    "gaussian": "requests",
    "geometric": "requests",
    "laplace": "requests",
    "normal": "models",
    "release": "releases",
}
__all__ = sorted(set(_HOMES) - {"Release", "release"})  # what programs use: `import *` loads no numerical library


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacita.posterior' has no attribute {name!r}")
    return getattr(import_module(f"tacita.posterior.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
