"""Parts of an accountant's state as plain data, and back. What does not add up is refused, never repaired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.filters import Budget, MomentsBudget, TokenBudget
from tacita.accounting.levels import NORM_LEVELS

if TYPE_CHECKING:
    from tacita._check import Counts


@contextmanager
def reading_state() -> Iterator[None]:
    """Turn every error of reading a state into a PrivacyError that says so."""
    try:
        yield
    except PrivacyError:
        raise
    except KeyError as error:
        raise PrivacyError(f"state is damaged: {error} is missing.") from error
    except (TypeError, IndexError, ValueError) as error:
        raise PrivacyError(f"state is damaged: {error}") from error


def budget_state(budget: Budget | None) -> dict[str, Any] | None:
    """Return a budget as plain data."""
    if isinstance(budget, MomentsBudget):
        return {"orders": list(budget.orders), "costs": list(budget.costs)}
    return None if budget is None else {"tokens": list(budget.tokens)}


def budget_from(state: Mapping[str, Any] | None) -> Budget | None:
    """Return the budget that `budget_state` wrote."""
    if state is None:
        return None
    if "tokens" in state:
        return TokenBudget(tuple(state["tokens"]))
    return MomentsBudget(tuple(state["orders"]), tuple(state["costs"]))


def count_type(steps: int) -> np.dtype[Any]:
    """Return the smallest signed type that holds so many steps: a million records' counts take 0.5 GB in 16 bits."""
    return next((np.dtype(kind) for kind in ("i1", "i2", "i4") if steps <= np.iinfo(kind).max), np.dtype("i8"))


def panel_state(counts: Counts) -> dict[str, Any]:
    """Return the (records, levels) matrix of steps as three lists, zeros left out."""
    rows, columns = np.nonzero(counts)
    return {
        "records": len(counts),
        "record": rows.tolist(),
        "level": columns.tolist(),
        "steps": counts[rows, columns].tolist(),
    }


def panel_from(state: Mapping[str, Any] | Counts | None, taken: int, *, dtype: np.dtype[Any]) -> Counts | None:
    """Return the matrix that `panel_state` wrote, or the one given, checked.

    Args:
        state: Three lists, or the matrix itself.
        taken: How many steps were taken: no record spent more at any level.
        dtype: The type of the result; it must hold `taken`.
    """
    if state is None:
        return None
    if isinstance(state, np.ndarray):
        counts = whole_numbers(state, (_check.count("records", len(state)), len(NORM_LEVELS)))
        if (counts > taken).any():
            raise PrivacyError("state is damaged: a record's steps do not add up to the steps taken.")
        return counts.astype(dtype)
    rows, columns, steps = (whole_numbers(state[name], (len(state["steps"]),)) for name in ("record", "level", "steps"))
    places = rows * len(NORM_LEVELS) + columns
    if (steps > taken).any() or (columns >= len(NORM_LEVELS)).any() or len(np.unique(places)) != len(places):
        raise PrivacyError("state is damaged: a record's steps do not add up to the steps taken.")
    counts = np.zeros((_check.count("records", state["records"]), len(NORM_LEVELS)), dtype=dtype)
    counts[rows, columns] = steps
    return counts


def whole_numbers(values: Any, shape: tuple[int, ...]) -> Counts:
    """Return counts of a given shape, checked."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind != "i" or (array < 0).any():
        raise PrivacyError("state is damaged: counts must be whole numbers from 0.")
    return array
