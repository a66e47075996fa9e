"""Measure the rows of an experiment one by one; rows that are there are skipped, so an interrupted run can go on.

A folder of `experiments/` has a `run.py` that names its rows and calls `main`. Every row of its `results.jsonl` has
`row` (its name), `seeds`, `settings` (how they were chosen), `cpu_minutes`, and what was measured. To measure a row
again, delete its line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Rows = dict[str, Row]
Jobs = Mapping[str, Callable[[], Row]]

HERE = Path(__file__).parent


def load(folder: str, file: str = "results.jsonl") -> Rows:
    """Return the measured rows of a folder by name, in the order of the file."""
    path = HERE / folder / file
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["row"]: row for row in map(json.loads, lines)}


def append(folder: str, row: Row, file: str = "results.jsonl") -> None:
    """Add a row to a folder's results."""
    with (HERE / folder / file).open("a") as out:
        out.write(json.dumps(row) + "\n")


def main(folder: str, jobs: Callable[[bool], Jobs], arguments: list[str] | None = None) -> None:
    """Measure what is missing.

    Args:
        folder: Where the results go, below `experiments/`.
        jobs: Given whether the run is a quick one, returns what measures each row.
        arguments: Of the command line: patterns of row names; `--quick` for small sizes, into `quick.jsonl`; `--list`
            for the names alone.
    """
    words = sys.argv[1:] if arguments is None else arguments
    quick, patterns = "--quick" in words, [word for word in words if not word.startswith("--")] or ["*"]
    file = "quick.jsonl" if quick else "results.jsonl"
    named = jobs(quick)
    wanted = {name: job for name, job in named.items() if any(fnmatch(name, pattern) for pattern in patterns)}
    if not wanted:
        sys.exit(f"no row of {folder} matches {' '.join(patterns)}; there are: {', '.join(named)}")
    for name, job in wanted.items():
        there = name in load(folder, file)
        if there or "--list" in words:
            print(f"{folder}: {name}: {'measured' if there else 'missing'}", flush=True)
            continue
        print(f"{folder}: {name} ...", flush=True)
        start = time.process_time()
        found = job()
        minutes = round((time.process_time() - start) / 60, 3)
        append(folder, {"row": name, "cpu_minutes": minutes, **found}, file)
        print(f"{folder}: {name}: {minutes:.1f} CPU minutes", flush=True)
