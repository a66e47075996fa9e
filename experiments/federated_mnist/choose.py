"""Compare candidates of every setting on training images that are held out; the results are in `choices.jsonl`.

python -m experiments.federated_mnist.choose                      # what is missing
python -m experiments.federated_mnist.choose "table 6.1 *"        # some names
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from fnmatch import fnmatch

import torch

from experiments import rows as measured
from experiments.federated_mnist.federations import started, trained
from experiments.federated_mnist.settings import CHOICES, FOLDER, alike, candidate, tables

SEED = 1000  # of splits and noise; no row has it


def main(patterns: list[str]) -> None:
    """Measure the candidates that are missing."""
    for name, (start, candidates) in tables().items():
        wanted = any(fnmatch(name, pattern) for pattern in patterns)
        if not wanted or len(candidates) == 1 or alike(name) != name:
            continue
        for changes in candidates:
            row = candidate(name, changes)
            if row in measured.load(FOLDER, CHOICES):
                continue
            began = time.process_time()
            made, data, _ = started(replace(start, **changes), SEED, choosing=True)
            curve = trained(made, data)
            minutes = round((time.process_time() - began) / 60, 3)
            found = {"row": row, "cpu_minutes": minutes, "accuracy": curve[-1][1], "seed": SEED}
            measured.append(FOLDER, found, CHOICES)
            print(f"{row}: {found['accuracy']:.2f}% in {minutes:.2f} CPU minutes", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or ["*"])
