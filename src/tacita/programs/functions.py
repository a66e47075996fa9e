"""Functions that a program applies to records: tried on public values before any data are read."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from tacita.data.domains import Bool, Category, Domain, Real
from tacita.programs.clamping import Clamped
from tacita.programs.errors import ProgramError
from tacita.programs.handles import Handle
from tacita.programs.source import Span

_MOST_PROBES = 1000
_PLAIN = (bool, str, bytes, numbers.Number, type(None))
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 3.0, 18.0, 40.0, 65.0, 1e3, 1e6, math.nan)

Values = Domain | Clamped


def tried_out(
    function: Callable[[Any], object], called: str, domain: Values, to: Values, span: Span
) -> dict[object, float | None] | None:
    """Try a function on public values, three times and in both orders, and return its results if these are all values.

    A function that fails on a public label, or on all numbers tried, is refused: its records would silently count as
    fallbacks. So is one whose answers change from call to call: a record's value would depend on other records.

    Args:
        function: What the program applies to each record's value.
        called: Its name, for messages.
        domain: What it is applied to.
        to: What its results are forced into.
        span: Where in the program.

    Returns:
        The result for each possible value, or None if there are too many to try them all.
    """
    probes = _probes(domain)

    def answer(value: object) -> object:
        result = function(value)
        if isinstance(result, Handle):
            way_out = "return a plain value: a handle has none before the program runs"
            raise result._error("T029", f"{called} returns {result!r}", way_out, span)
        return result

    results, failed = _answers(answer, probes, to)
    for order in (probes[::-1], probes):
        again, _ = _answers(answer, order, to)
        for value in probes:
            if repr(again[value]) != repr(results[value]):  # NaN is the same as NaN
                raise ProgramError(
                    "T030",
                    f"{called} answers {value!r} differently from time to time",
                    "make it a function of its argument alone: what it keeps of one record would change another's",
                    span=span,
                )
    if failed and (isinstance(domain, Bool | Category) or len(failed) == len(probes)):
        value, reason = next(iter(failed.items()))
        every = "every value that was tried, such as " if len(failed) == len(probes) else ""
        raise ProgramError(
            "T029",
            f"{called} fails on {every}{value!r}: {reason}",
            "correct it: records on which it fails count as the lower bound or the fallback, in silence",
            span=span,
        )
    return results if _all_tried(domain, len(results)) else None


def _answers(
    function: Callable[[Any], object], values: tuple[object, ...], to: Values
) -> tuple[dict[object, float | None], dict[object, str]]:
    results: dict[object, float | None] = {}
    failed = {}
    for value in values:
        try:
            results[value] = converted(to, function(value))
        except ProgramError:
            raise
        except (Exception, SystemExit) as error:
            results[value] = None
            failed[value] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return results, failed


def _all_tried(domain: Values, number: int) -> bool:
    if isinstance(domain, Clamped):
        return number == domain.highest - domain.lowest + 1
    return not isinstance(domain, Real) and number == len(domain.labels)


def _probes(domain: Values) -> tuple[object, ...]:
    """Return public values to try a function on, before any data are read: all of them where they are few."""
    if isinstance(domain, Bool | Category):
        return domain.labels[:_MOST_PROBES]
    if isinstance(domain, Real):
        return _NUMBERS
    steps = range(domain.lowest, domain.highest + 1)
    if len(steps) > _MOST_PROBES:
        steps = steps[:: (len(steps) - 1) // 9]
    return tuple(step * float(domain.step) for step in steps)


def converted(domain: Values, result: object) -> float | None:
    """Return what a function made of a value, as a label's place or a number; None if it is none of a domain's labels.

    Raises:
        TypeError: If it is nothing plain, such as a function that was not called, or a handle.
    """
    if not isinstance(result, Handle) and getattr(result, "shape", None) == ():
        result = result.item()  # type: ignore[attr-defined]
    if not isinstance(result, _PLAIN):
        raise TypeError(f"it returns a {type(result).__name__}, which is not a plain value")
    if isinstance(domain, Bool):
        if isinstance(result, str | bytes):
            raise TypeError(f"it returns a {type(result).__name__}, which is neither true nor false")
        return 0 if result else 1
    return domain.read(result) if isinstance(domain, Category) else float(result)  # type: ignore[arg-type]
