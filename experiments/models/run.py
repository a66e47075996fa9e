"""Which models of other libraries does Tacita train, how, and are their gradients right? And Opacus?

    python -m experiments.models.run               # every row that is missing
    python -m experiments.models.run "*Llama*"     # some
    python -m experiments.models.run --list

Each row builds one small model from its library's own configuration, without a download, and compares the gradient of
every record with an ordinary backward pass for that record alone. `python -m experiments.models.page` writes the page.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import torch
from torch import Tensor

from experiments.models.cases import Build, Case
from experiments.models.compared import Verdict, by_loop, ours, theirs
from experiments.models.libraries import ADAPTERS, MIXED, SOUND_MODELS, TEXT, VISION
from experiments.models.networks import NETWORKS
from experiments.rows import Jobs, Row, main

GROUPS: dict[str, dict[str, Build]] = {
    "Text, transformers": TEXT,
    "Vision, transformers": VISION,
    "Sound, transformers": SOUND_MODELS,
    "Losses that compare records, transformers": MIXED,
    "Adapters, peft": ADAPTERS,
    "Networks of torch.nn": NETWORKS,
}
BUILDS = {name: build for group in GROUPS.values() for name, build in group.items()}
LIBRARIES = ("torch", "transformers", "peft", "opacus")


def measured_ours(name: str) -> Verdict:
    """Return what Tacita does with a model, measured anew."""
    case, wanted = _built(BUILDS[name])
    return ours(case, wanted)


def _built(build: Build) -> tuple[Case, Tensor | None]:
    """Return a model, and its gradients by a loop."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of their own models
        case = build()
        return case, by_loop(case)


def _row(build: Build) -> Row:
    torch.set_num_threads(1)
    case, wanted = _built(build)
    return {
        "seeds": [1],
        "settings": "fixed",
        "versions": {name: version(name) for name in LIBRARIES},
        "ours": ours(case, wanted),
        "opacus": theirs(case, wanted),
    }


def jobs(quick: bool) -> Jobs:
    """Return what measures each row; all are quick."""
    found: dict[str, Callable[[], Row]] = {name: partial(_row, build) for name, build in BUILDS.items()}
    return found


if __name__ == "__main__":
    main("models", jobs)
