"""Argument checks: the only wording of range errors.

Every check is written so that NaN fails it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Complexes = NDArray[np.complex128]


P = ParamSpec("P")
R = TypeVar("R")

# Old names of arguments, entries of recipes and options of commands, and what each is called now.
RENAMED = {
    "dataset": "data",
    "dir": "run_dir",
    "out": "run_dir",
    "holdout": "holdout_rate",
    "noise": "noise_multiplier",
    "raise_it": "allow_increase",
    "rng": "seed",
}


class PrivacyError(ValueError):
    """A request that would break or overstate a privacy guarantee."""


def missing(what: str, extra: str) -> ImportError:
    """Return the error for a package that is not installed, with the command that installs it.

    tacita is installed from a checkout: there is no package of that name to install from the network.
    """
    return ImportError(f"{what}: pip install -e '.[{extra}]' in the checkout of tacita")


def number(name: str, value: object) -> float:
    """Return `value` as a float, or raise TypeError naming the argument."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, got {value!r}.") from error


def probability(name: str, value: object, *, hint: str = "") -> float:
    """Return `value` if it lies in (0, 1)."""
    x = number(name, value)
    if not 0.0 < x < 1.0:
        raise ValueError(f"{name} must be in (0, 1), got {x:g}.{_hint(hint)}")
    return x


_ENTERS = "batch_size / nominal_size, with a size you declare"


def rate(name: str, value: object, *, hint: str = _ENTERS) -> float:
    """Return `value` if it is a sampling probability in (0, 1]."""
    x = number(name, value)
    if not 0.0 < x <= 1.0:
        raise ValueError(f"{name}={x:g} is not a probability in (0, 1]; pass {hint}.")
    return x


def in_range(name: str, value: object, low: float, high: float, *, hint: str = "") -> float:
    """Return `value` if it lies in [low, high]."""
    x = number(name, value)
    if not low <= x <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {x:g}.{_hint(hint)}")
    return x


def count(name: str, value: object, *, low: int = 1, high: int = 10**9, hint: str = "") -> int:
    """Return `value` as an int if it is a whole number in [low, high]."""
    x = number(name, value)
    if not low <= x <= high or not math.isfinite(x) or x != int(x):
        raise ValueError(f"{name} must be a whole number in [{low}, {high}], got {x:g}.{_hint(hint)}")
    return int(x)


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}.")
    return str(value)


def norms(name: str, value: Any, *, dimensions: tuple[int, ...] = (1,)) -> Floats:
    """Return clipped contribution norms, as fractions of the clip norm, in a float64 array.

    The message names the rule and the offending value's position class, never a record's index.
    """
    import numpy as np

    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be an array of real numbers, got {type(value).__name__} "
            f"of {getattr(value, 'dtype', 'unknown')}; pass a float array."
        ) from None
    if array.ndim not in dimensions:
        wanted = " or ".join({1: "(m,)", 2: "(T, m)"}[d] for d in dimensions)
        raise ValueError(f"{name} must have shape {wanted}, got {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} must hold at least one record, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be finite, got NaN or infinity; a record whose gradient is not finite "
            "contributes zero, so its norm is 0."
        )
    if array.min() < 0.0:
        raise ValueError(f"{name} must be non-negative, got {array.min():g}.")
    if array.max() > 1.0:
        raise ValueError(
            f"{name} must be in [0, 1], as fractions of the clip norm, got {array.max():.9g}; divide by clip_norm "
            "after clipping, and pass numpy.minimum(norms, 1) if it is float32 round-off."
        )
    return array


def renamed(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse arguments under these old names, with a message that gives the new ones."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names:
                if old in kwargs:
                    raise TypeError(
                        f"{function.__qualname__}: {old} is called {RENAMED[old]} now; pass {RENAMED[old]}=…."
                    )
            return function(*args, **kwargs)

        return checked

    return wrap


def _hint(hint: str) -> str:
    return f" {hint}" if hint else ""
