"""Progress of long work: one signature for everybody who reports it, and the only place that draws it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, note)`: how far the work is, and what is being done. A total of 0 is unknown."""


def quiet(done: int, total: int, note: str) -> None:
    """Report no progress."""


class ProgressBar:
    """Draws progress on standard error: a bar on a terminal or in a notebook, a line for every tenth elsewhere.

    Use it in a `with` statement, and call it as a `Progress`.

    Args:
        detail: Says what is worth knowing at this moment; computed for every tenth of the work only.
    """

    def __init__(self, detail: Callable[[], str] | None = None) -> None:
        self._detail = detail
        self._text = ""
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> ProgressBar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if console.is_terminal or console.is_jupyter:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._bar.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*details)

    def __call__(self, done: int, total: int, note: str) -> None:
        tenth = done % max(1, total // 10) == 0 or done == total
        if tenth and self._detail is not None and done:
            self._text = f": {self._detail()}"
        if self._bar is not None:
            task = self._tasks.get(note)
            if task is None:
                task = self._tasks[note] = self._bar.add_task(note)
            self._bar.update(task, completed=done, total=total or None, description=note + self._text)
        elif tenth:
            print(f"{note} {done}/{total}{self._text}" if total else note, file=sys.stderr)


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """Give the caller's own function; without one, a bar where somebody can see it."""
    if progress is not None:
        yield progress
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield quiet
        return
    with ProgressBar() as bar:
        yield bar
