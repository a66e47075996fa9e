"""Write docs/reference/models.md from results.jsonl.

    python -m experiments.models.page

A test compares the committed page with what this script makes of the committed results, and another one the results
with what Tacita does now.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from experiments import rows as measured
from experiments.models.cases import RECORDS
from experiments.models.compared import MODES, Verdict
from experiments.models.run import GROUPS, LIBRARIES
from experiments.rows import Row, Rows
from experiments.tables import table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "models.md"
RIGHT = 1e-5  # of a record's largest coordinate; ours
THEIRS = 1e-4  # Opacus is allowed more, so that no round-off is held against it
ROUNDED = {"autocast to bfloat16": 0.01}  # rows where the loop itself rounds more than that

ALONE = {  # what torch says, and what it means
    "autograd.Function": "an `autograd.Function` without a rule for `vmap`",
    "dynamic shape": "shapes that depend on data",
    "control flow": "a branch that looks at data",
    ".item()": "packed sequences",
    "SparseCPU": "sparse gradients",
}
FAILURES = {
    "Parameter tying": "refuses tied weights",
    "trainable layer with buffers": "refuses a layer with buffers",
    "batch size matching input": "fails: a layer's input has another batch size",
    f"instead of {RECORDS} in": "fails: a layer's input has another batch size",
    "modified inplace": "fails: an operation in place",
    "view size is not compatible": "fails: `view` of a transposed tensor",
    "PackedSequence": "fails: packed sequences",
    "required positional argument": "fails: a layer with several inputs",
    "required keyword-only argument": "fails: a layer with several inputs",
    "no grad_sample of": "leaves a parameter without gradient",
    "no norm_sample of": "leaves a parameter without gradient",
}


def ours(name: str, found: Verdict) -> str:
    """Return what Tacita does with a model."""
    if found["way"] == "refused":
        where, what = re.split(r" at '[^']*' ", found["why"].split(". ")[0], maxsplit=1)
        return f"refused: {where.strip('_')} {what}"
    if found["way"] == "warned":
        return "warns: its gradient is zero for a record alone"
    if found["apart"] > ROUNDED.get(name, RIGHT):
        return f"**wrong** by {_percent(found['apart'])}"
    if found["way"] == "record by record":
        return "right; one by one: " + next(meaning for words, meaning in ALONE.items() if words in found["why"])
    return f"right; together, {100 * found['layers']:.0f}% by layers"


def theirs(name: str, found: Verdict) -> str:
    """Return what Opacus does with a model in one of its modes."""
    if "apart" in found:
        right = found["apart"] <= max(THEIRS, ROUNDED.get(name, 0.0))
        return "right" if right else f"**wrong** by {_percent(found['apart'])}"
    if rule := re.search(r"cannot handle function (\w+)", found["error"]):
        return f"fails: no rule for `{rule[1]}`"
    known = next((meaning for words, meaning in FAILURES.items() if words in found["error"]), None)
    return known or f"fails: `{found['error'].split(':')[0]}`"


def _percent(apart: float) -> str:
    return f"{100 * apart:.2g}%" if apart < 1.0 else f"{100 * apart:.0f}%"


def models(found: Rows, names: Iterable[str]) -> str:
    """Return the table of a group."""
    head = ["model", "Tacita", *(f"Opacus, {mode}" for mode in MODES)]
    lines = [
        [name, ours(name, row["ours"]), *(theirs(name, row["opacus"][mode]) for mode in MODES)]
        for name, row in found.items()
        if name in names
    ]
    return table(head, lines)


def totals(found: Rows) -> str:
    """Return how many models each runs."""
    kinds = ("right", "**wrong**", "warns", "refuse", "leaves", "fails")
    columns = {"Tacita": [ours(name, row["ours"]) for name, row in found.items()]}
    columns |= {f"Opacus, {m}": [theirs(name, row["opacus"][m]) for name, row in found.items()] for m in MODES}
    counts = {who: Counter(next(k for k in kinds if c.startswith(k)) for c in cells) for who, cells in columns.items()}
    lines = [
        [
            who,
            str(count["right"]),
            str(count["**wrong**"]),
            str(count["refuse"] + count["warns"]),
            str(count["fails"] + count["leaves"]),
        ]
        for who, count in counts.items()
    ]
    return table([f"of {len(found)} models", "right", "wrong, silently", "refused or warned of", "fails"], lines)


def page(found: Rows, template: str) -> str:
    """Fill the template."""
    first: Row = next(iter(found.values()))
    versions = ", ".join(f"{name} {first['versions'][name].split('+')[0]}" for name in LIBRARIES)
    parts = {"totals": totals(found), "versions": versions}
    parts["groups"] = "\n\n".join(f"## {group}\n\n{models(found, builds)}" for group, builds in GROUPS.items())
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


if __name__ == "__main__":
    PAGE.write_text(page(measured.load("models"), (HERE / "page.md").read_text()))
