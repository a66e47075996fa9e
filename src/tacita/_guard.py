"""Run a user's code on records: what it raises there is the record's, and Ctrl-C waits until it is over."""

from __future__ import annotations

import contextlib
import numbers
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_HELD = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Ctrl-C for the second time while a user's code runs on records: it stops at once."""


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back while a user's code runs on records, and hand it to whoever listened before.

    So a KeyboardInterrupt that is raised inside comes from the code and not from a person, and one that a person asks
    for has a traceback without any record in it. A second Ctrl-C stops the code where it is. The same goes for SIGTERM,
    where Python code listens to it. Outside of the main thread Python delivers no signal, and nothing is held.
    """
    main = threading.current_thread() is threading.main_thread()
    listening = {number: signal.getsignal(number) for number in _HELD if main}
    before: dict[int, Any] = {number: handler for number, handler in listening.items() if callable(handler)}
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number in pressed:
            raise Stopped
        pressed.append(number)

    for number in before:
        signal.signal(number, note)
    stopped = False
    try:
        yield
    except Stopped:
        stopped = True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt from None
    for heard in pressed:
        before[heard](heard, None)


def attempt(function: Callable[..., T], *arguments: object) -> T | None:
    """Return what a function says of one record, or None if it raises, whatever it raises: no record stops a run.

    Call it under `held`, which keeps Ctrl-C out of it.
    """
    try:
        return function(*arguments)
    except Stopped:
        raise
    except BaseException:  # KeyboardInterrupt, SystemExit and MemoryError too: each would tell of the record
        return None


def number_in(cell: Any) -> float | None:
    """Return the number in one cell, a whole one or a truth value as such, also as a text; None if there is none.

    NumPy makes texts of a whole column where one cell is a text, so "True" is read as what it was. Call it under
    `held`.
    """
    return attempt(_number, cell)


def _number(cell: Any) -> float:
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if isinstance(cell, numbers.Integral):
        return int(cell)
    if not isinstance(cell, str | bytes):
        return float(cell)
    text = (cell.decode() if isinstance(cell, bytes) else cell).strip().casefold()
    if text in ("true", "false"):
        return text == "true"
    whole = attempt(int, text)
    return float(text) if whole is None else whole


class Interrupts:
    """Let a step finish when Ctrl-C comes; a second one interrupts at once."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *details: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: Any) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
