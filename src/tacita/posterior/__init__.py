"""Conjugate posteriors of private data, released with exact noise that the posterior takes into account.

Models and mechanisms are plain descriptions; `release` loads the numerical libraries when it is first used.
"""

from typing import TYPE_CHECKING

from tacita.posterior.mechanisms import best, exponential, gaussian, geometric, laplace
from tacita.posterior.models import beta, dirichlet, normal

if TYPE_CHECKING:
    from tacita.posterior.releases import Release, release

__all__ = [
    "Release",
    "best",
    "beta",
    "dirichlet",
    "exponential",
    "gaussian",
    "geometric",
    "laplace",
    "normal",
    "release",
]
_MOVED = ("Bool", "Category", "Program", "ProgramError", "Real")


def __getattr__(name: str) -> object:
    if name in ("Release", "release"):
        from tacita.posterior import releases

        return getattr(releases, name)
    if name in _MOVED:
        raise ImportError(f"tacita.posterior.{name} is tacita.programs.{name} now: from tacita.programs import {name}")
    raise AttributeError(f"module 'tacita.posterior' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
