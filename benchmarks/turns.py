"""Steps of several programs, timed in turns, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping


def median_seconds(
    steps: Mapping[str, Callable[[], object]], clock: Callable[[], float], *, rounds: int, warm_up: int
) -> dict[str, float]:
    """Return the median time of each step by the clock; the first rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + warm_up):
        for name, step in steps.items():
            began = clock()
            step()
            if number >= warm_up:
                times[name].append(clock() - began)
    return {name: statistics.median(values) for name, values in times.items()}
