"""A model card: metadata that Hugging Face reads, and the sentences of the public label."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tacita._numbers import delta_text, epsilon_text
from tacita._version import __version__
from tacita.label import Label
from tacita.report import cards, issue, units, wording
from tacita.report.registry import yaml_text

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&$])")


def model_card(label: Label, *, tags: Iterable[str] = ()) -> str:
    """Return the text of a README.md for a published result.

    Args:
        label: The public label.
        tags: Of this kind of result, beside `differential-privacy`. A result without a finite epsilon gets none.

    Returns:
        YAML front matter, and Markdown in which texts of users are shown as they are.

    Raises:
        ValueError: If the label has readings.
    """
    if label.readings is not None:
        raise ValueError("A model card is made of the public label: pass label.public().")
    private = math.isfinite(label.worst.epsilon)
    front = yaml_text({"tags": ["differential-privacy", *tags, "tacita"] if private else ["tacita"]})
    name = label.publication.model or label.title
    said = wording.state_words(owner=False)
    figures = f"epsilon {epsilon_text(label.worst.epsilon)} at delta {delta_text(label.worst.delta)}"
    parts = [
        f"---\n{front}---",
        f"# {_shown(name)}",
        _shown(label.purpose),
        "## Privacy",
        *(_shown("".join(card.sentence)) for card in cards.cards(label)),
        _shown(f"Worst case: {figures}, for {issue.unit(label)}."),
        *map(_shown, wording.meaning(label)),
        _table(issue.rows(label)),
        *(["## Published by choice", _shown(wording.INCLUDED_NOTE), _table(label.included)] if label.included else []),
        "## How the data were used",
        _table(wording.mechanism(label)),
        "## What this rests on",
        "\n".join(f"- {said[a.state]}: {_shown(units.capital(a.text))}." for a in wording.checks(label)),
        *(["## What was not hardened", "\n".join(f"- {_shown(text)}" for text in label.not_hardened)]),
        _shown(f"{wording.source_note(label)} tacita {__version__}."),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_shown(name)} | {_shown(value)} |" for name, value in rows)])


def _shown(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", units.inline(text))
