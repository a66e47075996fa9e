"""Spread work over forked processes, which end with their parent."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import signal
import warnings
from collections.abc import Callable, Generator
from typing import Any

Work = Callable[[int], dict[str, Any]]


def spread(work: Work, items: list[int], workers: int) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Yield (item, result) as they are done, by forked processes, which are ended when this is closed."""
    count = min(workers, len(items))
    if count <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from ((item, work(item)) for item in items)
        return
    context = multiprocessing.get_context("fork")
    running: dict[Any, Any] = {}
    try:
        for k in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(work, items[k::count], sender, [*running, receiver]))
            with warnings.catch_warnings():  # newer Pythons warn of threads, which the child does not use
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            running[receiver] = process
            sender.close()
        waiting: list[Any] = list(running)
        while waiting:
            ready: Any
            for ready in multiprocessing.connection.wait(waiting):
                try:
                    item, result = json.loads(ready.recv_bytes())
                except EOFError:
                    waiting.remove(ready)
                    running[ready].join()
                    if running[ready].exitcode:
                        raise RuntimeError("A process that replayed fits ended before its work was done.") from None
                    continue
                if isinstance(result, str):
                    raise ValueError(f"A replay without one record failed: {result}")
                yield item, result
    finally:
        for receiver, process in running.items():
            receiver.close()
            process.terminate()
            process.join()


def _serve(work: Work, items: list[int], sender: Any, inherited: list[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in inherited:
        end.close()  # so that this process cannot outlive its parent
    for item in items:
        try:
            result: Any = work(item)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        sender.send_bytes(json.dumps([item, result]).encode())
