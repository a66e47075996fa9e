"""Private programs: a typed language whose releases are checked, and priced, before any data are read.

Nothing here loads a numerical library, so a program is checked quickly and without the extras.
"""

from tacita.data.domains import Bool, Category, Real
from tacita.posterior.mechanisms import best, exponential, gaussian, geometric, laplace
from tacita.posterior.models import beta, dirichlet, normal
from tacita.programs.errors import ProgramError
from tacita.programs.program import Program

__all__ = [
    "Bool",
    "Category",
    "Program",
    "ProgramError",
    "Real",
    "best",
    "beta",
    "dirichlet",
    "exponential",
    "gaussian",
    "geometric",
    "laplace",
    "normal",
]
